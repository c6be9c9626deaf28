"""The counter-based generator: published answers, range, independence of its draws."""

from __future__ import annotations

import itertools

import pytest

from ostinato.sampling.philox import philox2x64, uniform

ONES = 2**64 - 1


@pytest.mark.parametrize(
    ("counter", "key", "answer"),
    [
        ((0, 0), 0, (0xCA00A0459843D731, 0x66C24222C9A845B5)),
        ((ONES, ONES), ONES, (0x65B021D60CD8310F, 0x4D02F3222F86DF20)),
        (
            (0x243F6A8885A308D3, 0x13198A2E03707344),
            0xA4093822299F31D0,
            (0x0A5E742C2997341C, 0xB0F883D38000DE5D),
        ),
    ],
)
def test_answers_published_with_random123(
    counter: tuple[int, int], key: int, answer: tuple[int, int]
) -> None:
    assert philox2x64(counter, key) == answer


def test_uniform_is_a_fraction_of_the_first_word() -> None:
    assert uniform(0, 0) == (0xCA00A0459843D731 >> 11) / 2**53


@pytest.mark.parametrize("seed", [0, 1, 42, ONES])
@pytest.mark.parametrize("index", [0, 1, ONES])
def test_uniform_lies_in_the_unit_interval(seed: int, index: int) -> None:
    assert 0 <= uniform(seed, index) < 1


@pytest.mark.parametrize("vary", ["seed", "index"])
def test_neighbours_are_spread_evenly(vary: str) -> None:
    draws = [uniform(7, i) if vary == "index" else uniform(i, 7) for i in range(16_000)]
    counts = [0] * 16
    for draw in draws:
        counts[int(draw * 16)] += 1
    chi_square = sum((count - 1000) ** 2 / 1000 for count in counts)
    assert chi_square < 37.7  # the 0.999 quantile for 15 degrees of freedom
    covariance = sum((a - 0.5) * (b - 0.5) for a, b in itertools.pairwise(draws)) / len(draws)
    assert abs(covariance) < 4 / 12 / len(draws) ** 0.5
