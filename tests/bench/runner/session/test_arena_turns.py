"""What becomes of the session's shared memory from block to block."""

from types import SimpleNamespace

import pytest

from flashinfer_bench.bench.runner.session import arena_turns
from flashinfer_bench.bench.runner.session.arena_turns import KEPT_ARENA_SHARE, LARGE_ARENA_BYTES, ArenaTurns

pytestmark = pytest.mark.cpu


@pytest.mark.parametrize(
    ("size", "blocks", "freed_at"),
    [
        (LARGE_ARENA_BYTES + 1, ["a", "a", "b", "b", "a"], [0, 2, 4]),
        (LARGE_ARENA_BYTES, ["a", "a", "b"], []),
        (10 * LARGE_ARENA_BYTES, ["a", "a", "b"], [0, 2]),
        (10 * LARGE_ARENA_BYTES + 1, ["a", "a", "b"], [0, 1, 2]),
    ],
)
def test_a_large_arena_is_freed_before_another_definition_once_its_worker_is_ended(monkeypatch, size, blocks, freed_at):
    monkeypatch.setattr(arena_turns, "total_bytes", lambda _: KEPT_ARENA_SHARE * 10 * LARGE_ARENA_BYTES)
    done = []
    arena = SimpleNamespace(largest=size, device=None, release=lambda: done.append("release"))
    turns = ArenaTurns(arena, SimpleNamespace(discard=lambda: done.append("discard")))
    freed = []
    for at, definition in enumerate(blocks):
        turns.open_block(definition)
        freed += [at] if done == ["discard", "release"] else []
        done.clear()
    assert freed == freed_at
