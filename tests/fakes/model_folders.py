"""Whole model folders: a tiny checkpoint with tokenizer, chat template and sampling defaults beside it."""

from __future__ import annotations

import json
import shutil
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from fakes.checkpoints import TINY

SPECIAL = ["<pad>", "<s>", "</s>", "<|turn|>", "<|over|>"]
"""In the order of their ids. The configurations of the checkpoints name the first three; that the last one
ends an answer only generation_config.json says."""
OVER = SPECIAL.index("<|over|>")
TEXT = "hello world, say hello to the user and the assistant: the quick brown fox jumps over the lazy dog\n"
TEMPLATE = (
    "{% for message in messages %}<|turn|>{{ message.role }}\n{{ message.content }}<|over|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|turn|>assistant\n{% endif %}"
)
VOCAB = 94
"""As many as the text gives; the checkpoints have more, as is common: rows that no text reaches."""


@cache
def model_folder(name: str) -> Path:
    """Return a new folder with this checkpoint of tests/data/tiny and all that it needs to write."""
    folder = Path(mkdtemp(prefix="ostinato-test-")) / name
    shutil.copytree(TINY / name, folder, ignore=shutil.ignore_patterns("*.npz"))
    _tokenizer().save(str(folder / "tokenizer.json"))
    write_json(folder / "tokenizer_config.json", bos_token="<s>", eos_token="</s>", chat_template=TEMPLATE)
    sampling = {"do_sample": True, "temperature": 1.5, "top_k": 3}
    write_json(folder / "generation_config.json", **sampling, eos_token_id=[2, OVER])
    return folder


def write_json(path: Path, **values: object) -> None:
    """Write an object to a file."""
    path.write_text(json.dumps(values), encoding="utf-8")


def _tokenizer() -> Tokenizer:
    """Return a byte-level tokenizer that knows the letters of `TEXT`."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    special = [AddedToken(text, special=True, normalized=False) for text in SPECIAL]
    made.train_from_iterator(
        [TEXT], trainers.BpeTrainer(vocab_size=VOCAB, special_tokens=special, show_progress=False)
    )
    made.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    return made
