"""The board of a relay: two counts that two processes see."""

import os

import pytest

from flashinfer_bench.bench.runner.workers.timed.handover import open_board
from flashinfer_bench.worker import relay_board as board

pytestmark = pytest.mark.cpu


def test_what_one_side_tells_the_other_sees():
    with open_board() as (ours, fd):
        assert not ours.is_done(1)
        if os.fork() == 0:
            theirs = board.RelayBoard(fd)
            for count in range(1, 4):
                theirs.await_given(count)
                theirs.tell_done(count)
            os._exit(0)
        for count in range(1, 4):
            ours.give(count)
            while not ours.is_done(count):
                pass
        assert not ours.is_done(4)
        os.wait()


def test_a_new_board_has_counted_nothing():
    with open_board() as (ours, _):
        ours.await_given(0)
        assert ours.is_done(0)
        assert not ours.is_done(1)


@pytest.mark.parametrize(("machine", "has_order"), [("x86_64", True), ("AMD64", True), ("aarch64", False)])
def test_a_board_needs_a_machine_that_shows_writes_in_order(monkeypatch, machine, has_order):
    monkeypatch.setattr(board.platform, "machine", lambda: machine)
    assert board.has_order() is has_order
