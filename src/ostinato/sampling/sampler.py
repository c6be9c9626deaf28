"""One request's sampler: logits in, one token id out.

The order is fixed: check the model's logits; repetition penalty, presence and frequency penalties, logit
bias, bans and mask; then temperature, top-k, top-p, min-p; then the draw (docs/sampling.md). Knows a
request's parameters, its history and its length. Must not know text, end tokens or other requests.
Next on the path: the engine commits the token.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ostinato.errors import InvalidRequestError, NumericalError
from ostinato.sampling import filters, processors
from ostinato.sampling.filters import Kept, Row
from ostinato.sampling.history import TokenHistory
from ostinato.sampling.params import SamplingParams
from ostinato.sampling.philox import uniform


@dataclass(frozen=True, slots=True)
class Candidate:
    """A token that was in the running.

    `probability` (0 to 1) is the one used for the draw, after everything; 0 where a filter cut the token.
    `logprob` (at most 0, finite) is the model's own: the log-softmax of the logits as they came.
    """

    token_id: int
    probability: float
    logprob: float


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen token. `probability` and `logprob` as in `Candidate`; `logprob` is None unless asked for.

    `candidates`: the best tokens by processed logits, best first, equals by the lower id; never a banned one.
    """

    token_id: int
    probability: float
    logprob: float | None = None
    candidates: tuple[Candidate, ...] = ()


class Sampler:
    """Chooses the tokens of one request.

    `sample` changes nothing: the same logits give the same choice until `commit` says which token was taken.
    The draw for generated token i depends only on (seed, i), so a request continues identically after
    preemption, and a new sampler with the same seed, prompt and committed tokens continues where the old one
    stopped. `seed` is the one in use, also where the request gave none.
    """

    def __init__(self, params: SamplingParams, vocab_size: int, prompt_ids: Sequence[int] = ()) -> None:
        """Prepare for one request.

        Args:
            vocab_size: length V of a row of logits.
            prompt_ids: the prompt, oldest first; only the repetition penalty looks at it.

        Raises:
            InvalidRequestError: an id of `logit_bias` or of the prompt is outside [0, V).
        """
        params.validate_for(vocab_size)
        _check_prompt(prompt_ids, vocab_size)
        self.params = params
        self.vocab_size = vocab_size
        self.seed = secrets.randbits(64) if params.seed is None else params.seed
        self.num_generated = 0
        window = params.repetition_window
        self._all = TokenHistory(prompt_ids, window) if params.penalizes_repetition else None
        self._output = TokenHistory() if params.penalizes_output else None
        self._bias_ids = np.fromiter(params.logit_bias.keys(), dtype=np.int64)
        self._bias = np.fromiter(params.logit_bias.values(), dtype=np.float32)

    def sample(
        self,
        logits: Row,
        *,
        banned: Sequence[int] = (),
        allowed: NDArray[np.bool_] | None = None,
        logprob: bool = False,
        candidates: int = 0,
    ) -> Choice:
        """Choose the next token.

        Args:
            logits: (V,) float32, contiguous, straight from the model; owned by the caller, never changed.
            banned: ids in [0, V) that must not be chosen now.
            allowed: (V,) mask; where given, only tokens whose entry is true may be chosen.
            logprob: whether to report the chosen token's log-probability.
            candidates: how many of the best tokens to report, for a trace; implies `logprob`.

        Raises:
            NumericalError: the logits hold NaN or +inf, or no finite value is left to choose from.
        """
        assert logits.shape == (self.vocab_size,), f"logits {logits.shape} for {self.vocab_size} tokens"
        assert logits.dtype == np.float32, f"logits {logits.dtype}"
        best, highest = _best(logits, "the model's logits")
        row = self._processed(logits, banned, allowed)
        if row is not logits:
            best, highest = _best(row, "after penalties, bias and bans the logits")
        if self.params.is_greedy:
            kept, position, probability = Kept(np.array([best]), np.ones(1)), 0, 1.0
        else:
            kept = filters.keep(row, highest, self.params)
            position, probability = filters.draw(kept.weights, uniform(self.seed, self.num_generated))
        token_id = kept.token_at(position)
        if not (logprob or candidates):
            return Choice(token_id, probability)
        top = filters.by_rank(row, candidates) if candidates else np.empty(0, np.intp)
        logprobs = filters.log_softmax_at(logits, np.append(token_id, top)).tolist()
        shares = kept.probabilities_of(top).tolist()
        reported = map(Candidate, top.tolist(), shares, logprobs[1:])
        return Choice(token_id, probability, logprobs[0], tuple(reported))

    def commit(self, token_id: int) -> None:
        """Record the token that was taken: the chosen one, or one that something else decided."""
        assert 0 <= token_id < self.vocab_size, f"token {token_id} of {self.vocab_size}"
        self.num_generated += 1
        if self._all is not None:
            self._all.append(token_id)
        if self._output is not None:
            self._output.append(token_id)

    def _processed(self, logits: Row, banned: Sequence[int], allowed: NDArray[np.bool_] | None) -> Row:
        """Return `logits` itself where nothing changes it, else a changed copy."""
        nothing = self._all is None and self._output is None and not len(self._bias_ids)
        if nothing and not banned and allowed is None:
            return logits
        row, params = logits.copy(), self.params
        if self._all is not None:
            processors.penalize_repetition(row, self._all.ids, params.repetition_penalty)
        if self._output is not None:
            seen = self._output
            processors.penalize_output(
                row, seen.ids, seen.counts, params.presence_penalty, params.frequency_penalty
            )
        if len(self._bias_ids):
            processors.add_bias(row, self._bias_ids, self._bias)
        if banned:
            processors.ban(row, banned)
        if allowed is not None:
            processors.allow_only(row, allowed)
        return row


def _check_prompt(prompt_ids: Sequence[int], vocab_size: int) -> None:
    for token_id in (min(prompt_ids, default=0), max(prompt_ids, default=0)):
        if not 0 <= token_id < vocab_size:
            raise InvalidRequestError(
                f"the prompt holds token {token_id}; this model's tokens are 0 to {vocab_size - 1}",
                param="prompt",
            )


def _best(row: Row, which: str) -> tuple[int, float]:
    """Return the id (the lowest of equals) and the value of the highest logit, or raise if it is not finite.

    NumPy's arg max stops at a NaN, so this one pass finds NaN, +inf and a row of -inf.
    """
    best = int(row.argmax())
    highest = float(row[best])
    if math.isfinite(highest):
        return best, highest
    found = {"NaN": np.isnan(row).sum(), "+inf": np.isposinf(row).sum(), "-inf": np.isneginf(row).sum()}
    holds = ", ".join(f"{count} {name}" for name, count in found.items() if count)
    raise NumericalError(f"{which} hold {holds} among {len(row)} values: no token can be chosen")
