"""Ostinato: a language-model runtime in pure Python, and a laboratory for its latency and price.

    import ostinato
    with ostinato.load("smollm2") as model:
        print(model.chat([{"role": "user", "content": "Hello!"}]).text)

Importing this loads nothing else; each name is fetched when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ostinato.answer import Completion, Piece
    from ostinato.card import ModelCard, describe
    from ostinato.errors import OstinatoError
    from ostinato.inventory import KernelCache, KnownModel, kernel_cache, known_models
    from ostinato.model import Model, load
    from ostinato.ops.cpu.machine import Machine, measure_machine
    from ostinato.options import Options
    from ostinato.sampling.params import SamplingParams
    from ostinato.stream import Stream
    from ostinato.telemetry.timings import Timings, Usage

__version__ = "0.1.0"

_HOME = {
    "Completion": "answer",
    "KernelCache": "inventory",
    "KnownModel": "inventory",
    "Machine": "ops.cpu.machine",
    "Model": "model",
    "ModelCard": "card",
    "Options": "options",
    "OstinatoError": "errors",
    "Piece": "answer",
    "SamplingParams": "sampling.params",
    "Stream": "stream",
    "Timings": "telemetry.timings",
    "Usage": "telemetry.timings",
    "describe": "card",
    "kernel_cache": "inventory",
    "known_models": "inventory",
    "load": "model",
    "measure_machine": "ops.cpu.machine",
}

__all__ = [
    "Completion",
    "KernelCache",
    "KnownModel",
    "Machine",
    "Model",
    "ModelCard",
    "Options",
    "OstinatoError",
    "Piece",
    "SamplingParams",
    "Stream",
    "Timings",
    "Usage",
    "describe",
    "kernel_cache",
    "known_models",
    "load",
    "measure_machine",
]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'ostinato' has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(f"ostinato.{_HOME[name]}"), name)
    globals()[name] = value
    return value
