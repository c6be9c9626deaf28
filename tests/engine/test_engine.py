"""The step loop on a scripted model: what is computed, what comes out, how it ends."""

from __future__ import annotations

import numpy as np
import pytest
from fakes.executor import FakeClock, ScriptedExecutor, count_up

from ostinato.engine.engine import Engine
from ostinato.engine.request import Event, FinishedEvent, FinishReason, Request, TokenEvent
from ostinato.errors import ContextLengthError, InvalidRequestError, NumericalError
from ostinato.sampling.params import SamplingParams

GREEDY = SamplingParams(temperature=0.0)
CONTEXT = 128


def make_engine(**options: int) -> Engine:
    return Engine(ScriptedExecutor(count_up, **options), CONTEXT, clock=FakeClock())


def ask(prompt: list[int], **options: object) -> Request:
    return Request(tuple(prompt), sampling=GREEDY, **options)  # type: ignore[arg-type]


def run(engine: Engine, *requests: Request) -> dict[int, list[Event]]:
    """Submit all, step until nothing is left, proving after each step that no block was lost."""
    events: dict[int, list[Event]] = {engine.submit(request): [] for request in requests}
    while engine.has_work:
        for event in engine.step():
            events[event.request_id].append(event)
        engine.scheduler.check_integrity()
    return events


def tokens(events: list[Event]) -> list[int]:
    return [event.choice.token_id for event in events if isinstance(event, TokenEvent)]


def finished(events: list[Event]) -> FinishedEvent:
    (event,) = (event for event in events if isinstance(event, FinishedEvent))
    assert event is events[-1]
    return event


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 40])
def test_max_tokens_is_exact(max_tokens: int) -> None:
    (events,) = run(make_engine(), ask([3], max_tokens=max_tokens)).values()
    assert tokens(events) == [(4 + i) % 50 for i in range(max_tokens)]
    assert finished(events).reason is FinishReason.LENGTH
    assert finished(events).usage.completion_tokens == max_tokens


def test_without_a_limit_an_answer_fills_the_context() -> None:
    (events,) = run(make_engine(), ask([0] * 100)).values()
    assert len(tokens(events)) == CONTEXT - 100
    assert finished(events).reason is FinishReason.LENGTH


def test_the_newest_token_of_a_full_context_is_never_computed() -> None:
    engine = make_engine()
    run(engine, ask([0] * 100))
    assert isinstance(engine.executor, ScriptedExecutor)
    assert max(int(batch.positions.max()) for batch in engine.executor.batches) == CONTEXT - 2


def test_any_end_token_ends_an_answer_and_is_counted() -> None:
    (events,) = run(make_engine(), ask([3], end_token_ids=frozenset({7, 9}))).values()
    assert tokens(events) == [4, 5, 6, 7]
    assert finished(events).reason is FinishReason.STOP
    assert finished(events).stop_token_id == 7
    assert [event.stops for event in events if isinstance(event, TokenEvent)] == [False, False, False, True]


def test_an_end_token_as_the_last_allowed_token_is_a_stop() -> None:
    (events,) = run(make_engine(), ask([3], end_token_ids=frozenset({5}), max_tokens=2)).values()
    assert finished(events).reason is FinishReason.STOP


def test_ignore_eos_goes_on_but_a_stop_token_still_stops() -> None:
    """B11."""
    request = ask([3], end_token_ids=frozenset({5}), stop_token_ids=frozenset({8}), ignore_eos=True)
    (events,) = run(make_engine(), request).values()
    assert tokens(events) == [4, 5, 6, 7, 8]
    assert finished(events).stop_token_id == 8


def test_min_tokens_bans_every_end_until_it_is_reached() -> None:
    request = ask(
        [3], end_token_ids=frozenset({4}), stop_token_ids=frozenset({5}), min_tokens=3, max_tokens=9
    )
    (events,) = run(make_engine(), request).values()
    assert not {4, 5} & set(tokens(events)[:3])


def test_a_long_prompt_is_read_in_chunks_and_only_the_last_gives_a_token() -> None:
    engine = make_engine(max_batch_tokens=16)
    (events,) = run(engine, ask([1] * 40, max_tokens=1)).values()
    assert isinstance(engine.executor, ScriptedExecutor)
    assert [len(batch.token_ids) for batch in engine.executor.batches] == [16, 16, 8]
    assert [len(batch.logits_rows) for batch in engine.executor.batches] == [0, 0, 1]
    assert [chunk.num_tokens for chunk in finished(events).timeline.prefill] == [16, 16, 8]


def test_requests_share_steps_and_each_gets_what_it_would_alone() -> None:
    """B72."""
    requests = [ask([i] * (3 * i + 1), max_tokens=5 + i) for i in range(5)]
    together = run(make_engine(num_blocks=40), *requests)
    alone = [run(make_engine(), request) for request in requests]
    assert [tokens(e) for e in together.values()] == [tokens(e) for run_ in alone for e in run_.values()]


def test_decodes_go_on_while_a_long_prompt_is_read() -> None:
    engine = make_engine(num_blocks=16, max_batch_tokens=8)
    first = engine.submit(ask([1], max_tokens=20))
    engine.step()
    engine.submit(ask([2] * 60, max_tokens=1))
    for _ in range(5):
        assert [event.request_id for event in engine.step()] == [first]


def test_a_request_waits_until_there_are_blocks() -> None:
    engine = make_engine(num_blocks=4)
    events = run(engine, ask([1] * 90, max_tokens=30), ask([2] * 90, max_tokens=30))
    assert all(len(tokens(e)) == 30 for e in events.values())


def test_a_prompt_that_goes_on_from_an_earlier_one_reads_only_what_is_new() -> None:
    engine = make_engine()
    (events,) = run(engine, ask([1] * 40, max_tokens=4)).values()
    longer = [1] * 40 + tokens(events) + [9, 9]
    (events,) = run(engine, ask(longer, max_tokens=2)).values()
    assert finished(events).usage.cached_tokens == 43
    assert sum(chunk.num_tokens for chunk in finished(events).timeline.prefill) == len(longer) - 43


def test_the_last_prompt_token_is_always_computed() -> None:
    engine = make_engine()
    run(engine, ask([1] * 40, max_tokens=1))
    (events,) = run(engine, ask([1] * 40, max_tokens=1)).values()
    assert finished(events).usage.cached_tokens == 39
    assert tokens(events) == [2]


def test_without_cache_nothing_is_used_or_kept() -> None:
    engine = make_engine()
    run(engine, ask([1] * 40, max_tokens=1, use_cache=False))
    (events,) = run(engine, ask([1] * 40, max_tokens=1)).values()
    assert finished(events).usage.cached_tokens == 0
    (events,) = run(engine, ask([1] * 40, max_tokens=1, use_cache=False)).values()
    assert finished(events).usage.cached_tokens == 0


def test_ending_a_request_in_prefill_in_decode_and_in_the_queue() -> None:
    engine = make_engine(num_blocks=4)
    running, waiting = engine.submit(ask([1] * 90, max_tokens=9)), engine.submit(ask([2] * 90, max_tokens=9))
    engine.step()
    event = engine.end(running, FinishReason.ABORT)
    assert (event.reason, event.usage.completion_tokens) == (FinishReason.ABORT, 0)
    engine.scheduler.check_integrity()
    engine.step()
    assert engine.end(waiting, FinishReason.STOP).reason is FinishReason.STOP
    engine.scheduler.check_integrity()
    assert not engine.has_work


def test_broken_logits_fail_one_request_and_leave_no_trace_in_the_cache() -> None:
    class Broken(ScriptedExecutor):
        def forward(self, batch):  # type: ignore[no-untyped-def]
            logits = super().forward(batch)
            for row, token in zip(logits, batch.logits_rows, strict=True):
                if batch.token_ids[token] == 13:
                    row[:] = np.nan
            return logits

    engine = Engine(Broken(count_up, num_blocks=16), CONTEXT)
    good, bad = run(engine, ask([20], max_tokens=8), ask([10], max_tokens=8)).values()
    assert tokens(good) == [21, 22, 23, 24, 25, 26, 27, 28]
    assert tokens(bad) == [11, 12, 13]
    assert finished(bad).reason is FinishReason.ERROR
    assert isinstance(finished(bad).error, NumericalError)
    (events,) = run(engine, ask([10, 11, 12], max_tokens=1)).values()
    assert finished(events).usage.cached_tokens == 0


def test_a_prompt_beyond_the_context_names_both_lengths() -> None:
    with pytest.raises(ContextLengthError, match=r"128 tokens, the context 128"):
        make_engine().submit(ask([1] * 128))
    with pytest.raises(ContextLengthError, match=r"100 tokens and max_tokens is 29.*of 128; at most 28"):
        make_engine().submit(ask([1] * 100, max_tokens=29))


@pytest.mark.parametrize(
    ("request_", "param"),
    [
        (ask([]), "prompt"),
        (ask([50]), "prompt"),
        (ask([-1]), "prompt"),
        (ask([1], max_tokens=0), "max_tokens"),
        (ask([1], max_tokens=-2), "max_tokens"),
        (ask([1], max_tokens=1.5), "max_tokens"),
        (ask([1], max_tokens=True), "max_tokens"),
        (ask([1], min_tokens=-1), "min_tokens"),
        (ask([1], min_tokens=3, max_tokens=2), "min_tokens"),
        (ask([1], stop_token_ids=frozenset({50})), "stop_token_ids"),
    ],
)
def test_what_is_out_of_range_is_refused_by_name(request_: Request, param: str) -> None:
    engine = make_engine()
    with pytest.raises(InvalidRequestError) as raised:
        engine.submit(request_)
    assert raised.value.param == param
    assert not engine.has_work


def test_the_timeline_is_in_order_and_complete() -> None:
    (events,) = run(make_engine(), ask([1] * 20, max_tokens=3)).values()
    timeline = finished(events).timeline
    assert (
        timeline.queued_s is not None and timeline.scheduled_s is not None and timeline.closed_s is not None
    )
    moments = [timeline.arrival_s, timeline.queued_s, timeline.scheduled_s]
    for chunk in timeline.prefill:
        moments += [chunk.begin_s, chunk.end_s]
    moments += [*timeline.token_s, timeline.closed_s]
    assert moments == sorted(moments)
    assert len(timeline.token_s) == 3


def test_seeded_sampling_is_the_same_alone_and_in_company() -> None:
    def request(i: int) -> Request:
        sampling = SamplingParams(temperature=5.0, seed=i)
        return Request((i,), sampling=sampling, max_tokens=12)

    together = [tokens(e) for e in run(make_engine(num_blocks=40), *map(request, range(6))).values()]
    alone = [tokens(e) for i in range(6) for e in run(make_engine(), request(i)).values()]
    assert together == alone
    assert len({tuple(t) for t in together}) > 1
