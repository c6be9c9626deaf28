"""Opening GGUF files: what a sound one gives, and the one line that each fault of a broken one gives."""

from __future__ import annotations

import mmap
import os
import struct
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import gguf
import gguf_bytes as g
import numpy as np
import pytest
from gguf_bytes import GGUFBytes, TensorSpec, build

from ostinato.errors import ModelFileError, ModelNotFoundError, UnsupportedModelError
from ostinato.weights.gguf import open_gguf
from ostinato.weights.tensors import ModelFile

HUGE = [2**31, 2**32, 2**40, 2**60, 2**62, 2**63 - 1, 2**63, 2**64 - 1]


@pytest.fixture
def save(tmp_path: Path) -> Callable[[bytes | bytearray], Path]:
    def write(raw: bytes | bytearray) -> Path:
        path = tmp_path / "model.gguf"
        path.write_bytes(raw)
        return path

    return write


Save = Callable[[bytes | bytearray], Path]


def fault(path: Path) -> str:
    """Open a bad file; return its message: one line that names the file, made in little time and memory."""
    tracemalloc.start()
    begin = time.perf_counter()
    try:
        with pytest.raises(ModelFileError) as caught:
            open_gguf(path)
        seconds, (_, peak_bytes) = time.perf_counter() - begin, tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    message = str(caught.value)
    assert message.startswith(str(path)) and "\n" not in message
    assert seconds < 1 and peak_bytes < 2_000_000
    return message


def scalar_file() -> GGUFBytes:
    """One value of each type, in version 3."""
    return build(
        [
            ("u8", (g.UINT8, 250)),
            ("i8", (g.INT8, -3)),
            ("u16", (g.UINT16, 65000)),
            ("i16", (g.INT16, -30000)),
            ("u32", (g.UINT32, 2**32 - 1)),
            ("i32", (g.INT32, -(2**31))),
            ("f32", (g.FLOAT32, 0.5)),
            ("yes", (g.BOOL, 1)),
            ("no", (g.BOOL, 0)),
            ("text", (g.STRING, "größe\n")),
            ("u64", (g.UINT64, 2**64 - 1)),
            ("i64", (g.INT64, -(2**63))),
            ("f64", (g.FLOAT64, 1e-300)),
        ]
    )


def small_file(**changes: Any) -> GGUFBytes:
    """Two entries of metadata, one of them a list of tokens, and two tensors."""
    return build(
        changes.pop(
            "metadata", [("name", (g.STRING, "toy")), ("tokens", (g.ARRAY, (g.STRING, ["a", "bc"])))]
        ),
        changes.pop(
            "tensors", [TensorSpec("first", [8], g.F32, 0), TensorSpec("second", [32, 2], g.Q8_0, 32)]
        ),
        changes.pop("data", bytes(range(100))),
        **changes,
    )


class TestSoundFiles:
    def test_scalars_of_every_type(self, save: Save) -> None:
        with open_gguf(save(scalar_file().raw)) as model:
            metadata = dict(model.metadata)
        assert metadata == {
            "u8": 250,
            "i8": -3,
            "u16": 65000,
            "i16": -30000,
            "u32": 2**32 - 1,
            "i32": -(2**31),
            "f32": 0.5,
            "yes": True,
            "no": False,
            "text": "größe\n",
            "u64": 2**64 - 1,
            "i64": -(2**63),
            "f64": 1e-300,
        }
        assert [type(metadata[key]) for key in ("u8", "f32", "yes", "text")] == [int, float, bool, str]

    @pytest.mark.parametrize(
        ("kind", "values", "dtype"),
        [
            (g.UINT8, [0, 255], np.uint8),
            (g.INT8, [-128, 127], np.int8),
            (g.UINT16, [0, 65535], np.uint16),
            (g.INT16, [-1, 5], np.int16),
            (g.UINT32, [1, 2, 3], np.uint32),
            (g.INT32, [-7], np.int32),
            (g.FLOAT32, [0.25, -1.5], np.float32),
            (g.BOOL, [1, 0, 1], np.bool_),
            (g.UINT64, [2**64 - 1], np.uint64),
            (g.INT64, [-(2**63)], np.int64),
            (g.FLOAT64, [1e300, 0.0], np.float64),
            (g.FLOAT64, [], np.float64),
            (g.BOOL, [], np.bool_),
        ],
    )
    def test_arrays_of_numbers(self, save: Save, kind: int, values: list[float], dtype: type) -> None:
        array = open_gguf(save(build([("k", (g.ARRAY, (kind, values)))]).raw)).metadata["k"]
        assert isinstance(array, np.ndarray) and array.dtype == dtype and array.tolist() == values
        assert array.flags.aligned and not array.flags.writeable

    def test_strings_are_lossless(self, save: Save) -> None:
        raw: list[str | bytes] = [
            "",
            "Ġhello",
            b"\xff\xfe",
            b"\xed\xa0\x80",
            b"\xe9\xba",
            b"\x00",
            "語".encode(),
        ]
        file = build([("tokens", (g.ARRAY, (g.STRING, raw))), ("text", (g.STRING, b"caf\xe9"))])
        metadata = open_gguf(save(file.raw)).metadata
        tokens, text = metadata["tokens"], metadata["text"]
        assert isinstance(tokens, list) and isinstance(text, str)
        assert [str(token).encode("utf-8", "surrogateescape") for token in tokens] == [
            part if isinstance(part, bytes) else part.encode() for part in raw
        ]
        assert tokens[1] == "Ġhello" and tokens[6] == "語"
        assert text.encode("utf-8", "surrogateescape") == b"caf\xe9"

    def test_nested_arrays(self, save: Save) -> None:
        inner = [(g.STRING, ["x", ""]), (g.UINT16, [3]), (g.ARRAY, [(g.INT8, []), (g.INT8, [-1])])]
        nested = open_gguf(save(build([("k", (g.ARRAY, (g.ARRAY, inner))), ("after", (g.UINT8, 9))]).raw))
        strings, numbers, arrays = cast(list[Any], nested.metadata["k"])
        assert strings == ["x", ""] and numbers.tolist() == [3]
        assert [array.tolist() for array in arrays] == [[], [-1]]
        assert nested.metadata["after"] == 9

    @pytest.mark.parametrize("version", [2, 3])
    def test_tensors(self, save: Save, version: int) -> None:
        file = small_file(version=version)
        path = save(file.raw)
        with open_gguf(path) as model:
            assert (model.path, model.version, model.alignment) == (path, version, 32)
            assert list(model.tensors) == ["first", "second"]
            second = model.tensors["second"]
            assert (second.shape, second.type.name, second.nbytes) == ((2, 32), "Q8_0", 68)
            assert second.offset == file.field("data").offset + 32 and second.offset % 32 == 0
            assert second.data.tobytes() == bytes(range(32, 100))
            assert not second.data.flags.writeable

    def test_no_metadata_and_no_tensors(self, save: Save) -> None:
        with open_gguf(save(build().raw)) as model:
            assert not model.metadata and not model.tensors

    @pytest.mark.parametrize("alignment", [8, 64, 4096])
    def test_alignment_is_honoured(self, save: Save, alignment: int) -> None:
        file = build(
            [("general.alignment", (g.UINT32, alignment))],
            [TensorSpec("a", [2]), TensorSpec("b", [1], offset=alignment)],
            bytes(alignment) + b"\x00\x00\x80\x3f",
            alignment=alignment,
        )
        with open_gguf(save(file.raw)) as model:
            assert model.alignment == alignment
            assert model.tensors["b"].dequantize().tolist() == [1.0]

    def test_extra_bytes_at_the_end_and_gaps_are_accepted(self, save: Save) -> None:
        """(B63)"""
        tensors = [TensorSpec("late", [8], offset=256), TensorSpec("early", [8], offset=64)]
        with open_gguf(save(small_file(tensors=tensors, data=bytes(288)).raw + bytes(5000))) as model:
            assert [tensor.nbytes for tensor in model.tensors.values()] == [32, 32]

    def test_unsupported_type_opens_and_is_named_when_used(self, save: Save) -> None:
        """(B67)"""
        file = build([], [TensorSpec("mixed", [256], 16)], bytes(66))
        with open_gguf(save(file.raw)) as model:
            assert model.tensors["mixed"].nbytes == 66
            with pytest.raises(UnsupportedModelError, match=r"'mixed'.*IQ2_XXS.*Q8_0"):
                model.tensors["mixed"].dequantize()

    def test_agrees_with_the_reader_of_the_gguf_package(self, tmp_path: Path) -> None:
        path = tmp_path / "oracle.gguf"
        arrays = write_with_oracle(path)
        reader = gguf.GGUFReader(path)
        with open_gguf(str(path)) as model:
            fields = {key: field for key, field in reader.fields.items() if not key.startswith("GGUF.")}
            assert list(model.metadata) == list(fields)
            for key, field in fields.items():
                value = model.metadata[key]
                assert (value.tolist() if isinstance(value, np.ndarray) else value) == field.contents(), key
            assert list(model.tensors) == [tensor.name for tensor in reader.tensors]
            for theirs in reader.tensors:
                ours = model.tensors[theirs.name]
                assert ours.shape == tuple(int(dim) for dim in reversed(theirs.shape))
                assert (ours.offset, ours.nbytes) == (theirs.data_offset, theirs.n_bytes)
                np.testing.assert_array_equal(ours.data, theirs.data.view(np.uint8).reshape(-1))
            np.testing.assert_array_equal(model.tensors["output_norm.weight"].dequantize(), arrays[1])


def write_with_oracle(path: Path) -> list[np.ndarray[Any, np.dtype[np.float32]]]:
    """Write a file of the usual shape with the `gguf` package; return its arrays."""
    rng = np.random.default_rng(11)
    arrays = [rng.normal(size=shape).astype(np.float32) for shape in ((5, 64), (64,))]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_rope_freq_base(10000.0)
    writer.add_token_list(["<s>", "Ġa", "語"])
    writer.add_token_scores([0.0, -1.0, -2.5])
    writer.add_token_types([3, 1, 1])
    writer.add_add_bos_token(True)
    writer.add_chat_template("{{ messages }}\n")
    packed = gguf.quants.quantize(arrays[0], gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("token_embd.weight", packed, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("output_norm.weight", arrays[1])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return arrays


class TestLifetime:
    def test_is_a_model_file(self, save: Save) -> None:
        model: ModelFile = open_gguf(save(small_file().raw))
        assert set(model.tensors) == {"first", "second"} and model.metadata["name"] == "toy"

    def test_close_lets_go_of_tensors_and_keeps_metadata(self, save: Save) -> None:
        model = open_gguf(save(small_file().raw))
        model.close()
        model.close()
        assert model.metadata["tokens"] == ["a", "bc"]
        with pytest.raises(ValueError, match="closed"):
            _ = model.tensors

    def test_a_tensor_that_is_held_outlives_its_file(self, save: Save) -> None:
        with open_gguf(save(small_file().raw)) as model:
            first = model.tensors["first"]
        assert first.data.tobytes() == bytes(range(32))

    def test_close_unmaps(self, save: Save, monkeypatch: pytest.MonkeyPatch) -> None:
        maps: list[mmap.mmap] = []
        true_mmap = mmap.mmap

        def recorded(*args: Any, **kwargs: Any) -> mmap.mmap:
            maps.append(true_mmap(*args, **kwargs))
            return maps[-1]

        monkeypatch.setattr("ostinato.weights.gguf.mmap.mmap", recorded)
        open_gguf(save(small_file().raw)).close()
        with pytest.raises(ModelFileError):
            open_gguf(save(b"GGUF" + bytes(60)))
        assert [data.closed for data in maps] == [True, True]

    def test_collections_are_read_only(self, save: Save) -> None:
        model = open_gguf(save(small_file().raw))
        with pytest.raises(TypeError):
            model.metadata["name"] = "x"  # type: ignore[index]
        with pytest.raises(TypeError):
            del model.tensors["first"]  # type: ignore[attr-defined]

    def test_importing_loads_nothing_heavier_than_numpy(self) -> None:
        code = (
            "import sys, ostinato.weights.gguf;"
            "heavy = {'numba', 'llvmlite', 'tokenizers', 'jinja2', 'rich', 'typer', 'huggingface_hub'};"
            "print(sorted(heavy & set(sys.modules)))"
        )
        assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


class TestNotAGGUFFile:
    """What is no model at all. (B61, B63)"""

    def test_missing_file(self, tmp_path: Path) -> None:
        for path in (tmp_path / "none.gguf", Path(__file__) / "model.gguf"):
            with pytest.raises(ModelNotFoundError) as caught:
                open_gguf(path)
            assert str(path) in str(caught.value)

    def test_folder(self, tmp_path: Path) -> None:
        message = fault(tmp_path)
        assert "is a folder" in message and "give the path of a .gguf file" in message

    def test_empty_file(self, save: Save) -> None:
        assert "is empty" in fault(save(b""))

    @pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
    def test_pipe_is_refused_and_not_waited_for(self, tmp_path: Path) -> None:
        path = tmp_path / "pipe.gguf"
        os.mkfifo(path)
        assert "pipe" in fault(path)

    def test_no_permission(self, save: Save, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*_: object, **__: object) -> None:
            raise PermissionError(13, "Permission denied")

        path = save(small_file().raw)
        monkeypatch.setattr(Path, "open", refuse)
        assert "permission" in fault(path)

    def test_unusable_paths(self, tmp_path: Path) -> None:
        loop = tmp_path / "loop.gguf"
        loop.symlink_to(loop)
        for path in (loop, tmp_path / ("x" * 300)):
            assert "cannot be opened" in fault(path)
        with pytest.raises(ModelFileError, match="cannot be opened"):
            open_gguf("a\0b")

    def test_path_is_shown_in_one_line(self, tmp_path: Path) -> None:
        with pytest.raises(ModelNotFoundError) as caught:
            open_gguf(tmp_path / "two\nlines.gguf")
        assert "two\\nlines.gguf" in str(caught.value)

    @pytest.mark.parametrize(
        ("content", "what", "advice"),
        [
            (b"<!DOCTYPE html>\n<html><body>Sign in</body></html>", "a web page", "login"),
            (b"\n\n  <html lang='en'>", "a web page", "login"),
            (b"\xef\xbb\xbf<HTML>", "a web page", "login"),
            (b"<?xml version='1.0'?><Error><Code>AccessDenied</Code></Error>", "a web page", "login"),
            (
                b"version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 98362432\n",
                "a Git LFS pointer",
                "git lfs pull",
            ),
            (b'{"error":"Invalid username or password."}', "a JSON text", "download"),
            (b'\x40\x00\x00\x00\x00\x00\x00\x00{"a":{}}', "a safetensors file", "GGUF"),
            (b"PK\x03\x04\x00\x00", "a zip archive", "convert"),
            (b"tjgg\x03\x00\x00\x00", "the GGML formats before GGUF", "convert"),
        ],
    )
    def test_other_files_are_recognised(self, save: Save, content: bytes, what: str, advice: str) -> None:
        message = fault(save(content))
        assert f"is {what}" in message or what in message
        assert "not a GGUF file" in message and advice in message

    def test_bad_magic(self, save: Save) -> None:
        message = fault(save(small_file().patched("header magic", b"FUGG")))
        assert "header magic at byte 0: found b'FUGG', expected b'GGUF'" in message
        assert "found b'GG', expected b'GGUF'" in fault(save(b"GG"))


class TestHeader:
    """Magic, version and counts. (B61)"""

    @pytest.mark.parametrize("version", [0, 1, 4, 99, 2**32 - 1])
    def test_version(self, save: Save, version: int) -> None:
        message = fault(save(small_file(version=version).raw))
        assert f"header version at byte 4: found {version}, expected 2 or 3" in message

    @pytest.mark.parametrize("version", [2, 3])
    def test_big_endian(self, save: Save, version: int) -> None:
        message = fault(save(small_file().patched("header version", struct.pack(">I", version))))
        assert (
            f"found version {version} in big-endian order, expected 2 or 3 in little-endian order" in message
        )

    @pytest.mark.parametrize("count", HUGE)
    @pytest.mark.parametrize("field", ["header tensor count", "header metadata count"])
    def test_counts_are_bounded_by_the_file(self, save: Save, field: str, count: int) -> None:
        file = small_file()
        message = fault(save(file.patched(field, struct.pack("<Q", count))))
        assert f"{field} at byte {file.field(field).offset}: found {count}, expected at most " in message

    def test_counts_that_are_a_little_too_large(self, save: Save) -> None:
        metadata = [("k", (g.UINT8, 1))]
        file = build(metadata, [TensorSpec("t", [8])], bytes(32))
        assert "tensor[1] name length" in fault(
            save(file.patched("header tensor count", struct.pack("<Q", 2)))
        )
        raw = build(metadata).patched("header metadata count", struct.pack("<Q", 2))
        assert "metadata[1] key length" in fault(save(raw + bytes(20)))


class TestMetadata:
    """Keys, types, lengths and nesting. (B61)"""

    @pytest.mark.parametrize("length", HUGE)
    @pytest.mark.parametrize(
        "field",
        [
            "metadata[0] key length",
            "metadata[0] 'name' length",
            "metadata[1] 'tokens' element count",
            "metadata[1] 'tokens' element 1 length",
            "tensor[1] name length",
        ],
    )
    def test_lengths_are_bounded_by_the_file(self, save: Save, field: str, length: int) -> None:
        file = small_file()
        message = fault(save(file.patched(field, struct.pack("<Q", length))))
        assert f": {field} at byte {file.field(field).offset}: found {length}, expected at most " in message

    @pytest.mark.parametrize("kind", range(13))
    def test_array_counts_are_bounded_whatever_the_elements(self, save: Save, kind: int) -> None:
        for count in (3_000_000, *HUGE):
            file = build([("k", (g.ARRAY, (kind, [])))])
            raw = file.patched("metadata[0] 'k' element count", struct.pack("<Q", count)) + bytes(1024)
            message = fault(save(raw))
            at = file.field("metadata[0] 'k' element count").offset
            assert f"metadata[0] 'k' element count at byte {at}: found {count}, expected at most" in message

    @pytest.mark.parametrize("depth", [5, 6, 100, 10_000])
    def test_deep_arrays(self, save: Save, depth: int) -> None:
        raw = build([("k", (g.ARRAY, (g.ARRAY, [])))]).raw[:-12]
        raw += struct.pack("<IQ", g.ARRAY, 1) * (depth - 1) + struct.pack("<IQB", g.UINT8, 1, 7)
        assert "found arrays nested 5 deep, expected at most 4" in fault(save(raw))

    def test_four_arrays_deep_are_read(self, save: Save) -> None:
        value: g.Typed = (g.UINT8, [7])
        for _ in range(3):
            value = (g.ARRAY, [value])
        nested = cast(list[Any], open_gguf(save(build([("k", (g.ARRAY, value))]).raw)).metadata["k"])
        assert nested[0][0][0].tolist() == [7]

    @pytest.mark.parametrize("kind", [13, 14, 255, 2**31, 2**32 - 1])
    @pytest.mark.parametrize("field", ["metadata[0] 'name' type", "metadata[1] 'tokens' element type"])
    def test_unknown_value_type(self, save: Save, field: str, kind: int) -> None:
        file = small_file()
        message = fault(save(file.patched(field, struct.pack("<I", kind))))
        assert (
            f"{field} at byte {file.field(field).offset}: found {kind}, expected a metadata value type"
            in message
        )

    def test_empty_key(self, save: Save) -> None:
        message = fault(save(build([("", (g.UINT8, 1)), ("padding", (g.UINT8, 1))]).raw))
        assert "metadata[0] key length at byte 24: found 0, expected 1 to 65535" in message

    def test_long_key(self, save: Save) -> None:
        assert open_gguf(save(build([("k" * 65535, (g.UINT8, 1))]).raw)).metadata["k" * 65535] == 1
        assert "found 65536, expected 1 to 65535" in fault(save(build([("k" * 65536, (g.UINT8, 1))]).raw))

    def test_duplicate_key(self, save: Save) -> None:
        file = build([("k", (g.UINT8, 1)), ("k", (g.UINT8, 1))])
        message = fault(save(file.raw))
        at = file.field("metadata[1] key length").offset
        assert f"metadata[1] 'k' at byte {at}: found the same key again, expected each key once" in message

    @pytest.mark.parametrize("raw", [b"\xff", b"ab\xe9\xba", b"a\xed\xa0\x80", b"\xc0\xaf"])
    def test_keys_and_names_are_utf8(self, save: Save, raw: bytes) -> None:
        assert "metadata[0] key at byte " in fault(save(build([(raw, (g.UINT8, 1))]).raw))
        message = fault(save(build([], [TensorSpec(raw, [8])], bytes(32)).raw))
        assert "tensor[0] name at byte " in message and "expected UTF-8" in message

    def test_invalid_utf8_is_located(self, save: Save) -> None:
        file = build([(b"ab\xffcd", (g.UINT8, 1))])
        at = file.field("metadata[0] key").offset + 2
        assert f"metadata[0] key at byte {at}: found byte 0xff (invalid start byte)" in fault(save(file.raw))

    def test_names_are_quoted_and_shortened_in_messages(self, save: Save) -> None:
        key = "two\nlines\x1b[31m" + "x" * 500
        message = fault(save(build([(key, (g.BOOL, 2))]).raw))
        assert "two\\nlines\\x1b[31m" in message and "x..." in message and len(message) < 400

    @pytest.mark.parametrize("byte", [2, 128, 255])
    def test_bool_is_zero_or_one(self, save: Save, byte: int) -> None:
        file = build([("flag", (g.BOOL, byte))])
        at = file.field("metadata[0] 'flag'").offset
        assert f"metadata[0] 'flag' at byte {at}: found the bool {byte}, expected 0 or 1" in fault(
            save(file.raw)
        )
        file = build([("flags", (g.ARRAY, (g.BOOL, [0, 1, byte, 0])))])
        at = file.field("metadata[0] 'flags' element 2").offset
        assert f"metadata[0] 'flags' at byte {at}: found the bool {byte}" in fault(save(file.raw))

    @pytest.mark.parametrize("alignment", [0, 1, 4, 7, 24, 33, 2**22, 2**31, 2**32 - 1])
    def test_alignment_is_a_sane_power_of_two(self, save: Save, alignment: int) -> None:
        file = build([("general.alignment", (g.UINT32, alignment))], [TensorSpec("a", [8])], bytes(4096))
        field = "metadata[0] 'general.alignment'"
        message = fault(save(file.raw))
        assert (
            f"{field} at byte {file.field(field).offset}: found {alignment}, expected a power of two"
            in message
        )

    @pytest.mark.parametrize("value", [(g.UINT64, 32), (g.STRING, "32"), (g.ARRAY, (g.UINT32, [32]))])
    def test_alignment_is_a_uint32(self, save: Save, value: g.Typed) -> None:
        message = fault(save(build([("general.alignment", value)]).raw))
        assert "'general.alignment' type at byte" in message and "expected 4 (uint32)" in message


class TestTensors:
    def field_fault(self, save: Save, file: GGUFBytes, field: str) -> str:
        """Check that the fault names the field and its byte; return what the message says after them."""
        prefix = f": {field} at byte {file.field(field).offset}: "
        message = fault(save(file.raw))
        assert prefix in message
        return message.split(prefix)[1]

    @pytest.mark.parametrize("num_dims", [0, 5, 2**31])
    def test_number_of_dimensions(self, save: Save, num_dims: int) -> None:
        file = small_file()
        field = "tensor[0] 'first' dimension count"
        message = fault(save(file.patched(field, struct.pack("<I", num_dims))))
        assert f"{field} at byte {file.field(field).offset}: found {num_dims}, expected 1 to 4" in message

    def test_dimension_of_zero(self, save: Save) -> None:
        file = small_file(tensors=[TensorSpec("t", [8, 0])])
        assert self.field_fault(save, file, "tensor[0] 't' dimension 1") == "found 0, expected 1 or more"

    @pytest.mark.parametrize("type_id", [4, 5, 42, 99, 2**32 - 1])
    def test_unknown_tensor_type(self, save: Save, type_id: int) -> None:
        file = small_file(tensors=[TensorSpec("t", [8], type_id)])
        assert f"found {type_id}, expected a known tensor type id" in self.field_fault(
            save, file, "tensor[0] 't' type"
        )

    @pytest.mark.parametrize(
        ("type_id", "row"), [(g.Q8_0, 33), (g.Q4_0, 16), (g.Q4_K, 128), (g.Q4_K, 2**63 + 1)]
    )
    def test_rows_are_whole_blocks(self, save: Save, type_id: int, row: int) -> None:
        file = small_file(tensors=[TensorSpec("t", [row, 2], type_id)], data=bytes(4096))
        at = file.field("tensor[0] 't' dimension 0").offset
        message = fault(save(file.raw))
        assert f"tensor[0] 't' row length at byte {at}: found {row}, expected a multiple of " in message

    @pytest.mark.parametrize(
        "dims", [[2**32, 2**32], [2**63, 2], [2**62, 4], [2**16] * 4, [2**64 - 1], [2**64 - 1] * 4, [26]]
    )
    def test_sizes_do_not_wrap_around(self, save: Save, dims: list[int]) -> None:
        """Products that a 64-bit multiplication would bring back to 0 or to a small number."""
        file = small_file(tensors=[TensorSpec("t", dims)])
        num_bytes = 4 * int(np.prod(np.array(dims, dtype=object)))
        at = file.field("data").offset
        message = fault(save(file.raw))
        assert f"tensor[0] 't' data at byte {at}: found 100 bytes before the end" in message
        assert f"expected {num_bytes} (the file is damaged or cut short)" in message

    @pytest.mark.parametrize("offset", [1, 8, 31, 33, 2**64 - 1])
    def test_offset_is_aligned(self, save: Save, offset: int) -> None:
        file = small_file(tensors=[TensorSpec("t", [1], offset=offset)])
        text = self.field_fault(save, file, "tensor[0] 't' offset")
        assert text == f"found {offset}, expected a multiple of 32"

    @pytest.mark.parametrize("offset", [128, 2**32, 2**63, 2**64 - 32])
    def test_offset_is_in_the_file(self, save: Save, offset: int) -> None:
        file = small_file(tensors=[TensorSpec("t", [1], offset=offset)])
        at = file.field("data").offset + offset
        message = fault(save(file.raw))
        assert (
            f"tensor[0] 't' data at byte {at}: found 0 bytes before the end of the file, expected 4"
            in message
        )

    def test_duplicate_name(self, save: Save) -> None:
        file = small_file(tensors=[TensorSpec("t", [8]), TensorSpec("t", [8], offset=32)])
        at = file.field("tensor[1] name length").offset
        assert f"tensor[1] 't' at byte {at}: found the same name again" in fault(save(file.raw))

    def test_empty_name(self, save: Save) -> None:
        assert "tensor[0] name length" in fault(save(small_file(tensors=[TensorSpec("", [8])]).raw))

    @pytest.mark.parametrize("offsets", [(0, 0), (0, 32), (32, 0), (32, 32)])
    def test_overlap(self, save: Save, offsets: tuple[int, int]) -> None:
        specs = [TensorSpec(name, [16], offset=at) for name, at in zip("ab", offsets, strict=True)]
        file = small_file(tensors=specs)
        later = max((1, 0), key=lambda index: offsets[index])
        text = self.field_fault(save, file, f"tensor[{later}] '{'ab'[later]}' offset")
        assert (
            text == f"found {max(offsets)}, expected {min(offsets) + 64} or more, after '{'ab'[1 - later]}'"
        )

    def test_misaligned_start_of_data_counts_as_cut(self, save: Save) -> None:
        file = small_file()
        assert "tensor[0] 'first' data" in fault(save(file.raw[: file.field("padding").offset]))


class TestTruncation:
    """Files that end too soon. (B63)"""

    def test_every_cut_is_a_fault(self, save: Save) -> None:
        raw = small_file().raw
        for length in range(1, len(raw)):
            assert "expected" in fault(save(raw[:length]))

    @pytest.mark.parametrize("share", [0.25, 0.999])
    def test_part_of_a_file_names_the_tensor_and_both_sizes(self, save: Save, share: float) -> None:
        specs = [TensorSpec(f"blk.{index}", [256], offset=1024 * index) for index in range(100)]
        file = small_file(tensors=specs, data=bytes(102_400))
        length = int(len(file.raw) * share)
        cut = (length - file.field("data").offset) // 1024
        left = length - file.field("data").offset - 1024 * cut
        message = fault(save(file.raw[:length]))
        assert f"tensor[{cut}] 'blk.{cut}' data" in message
        assert f"found {left} bytes before the end of the file, expected 1024 " in message

    def test_one_byte_short(self, save: Save) -> None:
        message = fault(save(small_file().raw[:-1]))
        assert (
            "tensor[1] 'second' data" in message and "found 67 bytes" in message and "expected 68" in message
        )
        with open_gguf(save(small_file().raw)) as model:
            assert len(model.tensors) == 2

    def test_values_are_not_built_before_the_header_is_sound(self, save: Save) -> None:
        """A fault found after a vocabulary costs a small part of what the vocabulary would."""
        tokens = (g.ARRAY, (g.STRING, [f"token {index}" for index in range(30_000)]))
        path = save(small_file(metadata=[("tokens", tokens)]).raw[:-1])
        tracemalloc.start()
        try:
            with pytest.raises(ModelFileError, match="'second' data"):
                open_gguf(path)
            peak_bytes = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak_bytes < 100_000

    def test_large_claims_in_a_large_file_cost_no_memory(self, tmp_path: Path) -> None:
        """A length that fits a file of 4 GB (all holes) is walked over, not read."""
        path = tmp_path / "sparse.gguf"
        with path.open("wb") as file:
            raw = build([("text", (g.STRING, "")), ("end", (g.UINT8, 1))])
            file.write(raw.patched("metadata[0] 'text' length", struct.pack("<Q", 2**31)))
            file.truncate(2**32)
        assert "metadata[1] key length" in fault(path)
