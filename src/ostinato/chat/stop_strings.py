"""End a text at the first stop string in it, holding back what may still become one.

Knows text. Must not know tokens: a stop that is a control token has no text, and `Tokenizer.id_of_special`
finds its id, on which the engine stops. Next on the request's path: `api`, or whoever asked.
"""

from __future__ import annotations

from collections.abc import Sequence

from ostinato.errors import InvalidRequestError


class StopMatcher:
    """Looks for stop strings in the pieces of one text.

    The match that begins first in the text wins, as if the whole text were searched at its end; of two that
    begin at one place the shorter, which is complete first. The text ends where the match begins. How the
    text is cut into pieces makes no difference to what comes out in all. Held back is exactly the text from
    the first place on where a stop string may still begin, or has begun.

    Raises:
        InvalidRequestError: a stop string is empty.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        for index, stop in enumerate(stops):
            if not stop:
                raise InvalidRequestError(
                    f"stop[{index}] is empty: it would end every answer before it begins", "stop"
                )
        self._stops = sorted(set(stops), key=len)
        self._held = ""
        self._stopped = False

    def feed(self, text: str) -> tuple[str, str | None]:
        """Take the next piece of the text.

        Returns:
            The text that is final with it, and the stop string that has ended the text, if one has. Nothing
            comes after that, whatever is fed.
        """
        if self._stopped:
            return "", None
        self._held += text
        start, stop = self._first_match()
        open_start = self._first_open()
        if stop is None or open_start < start:
            return self._emit(open_start), None
        self._stopped = True
        return self._emit(start), stop

    def flush(self) -> tuple[str, str | None]:
        """End the text: return what was held back, up to a stop string in it, and that stop string."""
        start, stop = self._first_match()
        self._stopped = True
        return self._emit(start), stop

    def _emit(self, end: int) -> str:
        final = self._held[:end]
        self._held = "" if self._stopped else self._held[end:]
        return final

    def _first_match(self) -> tuple[int, str | None]:
        """Return where the first whole stop string begins, and which; if there is none, the end and None."""
        first, found = len(self._held), None
        for stop in self._stops:
            start = self._held.find(stop, 0, first + len(stop) - 1)
            if 0 <= start < first:
                first, found = start, stop
        return first, found

    def _first_open(self) -> int:
        """Return the first place from which the rest of the text is the unfinished beginning of a stop."""
        longest = len(self._stops[-1]) if self._stops else 1
        for start in range(max(0, len(self._held) - longest + 1), len(self._held)):
            rest = self._held[start:]
            if any(len(rest) < len(stop) and stop.startswith(rest) for stop in self._stops):
                return start
        return len(self._held)
