"""The two clocks of a request, computed from its timeline: time to the first token, and rate of those after
it.

The two are never mixed. A rate that has no meaning (no gap between tokens, nothing to prefill) is None, never
zero or infinite. Definitions: docs/clocks.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from ostinato.telemetry.timeline import Timeline


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of a request.

    `cached_tokens` are those of the prompt whose keys and values were at hand already.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        """Prompt and completion together."""
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds and rates of one request.

    ttft_s: arrival to first token. prefill_s: steps that read the prompt. prefill_tps: tokens read, cached
    ones not counted, over prefill_s. decode_s: first token to last. decode_tps: gaps between tokens over
    decode_s.
    e2e_s: arrival to last token. itl_s: the gaps between tokens, in order.
    """

    ttft_s: float | None
    template_s: float | None
    tokenize_s: float | None
    queue_s: float | None
    prefill_s: float | None
    prefill_tps: float | None
    decode_s: float | None
    decode_tps: float | None
    e2e_s: float | None
    itl_s: tuple[float, ...]


def timings(timeline: Timeline) -> Timings:
    """Return what a timeline says."""
    tokens = timeline.token_s
    prefill_s = sum(chunk.end_s - chunk.begin_s for chunk in timeline.prefill) or None
    prefilled = sum(chunk.num_tokens for chunk in timeline.prefill)
    decode_s = tokens[-1] - tokens[0] if len(tokens) > 1 else None
    started = timeline.rendered_s if timeline.rendered_s is not None else timeline.arrival_s
    return Timings(
        ttft_s=_between(timeline.arrival_s, tokens[0] if tokens else None),
        template_s=_between(timeline.arrival_s, timeline.rendered_s),
        tokenize_s=_between(started, timeline.tokenized_s),
        queue_s=_between(timeline.queued_s, timeline.scheduled_s),
        prefill_s=prefill_s,
        prefill_tps=prefilled / prefill_s if prefill_s else None,
        decode_s=decode_s,
        decode_tps=(len(tokens) - 1) / decode_s if decode_s else None,
        e2e_s=_between(timeline.arrival_s, tokens[-1] if tokens else None),
        itl_s=tuple(b - a for a, b in pairwise(tokens)),
    )


def _between(begin_s: float | None, end_s: float | None) -> float | None:
    return None if begin_s is None or end_s is None else end_s - begin_s
