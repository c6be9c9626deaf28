"""The Python interface on a real, tiny model: loading, generating, chatting, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fakes.tiny_gguf import CONTEXT, base_model, chat_model, opinionated_model, split_model, write_model
from fakes.vocabularies import smollm2

import ostinato
from ostinato import Model, Options, SamplingParams
from ostinato.errors import (
    ContextLengthError,
    InvalidRequestError,
    ModelNotFoundError,
    NoTemplateError,
    TemplateError,
    UnsupportedModelError,
)

GREEDY = SamplingParams(temperature=0.0)
TEN = Options(max_tokens=10, sampling=GREEDY)
HELLO = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    with ostinato.load(str(chat_model())) as loaded:
        yield loaded


def test_generate_gives_text_tokens_reason_usage_and_both_clocks(model: Model) -> None:
    completion = model.generate("Once upon a time", TEN)
    assert completion.text == model.tokenizer.decode(completion.token_ids)
    assert completion.usage.prompt_tokens == len(model.tokenizer.encode("Once upon a time"))
    assert completion.usage.completion_tokens == 10
    assert completion.finish_reason == "length"
    clocks = completion.timings
    assert clocks.ttft_s is not None and clocks.e2e_s is not None and clocks.decode_s is not None
    assert clocks.e2e_s == pytest.approx(clocks.ttft_s + clocks.decode_s)


def test_stream_and_generate_agree(model: Model) -> None:
    with model.stream("Once upon a time", TEN) as stream:
        assert "".join(piece.text for piece in stream) == model.generate("Once upon a time", TEN).text


def test_the_same_tokens_cold_cached_and_in_two_threads_or_one(model: Model) -> None:
    prompt = "The quick brown fox jumps over the lazy dog and then some more"
    options = Options(max_tokens=20, sampling=SamplingParams(temperature=2.0, seed=7), logprobs=True)
    with ostinato.load(str(chat_model()), threads=1) as alone:
        expected = [(p.token_id, p.logprob) for p in alone.stream(prompt, options)]
    for _ in range(3):
        assert [(p.token_id, p.logprob) for p in model.stream(prompt, options)] == expected


def test_ids_are_taken_as_they_are(model: Model) -> None:
    ids = model.tokenizer.encode("Hello")
    assert model.generate(ids, TEN).usage.prompt_tokens == len(ids)


def test_a_user_who_types_a_control_token_gets_text(model: Model) -> None:
    end = model.tokenizer.id_of_special("<|im_end|>")
    assert end not in model.tokenizer.encode("a <|im_end|> b")
    rendered = model.template.render([{"role": "user", "content": "<|im_end|>"}])
    assert model.tokenizer.encode_rendered(rendered).count(end) == 2  # of the system and the user turn


def test_a_conversation_reads_only_what_is_new(model: Model) -> None:
    first = model.chat(HELLO, TEN)
    answer = {"role": "assistant", "content": first.text}
    second = model.chat([*HELLO, answer, {"role": "user", "content": "And?"}], TEN)
    assert second.usage.cached_tokens >= first.usage.prompt_tokens


def test_a_final_assistant_message_is_continued_and_not_repeated(model: Model) -> None:
    begun = [*HELLO, {"role": "assistant", "content": "The colour is"}]
    rendered = model.template.render(begun, continue_final_message=True)
    assert rendered.text.endswith("The colour is")
    assert model.chat(begun, TEN).usage.prompt_tokens == len(model.tokenizer.encode_rendered(rendered))


def test_a_stop_string_that_is_a_control_token_stops_at_it(model: Model) -> None:
    start = model.tokenizer.id_of_special("<|im_start|>")
    assert start is not None
    forced = SamplingParams(temperature=0.0, logit_bias={start: 100.0})
    completion = model.generate("Hello", Options(max_tokens=5, stop="<|im_start|>", sampling=forced))
    assert (completion.finish_reason, completion.stop, completion.text) == ("stop", "<|im_start|>", "")


def test_candidates_and_logprobs_on_request(model: Model) -> None:
    options = Options(max_tokens=3, candidates=4, sampling=GREEDY)
    for piece in model.stream("Hello", options):
        assert len(piece.candidates) == 4
        assert piece.candidates[0].token_id == piece.token_id
        assert piece.logprob is not None and piece.logprob <= 0
        assert piece.step_s > 0


def test_a_base_model_completes_text_and_refuses_to_chat() -> None:
    with ostinato.load(str(base_model())) as base:
        assert not base.has_template
        assert base.generate("Hello", TEN).usage.completion_tokens == 10
        with pytest.raises(NoTemplateError, match="--raw"):
            base.chat(HELLO)


def test_what_does_not_fit_is_refused_with_both_lengths(model: Model) -> None:
    with pytest.raises(ContextLengthError, match=rf"{CONTEXT + 1} tokens, the context {CONTEXT}"):
        model.generate([5] * (CONTEXT + 1))


def test_an_empty_prompt_is_refused(model: Model) -> None:
    with pytest.raises(InvalidRequestError, match="empty"):
        model.generate("")


@pytest.mark.parametrize(
    "messages", [[], [{"role": "user"}], [{"content": "Hi"}], ["Hi"], [{"role": "user", "content": 5}]]
)
def test_messages_of_the_wrong_shape_are_refused(model: Model, messages: list[dict[str, str]]) -> None:
    with pytest.raises((InvalidRequestError, TemplateError)):
        model.chat(messages)


@pytest.mark.parametrize("stop", ["", ["a", ""], [5]])
def test_stop_strings_that_cannot_be_are_refused(stop: object) -> None:
    with pytest.raises(InvalidRequestError, match="stop"):
        Options(stop=stop)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "limits", [{"threads": 0}, {"threads": 10**6}, {"context_length": 0}, {"context_length": CONTEXT + 1}]
)
def test_limits_of_loading_are_checked(limits: dict[str, int]) -> None:
    with pytest.raises(InvalidRequestError):
        ostinato.load(str(chat_model()), **limits)  # type: ignore[arg-type]


def test_a_missing_model_is_named() -> None:
    with pytest.raises(ModelNotFoundError, match="nosuch"):
        ostinato.load("nosuch")


def test_a_split_model_writes_the_same(model: Model) -> None:
    """B64: by any part, or by the folder."""
    parts = split_model()
    assert len(parts) == 3
    for path in (*parts, parts[0].parent):
        with ostinato.load(str(path)) as split:
            assert split.chat(HELLO, TEN).token_ids == model.chat(HELLO, TEN).token_ids


def test_a_smaller_context_holds() -> None:
    with ostinato.load(str(chat_model()), context_length=40) as small:
        completion = small.generate([5] * 30, Options(ignore_eos=True))
        assert completion.usage.total_tokens == 40
        assert completion.finish_reason == "length"


def test_a_models_defaults_are_used_where_a_request_says_nothing() -> None:
    """B48: the settings in effect are those that can be seen."""
    with ostinato.load(str(opinionated_model())) as opinionated:
        theirs = opinionated.defaults.sampling
        assert theirs == SamplingParams(top_k=3, min_p=0.25)
        assert opinionated.defaults.ignored[0].startswith("general.sampling.temp: temperature is -1.0")
        seeds = range(40)
        as_they_say = {opinionated.generate("Hello", Options(max_tokens=1)).token_ids for _ in seeds}
        as_asked = {
            opinionated.generate("Hello", Options(max_tokens=1, sampling=SamplingParams(seed=seed))).token_ids
            for seed in seeds
        }
        assert len(as_they_say) <= 3 < len(as_asked)


def test_a_rule_for_words_may_be_named() -> None:
    path = str(write_model("unnamed", smollm2(pre=None)))
    with pytest.raises(UnsupportedModelError, match=r"tokenizer\.ggml\.pre is missing.*pre_tokenizer=NAME"):
        ostinato.load(path)
    with pytest.raises(InvalidRequestError, match="pre_tokenizer is 'smol'; these are built"):
        ostinato.load(path, pre_tokenizer="smol")
    with ostinato.load(path, pre_tokenizer="smollm") as named:
        assert named.tokenizer.encode("12") == [named.tokenizer.encode(digit)[0] for digit in "12"]
