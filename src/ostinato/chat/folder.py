"""The tokenizer of a model folder: tokenizer.json and the small JSON files beside it, read into a vocabulary.

Knows what those files are called and mean. Must not know how text is encoded. Next on the request's path:
`json_pieces.py`, then `tokenizer.py`.

Sources: the format of the `tokenizers` library, version 1.0; transformers' tokenizer_config.json,
special_tokens_map.json, generation_config.json, config.json and chat_template.jinja. Where files disagree,
the role of a token is what tokenizer_config.json says, before special_tokens_map.json; every end token that
one of them names is one; the chat template is chat_template.jinja, before tokenizer_config.json and
chat_template.json.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ostinato.chat.vocabulary import TokenType, Vocabulary, byte_value
from ostinato.errors import ModelFileError, UnsupportedModelError
from ostinato.weights.small_files import read_json_object, read_text

TOKENIZER, CONFIG = "tokenizer.json", "tokenizer_config.json"
KIND = "tokenizer.json"
MAX_TOKENS = 1 << 22  # sixteen times the largest vocabulary there is


@dataclass(frozen=True)
class Description:
    """What a tokenizer.json says: `whole`, as parsed, and of it the model and the added tokens, checked."""

    whole: dict[str, Any]
    kind: str
    tokens: dict[str, int]
    added: tuple[dict[str, Any], ...]


@dataclass
class _Lead:
    """The tokens that the post-processor puts before and behind a text."""

    before: list[str] = field(default_factory=list)
    behind: list[str] = field(default_factory=list)


def read_folder(folder: Path, vocab_size: int | None = None) -> tuple[Vocabulary, Description]:
    """Read the vocabulary of a folder, and the description from which its encoder is made.

    Args:
        vocab_size: how many tokens the model has; the vocabulary is filled up to that with unused ones.

    Raises:
        UnsupportedModelError: the tokenizer is of a kind that is not built.
        ModelNotFoundError: there is no tokenizer.json.
        ModelFileError: a file is damaged, names a token that does not exist, or has more tokens
            than the model.
    """
    description = _describe(read_json_object(folder / TOKENIZER), folder / TOKENIZER)
    config = {**_said(folder / "special_tokens_map.json"), **_said(folder / CONFIG)}
    ids = {**description.tokens, **{token["content"]: token["id"] for token in description.added}}
    tokens = _listed(ids, vocab_size, folder)
    roles = {name: _role(config, name, ids, folder) for name in ("bos", "eos", "unk", "pad")}
    lead = _lead(description.whole.get("post_processor"))
    bos_id, add_bos = _beginning(roles["bos"], lead, config, ids, folder)
    return Vocabulary(
        kind=KIND,
        pretokenizer=None,
        tokens=tokens,
        types=_types(description, tokens, {*roles.values(), bos_id}),
        scores=None,
        merges=[],
        bos_id=bos_id,
        eos_id=roles["eos"],
        eot_id=None,
        eom_id=None,
        unk_id=roles["unk"],
        pad_id=roles["pad"],
        add_bos=add_bos,
        add_eos=_flag(config, "add_eos_token", bool(lead.behind)),
        add_space_prefix=None,
        chat_template=folder_chat_template(folder),
        more_end_ids=_named_ends(folder, len(tokens)),
        left_strip=_marked(description, "lstrip"),
        right_strip=_marked(description, "rstrip"),
    ), description


def folder_chat_template(folder: Path) -> str | None:
    """Return the source of a folder's chat template, or None: a base model has none.

    Of several named templates it is the one called `default`, or the only one.

    Raises:
        ModelFileError: a file is damaged, or holds something other than text.
    """
    own_file = folder / "chat_template.jinja"
    if own_file.is_file():
        return read_text(own_file) or None
    for name in (CONFIG, "chat_template.json"):
        source = _said(folder / name).get("chat_template")
        if source:
            return _template(source, folder / name)
    return None


def _said(path: Path) -> dict[str, Any]:
    """Return what a file says that a folder need not have."""
    return read_json_object(path, optional=True)


def _template(source: object, path: Path) -> str | None:
    if isinstance(source, list):
        named = {entry.get("name"): entry.get("template") for entry in source if isinstance(entry, Mapping)}
        source = named.get("default", next(iter(named.values())) if len(named) == 1 else None)
    if source is None or isinstance(source, str):
        return source
    raise ModelFileError(f"{path}: chat_template holds {type(source).__name__}, expected text")


def _describe(whole: dict[str, Any], path: Path) -> Description:
    model = whole.get("model")
    if not isinstance(model, dict):
        raise ModelFileError(f"{path}: model is missing: the file holds no tokenizer")
    kind = model.get("type") or ("BPE" if "merges" in model else "Unigram" if "unk_id" in model else None)
    if kind not in ("BPE", "Unigram"):
        raise UnsupportedModelError(
            f"{path}: model.type is {kind!r}: this kind of tokenizer is not built (built: BPE, Unigram)"
        )
    return Description(whole, kind, _model_ids(model.get("vocab"), kind, path), _added(whole, path))


def _model_ids(vocab: object, kind: str, path: Path) -> dict[str, int]:
    """Return the ids of the model's own tokens."""
    if kind == "BPE":
        if isinstance(vocab, dict) and all(map(_is_id, vocab.values())):
            return vocab
    elif isinstance(vocab, list) and len(vocab) <= MAX_TOKENS and all(map(_is_scored_piece, vocab)):
        return {row[0]: token_id for token_id, row in enumerate(vocab)}
    expected = "tokens with their ids" if kind == "BPE" else "pieces with their scores"
    raise ModelFileError(f"{path}: model.vocab is damaged: expected {expected}, ids below {MAX_TOKENS}")


def _added(whole: dict[str, Any], path: Path) -> tuple[dict[str, Any], ...]:
    added = whole.get("added_tokens") or []
    for index, token in enumerate(added if isinstance(added, list) else [None]):
        token_id = token.get("id") if isinstance(token, dict) else None
        if not _is_id(token_id) or not _is_text(token.get("content")):
            raise ModelFileError(f"{path}: added_tokens[{index}] is damaged: expected an id and a content")
    return tuple(added)


def _is_id(value: object) -> bool:
    return type(value) is int and 0 <= value < MAX_TOKENS


def _is_scored_piece(row: object) -> bool:
    return isinstance(row, list) and len(row) == 2 and isinstance(row[0], str)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def _listed(ids: Mapping[str, int], vocab_size: int | None, folder: Path) -> list[str]:
    """Return the tokens in the order of their ids; ids without a token are empty."""
    size = max(ids.values(), default=-1) + 1
    if not size:
        raise ModelFileError(f"{folder / TOKENIZER} holds no tokens")
    if vocab_size is not None and size > vocab_size:
        raise ModelFileError(f"{folder / TOKENIZER} has {size} tokens, but the model has {vocab_size}")
    tokens = [""] * (size if vocab_size is None else vocab_size)
    for text, token_id in ids.items():
        if tokens[token_id] not in ("", text):
            raise ModelFileError(
                f"{folder / TOKENIZER}: token {token_id} is both {tokens[token_id]!r} and {text!r}"
            )
        tokens[token_id] = text
    return tokens


def _role(config: Mapping[str, Any], name: str, ids: Mapping[str, int], folder: Path) -> int | None:
    value = config.get(f"{name}_token")
    text = value.get("content") if isinstance(value, dict) else value
    if text is None or text == "":
        return None
    if not isinstance(text, str) or text not in ids:
        raise ModelFileError(f"{folder / CONFIG}: {name}_token is {text!r}, which is no token of {TOKENIZER}")
    return ids[text]


def _flag(config: Mapping[str, Any], name: str, otherwise: bool) -> bool:
    value = config.get(name)
    return value if isinstance(value, bool) else otherwise


def _lead(processor: object) -> _Lead:
    """Return what a post-processor adds to a single text."""
    lead = _Lead()
    match processor:
        case {"type": "Sequence", "processors": [*parts]}:
            for part in map(_lead, parts):
                lead.before += part.before
                lead.behind += part.behind
        case {"type": "TemplateProcessing", "single": [*pieces]}:
            place = lead.before
            for piece in pieces:
                match piece:
                    case {"SpecialToken": {"id": str(text)}}:
                        place.append(text)
                    case _:
                        place = lead.behind
        case {"type": "BertProcessing" | "RobertaProcessing", "cls": [str(first), _], "sep": [str(last), _]}:
            lead.before.append(first)
            lead.behind.append(last)
    return lead


def _beginning(
    bos_id: int | None, lead: _Lead, config: Mapping[str, Any], ids: Mapping[str, int], folder: Path
) -> tuple[int | None, bool]:
    """Return the token that begins a text, and whether prompts begin with it."""
    before = [ids.get(text) for text in lead.before]
    says = config.get("add_bos_token")
    if isinstance(says, bool):
        return bos_id, says
    if len(before) > 1 or None in before or (before and bos_id not in (None, before[0])):
        raise UnsupportedModelError(
            f"{folder / TOKENIZER}: its post_processor begins a text with {' '.join(lead.before)}: only the "
            "bos_token of tokenizer_config.json is built"
        )
    return (before[0], True) if before else (bos_id, False)


def _types(
    description: Description, tokens: list[str], roles: Iterable[int | None]
) -> np.ndarray[Any, np.dtype[np.int32]]:
    types = np.full(len(tokens), TokenType.NORMAL, np.int32)
    types[[token_id for token_id, text in enumerate(tokens) if not text]] = TokenType.UNUSED
    if description.whole["model"].get("byte_fallback"):
        types[[token_id for token_id, text in enumerate(tokens) if byte_value(text) is not None]] = (
            TokenType.BYTE
        )
    for token in description.added:
        types[token["id"]] = TokenType.CONTROL if token.get("special") else TokenType.USER_DEFINED
    for token_id in roles:
        if token_id is not None and types[token_id] == TokenType.NORMAL:
            types[token_id] = TokenType.CONTROL
    return types


def _marked(description: Description, flag: str) -> frozenset[int]:
    return frozenset(token["id"] for token in description.added if token.get(flag) is True)


def _named_ends(folder: Path, num_tokens: int) -> frozenset[int]:
    """Return the end tokens of generation_config.json and config.json, which give one id or a list."""
    ends: set[int] = set()
    for name in ("generation_config.json", "config.json"):
        value = _said(folder / name).get("eos_token_id")
        for token_id in value if isinstance(value, list) else [] if value is None else [value]:
            if type(token_id) is not int or not 0 <= token_id < num_tokens:
                raise ModelFileError(
                    f"{folder / name}: eos_token_id is {token_id!r}, expected ids from 0 to {num_tokens - 1}"
                )
            ends.add(token_id)
    return frozenset(ends)
