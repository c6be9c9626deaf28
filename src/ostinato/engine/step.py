"""From scheduled work to the arrays of a ForwardBatch."""

from __future__ import annotations

from collections.abc import Sequence as List

import numpy as np

from ostinato.engine.scheduler import Scheduled
from ostinato.ops.batch import ForwardBatch


def make_batch(work: List[Scheduled]) -> ForwardBatch:
    """Return the batch of a step: each part's tokens in order, logits for the last token of those that want
    them."""
    if len(work) == 1:
        return _batch_of_one(work[0])
    counts = [part.num_tokens for part in work]
    ends = np.cumsum(counts)
    starts = [part.sequence.num_computed for part in work]
    ids = [i for part, s in zip(work, starts, strict=True) for i in _ids(part, s)]
    widest = max(len(part.sequence.blocks) for part in work)
    tables = np.zeros((len(work), widest), np.int32)
    for row, part in zip(tables, work, strict=True):
        row[: len(part.sequence.blocks)] = part.sequence.blocks
    return ForwardBatch(
        token_ids=np.array(ids, np.int32),
        positions=np.concatenate(
            [np.arange(s, s + n, dtype=np.int32) for s, n in zip(starts, counts, strict=True)]
        ),
        slot_of_token=np.repeat(np.arange(len(work), dtype=np.int32), counts),
        block_tables=tables,
        context_lens=np.array([s + n for s, n in zip(starts, counts, strict=True)], np.int32),
        logits_rows=np.array(
            [e - 1 for e, part in zip(ends, work, strict=True) if part.wants_logits], np.int32
        ),
    )


def _batch_of_one(part: Scheduled) -> ForwardBatch:
    sequence = part.sequence
    rows = [part.num_tokens - 1] if part.wants_logits else []
    start = sequence.num_computed
    return ForwardBatch.single(_ids(part, start), start, sequence.blocks, rows)


def _ids(part: Scheduled, start: int) -> list[int]:
    return part.sequence.token_ids[start : start + part.num_tokens]
