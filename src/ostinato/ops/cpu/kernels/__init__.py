"""The kernels, in Python. Importing this package registers them; nothing is compiled."""

from __future__ import annotations

from ostinato.ops.cpu.kernels import attention, common, experts, kv, matmul, measure, pack, rows, team
from ostinato.ops.cpu.kernels.attention import find

__all__ = ["attention", "common", "experts", "find", "kv", "matmul", "measure", "pack", "rows", "team"]
