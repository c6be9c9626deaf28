"""Models split into several GGUF files, as `gguf-split` of llama.cpp and the `gguf` package write them.

Knows what the parts say of each other: `split.no` (from 0), `split.count` and `split.tensors.count` of all
parts. The other metadata are in the first part. Must not know how a file is read: gguf.py opens the parts
that `part_paths` names and hands them to `merge`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from reprlib import repr as shortened
from typing import Any, Final

import numpy as np

from ostinato.errors import ModelFileError
from ostinato.weights.mapped import shown_path
from ostinato.weights.part_names import part_names
from ostinato.weights.tensors import MetadataValue, ModelFile, Tensor

_NO: Final = "split.no"
_COUNT: Final = "split.count"
_TENSORS: Final = "split.tensors.count"
_OF_ONE_PART: Final = frozenset((_NO, _COUNT, _TENSORS, "general.alignment"))
_MAX_LISTED: Final = 5


def part_paths(file: ModelFile) -> list[Path]:
    """Return the paths of all parts of the model that the file is one of, in order; its own if it is whole.

    Raises:
        ModelFileError: its name is not that of the part it says it is, or other parts are missing.
    """
    count = _number(file, _COUNT) if _COUNT in file.metadata else 1
    if count <= 1:
        return [file.path]
    names, number = part_names(file.path.name), _number(file, _NO)
    if len(names) != count or not 0 <= number < count or names[number] != file.path.name:
        raise ModelFileError(
            f"{shown_path(file.path)} says it is part {number + 1} of {count}, but not so its name; "
            "give each part of a split model its name again, NAME-00001-of-00003.gguf and so on"
        )
    paths = [file.path.with_name(name) for name in names]
    missing = [shown_path(Path(path.name)) for path in paths if not path.exists()]
    if missing:
        more = f" and {len(missing) - _MAX_LISTED} more" if len(missing) > _MAX_LISTED else ""
        raise ModelFileError(
            f"{shown_path(file.path)} is one of {count} parts of a model, and {len(missing)} of them "
            f"are missing: {', '.join(missing[:_MAX_LISTED])}{more}; put all parts into one folder"
        )
    return paths


def merge(parts: Sequence[ModelFile]) -> tuple[dict[str, MetadataValue], dict[str, Tensor]]:
    """Return metadata and tensors of a model from all its parts, in order.

    Raises:
        ModelFileError: the parts do not belong together.
    """
    metadata: dict[str, MetadataValue] = {}
    tensors: dict[str, Tensor] = {}
    for number, part in enumerate(parts):
        _check_numbers(part, number, parts[0], len(parts))
        _add_metadata(metadata, part, parts[0])
        _add_tensors(tensors, part, parts)
    expected = _number(parts[0], _TENSORS)
    if len(tensors) != expected:
        raise ModelFileError(
            f"{shown_path(parts[0].path)}: its {len(parts)} parts have {len(tensors)} tensors in all, "
            f"expected {expected} by {_TENSORS}; they are not parts of one model: fetch them again"
        )
    return metadata, tensors


def _check_numbers(part: ModelFile, number: int, first: ModelFile, count: int) -> None:
    for key, expected in ((_NO, number), (_COUNT, count), (_TENSORS, _number(first, _TENSORS))):
        if (found := _number(part, key)) != expected:
            raise ModelFileError(
                f"{shown_path(part.path)}: {key} is {found}, expected {expected}: "
                f"not part {number + 1} of the model that {_name(first)} begins; fetch it again"
            )


def _add_metadata(metadata: dict[str, MetadataValue], part: ModelFile, first: ModelFile) -> None:
    for key, value in part.metadata.items():
        if key in _OF_ONE_PART:
            continue
        if key in metadata and not _is_same(metadata[key], value):
            raise ModelFileError(
                f"{shown_path(part.path)}: metadata {shortened(key)} differs from that of {_name(first)}; "
                "they are not parts of one model: fetch them again"
            )
        metadata.setdefault(key, value)


def _is_same(value: Any, other: Any) -> bool:
    return bool(np.array_equal(value, other))


def _add_tensors(tensors: dict[str, Tensor], part: ModelFile, parts: Sequence[ModelFile]) -> None:
    both = part.tensors.keys() & tensors.keys()
    if both:
        name = next(name for name in part.tensors if name in both)
        other = next(other for other in parts if name in other.tensors)
        raise ModelFileError(
            f"{shown_path(part.path)}: tensor {shortened(name)} is in {_name(other)} too; "
            "they are not parts of one model: fetch them again"
        )
    tensors.update(part.tensors)


def _name(file: ModelFile) -> str:
    return shown_path(Path(file.path.name))


def _number(file: ModelFile, key: str) -> int:
    value = file.metadata.get(key)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ModelFileError(
            f"{shown_path(file.path)}: metadata '{key}' is {shortened(value)}, expected a number"
        )
    return value
