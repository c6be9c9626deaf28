"""Zeroed memory for weights, buffers and KV blocks, touched lazily."""

from __future__ import annotations

import mmap

import numpy as np
from numpy.typing import NDArray

ALIGNMENT = 128

_PRIVATE = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
"""Shared memory, which is the default, would be one with a forked process's, and has no huge pages."""


class Arena:
    """A run of bytes handed out piece by piece; nothing is given back before the whole is.

    The system provides a page when it is first written, so a generous size costs nothing. `huge`: in huge
    pages, for memory that is written once and read at full speed ever after.
    """

    def __init__(self, num_bytes: int, huge: bool = False) -> None:
        self._map = mmap.mmap(-1, max(num_bytes, mmap.PAGESIZE), **_PRIVATE)
        if huge and hasattr(mmap, "MADV_HUGEPAGE"):
            self._map.madvise(mmap.MADV_HUGEPAGE)
        self.bytes: NDArray[np.uint8] = np.frombuffer(self._map, np.uint8)
        self.address: int = self.bytes.ctypes.data
        self._used = 0

    def take(self, num_bytes: int) -> int:
        """Return the address of the next free run of bytes, on a boundary of two cache lines."""
        start = self._used
        self._used = start + padded(num_bytes)
        assert self._used <= len(self.bytes), (self._used, len(self.bytes))
        return self.address + start

    def view(self, address: int, shape: tuple[int, ...], dtype: type[np.generic]) -> NDArray[np.generic]:
        """Return an array over memory of this arena, writable."""
        count = int(np.prod(shape)) * np.dtype(dtype).itemsize
        start = address - self.address
        return self.bytes[start : start + count].view(dtype).reshape(shape)


def padded(num_bytes: int) -> int:
    """Return the size rounded up to the alignment of the arena."""
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT
