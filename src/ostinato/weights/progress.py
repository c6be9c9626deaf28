"""How a long fetch tells its caller how far it is.

Knows numbers of bytes. Must not know terminals, files or networks: the command line brings its own
`Progress`.
"""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """What a fetch reports to. `advance` may be called from another thread than `start` and `finish`."""

    def start(self, total_bytes: int, label: str) -> None:
        """Begin: `total_bytes` are to come, what was already here included."""

    def advance(self, num_bytes: int) -> None:
        """Count `num_bytes` more; the sum never exceeds the total."""

    def finish(self) -> None:
        """End, whether the fetch went well or not. Called once after each `start`."""


class Silent:
    """A `Progress` that shows nothing."""

    def start(self, total_bytes: int, label: str) -> None:
        """Ignore the start."""

    def advance(self, num_bytes: int) -> None:
        """Ignore the bytes."""

    def finish(self) -> None:
        """Ignore the end."""


class Meter:
    """Turns positions into advances: forward only, never past the total. Use it as a context manager."""

    def __init__(self, progress: Progress | None, total_bytes: int, label: str) -> None:
        self._progress: Progress = progress if progress is not None else Silent()
        self._total_bytes = total_bytes
        self._label = label
        self._position = 0

    def __enter__(self) -> Meter:
        self._progress.start(self._total_bytes, self._label)
        return self

    def __exit__(self, *exc: object) -> None:
        self._progress.finish()

    def reach(self, position: int) -> None:
        """Report that `position` bytes are here; a position behind the last one is not reported."""
        step = min(position, self._total_bytes) - self._position
        if step > 0:
            self._position += step
            self._progress.advance(step)
