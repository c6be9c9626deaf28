"""From metadata to programs: what is refused and how it is said, and rope scaling by its formulas."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fakes.checkpoints import NAMES, TINY
from tiny import TYPES, TinyFile, tiny_llama

from ostinato.errors import ModelFileError, UnsupportedModelError
from ostinato.models import ARCHITECTURES, build_program
from ostinato.models.keys import Keys
from ostinato.models.rope import Rotation, read_rotation, rope_frequencies
from ostinato.ops.program import Attention, Experts, MatMul, Rope
from ostinato.weights.opened import open_model
from ostinato.weights.tensors import Tensor


def changed(file: TinyFile, **metadata: Any) -> TinyFile:
    """Change metadata, dots for underscores twice; None takes a key away."""
    named = {f"llama.{key.replace('__', '.')}": value for key, value in metadata.items()}
    merged = {key: value for key, value in {**file.metadata, **named}.items() if value is not None}
    return replace(file, metadata=merged)


def numbers(name: str, *values: float) -> Tensor:
    return Tensor(name, (len(values),), TYPES["F32"], np.array(values, np.float32).view(np.uint8), 0)


def opened(name: str) -> TinyFile:
    """Return a tiny checkpoint whose metadata and tensors can be changed."""
    file = open_model(TINY / name)
    return TinyFile(dict(file.metadata), dict(file.tensors), file.path)


class TestRefusals:
    def test_an_unknown_architecture_is_refused_with_those_known(self) -> None:
        file = replace(tiny_llama(), metadata={"general.architecture": "mamba"})
        with pytest.raises(UnsupportedModelError) as error:
            build_program(file)
        assert "'mamba'" in str(error.value)
        assert all(name in str(error.value) for name in [*ARCHITECTURES, "Mistral", "Mixtral"])

    @pytest.mark.parametrize("name", [7, "", None])
    def test_a_file_that_names_no_architecture(self, name: Any) -> None:
        with pytest.raises(ModelFileError, match=r"general\.architecture"):
            build_program(replace(tiny_llama(), metadata={"general.architecture": name}))

    @pytest.mark.parametrize("name", NAMES)
    def test_each_missing_tensor_is_listed_by_name(self, name: str) -> None:
        whole = opened(name)
        for tensor in [t for t in whole.tensors if t.startswith("blk.1.") or t == "output_norm.weight"]:
            if tensor.endswith(".bias") and name != "qwen2":
                continue  # a bias that an architecture may have or not
            rest = {key: value for key, value in whole.tensors.items() if key != tensor}
            with pytest.raises(ModelFileError) as error:
                build_program(replace(whole, tensors=rest))
            assert "tensors are missing" in str(error.value)
            expert_named = tensor.replace(".0.weight", "_exps.weight")  # without the first: stacked ones
            assert tensor in str(error.value) or expert_named in str(error.value), str(error.value)

    @pytest.mark.parametrize("name", NAMES)
    def test_tensors_without_a_use_are_listed_by_name(self, name: str) -> None:
        file = opened(name)
        extra = {key: numbers(key, 1.0) for key in ("blk.0.attn_sinks.weight", "rogue.bias")}
        with pytest.raises(UnsupportedModelError, match=r"2 have no use.*blk\.0\.attn_sinks\.weight.*rogue"):
            build_program(replace(file, tensors={**file.tensors, **extra}))

    @pytest.mark.parametrize("name", NAMES)
    def test_each_misshapen_tensor_is_named(self, name: str) -> None:
        file = opened(name)
        for tensor in file.tensors.values():
            if tensor.name == "token_embd.weight" or tensor.name.startswith("rope"):
                continue
            shape = (*tensor.shape[:-1], tensor.shape[-1] + 1)
            with pytest.raises(ModelFileError) as error:
                tensors = {**file.tensors, tensor.name: replace(tensor, shape=shape)}
                build_program(replace(file, tensors=tensors))
            assert f"'{tensor.name}' has shape {shape}; expected {tensor.shape}" in str(error.value)

    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"block_count": None}, "is missing"),
            ({"block_count": 0}, "expected a whole number from 1"),
            ({"block_count": 4097}, "to 4096"),
            ({"expert_count": 4097, "expert_used_count": 1}, "to 4096"),
            ({"block_count": True}, "expected a whole number"),
            ({"embedding_length": 2**30}, "to 16777216"),
            ({"attention__head_count_kv": 3}, "not a multiple of the 3"),
            ({"attention__value_length": 32}, "keys of 16 and values of 32"),
            ({"attention__layer_norm_rms_epsilon": 0.0}, "expected a positive number"),
            ({"attention__layer_norm_rms_epsilon": math.nan}, "expected a positive number"),
            ({"rope__freq_base": "big"}, "expected a positive number"),
            ({"rope__dimension_count": 15}, "expected an even number to 16"),
            ({"rope__dimension_count": 18}, "expected an even number to 16"),
            ({"rope__scaling__type": "spiral"}, "'spiral' is not supported; these are: linear, llama3"),
            ({"rope__scaling__type": 3}, "expected a text"),
            ({"rope__halves": 1}, "expected true or false"),
            ({"attention__sliding_window": -1}, "whole number from 0"),
            ({"attention__sliding_window_pattern": np.array([True])}, "expected 2 bool"),
            ({"attention__sliding_window_pattern": np.array([1, 0])}, "expected 2 bool"),
            ({"expert_count": 4}, "expert_used_count' is missing"),
            ({"expert_count": 4, "expert_used_count": 5}, "at most the 4 experts"),
        ],
    )
    def test_wrong_metadata(self, changes: dict[str, Any], words: str) -> None:
        with pytest.raises(ModelFileError) as error:
            build_program(changed(tiny_llama(), **changes))
        assert words in str(error.value)


def rotation(context: int = 4096, tensors: tuple[Tensor, ...] = (), **metadata: Any) -> Rotation:
    file = changed(tiny_llama(), **{f"rope__scaling__{key}": value for key, value in metadata.items()})
    file = replace(file, tensors={**file.tensors, **{tensor.name: tensor for tensor in tensors}})
    return read_rotation(Keys(file), 16, context)


PLAIN = np.array([10000 ** (-i / 8) for i in range(8)])


class TestRopeScaling:
    """Against the formulas of the papers, written out here another way. (B70)"""

    def test_plain(self) -> None:
        assert rope_frequencies(10000.0, 16) == pytest.approx(PLAIN, rel=1e-12)
        assert rotation() == Rotation(rope_frequencies(10000.0, 16))
        assert rotation(type="none", factor=4.0) == rotation()

    def test_linear(self) -> None:
        assert rotation(type="linear", factor=2.0).frequencies == pytest.approx(PLAIN / 2, rel=1e-12)
        assert rotation(factor=2.0).frequencies == pytest.approx(PLAIN / 2, rel=1e-12)

    def test_llama3(self) -> None:
        scaling = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
        got = rotation(type="llama3", original_context_length=8192, **scaling).frequencies
        for frequency, plain in zip(got, PLAIN, strict=True):
            wavelength = 2 * math.pi / plain
            smooth = (8192 / wavelength - 1) / 3
            expected = (1 - smooth) * plain / 8 + smooth * plain
            expected = plain / 8 if wavelength > 8192 else plain if wavelength < 2048 else expected
            assert frequency == pytest.approx(expected, rel=1e-9)
        with pytest.raises(ModelFileError, match="expected less than"):
            rotation(type="llama3", factor=8.0, low_freq_factor=4.0, high_freq_factor=4.0)

    def test_yarn(self) -> None:
        got = rotation(type="yarn", factor=4.0, original_context_length=4096)
        edges = [8 * math.log(4096 / (turns * 2 * math.pi)) / math.log(10000) for turns in (32, 1)]
        low, high = math.floor(edges[0]), math.ceil(edges[1])
        slowed = np.clip((np.arange(8) - low) / (high - low), 0, 1)
        assert got.frequencies == pytest.approx(PLAIN / 4 * slowed + PLAIN * (1 - slowed), rel=1e-9)
        assert got.magnitude == pytest.approx(0.1 * math.log(4) + 1)
        assert 0 < slowed[3] < 1
        more = rotation(type="yarn", factor=4.0, original_context_length=4096, attn_factor=1.5)
        assert more.magnitude == pytest.approx(1.5 * got.magnitude)

    def test_longrope_takes_the_long_factors_in_a_longer_context_only(self) -> None:
        short, long = [1.0 + i / 10 for i in range(8)], [2.0 + i for i in range(8)]
        tensors = (
            numbers("rope_factors_short.weight", *short),
            numbers("rope_factors_long.weight", *long),
        )
        for context, factors in ((64, short), (65, long)):
            got = rotation(context, tensors, original_context_length=64, attn_factor=1.2)
            assert got.frequencies == pytest.approx(PLAIN / factors, rel=1e-6)
            assert got.magnitude == 1.2

    def test_a_tensor_of_factors_and_a_factor_both_count(self) -> None:
        tensor = numbers("rope_freqs.weight", *range(1, 9))
        got = rotation(tensors=(tensor,), type="linear", factor=2.0).frequencies
        assert got == pytest.approx(PLAIN / 2 / np.arange(1, 9), rel=1e-6)

    @pytest.mark.parametrize("values", [(1.0,) * 7, (0.0,) * 8, (math.inf,) * 8])
    def test_wrong_factors(self, values: tuple[float, ...]) -> None:
        with pytest.raises(ModelFileError, match=r"rope_freqs\.weight"):
            rotation(tensors=(numbers("rope_freqs.weight", *values),))

    def test_half_of_the_longrope_factors_is_missing(self) -> None:
        with pytest.raises(ModelFileError, match=r"rope_factors_long\.weight' is missing"):
            rotation(65, (numbers("rope_factors_short.weight", *[1.0] * 8),), original_context_length=64)


class TestPrograms:
    def test_windows_of_gemma_without_a_pattern_in_the_file(self) -> None:
        """Gemma 2: every other layer, the first one first; Gemma 3: five of six."""
        for name, every in (("gemma2", 2), ("gemma3", 6)):
            file = opened(name)
            key, metadata = f"{name}.attention.sliding_window_pattern", dict(file.metadata)
            metadata.pop(key)
            program = build_program(replace(file, metadata=metadata))
            windows = [op.window for op in program.ops if isinstance(op, Attention)]
            assert windows == [0 if (i + 1) % every == 0 else 8 for i in range(len(windows))]

    def test_gemma3_rotates_layers_with_a_window_by_the_local_base(self) -> None:
        program = build_program(open_model(TINY / "gemma3"))
        bases = [op.frequencies for op in program.ops if isinstance(op, Rope) and op.x == "q"]
        local, everywhere = rope_frequencies(5000.0, 16), rope_frequencies(1e6, 16)
        scaled = tuple(frequency / 4 for frequency in everywhere)
        assert bases == [local, local, scaled, local]

    def test_smollm3_rotates_nothing_in_every_fourth_layer(self) -> None:
        program = build_program(open_model(TINY / "smollm3"))
        assert sum(isinstance(op, Rope) for op in program.ops) == 2 * 3

    def test_phi3_takes_rows_of_shared_matrices(self) -> None:
        program = build_program(open_model(TINY / "phi3"))
        rows = [op.weight.rows for op in program.ops if isinstance(op, MatMul) and op.weight.rows]
        assert rows[:5] == [(0, 64), (64, 96), (96, 128), (0, 64), (64, 128)]

    @pytest.mark.parametrize(("name", "normalized"), [("mixtral", True), ("qwen3moe", False)])
    def test_experts(self, name: str, normalized: bool) -> None:
        program = build_program(open_model(TINY / name))
        (first, *_) = (op for op in program.ops if isinstance(op, Experts))
        assert first.normalized == normalized
        assert len({weight.name for weight in first.gate}) == len(first.gate) == program.widths["scores"]

    @pytest.mark.parametrize("name", NAMES)
    def test_only_buffers_that_are_written_have_a_width(self, name: str) -> None:
        program = build_program(open_model(TINY / name))
        written = {op.out for op in program.ops if not isinstance(op, Rope) and hasattr(op, "out")}
        assert program.widths.keys() == written
