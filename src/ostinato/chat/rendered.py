"""What a chat template has written, and which stretches of it came from the caller.

Knows nothing else. It is the one message from `template.py` to `tokenizer.py`, which is next on the request's
path.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rendered:
    """A prompt as text.

    `caller_spans` are half-open, in order and apart: what the messages, tools and variables brought in. The
    template wrote the rest, and only there are control tokens read.
    """

    text: str
    caller_spans: tuple[tuple[int, int], ...] = ()

    def template_spans(self) -> list[tuple[int, int]]:
        """Return the stretches between the caller's, without the empty ones."""
        edges = [0, *(edge for span in self.caller_spans for edge in span), len(self.text)]
        spans = zip(edges[::2], edges[1::2], strict=True)
        return [(start, end) for start, end in spans if start < end]
