"""Safetensors folders as model files: names, configuration in each of its styles, what is refused and how."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes.checkpoints import NAMES, TINY, answer, prompts, reference
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors_bytes import build, entry
from tiny import tiny_llama

from ostinato.errors import ModelFileError, ModelNotFoundError, UnsupportedModelError
from ostinato.models import build_program
from ostinato.weights.checkpoint import Checkpoint, open_checkpoint
from ostinato.weights.gguf import GGUFFile
from ostinato.weights.hf_config import metadata_of, rope_factors
from ostinato.weights.hf_names import ARCHITECTURES, gguf_name
from ostinato.weights.opened import open_model
from ostinato.weights.sources import resolve

CONFIG = Path("folder/config.json")
Change = Callable[[dict[str, Any]], None]


def config_of(name: str, **changes: Any) -> dict[str, Any]:
    """Return the configuration of a tiny checkpoint with keys changed; ... takes one away."""
    config = json.loads((TINY / name / "config.json").read_text()) | changes
    return {key: value for key, value in config.items() if value is not ...}


def copy(name: str, folder: Path, **changes: Any) -> Path:
    """Copy a tiny checkpoint, its configuration changed."""
    shutil.copytree(TINY / name, folder, dirs_exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config_of(name, **changes)))
    return folder


def without(metadata: dict[str, Any]) -> dict[str, Any]:
    """Return metadata with arrays as lists, to compare."""
    return {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in metadata.items()}


class Tripwire:
    """What fails the test when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return pytest.fail, ("it was unpickled",)


class TestOpening:
    def test_a_folder_and_a_file_in_it_and_an_index_lead_to_the_same(self) -> None:
        for name, inside in (("llama", "model.safetensors"), ("qwen3", "model.safetensors.index.json")):
            whole, part = open_model(TINY / name), open_model(TINY / name / inside)
            assert isinstance(whole, Checkpoint) and isinstance(part, Checkpoint)
            assert whole.tensors.keys() == part.tensors.keys()
            assert whole.size_bytes > sum(tensor.nbytes for tensor in whole.tensors.values())

    def test_other_paths_are_gguf(self, tmp_path: Path) -> None:
        from fakes.tiny_gguf import base_model

        with open_model(base_model()) as file:
            assert isinstance(file, GGUFFile)
        with pytest.raises(ModelNotFoundError, match="does not exist"):
            open_model(tmp_path / "none")

    def test_tensors_have_the_names_of_gguf(self) -> None:
        with open_checkpoint(TINY / "llama") as file:
            assert set(file.tensors) == set(tiny_llama().tensors)

    def test_a_closed_folder(self) -> None:
        with open_checkpoint(TINY / "llama") as file:
            tensor = file.tensors["output_norm.weight"]
        assert tensor.dequantize().shape == (32,)
        assert file.metadata["general.name"] == "llama"
        with pytest.raises(ValueError, match="is closed"):
            _ = file.tensors

    def test_gemmas_norms_have_their_one(self) -> None:
        """(B66)"""
        raw = open_model(TINY / "gemma2").tensors["output_norm.weight"]
        assert raw.type.name == "F32"
        assert abs(float(raw.dequantize().mean()) - 1) < 0.3

    def test_a_missing_config(self, tmp_path: Path) -> None:
        with pytest.raises(ModelNotFoundError, match=r"config\.json does not exist"):
            open_checkpoint(tmp_path)

    def test_old_buffers_are_no_weights_and_strangers_keep_their_names(self, tmp_path: Path) -> None:
        folder = copy("mistral", tmp_path)
        (folder / "model.safetensors").unlink()
        header = {
            "model.layers.0.self_attn.rotary_emb.inv_freq": entry("F32", [8], 0),
            "model.layers.0.self_attn.rogue.weight": entry("F32", [8], 32),
            "lm_head.weight": entry("F32", [8], 64),
        }
        (folder / "model.safetensors").write_bytes(build(header, bytes(96)))
        found = open_checkpoint(folder).tensors
        assert set(found) == {"model.layers.0.self_attn.rogue.weight", "output.weight"}

    def test_two_tensors_of_one_meaning(self, tmp_path: Path) -> None:
        folder = copy("mistral", tmp_path)
        header = {"lm_head.weight": entry("F32", [1], 0), "output.weight": entry("F32", [1], 4)}
        (folder / "model.safetensors").write_bytes(build(header, bytes(8)))
        with pytest.raises(ModelFileError, match=r"two tensors mean 'output\.weight'"):
            open_checkpoint(folder)


class TestTiedOutput:
    """Which matrix makes logits. (B67)"""

    def test_an_output_matrix_beside_a_tied_embedding_is_left_out(self, tmp_path: Path) -> None:
        assert "output.weight" in open_checkpoint(TINY / "llama").tensors
        file = open_checkpoint(copy("llama", tmp_path, tie_word_embeddings=True))
        assert "output.weight" not in file.tensors
        build_program(file)

    def test_where_the_configuration_does_not_say_the_architecture_does(self, tmp_path: Path) -> None:
        build_program(open_checkpoint(copy("gemma2", tmp_path / "g", tie_word_embeddings=...)))
        with pytest.raises(ModelFileError, match=r"'lm_head\.weight' is missing"):
            open_checkpoint(copy("llama-linear", tmp_path / "l", tie_word_embeddings=...))


class TestRefusals:
    def test_pickles_are_never_loaded(self, tmp_path: Path) -> None:
        """(B65) Not beside a configuration, not by their path, not under the name of something else."""
        folder = copy("llama", tmp_path / "llama")
        (folder / "model.safetensors").unlink()
        pickled = folder / "pytorch_model.bin"
        pickled.write_bytes(pickle.dumps(Tripwire()))
        with pytest.raises(ModelFileError, match="no safetensors file"):
            open_model(folder)
        with pytest.raises(ModelNotFoundError, match="is a folder, not a model file"):
            resolve(str(folder))
        with pytest.raises(ModelFileError, match=r"expected b.GGUF"):
            open_model(pickled)
        with pytest.raises(ModelFileError, match="is this a safetensors file"):
            open_model(pickled.rename(folder / "model.safetensors"))

    def test_an_unknown_model_type_is_refused_with_those_known(self) -> None:
        with pytest.raises(UnsupportedModelError) as error:
            metadata_of(CONFIG, config_of("llama", model_type="bert"))
        assert "'bert'" in str(error.value) and all(name in str(error.value) for name in ARCHITECTURES)

    @pytest.mark.parametrize(
        ("name", "changes", "words"),
        [
            ("llama", {"model_type": ...}, "'model_type' is None"),
            ("llama", {"hidden_act": "relu"}, "activation 'relu' is not supported; expected 'silu'"),
            ("gemma2", {"hidden_activation": "gelu"}, "expected 'gelu_pytorch_tanh'"),
            ("llama", {"quantization_config": {"quant_method": "gptq"}}, "'quantization_config' is"),
            ("qwen3moe", {"mlp_only_layers": [0]}, "'mlp_only_layers' is [0]"),
            ("qwen3moe", {"decoder_sparse_step": 2}, "in some layers only"),
            ("gemma3", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
            ("gemma3", {"layer_types": ["full_attention", "mamba"]}, "'layer_types' is"),
            ("gemma3", {"layer_types": "all"}, "'layer_types' is 'all'"),
            ("gemma2", {"query_pre_attn_scalar": 0}, "expected a positive number"),
            ("llama", {"rope_parameters": [1]}, "'rope_parameters' is [1]; expected an object"),
            ("llama", {"rope_parameters": {"rope_type": "mrope"}}, "'mrope' is not supported; these are:"),
            ("llama", {"rope_parameters": {"rope_type": "linear"}}, "'factor' is None"),
            ("qwen2", {"rope_parameters": {"rope_type": "yarn", "factor": 0}}, "'factor' is 0"),
            ("qwen2", {"rope_parameters": {"rope_type": "yarn", "truncate": False}}, "'truncate' false"),
            ("phi3", {"rope_parameters": {"rope_type": "longrope", "long_factor": "x"}}, "factors for"),
        ],
    )
    def test_wrong_or_unsupported_values(self, name: str, changes: dict[str, Any], words: str) -> None:
        with pytest.raises(ModelFileError) as error:
            metadata_of(CONFIG, config_of(name, **changes))
            rope_factors(CONFIG, config_of(name, **changes))
        assert words in str(error.value)
        assert str(error.value).startswith("folder/config.json: ")

    @settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(data=st.data())
    def test_any_value_of_any_key_gives_a_program_or_one_clear_line(
        self, tmp_path: Path, data: st.DataObject
    ) -> None:
        name = data.draw(st.sampled_from(NAMES))
        config = config_of(name)
        rope = config["rope_parameters"]
        within = data.draw(st.sampled_from([config, rope, rope.get("full_attention", rope)]))
        key = data.draw(st.sampled_from(sorted(within)))
        within[key] = data.draw(ODD)
        folder = tmp_path / name
        if not folder.exists():
            shutil.copytree(TINY / name, folder)
        (folder / "config.json").write_text(json.dumps(config))
        try:
            with open_checkpoint(folder) as file:
                build_program(file)
        except ModelFileError as error:
            assert "\n" not in str(error)


ODD = st.recursive(
    st.none() | st.booleans() | st.floats() | st.sampled_from(["", "yarn", "x" * 300]) | st.integers(-3, 300),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["factor", "a"]), inner),
    max_leaves=4,
)


class TestStyles:
    """The same model in the words of older configurations."""

    @pytest.mark.parametrize(
        ("name", "old"),
        [
            ("llama", lambda rope: {"rope_theta": rope.pop("rope_theta"), "rope_scaling": rope}),
            (
                "llama-linear",
                lambda rope: {"rope_theta": 10000.0, "rope_scaling": {"type": "linear", "factor": 4}},
            ),
            ("qwen3", lambda rope: {"rope_theta": 1000000.0, "rope_scaling": None}),
            (
                "gemma3",
                lambda rope: {
                    "rope_theta": 1e6,
                    "rope_local_base_freq": 5000.0,
                    "rope_scaling": {"rope_type": "linear", "factor": 4.0},
                },
            ),
            (
                "phi3",
                lambda rope: {
                    "rope_theta": rope.pop("rope_theta"),
                    "partial_rotary_factor": rope.pop("partial_rotary_factor"),
                    "rope_scaling": {
                        "type": "su",
                        "long_factor": rope["long_factor"],
                        "short_factor": rope["short_factor"],
                    },
                },
            ),
        ],
    )
    def test_rope_scaling_beside_its_base(self, name: str, old: Any) -> None:
        new = config_of(name)
        changed = config_of(name, rope_parameters=..., **old(dict(new["rope_parameters"])))
        assert without(metadata_of(CONFIG, changed)) == without(metadata_of(CONFIG, new))
        assert rope_factors(CONFIG, changed) == rope_factors(CONFIG, new)

    def test_dynamic_scaling_changes_nothing_within_the_trained_length(self) -> None:
        """(B70)"""
        dynamic = config_of(
            "mistral", rope_parameters={"rope_theta": 10000.0, "rope_type": "dynamic", "factor": 2.0}
        )
        assert metadata_of(CONFIG, dynamic) == metadata_of(CONFIG, config_of("mistral"))

    def test_windows(self) -> None:
        window, pattern = "qwen2.attention.sliding_window", "qwen2.attention.sliding_window_pattern"
        off = config_of("qwen2", sliding_window=8)
        assert window not in metadata_of(CONFIG, off)
        on = config_of(
            "qwen2", sliding_window=8, use_sliding_window=True, max_window_layers=1, layer_types=...
        )
        found = without(metadata_of(CONFIG, on))
        assert (found[window], found[pattern]) == (8, [False, True])
        every = metadata_of(CONFIG, config_of("gemma3", layer_types=..., sliding_window_pattern=3))
        assert every["gemma3.attention.sliding_window_pattern"] == 3
        mistral = metadata_of(CONFIG, config_of("mistral"))
        assert mistral["llama.attention.sliding_window"] == 8

    @pytest.mark.parametrize(
        ("name", "key", "gguf_key", "meaning"),
        [
            ("qwen3moe", "norm_topk_prob", "qwen3moe.expert_weights_norm", False),
            ("mixtral", "rope_parameters", "llama.rope.freq_base", 1e6),
            ("smollm3", "rope_parameters", "smollm3.rope.freq_base", 2e6),
            ("gemma3", "rope_parameters", "gemma3.rope.freq_base", 1e6),
            ("gemma2", "query_pre_attn_scalar", "gemma2.attention.scale", 1 / 16),
        ],
    )
    def test_what_is_not_said_means_what_the_architecture_says(
        self, tmp_path: Path, name: str, key: str, gguf_key: str, meaning: object
    ) -> None:
        assert open_checkpoint(copy(name, tmp_path, **{key: ...})).metadata[gguf_key] == meaning

    def test_attention_factors_of_yarn(self) -> None:
        def factor(**more: float) -> Any:
            rope = config_of("qwen2")["rope_parameters"] | more
            return metadata_of(CONFIG, config_of("qwen2", rope_parameters=rope)).get(
                "qwen2.rope.scaling.attn_factor"
            )

        paper = 0.1 * np.log(4) + 1
        assert factor() is None
        assert factor(attention_factor=1.0) * paper == pytest.approx(1.0)
        assert factor(mscale=1.0, mscale_all_dim=1.0) * paper == pytest.approx(1.0)

    def test_soft_caps_that_are_off(self, tmp_path: Path) -> None:
        """Where GGUF has defaults, null must not fall back to them."""
        folder = copy("gemma2", tmp_path, attn_logit_softcapping=None, final_logit_softcapping=None)
        prompt = next(prompts("gemma2"))
        off = answer(reference(open_model(folder), 128), prompt)
        on = answer(reference(open_model(TINY / "gemma2"), 128), prompt)
        assert np.abs(off).max() > 8 > np.abs(on).max()


class TestNames:
    def test_experts_have_numbers(self) -> None:
        name = "model.layers.3.block_sparse_moe.experts.12.w2.weight"
        assert gguf_name(ARCHITECTURES["mixtral"], name) == "blk.3.ffn_down.12.weight"
        assert gguf_name(ARCHITECTURES["llama"], name) == name

    def test_biases_go_with_their_weights(self) -> None:
        name = "model.layers.10.self_attn.q_proj.bias"
        assert gguf_name(ARCHITECTURES["qwen2"], name) == "blk.10.attn_q.bias"
