"""The CPU executor as its callers see it; that its numbers are right is tested in bits/ and golden/."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from tiny import TinyFile, TinyShape, tiny_llama

from ostinato.errors import InvalidRequestError, UnsupportedModelError
from ostinato.models import build_program
from ostinato.ops.batch import ForwardBatch
from ostinato.ops.cpu.executor import CpuExecutor
from ostinato.weights.quantize import FORMATS, quantized
from ostinato.weights.quants import Bytes

IDS = [3, 1, 4, 1, 5, 9, 2, 6]


def executor(file: TinyFile, threads: int = 2, simd: str | None = None) -> CpuExecutor:
    program = build_program(file)
    return CpuExecutor(program, file.tensors, num_blocks=4, threads=threads, max_batch_tokens=8, simd=simd)


@pytest.fixture
def made() -> Iterator[CpuExecutor]:
    executor_ = executor(tiny_llama())
    yield executor_
    executor_.close()


def whole(rows: list[int] | None = None) -> ForwardBatch:
    return ForwardBatch.single(IDS, 0, [2], rows)


def test_what_it_says_of_itself(made: CpuExecutor) -> None:
    assert (made.vocab_size, made.max_batch_tokens, made.num_blocks, made.threads) == (50, 8, 4, 2)


@pytest.mark.parametrize("rows", [[], [7], [0, 7], [7, 0, 7, 3, 3], list(range(8))])
def test_logits_of_any_rows(made: CpuExecutor, rows: list[int]) -> None:
    """In the order asked for, more than once where asked for; a step without any fills the cache."""
    every = made.forward(whole(list(range(8)))).copy()
    logits = made.forward(whole(rows))
    assert logits.shape == (len(rows), 50) and logits.dtype == np.float32
    np.testing.assert_array_equal(logits, every[rows])


def test_a_step_may_want_nothing(made: CpuExecutor) -> None:
    want = made.forward(whole()).copy()
    made.forward(ForwardBatch.single(IDS[:5], 0, [1], []))
    np.testing.assert_array_equal(made.forward(ForwardBatch.single(IDS[5:], 5, [1])), want)


def test_the_model_file_is_not_needed_any_more() -> None:
    file = tiny_llama()
    data = {name: tensor.data.copy() for name, tensor in file.tensors.items()}
    tensors = {name: type(t)(name, t.shape, t.type, data[name], t.offset) for name, t in file.tensors.items()}
    one = executor(TinyFile(file.metadata, tensors))
    before = one.forward(whole()).copy()
    for raw in data.values():
        raw[:] = 0xFF
    np.testing.assert_array_equal(one.forward(whole()), before)
    one.close()


class Watched:
    """Makes a tensor's bytes, and notes how many of those that were made are still in memory."""

    alive = 0
    most = 0

    def __init__(self, convert: Callable[[], Bytes]) -> None:
        self.convert = convert

    def __call__(self) -> Bytes:
        made = self.convert()
        Watched.alive += 1
        Watched.most = max(Watched.most, Watched.alive)
        weakref.finalize(made, self.forget)
        return made

    @staticmethod
    def forget() -> None:
        Watched.alive -= 1


@pytest.mark.parametrize("name", FORMATS)
def test_quantised_while_loading_is_as_quantised_before(name: str) -> None:
    """The same bits, and the bytes of one tensor at a time."""
    shape = TinyShape(type="F16", types={"down": "BF16", "embd": "Q8_0"})
    lazy = dict(quantized(tiny_llama(shape), FORMATS[name]).tensors)
    eager = {n: replace(t, data=t.load(), convert=None) for n, t in lazy.items()}
    assert sum(t.convert is not None for t in lazy.values()) == 15
    for tensor_name, tensor in lazy.items():
        if tensor.convert is not None:
            lazy[tensor_name] = replace(tensor, convert=Watched(tensor.convert))
    logits = []
    for tensors in (lazy, eager):
        one = executor(TinyFile(tiny_llama(shape).metadata, tensors))
        logits.append(one.forward(whole()).copy())
        one.close()
    np.testing.assert_array_equal(*logits)
    assert (Watched.most, Watched.alive) == (1, 0)


def test_two_models_side_by_side() -> None:
    files = [tiny_llama(seed=1), tiny_llama(TinyShape(type="Q8_0", layers=1), seed=2)]
    alone = list[NDArray[np.float32]]()
    for file in files:
        one = executor(file)
        alone.append(one.forward(whole()).copy())
        one.close()
    both = [executor(file) for file in files]
    for _ in range(20):
        for one, want in zip(both, alone, strict=True):
            np.testing.assert_array_equal(one.forward(whole()), want)
    for one in both:
        one.close()
        one.close()


def test_a_batch_that_is_too_long_is_refused(made: CpuExecutor) -> None:
    with pytest.raises(AssertionError):
        made.forward(ForwardBatch.single([1] * 9, 0, [0]))


def test_heads_without_kernels() -> None:
    file = tiny_llama(TinyShape(head_dim=24, type="F32"))
    with pytest.raises(UnsupportedModelError, match="heads of 24 dimensions"):
        executor(file)


def test_a_path_that_is_none() -> None:
    with pytest.raises(InvalidRequestError, match="no such path"):
        executor(tiny_llama(), simd="mmx")
