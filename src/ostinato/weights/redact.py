"""What another program said, fit to be shown: one line, no address, no credentials.

Knows the shapes of addresses and of the error reports of pip and uv. Must not know what was being fetched.
"""

from __future__ import annotations

import re

_MAX_CHARS = 300
_MAX_SHOWN_CHARS = 120

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_URL = re.compile(r"\b[a-z][a-z0-9+.-]*://[^\s'\"<>)\],]*", re.IGNORECASE)
_HOST_FIELD = re.compile(r"\bhost='[^']*'")
_HOST = re.compile(r"\b(?:[a-z0-9_-]+\.)+([a-z]{2,})(?::\d+)?\b", re.IGNORECASE)
_IPV4 = re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b")
_IPV6 = re.compile(r"\[[0-9a-f:]{2,}\](?::\d+)?", re.IGNORECASE)
_FILE_SUFFIXES = frozenset(
    {"bin", "conf", "gguf", "gz", "html", "ini", "json", "py", "toml", "txt", "whl", "zip"}
)
_NOISE = re.compile(r"(?:WARNING|DEPRECATION|note|hint|Using CPython)\b|\[notice\]")
_ERROR = re.compile(r"(ERROR|error):\s*")


def shown(value: str) -> str:
    """Return what a user wrote as a message shows it: quoted, escaped, cut if very long."""
    quoted = repr(value)
    return quoted if len(quoted) <= _MAX_SHOWN_CHARS else quoted[: _MAX_SHOWN_CHARS - 4] + "...'"


def without_addresses(text: str) -> str:
    """Return `text` with every URL, host name and IP address replaced by `...`; names of files stay."""
    for pattern in (_URL, _HOST_FIELD, _IPV6, _IPV4):
        text = pattern.sub("...", text)
    return _HOST.sub(lambda m: m[0] if m[1].lower() in _FILE_SUFFIXES else "...", text)


def one_line(text: str) -> str:
    """Return `text` without addresses, line breaks and control sequences, cut to a readable length."""
    joined = " ".join(without_addresses(_ANSI.sub("", text)).split())
    printable = "".join(c for c in joined if c.isprintable())
    return printable if len(printable) <= _MAX_CHARS else printable[: _MAX_CHARS - 3] + "..."


def last_words(stderr: str) -> str:
    """Return the reason that a failed program gave: its last error and what follows it, as one line.

    pip ends with an `ERROR: ...` line, sometimes followed by notices; uv says `error: ...`, then its causes,
    one a line.
    """
    lines = [without_addresses(line).strip() for line in _ANSI.sub("", stderr).splitlines()]
    lines = [line for line in lines if line and not _NOISE.match(line)]
    starts = [i for i, line in enumerate(lines) if _ERROR.match(line)]
    reason = lines[starts[-1] :] if starts else lines[-1:]
    return one_line(_ERROR.sub("", "; ".join(reason), count=1))
