"""The board of a relay on a GPU: keys go one way, and what calls commit to comes back."""

import os
from contextlib import contextmanager

import pytest

from flashinfer_bench.bench.runner.workers.arena import open_memory_file
from flashinfer_bench.bench.runner.workers.timed.gpu_relay import RELAY_CALLS
from flashinfer_bench.worker.gpu_relay.board import (
    BOARD_BYTES,
    KEYS,
    LAUNCHED,
    MOST_CALLS,
    MOST_OUTPUTS,
    READY,
    TOLD,
    WORD,
    WORDS_OF_CALL,
    GpuBoard,
)
from flashinfer_bench.worker.gpu_relay.kernels import AT_ONCE, split

pytestmark = pytest.mark.cpu
LARGEST = (1 << 64) - 1


@contextmanager
def opened(size=BOARD_BYTES, behind=b""):
    """Give two views of a board, and its memory file."""
    fd = open_memory_file(size)
    try:
        os.pwrite(fd, behind, BOARD_BYTES)
        yield GpuBoard(fd, size), GpuBoard(fd, size), fd
    finally:
        os.close(fd)


def commit(fd, call, words):
    """Tell what a call commits to, as a kernel does."""
    told = b"".join(word.to_bytes(WORD, "little") for word in words)
    os.pwrite(fd, told, (TOLD + call * WORDS_OF_CALL) * WORD)


@pytest.mark.parametrize("call", [0, 1, MOST_CALLS - 1])
def test_a_key_is_for_one_call(call):
    with opened() as (ours, theirs, _):
        assert not any(theirs.has_key(at) for at in range(MOST_CALLS))
        ours.give(call, (1 << 63) - 1)
        assert [at for at in range(MOST_CALLS) if theirs.has_key(at)] == [call]


@pytest.mark.parametrize("groups", [1, 2, MOST_OUTPUTS // AT_ONCE])
@pytest.mark.parametrize("call", [0, 2, MOST_CALLS - 1])
def test_a_call_is_over_when_all_that_it_commits_to_is_there(call, groups):
    words = [LARGEST - at for at in range(2 * groups)]
    with opened() as (ours, _, fd):
        assert not ours.await_told(call, groups)
        commit(fd, call, words[:-1])
        assert not ours.await_told(call, groups)
        commit(fd, call, [0, *words[1:]])
        assert not ours.await_told(call, groups)
        commit(fd, call, words)
        assert ours.await_told(call, groups)
        assert ours.told(call, groups) == words
        others = [other for other in range(MOST_CALLS) if other != call]
        assert not any(any(ours.told(other, groups)) for other in others)
        assert not any(ours.has_key(other) for other in range(MOST_CALLS))


def test_who_waits_and_who_is_launched_is_told_apart():
    with opened() as (ours, theirs, _):
        assert ours.await_ready(0)
        assert not ours.await_ready(1)
        theirs.tell_ready(2)
        assert ours.await_ready(1)
        assert ours.await_ready(2)
        assert not ours.await_ready(3)
        assert not ours.is_launched(1)
        theirs.tell_launched(3)
        assert ours.is_launched(3)
        assert not ours.is_launched(4)
        assert not ours.await_ready(3)


def test_a_board_that_is_cleared_has_told_nothing_and_what_stands_behind_it_stays():
    code = b"\x7fELF, and so on"
    with opened(3 * BOARD_BYTES, code) as (ours, theirs, fd):
        for at in range(MOST_CALLS):
            ours.give(at, LARGEST)
            commit(fd, at, [LARGEST] * WORDS_OF_CALL)
        theirs.tell_ready(1)
        theirs.tell_launched(1)
        ours.clear()
        assert os.pread(fd, BOARD_BYTES, 0) == bytes(BOARD_BYTES)
        assert theirs.text(BOARD_BYTES, BOARD_BYTES + len(code)) == code
        assert theirs.text(BOARD_BYTES, 3 * BOARD_BYTES).rstrip(b"\0") == code


def test_a_board_outlives_the_descriptor_that_it_was_opened_by():
    with opened() as (_, theirs, fd):
        copy = os.dup(fd)
        ours = GpuBoard(copy)
        os.close(copy)
        ours.give(0, 5)
        assert theirs.has_key(0)


def test_nothing_on_a_board_lies_in_the_place_of_something_else():
    lengths = {READY: 1, LAUNCHED: 1, KEYS: MOST_CALLS, TOLD: MOST_CALLS * WORDS_OF_CALL}
    begins = sorted(lengths)
    assert len(begins) == 4
    for begin, after in zip(begins, [*begins[1:], BOARD_BYTES // WORD], strict=True):
        assert begin + lengths[begin] <= after
    assert 2 * len(split(range(MOST_OUTPUTS))) == WORDS_OF_CALL
    assert MOST_OUTPUTS % AT_ONCE == 0
    assert RELAY_CALLS <= MOST_CALLS


def test_what_the_gpu_writes_has_cache_lines_of_its_own():
    """The session reads one while the GPU writes the other."""
    line = 64
    assert len({begin * WORD // line for begin in (READY, LAUNCHED, KEYS, TOLD)}) == 4
    assert (KEYS + MOST_CALLS - 1) * WORD // line < TOLD * WORD // line
    assert TOLD * WORD % line == 0
