"""Every token that ends an answer is known, whichever place of the file names it."""

from __future__ import annotations

import numpy as np
import pytest
from fakes.vocabularies import CONTROL, USER_DEFINED, scored, smollm2, template

from ostinato.chat.tokenizer import Tokenizer

IM_END, END_OF_TEXT = 2, 0
FILE_ENDS = {3, 4, 5}  # <repo_name> <reponame> <file_sep>


def ends(metadata: dict[str, object]) -> set[int]:
    return set(Tokenizer.from_metadata(metadata).end_ids)


@pytest.mark.parametrize("eos", [END_OF_TEXT, IM_END, None])
def test_both_ends_of_smollm2_whatever_the_file_calls_eos(eos: int | None) -> None:
    """B10."""
    assert ends(smollm2(eos_token_id=eos)) == {IM_END, END_OF_TEXT, *FILE_ENDS}


@pytest.mark.parametrize("role", ["eos", "eot", "eom"])
def test_what_the_file_names_ends_an_answer(role: str) -> None:
    assert 10 in ends(smollm2(**{f"{role}_token_id": 10}))


def test_what_the_template_writes_behind_an_answer_ends_one() -> None:
    source = (
        "{% for m in messages %}<gh_stars>{{ m.role }}: {{ m.content }} <issue_start>\n<gh_stars>{% endfor %}"
    )
    with_it = ends(smollm2(chat_template=source))
    assert with_it - ends(smollm2(chat_template=None)) == {8}


def test_a_user_defined_end_of_turn_is_found_through_the_template() -> None:
    metadata = smollm2()
    types = metadata["tokenizer.ggml.token_type"].copy()
    types[IM_END] = USER_DEFINED
    tokenizer = Tokenizer.from_metadata(smollm2(token_type=types, eos_token_id=END_OF_TEXT))
    assert IM_END in tokenizer.end_ids
    assert IM_END not in tokenizer.encode("<|im_end|>")  # and typing it ends nothing


@pytest.mark.parametrize(
    "source", ["{{ raise_exception('no') }}", "{% broken", "{{ messages[7].content }}", "x"]
)
def test_a_template_that_tells_nothing_does_no_harm(source: str) -> None:
    assert ends(smollm2(chat_template=source)) == ends(smollm2(chat_template=None)) == {0, 2, *FILE_ENDS}


def test_a_channel_end_does_not_end_an_answer() -> None:
    tokens = ["<|end|>", "<|return|>", "<|call|>", "<|start|>", *scored()["tokenizer.ggml.tokens"][4:]]
    source = "{% for m in messages %}<|start|>{{ m.role }}{{ m.content }}<|end|>{% endfor %}"
    roles = {"eos_token_id": 1, "bos_token_id": None, "chat_template": source}
    assert ends(scored(tokens=tokens, **roles)) == {1, 2, 5}  # 5: <end_of_turn>
    tokens[2] = "<pad>"
    assert ends(scored(tokens=tokens, **roles)) == {0, 1, 5}


def test_fill_in_the_middle_ends_at_the_next_file() -> None:
    """B10."""
    metadata = scored()
    tokens = [
        *metadata["tokenizer.ggml.tokens"][:4],
        "<|file_sep|>",
        "<|fim_pad|>",
        *metadata["tokenizer.ggml.tokens"][6:],
    ]
    assert ends(scored(tokens=tokens)) == {1, 4, 5}


def test_only_control_tokens_count_by_their_text() -> None:
    types = np.ones(465, np.int32) * scored()["tokenizer.ggml.token_type"]
    assert types[1] == CONTROL
    types[5] = USER_DEFINED
    assert ends(scored(token_type=types)) == {1}


def test_the_templates_of_real_models() -> None:
    for name in ("smollm2", "qwen2.5-coder"):
        metadata = smollm2(chat_template=template(name), eos_token_id=END_OF_TEXT)
        assert IM_END in ends(metadata)
