"""Functions that change logits before anything is cut: penalties, bias, bans.

Each takes a row: logits (V,) float32, owned by the caller and **changed in place**. A logit of -inf stays
-inf, whatever is applied. `sampler.py` applies them in the order of this file; docs/sampling.md says why.
Knows one row. Must not know requests or random numbers. Next on the path: `filters.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Row = NDArray[np.float32]
Ids = NDArray[np.int64]


def penalize_repetition(row: Row, token_ids: Ids, penalty: float) -> None:
    """Divide a positive logit by `penalty`, multiply a negative one: above 1, both make a token less likely.

    Args:
        token_ids: distinct ids (N,) of the prompt and the output.
        penalty: above 0. Below 1 a huge logit may overflow to +inf, which the sampler reports.

    Source: Keskar et al., "CTRL", 2019, section 4.1, with the sign handled so that a penalty never rewards.
    """
    logits = row[token_ids]
    with np.errstate(over="ignore"):
        row[token_ids] = np.where(logits < 0, logits * penalty, logits / penalty)


def penalize_output(row: Row, token_ids: Ids, counts: Ids, presence: float, frequency: float) -> None:
    """Subtract `presence` once and `frequency` times the count from the logit of each generated token.

    Args:
        token_ids: distinct ids (N,) of the output only.
        counts: how often each was generated (N,), at least 1.

    Source: the OpenAI API reference, `presence_penalty` and `frequency_penalty`.
    """
    row[token_ids] -= presence + frequency * counts


def add_bias(row: Row, token_ids: Ids, bias: Row) -> None:
    """Add `bias` (N,) to the logits of the distinct `token_ids` (N,)."""
    row[token_ids] += bias


def ban(row: Row, token_ids: Sequence[int]) -> None:
    """Make it impossible to choose any of `token_ids`, each in [0, V)."""
    assert min(token_ids, default=0) >= 0, f"banned ids {token_ids}"
    row[list(token_ids)] = -np.inf


def allow_only(row: Row, allowed: NDArray[np.bool_]) -> None:
    """Make it impossible to choose a token whose `allowed` (V,) is false."""
    assert allowed.shape == row.shape, f"mask {allowed.shape} for logits {row.shape}"
    np.copyto(row, -np.inf, where=~allowed)
