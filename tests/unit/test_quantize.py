"""Quantising while loading: the bits of the `gguf` package, one tensor at a time, float matrices only."""

from __future__ import annotations

import tracemalloc
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf import quants as oracle
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from tiny import TYPES, TinyFile, random_tensor

from ostinato.errors import InvalidRequestError, ModelFileError
from ostinato.weights.quantize import FORMATS, format_named, quantized
from ostinato.weights.quants import Floats
from ostinato.weights.tensors import Tensor

FLOATS = ("F32", "F16", "BF16")
formats = pytest.mark.parametrize("name", FORMATS)


def file_of(*tensors: Tensor) -> TinyFile:
    return TinyFile({"general.architecture": "llama"}, {tensor.name: tensor for tensor in tensors})


def stored(numbers: Floats, type_name: str = "F32") -> Tensor:
    data = oracle.quantize(numbers, GGMLQuantizationType[type_name]).view(np.uint8).reshape(-1)
    return Tensor("w", numbers.shape, TYPES[type_name], data, 0)


def assert_as_the_oracle(tensor: Tensor, name: str) -> None:
    made = quantized(file_of(tensor), format_named(name)).tensors[tensor.name]
    assert (made.type.name.lower(), made.shape, made.name) == (name, tensor.shape, tensor.name)
    with np.errstate(all="ignore"):
        expected = oracle.quantize(tensor.dequantize(), GGMLQuantizationType[made.type.name]).reshape(-1)
    found = made.load()
    assert found.nbytes == made.nbytes
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(made.dequantize(), made.type.dequantize(found, tensor.shape))


@formats
@pytest.mark.parametrize("type_name", FLOATS)
@pytest.mark.parametrize("shape", [(1, 32), (7, 96), (300, 288), (3, 5, 64)], ids=str)
def test_bits_of_the_oracle(name: str, type_name: str, shape: tuple[int, ...]) -> None:
    assert_as_the_oracle(random_tensor("w", type_name, shape, np.random.default_rng(sum(shape)), 0.3), name)


@formats
@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    numbers=arrays.arrays(
        np.float32, (2, 32), elements=st.floats(-60000, 60000, width=32), fill=st.sampled_from([0.0, -1.5])
    )
)
def test_bits_of_the_oracle_on_any_numbers(name: str, numbers: Floats) -> None:
    assert_as_the_oracle(stored(numbers), name)


@formats
@pytest.mark.parametrize("number", [0.0, -0.0, 1.0, -3.25, 1e-30, 1e-45, 65504.0, -65504.0])
def test_equal_numbers(name: str, number: float) -> None:
    assert_as_the_oracle(stored(np.full((2, 32), number, np.float32)), name)


def test_halves_round_away_from_zero() -> None:
    numbers = np.array([127, *(i + 0.5 for i in range(-16, 15))], np.float32).reshape(1, 32)
    quants = quantized(file_of(stored(numbers)), FORMATS["q8_0"]).tensors["w"].load()[2:].view(np.int8)
    assert quants.tolist() == [127, *range(-16, 0), *range(1, 16)]


@formats
def test_only_float_matrices_of_whole_blocks(name: str) -> None:
    rng = np.random.default_rng(1)
    shapes = {"matrix": (4, 64), "experts": (2, 4, 32), "vector": (64,), "narrow": (4, 48)}
    tensors = [random_tensor(part, "F16", shape, rng) for part, shape in shapes.items()]
    tensors.append(random_tensor("quantised", "Q5_0", (4, 64), rng))
    made = quantized(file_of(*tensors), format_named(name)).tensors
    assert list(made) == [tensor.name for tensor in tensors]
    changed = {part for part, tensor in made.items() if tensor.type.name.lower() == name}
    assert changed == {"matrix", "experts"}
    for tensor in tensors:
        assert made[tensor.name] is tensor or tensor.name in changed
        np.testing.assert_array_equal(tensor.load(), tensor.data)


@formats
@pytest.mark.parametrize("number", [np.inf, -np.inf, np.nan, 3e38, -1e8])
def test_numbers_that_do_not_fit_are_refused(name: str, number: float) -> None:
    numbers = np.ones((3, 64), np.float32)
    numbers[1, 40] = number
    made = quantized(file_of(stored(numbers)), format_named(name)).tensors["w"]
    with pytest.raises(
        ModelFileError, match=f"tensor 'w' cannot be quantised to {name}: it has numbers that"
    ):
        made.load()


def test_a_name_of_no_format() -> None:
    with pytest.raises(InvalidRequestError, match=r"quantize is 'q5_1'; allowed: q8_0, q4_1") as caught:
        format_named("q5_1")
    assert caught.value.param == "quantize"


def test_nothing_to_quantise() -> None:
    rng = np.random.default_rng(0)
    tensors = [random_tensor(kind, kind, (2, 32), rng) for kind in ("Q8_0", "Q4_1")]
    with pytest.raises(InvalidRequestError) as caught:
        quantized(file_of(*tensors), FORMATS["q8_0"])
    assert str(caught.value) == (
        "quantize is q8_0, but tiny.gguf has no matrices of floats: its tensors are Q4_1, Q8_0; leave it out"
    )


@formats
def test_memory_is_that_of_one_tensor(name: str) -> None:
    """Nothing is made ahead, and beside the tensor that is made there are only pieces."""
    shape = (1024, 1024)
    one = stored(np.ones(shape, np.float32), "F16")
    tensors: Mapping[str, Tensor] = {str(i): one for i in range(8)}
    tracemalloc.start()
    try:
        made = quantized(TinyFile({}, tensors, Path("m")), format_named(name)).tensors
        assert tracemalloc.get_traced_memory()[0] < 2**16
        for tensor in made.values():
            assert tensor.load().nbytes == tensor.nbytes
        assert tracemalloc.get_traced_memory()[1] < made["0"].nbytes + 2**21
        assert tracemalloc.get_traced_memory()[0] < 2**16
    finally:
        tracemalloc.stop()
