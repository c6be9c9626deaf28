"""Blocks and kept sequences, against the obvious: token-exact prefixes, each block owned once."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from ostinato.kvcache.blocks import BlockPool, blocks_for
from ostinato.kvcache.sequences import KeptSequences, common_prefix
from ostinato.ops.batch import BLOCK_TOKENS

few_tokens = st.lists(st.integers(0, 2), max_size=4 * BLOCK_TOKENS)


def test_blocks_for() -> None:
    assert [blocks_for(n) for n in (0, 1, 32, 33, 64, 65)] == [0, 1, 1, 2, 2, 3]


@given(few_tokens, few_tokens, st.integers(0, 200))
def test_common_prefix_is_the_longest_that_the_limit_allows(a: list[int], b: list[int], limit: int) -> None:
    length = common_prefix(a, b, limit)
    assert a[:length] == b[:length]
    at_the_end = length in (limit, len(a), len(b))
    assert at_the_end or a[length] != b[length]


@settings(derandomize=True, max_examples=200)
@given(st.lists(st.tuples(few_tokens, few_tokens.filter(len), st.integers(0, 12)), max_size=8))
def test_random_histories_keep_every_block_and_match_the_longest_prefix(
    history: list[tuple[list[int], list[int], int]],
) -> None:
    pool = BlockPool(12)
    kept = KeptSequences(pool)
    remembered: list[list[int]] = []
    for tokens, prompt, room in history:
        needed = blocks_for(len(tokens))
        kept.make_room(needed)
        if pool.num_free >= needed:
            kept.keep(tokens, pool.allocate(needed))
        remembered = [list(entry.token_ids) for entry in kept._kept]
        pool.check_integrity(kept.owned())

        expected = max((common_prefix(r, prompt, len(prompt) - 1) for r in remembered), default=0)
        blocks, length = kept.take(prompt)
        assert length == expected
        assert len(blocks) == blocks_for(length)
        pool.check_integrity([*kept.owned(), *blocks])
        pool.free(blocks)

        kept.make_room(room)
        assert pool.num_free >= room or not kept.owned()
        pool.check_integrity(kept.owned())


def test_the_oldest_gives_way_first() -> None:
    pool = BlockPool(3)
    kept = KeptSequences(pool)
    for token in range(3):
        kept.keep([token] * 32, pool.allocate(1))
    kept.make_room(1)
    assert kept.take([0] * 33) == ([], 0)
    assert kept.take([2] * 33)[1] == 32
