"""A progress that remembers, and can act when a position is reached."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Recorder:
    """Checks the promises of `Progress` while it records: `position` never passes `total_bytes`."""

    def __init__(self, at: int | None = None, act: Callable[[], None] | None = None) -> None:
        self.started = threading.Event()
        self.label = ""
        self.total_bytes = -1
        self.position = 0
        self.num_finished = 0
        self._at = at
        self._act = act

    def start(self, total_bytes: int, label: str) -> None:
        assert self.total_bytes == -1, "started twice"
        self.total_bytes, self.label = total_bytes, label
        self.started.set()

    def advance(self, num_bytes: int) -> None:
        assert num_bytes > 0 and not self.num_finished
        self.position += num_bytes
        assert self.position <= self.total_bytes
        if self._act is not None and self._at is not None and self.position >= self._at:
            act, self._act = self._act, None
            act()

    def finish(self) -> None:
        self.num_finished += 1
