"""File names of a GGUF that is split: `NAME-00001-of-00003.gguf` and its siblings.

Knows names only, on a disk or on the hub. What the parts say of themselves is for gguf_split.py.
"""

from __future__ import annotations

import re

_PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})(\.gguf)", re.IGNORECASE | re.DOTALL)


def part_names(name: str) -> list[str]:
    """Return the names of all parts, in order, from the name of any; the name alone if it is no part's."""
    match = _PART.fullmatch(name)
    if match is None or not 1 <= int(match[2]) <= int(match[3]):
        return [name]
    stem, _, count, suffix = match.groups()
    return [f"{stem}-{number:05}-of-{count}{suffix}" for number in range(1, int(count) + 1)]
