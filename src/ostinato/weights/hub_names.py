"""Names that lead to the Hugging Face hub, and which of a repository's files one means.

Knows the form of the names and of the files that people publish. Must not know the network or the disk. The
next file on the way is `hub.py`.

A repository named without a file leads to the one GGUF that it holds; of several, to the first quantisation
of `PREFERENCE` that exactly one of them has. A split GGUF stands there by its first part. Projectors and
importance matrices, which are no models, do not count.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ostinato.errors import ModelNotFoundError
from ostinato.weights.part_names import part_names
from ostinato.weights.redact import shown

SCHEME = "hf:"
FORM = "hf:owner/repo or hf:owner/repo/file.gguf"
PREFERENCE = ("Q4_K_M", "Q4_1", "Q4_0", "Q8_0", "Q4_K_S", "Q5_K_M", "Q6_K", "BF16", "F16", "F32")
"""Quantisations in the order of choice: small and fast first, then larger ones."""

_SEGMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_COMPANION = re.compile(r"mmproj|imatrix", re.IGNORECASE)
_MAX_LISTED = 12


@dataclass(frozen=True)
class HubName:
    """A name that leads to the hub; `file` is a path in the repository, None where the repository decides."""

    repo: str
    file: str | None

    def __str__(self) -> str:
        return f"{SCHEME}{self.repo}" + (f"/{self.file}" if self.file is not None else "")


def parse(name: str) -> HubName:
    """Split a `hf:` name.

    Raises:
        ModelNotFoundError: the name has another form.
    """
    segments = name.removeprefix(SCHEME).split("/")
    file = "/".join(segments[2:]) or None
    well_formed = len(segments) >= 2 and all(_SEGMENT.fullmatch(s) and ".." not in s for s in segments[:2])
    if not well_formed or any(s in ("", ".", "..") or "\\" in s or not s.isprintable() for s in segments[2:]):
        raise ModelNotFoundError(f"{shown(name)} is not a name of the hub; write {FORM}")
    if file is not None and not file.lower().endswith(".gguf"):
        raise ModelNotFoundError(f"{shown(name)} does not name a GGUF file; write {FORM}")
    return HubName("/".join(segments[:2]), file)


def choose(repo: str, files: Sequence[str]) -> str:
    """Return the file that a repository named without a file leads to.

    Raises:
        ModelNotFoundError: it has no whole GGUF, or several of which none is preferred.
    """
    models = models_among(files)
    if not models:
        raise ModelNotFoundError(
            f"{SCHEME}{repo} has no GGUF file of a whole model; look for a GGUF repository of the model"
        )
    if len(models) == 1:
        return models[0]
    for quantisation in PREFERENCE:
        matches = [file for file in models if _has_quantisation(file, quantisation)]
        if len(matches) == 1:
            return matches[0]
        if matches:
            break
    raise ModelNotFoundError(
        f"{SCHEME}{repo} has several GGUF files, name one as {SCHEME}{repo}/FILE: {listed(models)}"
    )


def models_among(files: Sequence[str]) -> list[str]:
    """Return the files that can be a model; of a split one, if all its parts are there, the first."""
    there = set(files)
    return [
        file
        for file in files
        if is_model(file) and part_names(file)[0] == file and there.issuperset(part_names(file))
    ]


def is_model(file: str) -> bool:
    """Return whether the file can be a model, or a part of one."""
    return file.lower().endswith(".gguf") and not _COMPANION.search(file.rpartition("/")[2])


def _has_quantisation(file: str, quantisation: str) -> bool:
    pattern = rf"(?<![A-Z0-9]){quantisation}(?![A-Z0-9_])"
    return re.search(pattern, file.rpartition("/")[2], re.IGNORECASE) is not None


def listed(files: Sequence[str]) -> str:
    """Return the names as a message shows them: in order, the first few."""
    shown = ", ".join(sorted(files)[:_MAX_LISTED])
    more = len(files) - _MAX_LISTED
    return (shown or "none") + (f" and {more} more" if more > 0 else "")
