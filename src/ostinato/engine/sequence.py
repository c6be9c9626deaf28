"""Sequence: a request on its way through the engine, with all that changes about it."""

from __future__ import annotations

from dataclasses import dataclass, field

from ostinato.engine.request import Request
from ostinato.sampling.sampler import Sampler
from ostinato.telemetry.timeline import Timeline


@dataclass(slots=True)
class Sequence:
    """The tokens of a request so far, how many of them are computed, and the blocks they lie in.

    token_ids: prompt and generated tokens. num_computed: tokens whose keys and values are in `blocks`, the
    first `num_cached` of them from an earlier request. max_tokens: the limit that holds, the context's or the
    request's.
    """

    id: int
    request: Request
    sampler: Sampler
    timeline: Timeline
    max_tokens: int
    token_ids: list[int]
    num_computed: int = 0
    num_cached: int = 0
    blocks: list[int] = field(default_factory=list)

    @property
    def num_prompt(self) -> int:
        """Tokens of the prompt."""
        return len(self.request.prompt_ids)

    @property
    def num_generated(self) -> int:
        """Tokens generated so far."""
        return len(self.token_ids) - self.num_prompt

    @property
    def num_pending(self) -> int:
        """Tokens known but not computed: the rest of the prompt, or the newest token."""
        return len(self.token_ids) - self.num_computed

    @property
    def capacity(self) -> int:
        """Tokens that may have to be computed: all but the last of the longest possible answer."""
        return self.num_prompt + self.max_tokens - 1
