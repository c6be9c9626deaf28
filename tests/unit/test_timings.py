"""The two clocks on timelines with known answers."""

from __future__ import annotations

import pytest

from ostinato.telemetry.timeline import PrefillChunk, Timeline
from ostinato.telemetry.timings import Usage, timings


def test_prefill_and_decode_are_never_mixed() -> None:
    """1,000 prompt tokens, first token at 2 s, the 101st at 7 s: 500 tokens/s of prefill, 20 of decode."""
    tokens = [2.0 + 0.05 * i for i in range(101)]
    clocks = timings(Timeline(0.0, prefill=[PrefillChunk(0.0, 2.0, 1000)], token_s=tokens))
    assert clocks.ttft_s == 2.0
    assert clocks.prefill_tps == pytest.approx(500)
    assert clocks.decode_tps == pytest.approx(20)
    assert clocks.e2e_s == pytest.approx(7.0)
    assert len(clocks.itl_s) == 100


def test_cached_tokens_do_not_speed_up_prefill() -> None:
    """900 of the 1,000 tokens were at hand: only the 100 that were read count."""
    clocks = timings(Timeline(0.0, prefill=[PrefillChunk(1.8, 2.0, 100)], token_s=[2.0]))
    assert clocks.prefill_tps == pytest.approx(500)


def test_chunks_add_up_and_the_time_between_them_does_not_count() -> None:
    chunks = [PrefillChunk(1.0, 2.0, 512), PrefillChunk(3.0, 4.0, 512)]
    clocks = timings(Timeline(0.0, prefill=chunks, token_s=[4.0]))
    assert clocks.prefill_s == pytest.approx(2.0)
    assert clocks.prefill_tps == pytest.approx(512)


@pytest.mark.parametrize("tokens", [[], [1.0]])
def test_what_has_no_meaning_is_none_and_never_zero_or_infinite(tokens: list[float]) -> None:
    clocks = timings(Timeline(0.0, token_s=tokens))
    assert clocks.decode_s is None
    assert clocks.decode_tps is None
    assert clocks.prefill_tps is None
    assert clocks.itl_s == ()
    assert clocks.ttft_s == (1.0 if tokens else None)


def test_the_way_to_the_engine() -> None:
    timeline = Timeline(1.0, rendered_s=1.5, tokenized_s=1.75, queued_s=2.0, scheduled_s=5.0)
    clocks = timings(timeline)
    assert (clocks.template_s, clocks.tokenize_s, clocks.queue_s) == (0.5, 0.25, 3.0)


def test_usage_adds_up() -> None:
    assert Usage(10, 5, cached_tokens=8).total_tokens == 15
