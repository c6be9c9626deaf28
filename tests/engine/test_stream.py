"""From tokens to text: a model that says what the test wants, read through the stream a user gets."""

from __future__ import annotations

import threading

import pytest
from fakes.executor import ScriptedExecutor
from fakes.vocabularies import smollm2

from ostinato.answer import Completion
from ostinato.chat.tokenizer import Tokenizer
from ostinato.engine.engine import Engine
from ostinato.engine.request import Request
from ostinato.sampling.params import SamplingParams
from ostinato.stream import Dispatcher, Stream
from ostinato.telemetry.timeline import Timeline, clock

TOKENIZER = Tokenizer.from_metadata(smollm2())
END = TOKENIZER.id_of_special("<|im_end|>")
assert END is not None
PROMPT = tuple(TOKENIZER.encode("Repeat after me."))
CONTEXT = 512


class Parrot:
    """A model that says one text and ends."""

    def __init__(self, text: str | list[int]) -> None:
        ids = TOKENIZER.encode(text) if isinstance(text, str) else text
        self.ids = [*ids, END]

        def script(tokens: list[int]) -> int:
            return self.ids[min(len(tokens) - len(PROMPT), len(self.ids) - 1)]

        executor = ScriptedExecutor(script, vocab_size=TOKENIZER.vocab_size, num_blocks=32)
        self.engine = Engine(executor, CONTEXT)
        self.dispatcher = Dispatcher(self.engine)

    def stream(self, stop: tuple[str, ...] = (), **options: object) -> Stream:
        request = Request(
            PROMPT,
            sampling=SamplingParams(temperature=0.0),
            end_token_ids=frozenset({END}),
            **options,  # type: ignore[arg-type]
        )
        return Stream(self.dispatcher, TOKENIZER, request, stop, Timeline(clock()))


def read(stream: Stream) -> tuple[list[str], Completion]:
    pieces = [piece.text for piece in stream]
    assert "".join(pieces) == stream.completion.text
    return pieces, stream.completion


TEXTS = ["Hello there.", "麤🦉ñ", "👩‍👩‍👧 family", "שלום עולם", "नमस्ते दुनिया", "  two  spaces\n\n", " 's .,"]


@pytest.mark.parametrize("text", TEXTS)
def test_pieces_join_to_the_text_and_none_holds_half_a_character(text: str) -> None:
    pieces, completion = read(Parrot(text).stream())
    assert completion.text == text
    assert not any("\ufffd" in piece for piece in pieces)
    assert completion.finish_reason == "stop"
    assert completion.stop == "<|im_end|>"
    assert completion.token_ids[-1] == END
    assert completion.usage.completion_tokens == len(completion.token_ids)


def test_a_character_cut_by_the_limit_comes_once_at_the_end() -> None:
    ids = TOKENIZER.encode("🦉")
    assert len(ids) > 2
    pieces, completion = read(Parrot(ids).stream(max_tokens=len(ids) - 1))
    assert completion.text == "\ufffd"
    assert pieces[:-1] == [""] * (len(ids) - 1)
    assert completion.finish_reason == "length"


@pytest.mark.parametrize("stops", [("MNOPQ",), ("MN", "MNOPQ"), ("PQ", "MNOPQ"), ("MNOPQ", "nothing")])
def test_a_stop_string_ends_the_text_before_it(stops: tuple[str, ...]) -> None:
    _, completion = read(Parrot("KLMNOPQRST").stream(stop=stops))
    assert completion.text == "KL"
    assert completion.finish_reason == "stop"
    assert completion.stop in stops


def test_nothing_of_a_possible_stop_string_is_shown_before_it_is_certain() -> None:
    shown = ""
    for piece in Parrot("one two three STOP four").stream(stop=("three STOP",)):
        shown += piece.text
        assert "one two ".startswith(shown)
    assert shown == "one two "


def test_what_was_held_back_in_vain_comes_at_the_end() -> None:
    _, completion = read(Parrot("almost a st").stream(stop=("stop",)))
    assert completion.text == "almost a st"
    assert completion.stop == "<|im_end|>"


def test_a_stop_string_that_the_last_allowed_token_completes_is_a_stop() -> None:
    ids = TOKENIZER.encode(" yes no")
    _, completion = read(Parrot(ids).stream(stop=("no",), max_tokens=len(ids)))
    assert (completion.text, completion.finish_reason, completion.stop) == (" yes ", "stop", "no")


def test_the_limit_counts_tokens_exactly() -> None:
    _, completion = read(Parrot("one two three four five").stream(max_tokens=3))
    assert completion.usage.completion_tokens == len(completion.token_ids) == 3
    assert completion.finish_reason == "length"
    assert completion.stop is None


def test_ignore_eos_fills_the_limit_and_shows_no_end_token() -> None:
    _, completion = read(Parrot("Hi").stream(ignore_eos=True, max_tokens=64))
    assert completion.usage.completion_tokens == 64
    assert completion.text == "Hi"
    assert completion.finish_reason == "length"


def test_cancelling_keeps_the_partial_text_and_frees_everything() -> None:
    parrot = Parrot("one two three four five")
    stream = parrot.stream()
    first = next(stream)
    completion = stream.cancel()
    assert completion.finish_reason == "abort"
    assert completion.text == first.text
    assert completion.usage.completion_tokens == 1
    assert list(stream) == []
    assert stream.cancel() is completion
    assert not parrot.engine.has_work
    parrot.engine.scheduler.check_integrity()


def test_an_interrupt_from_another_thread_ends_the_answer_after_the_running_step() -> None:
    parrot = Parrot("one two three four five")
    stream = parrot.stream()
    next(stream)
    thread = threading.Thread(target=stream.interrupt)
    thread.start()
    thread.join()
    assert list(stream) == []
    assert stream.completion.finish_reason == "abort"
    assert not parrot.engine.has_work


def test_leaving_and_forgetting_a_stream_end_its_request() -> None:
    parrot = Parrot("one two three")
    with parrot.stream() as stream:
        next(stream)
    assert not parrot.engine.has_work
    stream = parrot.stream()
    next(stream)
    del stream
    assert not parrot.engine.has_work


def test_the_completion_is_not_there_before_the_end() -> None:
    stream = Parrot("one two").stream()
    with pytest.raises(RuntimeError, match="not finished"):
        _ = stream.completion
    stream.close()


def test_streams_read_in_turns_do_not_disturb_each_other() -> None:
    parrot = Parrot("one two three four")
    streams = [parrot.stream(), parrot.stream(max_tokens=2), parrot.stream(stop=("three",))]
    texts = ["", "", ""]
    alive = set(range(3))
    while alive:
        for i in sorted(alive):
            piece = next(streams[i], None)
            if piece is None:
                alive.discard(i)
            else:
                texts[i] += piece.text
    assert texts[0] == "one two three four"
    assert texts[2] == "one two "
    assert streams[1].completion.usage.completion_tokens == 2
    parrot.engine.scheduler.check_integrity()


def test_streams_read_by_several_threads_all_end() -> None:
    parrot = Parrot("one two three four five six seven")
    texts: list[str] = []

    def consume() -> None:
        stream = parrot.stream()
        texts.append("".join(piece.text for piece in stream))

    threads = [threading.Thread(target=consume) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert texts == ["one two three four five six seven"] * 8
