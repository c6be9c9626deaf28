"""The tokens of one request that penalties look at, with their counts.

Knows ids and a window. Must not know logits or penalties. Next on the path: `processors.py`, which reads
`ids` and `counts`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

WHOLE = -1


class TokenHistory:
    """A multiset of token ids over the newest `window` tokens, kept as arrays ready to index a row of logits.

    Adding a token takes constant time, whatever the length of the history.
    """

    def __init__(self, token_ids: Sequence[int] = (), window: int = WHOLE) -> None:
        """Start from `token_ids`, oldest first. `window` is a number of tokens above 0, or `WHOLE`."""
        assert window == WHOLE or window > 0, f"window {window}"
        newest = token_ids if window == WHOLE else token_ids[-window:]
        self._window = window
        self._recent = deque(newest) if window != WHOLE else None
        self._ids, self._counts = np.unique(np.asarray(newest, dtype=np.int64), return_counts=True)
        self._slots = {token_id: slot for slot, token_id in enumerate(self._ids.tolist())}

    @property
    def ids(self) -> NDArray[np.int64]:
        """Distinct ids (N,), in no particular order: a view that the next `append` may change."""
        return self._ids[: len(self._slots)]

    @property
    def counts(self) -> NDArray[np.int64]:
        """How often each of `ids` occurs (N,), at least 1: a view that the next `append` may change."""
        return self._counts[: len(self._slots)]

    def append(self, token_id: int) -> None:
        """Add the newest token; the oldest leaves where the window is full."""
        self._add(token_id)
        if self._recent is not None:
            self._recent.append(token_id)
            if len(self._recent) > self._window:
                self._remove(self._recent.popleft())

    def _add(self, token_id: int) -> None:
        slot = self._slots.get(token_id)
        if slot is not None:
            self._counts[slot] += 1
            return
        slot = len(self._slots)
        if slot == len(self._ids):
            spare = np.zeros(max(16, slot), dtype=np.int64)
            self._ids, self._counts = np.append(self._ids, spare), np.append(self._counts, spare)
        self._ids[slot], self._counts[slot], self._slots[token_id] = token_id, 1, slot

    def _remove(self, token_id: int) -> None:
        """Take one occurrence away; the last slot fills the hole where it was the only one."""
        slot = self._slots[token_id]
        self._counts[slot] -= 1
        if self._counts[slot] == 0:
            last = len(self._slots) - 1
            moved = int(self._ids[last])
            self._ids[slot], self._counts[slot], self._slots[moved] = moved, self._counts[last], slot
            del self._slots[token_id]
