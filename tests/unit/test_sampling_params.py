"""What a request may ask for: defaults, ranges, messages."""

from __future__ import annotations

import dataclasses
import itertools
import math
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ostinato.errors import InvalidRequestError
from ostinato.sampling.params import SamplingParams

FIELDS = {field.name: field for field in dataclasses.fields(SamplingParams)}
NUMBERS = [name for name in FIELDS if name != "logit_bias"]
WHOLE_NUMBERS = ["top_k", "repetition_window", "seed"]
NOT_NUMBERS: list[Any] = [True, False, "x", "1", b"1", [1], {}, 1j, object()]

BAD = [
    *[(name, value) for name in NUMBERS for value in NOT_NUMBERS],
    *[(name, value) for name in NUMBERS for value in (math.nan, math.inf, -math.inf, 1e308, -1e308)],
    *[(name, value) for name in NUMBERS for value in (10**400, -(10**400), 10**6000)],
    *[(name, None) for name in NUMBERS if name != "seed"],
    *[(name, value) for name in WHOLE_NUMBERS for value in (1.0, 1.5, 40.0)],
    *[("temperature", value) for value in (-1, -1e-9, 1e6, 100.1)],
    *[("top_k", value) for value in (-2, -5, 10**12)],
    *[("top_p", value) for value in (-1, -0.01, 1.01, 2)],
    *[("min_p", value) for value in (-0.1, 2)],
    *[("repetition_penalty", value) for value in (0, -1, 1e-9, 101)],
    *[("repetition_window", value) for value in (-2, 2**31)],
    *[("presence_penalty", value) for value in (-2.1, 3)],
    *[("frequency_penalty", value) for value in (-2.1, 3)],
    *[("seed", value) for value in (-1, 2**64, 2**70)],
    *[("logit_bias", value) for value in (None, 1, "5", [(5, 1.0)], True)],
    *[("logit_bias", {key: 1.0}) for key in (-1, "abc", "5", 1.0, True, None)],
    *[("logit_bias", {5: value}) for value in (math.nan, math.inf, 101, -100.5, "1", None, True)],
]


def ids(case: tuple[str, Any]) -> str:
    name, value = case
    size = f"{value.bit_length()}bits" if isinstance(value, int) else str(value)[:12]
    return f"{name}-{type(value).__name__}-{size}"


@pytest.mark.parametrize("case", BAD, ids=ids)
def test_bad_value_is_refused_by_name_in_one_short_line(case: tuple[str, Any]) -> None:
    name, value = case
    with pytest.raises(InvalidRequestError) as caught:
        SamplingParams(**{name: value})
    message = str(caught.value)
    assert caught.value.param == name
    assert message.startswith(name) and "allowed: " in message
    assert "\n" not in message and len(message) < 160


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("temperature", -1, "temperature is -1; allowed: a number from 0 to 100"),
        ("temperature", math.nan, "temperature is nan; allowed: a number from 0 to 100"),
        ("top_k", -5, "top_k is -5; allowed: an integer from -1 to 2147483647"),
        ("top_k", 40.0, "top_k is 40.0; allowed: an integer from -1 to 2147483647"),
        ("top_p", "high\n", "top_p is 'high\\n'; allowed: a number from 0 to 1"),
        ("min_p", [1], "min_p is of type list; allowed: a number from 0 to 1"),
        ("seed", 2**70, f"seed is {2**70}; allowed: an integer from 0 to {2**64 - 1}"),
        ("seed", 1 << 20_000, f"seed is an integer of 20001 bits; allowed: an integer from 0 to {2**64 - 1}"),
        ("logit_bias", {7: 101}, "logit_bias of token 7 is 101; allowed: a number from -100 to 100"),
    ],
    ids=itertools.count(),
)
def test_message_says_the_value_and_the_range(name: str, value: Any, message: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        SamplingParams(**{name: value})
    assert str(caught.value) == message


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("end", ["low", "high"])
def test_both_ends_of_each_range_are_allowed(name: str, end: str) -> None:
    value = FIELDS[name].metadata[end]
    assert getattr(SamplingParams(**{name: value}), name) == value


def test_defaults_are_the_models_own_distribution() -> None:
    assert dataclasses.asdict(SamplingParams()) == {
        "temperature": 1.0,
        "top_k": 0,
        "top_p": 1.0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "repetition_window": -1,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "logit_bias": {},
        "seed": None,
    }
    params = SamplingParams()
    assert not (params.is_greedy or params.penalizes_repetition or params.penalizes_output)


def test_switches() -> None:
    for greedy in ({"temperature": 0}, {"top_k": 1}, {"top_p": 0}):
        assert SamplingParams(**greedy).is_greedy  # type: ignore[arg-type]
    assert SamplingParams(repetition_penalty=1.1).penalizes_repetition
    assert not SamplingParams(repetition_penalty=1.1, repetition_window=0).penalizes_repetition
    assert SamplingParams(presence_penalty=-1).penalizes_output
    assert SamplingParams(frequency_penalty=1).penalizes_output


def test_numbers_are_stored_as_their_annotation_says() -> None:
    params = SamplingParams(temperature=1, top_p=1, logit_bias={3: -4})
    assert type(params.temperature) is float and type(params.top_p) is float
    assert type(params.logit_bias[3]) is float


def test_is_a_value() -> None:
    bias = {1: 2.0}
    params = SamplingParams(logit_bias=bias, seed=2**64 - 1)
    bias[1] = 3.0
    assert params.logit_bias == {1: 2.0}
    assert pickle.loads(pickle.dumps(params)) == params
    assert dataclasses.replace(params) == params and hash(dataclasses.replace(params)) == hash(params)
    with pytest.raises(dataclasses.FrozenInstanceError):
        params.seed = 1  # type: ignore[misc]


@pytest.mark.parametrize("token_id", [10, 2**40, 1 << 20_000], ids=["10", "40bits", "20001bits"])
def test_bias_outside_the_vocabulary_is_refused_once_the_model_is_known(token_id: int) -> None:
    params = SamplingParams(logit_bias={token_id: 1.0})
    with pytest.raises(InvalidRequestError, match=r"allowed: token ids from 0 to 9$") as caught:
        params.validate_for(10)
    assert caught.value.param == "logit_bias" and len(str(caught.value)) < 160
    SamplingParams(logit_bias={0: 1.0, 9: -1.0}).validate_for(10)


def test_every_field_explains_itself() -> None:
    for field in FIELDS.values():
        assert field.metadata["help"]


def test_the_documented_table_is_the_code() -> None:
    text = (Path(__file__).parents[2] / "docs" / "sampling.md").read_text(encoding="utf-8")
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| `")]
    documented = {row[0].strip("|` "): (row[1], row[2]) for row in rows}
    assert list(documented) == list(FIELDS)
    for name in NUMBERS:
        low, high = (
            end if isinstance(end, int) else f"{end:g}"
            for end in (FIELDS[name].metadata["low"], FIELDS[name].metadata["high"])
        )
        assert documented[name] == (str(FIELDS[name].default), f"{low} to {high}")


@pytest.mark.parametrize(
    ("module", "unwanted"), [("params", ["numpy", "numba"]), ("sampler", ["numba", "scipy"])]
)
def test_start_up_stays_light(module: str, unwanted: list[str]) -> None:
    code = f"import sys, ostinato.sampling.{module}; sys.exit(any(m in sys.modules for m in {unwanted!r}))"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
