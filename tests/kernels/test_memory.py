"""Kernels stay within their operands."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from harness import PATHS

SCRIPT = Path(__file__).with_name("guard_pages.py")


@pytest.mark.skipif(sys.platform != "linux", reason="protects pages of memory")
@pytest.mark.parametrize("simd", PATHS)
def test_nothing_beside_an_operand_is_touched(simd: str) -> None:
    """Neither of weights, buffers, KV blocks and tables, nor of the model file; else the script dies."""
    command = [sys.executable, "-X", "faulthandler", str(SCRIPT), simd]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
