"""Safetensors files and shards: what is read, and each fault with its one clear line. (B65)"""

from __future__ import annotations

import json
import random
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors_bytes import Header, build, entry, sound_header

from ostinato.errors import ModelFileError, ModelNotFoundError, UnsupportedModelError
from ostinato.weights.safetensors import find_weights, open_safetensors

MAX_BYTES = 200_000_000
"""Of memory that a wrong header may take."""


def write(folder: Path, raw: bytes, name: str = "model.safetensors") -> Path:
    path = folder / name
    path.write_bytes(raw)
    return path


def fault(folder: Path, raw: bytes) -> str:
    with pytest.raises(ModelFileError) as error:
        open_safetensors(write(folder, raw))
    message = str(error.value)
    assert "model.safetensors" in message and "\n" not in message and len(message) < 600
    return message


def header_with(**changes: Any) -> Header:
    """Return the sound header with fields of tensor `b` changed."""
    header = sound_header()
    header["b"] = {key: value for key, value in {**header["b"], **changes}.items() if value is not None}
    return header


class TestReading:
    def test_tensors_are_views_of_the_file(self, tmp_path: Path) -> None:
        raw = build(sound_header())
        files = open_safetensors(write(tmp_path, raw))
        assert {t.name: (t.shape, t.type.name) for t in files.tensors.values()} == {
            "a": ((3,), "F32"),
            "b": ((2, 4), "BF16"),
            "c": ((1, 2, 3), "F16"),
        }
        assert files.size_bytes == len(raw)
        for tensor in files.tensors.values():
            assert bytes(tensor.data) == raw[tensor.offset : tensor.offset + tensor.nbytes]
            assert not tensor.data.flags.writeable
        data = np.arange(40, dtype=np.uint8)
        np.testing.assert_array_equal(files.tensors["a"].dequantize(), data[:12].view("<f4"))
        halves = (data[12:28].view("<u2").astype(np.uint32) << 16).view(np.float32).reshape(2, 4)
        np.testing.assert_array_equal(files.tensors["b"].dequantize(), halves)
        files.close()

    def test_spaces_after_the_header_are_part_of_it(self, tmp_path: Path) -> None:
        raw = build(json.dumps(sound_header()) + " " * 13)
        assert open_safetensors(write(tmp_path, raw)).tensors["c"].offset == len(raw) - 12

    def test_no_tensors(self, tmp_path: Path) -> None:
        assert open_safetensors(write(tmp_path, build({}, b""))).tensors == {}

    def test_a_tensor_outlives_its_file(self, tmp_path: Path) -> None:
        files = open_safetensors(write(tmp_path, build(sound_header())))
        tensor = files.tensors["a"]
        files.close()
        assert tensor.dequantize().shape == (3,)


class TestFaults:
    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"dtype": None}, "expected an object of data_offsets, dtype, shape"),
            ({"surprise": 1}, "expected an object of data_offsets, dtype, shape"),
            ({"dtype": "F99"}, "has the dtype 'F99'; supported are BF16, F16, F32"),
            ({"dtype": "U8"}, "has the dtype 'U8'; supported are"),
            ({"dtype": 3}, "has the dtype 3"),
            ({"dtype": "F32"}, "has 16 bytes of data; expected 32 for F32 of shape (2, 4)"),
            ({"shape": [2, 5]}, "has 16 bytes of data; expected 20 for BF16 of shape (2, 5)"),
            ({"shape": []}, "expected 1 to 8 whole numbers"),
            ({"shape": [1] * 9}, "expected 1 to 8 whole numbers"),
            ({"shape": [0, 4]}, "expected 1 to 8 whole numbers"),
            ({"shape": [-2, -4]}, "expected 1 to 8 whole numbers"),
            ({"shape": [2.0, 4]}, "expected 1 to 8 whole numbers"),
            ({"shape": [True, 8]}, "expected 1 to 8 whole numbers"),
            ({"shape": "24"}, "expected 1 to 8 whole numbers"),
            ({"shape": [2**62, 4]}, "from 1 to 281474976710656"),
            ({"data_offsets": [12]}, "two whole numbers"),
            ({"data_offsets": [12, 28, 28]}, "two whole numbers"),
            ({"data_offsets": [-4, 12]}, "two whole numbers"),
            ({"data_offsets": [28, 12]}, "has -16 bytes of data"),
            ({"data_offsets": [12.0, 28]}, "two whole numbers"),
            ({"data_offsets": [8, 24]}, "expected"),  # overlaps the one before
            ({"data_offsets": [16, 32]}, "expected"),  # leaves a gap, overlaps the next
            ({"data_offsets": [2**40, 2**40 + 16]}, "expected"),
        ],
    )
    def test_a_wrong_field(self, tmp_path: Path, changes: dict[str, Any], words: str) -> None:
        message = fault(tmp_path, build(header_with(**changes)))
        assert words in message
        assert "tensor 'b'" in message or "tensor 'c'" in message

    def test_an_unknown_type_is_unsupported(self, tmp_path: Path) -> None:
        with pytest.raises(UnsupportedModelError):
            open_safetensors(write(tmp_path, build(header_with(dtype="F8_E4M3"))))

    def test_overlaps_and_gaps(self, tmp_path: Path) -> None:
        same = {"a": entry("F32", [3], 0), "b": entry("F32", [3], 0)}
        assert "tensor 'b' begins at byte" in fault(tmp_path, build(same, bytes(12)))
        apart = {"a": entry("F32", [3], 0), "b": entry("F32", [3], 13)}
        assert "where the one before it ends" in fault(tmp_path, build(apart, bytes(25)))

    @pytest.mark.parametrize("data", [bytes(39), bytes(41), b""])
    def test_data_cut_short_or_too_long(self, tmp_path: Path, data: bytes) -> None:
        assert "cut short?" in fault(tmp_path, build(sound_header(), data))

    @pytest.mark.parametrize("length", [0, 1, 10**6, 2**23 + 1, 2**63, 2**64 - 1])
    def test_a_wrong_length_of_the_header(self, tmp_path: Path, length: int) -> None:
        assert f"a header of {length} bytes" in fault(tmp_path, build(sound_header(), length=length))

    def test_a_huge_header_is_refused_before_it_is_read(self, tmp_path: Path) -> None:
        path = write(tmp_path, build(b"{}", b"", length=2**23 + 1))
        with path.open("r+b") as file:
            file.truncate(2**26)
        with pytest.raises(ModelFileError, match="expected 2 to 8388608"):
            open_safetensors(path)

    @pytest.mark.parametrize("unit", [b"[", b"[],", b'{"a":', b'{"a":0},'])
    def test_a_large_header_without_sense_takes_little_memory(self, tmp_path: Path, unit: bytes) -> None:
        path = write(tmp_path, build(b'{"a":[' + unit * ((2**23 - 10) // len(unit))))
        tracemalloc.start()
        try:
            with pytest.raises(ModelFileError, match=r"is no JSON|too many tensors"):
                open_safetensors(path)
            peak_bytes = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak_bytes < MAX_BYTES

    @pytest.mark.parametrize(
        ("header", "words"),
        [
            (b"{}}", "is no JSON"),
            (b"[1]", "is a JSON list"),
            (b'"{}"', "is a JSON str"),
            (b'{"\xff": 1}', "is no JSON"),
            (b"[" * 100_000, "is no JSON"),
            (b'{"a": ' + b"9" * 5000 + b"}", "is no JSON"),
            (b'{"a": 1, "a": 2}', "the name 'a' comes twice"),
            (b'{"a": {"dtype": "F32", "dtype": "F16"}}', "the name 'dtype' comes twice"),
            (b'{"a": NaN}', "is described by nan"),
            (b'{"a": {"dtype": "F32", "shape": [NaN], "data_offsets": [0, 4]}}', "whole numbers"),
        ],
    )
    def test_a_header_that_is_no_description(self, tmp_path: Path, header: bytes, words: str) -> None:
        assert words in fault(tmp_path, build(header))

    def test_other_files(self, tmp_path: Path) -> None:
        assert "is this a safetensors file?" in fault(tmp_path, b"GGUF" + bytes(100))
        assert "the file has 5 bytes" in fault(tmp_path, b"short")
        assert "is empty" in fault(tmp_path, b"")
        with pytest.raises(ModelNotFoundError):
            open_safetensors(tmp_path / "none.safetensors")


def opens(path: Path, raw: bytes) -> None:
    """Open bytes as a file: it is sound, or there is one clear line."""
    path.write_bytes(raw)
    try:
        files = open_safetensors(path)
    except ModelFileError as error:
        assert "\n" not in str(error) and len(str(error)) < 700
        return
    end = 0
    for tensor in sorted(files.tensors.values(), key=lambda tensor: tensor.offset):
        assert tensor.offset >= end and tensor.nbytes == tensor.type.num_bytes(tensor.shape)
        end = tensor.offset + tensor.nbytes
        if tensor.type.is_supported:
            assert tensor.dequantize().shape == tensor.shape
    assert not files.tensors or end == len(raw)
    files.close()


class TestFuzz:
    def test_every_byte_flipped_and_every_length(self, tmp_path: Path) -> None:
        raw, path = build(sound_header()), tmp_path / "model.safetensors"
        rng = random.Random(5)
        for i in range(len(raw) - 40):
            for value in {raw[i] ^ 1, raw[i] ^ 0x80, rng.randrange(256), ord("0"), ord('"')}:
                opens(path, raw[:i] + bytes([value]) + raw[i + 1 :])
        for length in range(len(raw)):
            opens(path, raw[:length])

    @settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(raw=st.binary(max_size=200))
    def test_any_bytes(self, tmp_path: Path, raw: bytes) -> None:
        opens(tmp_path / "model.safetensors", raw)

    @settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(data=st.data())
    def test_any_values_in_the_header(self, tmp_path: Path, data: st.DataObject) -> None:
        odd = st.recursive(
            st.none() | st.booleans() | st.floats() | st.text(max_size=5) | st.integers(-(2**70), 2**70),
            lambda inner: (
                st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
            ),
            max_leaves=5,
        )
        header = sound_header()
        name = data.draw(st.sampled_from(["a", "b", "c"]))
        field = data.draw(st.sampled_from(["", "dtype", "shape", "data_offsets"]))
        if field:
            header[name][field] = data.draw(odd | st.lists(st.integers(0, 50), max_size=3))
        else:
            header[name] = data.draw(odd)
        opens(tmp_path / "model.safetensors", build(header))


def shards(folder: Path, change: Callable[[dict[str, Any]], None] = lambda index: None) -> Path:
    """Write two shards and their index, changed by `change`."""
    write(folder, build({"a": entry("F32", [3], 0)}, bytes(12)), "one.safetensors")
    write(folder, build({"b": entry("F16", [3], 0)}, bytes(6)), "two.safetensors")
    index = {"metadata": {"total_size": 18}, "weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}
    change(index)
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps(index))
    return path


class TestShards:
    def test_all_are_opened(self, tmp_path: Path) -> None:
        files = open_safetensors(shards(tmp_path))
        assert sorted(files.tensors) == ["a", "b"]
        assert find_weights(tmp_path).name == "model.safetensors.index.json"

    @pytest.mark.parametrize(
        ("weight_map", "words"),
        [
            ({"a": "one.safetensors"}, None),
            ({"a": "one.safetensors", "b": "one.safetensors"}, "no shard has: b"),
            ({"a": "one.safetensors", "c": "two.safetensors"}, "no shard has: c"),
            ({"a": "../one.safetensors"}, "'../one.safetensors'; expected the name of a .safetensors file"),
            ({"a": "/etc/passwd"}, "expected the name of a .safetensors file"),
            ({"a": "two/one.safetensors"}, "expected the name of a .safetensors file"),
            ({"a": "one.bin"}, "expected the name of a .safetensors file"),
            ({"a": 3}, "expected the name of a .safetensors file"),
            ({}, "'weight_map' is missing"),
            ([1], "'weight_map' is missing"),
        ],
    )
    def test_an_index_that_does_not_fit(self, tmp_path: Path, weight_map: Any, words: str | None) -> None:
        path = shards(tmp_path, lambda index: index.update(weight_map=weight_map))
        if words is None:
            assert sorted(open_safetensors(path).tensors) == ["a"]
            return
        with pytest.raises(ModelFileError) as error:
            open_safetensors(path)
        assert words in str(error.value)

    def test_a_tensor_that_the_index_does_not_name(self, tmp_path: Path) -> None:
        header = {"b": entry("F16", [3], 0), "rogue": entry("F16", [1], 6)}
        path = shards(tmp_path)
        write(tmp_path, build(header, bytes(8)), "two.safetensors")
        with pytest.raises(ModelFileError, match="does not name tensors that its shards have: rogue"):
            open_safetensors(path)

    def test_a_name_in_two_shards(self, tmp_path: Path) -> None:
        path = shards(tmp_path)
        write(tmp_path, build({"a": entry("F16", [3], 0)}, bytes(6)), "two.safetensors")
        with pytest.raises(ModelFileError, match="'a' is in another shard"):
            open_safetensors(path)

    def test_a_missing_shard(self, tmp_path: Path) -> None:
        path = shards(tmp_path)
        (tmp_path / "two.safetensors").unlink()
        with pytest.raises(ModelNotFoundError, match=r"two\.safetensors does not exist"):
            open_safetensors(path)

    @pytest.mark.parametrize("text", ["", "[]", "{", "\udcff"])
    def test_an_index_that_is_no_object(self, tmp_path: Path, text: str) -> None:
        path = shards(tmp_path)
        path.write_bytes(text.encode("utf-8", "surrogateescape"))
        with pytest.raises(ModelFileError):
            open_safetensors(path)


class TestFindWeights:
    def test_the_whole_file_comes_first_then_the_index_then_the_only_file(self, tmp_path: Path) -> None:
        with pytest.raises(ModelFileError, match="no safetensors file"):
            find_weights(tmp_path)
        write(tmp_path, b"", "consolidated.safetensors")
        assert find_weights(tmp_path).name == "consolidated.safetensors"
        write(tmp_path, b"", "other.safetensors")
        with pytest.raises(ModelFileError, match=r"2 safetensors files but no model\.safetensors\.index"):
            find_weights(tmp_path)
        shards(tmp_path)
        assert find_weights(tmp_path).name == "model.safetensors.index.json"
        write(tmp_path, b"")
        assert find_weights(tmp_path).name == "model.safetensors"
