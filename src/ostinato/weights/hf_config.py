"""Translate a config.json to GGUF's metadata keys.

Knows what the keys of transformers' configurations mean. What GGUF keeps in tensors (the factors of LongRoPE)
`rope_factors` gives as lists. Values go over as they are, and are checked where GGUF's are, in models/. A key
that would change the numbers and has no counterpart is refused. Next file: checkpoint.py, which called.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from ostinato.errors import ModelFileError, UnsupportedModelError
from ostinato.weights.hf_names import ARCHITECTURES, Architecture
from ostinato.weights.tensors import MetadataValue

Config = Mapping[str, Any]

_KEYS: Final = {
    "num_hidden_layers": "block_count",
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "max_position_embeddings": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "num_local_experts": "expert_count",
    "num_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
    "norm_topk_prob": "expert_weights_norm",
    "embedding_multiplier": "embedding_scale",
    "residual_multiplier": "residual_scale",
    "attention_multiplier": "attention.scale",
    "logits_scaling": "logit_scale",
}
"""Keys whose values mean the same."""
MAX_LAYERS: Final = 4096
_SOFTCAPS: Final = ("attn_logit_softcapping", "final_logit_softcapping")
_REFUSED: Final = (
    "quantization_config",
    "mlp_only_layers",
    "use_bidirectional_attention",
)
"""Keys that must be absent, null, false or empty."""


def architecture_of(path: Path, config: Config) -> Architecture:
    """Return the architecture of a configuration; `path` is the file's, for messages.

    Raises:
        UnsupportedModelError: it is not built, or is used in a way that is not.
    """
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        raise ModelFileError(f"{path}: 'model_type' is {model_type!r}; expected a name")
    if model_type not in ARCHITECTURES:
        known = ", ".join(sorted(ARCHITECTURES))
        raise UnsupportedModelError(f"{path}: model type {model_type!r} is not supported; these are: {known}")
    architecture = ARCHITECTURES[model_type]
    activation = config.get("hidden_activation") or config.get("hidden_act") or architecture.activation
    if activation != architecture.activation:
        raise UnsupportedModelError(
            f"{path}: activation {activation!r} is not supported; expected {architecture.activation!r}"
        )
    for key in _REFUSED:
        if config.get(key):
            raise UnsupportedModelError(f"{path}: {key!r} is {config[key]!r:.80}, which is not supported")
    if config.get("decoder_sparse_step", 1) != 1:
        raise UnsupportedModelError(f"{path}: experts in some layers only are not supported")
    return architecture


def metadata_of(path: Path, config: Config) -> dict[str, MetadataValue]:
    """Return the metadata that a GGUF file of this model would have; `path` is for messages.

    One key GGUF does not have: `rope.halves`, since here no architecture stores rotary pairs side by side.
    """
    name = architecture_of(path, config).name
    found: dict[str, Any] = {gguf: config[key] for key, gguf in _KEYS.items() if config.get(key) is not None}
    if isinstance(config.get("query_pre_attn_scalar"), int | float):
        found["attention.scale"] = _number(path, config, "query_pre_attn_scalar") ** -0.5
    found |= {key: config[key] or 0.0 for key in _SOFTCAPS if key in config}
    found |= _windows(path, config) | _rope(path, config) | {"rope.halves": True}
    if isinstance(config.get("no_rope_layers"), list):  # where a one means that the layer has it
        found["rope.layers"] = np.array([bool(flag) for flag in config["no_rope_layers"]])
    return {"general.architecture": name} | {f"{name}.{key}": value for key, value in found.items()}


def rope_factors(path: Path, config: Config) -> dict[str, list[float]]:
    """Return the tensors of factors that a GGUF file of this model would have."""
    rope = _rope_parameters(path, config)[0]
    if _rope_kind(rope) != "longrope":
        return {}
    found = {f"rope_factors_{which}.weight": rope.get(f"{which}_factor") for which in ("short", "long")}
    for key, factors in found.items():
        if (
            not isinstance(factors, list)
            or not all(isinstance(x, int | float) for x in factors)
            or not factors
        ):
            raise ModelFileError(f"{path}: the factors for {key!r} are {factors!r:.80}; expected numbers")
    return {key: [float(x) for x in factors or ()] for key, factors in found.items()}


def _windows(path: Path, config: Config) -> dict[str, Any]:
    """Return the sliding window and which layers have it."""
    window = config.get("sliding_window")
    if window is None or config.get("use_sliding_window") is False:
        return {}
    kinds, layers = config.get("layer_types"), _number(path, config, "num_hidden_layers")
    if layers > MAX_LAYERS:
        raise ModelFileError(f"{path}: 'num_hidden_layers' is {layers}; expected at most {MAX_LAYERS}")
    if kinds is None and config.get("use_sliding_window") and "max_window_layers" in config:
        first = _number(path, config, "max_window_layers")
        kinds = ["sliding_attention" if i >= first else "full_attention" for i in range(int(layers))]
    pattern: Any = config.get("sliding_window_pattern")
    if kinds is not None:
        known = {"sliding_attention": True, "full_attention": False}
        if not isinstance(kinds, list) or any(str(kind) not in known for kind in kinds):
            raise UnsupportedModelError(
                f"{path}: 'layer_types' is {kinds!r:.80}; known are {', '.join(known)}"
            )
        pattern = np.array([known[kind] for kind in kinds])
    found = {"attention.sliding_window": window}
    return found if pattern is None else found | {"attention.sliding_window_pattern": pattern}


def _rope_parameters(path: Path, config: Config) -> tuple[Config, Config]:
    """Return the parameters of the rotation, and of that of layers with a window, in either style."""
    given = _object(path, config, "rope_parameters")
    if "full_attention" in given:
        return _object(path, given, "full_attention"), _object(path, given, "sliding_attention")
    if not given:
        given = {"rope_theta": config.get("rope_theta"), **_object(path, config, "rope_scaling")}
    return given, {"rope_theta": config.get("rope_local_base_freq")}


def _rope_kind(rope: Config) -> str:
    kind = rope.get("rope_type") or rope.get("type") or "default"
    return "longrope" if "long_factor" in rope and kind in ("su", "yarn") else str(kind)


def _rope(path: Path, config: Config) -> dict[str, Any]:
    """Return the keys of the rotation."""
    rope, local = _rope_parameters(path, config)
    kind = _rope_kind(rope)
    if kind not in _SCALINGS:
        known = ", ".join(sorted(_SCALINGS))
        raise UnsupportedModelError(f"{path}: rope scaling {kind!r} is not supported; these are: {known}")
    found = {
        "rope.freq_base": rope.get("rope_theta") or config.get("rope_theta"),
        "rope.freq_base_swa": local.get("rope_theta"),
    }
    for values in (config, rope):
        if values.get("partial_rotary_factor") is not None:
            share = _number(path, values, "partial_rotary_factor")
            found["rope.dimension_count"] = int(_head_dim(path, config) * share)
    found |= _SCALINGS[kind](path, config, rope)
    return {key: value for key, value in found.items() if value is not None}


def _head_dim(path: Path, config: Config) -> int:
    if config.get("head_dim") is not None:
        return int(_number(path, config, "head_dim"))
    return int(_number(path, config, "hidden_size") // _number(path, config, "num_attention_heads"))


def _plain(path: Path, config: Config, rope: Config) -> dict[str, Any]:
    """Dynamic scaling, too: it changes nothing up to the length that the model was trained for."""
    return {}


def _linear(path: Path, config: Config, rope: Config) -> dict[str, Any]:
    return {"rope.scaling.type": "linear", "rope.scaling.factor": _number(path, rope, "factor")}


def _llama3(path: Path, config: Config, rope: Config) -> dict[str, Any]:
    keys = ("factor", "low_freq_factor", "high_freq_factor")
    numbers = {f"rope.scaling.{key}": _number(path, rope, key) for key in keys}
    original = {"rope.scaling.original_context_length": _original_length(config, rope)}
    return {"rope.scaling.type": "llama3", **numbers, **original}


def _yarn(path: Path, config: Config, rope: Config) -> dict[str, Any]:
    """GGUF's attention factor comes on top of the paper's, transformers' stands in its place."""
    if rope.get("truncate") is False:
        raise UnsupportedModelError(f"{path}: YaRN with 'truncate' false is not supported")
    factor = _number(path, rope, "factor")
    whole = None
    if rope.get("attention_factor") is not None:
        whole = _number(path, rope, "attention_factor")
    elif rope.get("mscale") and rope.get("mscale_all_dim"):
        over, under = _number(path, rope, "mscale"), _number(path, rope, "mscale_all_dim")
        whole = _magnitude(factor, over) / _magnitude(factor, under)
    return {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": factor,
        "rope.scaling.yarn_beta_fast": rope.get("beta_fast"),
        "rope.scaling.yarn_beta_slow": rope.get("beta_slow"),
        "rope.scaling.attn_factor": None if whole is None else whole / _magnitude(factor),
        "rope.scaling.original_context_length": _original_length(config, rope),
    }


def _longrope(path: Path, config: Config, rope: Config) -> dict[str, Any]:
    """Source of the attention factor: LongRoPE's code, by how many times the context became longer."""
    trained = _number(path, config, "max_position_embeddings")
    original = _original_length(config, rope) or trained
    if not isinstance(original, int) or original < 2:
        raise ModelFileError(f"{path}: the original context is {original!r:.80}; expected a number of tokens")
    times = _number(path, rope, "factor") if rope.get("factor") else trained / original
    default = math.sqrt(1 + math.log(times) / math.log(original)) if times > 1 else 1.0
    return {
        "rope.scaling.type": "longrope",
        "rope.scaling.attn_factor": rope.get("attention_factor") or default,
        "rope.scaling.original_context_length": original,
    }


_SCALINGS: Final = {
    "default": _plain,
    "dynamic": _plain,
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
}
"""transformers' name of a scaling -> what makes GGUF's keys of its parameters."""


def _magnitude(factor: float, scale: float = 1.0) -> float:
    return 0.1 * scale * math.log(factor) + 1 if factor > 1 else 1.0


def _original_length(config: Config, rope: Config) -> Any:
    """Return the context that is extended, or None where it is the one the model was trained for."""
    key = "original_max_position_embeddings"
    return rope.get(key) or config.get(key)


def _object(path: Path, values: Config, key: str) -> Config:
    value = values.get(key)
    if value is not None and not isinstance(value, dict):
        raise ModelFileError(f"{path}: {key!r} is {value!r:.80}; expected an object")
    return value or {}


def _number(path: Path, values: Config, key: str) -> float:
    value = values.get(key)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
        raise ModelFileError(f"{path}: {key!r} is {value!r:.80}; expected a positive number")
    return value
