"""Stream: one answer while it is written.

Tokens become text, held back where it is not final, cut at a stop string.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence

from ostinato.answer import Completion, FinishReasonName, Piece
from ostinato.chat.detokenizer import Detokenizer
from ostinato.chat.stop_strings import StopMatcher
from ostinato.chat.tokenizer import Tokenizer
from ostinato.engine.engine import Engine
from ostinato.engine.request import Event, FinishedEvent, FinishReason, Request, TokenEvent
from ostinato.telemetry.timeline import Timeline
from ostinato.telemetry.timings import timings

_NAMES: dict[FinishReason, FinishReasonName] = {
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.ABORT: "abort",
}


class Dispatcher:
    """Steps an engine for whoever waits for an event, and keeps the events of the others for them."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._inboxes: dict[int, deque[Event]] = {}
        self._lock = threading.RLock()

    def submit(self, request: Request, timeline: Timeline) -> int:
        """Submit a request; see `Engine.submit`."""
        with self._lock:
            request_id = self.engine.submit(request, timeline)
            self._inboxes[request_id] = deque()
            return request_id

    def next_event(self, request_id: int, interrupted: threading.Event) -> Event:
        """Return the next event of an unfinished request; if interrupted before one comes, end it."""
        with self._lock:
            inbox = self._inboxes[request_id]
            while not inbox:
                if interrupted.is_set():
                    return self.end(request_id, FinishReason.ABORT)
                self._deliver(self.engine.step())
            event = inbox.popleft()
            if isinstance(event, FinishedEvent):
                del self._inboxes[request_id]
            return event

    def end(self, request_id: int, reason: FinishReason) -> FinishedEvent:
        """End a request whose last event was not read yet."""
        with self._lock:
            inbox = self._inboxes.pop(request_id)
            finished = [event for event in inbox if isinstance(event, FinishedEvent)]
            return finished[0] if finished else self.engine.end(request_id, reason)

    def _deliver(self, events: list[Event]) -> None:
        for event in events:
            self._inboxes[event.request_id].append(event)


class Stream(Iterator[Piece]):
    """The pieces of an answer, computed as they are asked for; `completion` is there when they are over.

    A stream that is closed, left by its `with` block or forgotten ends its request.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        tokenizer: Tokenizer,
        request: Request,
        stop: Sequence[str],
        timeline: Timeline,
    ) -> None:
        self._id: int | None = None
        self._dispatcher = dispatcher
        self._tokenizer = tokenizer
        self._detokenizer = Detokenizer(tokenizer)
        self._matcher = StopMatcher(stop)
        self._texts: list[str] = []
        self._token_ids: list[int] = []
        self._last: Piece | None = None
        self._completion: Completion | None = None
        self._interrupted = threading.Event()
        self._id = dispatcher.submit(request, timeline)

    @property
    def completion(self) -> Completion:
        """The whole answer.

        Raises:
            RuntimeError: it is not finished: there are pieces to read, and nobody has cancelled it.
        """
        if self._completion is None:
            raise RuntimeError("the answer is not finished: read all pieces first, or cancel the stream")
        return self._completion

    def __next__(self) -> Piece:
        if self._id is not None:
            event = self._dispatcher.next_event(self._id, self._interrupted)
            if isinstance(event, TokenEvent):
                return self._take_token(event, self._id)
            self._finish(event)
        if self._last is None:
            raise StopIteration
        piece, self._last = self._last, None
        return piece

    def interrupt(self) -> None:
        """Ask for the end of the answer after the step that is running.

        For signal handlers and other threads.
        """
        self._interrupted.set()

    def cancel(self) -> Completion:
        """End the answer where it is, and return it; harmless when it is finished."""
        if self._id is not None:
            self._finish(self._dispatcher.end(self._id, FinishReason.ABORT))
        return self.completion

    def close(self) -> None:
        """End the request if it is not finished."""
        if self._id is not None:
            self.cancel()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def _take_token(self, event: TokenEvent, request_id: int) -> Piece:
        choice = event.choice
        self._token_ids.append(choice.token_id)
        new_text = "" if event.stops else self._detokenizer.feed([choice.token_id])
        text, stop = self._matcher.feed(new_text)
        self._texts.append(text)
        if stop is not None:
            self._finish(self._dispatcher.end(request_id, FinishReason.STOP), stop)
        return Piece(
            text, choice.token_id, choice.probability, choice.logprob, choice.candidates, event.step_s
        )

    def _finish(self, event: FinishedEvent, stop: str | None = None) -> None:
        """Flush what was held back, and put the answer together."""
        self._id = None
        if event.error is not None:
            raise event.error
        reason = event.reason if stop is None else FinishReason.STOP
        if stop is None:
            held, stop = self._flush()
            reason = reason if stop is None else FinishReason.STOP
            self._texts.append(held)
            self._last = Piece(held) if held else None
        if event.stop_token_id is not None:
            stop = self._tokenizer.decode([event.stop_token_id], control=True)
        self._completion = Completion(
            text="".join(self._texts),
            token_ids=tuple(self._token_ids),
            finish_reason=_NAMES[reason],
            stop=stop,
            usage=event.usage,
            timings=timings(event.timeline),
        )

    def _flush(self) -> tuple[str, str | None]:
        text, stop = self._matcher.feed(self._detokenizer.flush())
        if stop is not None:
            return text, stop
        rest, stop = self._matcher.flush()
        return text + rest, stop
