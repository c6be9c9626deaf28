"""From processed logits to the tokens that may be drawn: temperature, top-k, top-p, min-p, and the draw.

Pure functions; no argument is changed. *By rank* means: the higher logit (or weight) first, equals by the
lower id. Positions and ids come back in ascending order unless a function says otherwise. Weights are
exp((logit - highest) / temperature) in float64, not normalised: the most likely token weighs exactly 1.
Nothing sorts the vocabulary: a filter first finds, in a few linear passes, a short list that must contain its
border. Knows one row. Must not know requests or penalties. Next on the path: back in `sampler.py`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ostinato.sampling.params import SamplingParams

Row = NDArray[np.float32]
Ids = NDArray[np.intp]
Weights = NDArray[np.float64]

MIN_TEMPERATURE = 1e-200
_GROUPS = 1024
_BLOCK = 512


class Kept(NamedTuple):
    """The tokens that may be drawn: ids (N,) ascending, or None where all V are kept; weights (N,)."""

    token_ids: Ids | None
    weights: Weights

    def only(self, positions: Ids) -> Kept:
        """Return the entries at `positions`."""
        ids = positions if self.token_ids is None else self.token_ids[positions]
        return Kept(ids, self.weights[positions])

    def token_at(self, position: int) -> int:
        """Return the token id of one entry."""
        return position if self.token_ids is None else int(self.token_ids[position])

    def probabilities_of(self, token_ids: Ids) -> Weights:
        """Return each token's probability in the draw (M,): 0 where it was not kept."""
        if self.token_ids is None:
            return self.weights[token_ids] / float(self.weights.sum())
        places = np.minimum(self.token_ids.searchsorted(token_ids), len(self.token_ids) - 1)
        weights = np.where(self.token_ids[places] == token_ids, self.weights[places], 0.0)
        return weights / float(self.weights.sum())


def keep(row: Row, highest: float, params: SamplingParams) -> Kept:
    """Apply temperature, top-k, top-p and min-p, in this order, each to what the one before has left.

    Args:
        row: processed logits (V,) float32 without NaN or +inf.
        highest: the highest of them, finite.
        params: with a temperature above 0.
    """
    ids = None
    if 0 < params.top_k < len(row):
        ids = top_k(row, params.top_k)
    elif params.min_p > 0 and params.top_p == 1:
        ids = _not_far_below(row, highest, params)
    kept = Kept(ids, weigh(row if ids is None else row[ids], highest, params.temperature))
    if params.top_p < 1:
        kept = kept.only(top_p(kept.weights, params.top_p))
    if params.min_p > 0:
        kept = kept.only(min_p(kept.weights, params.min_p))
    return kept


def weigh(logits: Row, highest: float, temperature: float) -> Weights:
    """Return exp((logits - highest) / temperature), float64, each in [0, 1].

    A temperature below `MIN_TEMPERATURE` acts as that: so near to 0 that only equals of the highest logit
    weigh anything, and far enough from it that no quotient overflows.
    """
    weights = logits.astype(np.float64)
    weights -= highest
    weights *= 1.0 / max(temperature, MIN_TEMPERATURE)
    return np.exp(weights, out=weights)


def top_k(row: Row, k: int) -> Ids:
    """Return the positions of the first k by rank (all, where k is at least V); k is 1 or more."""
    if k >= len(row):
        return np.arange(len(row))
    positions = (row >= _floor_of_top(row, k)).nonzero()[0]
    values = row[positions]
    border = np.partition(values, len(values) - k)[len(values) - k]
    return positions[_first_by_rank(values, border, k)]


def top_p(weights: Weights, p: float) -> Ids:
    """Return the positions of the fewest by rank holding at least `p` (0 to 1) of all weight; one or more."""
    total = float(weights.sum())
    # All that weighs less than the floor holds, together, less than half of what top-p may leave out.
    floor = 0.5 * (1.0 - p) * total / len(weights)
    positions = (weights >= floor).nonzero()[0]
    short = weights[positions]
    above, left, middle = _around_border(short, p * total)
    descending = np.sort(middle)[::-1]
    place = min(int(descending.cumsum().searchsorted(left)), len(descending) - 1)
    return positions[_first_by_rank(short, descending[place], above + place + 1)]


def min_p(weights: Weights, share: float) -> Ids:
    """Return the positions that weigh at least `share` (0 to 1) of the heaviest, whose weight is 1."""
    return (weights >= share).nonzero()[0]


def draw(weights: Weights, uniform: float) -> tuple[int, float]:
    """Return the first position whose running sum exceeds `uniform` of the total, and its probability.

    Exact inverse of the cumulative distribution, in position order; a position of weight 0 is never returned.
    A long row is summed by blocks first, so that only one block needs its running sum.

    Args:
        weights: (N,) at least 0, one of them above 0.
        uniform: in [0, 1).
    """
    if len(weights) <= 8 * _BLOCK:
        total = float(weights.sum())
        position = _reach(weights, uniform * total)
    else:
        sums = np.add.reduceat(weights, np.arange(0, len(weights), _BLOCK))
        total = float(sums.sum())
        block = _reach(sums, uniform * total)
        start, before = block * _BLOCK, float(sums[:block].sum())
        position = start + _reach(weights[start : start + _BLOCK], uniform * total - before)
    return position, float(weights[position]) / total


def by_rank(row: Row, count: int) -> Ids:
    """Return up to `count` ids with a logit above -inf, the first by rank first."""
    positions = top_k(row, count)
    positions = positions[row[positions] > -np.inf]
    return positions[np.argsort(-row[positions], kind="stable")]


def log_softmax_at(logits: Row, token_ids: Ids) -> Weights:
    """Return the natural log of the softmax of `logits` (V,) at `token_ids` (M,), float64, each at most 0."""
    shifted = logits.astype(np.float64)
    shifted -= shifted.max()
    chosen = shifted[token_ids]
    return chosen - math.log(float(np.exp(shifted, out=shifted).sum()))


def _reach(weights: Weights, target: float) -> int:
    """Return the first position whose running sum exceeds `target`.

    Where rounding has put the target at or above the end, it is the last position that weighs more than 0.
    """
    running = weights.cumsum()
    last = int(running.searchsorted(running[-1]))
    return min(int(running.searchsorted(target, side="right")), last)


def _floor_of_top(row: Row, k: int) -> np.float32:
    """Return a value that at least k logits reach and few others do (k below V).

    Token i belongs to group i mod G. The k-th highest of the G group maxima is such a value, since k groups
    have a logit that reaches it. The maxima take one vectorised pass; partly sorting the row is far slower.
    """
    groups = max(_GROUPS, 4 * k)
    whole = len(row) // groups * groups
    if whole < 2 * groups:
        return np.float32(np.partition(row, len(row) - k)[len(row) - k])
    maxima = np.maximum.reduce(row[:whole].reshape(-1, groups), axis=0)
    return np.float32(np.partition(maxima, groups - k)[groups - k])


def _around_border(weights: Weights, target: float) -> tuple[int, float, Weights]:
    """Narrow `weights` to a few that hold the one where the heaviest, summed, reach `target`.

    Groups them by their leading bits (exponent and six bits of fraction), which are ordered as the weights
    are, and finds the group where the running sum reaches the target.
    Returns how many weights are heavier than those few, what of `target` is left for the few, and the few.
    """
    if len(weights) <= _BLOCK:
        return 0, target, weights
    group = weights.view(np.int64) >> 46
    group = group.max() - group
    running = np.bincount(group, weights).cumsum()
    border = min(int(running.searchsorted(target)), len(running) - 1)
    before = float(running[border - 1]) if border else 0.0
    return int(np.count_nonzero(group < border)), target - before, weights[group == border]


def _first_by_rank(values: NDArray[np.floating], border: np.floating, count: int) -> Ids:
    """Return the positions of the first `count` by rank, given the value of the last of them."""
    chosen = values > border
    equals = (values == border).nonzero()[0]
    chosen[equals[: count - int(np.count_nonzero(chosen))]] = True
    return chosen.nonzero()[0]


def _not_far_below(row: Row, highest: float, params: SamplingParams) -> Ids:
    """Return positions that surely include what min-p keeps: its rule on logits, and room for rounding."""
    distance = params.temperature * -math.log(params.min_p)
    slack = 1e-9 * (abs(highest) + distance)
    return (row >= highest - distance - slack).nonzero()[0]
