"""Tokenizer folders, made with the `tokenizers` library: one byte-level, the others mark spaces."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from fakes.vocabularies import BYTE, CONTROL, CORPUS, USER_DEFINED
from ostinato.chat.scored_bpe import merges_of

KINDS = ("bytewise", "metaspace", "always", "replace", "unigram")
NORMAL = 1
SPECIAL = ["<unk>", "<s>", "</s>", "<|turn|>"]
_WORD = r"'s|'t| ?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_RULES = {  # as in the published files
    "smollm": (r"\p{N}", r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"),
    "qwen2": (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+",
    ),
}
_MARKED = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])


def make_folder(kind: str) -> Path:
    """Return a new folder with tokenizer.json and tokenizer_config.json of this kind."""
    made = _trained(kind)
    made.add_special_tokens([AddedToken(text, normalized=False) for text in SPECIAL])
    made.add_tokens([AddedToken("<tool>", normalized=False)])
    made.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    folder = Path(mkdtemp(prefix="ostinato-test-"))
    made.save(str(folder / "tokenizer.json"))
    config = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


@cache
def oracle(folder: Path) -> Tokenizer:
    """Return the library's tokenizer of a folder."""
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def edited(folder: Path, file: str, edit: Callable[[Any], None]) -> Path:
    """Return a copy of a folder in which one JSON file, perhaps a new one, is changed."""
    copy = Path(mkdtemp(prefix="ostinato-test-")) / "model"
    shutil.copytree(folder, copy)
    path = copy / file
    value = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    edit(value)
    path.write_text(json.dumps(value), encoding="utf-8")
    return copy


def change(**values: object) -> Callable[[Any], None]:
    """Return an edit that sets these keys of an object."""
    return lambda whole: whole.update(values)


def add_to(name: str, index: int, **values: object) -> Callable[[Any], None]:
    """Return an edit that sets keys of one entry of a list."""
    return lambda whole: whole[name][index].update(values)


def folder_of_gguf(metadata: dict[str, Any]) -> Path:
    """Return a folder that says what the tokenizer keys of a GGUF file say, in the way of published ones."""
    tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    made = _bytewise_of(metadata) if metadata["tokenizer.ggml.model"] == "gpt2" else _scored_of(metadata)
    whole = json.loads(made.to_str())
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    whole["added_tokens"] = [
        {"id": token_id, "content": text, "special": types[token_id] == CONTROL, **flags}
        for token_id, text in enumerate(tokens)
        if types[token_id] in (CONTROL, USER_DEFINED)
    ]
    folder = Path(mkdtemp(prefix="ostinato-test-"))
    (folder / "tokenizer.json").write_text(json.dumps(whole, default=bool), encoding="utf-8")
    config = {
        "bos_token": tokens[metadata["tokenizer.ggml.bos_token_id"]],
        "eos_token": tokens[metadata["tokenizer.ggml.eos_token_id"]],
        "add_bos_token": metadata["tokenizer.ggml.add_bos_token"],
        "chat_template": metadata.get("tokenizer.chat_template"),
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def _bytewise_of(metadata: dict[str, Any]) -> Tokenizer:
    tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    plain = {text: token_id for token_id, text in enumerate(tokens) if types[token_id] == NORMAL}
    merges = [tuple(merge.split(" ", 1)) for merge in metadata["tokenizer.ggml.merges"]]
    made = Tokenizer(models.BPE(plain, merges))
    cuts = [pre_tokenizers.Split(Regex(rule), "isolated") for rule in _RULES[metadata["tokenizer.ggml.pre"]]]
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.pre_tokenizer = pre_tokenizers.Sequence([*cuts, byte_level])
    made.decoder = decoders.ByteLevel()
    return made


def _scored_of(metadata: dict[str, Any]) -> Tokenizer:
    tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    scores = metadata["tokenizer.ggml.scores"]
    plain = [token_id for token_id in range(len(tokens)) if types[token_id] == NORMAL]
    ranked = sorted(plain, key=lambda token_id: (-scores[token_id], token_id))
    merges = list(merges_of({tokens[token_id]: rank for rank, token_id in enumerate(ranked)}))
    ids = {text: token_id for token_id, text in enumerate(tokens) if types[token_id] in (NORMAL, BYTE)}
    made = Tokenizer(models.BPE(ids, merges, byte_fallback=True))
    made.normalizer = normalizers.Replace(" ", "▁")
    made.decoder = _MARKED
    return made


def _trained(kind: str) -> Tokenizer:
    if kind == "bytewise":
        made = Tokenizer(models.BPE())
        made.normalizer = normalizers.NFC()
        made.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(_WORD), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
        made.decoder = decoders.ByteLevel()
        return _train(made, pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(
        models.Unigram()
        if kind == "unigram"
        else models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    if kind == "replace":
        made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        made.decoder = _MARKED
    else:
        scheme = "first" if kind == "metaspace" else "always"
        made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=kind != "metaspace")
        made.decoder = decoders.Metaspace() if kind == "unigram" else _MARKED
    return _train(made, [])


def _train(made: Tokenizer, alphabet: list[str]) -> Tokenizer:
    if isinstance(made.model, models.Unigram):
        trainer: Any = trainers.UnigramTrainer(
            vocab_size=150, special_tokens=SPECIAL, unk_token="<unk>", show_progress=False
        )
    else:
        bytes_ = [] if alphabet else [f"<0x{byte:02X}>" for byte in range(256)]
        trainer = trainers.BpeTrainer(
            vocab_size=500, special_tokens=[*SPECIAL, *bytes_], initial_alphabet=alphabet, show_progress=False
        )
    made.train_from_iterator(CORPUS.split(" ") if isinstance(made.model, models.BPE) else [CORPUS], trainer)
    whole = json.loads(made.to_str())
    whole["added_tokens"] = [
        token for token in whole["added_tokens"] if not token["content"].startswith("<0x")
    ]
    return Tokenizer.from_str(json.dumps(whole))
