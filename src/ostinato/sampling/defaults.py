"""How a model's makers say to sample it: the keys of a model file, read into `SamplingParams`.

Knows the names that files have for parameters, and which of them are not built. Must not open a file: it is
given what the file says. Next on the path: `params.py`. What is done with the result: docs/sampling.md.

Sources: the `general.sampling.*` keys of the GGUF specification; `GenerationConfig` of transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ostinato.errors import InvalidRequestError
from ostinato.sampling.params import SamplingParams

_GGUF = "general.sampling."
_GGUF_FIELDS = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
    "penalty_last_n": "repetition_window",
}
_GGUF_OFF = {"xtc_probability": 0, "mirostat": 0}
_GGUF_MEANINGLESS_ALONE = {"xtc_threshold", "mirostat_tau", "mirostat_eta"}
_CONFIG_FIELDS = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
_CONFIG_OFF = {  # what else of a generation_config changes the choice, and the value at which it does not
    "typical_p": 1,
    "epsilon_cutoff": 0,
    "eta_cutoff": 0,
    "top_h": None,
    "penalty_alpha": 0,
    "num_beams": 1,
    "diversity_penalty": 0,
    "no_repeat_ngram_size": 0,
    "encoder_no_repeat_ngram_size": 0,
    "encoder_repetition_penalty": 1,
    "guidance_scale": 1,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
    "bad_words_ids": None,
    "sequence_bias": None,
    "exponential_decay_length_penalty": None,
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
}


@dataclass(frozen=True, slots=True)
class ModelDefaults:
    """What a model's makers say about sampling.

    sampling: None where they say nothing; what they leave out of it is off. ignored: what they say that is
    out of range or not built, a line each.
    """

    sampling: SamplingParams | None = None
    ignored: tuple[str, ...] = ()


def gguf_defaults(metadata: Mapping[str, Any]) -> ModelDefaults:
    """Return what the metadata of a GGUF file says."""
    said = {key.removeprefix(_GGUF): value for key, value in metadata.items() if key.startswith(_GGUF)}
    fields = {
        field: (_GGUF + name, _shortest(said[name])) for name, field in _GGUF_FIELDS.items() if name in said
    }
    others = said.keys() - _GGUF_FIELDS.keys() - _GGUF_MEANINGLESS_ALONE
    not_built = {_GGUF + name: said[name] for name in sorted(others) if said[name] != _GGUF_OFF.get(name)}
    return _defaults(fields, not_built)


def config_defaults(config: Mapping[str, Any]) -> ModelDefaults:
    """Return what a generation_config.json says; `do_sample: false` is temperature 0."""
    fields = {name: (name, config[name]) for name in _CONFIG_FIELDS if config.get(name) is not None}
    not_built = {
        name: config[name]
        for name, off in _CONFIG_OFF.items()
        if config.get(name) not in (None, off, []) and not isinstance(config[name], bool)
    }
    defaults = _defaults(fields, not_built)
    if config.get("do_sample") is not False:
        return defaults
    return replace(defaults, sampling=replace(defaults.sampling or SamplingParams(), temperature=0.0))


def _defaults(fields: Mapping[str, tuple[str, Any]], not_built: Mapping[str, Any]) -> ModelDefaults:
    values, ignored = {}, []
    for field, (key, value) in fields.items():
        try:
            SamplingParams(**{field: value})
        except InvalidRequestError as error:
            ignored.append(f"{key}: {error}")
        else:
            values[field] = value
    ignored += [f"{key} is {_short(value)}, which is not built" for key, value in not_built.items()]
    return ModelDefaults(SamplingParams(**values) if values else None, tuple(ignored))


def _shortest(value: Any) -> Any:
    """Return the shortest number that is the same float32: 0.95 for 0.949999988079071."""
    return float(str(np.float32(value))) if isinstance(value, float) else value


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
