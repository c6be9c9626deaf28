"""Filters and the draw against slow, obvious references."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ostinato.sampling import filters
from ostinato.sampling.params import SamplingParams
from ostinato.sampling.philox import uniform

Row = NDArray[np.float32]

# Ten tokens; by rank the ids are 4 7 0 2 9 1 5 8 3 6.
TOY = [0.15, 0.06, 0.10, 0.02, 0.30, 0.05, 0.01, 0.20, 0.03, 0.08]
RANKED = [4, 7, 0, 2, 9, 1, 5, 8, 3, 6]
fixed = settings(derandomize=True, deadline=None, max_examples=200)
small_logits = st.lists(st.integers(-40, 40), min_size=1, max_size=40)


def toy() -> Row:
    return np.array(np.log(TOY), dtype=np.float32)


def quarters(values: list[int]) -> Row:
    """Logits that are exact in float32 and often equal."""
    return np.array(values, dtype=np.float32) / np.float32(4)


def ranked(values: list[float]) -> list[int]:
    return sorted(range(len(values)), key=lambda i: (-values[i], i))


def slow_top_p(weights: list[float], p: float) -> list[int]:
    kept, mass, total = [], 0.0, math.fsum(weights)
    for position in ranked(weights):
        kept.append(position)
        mass += weights[position]
        if mass >= p * total:
            break
    return sorted(kept)


def kept_ids(logits: Row, **params: float) -> list[int]:
    kept = filters.keep(logits, float(logits.max()), SamplingParams(**params))  # type: ignore[arg-type]
    return list(range(len(logits))) if kept.token_ids is None else kept.token_ids.tolist()


@pytest.mark.parametrize("k", [1, 2, 3, 9, 10, 11, 2**31 - 1])
def test_top_k_keeps_the_k_most_likely(k: int) -> None:
    assert filters.top_k(toy(), k).tolist() == sorted(RANKED[:k])


@pytest.mark.parametrize(
    ("p", "count"),
    [
        (0.0, 1),
        (0.1, 1),
        (0.29, 1),
        (0.31, 2),
        (0.45, 2),
        (0.6, 3),
        (0.7, 4),
        (0.9, 7),
        (0.985, 9),
        (1.0, 10),
    ],
)
def test_top_p_keeps_the_fewest_that_reach_p(p: float, count: int) -> None:
    assert filters.top_p(np.array(TOY), p).tolist() == sorted(RANKED[:count])


@pytest.mark.parametrize(
    ("share", "count"), [(1e-9, 10), (0.04, 9), (0.2, 5), (0.3, 4), (0.6, 2), (0.7, 1), (1.0, 1)]
)
def test_min_p_is_a_share_of_the_most_likely(share: float, count: int) -> None:
    assert kept_ids(toy(), min_p=share) == sorted(RANKED[:count])


@pytest.mark.parametrize(
    ("params", "count"),
    [
        ({}, 10),
        ({"top_k": -1}, 10),
        ({"top_k": 10}, 10),
        ({"top_k": 4}, 4),
        # Of the best four, 0.75 in all, top-p wants 0.8 * 0.75 = 0.6: three. Of all ten it wants 0.8: five.
        ({"top_p": 0.8}, 5),
        ({"top_k": 4, "top_p": 0.8}, 3),
        # 0.10 is a third of 0.30 and 0.15 a half.
        ({"top_k": 4, "top_p": 0.8, "min_p": 0.6}, 2),
        ({"min_p": 0.6, "top_p": 0.999999}, 2),
        # Temperature comes first: squared, 0.2 is 4/9 of 0.3; the square root, four fifths.
        ({"min_p": 0.5, "temperature": 0.5}, 1),
        ({"min_p": 0.5, "temperature": 2.0}, 5),
        ({"top_p": 0.45}, 2),
        ({"top_p": 0.45, "temperature": 0.5}, 1),
        ({"top_p": 0.45, "temperature": 2.0}, 3),
    ],
)
def test_filters_in_sequence(params: dict[str, float], count: int) -> None:
    assert kept_ids(toy(), **params) == sorted(RANKED[:count])


def test_equals_at_the_border_go_by_the_lower_id() -> None:
    logits = quarters([4, 8, 4, 8, 4, 4])
    assert filters.top_k(logits, 1).tolist() == [1]
    assert filters.top_k(logits, 3).tolist() == [0, 1, 3]
    assert filters.top_k(logits, 4).tolist() == [0, 1, 2, 3]
    assert filters.top_p(np.ones(8), 0.5).tolist() == [0, 1, 2, 3]
    assert filters.top_p(np.array([0.5, 1.0, 0.5, 1.0, 0.5, 0.5]), 0.7).tolist() == [0, 1, 2, 3]
    assert filters.min_p(np.array([0.5, 1.0, 0.5]), 0.5).tolist() == [0, 1, 2]
    assert filters.by_rank(logits, 4).tolist() == [1, 3, 0, 2]


@fixed
@given(values=small_logits, k=st.integers(1, 50))
def test_top_k_equals_its_reference(values: list[int], k: int) -> None:
    logits = quarters(values)
    assert filters.top_k(logits, k).tolist() == sorted(ranked(logits.tolist())[:k])
    assert filters.by_rank(logits, k).tolist() == ranked(logits.tolist())[:k]


@fixed
@given(values=small_logits, p=st.floats(0, 0.999999), temperature=st.sampled_from([0.25, 1.0, 3.0]))
def test_top_p_equals_its_reference(values: list[int], p: float, temperature: float) -> None:
    logits = quarters(values)
    weights = filters.weigh(logits, float(logits.max()), temperature)
    assert filters.top_p(weights, p).tolist() == slow_top_p(weights.tolist(), p)


@fixed
@given(values=small_logits, share=st.floats(1e-30, 1), temperature=st.sampled_from([0.01, 1.0, 50.0]))
def test_min_p_equals_its_reference(values: list[int], share: float, temperature: float) -> None:
    logits = quarters(values)
    weights = np.exp((logits.astype(np.float64) - float(logits.max())) * (1 / temperature))
    expected = [i for i, weight in enumerate(weights.tolist()) if weight >= share]
    assert kept_ids(logits, min_p=share, temperature=temperature) == expected


@fixed
@given(
    values=st.lists(st.integers(-400, 400), min_size=2, max_size=30, unique=True),
    p=st.floats(0.01, 0.99),
    k=st.integers(1, 30),
    order=st.randoms(use_true_random=False),
)
def test_what_is_kept_moves_with_the_tokens(values: list[int], p: float, k: int, order: object) -> None:
    """Renaming the tokens renames the kept ones, where no two logits are equal."""
    logits = quarters(values)
    shuffled = list(range(len(values)))
    order.shuffle(shuffled)  # type: ignore[attr-defined]
    before = kept_ids(logits, top_k=k, top_p=p)
    after = kept_ids(logits[shuffled], top_k=k, top_p=p)
    assert sorted(shuffled[i] for i in after) == before


@fixed
@given(values=small_logits, k=st.integers(1, 40), p=st.floats(0.05, 0.95), share=st.floats(0.01, 1))
def test_filters_keep_the_best_and_only_ever_narrow(
    values: list[int], k: int, p: float, share: float
) -> None:
    logits = quarters(values)
    sets = [
        set(kept_ids(logits, **params))
        for params in ({}, {"top_k": k}, {"top_k": k, "top_p": p}, {"top_k": k, "top_p": p, "min_p": share})
    ]
    assert sets[0] >= sets[1] >= sets[2] >= sets[3] >= {int(logits.argmax())}


@fixed
@given(values=small_logits, k=st.integers(1, 40), share=st.floats(0.01, 1))
def test_top_k_and_min_p_applied_twice_keep_the_same(values: list[int], k: int, share: float) -> None:
    logits = quarters(values)
    for params in ({"top_k": k}, {"min_p": share}):
        once = kept_ids(logits, **params)
        assert kept_ids(logits[once], **params) == list(range(len(once)))


def shapes(size: int) -> dict[str, Row]:
    """Rows as long as a vocabulary: peaked, flat, equal, coarse with many ties, half forbidden."""
    noise = np.random.default_rng(5).standard_normal(size)
    half = (noise * 3).astype(np.float32)
    half[::2] = -np.inf
    return {
        "peaked": (noise * 6).astype(np.float32),
        "flat": (noise * 0.3).astype(np.float32),
        "equal": np.zeros(size, dtype=np.float32),
        "coarse": np.round(noise * 2).astype(np.float32),
        "half": half,
    }


@pytest.mark.parametrize("size", [600, 2047, 2048, 5000, 20_011])
@pytest.mark.parametrize("shape", ["peaked", "flat", "equal", "coarse", "half"])
def test_long_rows_equal_a_full_sort(size: int, shape: str) -> None:
    logits = shapes(size)[shape]
    order = np.argsort(-logits, kind="stable")
    for k in (1, 2, 40, 300, size // 2, size - 1):
        assert filters.top_k(logits, k).tolist() == sorted(order[:k].tolist())
    assert filters.by_rank(logits, 7).tolist() == order[:7].tolist()
    weights = filters.weigh(logits, float(logits.max()), 1.0)
    running = weights[order].cumsum()
    for p in (0.0, 0.1, 0.5, 0.95, 0.9999):
        count = int(np.searchsorted(running, p * running[-1])) + 1
        assert filters.top_p(weights, p).tolist() == sorted(order[:count].tolist())
    for share in (0.9, 0.05, 1e-6):
        assert kept_ids(logits, min_p=share) == np.flatnonzero(weights >= share).tolist()


def test_min_p_keeps_the_very_token_at_its_border() -> None:
    logits = (np.random.default_rng(6).standard_normal(3000) * 4 - 30).astype(np.float32)
    for temperature in (0.01, 0.7, 3.0):
        weights = filters.weigh(logits, float(logits.max()), temperature)
        for share in np.sort(weights)[-40::3]:
            kept = kept_ids(logits, min_p=float(share), temperature=temperature)
            assert kept == np.flatnonzero(weights >= share).tolist()


@pytest.mark.parametrize("highest", [0.3, 3.0, 8.0, 30.0])
@pytest.mark.parametrize("temperature", [0.3, 0.7, 1.0, 3.0])
def test_min_p_is_not_misled_by_rounding_near_zero(highest: float, temperature: float) -> None:
    """In float64 these small logits are equally far below the highest one, so min-p must treat them alike."""
    logits = np.array([highest, 1e-18, 0.0, -1e-18], dtype=np.float32)
    share = float(filters.weigh(logits, float(logits[0]), temperature)[2])
    assert kept_ids(logits, min_p=share, temperature=temperature) == [0, 1, 2, 3]


@pytest.mark.parametrize("temperature", [5e-324, 1e-300, 1e-200, 1e-9, 1e-4])
def test_tiny_temperatures_are_finite(temperature: float) -> None:
    logits = np.array([-3.4e38, 1.0, 3.4e38, 3.4e38, -np.inf, 0.0], dtype=np.float32)
    weights = filters.weigh(logits, float(logits.max()), temperature)
    assert weights.tolist() == [0, 0, 1, 1, 0, 0]


def test_temperature_is_a_power_of_the_probabilities() -> None:
    weights = filters.weigh(toy(), float(toy().max()), 0.5)
    expected = (np.array(TOY) / 0.30) ** 2
    np.testing.assert_allclose(weights, expected, rtol=1e-6)


@fixed
@given(
    weights=st.lists(st.sampled_from([0.0, 1e-300, 0.1, 0.25, 0.7, 1.0]), min_size=1, max_size=30),
    point=st.floats(0, 1, exclude_max=True),
)
def test_draw_inverts_the_running_sum(weights: list[float], point: float) -> None:
    weights[0] = 1.0
    position, probability = filters.draw(np.array(weights), point)
    total = float(np.sum(weights))
    running = np.cumsum(weights).tolist()
    assert weights[position] > 0 and probability == weights[position] / total
    assert running[position] > point * total or running[position] == running[-1]
    assert position == 0 or running[position - 1] <= point * total


def test_draw_from_a_long_row_is_the_same_rule() -> None:
    weights = np.exp(np.random.default_rng(3).standard_normal(30_000) * 3)
    weights[:700] = weights[9000:15_000] = weights[-600:] = 0
    running = weights.cumsum()
    for index in range(400):
        point = uniform(11, index)
        position, probability = filters.draw(weights, point)
        assert position == int(running.searchsorted(point * running[-1], side="right"))
        assert probability == pytest.approx(weights[position] / running[-1], rel=1e-12)
    assert filters.draw(weights, 0.0)[0] == 700
    assert filters.draw(weights, 1 - 2**-53)[0] == 29_399


@pytest.mark.parametrize("size", [3, 4096, 4097, 10_000])
def test_draw_never_returns_a_weight_of_zero(size: int) -> None:
    weights = np.zeros(size)
    weights[size // 2] = 1e-300
    for point in (0.0, 0.3, 1 - 2**-53):
        assert filters.draw(weights, point) == (size // 2, 1.0)


def test_rounding_at_the_end_of_the_running_sum_falls_to_the_last_weight() -> None:
    noise = np.random.default_rng(8)
    for _ in range(200):
        weights = np.append(noise.random(1000), np.zeros(5))
        weights[999] = 1
        assert filters.draw(weights, 1 - 2**-53)[0] == 999


@fixed
@given(values=small_logits)
def test_log_softmax_is_a_distribution(values: list[int]) -> None:
    logits = quarters(values)
    logprobs = filters.log_softmax_at(logits, np.arange(len(logits)))
    assert np.all(logprobs <= 0)
    assert math.fsum(np.exp(logprobs)) == pytest.approx(1, abs=1e-12)
    exact = [float(x) - math.log(math.fsum(math.exp(y) for y in logits.tolist())) for x in logits]
    np.testing.assert_allclose(logprobs, exact, atol=1e-12)


def test_probabilities_of_tokens_that_were_cut_are_zero() -> None:
    kept = filters.keep(toy(), float(toy().max()), SamplingParams(top_k=2))
    np.testing.assert_allclose(kept.probabilities_of(np.array([9, 7, 0, 4])), [0, 0.4, 0, 0.6], rtol=1e-6)
    everything = filters.keep(toy(), float(toy().max()), SamplingParams())
    np.testing.assert_allclose(everything.probabilities_of(np.arange(10)), TOY, rtol=1e-6)
