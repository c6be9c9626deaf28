"""Whatever bytes a file holds, opening it gives a sound model or one fault, soon and in little memory.

All of it is deterministic: seeds are fixed, hypothesis is derandomised.
"""

from __future__ import annotations

import itertools
import random
import re
import struct
import time
import tracemalloc
from pathlib import Path

import gguf
import gguf_bytes as g
import numpy as np
import pytest
from gguf_bytes import GGUFBytes, TensorSpec, build
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ostinato.errors import ModelFileError
from ostinato.weights.gguf import open_gguf
from ostinato.weights.quants import TENSOR_TYPES

FAULT = re.compile(r"[^\n]+model\.gguf(: .+ at byte \d+: found .+, expected .+| is .+)")
NASTY = [0, 1, 2, 3, 4, 8, 9, 12, 13, 31, 32, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1]
NASTY_LONG = [2**32, 2**40, 2**60, 2**61, 2**62, 2**63 - 1, 2**63, 2**64 - 32, 2**64 - 1]

deterministic = settings(
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=300,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("fuzz") / "model.gguf"
    file.touch()
    return file


def overwrite(path: Path, raw: bytes) -> None:
    """Replace the bytes in place: to cut a file to nothing first costs a file system a millisecond."""
    with path.open("r+b") as file:
        file.write(raw)
        file.truncate()


def opens(path: Path, raw: bytes) -> bool:
    """Open bytes as a file and say whether it is sound; accept nothing but a sound model or a fault."""
    overwrite(path, raw)
    tracemalloc.start()
    begin = time.perf_counter()
    try:
        sound = check_sound(path, len(raw))
    except ModelFileError as error:
        assert FAULT.fullmatch(str(error)), str(error)
        sound = False
    seconds, (_, peak_bytes) = time.perf_counter() - begin, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert seconds < 1 and peak_bytes < 2_000_000
    return sound


def check_sound(path: Path, num_bytes: int) -> bool:
    """Open a file and use all of it."""
    with open_gguf(path) as model:
        end = 0
        for tensor in sorted(model.tensors.values(), key=lambda tensor: tensor.offset):
            assert end <= tensor.offset and tensor.offset % model.alignment == 0
            end = tensor.offset + tensor.nbytes
            assert tensor.nbytes == tensor.type.num_bytes(tensor.shape)
            if tensor.type.is_supported:
                assert tensor.dequantize().size == tensor.num_elements
        assert end <= num_bytes
        for key, value in model.metadata.items():
            assert key and isinstance(value, bool | int | float | str | list | np.ndarray)
    return True


def rich_file() -> GGUFBytes:
    """A small file with every kind of field."""
    inner = [(g.STRING, ["x", "yz"]), (g.BOOL, [0, 1])]
    metadata = [
        ("general.alignment", (g.UINT32, 32)),
        ("name", (g.STRING, "toy")),
        ("flag", (g.BOOL, 1)),
        ("rate", (g.FLOAT64, 0.5)),
        ("tokens", (g.ARRAY, (g.STRING, ["a", "bc", b"\xff"]))),
        ("scores", (g.ARRAY, (g.FLOAT32, [0.0, -1.0]))),
        ("nested", (g.ARRAY, (g.ARRAY, inner))),
    ]
    tensors = [
        TensorSpec("norm", [8]),
        TensorSpec("embed", [32, 3], g.Q8_0, 32),
        TensorSpec("kernel", [2, 2, 2, 2], g.F16, 160),
    ]
    return build(metadata, tensors, bytes(range(192)))


def test_the_unharmed_file_opens(path: Path) -> None:
    assert opens(path, bytes(rich_file().raw))


def test_every_field_with_every_nasty_value(path: Path) -> None:
    file = rich_file()
    num_sound = 0
    for field in file.fields:
        if field.num_bytes not in (1, 4, 8):
            continue
        for value in NASTY + NASTY_LONG:
            if value < 256**field.num_bytes:
                num_sound += opens(path, file.patched(field.label, value.to_bytes(field.num_bytes, "little")))
    assert num_sound > 0


@pytest.mark.parametrize("label", ["length", "count"])
def test_every_length_and_count_is_bounded_where_it_stands(path: Path, label: str) -> None:
    """A huge length or count is refused at its own byte, before anything that follows it is looked at."""
    file = rich_file()
    for field in file.fields:
        if field.label.endswith(label) and field.num_bytes == 8:
            for value in NASTY_LONG:
                overwrite(path, file.patched(field.label, value.to_bytes(8, "little")))
                with pytest.raises(
                    ModelFileError, match=rf" at byte {field.offset}: found {value}, expected"
                ):
                    open_gguf(path)


def test_every_cut(path: Path) -> None:
    raw = bytes(rich_file().raw)
    assert not any(opens(path, raw[:length]) for length in range(len(raw)))


def test_every_bit_of_the_header_flipped(path: Path) -> None:
    file = rich_file()
    for index in range(file.field("padding").offset):
        for bit in range(8):
            raw = bytearray(file.raw)
            raw[index] ^= 1 << bit
            opens(path, bytes(raw))


def test_two_fields_at_once(path: Path) -> None:
    """Pairs of wrong fields, as when a dimension and an offset wrap around together."""
    file = rich_file()
    fields = [field for field in file.fields if field.num_bytes in (4, 8)]
    chooser = random.Random(1)
    for first, second in itertools.combinations(fields, 2):
        raw = bytearray(file.raw)
        for field in (first, second):
            value = chooser.choice([value for value in NASTY + NASTY_LONG if value < 256**field.num_bytes])
            raw[field.offset : field.offset + field.num_bytes] = value.to_bytes(field.num_bytes, "little")
        opens(path, bytes(raw))


@pytest.fixture(scope="module")
def llama(path: Path) -> bytes:
    """A file with the header of a real llama model, the vocabulary and the matrices cut down."""
    rng = np.random.default_rng(5)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("Toy Instruct")
    writer.add_license("apache-2.0")
    writer.add_tags(["text-generation", "en"])
    writer.add_block_count(1)
    writer.add_context_length(2048)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(64)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_rope_freq_base(100000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(["<|endoftext|>", "<|im_start|>", "Ġthe", "the", "語", "!"])
    writer.add_token_types([3, 3, 1, 1, 1, 1])
    writer.add_token_merges(["t h", "th e", "Ġ t"])
    writer.add_eos_token_id(0)
    writer.add_add_bos_token(False)
    writer.add_chat_template("{% for message in messages %}{{ message['content'] }}{% endfor %}")
    for name, shape, kind in [
        ("token_embd.weight", (6, 32), "Q8_0"),
        ("blk.0.attn_norm.weight", (32,), "F32"),
        ("blk.0.attn_q.weight", (32, 32), "Q4_1"),
        ("blk.0.ffn_down.weight", (32, 64), "Q4_0"),
        ("output_norm.weight", (32,), "F32"),
    ]:
        quantised = gguf.GGMLQuantizationType[kind]
        numbers = rng.normal(size=shape).astype(np.float32)
        writer.add_tensor(name, gguf.quants.quantize(numbers, quantised), raw_dtype=quantised)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes()


@pytest.fixture(scope="module")
def header_len(path: Path, llama: bytes) -> int:
    overwrite(path, llama)
    with open_gguf(path) as model:
        return min(tensor.offset for tensor in model.tensors.values())


class TestRealHeader:
    def test_opens(self, path: Path, llama: bytes) -> None:
        assert opens(path, llama)

    def test_every_cut(self, path: Path, llama: bytes, header_len: int) -> None:
        lengths = itertools.chain(range(header_len), range(header_len, len(llama), 97), [len(llama) - 1])
        assert not any(opens(path, llama[:length]) for length in lengths)

    @pytest.mark.parametrize("value", [0x00, 0x7F, 0xFF])
    def test_every_byte_overwritten(self, path: Path, llama: bytes, header_len: int, value: int) -> None:
        for index in range(header_len):
            opens(path, llama[:index] + bytes([value]) + llama[index + 1 :])

    def test_random_flips(self, path: Path, llama: bytes, header_len: int) -> None:
        chooser = random.Random(2)
        for _ in range(1500):
            harmed = bytearray(llama)
            for _ in range(chooser.randint(1, 8)):
                harmed[chooser.randrange(header_len)] ^= 1 << chooser.randrange(8)
            opens(path, bytes(harmed))

    def test_stretches_removed_doubled_and_overwritten(
        self, path: Path, llama: bytes, header_len: int
    ) -> None:
        chooser = random.Random(3)
        for _ in range(600):
            begin = chooser.randrange(header_len)
            end = begin + chooser.randint(1, 64)
            stretch = chooser.choice([b"", llama[begin:end] * 2, bytes(end - begin), b"\xff" * (end - begin)])
            opens(path, llama[:begin] + stretch + llama[end:])


texts = st.one_of(st.text(max_size=8), st.binary(max_size=8))
scalars: st.SearchStrategy[g.Typed] = st.one_of(
    st.tuples(st.just(g.UINT8), st.integers(0, 255)),
    st.tuples(st.just(g.INT32), st.integers(-(2**31), 2**31 - 1)),
    st.tuples(st.just(g.UINT64), st.integers(0, 2**64 - 1)),
    st.tuples(st.just(g.FLOAT32), st.floats(width=32)),
    st.tuples(st.just(g.BOOL), st.integers(0, 1)),
    st.tuples(st.just(g.STRING), texts),
)
arrays: st.SearchStrategy[g.Typed] = st.one_of(
    st.tuples(st.just(g.STRING), st.lists(texts, max_size=4)),
    st.tuples(st.just(g.INT16), st.lists(st.integers(-(2**15), 2**15 - 1), max_size=4)),
    st.tuples(st.just(g.FLOAT64), st.lists(st.floats(), max_size=4)),
)
values = st.one_of(
    scalars,
    st.tuples(st.just(g.ARRAY), arrays),
    st.tuples(st.just(g.ARRAY), st.tuples(st.just(g.ARRAY), st.lists(arrays, max_size=3))),
)
keys = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8).filter(
    lambda key: key != "general.alignment"
)


@st.composite
def files(draw: st.DrawFn) -> GGUFBytes:
    """A sound file of any metadata and tensors."""
    metadata = draw(st.dictionaries(keys, values, max_size=4))
    specs, end = [], 0
    for name in draw(st.lists(keys, max_size=4, unique=True)):
        tensor_type = TENSOR_TYPES[draw(st.sampled_from(sorted(TENSOR_TYPES)))]
        dims = draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
        dims[0] *= tensor_type.block_size
        offset = end + 32 * draw(st.integers(0, 2))
        specs.append(TensorSpec(name, dims, tensor_type.id, offset))
        end = -(-(offset + tensor_type.num_bytes(tuple(reversed(dims)))) // 32) * 32
    return build(list(metadata.items()), draw(st.permutations(specs)), bytes(end))


class TestGenerated:
    @deterministic
    @given(files())
    def test_sound_files_open(self, path: Path, file: GGUFBytes) -> None:
        assert opens(path, bytes(file.raw))

    @deterministic
    @given(files(), st.data())
    def test_files_with_wrong_fields(self, path: Path, file: GGUFBytes, data: st.DataObject) -> None:
        raw = bytearray(file.raw)
        for field in data.draw(st.lists(st.sampled_from(file.fields), min_size=1, max_size=3)):
            number = data.draw(st.sampled_from(NASTY + NASTY_LONG) | st.integers(0, 2**64 - 1))
            width = min(field.num_bytes, 8)
            raw[field.offset : field.offset + width] = struct.pack("<Q", number)[:width]
        opens(path, bytes(raw))

    @deterministic
    @given(st.binary(max_size=200))
    def test_any_bytes_after_the_magic(self, path: Path, rest: bytes) -> None:
        opens(path, b"GGUF" + rest)

    @deterministic
    @given(st.sampled_from([2, 3]), st.integers(0, 3), st.integers(0, 3), st.binary(max_size=300))
    def test_any_bytes_after_the_start(
        self, path: Path, version: int, num_tensors: int, num_entries: int, rest: bytes
    ) -> None:
        opens(path, b"GGUF" + struct.pack("<IQQ", version, num_tensors, num_entries) + rest)

    @deterministic
    @given(st.binary(max_size=100))
    def test_any_bytes(self, path: Path, raw: bytes) -> None:
        assert not opens(path, raw)
