"""Engine: requests are submitted, steps are taken, events come out. One thread at a time.

A step: schedule, build the batch, run the model, choose tokens, commit them, report. Whoever owns the engine
calls `step` while `has_work`.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count

from ostinato.engine.request import Event, FinishedEvent, FinishReason, Request, TokenEvent
from ostinato.engine.scheduler import Scheduled, Scheduler
from ostinato.engine.sequence import Sequence
from ostinato.engine.step import make_batch
from ostinato.errors import ContextLengthError, InvalidRequestError, NumericalError
from ostinato.ops.batch import BLOCK_TOKENS, Executor, Float32
from ostinato.sampling.sampler import Sampler
from ostinato.telemetry.timeline import Clock, PrefillChunk, Timeline, clock
from ostinato.telemetry.timings import Usage


class Engine:
    """Runs requests on an executor.

    context_length: the most tokens, prompt and answer together, that a request may have.
    """

    def __init__(self, executor: Executor, context_length: int, clock: Clock = clock) -> None:
        assert context_length <= executor.num_blocks * BLOCK_TOKENS, (context_length, executor.num_blocks)
        self.executor = executor
        self.context_length = context_length
        self.scheduler = Scheduler(executor.num_blocks, executor.max_batch_tokens, clock)
        self._clock = clock
        self._ids = count(1)
        self._sequences: dict[int, Sequence] = {}

    @property
    def has_work(self) -> bool:
        """Whether any request is not finished."""
        return bool(self._sequences)

    def submit(self, request: Request, timeline: Timeline | None = None) -> int:
        """Accept a request and return its id.

        Args:
            timeline: the request's moments so far; by default it arrives now.

        Raises:
            InvalidRequestError: a limit or a token id is out of range.
            ContextLengthError: the prompt, or the prompt and `max_tokens`, do not fit the context.
        """
        now = self._clock()
        timeline = Timeline(now) if timeline is None else timeline
        timeline.queued_s = now
        max_tokens = self._checked_max_tokens(request)
        sampler = Sampler(request.sampling, self.executor.vocab_size, request.prompt_ids)
        for name in ("end_token_ids", "stop_token_ids"):
            self._check_ids(getattr(request, name), name)
        sequence = Sequence(
            next(self._ids), request, sampler, timeline, max_tokens, token_ids=list(request.prompt_ids)
        )
        self._sequences[sequence.id] = sequence
        self.scheduler.add(sequence)
        return sequence.id

    def step(self) -> list[Event]:
        """Compute the next tokens of whoever is due, and return what came of it; nothing without work."""
        work = self.scheduler.schedule()
        if not work:
            return []
        begin_s = self._clock()
        due = [part.sequence for part in work if part.wants_logits]
        logits = self.executor.forward(make_batch(work))
        self._commit_computed(work, begin_s)
        return [
            event
            for sequence, row in zip(due, logits, strict=True)
            for event in self._choose(sequence, row, begin_s)
        ]

    def end(self, request_id: int, reason: FinishReason) -> FinishedEvent:
        """End a request now, wherever it is: its text has met a stop string, or nobody wants it any more."""
        return self._finish(self._sequences[request_id], reason)

    def close(self) -> None:
        """Release the executor."""
        self.executor.close()

    def _commit_computed(self, work: Iterable[Scheduled], begin_s: float) -> None:
        now = self._clock()
        for part in work:
            if part.sequence.num_computed < part.sequence.num_prompt:
                part.sequence.timeline.prefill.append(PrefillChunk(begin_s, now, part.num_tokens))
            part.sequence.num_computed += part.num_tokens

    def _choose(self, sequence: Sequence, logits: Float32, begin_s: float) -> list[Event]:
        """Choose and commit the next token of a sequence."""
        request = sequence.request
        try:
            choice = sequence.sampler.sample(
                logits, banned=_banned(sequence), logprob=request.logprobs, candidates=request.candidates
            )
        except NumericalError as error:
            return [self._finish(sequence, FinishReason.ERROR, error=error)]
        sequence.sampler.commit(choice.token_id)
        sequence.token_ids.append(choice.token_id)
        now = self._clock()
        sequence.timeline.token_s.append(now)
        stops = choice.token_id in request.stop_token_ids or (
            choice.token_id in request.end_token_ids and not request.ignore_eos
        )
        events: list[Event] = [TokenEvent(sequence.id, choice, now - begin_s, stops)]
        if stops:
            events.append(self._finish(sequence, FinishReason.STOP, choice.token_id))
        elif sequence.num_generated == sequence.max_tokens:
            events.append(self._finish(sequence, FinishReason.LENGTH))
        return events

    def _finish(
        self,
        sequence: Sequence,
        reason: FinishReason,
        stop_token_id: int | None = None,
        error: NumericalError | None = None,
    ) -> FinishedEvent:
        del self._sequences[sequence.id]
        self.scheduler.release(sequence, keep=error is None)
        sequence.timeline.closed_s = self._clock()
        usage = Usage(sequence.num_prompt, sequence.num_generated, sequence.num_cached)
        return FinishedEvent(sequence.id, reason, usage, sequence.timeline, stop_token_id, error)

    def _checked_max_tokens(self, request: Request) -> int:
        """Return how many tokens the request may generate; raise if that is not what it asks for."""
        num_prompt, context = len(request.prompt_ids), self.context_length
        if num_prompt == 0:
            raise InvalidRequestError("the prompt is empty; give at least one token", "prompt")
        room = context - num_prompt
        if room < 1:
            raise ContextLengthError(
                f"the prompt has {num_prompt} tokens, the context {context}: nothing is left for an answer; "
                "shorten the prompt or raise the context length",
                "prompt",
            )
        for name, value in (("max_tokens", request.max_tokens), ("min_tokens", request.min_tokens)):
            lowest = 1 if name == "max_tokens" else 0
            if value is not None and (
                not isinstance(value, int) or isinstance(value, bool) or value < lowest
            ):
                raise InvalidRequestError(
                    f"{name} is {value!r}; a whole number from {lowest} is allowed", name
                )
        max_tokens = room if request.max_tokens is None else request.max_tokens
        if max_tokens > room:
            raise ContextLengthError(
                f"the prompt has {num_prompt} tokens and max_tokens is {max_tokens}, together more than the "
                f"context of {context}; at most {room} can be generated",
                "max_tokens",
            )
        if request.min_tokens > max_tokens:
            raise InvalidRequestError(
                f"min_tokens is {request.min_tokens}, more than the {max_tokens} that can be generated",
                "min_tokens",
            )
        return max_tokens

    def _check_ids(self, ids: Iterable[int], param: str) -> None:
        for token_id in ids:
            if not 0 <= token_id < self.executor.vocab_size:
                raise InvalidRequestError(
                    f"{param} holds {token_id}; this model's tokens are 0 to {self.executor.vocab_size - 1}",
                    param,
                )


def _banned(sequence: Sequence) -> tuple[int, ...]:
    """Return the tokens that would end the request too early."""
    request = sequence.request
    if sequence.num_generated >= request.min_tokens:
        return ()
    ends = frozenset() if request.ignore_eos else request.end_token_ids
    return tuple(ends | request.stop_token_ids)
