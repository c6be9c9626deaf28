"""Reports about other runtimes, on a real file: cut short, padded, split into parts."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from fakes.tiny_gguf import add_key
from gguf import GGMLQuantizationType, GGUFWriter
from models import model_path

import ostinato
from ostinato import Options, SamplingParams
from ostinato.errors import ModelFileError, ModelNotFoundError
from ostinato.weights.gguf import open_gguf
from ostinato.weights.tensors import ModelFile

TEN = Options(max_tokens=10, sampling=SamplingParams(temperature=0.0))


@pytest.fixture(scope="module")
def path() -> Path:
    found = model_path("smollm2")
    if found is None:
        pytest.skip("smollm2 is not on this machine: pull it, or set OSTINATO_TEST_MODELS")
    return found


def written(path: Path) -> str:
    """Return what the model at a path writes."""
    with ostinato.load(str(path)) as model:
        return model.generate("Once upon a time", TEN).text


def test_a_file_cut_short_or_too_long(path: Path, tmp_path: Path) -> None:
    """B63: refused in one line that says where it ends; bytes behind the last tensor do no harm."""
    copy = tmp_path / "copy.gguf"
    shutil.copyfile(path, copy)
    size = path.stat().st_size
    os.truncate(copy, size + 4096)
    assert written(copy) == written(path)
    for length in (size - 1, int(0.999 * size), size // 4, 1024):
        os.truncate(copy, length)
        with pytest.raises(ModelFileError) as caught:
            ostinato.load(str(copy))
        said = str(caught.value)
        assert str(copy) in said and "expected" in said and "\n" not in said
        assert length == 1024 or "data" in said


def split(file: ModelFile, path: Path, max_tensors: int) -> list[Path]:
    """Write a file in parts of so many tensors with the `gguf` package; return the parts."""
    writer = GGUFWriter(path, "llama", split_max_tensors=max_tensors)
    for key, value in file.metadata.items():
        if key != "general.architecture":
            add_key(writer, key, value)
    for tensor in file.tensors.values():
        is_vector = len(tensor.shape) == 1
        data = tensor.data.view(np.float32) if is_vector else tensor.data.reshape(tensor.shape[0], -1)
        writer.add_tensor(tensor.name, data, raw_dtype=GGMLQuantizationType[tensor.type.name])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return sorted(path.parent.iterdir())


def test_a_split_file_writes_the_same(path: Path, tmp_path: Path) -> None:
    """B64: by the first part, another one or the folder; a part that is missing is named."""
    with open_gguf(path) as file:
        parts = split(file, tmp_path / "parts.gguf", -(-len(file.tensors) // 3))
    assert len(parts) == 3
    expected = written(path)
    for way in (parts[0], parts[1], tmp_path):
        assert written(way) == expected
    parts[2].unlink()
    with pytest.raises((ModelFileError, ModelNotFoundError), match=parts[2].name):
        ostinato.load(str(parts[0]))
