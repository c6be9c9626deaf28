"""Tiny random checkpoints of every architecture: the reference executor gives transformers' logits.

The longer prompts reach beyond the sliding windows and beyond the contexts that rope scaling extends.
"""

from __future__ import annotations

import numpy as np
import pytest
from fakes.checkpoints import NAMES, TINY, answer, prompts, reference

from ostinato.models import ARCHITECTURES
from ostinato.weights.opened import open_model

BOUND = 1e-4
"""Of every logit, which are up to about ten: float32 sums in another order."""


@pytest.mark.parametrize("name", NAMES)
def test_a_folder_gives_the_logits_of_transformers(name: str) -> None:
    with open_model(TINY / name) as file:
        for prompt in prompts(name):
            got = answer(reference(file, len(prompt.ids)), prompt)
            assert np.ptp(prompt.logits) > 1
            np.testing.assert_allclose(got, prompt.logits, rtol=0, atol=BOUND)


def test_every_architecture_has_a_checkpoint() -> None:
    found = {open_model(TINY / name).metadata["general.architecture"] for name in NAMES}
    assert found == set(ARCHITECTURES)
