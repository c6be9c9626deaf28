"""Tokenizers of model folders: as the library encodes, but no text of a user makes a control token."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any
from unicodedata import normalize

import pytest
from fakes.folders import KINDS, add_to, change, edited, folder_of_gguf, make_folder, oracle
from fakes.vocabularies import smollm2
from hypothesis import given, settings
from hypothesis import strategies as st

from ostinato.chat.detokenizer import Detokenizer
from ostinato.chat.rendered import Rendered
from ostinato.chat.template import ChatTemplate
from ostinato.chat.tokenizer import Tokenizer
from ostinato.chat.vocabulary import TokenType
from ostinato.errors import InvalidRequestError, ModelFileError, ModelNotFoundError, UnsupportedModelError

EVERY_KIND = pytest.mark.parametrize("kind", KINDS)
WORDS = st.sampled_from(
    [
        "the quick",
        " brown",
        "\n",
        "\n\n",
        "  ",
        "é",
        "e\u0301",
        "日本",
        "🦙",
        "1234",
        "don't",
        "<tool>",
        "x<tool> y",
    ]
)
TEXTS = st.one_of(
    st.lists(WORDS, max_size=8).map("".join), st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
)
CONTROL = ["<s>", "</s>", "<|turn|>", "<unk>"]
TRICKY = st.lists(st.one_of(WORDS, st.sampled_from([*CONTROL, "<|tu", "rn|>", "<", "s>"])), max_size=8).map(
    "".join
)


@cache
def folder(kind: str) -> Path:
    return make_folder(kind)


@cache
def tokenizer(kind: str) -> Tokenizer:
    return Tokenizer.from_folder(folder(kind))


@EVERY_KIND
@given(text=TEXTS)
@settings(max_examples=100, deadline=None)
def test_plain_text_is_encoded_as_the_library_does(kind: str, text: str) -> None:
    assert tokenizer(kind).encode(text) == oracle(folder(kind)).encode(text, add_special_tokens=False).ids


@EVERY_KIND
@given(text=TRICKY)
@settings(max_examples=100, deadline=None)
def test_control_tokens_are_read_as_the_library_does_where_asked_for(kind: str, text: str) -> None:
    want = oracle(folder(kind)).encode(text, add_special_tokens=False).ids
    assert tokenizer(kind).encode(text, special=True) == want
    assert tokenizer(kind).encode_rendered(Rendered(text))[-len(want) :] == (want or [1])


@EVERY_KIND
@given(text=TRICKY)
@settings(max_examples=100, deadline=None)
def test_a_users_text_makes_no_control_token(kind: str, text: str) -> None:
    control = set(tokenizer(kind).vocabulary.ids_of(TokenType.CONTROL))
    control -= {0} if kind == "unigram" else set()  # `<unk>`, which stands for what no piece spells
    typed = tokenizer(kind).encode_rendered(Rendered("<|turn|>" + text, ((8, 8 + len(text)),)))
    turn = tokenizer(kind).id_of_special("<|turn|>")
    assert [token_id for token_id in typed if token_id in control] == [1, turn]
    assert not control & set(tokenizer(kind).encode(text))


@EVERY_KIND
@given(text=TEXTS)
@settings(max_examples=60, deadline=None)
def test_round_trip(kind: str, text: str) -> None:
    if kind == "unigram":  # which has no bytes to fall back to
        text = "".join(c for c in text if c in "the quick brown 1234")
    # As the kind normalises; a blank is put in front of what follows a token, too.
    text = normalize("NFC", text) if kind == "bytewise" else text.replace("▁", "").replace("<tool>", "")
    ids = tokenizer(kind).encode(text)
    decoded = tokenizer(kind).decode(ids)
    assert decoded in (text, " " + text)  # the blank that some vocabularies put in front
    streamed = Detokenizer(tokenizer(kind))
    assert "".join([streamed.feed([token_id]) for token_id in ids]) + streamed.flush() == decoded


@EVERY_KIND
def test_prompts_begin_with_bos_once(kind: str) -> None:
    assert tokenizer(kind).bos_id == 1
    assert tokenizer(kind).encode("the", bos=True) == oracle(folder(kind)).encode("the").ids
    assert tokenizer(kind).encode_rendered(Rendered("<s>the"))[:2] != [1, 1]
    silent = Tokenizer.from_folder(edited(folder(kind), "tokenizer_config.json", change(add_bos_token=False)))
    assert silent.encode("the", bos=True) == silent.encode("the")


def test_a_blank_in_front_of_the_first_stretch_only() -> None:
    """Metaspace of the scheme `first`: what follows a control token has none."""
    assert tokenizer("metaspace").encode("the") == tokenizer("metaspace").encode(" the")
    after = tokenizer("metaspace").encode("<|turn|>the", special=True)[1:]
    assert after != tokenizer("metaspace").encode("the")
    assert tokenizer("metaspace").decode(after) == "the"


def test_control_tokens_take_their_blanks() -> None:
    stripping = edited(
        folder("bytewise"), "tokenizer.json", add_to("added_tokens", 3, lstrip=True, rstrip=True)
    )
    got = Tokenizer.from_folder(stripping)
    for text in ["a \n<|turn|>\u3000\t b", "<|turn|>  <|turn|>", " <|turn|> ", "\x1c<|turn|>\x1f"]:
        assert got.encode(text, special=True) == oracle(stripping).encode(text, add_special_tokens=False).ids


def test_user_defined_tokens_behind_control_ones_keep_their_ids() -> None:
    """The library numbers added tokens by their order, and the control ones are taken out of it."""
    tool = tokenizer("bytewise").id_of_special("<tool>")
    assert tool == oracle(folder("bytewise")).token_to_id("<tool>")
    assert tool in tokenizer("bytewise").encode("use <tool> now")
    assert tokenizer("bytewise").decode([tool]) == "<tool>"


@pytest.mark.parametrize("kind", ["bytewise", "metaspace"])
def test_a_control_token_that_merges_could_make(kind: str) -> None:
    """Merges and whole words that lead to a control token are left out, for text of a user."""

    def make_reachable(whole: dict[str, Any]) -> None:
        model = whole["model"]
        model["vocab"]["qu|"] = size = len(model["vocab"])
        model["merges"].insert(0, ["u", "|"])
        model["vocab"]["u|"] = size + 1
        model["merges"].insert(1, ["q", "u|"])
        model["ignore_merges"] = True
        whole["added_tokens"] = [
            token if token["id"] < size else {**token, "id": token["id"] + 2}
            for token in whole["added_tokens"]
        ]
        whole["added_tokens"].append({**whole["added_tokens"][1], "id": size, "content": "qu|"})

    reachable = Tokenizer.from_folder(edited(folder(kind), "tokenizer.json", make_reachable))
    size = reachable.id_of_special("qu|")
    assert size is not None and size in reachable.encode("qu|", special=True)
    assert size not in reachable.encode("qu|") and size not in reachable.encode("a qu| b")


def test_a_plain_token_with_the_text_of_an_end_marker_stays_plain() -> None:
    def add(whole: dict[str, Any]) -> None:
        model, size = whole["model"], len(whole["model"]["vocab"]) + 1  # one added token is behind it
        merges = [["<", "E"], ["O", "T"], ["<E", "OT"], ["<EOT", ">"]]
        letters = [letter for letter in "<EOT>" if letter not in model["vocab"]]
        for text in [*letters, *map("".join, merges)]:
            model["vocab"][text] = size
            size += 1
        model["merges"] = merges + model["merges"]

    made = edited(folder("metaspace"), "tokenizer.json", add)
    marker = oracle(made).token_to_id("<EOT>")
    got = Tokenizer.from_folder(made).encode("a<EOT>b")
    assert marker in got and got == oracle(made).encode("a<EOT>b", add_special_tokens=False).ids


def test_the_same_as_with_the_gguf_route_on_a_real_vocabulary() -> None:
    """B68: a file and the tokenizer.json of the same model give the same ids."""
    metadata = smollm2()
    from_folder = Tokenizer.from_folder(folder_of_gguf(metadata))
    from_file = Tokenizer.from_metadata(metadata)
    for text in ["4821+96350", " \n ==", "\r\n\t", "don't", "\u2029", "日本 🦙", "<|im_end|>", "a" * 300]:
        assert from_folder.encode(text) == from_file.encode(text)
        assert from_folder.encode(text, special=True) == from_file.encode(text, special=True)
    assert from_folder.end_ids == from_file.end_ids
    assert (from_folder.bos_token, from_folder.eos_token) == (from_file.bos_token, from_file.eos_token)


@pytest.mark.parametrize(
    ("file", "edit", "ends"),
    [
        ("generation_config.json", change(eos_token_id=5), {5}),
        ("generation_config.json", change(eos_token_id=[5, 6]), {5, 6}),
        ("config.json", change(eos_token_id=[7]), {7}),
        ("config.json", change(eos_token_id=None), set()),
        ("generation_config.json", change(temperature=1.0), set()),
    ],
)
def test_every_file_may_name_end_tokens(file: str, edit: Callable[[Any], None], ends: set[int]) -> None:
    """B10: the union of generation_config's list, config, tokenizer and template."""
    assert tokenizer("bytewise").end_ids == {2}
    assert Tokenizer.from_folder(edited(folder("bytewise"), file, edit)).end_ids == {2, *ends}


def test_the_end_of_a_turn_ends_an_answer() -> None:
    source = "{% for m in messages %}{{ m.role }}: {{ m.content }}<|turn|>{% endfor %}"
    chatty = Tokenizer.from_folder(
        edited(folder("bytewise"), "tokenizer_config.json", change(chat_template=source))
    )
    assert chatty.end_ids == {2, 3}


@pytest.mark.parametrize(
    ("config", "want"),
    [
        ("one", "one"),
        ([{"name": "rag", "template": "r"}, {"name": "default", "template": "d"}], "d"),
        ([{"name": "rag", "template": "r"}], "r"),
        ([{"name": "rag", "template": "r"}, {"name": "tool_use", "template": "t"}], None),
        ("", None),
        (None, None),
    ],
)
def test_chat_templates_of_tokenizer_config(config: object, want: str | None) -> None:
    made = edited(folder("bytewise"), "tokenizer_config.json", change(chat_template=config))
    assert Tokenizer.from_folder(made).vocabulary.chat_template == want


def test_chat_templates_in_files_of_their_own() -> None:
    made = edited(folder("bytewise"), "chat_template.json", change(chat_template="json"))
    assert Tokenizer.from_folder(made).vocabulary.chat_template == "json"
    made = edited(made, "tokenizer_config.json", change(chat_template="config"))
    assert Tokenizer.from_folder(made).vocabulary.chat_template == "config"
    (made / "chat_template.jinja").write_text("{{ bos_token }}jinja", encoding="utf-8")
    made_tokenizer = Tokenizer.from_folder(made)
    template = ChatTemplate.of(made_tokenizer.vocabulary)
    assert template.render([{"role": "user", "content": "x"}]).text == "<s>jinja"


def test_roles_may_be_objects_or_in_the_map_of_special_tokens() -> None:
    made = edited(
        folder("bytewise"), "tokenizer_config.json", change(eos_token={"content": "<|turn|>"}, bos_token=None)
    )
    made = edited(made, "special_tokens_map.json", change(pad_token="</s>", eos_token="</s>"))
    got = Tokenizer.from_folder(made)
    assert (got.eos_token, got.vocabulary.pad_id) == ("<|turn|>", 2)
    assert got.bos_id == 1  # which the post-processor puts in front


def test_a_model_with_more_tokens_than_the_tokenizer() -> None:
    size = tokenizer("bytewise").vocab_size
    padded = Tokenizer.from_folder(folder("bytewise"), vocab_size=size + 7)
    assert padded.vocab_size == size + 7 and padded.decode([size + 6]) == ""
    assert padded.encode("the quick") == tokenizer("bytewise").encode("the quick")
    with pytest.raises(ModelFileError, match=rf"has {size} tokens, but the model has {size - 1}"):
        Tokenizer.from_folder(folder("bytewise"), vocab_size=size - 1)


def test_half_a_surrogate_pair_is_refused() -> None:
    """B69."""
    with pytest.raises(InvalidRequestError, match="surrogate"):
        tokenizer("bytewise").encode("\ud800")


def test_a_rule_has_no_place_here() -> None:
    with pytest.raises(InvalidRequestError, match=r"tokenizer\.json itself says how text is cut"):
        Tokenizer.from_folder(folder("bytewise"), pre_tokenizer="gpt-2")


def remove(*path: str | int) -> Callable[[Any], None]:
    def edit(value: Any) -> None:
        for key in path[:-1]:
            value = value[key]
        del value[path[-1]]

    return edit


def put(new: object, *path: str | int) -> Callable[[Any], None]:
    def edit(value: Any) -> None:
        for key in path[:-1]:
            value = value[key]
        value[path[-1]] = new

    return edit


@pytest.mark.parametrize(
    ("file", "edit", "error", "said"),
    [
        ("tokenizer.json", remove("model"), ModelFileError, "model is missing"),
        ("tokenizer.json", put("WordPiece", "model", "type"), UnsupportedModelError, "built: BPE, Unigram"),
        ("tokenizer.json", put("WordLevel", "model", "type"), UnsupportedModelError, "'WordLevel'"),
        ("tokenizer.json", put([], "model", "vocab"), ModelFileError, "model.vocab is damaged"),
        ("tokenizer.json", put(-1, "model", "vocab", "t"), ModelFileError, "model.vocab is damaged"),
        ("tokenizer.json", put(2**40, "model", "vocab", "t"), ModelFileError, "ids below"),
        ("tokenizer.json", put(1, "model", "vocab", "t"), ModelFileError, "token 1 is both"),
        ("tokenizer.json", put("x", "added_tokens"), ModelFileError, "added_tokens"),
        ("tokenizer.json", put("x", "added_tokens", 0, "id"), ModelFileError, "added_tokens[0] is damaged"),
        (
            "tokenizer.json",
            put("", "added_tokens", 0, "content"),
            ModelFileError,
            "added_tokens[0] is damaged",
        ),
        ("tokenizer.json", put([["t", "zzz"]], "model", "merges"), ModelFileError, "cannot be used"),
        ("tokenizer.json", put({"type": "Odd"}, "pre_tokenizer"), ModelFileError, "cannot be used"),
        ("tokenizer.json", put(True, "added_tokens", 3, "single_word"), UnsupportedModelError, "single word"),
        (
            "tokenizer.json",
            lambda whole: whole.update(decoder=None, pre_tokenizer=None),
            UnsupportedModelError,
            "neither its decoder nor its pre_tokenizer",
        ),
        (
            "tokenizer.json",
            put([{"SpecialToken": {"id": "</s>"}}], "post_processor", "single"),
            UnsupportedModelError,
            "begins a text with </s>",
        ),
        ("tokenizer_config.json", put("<none>", "bos_token"), ModelFileError, "bos_token is '<none>'"),
        ("tokenizer_config.json", put(3, "eos_token"), ModelFileError, "eos_token is 3"),
        ("tokenizer_config.json", put(3, "chat_template"), ModelFileError, "chat_template holds int"),
        ("generation_config.json", put(9999, "eos_token_id"), ModelFileError, "eos_token_id is 9999"),
        ("generation_config.json", put(["x"], "eos_token_id"), ModelFileError, "eos_token_id is 'x'"),
    ],
)
def test_damage_is_named(
    file: str, edit: Callable[[Any], None], error: type[ModelFileError], said: str
) -> None:
    with pytest.raises(error) as caught:
        Tokenizer.from_folder(edited(folder("bytewise"), file, edit))
    assert said in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is no JSON"),
        (b"[]", "holds a JSON list; expected an object"),
        (b'{"model": ', "is no JSON"),
        (b"\xff\xfe", "is no JSON"),
        (b"[" * 100_000, "is no JSON"),
        (b'{"model": {"type": "BPE", "vocab": {}, "merges": []}}', "holds no tokens"),
    ],
)
def test_what_is_no_tokenizer(content: bytes, said: str) -> None:
    broken = Path(mkdtemp(prefix="ostinato-test-"))
    (broken / "tokenizer.json").write_bytes(content)
    with pytest.raises(ModelFileError, match=said):
        Tokenizer.from_folder(broken)


def test_a_folder_without_a_tokenizer() -> None:
    with pytest.raises(ModelNotFoundError, match=r"tokenizer\.json does not exist: fetch all of the model"):
        Tokenizer.from_folder(Path(mkdtemp(prefix="ostinato-test-")))


def places(value: object, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Return the paths to all parts of a description, of long lists only to the beginning."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else []
    return [path, *(place for key in list(keys)[:12] for place in places(value[key], (*path, key)))]  # type: ignore[index]


@cache
def some_places(kind: str) -> list[tuple[str | int, ...]]:
    return places(json.loads((folder(kind) / "tokenizer.json").read_text(encoding="utf-8")))[1:]


@EVERY_KIND
@given(
    data=st.data(),
    damage=st.recursive(
        st.none() | st.integers() | st.text(max_size=3),
        lambda part: st.lists(part, max_size=2) | st.dictionaries(st.text(max_size=3), part, max_size=2),
    ),
)
@settings(max_examples=60, deadline=None)
def test_any_part_may_be_anything(kind: str, data: st.DataObject, damage: object) -> None:
    """Whatever stands in the place of a part, the answer is a tokenizer that encodes, or one clear error."""
    place = data.draw(st.sampled_from(some_places(kind)))
    made = edited(folder(kind), "tokenizer.json", put(damage, *place))
    try:
        Tokenizer.from_folder(made).encode("the quick <tool>")
    except ModelFileError as error:
        assert str(error)
