"""Timeline: the moments of one request, appended as they pass, read when it is over.

All moments are seconds of one monotonic clock. A moment that did not come is None. Everything that is said
about a request's time is computed from these, in timings.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

Clock = Callable[[], float]

clock: Clock = time.perf_counter
"""The clock of all timelines, in seconds."""


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """One step that read a part of the prompt: from `begin_s` to `end_s`, `num_tokens` tokens."""

    begin_s: float
    end_s: float
    num_tokens: int


@dataclass(slots=True)
class Timeline:
    """The moments of a request, in the order they come.

    `token_s`: when each generated token was chosen, the first one included.
    """

    arrival_s: float
    rendered_s: float | None = None
    tokenized_s: float | None = None
    queued_s: float | None = None
    scheduled_s: float | None = None
    prefill: list[PrefillChunk] = field(default_factory=list)
    token_s: list[float] = field(default_factory=list)
    closed_s: float | None = None
