"""The processor this process runs on: which instructions it has, and how many cores are ours.

Nothing here compiles or measures. `target()` decides which of the three paths kernels are compiled for.
"""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal, get_args

from ostinato.errors import InvalidRequestError

Simd = Literal["avx512", "avx2", "neon", "generic"]

_NEEDS: dict[Simd, tuple[str, ...]] = {
    "avx512": ("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512vnni", "fma", "f16c"),
    "avx2": ("avx2", "fma", "f16c"),
    "neon": ("neon", "dotprod"),
    "generic": (),
}
"""What a path asks of the processor. `neon`: of a 64-bit ARM processor."""


@dataclass(frozen=True, slots=True)
class Target:
    """What kernels are compiled for.

    `cpu` and `features` are LLVM's names; `fma`: whether one rounding per fma is to be had; `triple`: LLVM's
    name of another kind of machine, empty for this one.
    """

    simd: Simd
    cpu: str
    features: str
    fma: bool
    triple: str = ""

    @property
    def is_x86(self) -> bool:
        """Whether this is an x86 processor."""
        return self.triple.startswith("x86") if self.triple else is_x86()


def available() -> list[Simd]:
    """Return the paths this processor can run, best first."""
    present = _host_features()
    return [simd for simd, needed in _NEEDS.items() if present.issuperset(needed)]


def target(asked: str | None = None) -> Target:
    """Return the path of this name, or the one that `OSTINATO_SIMD` names, or the best of this processor.

    Raises:
        InvalidRequestError: there is no such path, or this processor cannot run it.
    """
    asked = asked or os.environ.get("OSTINATO_SIMD") or None
    choice = available()
    if asked is None:
        return _target(choice[0])
    for simd in choice:
        if simd == asked:
            return _target(simd)
    reason = "this processor lacks it" if asked in get_args(Simd) else "there is no such path"
    raise InvalidRequestError(
        f"OSTINATO_SIMD is {asked!r}: {reason}; available here: {', '.join(choice)}", "OSTINATO_SIMD"
    )


@cache
def _target(simd: Simd) -> Target:
    import llvmlite.binding as llvm

    if simd == "avx512":
        return Target(simd, llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten(), fma=True)
    if simd == "avx2":
        return Target(simd, "x86-64-v3", "", fma=True)
    if is_x86():
        return Target(simd, "x86-64", "", fma=False)
    return Target(simd, llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten(), fma=True)


def arm_target(cpu: str) -> Target:
    """Return what to compile for an ARM processor with dot products of bytes, by LLVM's name of it."""
    return Target("neon", cpu, "+neon,+dotprod", fma=True, triple="aarch64-unknown-linux-gnu")


@cache
def _host_features() -> frozenset[str]:
    import llvmlite.binding as llvm

    return frozenset(name for name, present in llvm.get_host_cpu_features().items() if present)


def is_x86() -> bool:
    """Return whether this is an x86 processor."""
    return platform.machine().lower() in ("x86_64", "amd64", "i386", "i686")


def processor_name() -> str:
    """Return the processor's name for people, as far as the system tells."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def usable_cpus() -> list[int]:
    """Return the logical processors this process may run on: all, where there is no affinity."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def usable_cores() -> int:
    """Return how many threads can compute at once: physical cores, within affinity and cgroup quota."""
    cores = {_core_of(cpu) for cpu in usable_cpus()}
    quota = _cgroup_quota()
    return max(1, len(cores) if quota is None else min(len(cores), int(quota)))


def _core_of(cpu: int) -> str:
    siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
    try:
        return siblings.read_text().strip()
    except OSError:
        return str(cpu)


def _cgroup_quota() -> float | None:
    """Return the processors that cgroup v2, or v1, allows; None without a limit."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        pass
    try:
        quota_us = int(Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us").read_text())
        period_us = int(Path("/sys/fs/cgroup/cpu/cpu.cfs_period_us").read_text())
        return None if quota_us <= 0 else quota_us / period_us
    except (OSError, ValueError):
        return None
