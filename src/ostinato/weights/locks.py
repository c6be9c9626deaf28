"""One process at a time: a lock on a file, given back by the system however its holder ends.

Knows the two system calls. Must not know what is locked. No stale lock can exist: the lock belongs to an open
file, not to the file's presence, so the (empty) file is never removed and says nothing.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from ostinato.errors import DownloadError

_POLL_S = 0.2
_BUSY = {errno.EACCES, errno.EAGAIN, errno.EDEADLK}

if sys.platform == "win32":
    import msvcrt

    def _lock(descriptor: int) -> None:
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
else:
    import fcntl

    def _lock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _try_lock(descriptor: int, path: Path) -> bool:
    try:
        _lock(descriptor)
    except OSError as error:
        if error.errno in _BUSY:
            return False
        raise DownloadError(
            f"the folder {path.parent} is on a file system without file locks ({error.strerror}); "
            "point OSTINATO_HOME to a folder on another disk"
        ) from error
    return True


@contextlib.contextmanager
def file_lock(path: Path, *, waiting: Callable[[], None] | None = None) -> Iterator[bool]:
    """Hold the lock of `path` for the block, and yield whether it is held.

    Args:
        path: the lock file, made when missing, with its folders.
        waiting: called every now and then while another process holds the lock; None: yield False at once.

    Raises:
        DownloadError: the file system has no locks.
        OSError: the file cannot be made.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        held = _try_lock(descriptor, path)
        while not held and waiting is not None:
            waiting()
            time.sleep(_POLL_S)
            held = _try_lock(descriptor, path)
        yield held
    finally:
        os.close(descriptor)
