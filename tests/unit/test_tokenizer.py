"""The tokenizer as a whole: what is text and what is a token, in front of what, and back again."""

from __future__ import annotations

import threading
import time
from functools import cache

import pytest
from fakes.vocabularies import scored, smollm2
from hypothesis import given, settings
from hypothesis import strategies as st

from ostinato.chat.rendered import Rendered
from ostinato.chat.tokenizer import Tokenizer
from ostinato.errors import InvalidRequestError

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
CONTROL_TEXTS = ["<|im_end|>", "<|im_", "end|>", "<|", "|>", "<b>", "</s>", "<bos>", "<end_of_turn>"]
OTHER_TEXTS = [
    "\n",
    "\n\n",
    "  ",
    " ",
    "é",
    "e\u0301",
    "日本",
    "🦙",
    "the quick",
    "1234",
    "don't",
    "\r\n",
    "\x00",
]
TRICKY = st.lists(st.sampled_from(CONTROL_TEXTS + OTHER_TEXTS), max_size=12).map("".join)


@cache
def bytewise() -> Tokenizer:
    return Tokenizer.from_metadata(smollm2())


@cache
def by_score() -> Tokenizer:
    return Tokenizer.from_metadata(scored())


BOTH = pytest.mark.parametrize("make", [bytewise, by_score])


def test_what_the_file_says() -> None:
    tokenizer = bytewise()
    assert (tokenizer.vocab_size, tokenizer.bos_id) == (49152, 1)
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<|im_start|>", "<|im_end|>")
    assert Tokenizer.from_metadata(smollm2(bos_token_id=None)).bos_token == ""


def test_control_tokens_are_text_unless_asked_for() -> None:
    plain = bytewise().encode("<|im_end|>")
    assert 2 not in plain and bytewise().decode(plain) == "<|im_end|>"
    assert bytewise().encode("a<|im_end|>b", special=True) == [
        *bytewise().encode("a"),
        2,
        *bytewise().encode("b"),
    ]


def test_user_defined_tokens_are_always_read() -> None:
    newline, bold = by_score().id_of_special("\n"), by_score().id_of_special("<b>")
    assert (
        by_score().encode("\n<b>\n") == by_score().encode("\n<b>\n", special=True) == [newline, bold, newline]
    )


def test_the_longest_of_nested_tokens_is_read() -> None:
    ids = by_score().encode("\n\n\n\n")
    assert [by_score().decode([token_id]) for token_id in ids] == ["\n\n\n", "\n"]


def test_an_end_marker_of_another_type_is_read_only_where_trusted() -> None:
    strike = by_score().id_of_special("</s>")  # user-defined in the file
    assert strike is not None
    assert strike not in by_score().encode("</s>")
    assert by_score().encode("</s>", special=True) == [strike]
    assert by_score().decode([strike]) == "</s>" and strike not in by_score().end_ids


def test_id_of_special() -> None:
    assert bytewise().id_of_special("<|im_end|>") == 2
    assert by_score().id_of_special("  ") is not None
    assert bytewise().id_of_special("the") is None


@BOTH
@given(text=st.one_of(TEXTS, TRICKY))
@settings(max_examples=150, deadline=None)
def test_round_trip(make, text: str) -> None:  # type: ignore[no-untyped-def]
    """B68."""
    tokenizer = make()
    if tokenizer is by_score():
        text = text.replace("▁", "")  # which such vocabularies cannot tell from a space
    else:  # bytes that SmolLM2 has no token for
        text = "".join(
            c for c in text if not {0x04, 0x06, 0x13, 0x14, 0x16, 0x1D, 0xF1, 0xF2} & set(c.encode())
        )
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.decode(tokenizer.encode(text, special=True), control=True) == text


@BOTH
def test_every_token_is_its_own_bytes(make) -> None:  # type: ignore[no-untyped-def]
    """B69: a token's own text, sent back, spells the same bytes."""
    tokenizer = make()
    for token_id in range(tokenizer.vocab_size):
        spelled = tokenizer.token_bytes(token_id)
        text = spelled.decode("utf-8", "replace")
        assert tokenizer.decode([token_id]) == text
        if "\ufffd" not in text and not text.isspace():
            assert b"".join(map(tokenizer.token_bytes, tokenizer.encode(text))) == spelled


def test_no_marker_characters_in_text() -> None:
    """B05."""
    text = bytewise().decode(bytewise().encode(" Hello  world\n\n 's ."))
    assert text == " Hello  world\n\n 's ."
    assert by_score().decode(by_score().encode(" hello  world .")) == " hello  world ."


def test_decode_is_lossy_only_for_what_is_not_utf8() -> None:
    first, second = (by_score().vocabulary.tokens.index(f"<0x{byte:02X}>") for byte in "é".encode())
    assert by_score().decode([first]) == "\ufffd"
    assert by_score().decode([first, second]) == "é"
    assert by_score().token_bytes(first) == "é".encode()[:1]


def test_control_tokens_are_shown_on_demand() -> None:
    ids = [1, *bytewise().encode("hi"), 2]
    assert bytewise().decode(ids) == "hi"
    assert bytewise().decode(ids, control=True) == "<|im_start|>hi<|im_end|>"


@pytest.mark.parametrize("token_id", [-1, 49152, 2**40])
def test_an_id_outside_the_vocabulary_is_refused(token_id: int) -> None:
    with pytest.raises(InvalidRequestError, match=rf"{token_id} .* 0 to 49151"):
        bytewise().decode([token_id])


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb", "\ude00\ud83d"])
def test_half_a_surrogate_pair_is_refused(text: str) -> None:
    """B69."""
    with pytest.raises(InvalidRequestError, match="surrogate"):
        bytewise().encode(text)
    with pytest.raises(InvalidRequestError, match="surrogate"):
        by_score().encode_rendered(Rendered(text))


def test_nul_is_a_character() -> None:
    """B69."""
    assert by_score().decode(by_score().encode("a\x00b")) == "a\x00b"
    assert bytewise().decode(bytewise().encode("\x00")) == "\x00"


@pytest.mark.parametrize(
    ("add_bos", "text", "first_two"),
    [
        (True, "<bos><b>", [2, 12]),  # the template writes what the tokenizer would add: one BOS
        (False, "<bos><b>", [2, 12]),  # the template's is kept
        (True, "<b><b>", [2, 12]),  # only the tokenizer adds one
        (False, "<b><b>", [12, 12]),  # nobody does
    ],
)
def test_bos_of_a_rendered_prompt(add_bos: bool, text: str, first_two: list[int]) -> None:
    """B13: the four cases of template and file."""
    tokenizer = Tokenizer.from_metadata(scored(add_bos_token=add_bos))
    assert tokenizer.encode_rendered(Rendered(text))[:2] == first_two


def test_bos_of_a_raw_prompt() -> None:
    """B13: a typed BOS is text."""
    assert by_score().encode("", bos=True) == [2]
    typed = by_score().encode("<bos>", bos=True)
    assert typed[0] == 2 and by_score().decode(typed[1:]) == "<bos>"
    assert by_score().encode_rendered(Rendered("<bos>", ((0, 5),))) == typed
    assert by_score().encode("<bos>hi", bos=True, special=True) == [2, *by_score().encode("hi")]
    assert bytewise().encode("hi", bos=True) == bytewise().encode("hi")


@pytest.mark.parametrize(
    ("changes", "adds"),
    [
        ({}, True),
        ({"add_bos_token": None}, True),
        ({"add_bos_token": False}, False),
        ({"bos_token_id": None}, False),
    ],
)
def test_bos_as_the_file_has_it_for_the_scored_kind(changes: dict[str, object], adds: bool) -> None:
    assert (Tokenizer.from_metadata(scored(**changes)).encode("a", bos=True)[0] == 2) is adds


@pytest.mark.parametrize(
    ("changes", "adds"),
    [
        ({"add_bos_token": None}, False),
        ({"add_bos_token": True}, True),
        ({"add_bos_token": None, "pre": "llama-bpe"}, True),
        ({"add_bos_token": False, "pre": "llama-bpe"}, False),
    ],
)
def test_bos_as_the_file_has_it_for_the_byte_level_kind(changes: dict[str, object], adds: bool) -> None:
    assert (Tokenizer.from_metadata(smollm2(**changes)).encode("a", bos=True)[0] == 1) is adds


def test_a_rendered_prompt_reads_control_tokens_only_in_the_template() -> None:
    text = "<|im_start|>user\n<|im_end|><|im_end|>\n"
    typed = Rendered(text, ((17, 27),))
    ids = bytewise().encode_rendered(typed)
    assert ids.count(2) == 1 and bytewise().decode(ids, control=True) == text
    assert bytewise().encode_rendered(Rendered(text)) == bytewise().encode(text, special=True)
    assert bytewise().encode_rendered(Rendered(text, ((0, len(text)),))) == bytewise().encode(text)


def test_a_token_half_typed_is_text() -> None:
    for cut in range(1, 10):
        typed = Rendered("<|im_end|>", ((cut, 10),))
        assert bytewise().encode_rendered(typed) == bytewise().encode("<|im_end|>")


def test_text_of_both_is_encoded_as_one() -> None:
    assert bytewise().encode_rendered(Rendered("Hello world", ((3, 8),))) == bytewise().encode("Hello world")


@given(parts=st.lists(st.tuples(TRICKY, st.booleans()), max_size=6))
@settings(max_examples=150, deadline=None)
def test_spans_without_typed_tokens_change_nothing(parts: list[tuple[str, bool]]) -> None:
    text, spans = "", []
    for part, typed in parts:
        part = part.replace("<|im_end|>", "") if typed else part
        if typed and part:
            spans.append((len(text), len(text) + len(part)))
        text += part
    rendered = Rendered(text, tuple(spans))
    matches = [at for at in range(len(text)) if text.startswith("<|im_end|>", at)]
    if all(any(a <= at and at + 10 <= b for a, b in rendered.template_spans()) for at in matches):
        assert bytewise().encode_rendered(rendered) == bytewise().encode(text, special=True)


def test_template_spans() -> None:
    assert Rendered("abcdef", ((0, 2), (4, 6))).template_spans() == [(2, 4)]
    assert Rendered("abcdef", ((1, 2),)).template_spans() == [(0, 1), (2, 6)]
    assert Rendered("abc").template_spans() == [(0, 3)]
    assert Rendered("").template_spans() == []


LONG = {
    "letters": "a" * 100_000,
    "underscores": "_" * 50_000,
    "spaces": " " * 100_000,
    "newlines": "\n" * 100_000,
    "emoji": "🦙" * 20_000,
    "CJK": "".join(chr(0x4E00 + (n * 7919) % 20_000) for n in range(100_000)),
    "base64": "".join(chr(48 + (n * n * 31 + n // 7) % 74) for n in range(100_000)),
    "heads of tokens": "<|im_" * 20_000,
}


@BOTH
@pytest.mark.parametrize("text", LONG.values(), ids=LONG.keys())
def test_time_is_nearly_linear_in_the_text(make, text: str) -> None:  # type: ignore[no-untyped-def]
    """B58."""
    tokenizer = make()
    times = []
    for part in (text[: len(text) // 4], text):
        times.append(min(_cpu_s(tokenizer, part) for _ in range(2)))
    assert times[1] <= 2.6**2 * times[0] + 0.05, times
    assert times[1] < 5


def _cpu_s(tokenizer: Tokenizer, text: str) -> float:
    start = time.process_time()  # of all threads: the library has its own
    tokenizer.encode(text, special=True)
    return time.process_time() - start


def test_other_threads_run_while_a_long_text_is_encoded() -> None:
    tokenizer = bytewise()
    text = "the quick brown fox jumps over the lazy dog " * 20_000
    encoding = threading.Thread(target=tokenizer.encode, args=(text,))
    encoding.start()
    turns = 0
    while encoding.is_alive():
        turns += 1
        time.sleep(0.001)
    assert turns > 5


def test_threads_may_share_one() -> None:
    tokenizer = Tokenizer.from_metadata(scored())
    text = "the quick brown fox jumps over the lazy dog\n" * 200
    want = Tokenizer.from_metadata(scored()).encode(text)
    results: list[list[int]] = []
    threads = [threading.Thread(target=lambda: results.append(tokenizer.encode(text))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [want] * 8
