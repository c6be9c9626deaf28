"""Options: everything one request may ask for, every default written once. Standard library only.

The command line derives its flags from these fields; model.py turns them into an engine request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ostinato.errors import InvalidRequestError
from ostinato.sampling.params import SamplingParams


def _documented(default: Any, meaning: str) -> Any:
    return field(default=default, metadata={"help": meaning})


@dataclass(frozen=True, slots=True)
class Options:
    """When to stop, what to report, how to sample: as the model's makers say, where `sampling` is None.

    Raises:
        InvalidRequestError: a stop string is empty or not a text; `candidates` is negative. Limits are
        checked when the request is made, against the model.
    """

    max_tokens: int | None = _documented(
        None, "most tokens to generate; absent: as many as the context holds"
    )
    min_tokens: int = _documented(0, "no end before this many tokens")
    ignore_eos: bool = _documented(False, "go on after an end token")
    stop: Sequence[str] = _documented((), "end before this text")
    stop_token_ids: Sequence[int] = _documented((), "end at this token")
    logprobs: bool = _documented(False, "report the log-probability of each token")
    candidates: int = _documented(0, "report this many of the likeliest tokens with each choice")
    use_cache: bool = _documented(True, "use keys and values of earlier requests, and keep this one's")
    sampling: SamplingParams | None = None

    def __post_init__(self) -> None:
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        for i, text in enumerate(self.stop):
            if not isinstance(text, str) or not text:
                raise InvalidRequestError(
                    f"stop[{i}] is {text!r}; a text of at least one character is needed", "stop"
                )
        if self.candidates < 0:
            raise InvalidRequestError(f"candidates is {self.candidates}; 0 or more is allowed", "candidates")
