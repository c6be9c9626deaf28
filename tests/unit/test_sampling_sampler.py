"""The sampler as a whole: the order of its steps, its draws, what it reports and what it refuses."""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ostinato.errors import InvalidRequestError, NumericalError
from ostinato.sampling.params import SamplingParams
from ostinato.sampling.sampler import Sampler

Row = NDArray[np.float32]
INF = float("inf")
NAN = float("nan")
TOY = [0.15, 0.06, 0.10, 0.02, 0.30, 0.05, 0.01, 0.20, 0.03, 0.08]
FILTERED: dict[str, Any] = {"temperature": 0.8, "top_k": 6, "top_p": 0.9, "min_p": 0.05}


def row(*values: float) -> Row:
    """Logits that nobody may write to: a sampler that tried would raise."""
    logits = np.array(values, dtype=np.float32)
    logits.flags.writeable = False
    return logits


def toy() -> Row:
    return row(*np.log(TOY))


def sampler(
    size: int = 10, prompt: tuple[int, ...] = (), output: tuple[int, ...] = (), **params: Any
) -> Sampler:
    made = Sampler(SamplingParams(**{"seed": 1, **params}), size, prompt)
    for token_id in output:
        made.commit(token_id)
    return made


def distribution(made: Sampler, logits: Row, **options: Any) -> dict[int, float]:
    """The tokens that can be drawn, with their probabilities."""
    candidates = made.sample(logits, candidates=len(logits), **options).candidates
    return {c.token_id: c.probability for c in candidates if c.probability > 0}


def reference(
    logits: list[float], params: SamplingParams, prompt: list[int], output: list[int], banned: list[int]
) -> dict[int, float]:
    """The documented order, step by step, in plain Python."""
    row, seen = list(logits), prompt + output
    window = params.repetition_window
    for t in set(seen if window == -1 else seen[len(seen) - window :] if window < len(seen) else seen):
        row[t] = row[t] * params.repetition_penalty if row[t] < 0 else row[t] / params.repetition_penalty
    for t in set(output):
        row[t] -= params.presence_penalty + params.frequency_penalty * output.count(t)
    for t, bias in params.logit_bias.items():
        row[t] += bias
    for t in banned:
        row[t] = -INF
    kept = sorted((t for t in range(len(row)) if row[t] > -INF), key=lambda t: (-row[t], t))
    if params.temperature == 0:
        return {kept[0]: 1.0}
    weight = {t: math.exp((row[t] - row[kept[0]]) / params.temperature) for t in kept}
    if params.top_k > 0:
        kept = kept[: params.top_k]
    if params.top_p < 1:
        total, running = math.fsum(weight[t] for t in kept), 0.0
        for place, t in enumerate(kept):
            running += weight[t]
            if running >= params.top_p * total:
                kept = kept[: place + 1]
                break
    if params.min_p > 0:
        kept = [t for t in kept if weight[t] >= params.min_p * weight[kept[0]]]
    total = math.fsum(weight[t] for t in kept)
    return {t: weight[t] / total for t in kept}


token_lists = st.lists(st.integers(0, 7), max_size=6)
quarters = st.integers(-8, 8).map(lambda n: n / 4)
any_params = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.5, 1.0, 2.0]),
    top_k=st.sampled_from([-1, 0, 1, 2, 3, 5, 8, 100]),
    top_p=st.one_of(st.just(1.0), st.floats(0.05, 0.98)),
    min_p=st.one_of(st.just(0.0), st.floats(0.01, 0.98)),
    repetition_penalty=st.sampled_from([0.5, 1.0, 2.0]),
    repetition_window=st.integers(-1, 8),
    presence_penalty=quarters,
    frequency_penalty=quarters,
    logit_bias=st.dictionaries(st.integers(0, 7), quarters, max_size=3),
    seed=st.integers(0, 2**64 - 1),
)


@settings(derandomize=True, deadline=None, max_examples=500)
@given(
    params=any_params,
    logits=st.lists(st.integers(-16, 16).map(lambda n: n / 4), min_size=8, max_size=8),
    prompt=token_lists,
    output=token_lists,
    banned=st.lists(st.integers(0, 7), max_size=7),
)
def test_the_documented_order(
    params: SamplingParams, logits: list[float], prompt: list[int], output: list[int], banned: list[int]
) -> None:
    """Values are multiples of a quarter and penalties powers of two, so that float32 is exact."""
    made = Sampler(params, 8, prompt)
    for token_id in output:
        made.commit(token_id)
    found = distribution(made, row(*logits), banned=banned)
    expected = reference(logits, params, prompt, output, banned)
    assert found == pytest.approx(expected, rel=1e-12)
    assert sum(found.values()) == pytest.approx(1, abs=1e-12)
    choice = made.sample(row(*logits), banned=banned)
    assert choice.probability == pytest.approx(expected[choice.token_id], rel=1e-12)


# Each pair of neighbours in the order, with a result that the other order would not give.


def test_repetition_comes_before_presence() -> None:
    made = sampler(2, output=(0,), temperature=0, repetition_penalty=2, presence_penalty=1)
    assert made.sample(row(4.0, 1.25)).token_id == 1  # 4 / 2 - 1 = 1; the other way (4 - 1) / 2 = 1.5


def test_repetition_comes_before_bias() -> None:
    made = sampler(2, prompt=(0,), temperature=0, repetition_penalty=2, logit_bias={0: 3})
    assert made.sample(row(1.0, 3.0)).token_id == 0  # 1 / 2 + 3 = 3.5; the other way (1 + 3) / 2 = 2


def test_bans_come_after_bias() -> None:
    made = sampler(2, temperature=0, logit_bias={0: 100})
    assert made.sample(row(1.0, 0.0)).token_id == 0
    assert made.sample(row(1.0, 0.0), banned=[0]).token_id == 1
    assert made.sample(row(1.0, 0.0), allowed=np.array([False, True])).token_id == 1


def test_bans_come_before_filters() -> None:
    assert distribution(sampler(3, top_k=1), row(3.0, 2.0, 1.0), banned=[0]) == {1: 1.0}


def test_temperature_comes_before_top_p() -> None:
    assert set(distribution(sampler(top_p=0.45, temperature=2.0), toy())) == {4, 7, 0}
    assert set(distribution(sampler(top_p=0.45), toy())) == {4, 7}


def test_top_k_comes_before_top_p() -> None:
    # Of the best four top-p needs three; of all ten it would need five, and top-k would leave four.
    assert set(distribution(sampler(top_k=4, top_p=0.8), toy())) == {4, 7, 0}


def test_top_p_comes_before_min_p() -> None:
    # Top-p keeps five, of which three have 0.45 of the best one's 0.3. The other way, min-p would keep those
    # three, 0.65 in all, of which top-p would want 0.76 * 0.65 = 0.494: two.
    assert set(distribution(sampler(top_p=0.76, min_p=0.45), toy())) == {4, 7, 0}


def test_the_window_holds_the_newest_tokens() -> None:
    made = sampler(8, prompt=(5, 6, 7), temperature=0, repetition_penalty=4, repetition_window=2)
    logits = row(0, 0, 0, 0, 1, 3, 4, 4)
    assert made.sample(logits).token_id == 5
    made.commit(5)
    assert made.sample(logits).token_id == 6
    made.commit(6)
    assert made.sample(logits).token_id == 7


def test_window_zero_switches_the_penalty_off() -> None:
    made = sampler(2, prompt=(0,), output=(0,), temperature=0, repetition_penalty=9, repetition_window=0)
    assert made.sample(row(1.0, 0.9)).token_id == 0


def test_presence_and_frequency_ignore_the_prompt_and_repetition_does_not() -> None:
    logits = row(1.0, 0.9)
    penalties: list[dict[str, Any]] = [{"presence_penalty": 1}, {"frequency_penalty": 1}]
    for penalty in penalties:
        assert sampler(2, prompt=(0, 0), temperature=0, **penalty).sample(logits).token_id == 0
        assert sampler(2, output=(0,), temperature=0, **penalty).sample(logits).token_id == 1
    histories: list[dict[str, Any]] = [{"prompt": (0,)}, {"output": (0,)}]
    for history in histories:
        made = sampler(2, temperature=0, repetition_penalty=2, **history)
        assert made.sample(logits).token_id == 1


# Greedy


@pytest.mark.parametrize("params", [{"temperature": 0}, {"top_k": 1, "temperature": 2}, {"top_p": 0}])
def test_greedy_takes_the_lowest_id_of_equals(params: dict[str, Any]) -> None:
    for seed in range(20):
        choice = sampler(4, **params, seed=seed).sample(row(1.0, 3.0, 3.0, 2.0))
        assert (choice.token_id, choice.probability) == (1, 1.0)


@pytest.mark.parametrize("temperature", [0, 5e-324, 1e-300, 1e-9, 1e-4])
@pytest.mark.parametrize("banned", [[], [2]])
def test_tiny_temperatures_approach_the_arg_max(temperature: float, banned: list[int]) -> None:
    logits = row(-3e38, 1.0, 1.1, -INF, 1.09)
    for seed in range(20):
        choice = sampler(5, temperature=temperature, seed=seed).sample(logits, banned=banned, candidates=5)
        assert choice.token_id == (4 if banned else 2)
        assert all(math.isfinite(c.probability) and math.isfinite(c.logprob) for c in choice.candidates)


# The draw


@pytest.mark.parametrize(
    "params", [{}, FILTERED, {"temperature": 2.0}, {"min_p": 0.2}, {"top_k": 3}, {"top_p": 0.7}]
)
def test_draws_follow_the_distribution(params: dict[str, Any]) -> None:
    made, num_draws = sampler(**params, seed=2024), 6000
    expected = distribution(made, toy())
    counts: Counter[int] = Counter()
    for _ in range(num_draws):
        token_id = made.sample(toy()).token_id
        counts[token_id] += 1
        made.commit(token_id)
    assert set(counts) == set(expected)
    chi_square = sum((counts[t] - num_draws * p) ** 2 / (num_draws * p) for t, p in expected.items())
    assert chi_square < 27.9  # the 0.999 quantile for 9 degrees of freedom, the most there are here


def test_draws_over_a_whole_vocabulary_follow_the_distribution() -> None:
    size, num_draws = 20_000, 4000
    noise = np.random.default_rng(9).standard_normal(size).astype(np.float32)
    tenths = np.arange(size) * 10 // size
    probabilities = np.exp(noise.astype(np.float64)) / np.exp(noise.astype(np.float64)).sum()
    expected = np.bincount(tenths, probabilities) * num_draws
    made, counts = sampler(size, seed=77), np.zeros(10)
    for _ in range(num_draws):
        token_id = made.sample(noise).token_id
        counts[tenths[token_id]] += 1
        made.commit(token_id)
    assert ((counts - expected) ** 2 / expected).sum() < 27.9


def test_hot_sampling_with_nothing_else_is_varied() -> None:
    assert len({sampler(temperature=2, seed=seed).sample(toy()).token_id for seed in range(20)}) >= 6


def test_a_draw_depends_only_on_seed_and_index() -> None:
    def answer(made: Sampler, length: int) -> list[int]:
        tokens = []
        for _ in range(length):
            tokens.append(made.sample(toy()).token_id)
            made.commit(tokens[-1])
        return tokens

    params: dict[str, Any] = {"repetition_penalty": 1.2, "frequency_penalty": 0.3, "seed": 2**64 - 1}
    whole = answer(sampler(prompt=(1, 2), **params), 40)
    assert answer(sampler(prompt=(1, 2), **params), 40) == whole
    resumed = sampler(prompt=(1, 2), output=tuple(whole[:17]), **params)
    for _ in range(3):
        resumed.sample(toy(), candidates=3)  # looking changes nothing
    answer(sampler(seed=5), 3)  # nor does another request
    assert answer(resumed, 23) == whole[17:]
    assert answer(sampler(prompt=(1, 2), **{**params, "seed": 0}), 40) != whole


def test_without_a_seed_each_request_gets_its_own_and_tells_it() -> None:
    seeds = {Sampler(SamplingParams(), 10).seed for _ in range(10)}
    assert len(seeds) == 10 and all(0 <= seed < 2**64 for seed in seeds)
    assert Sampler(SamplingParams(seed=0), 10).seed == 0


# What is reported


@pytest.mark.parametrize("temperature", [0, 0.5, 1, 2])
@pytest.mark.parametrize("params", [{}, {"top_k": 2}, {"repetition_penalty": 2, "logit_bias": {4: -3}}])
def test_logprob_is_the_models_own_in_every_mode(temperature: float, params: dict[str, Any]) -> None:
    logits = row(*np.random.default_rng(1).standard_normal(10))
    exact = logits.astype(np.float64)
    exact = exact - np.log(np.exp(exact).sum())
    made = sampler(prompt=(4, 4), temperature=temperature, **params)
    assert made.sample(logits).logprob is None
    choice = made.sample(logits, logprob=True)
    assert choice.logprob == pytest.approx(exact[choice.token_id], abs=1e-12)
    assert choice.candidates == ()
    traced = made.sample(logits, candidates=5)
    assert traced.logprob == choice.logprob and traced.token_id == choice.token_id
    for candidate in traced.candidates:
        assert candidate.logprob == pytest.approx(exact[candidate.token_id], abs=1e-12)
        assert candidate.logprob <= 0
    assert sum(math.exp(c.logprob) for c in traced.candidates) <= 1 + 1e-12


def test_candidates_show_what_was_cut() -> None:
    choice = sampler(top_k=2, seed=3).sample(toy(), candidates=5)
    assert [c.token_id for c in choice.candidates] == [4, 7, 0, 2, 9]
    assert [c.probability for c in choice.candidates] == pytest.approx([0.6, 0.4, 0, 0, 0], rel=1e-6)
    assert [math.exp(c.logprob) for c in choice.candidates] == pytest.approx(
        [0.3, 0.2, 0.15, 0.1, 0.08], rel=1e-6
    )
    json.dumps([choice.logprob, *(c.logprob for c in choice.candidates)], allow_nan=False)


def test_candidates_are_ordered_after_penalties_and_never_banned() -> None:
    made = sampler(temperature=0, logit_bias={6: 50})
    choice = made.sample(toy(), candidates=3, banned=[4])
    assert [(c.token_id, c.probability) for c in choice.candidates] == [(6, 1.0), (7, 0.0), (0, 0.0)]
    assert math.exp(choice.candidates[0].logprob) == pytest.approx(0.01, rel=1e-6)
    allowed = np.zeros(10, dtype=np.bool_)
    allowed[[3, 8]] = True
    few = sampler().sample(toy(), candidates=100, allowed=allowed)
    assert [c.token_id for c in few.candidates] == [8, 3]
    assert [c.probability for c in few.candidates] == pytest.approx([0.6, 0.4], rel=1e-6)


# What is refused


BROKEN = [
    (row(1.0, NAN, 2.0), "hold 1 NaN among 3 values"),
    (row(NAN, NAN, NAN), "hold 3 NaN among 3 values"),
    (row(1.0, INF, 2.0), r"hold 1 \+inf among 3 values"),
    (row(INF, NAN, -INF), r"hold 1 NaN, 1 \+inf, 1 -inf among 3 values"),
    (row(-INF, -INF, -INF), "hold 3 -inf among 3 values"),
    (row(-INF, NAN, -INF), "hold 1 NaN, 2 -inf among 3 values"),
]
MODES = [
    {"temperature": 0},
    {},
    FILTERED,
    {"min_p": 0.5},
    {"repetition_penalty": 1.5, "logit_bias": {1: 1.0}},
]


@pytest.mark.parametrize("params", MODES)
@pytest.mark.parametrize("options", [{}, {"banned": [1]}, {"logprob": True, "candidates": 3}])
@pytest.mark.parametrize(("logits", "found"), BROKEN)
def test_broken_logits_are_named_and_leave_the_sampler_as_it_was(
    logits: Row, found: str, params: dict[str, Any], options: dict[str, Any]
) -> None:
    made, good = sampler(3, prompt=(1,), **params), row(0.5, 1.5, 0.0)
    before = made.sample(good, **options)
    with pytest.raises(NumericalError, match=f"^the model's logits {found}: no token can be chosen$"):
        made.sample(logits, **options)
    assert made.sample(good, **options) == before


@pytest.mark.parametrize("position", [0, 1, 500, 12_345, 48_991, 49_151])
@pytest.mark.parametrize("poison", [NAN, INF])
@pytest.mark.parametrize("params", [{"temperature": 0}, FILTERED])
def test_one_broken_value_is_found_anywhere_in_a_long_row(
    position: int, poison: float, params: dict[str, Any]
) -> None:
    logits = np.random.default_rng(4).standard_normal(49_152).astype(np.float32)
    logits[position] = poison
    with pytest.raises(NumericalError):
        sampler(49_152, **params).sample(logits)


@pytest.mark.parametrize("params", MODES)
def test_nothing_left_after_bans_is_an_error(params: dict[str, Any]) -> None:
    made = sampler(3, prompt=(1,), **params)
    with pytest.raises(NumericalError, match=r"^after penalties, bias and bans the logits hold 3 -inf"):
        made.sample(row(1.0, -INF, 2.0), banned=[0, 2])
    with pytest.raises(NumericalError, match=r"^after penalties, bias and bans the logits hold 3 -inf"):
        made.sample(row(1.0, 2.0, 3.0), allowed=np.zeros(3, dtype=np.bool_))


def test_overflow_in_the_penalty_is_an_error() -> None:
    made = sampler(2, prompt=(0,), repetition_penalty=0.01)
    with pytest.raises(NumericalError, match=r"^after penalties, bias and bans the logits hold 1 \+inf"):
        made.sample(row(3e38, 1.0))


@pytest.mark.parametrize("prompt", [(-1,), (3, 10), (2**40,)])
def test_prompt_outside_the_vocabulary_is_refused(prompt: tuple[int, ...]) -> None:
    with pytest.raises(InvalidRequestError, match="this model's tokens are 0 to 9") as caught:
        sampler(prompt=prompt)
    assert caught.value.param == "prompt"


def test_bias_outside_the_vocabulary_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="logit_bias names token 10"):
        sampler(logit_bias={10: 1.0})


def test_misuse_by_the_engine_is_caught() -> None:
    made = sampler(3)
    with pytest.raises(AssertionError, match=r"logits \(2,\) for 3 tokens"):
        made.sample(row(1.0, 2.0))
    with pytest.raises(AssertionError, match="logits float64"):
        made.sample(np.zeros(3))  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match="token 3 of 3"):
        made.commit(3)


@pytest.mark.parametrize("seed", range(20))
def test_any_allowed_combination_gives_a_token(seed: int) -> None:
    draw = np.random.default_rng(seed)
    made = sampler(
        5000,
        prompt=tuple(draw.integers(0, 5000, 50).tolist()),
        temperature=float(draw.choice([0, 1e-9, 0.7, 1, 100])),
        top_k=int(draw.choice([-1, 0, 1, 40, 4999, 2**31 - 1])),
        top_p=float(draw.choice([0, 1e-12, 0.5, 0.9999999999999999, 1])),
        min_p=float(draw.choice([0, 5e-324, 0.1, 1])),
        repetition_penalty=float(draw.choice([0.01, 1, 100])),
        presence_penalty=float(draw.choice([-2, 0, 2])),
        frequency_penalty=float(draw.choice([-2, 0, 2])),
        logit_bias={7: -100.0, 8: 100.0} if seed % 2 else {},
        seed=seed,
    )
    for _ in range(5):
        logits = (draw.standard_normal(5000) * draw.choice([0, 1, 1e4, 1e30])).astype(np.float32)
        choice = made.sample(logits, candidates=3, banned=[0])
        assert 0 < choice.token_id < 5000 and 0 < choice.probability <= 1
        made.commit(choice.token_id)
