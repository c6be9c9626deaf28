"""Reports about other runtimes, on the real models: texts in and out, ends of answers, both routes to ids."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from fakes.folders import folder_of_gguf
from models import FILES, model_path

import ostinato
from ostinato import Model, Options, SamplingParams
from ostinato.chat.detokenizer import Detokenizer
from ostinato.chat.template import ChatTemplate
from ostinato.chat.tokenizer import Tokenizer
from ostinato.chat.vocabulary import TokenType
from ostinato.errors import InvalidRequestError, NoTemplateError, UnsupportedModelError
from ostinato.weights.gguf import open_gguf

GREEDY = SamplingParams(temperature=0.0)
TEXTS = [
    "4821+96350",
    " \n ==",
    "\r\n\t",
    "a\u00a0b",
    "\uff46\uff55\uff4c\uff4c\u3000\uff11\uff12",  # of full width
    "é e\u0301",
    "don't I'LL",
    "\u2029\u2028",
    "x" + " " * 70 + "y",
    "麤🦉ñ 👨‍👩‍👧‍👦 עברית देवनागरी ไทย",
    "def f(x):\n\treturn x  # 0xFF\n\n\n",
]

pytestmark = pytest.mark.parametrize("name", FILES)


def path_of(name: str) -> Path:
    path = model_path(name)
    if path is None:
        pytest.skip(f"{name} is not on this machine: pull it, or set OSTINATO_TEST_MODELS")
    return path


@cache
def metadata_of(name: str) -> dict[str, Any]:
    with open_gguf(path_of(name)) as file:
        return dict(file.metadata)


@cache
def tokenizer_of(name: str) -> Tokenizer:
    return Tokenizer.from_metadata(metadata_of(name))


def random_texts(count: int) -> list[str]:
    """Return texts of all planes and scripts, mixed with what tokenizers trip over."""
    chance = random.Random(7)
    ranges = [(0x20, 0x7F), (0xA0, 0x250), (0x300, 0x370), (0x590, 0xE80), (0x2000, 0x2070), (0x3040, 0x9FFF)]
    ranges += [(0xAC00, 0xD7A4), (0xFF00, 0xFFF0), (0x1F300, 0x1FAFF)]
    odd = [" ", "  ", "\n", "\r\n", "\t", "'s", "12345", "</s>", "<|", "|>", "\u200d", "\ufeff"]

    def piece() -> str:
        return chance.choice(odd) if chance.random() < 0.4 else chr(chance.randrange(*chance.choice(ranges)))

    return ["".join(piece() for _ in range(chance.randrange(1, 24))) for _ in range(count)]


def test_both_routes_to_a_tokenizer_agree(name: str) -> None:
    """B68: the file, and a tokenizer.json that says the same, on texts of the reports and random ones."""
    from_file = tokenizer_of(name)
    from_folder = Tokenizer.from_folder(folder_of_gguf(metadata_of(name)))
    assert from_folder.end_ids == from_file.end_ids
    for text in TEXTS + random_texts(1500):
        assert from_folder.encode(text) == from_file.encode(text), text
        prompts = [made.encode(text, special=True, bos=True) for made in (from_folder, from_file)]
        assert prompts[0] == prompts[1], text


def test_text_comes_back(name: str) -> None:
    """B68 and B01: what is encoded decodes to itself, also id by id."""
    tokenizer = tokenizer_of(name)
    for text in TEXTS + random_texts(300):
        ids = tokenizer.encode(text)
        if not set(tokenizer.decode(ids)) - set(text):  # SmolLM2 has no token for a few bytes
            assert tokenizer.decode(ids) == text
        detokenizer = Detokenizer(tokenizer)
        streamed = "".join(detokenizer.feed([token_id]) for token_id in ids) + detokenizer.flush()
        assert streamed == tokenizer.decode(ids)


def test_every_token_sent_back(name: str) -> None:
    """B69: the text of any id encodes, and to the same bytes."""
    tokenizer = tokenizer_of(name)
    for token_id in range(0, tokenizer.vocab_size, 7):
        spelled = tokenizer.token_bytes(token_id)
        text = spelled.decode("utf-8", "replace")
        ids = tokenizer.encode(text)
        if "\ufffd" not in text:
            assert b"".join(map(tokenizer.token_bytes, ids)) == spelled, token_id


def test_bytes_that_are_no_text(name: str) -> None:
    """B69: half a character is refused or replaced; NUL and overlong forms, once decoded, are characters."""
    tokenizer = tokenizer_of(name)
    with pytest.raises(InvalidRequestError, match="surrogate"):
        tokenizer.encode("\ud83d")
    for data in (b"\xe9\xba", b"\x00", b"\xc0\xaf", b"\xf0\x9f\xa6"):
        assert tokenizer.encode(data.decode("utf-8", "replace"))


def test_bos(name: str) -> None:
    """B13: one for Gemma, none for the others, and none from what a user types."""
    tokenizer = tokenizer_of(name)
    adds = name == "gemma3-270m"
    ids = tokenizer.encode("Hello", bos=True)
    assert ids.count(tokenizer.bos_id) == adds and len(ids) == len(tokenizer.encode("Hello")) + adds
    typed = tokenizer.encode(tokenizer.bos_token, bos=True)
    assert typed.count(tokenizer.bos_id) == adds and tokenizer.decode(typed) == tokenizer.bos_token


def test_a_rule_that_is_missing(name: str) -> None:
    """B68: no default in silence, where the kind of vocabulary has rules at all."""
    metadata = {key: value for key, value in metadata_of(name).items() if key != "tokenizer.ggml.pre"}
    if metadata["tokenizer.ggml.model"] == "llama":
        assert Tokenizer.from_metadata(metadata).encode("12") == tokenizer_of(name).encode("12")
        return
    with pytest.raises(UnsupportedModelError, match="--pre-tokenizer NAME"):
        Tokenizer.from_metadata(metadata)


def test_no_typed_text_is_a_control_token(name: str) -> None:
    """B13 and the templates: every control token, typed, is text and comes back as it was."""
    tokenizer = tokenizer_of(name)
    control = set(tokenizer.vocabulary.ids_of(TokenType.CONTROL))
    for token_id in sorted(control)[:200]:
        text = tokenizer.vocabulary.tokens[token_id]
        ids = tokenizer.encode(text)
        assert not control & set(ids) and tokenizer.decode(ids) == text
        assert tokenizer.encode(text, special=True) == [token_id]


@pytest.fixture(scope="module")
def models() -> Iterator[dict[str, Model]]:
    loaded: dict[str, Model] = {}
    yield loaded
    for model in loaded.values():
        model.close()


@pytest.fixture
def model(name: str, models: dict[str, Model]) -> Model:
    if name not in models:
        models[name] = ostinato.load(str(path_of(name)), context_length=1024)
    return models[name]


def test_a_completion_keeps_its_leading_space(model: Model) -> None:
    """B05: raw completions begin with the blank that the first token has; text only ever grows."""
    options = Options(max_tokens=8, sampling=GREEDY)
    with model.stream("The quick brown fox jumps over the lazy", options) as stream:
        pieces = [piece.text for piece in stream]
    assert pieces[0].startswith(" ")
    assert "".join(pieces) == stream.completion.text == model.tokenizer.decode(stream.completion.token_ids)


def test_prompts_of_many_lengths_at_once(model: Model) -> None:
    """B72: six prompts of 3 to 300 tokens, together and alone: the same tokens and log-probabilities."""
    words = model.tokenizer.encode(" ".join(f"word number {n} of the text" for n in range(100)))
    prompts = [words[:length] for length in (3, 17, 64, 65, 150, 300)]
    options = Options(max_tokens=6, sampling=GREEDY, logprobs=True, use_cache=False)
    alone = [[(p.token_id, p.logprob) for p in model.stream(prompt, options)] for prompt in prompts]
    streams = [model.stream(prompt, options) for prompt in prompts]
    together: list[list[object]] = [[] for _ in prompts]
    for _ in range(8):
        for stream, found in zip(streams, together, strict=True):
            piece = next(iter(stream), None)
            if piece is not None:
                found.append((piece.token_id, piece.logprob))
    assert together == alone


def test_a_base_model_has_no_template_and_others_their_own(model: Model, name: str) -> None:
    """B18 and B14: what the file holds is used, what it lacks is not made up."""
    if name == "gemma3-270m":
        with pytest.raises(NoTemplateError, match="base model"):
            model.chat([{"role": "user", "content": "Hello"}])
        return
    rendered = model.template.render([{"role": "user", "content": "Hello"}])
    assert rendered.text.endswith("<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n")
    raw = model.tokenizer.encode(rendered.text, special=True, bos=True)
    assert model.tokenizer.encode_rendered(rendered) == raw  # B13: a chat is as long as its raw prompt


def test_an_answer_ends(model: Model, name: str) -> None:
    """B10 and B11: whatever the file calls eos, an answer ends; unless it is told not to."""
    if not model.has_template:
        pytest.skip("a base model does not answer")
    question = [{"role": "user", "content": "Answer with OK."}]
    answer = model.chat(question, Options(max_tokens=50, sampling=GREEDY))
    assert answer.finish_reason == "stop" and "<|" not in answer.text
    ignoring = model.chat(question, Options(max_tokens=64, sampling=GREEDY, ignore_eos=True))
    assert (ignoring.finish_reason, ignoring.usage.completion_tokens) == ("length", 64)
    for eos in ("<|endoftext|>", "<|im_end|>"):
        changed = {**metadata_of(name), "tokenizer.ggml.eos_token_id": model.tokenizer.id_of_special(eos)}
        assert Tokenizer.from_metadata(changed).end_ids == model.tokenizer.end_ids


def test_an_answer_goes_on_from_its_beginning(model: Model) -> None:
    """B17: the assistant's last words are continued and not repeated."""
    if not model.has_template:
        pytest.skip("a base model does not answer")
    asked = {"role": "user", "content": "Name a colour"}
    for beginning in ("The colour is", "The colour is "):
        begun = [asked, {"role": "assistant", "content": beginning}]
        rendered = model.template.render(begun, continue_final_message=True)
        assert rendered.text.endswith(f"<|im_start|>assistant\n{beginning}")
        answer = model.chat(begun, Options(max_tokens=8, sampling=GREEDY))
        assert answer.text and not answer.text.startswith("The colour")


def test_a_stop_that_is_a_control_token(model: Model, name: str) -> None:
    """B09: the end of a turn, or a new one, is a stop, though it has no text."""
    if not model.has_template:
        pytest.skip("a base model opens no turn")
    cases = [("", "<|im_end|>")]
    if name == "smollm2":  # Qwen opens no new turn by itself
        cases.append(("Hello!<|im_end|>\n", "<|im_start|>"))
    for begun, stop in cases:
        turn = f"<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n{begun}"
        options = Options(max_tokens=100, ignore_eos=True, stop=stop, sampling=GREEDY)
        answer = model.generate(model.tokenizer.encode(turn, special=True), options)
        assert (answer.finish_reason, answer.stop) == ("stop", stop)
        assert "<|" not in answer.text and answer.usage.completion_tokens < 100


def test_a_filled_in_middle_ends(model: Model, name: str) -> None:
    """B10: code between two pieces of code ends with another token than an answer does."""
    if name != "qwen2.5-coder-1.5b":
        pytest.skip("no other model here was trained for it")
    text = "<|fim_prefix|>def add(a, b):\n    return <|fim_suffix|>\n\nprint(add(1, 2))\n<|fim_middle|>"
    prompt = model.tokenizer.encode(text, special=True)
    filled = model.generate(prompt, Options(max_tokens=50, sampling=GREEDY))
    assert (filled.finish_reason, filled.text) == ("stop", "a + b")


def test_times_of_growing_texts(name: str) -> None:
    """B58: twice the text takes about twice the time; measured roughly, since other work goes on."""
    import time

    tokenizer = tokenizer_of(name)
    times = []
    for length in (25_000, 50_000, 100_000):
        start = time.process_time()
        tokenizer.encode("a" * length)
        times.append(time.process_time() - start)
    assert all(later <= 2.6 * earlier + 0.1 for earlier, later in pairwise(times)), times


def test_a_broken_template_is_told_before_an_answer(name: str) -> None:
    """B18: a template that cannot be compiled stops a chat, not raw completion."""
    if "tokenizer.chat_template" not in metadata_of(name):
        pytest.skip("a base model has none")
    broken = Tokenizer.from_metadata({**metadata_of(name), "tokenizer.chat_template": "{% if %}"})
    with pytest.raises(ostinato.OstinatoError, match="not valid in line 1"):
        ChatTemplate.of(broken.vocabulary)
    assert broken.encode("Hello", bos=True) == tokenizer_of(name).encode("Hello", bos=True)
