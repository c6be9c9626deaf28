"""Request: what is asked of the engine, in token ids; and the messages that come back.

Made by the facade from text and options, read by the scheduler. Nothing here changes once it is made.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from ostinato.errors import OstinatoError
from ostinato.sampling.params import SamplingParams
from ostinato.sampling.sampler import Choice
from ostinato.telemetry.timeline import Timeline
from ostinato.telemetry.timings import Usage


class FinishReason(Enum):
    """Why a request ended.

    STOP: an end token, a stop token or a stop string. LENGTH: max_tokens, or the context is full. ABORT: the
    caller wanted no more. ERROR: see the event.
    """

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt and what to do with it.

    max_tokens: the most tokens to generate; None for as many as the context has room for.
    min_tokens: end and stop tokens are not chosen before this many tokens.
    end_token_ids: tokens that end an answer, unless ignore_eos. stop_token_ids: tokens that end it always.
    candidates: how many of the likeliest tokens to report with each choice; logprobs: whether to report the
    choice's.
    use_cache: whether keys and values of earlier requests may be used and this request's kept.
    """

    prompt_ids: tuple[int, ...]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    max_tokens: int | None = None
    min_tokens: int = 0
    ignore_eos: bool = False
    end_token_ids: frozenset[int] = frozenset()
    stop_token_ids: frozenset[int] = frozenset()
    logprobs: bool = False
    candidates: int = 0
    use_cache: bool = True


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """A token was generated.

    step_s: how long it took, from the beginning of its step until it was chosen. stops: it is an end or stop
    token, and the request ends with it.
    """

    request_id: int
    choice: Choice
    step_s: float
    stops: bool


@dataclass(frozen=True, slots=True)
class FinishedEvent:
    """A request ended. stop_token_id: the token that ended it, if one did; a TokenEvent told of it too."""

    request_id: int
    reason: FinishReason
    usage: Usage
    timeline: Timeline
    stop_token_id: int | None = None
    error: OstinatoError | None = None


Event = TokenEvent | FinishedEvent
