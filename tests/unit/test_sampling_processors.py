"""Changes to logits: exact arithmetic on few tokens."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from ostinato.sampling import processors

INF = float("inf")


def row(*values: float) -> NDArray[np.float32]:
    return np.array(values, dtype=np.float32)


def ids(*values: int) -> NDArray[np.int64]:
    return np.array(values, dtype=np.int64)


def test_repetition_divides_positive_and_multiplies_negative_logits() -> None:
    logits = row(-1.0, 2.0, 0.5)
    processors.penalize_repetition(logits, ids(0, 1), 1.5)
    assert logits.tolist() == row(-1.5, 2.0 / 1.5, 0.5).tolist()


@pytest.mark.parametrize("penalty", [0.5, 1.0, 1.1, 2.0])
def test_repetition_above_one_never_rewards(penalty: float) -> None:
    before = row(-3.0, -0.0, 0.0, 1e-30, 5.0)
    after = before.copy()
    processors.penalize_repetition(after, ids(0, 1, 2, 3, 4), penalty)
    assert np.all(after <= before) if penalty >= 1 else np.all(after >= before)


def test_repetition_overflows_to_infinity_without_a_warning() -> None:
    logits = row(3e38, -3e38, 1.0)
    processors.penalize_repetition(logits, ids(0, 1), 0.01)
    assert logits.tolist() == row(INF, -3e36, 1.0).tolist()


def test_presence_counts_once_and_frequency_every_time() -> None:
    logits = row(1.0, 1.0, 1.0, -1.0)
    processors.penalize_output(logits, ids(3, 1), ids(1, 4), presence=0.5, frequency=0.25)
    assert logits.tolist() == [1.0, -0.5, 1.0, -1.75]


def test_bias_is_added() -> None:
    logits = row(1.0, 2.0, 3.0)
    processors.add_bias(logits, ids(2, 0), row(-100.0, 0.5))
    assert logits.tolist() == [1.5, 2.0, -97.0]


def test_bans_and_mask() -> None:
    logits = row(1.0, 2.0, 3.0, 4.0)
    processors.ban(logits, [3, 1])
    assert logits.tolist() == [1.0, -INF, 3.0, -INF]
    processors.allow_only(logits, np.array([False, True, True, False]))
    assert logits.tolist() == [-INF, -INF, 3.0, -INF]


def test_nothing_to_do_changes_nothing() -> None:
    logits = row(1.0, -2.0)
    processors.penalize_repetition(logits, ids(), 2.0)
    processors.penalize_output(logits, ids(), ids(), 1.0, 1.0)
    processors.add_bias(logits, ids(), row())
    processors.ban(logits, [])
    processors.allow_only(logits, np.ones(2, dtype=np.bool_))
    assert logits.tolist() == [1.0, -2.0]


def test_a_forbidden_token_stays_forbidden() -> None:
    logits = row(-INF, 1.0)
    processors.penalize_repetition(logits, ids(0), 0.5)
    processors.penalize_output(logits, ids(0), ids(3), -2.0, -2.0)
    processors.add_bias(logits, ids(0), row(100.0))
    assert logits.tolist() == [-INF, 1.0]


def test_negative_ids_do_not_wrap_around() -> None:
    with pytest.raises(AssertionError, match=r"banned ids \[1, -1\]"):
        processors.ban(row(1.0, 2.0), [1, -1])


def test_a_mask_of_another_length_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(AssertionError, match="mask"):
        processors.allow_only(row(1.0, 2.0), np.ones(1, dtype=np.bool_))
