"""Tiny random checkpoints of every architecture: the reference executor gives transformers' logits.

The longer prompts reach beyond the sliding windows and beyond the contexts that rope scaling extends.
(B66, B70)
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from fakes.checkpoint_gguf import write_gguf
from fakes.checkpoints import NAMES, TINY, answer, prompts, reference

from ostinato.models import ARCHITECTURES
from ostinato.weights.opened import open_model
from ostinato.weights.tensors import ModelFile

BOUND = 1e-4
"""Of every logit, which are up to about ten: float32 sums in another order."""


def check(name: str, file: ModelFile) -> None:
    for prompt in prompts(name):
        got = answer(reference(file, len(prompt.ids)), prompt)
        assert np.ptp(prompt.logits) > 1
        np.testing.assert_allclose(got, prompt.logits, rtol=0, atol=BOUND)


@pytest.mark.parametrize("name", NAMES)
def test_a_folder_gives_the_logits_of_transformers(name: str) -> None:
    with open_model(TINY / name) as file:
        check(name, file)


@pytest.mark.parametrize("name", NAMES)
def test_a_gguf_file_gives_the_logits_of_transformers(name: str, tmp_path: Path) -> None:
    """Rotary pairs side by side, experts stacked, Llama 3's scaling as a tensor: as converters write it."""
    with open_model(TINY / name) as folder:
        path = write_gguf(folder, tmp_path / "model.gguf")
    with open_model(path) as file:
        check(name, file)


def test_every_architecture_has_a_checkpoint() -> None:
    found = {open_model(TINY / name).metadata["general.architecture"] for name in NAMES}
    assert found == set(ARCHITECTURES)
