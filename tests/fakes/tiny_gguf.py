"""A small model file that every command can run: SmolLM2's vocabulary, a random llama of two layers."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
from gguf import GGMLQuantizationType, GGUFValueType, GGUFWriter
from tiny import TinyShape, tiny_llama

from fakes.vocabularies import smollm2

VOCAB = 49152
CONTEXT = 256


@cache
def chat_model() -> Path:
    """Return a file with a chat template."""
    return write_model("chat", smollm2())


@cache
def float_model() -> Path:
    """Return a file of float16 matrices, with a chat template."""
    return write_model("float", smollm2(), kind="F16")


@cache
def base_model() -> Path:
    """Return the same model without a chat template."""
    return write_model("base", smollm2(chat_template=None))


@cache
def opinionated_model() -> Path:
    """Return the same model with sampling defaults of its own, one of them out of range."""
    said = {"general.sampling.top_k": 3, "general.sampling.min_p": 0.25, "general.sampling.temp": -1.0}
    return write_model("opinionated", {**smollm2(), **said})


@cache
def split_model() -> list[Path]:
    """Return the parts of the file with a chat template."""
    return sorted(write_model("split", smollm2(), max_tensors=7).parent.iterdir())


def write_model(
    name: str,
    tokenizer: dict[str, object],
    context: int = CONTEXT,
    kind: str = "Q8_0",
    max_tensors: int = 0,
) -> Path:
    """Write a model with these tokenizer keys to a folder of its own, its matrices of one type.

    `max_tensors`: how many of its tensors go in a part; 0: all are in one file, which is returned.
    """
    shape = TinyShape(width=32, hidden=64, heads=2, kv_heads=1, vocab=VOCAB, type=kind)
    model = tiny_llama(shape)
    path = Path(mkdtemp(prefix="ostinato-test-")) / f"{name}.gguf"
    writer = GGUFWriter(path, "llama", split_max_tensors=max_tensors)
    for key, value in {**model.metadata, "llama.context_length": context, **tokenizer}.items():
        if key != "general.architecture":
            add_key(writer, key, value)
    for tensor in model.tensors.values():
        writer.add_tensor(
            tensor.name,
            tensor.data.reshape(tensor.shape[0], -1)
            if len(tensor.shape) == 2
            else tensor.data.view(np.float32),
            raw_dtype=GGMLQuantizationType[tensor.type.name],
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_key(writer: GGUFWriter, key: str, value: object) -> None:
    """Write one metadata value, in the type that its Python type suggests."""
    if isinstance(value, np.ndarray):
        writer.add_array(key, value.tolist())
    elif isinstance(value, list):
        writer.add_array(key, value)
    elif isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    else:
        writer.add_key_value(key, value, GGUFValueType.STRING)
