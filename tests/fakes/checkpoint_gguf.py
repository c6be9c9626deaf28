"""A GGUF file of a safetensors folder, laid out as llama.cpp's converter does it."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from numpy.typing import NDArray

from fakes.tiny_gguf import add_key
from ostinato.weights.tensors import ModelFile, Tensor

PAIRED = {"llama", "granite", "smollm3"}
"""Architectures whose query and key rows GGUF stores as rotary pairs, biases too."""

_EXPERT = re.compile(r"(blk\.\d+\.ffn_\w+)\.(\d+)\.weight")


def write_gguf(file: ModelFile, path: Path) -> Path:
    """Write an open folder as GGUF."""
    name = str(file.metadata["general.architecture"])
    writer = GGUFWriter(path, name)
    metadata, tensors = dict(file.metadata), dict(file.tensors)
    heads = {"q": metadata[f"{name}.attention.head_count"], "k": metadata[f"{name}.attention.head_count_kv"]}
    for key in ("general.architecture", f"{name}.rope.halves", f"{name}.rope.layers"):
        metadata.pop(key, None)
    if metadata.get(f"{name}.rope.scaling.type") == "llama3":
        _add_numbers(writer, "rope_freqs.weight", _llama3_factors(metadata, name))
    for key, value in metadata.items():
        add_key(writer, key, value)
    experts: dict[str, list[Tensor]] = {}
    for tensor in tensors.values():
        if match := _EXPERT.fullmatch(tensor.name):
            experts.setdefault(f"{match[1]}_exps.weight", []).append(tensor)
        else:
            which = re.search(r"attn_([qk])\.", tensor.name)
            _add(writer, tensor, heads[which[1]] if which and name in PAIRED else 0)
    for stacked_name, matrices in experts.items():
        numbers = [matrix.dequantize() for matrix in sorted(matrices, key=_expert_number)]
        _add_numbers(writer, stacked_name, np.stack(numbers))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _expert_number(tensor: Tensor) -> int:
    match = _EXPERT.fullmatch(tensor.name)
    assert match
    return int(match[2])


def _add(writer: GGUFWriter, tensor: Tensor, heads: object) -> None:
    """Write a tensor in its own type; rows of heads as pairs, if heads are given."""
    raw = tensor.data.reshape(*tensor.shape, -1)
    if isinstance(heads, int) and heads:
        raw = raw.reshape(heads, 2, -1, *raw.shape[1:]).swapaxes(1, 2).reshape(raw.shape)
    kind = GGMLQuantizationType[tensor.type.name]
    writer.add_tensor(tensor.name, np.ascontiguousarray(raw.reshape(*tensor.shape[:-1], -1)), raw_dtype=kind)


def _add_numbers(writer: GGUFWriter, name: str, numbers: NDArray[np.float32]) -> None:
    writer.add_tensor(name, numbers.astype(np.float32))


def _llama3_factors(metadata: dict[str, object], name: str) -> NDArray[np.float32]:
    """Take the scaling of Llama 3 out of the metadata, and return what divides each frequency instead."""
    keys = ("factor", "low_freq_factor", "high_freq_factor", "original_context_length")
    factor, low, high, original = (float(metadata.pop(f"{name}.rope.scaling.{key}")) for key in keys)  # type: ignore[arg-type]
    metadata.pop(f"{name}.rope.scaling.type")
    dimensions = int(metadata[f"{name}.attention.key_length"])  # type: ignore[call-overload]
    factors = []
    for i in range(0, dimensions, 2):
        wavelength = 2 * math.pi * float(metadata[f"{name}.rope.freq_base"]) ** (i / dimensions)  # type: ignore[arg-type]
        if wavelength < original / high:
            factors.append(1.0)
        elif wavelength > original / low:
            factors.append(factor)
        else:
            smooth = (original / wavelength - low) / (high - low)
            factors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(factors, np.float32)
