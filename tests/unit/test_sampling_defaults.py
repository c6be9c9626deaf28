"""What a model's makers say about sampling, by the keys of both kinds of files."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gguf.constants import Keys
from hypothesis import given
from hypothesis import strategies as st

from ostinato.sampling.defaults import ModelDefaults, config_defaults, gguf_defaults
from ostinato.sampling.params import SamplingParams

SAYS_NOTHING = ModelDefaults()


def keys(**values: Any) -> dict[str, Any]:
    return {f"general.sampling.{name}": value for name, value in values.items()}


def test_every_key_of_a_gguf_file() -> None:
    said = keys(temp=0.6, top_k=20, top_p=0.95, min_p=0.01, penalty_repeat=1.05, penalty_last_n=64)
    params = SamplingParams(0.6, 20, 0.95, 0.01, repetition_penalty=1.05, repetition_window=64)
    assert gguf_defaults({**said, "general.name": "x"}) == ModelDefaults(params)


def test_float32_values_are_what_their_writer_wrote() -> None:
    found = gguf_defaults(keys(temp=float(np.float32(0.6)), top_p=float(np.float32(0.95)))).sampling
    assert found is not None and (found.temperature, found.top_p) == (0.6, 0.95)


def test_every_name_that_the_format_has_is_known() -> None:
    """No key of the published list is passed over in silence."""
    names = [value for name, value in vars(Keys.General).items() if name.startswith("SAMPLING_")]
    assert len(names) >= 12
    for name in names:
        found = gguf_defaults({name: 1})
        silent = name.endswith(("xtc_threshold", "mirostat_tau", "mirostat_eta"))  # nothing by themselves
        assert (found == SAYS_NOTHING) is silent, name


def test_a_generation_config() -> None:
    """As Qwen2.5 has it; the file says more than sampling."""
    config = {
        "bos_token_id": 151643,
        "do_sample": True,
        "eos_token_id": [151645, 151643],
        "repetition_penalty": 1.1,
        "temperature": 0.7,
        "top_p": 0.8,
        "top_k": 20,
        "transformers_version": "4.37.0",
        "max_new_tokens": 2048,
    }
    assert config_defaults(config) == ModelDefaults(SamplingParams(0.7, 20, 0.8, repetition_penalty=1.1))


@pytest.mark.parametrize(
    ("config", "temperature"),
    [
        ({"do_sample": False}, 0.0),
        ({"do_sample": False, "temperature": 0.7}, 0.0),
        ({"do_sample": True, "top_k": 64}, 1.0),
        ({"temperature": 0.7}, 0.7),
        ({"temperature": 0}, 0.0),
    ],
)
def test_what_do_sample_means(config: dict[str, Any], temperature: float) -> None:
    found = config_defaults(config).sampling
    assert found is not None and found.temperature == temperature


@pytest.mark.parametrize(
    "config",
    [{}, {"eos_token_id": 2}, {"do_sample": True}, {"temperature": None}, {"num_beams": 1, "typical_p": 1.0}],
)
def test_a_config_that_says_nothing_of_sampling(config: dict[str, Any]) -> None:
    assert config_defaults(config) == SAYS_NOTHING
    assert gguf_defaults(config) == SAYS_NOTHING


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (gguf_defaults(keys(temp=-1.0, top_k=5)), "general.sampling.temp: temperature is -1.0; allowed"),
        (gguf_defaults(keys(temp=float("nan"), top_k=5)), "general.sampling.temp: temperature is nan"),
        (gguf_defaults(keys(top_p="x", top_k=5)), "general.sampling.top_p: top_p is 'x'"),
        (gguf_defaults(keys(mirostat=2, mirostat_tau=5.0, top_k=5)), "general.sampling.mirostat is 2"),
        (
            gguf_defaults(keys(sequence="kpt", top_k=5)),
            "general.sampling.sequence is 'kpt', which is not built",
        ),
        (gguf_defaults(keys(novel=[1] * 99, top_k=5)), "general.sampling.novel is [1, 1, "),
        (config_defaults({"top_p": 1.5, "top_k": 5}), "top_p: top_p is 1.5; allowed: a number from 0 to 1"),
        (config_defaults({"temperature": True, "top_k": 5}), "temperature: temperature is True"),
        (config_defaults({"typical_p": 0.9, "top_k": 5}), "typical_p is 0.9, which is not built"),
        (config_defaults({"suppress_tokens": [1, 2], "top_k": 5}), "suppress_tokens is [1, 2]"),
    ],
)
def test_what_cannot_be_done_is_ignored_by_itself_and_said(found: ModelDefaults, reason: str) -> None:
    assert found.sampling == SamplingParams(top_k=5)
    (said,) = found.ignored
    assert said.startswith(reason) and len(said) < 120


ANYTHING = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4) | st.lists(st.integers())
)


@given(
    values=st.dictionaries(
        st.sampled_from(["temp", "temperature", "top_k", "top_p", "do_sample", "num_beams", "mirostat"]),
        ANYTHING,
    )
)
def test_whatever_is_said_is_used_or_ignored(values: dict[str, Any]) -> None:
    for found in (gguf_defaults(keys(**values)), config_defaults(values)):
        assert found.sampling is None or isinstance(found.sampling, SamplingParams)
        assert all("\n" not in reason for reason in found.ignored)
