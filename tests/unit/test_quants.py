"""Dequantising gives the bits of the `gguf` package, whatever the bytes; sizes agree with its table."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf import quants as oracle

from ostinato.errors import UnsupportedModelError
from ostinato.weights.quants import TENSOR_TYPES, Bytes, Floats, TensorType
from ostinato.weights.tensors import Tensor

SUPPORTED = [known for known in TENSOR_TYPES.values() if known.is_supported]
SHAPES = [(1,), (1, 1), (3, 2), (7, 3), (5, 3, 1), (2, 1, 3, 2)]
"""The last axis in blocks."""
BUILT = "F32 F16 BF16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL IQ4_XS MXFP4"
SCALES_AT = {"Q2_K": 80, "Q3_K": 108, "Q6_K": 208}
"""Where a block's float16 numbers begin, if not at its start."""
ODD_FLOAT16 = np.array(
    [0x0000, 0x8000, 0x0001, 0x83FF, 0x7BFF, 0x7C00, 0xFC00, 0x7E00, 0x7C01, 0xFFFF], "<u2"
)
"""Both zeros, subnormals, the largest, both infinities, quiet and signalling NaN."""


def named(name: str) -> TensorType:
    (found,) = (known for known in TENSOR_TYPES.values() if known.name == name)
    return found


def in_elements(shape: tuple[int, ...], tensor_type: TensorType) -> tuple[int, ...]:
    """Return a shape of whole rows of blocks, at least 32 elements each."""
    return (*shape[:-1], shape[-1] * max(tensor_type.block_size, 32))


def assert_same_bits(data: Bytes, shape: tuple[int, ...], tensor_type: TensorType) -> None:
    got = tensor_type.dequantize(data, shape)
    rows = data.reshape(-1, tensor_type.num_bytes(shape[-1:]))
    with np.errstate(invalid="ignore", over="ignore"):
        expected = oracle.dequantize(rows, GGMLQuantizationType(tensor_type.id)).reshape(shape)
    assert got.dtype == np.float32 and got.shape == shape
    np.testing.assert_array_equal(got.view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("tensor_type", SUPPORTED, ids=lambda known: known.name)
def test_random_bytes_give_the_bits_of_the_oracle(tensor_type: TensorType, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(sum(shape))
    shape = in_elements(shape, tensor_type)
    for _ in range(5):
        data = rng.integers(0, 256, tensor_type.num_bytes(shape), dtype=np.uint8)
        assert_same_bits(data, shape, tensor_type)


@pytest.mark.parametrize("tensor_type", SUPPORTED, ids=lambda known: known.name)
def test_special_numbers_give_the_bits_of_the_oracle(tensor_type: TensorType) -> None:
    """Every pair of odd half-precision numbers, where a block has its scale and minimum."""
    pairs = np.array(np.meshgrid(ODD_FLOAT16, ODD_FLOAT16)).reshape(2, -1).T
    shape = (len(pairs), tensor_type.block_size * 4)
    data = np.arange(tensor_type.num_bytes(shape), dtype=np.uint32).astype(np.uint8)
    blocks = data.reshape(-1, max(tensor_type.block_bytes, 4))
    begin = SCALES_AT.get(tensor_type.name, 0)
    odd = np.resize(pairs, (len(blocks), 2)).view(np.uint8)[:, : blocks.shape[1] - begin]
    blocks[:, begin : begin + 4] = odd
    assert_same_bits(data, shape, tensor_type)


@pytest.mark.parametrize("tensor_type", SUPPORTED, ids=lambda known: known.name)
def test_every_byte_in_every_place_gives_the_bits_of_the_oracle(tensor_type: TensorType) -> None:
    """Of a block, each byte in turn takes every value: scales, exponents and their parts at all extremes."""
    size = tensor_type.block_bytes
    blocks = np.random.default_rng(11).integers(0, 256, (size, 256, size), dtype=np.uint8)
    for place in range(size):
        blocks[place, :, place] = np.arange(256)
    assert_same_bits(blocks.reshape(-1), (size, 256 * tensor_type.block_size), tensor_type)


def test_decoding_takes_little_memory_beside_the_result() -> None:
    for tensor_type in SUPPORTED:
        shape = (2048, 1024)
        data = np.zeros(tensor_type.num_bytes(shape), np.uint8)
        tracemalloc.start()
        result = tensor_type.dequantize(data, shape)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < result.nbytes + 2**21, tensor_type.name


def test_quantised_numbers_come_back_near() -> None:
    rng = np.random.default_rng(7)
    numbers = rng.normal(size=(9, 128)).astype(np.float32)
    bounds = {"F32": 0.0, "F16": 2e-3, "BF16": 2e-2, "Q8_0": 2e-2, "Q4_0": 0.4, "Q4_1": 0.3}
    bounds |= {"Q5_0": 0.2, "Q5_1": 0.15, "MXFP4": 1.0}
    for tensor_type in map(named, bounds):
        data = oracle.quantize(numbers, GGMLQuantizationType(tensor_type.id)).view(np.uint8).reshape(-1)
        error = np.abs(tensor_type.dequantize(data, numbers.shape) - numbers).max()
        assert error <= bounds[tensor_type.name], tensor_type.name


@pytest.mark.parametrize("tensor_type", SUPPORTED, ids=lambda known: known.name)
def test_result_is_new_and_bytes_may_lie_anywhere(tensor_type: TensorType) -> None:
    shape = in_elements((3, 1), tensor_type)
    memory = np.random.default_rng(3).integers(0, 256, tensor_type.num_bytes(shape) + 1, dtype=np.uint8)
    memory.flags.writeable = False
    unaligned = memory[1:]
    assert_same_bits(unaligned, shape, tensor_type)
    result = tensor_type.dequantize(unaligned, shape)
    assert result.flags.writeable and result.flags.c_contiguous and result.flags.aligned
    assert not np.shares_memory(result, memory)


def test_sizes_agree_with_the_oracle() -> None:
    for oracle_type, (block_size, block_bytes) in GGML_QUANT_SIZES.items():
        known = TENSOR_TYPES[int(oracle_type)]
        assert (known.name, known.block_size, known.block_bytes) == (
            oracle_type.name,
            block_size,
            block_bytes,
        )


def test_table_is_keyed_by_id_and_names_are_unique() -> None:
    assert all(TENSOR_TYPES[known.id] is known for known in TENSOR_TYPES.values())
    assert len({known.name for known in TENSOR_TYPES.values()}) == len(TENSOR_TYPES)
    assert {known.name for known in SUPPORTED} == set(BUILT.split())


def test_num_bytes() -> None:
    assert named("Q4_1").num_bytes((3, 64)) == 3 * 2 * 20
    assert named("F16").num_bytes((5, 7)) == 70


def test_unsupported_type_is_named_with_the_tensor_and_the_supported_types() -> None:
    tensor_type = TensorType("Q9_X", 99, 32, 18)
    tensor = Tensor("blk.0.attn_q.weight", (1, 32), tensor_type, np.zeros(18, np.uint8), 0)
    with pytest.raises(UnsupportedModelError) as caught:
        tensor.dequantize()
    message = str(caught.value)
    assert "'blk.0.attn_q.weight'" in message and "Q9_X" in message and "\n" not in message
    assert all(known.name in message for known in SUPPORTED)
    with pytest.raises(UnsupportedModelError, match="Q9_X"):
        tensor_type.dequantize(tensor.data, (1, 32))


@pytest.mark.parametrize(
    ("num_bytes", "shape"), [(17, (1, 32)), (19, (1, 32)), (18, (2, 32)), (18, (2, 16)), (18, (1, 33))]
)
def test_bytes_and_shape_must_agree(num_bytes: int, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="Q4_0"):
        named("Q4_0").dequantize(np.zeros(num_bytes, np.uint8), shape)


def test_tensor_says_its_sizes_and_not_its_bytes() -> None:
    tensor = Tensor("w", (2, 32), named("Q8_0"), np.zeros(68, np.uint8), 64)
    assert (tensor.num_elements, tensor.nbytes, tensor.offset) == (64, 68, 64)
    assert "data" not in repr(tensor)
    floats: Floats = tensor.dequantize()
    assert floats.shape == (2, 32) and not floats.any()
