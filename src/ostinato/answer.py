"""What a model gives back: pieces while it writes, a completion at the end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ostinato.sampling.sampler import Candidate
from ostinato.telemetry.timings import Timings, Usage

FinishReasonName = Literal["stop", "length", "abort"]


@dataclass(frozen=True, slots=True)
class Piece:
    """What came of one step, or what was held back until the end.

    text: the text that is final with it; empty while a character or a possible stop string is incomplete.
    token_id: the token, None in a last piece that only brings held-back text. probability, logprob,
    candidates: see `sampling.sampler.Choice`. step_s: how long the token took, in seconds.
    """

    text: str
    token_id: int | None = None
    probability: float | None = None
    logprob: float | None = None
    candidates: tuple[Candidate, ...] = ()
    step_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Completion:
    """A finished answer.

    token_ids: all generated tokens, an end token included; `usage.completion_tokens` counts them.
    finish_reason: "stop" at an end token or a stop string, "length" at max_tokens or the end of the context,
    "abort" if cancelled.
    stop: the stop string or the text of the token that ended it, None otherwise.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReasonName
    stop: str | None
    usage: Usage
    timings: Timings
