"""Split models open as one by any part; what is missing, foreign or wrong gives one clear line (B64)."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import gguf_bytes as g
import numpy as np
import pytest
from gguf import GGUFWriter
from gguf_bytes import TensorSpec, Typed, build
from hypothesis import given
from hypothesis import strategies as st

from ostinato.card import describe
from ostinato.errors import ModelFileError, ModelNotFoundError
from ostinato.weights.gguf import open_gguf
from ostinato.weights.part_names import part_names
from ostinato.weights.sources import resolve

NAMES = part_names("m-00001-of-00003.gguf")
ARRAYS = {f"blk.{i}.weight": np.arange(32 * (i + 1), dtype=np.float32).reshape(-1, 32) + i for i in range(5)}


def write_by_oracle(path: Path, split_max_tensors: int) -> None:
    """Write ARRAYS with the `gguf` package, in parts of so many tensors; 0: whole."""
    writer = GGUFWriter(path, "llama", split_max_tensors=split_max_tensors)
    writer.add_context_length(77)
    writer.add_token_list(["a", "b"])
    for name, array in ARRAYS.items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_by_oracle(tmp_path / "m.gguf", 2)
    assert sorted(os.listdir(tmp_path)) == NAMES
    return tmp_path


def fault(path: Path) -> str:
    with pytest.raises(ModelFileError) as caught:
        open_gguf(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("name", NAMES)
def test_any_part_opens_the_whole_model(folder: Path, name: str) -> None:
    write_by_oracle(folder / "whole.gguf", 0)
    with open_gguf(folder / name) as file, open_gguf(folder / "whole.gguf") as whole:
        assert file.path == folder / NAMES[0]
        assert file.size_bytes == sum((folder / part).stat().st_size for part in NAMES)
        assert dict(file.metadata) == dict(whole.metadata)
        assert list(file.tensors) == list(whole.tensors) == list(ARRAYS)
        for tensor_name, array in ARRAYS.items():
            np.testing.assert_array_equal(file.tensors[tensor_name].dequantize(), array)


def test_the_folder_opens_the_whole_model(folder: Path) -> None:
    with open_gguf(resolve(str(folder))) as file:
        assert list(file.tensors) == list(ARRAYS)


def test_a_card_is_of_all_parts(folder: Path) -> None:
    card = describe(str(folder / NAMES[1]))
    assert card.path == folder / NAMES[0]
    assert card.size_bytes == sum((folder / part).stat().st_size for part in NAMES)
    assert (card.parameters, card.tensor_types["F32"].tensors) == (sum(a.size for a in ARRAYS.values()), 5)


def test_closing_lets_go_of_every_part(folder: Path) -> None:
    file = open_gguf(folder / NAMES[1])
    maps = file._maps
    file.close()
    assert len(maps) == 3 and all(data.closed for data in maps)
    with pytest.raises(ValueError, match="is closed"):
        _ = file.tensors


def test_a_model_in_one_part_is_whole(tmp_path: Path) -> None:
    metadata = [("split.no", (g.UINT16, 0)), ("split.count", (g.UINT16, 1))]
    for name in ("m-00001-of-00001.gguf", "renamed.gguf"):
        path = tmp_path / name
        path.write_bytes(build(metadata, [TensorSpec("w", (8,))], bytes(32)).raw)
        with open_gguf(path) as file:
            assert list(file.tensors) == ["w"]


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_a_missing_part_is_named(folder: Path, missing: int) -> None:
    (folder / NAMES[missing]).unlink()
    for name in NAMES[:missing] + NAMES[missing + 1 :]:
        assert fault(folder / name) == (
            f"{folder / name} is one of 3 parts of a model, and 1 of them are missing: {NAMES[missing]}; "
            "put all parts into one folder"
        )
    with pytest.raises(ModelNotFoundError, match="does not exist"):
        open_gguf(folder / NAMES[missing])


def test_a_part_cut_short_is_named(folder: Path) -> None:
    path = folder / NAMES[2]
    path.write_bytes(path.read_bytes()[:-1])
    assert re.match(rf"{path}: tensor\[0\] 'blk.4.weight' data at byte", fault(folder / NAMES[0]))


@pytest.mark.parametrize(
    ("source", "target", "number"), [(0, "whole.gguf", 1), (1, NAMES[0], 2), (0, "m-00001-of-00002.gguf", 1)]
)
def test_a_renamed_part(folder: Path, source: int, target: str, number: int) -> None:
    shutil.copy(folder / NAMES[source], folder / target)
    message = fault(folder / target)
    assert message.startswith(f"{folder / target} says it is part {number} of 3, but not so its name; give")


def part(
    number: int,
    tensors: list[str],
    *,
    count: Typed = (g.UINT16, 3),
    total: Typed = (g.INT32, 3),
    no: Typed | None = None,
    more: list[tuple[str | bytes, Typed]] | None = None,
) -> bytes:
    """Return part `number` of 3 with the named tensors, or one with something wrong."""
    split: list[tuple[str | bytes, Typed]] = [
        ("split.no", no if no is not None else (g.UINT16, number)),
        ("split.count", count),
        ("split.tensors.count", total),
    ]
    specs = [TensorSpec(name, (8,), offset=32 * i) for i, name in enumerate(tensors)]
    return bytes(build([*split, *(more or [])], specs, bytes(32 * len(specs))).raw)


SOUND = [part(0, ["a"]), part(1, ["b"]), part(2, ["c"])]


@pytest.mark.parametrize(
    ("number", "raw", "at", "message"),
    [
        (1, part(1, ["b"], no=(g.UINT16, 2)), 1, "split.no is 2, expected 1: not part 2 of the model that"),
        (1, part(1, ["b"], count=(g.UINT16, 2)), 1, "split.count is 2, expected 3: not part 2 of"),
        (2, part(2, ["c"], total=(g.INT32, 4)), 2, "split.tensors.count is 4, expected 3: not part 3 of"),
        (2, part(2, ["c", "d"]), 0, "its 3 parts have 4 tensors in all, expected 3 by split.tensors.count"),
        (2, part(2, []), 0, "its 3 parts have 2 tensors in all, expected 3 by split.tensors.count"),
        (2, part(2, ["a"]), 2, f"tensor 'a' is in {NAMES[0]} too; they are not parts of one model"),
        (2, part(2, ["c"], more=[("k", (g.UINT32, 2))]), 2, f"metadata 'k' differs from that of {NAMES[0]}"),
        (2, bytes(build([], [TensorSpec("c", (8,))], bytes(32)).raw), 2, "'split.no' is None, expected a"),
        (2, part(2, ["c"], no=(g.STRING, "2")), 2, "metadata 'split.no' is '2', expected a number"),
        (2, part(2, ["c"], no=(g.BOOL, 1)), 2, "metadata 'split.no' is True, expected a number"),
    ],
)
def test_parts_that_do_not_belong_together(
    tmp_path: Path, number: int, raw: bytes, at: int, message: str
) -> None:
    parts = [part(0, ["a"], more=[("k", (g.UINT32, 1))]), *SOUND[1:]]
    parts[number] = raw
    for name, content in zip(NAMES, parts, strict=True):
        (tmp_path / name).write_bytes(content)
    found = fault(tmp_path / NAMES[0])
    assert found.startswith(f"{tmp_path / NAMES[at]}: ") and message in found


@pytest.mark.parametrize(
    "count", [(g.UINT64, 2**63), (g.INT32, 100_000), (g.STRING, "3"), (g.ARRAY, (g.UINT8, [3]))], ids=str
)
def test_counts_that_no_model_has(tmp_path: Path, count: Typed) -> None:
    (tmp_path / NAMES[0]).write_bytes(part(0, ["a"], count=count))
    assert fault(tmp_path / NAMES[0]).startswith(str(tmp_path / NAMES[0]))


def test_many_missing_parts_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "m-00001-of-40000.gguf"
    path.write_bytes(part(0, ["a"], count=(g.UINT16, 40_000)))
    assert "00006-of-40000.gguf and 39994 more; put all parts" in fault(path)


@given(st.text(max_size=9), st.integers(1, 99), st.integers(1, 99))
def test_part_names_agree_from_any_part(stem: str, number: int, count: int) -> None:
    name = f"{stem}-{number:05}-of-{count:05}.GGUF"
    names = part_names(name)
    if number > count:
        assert names == [name]
    else:
        assert len(names) == count and names[number - 1] == name
        assert all(part_names(other) == names for other in names)
