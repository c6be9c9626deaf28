"""Map a model file into memory, or say in one line why that cannot be."""

from __future__ import annotations

import contextlib
import mmap
import os
import stat
from pathlib import Path

from ostinato.errors import ModelFileError, ModelNotFoundError


def map_file(path: Path, what: str) -> mmap.mmap:
    """Map a file for reading. `what` it should be, for messages: "a GGUF file".

    Raises:
        ModelNotFoundError: there is no such file.
        ModelFileError: it is empty, no file, or cannot be read.
    """
    shown, suffix = shown_path(path), path.suffix
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            advice = f"give the path of a {suffix or '.gguf'} file in it"
            raise ModelFileError(f"{shown} is a folder, not {what}: {advice}")
        if not stat.S_ISREG(mode):
            raise ModelFileError(f"{shown} is a device or a pipe, not {what}: save it to a file first")
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                raise ModelFileError(f"{shown} is empty: fetch it again")
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (FileNotFoundError, NotADirectoryError):
        raise ModelNotFoundError(f"{shown} does not exist: check the path") from None
    except PermissionError:
        raise ModelFileError(f"{shown} cannot be read: you have no permission for it") from None
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL
        reason = error.strerror if isinstance(error, OSError) else error
        raise ModelFileError(f"{shown} cannot be opened: {reason}") from None


def unmap(data: mmap.mmap) -> None:
    """Close the map, or leave that to the last array that still views it."""
    with contextlib.suppress(BufferError):
        data.close()


def shown_path(path: Path) -> str:
    """Return a path as a message shows it, in one line."""
    return str(path) if str(path).isprintable() else repr(str(path))
