"""The board of a gated chain: keys go one way, and what calls commit to comes back. And the worker's end of it."""

import os
from contextlib import contextmanager

import pytest
import torch

from flashinfer_bench.bench.runner.workers.arena import open_memory_file
from flashinfer_bench.timing.clocks import CaptureRefused
from flashinfer_bench.timing.driver import DriverError
from flashinfer_bench.worker.gpu_relay import calls as calls_module
from flashinfer_bench.worker.gpu_relay.board import GpuBoard
from flashinfer_bench.worker.gpu_relay.calls import GpuChains
from flashinfer_bench.worker.gpu_relay.kernels import Piece

pytestmark = pytest.mark.cpu
BOARD_BYTES = 4096
MOST_CALLS = 17
LARGEST = (1 << 64) - 1
CALLS = 3
KEYS = [101, 102, 103]
CODE = b"\x7fELF, and so on"


@contextmanager
def opened(size=BOARD_BYTES, behind=b""):
    """Give two views of a board, and its memory file."""
    fd = open_memory_file(size)
    try:
        os.pwrite(fd, behind, BOARD_BYTES)
        yield GpuBoard(fd, size), GpuBoard(fd, size), fd
    finally:
        os.close(fd)


def commit(fd, board, call, words):
    """Tell what a call commits to, as a kernel does."""
    os.pwrite(fd, b"".join(word.to_bytes(8, "little") for word in words), board.told_at(call))


def read_keys(fd, board, calls=MOST_CALLS):
    return [int.from_bytes(os.pread(fd, 8, board.key_at(at)), "little") for at in range(calls)]


@pytest.mark.parametrize("call", [0, 1, MOST_CALLS - 1])
def test_a_key_is_for_one_call_and_none_takes_the_place_of_another(call):
    with opened() as (ours, theirs, fd):
        ours.give(call, LARGEST)
        assert [at for at in range(MOST_CALLS) if theirs.has_key(at)] == [call]
        for at in (call, call, 3):
            theirs.give_if_missing(at)
        assert read_keys(fd, ours) == [LARGEST if at == call else int(at == 3) for at in range(MOST_CALLS)]


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("call", [0, 2, MOST_CALLS - 1])
def test_a_call_is_over_when_all_that_it_commits_to_is_there(call, groups):
    words = [LARGEST - at for at in range(2 * groups)]
    with opened() as (ours, _, fd):
        for part in ([], words[:-1], [0, *words[1:]]):
            commit(fd, ours, call, part)
            assert not ours.await_told(call, groups)
        commit(fd, ours, call, words)
        assert ours.await_told(call, groups)
        assert ours.told(call, groups) == words
        assert not any(any(ours.told(other, 4)) for other in range(MOST_CALLS) if other != call)
        assert not any(read_keys(fd, ours))


def test_who_waits_and_who_is_launched_is_told_apart():
    with opened() as (ours, theirs, _):
        theirs.tell_ready(2)
        assert [ours.await_ready(count) for count in range(4)] == [True, True, True, False]
        theirs.tell_launched(3)
        assert [ours.is_launched(count) for count in range(5)] == [True] * 4 + [False]
        assert not ours.await_ready(3)


def test_a_board_that_is_cleared_has_told_nothing_and_what_stands_behind_it_stays():
    with opened(3 * BOARD_BYTES, CODE) as (ours, theirs, fd):
        for at in range(MOST_CALLS):
            ours.give(at, LARGEST)
            commit(fd, ours, at, [LARGEST] * 8)
        theirs.tell_ready(1)
        theirs.tell_launched(1)
        ours.clear()
        assert os.pread(fd, BOARD_BYTES, 0) == bytes(BOARD_BYTES)
        assert theirs.text(BOARD_BYTES, 3 * BOARD_BYTES).rstrip(b"\0") == CODE


def test_what_the_gpu_writes_has_cache_lines_of_its_own_and_all_is_on_the_board():
    """The session reads one while the GPU writes the other."""
    with opened() as (board, _, _):
        begins = board.ready_at, board.key_at(0), board.told_at(0), board.told_at(MOST_CALLS - 1) + 64
        assert [*begins] == sorted(begins)
        assert begins[-1] <= BOARD_BYTES
        assert len({begin // 64 for begin in begins} | {board.key_at(MOST_CALLS - 1) // 64}) == 5


class PlayedGpu:
    """Does what was launched when it is waited for. To each call that waits the session gives a key, while it has any.

    It is the kernels, too, and what captures. `done` is what was done: its name, its call, and what it was given.
    `seen` are the operations that the first call of a graph had to have, `launched` how many calls were told as that
    when each waited for its key.
    """

    def __init__(self, fd):
        self.fd, self.boards, self.keys = fd, [], iter(())
        self.queue, self.done, self.seen, self.launched = [], [], [], []
        self.graph, self.captures = None, 0

    def map_board(self, fd, size):
        self.boards.append(SeenBoard(self, fd, size))
        return self.boards[-1]

    def load(self, image, device):
        assert image == CODE
        return self

    def warm_up(self, slot):
        assert os.pread(self.fd, 8, slot) != bytes(8)
        os.pwrite(self.fd, b"\1" * 16, slot + 16)

    def await_and_unmask(self, slot, row, ready, count):
        assert (ready, slot) == (self.boards[-1].ready_at, self.boards[-1].key_at(count - 1))
        self.launch("await", count - 1)
        self.unmask(row, slot)

    def unmask(self, row, slot):
        self.launch("unmask", (slot - self.boards[-1].key_at(0)) // 8, row)

    def committer(self, sizes, told):
        assert sizes == [16, 8]
        call = next(at for at in range(CALLS) if self.boards[-1].told_at(at) == told)
        return lambda addresses: self.launch("commit", call, addresses)

    def launch(self, *what):
        (self.queue if self.graph is None else self.graph).append(what)

    def capture(self, launch):
        self.captures += 1
        self.graph = held = []
        try:
            launch()
        except Exception as error:
            raise CaptureRefused(str(error)) from None
        finally:
            self.graph = None
        return lambda: self.queue.extend(held)

    def synchronize(self, device):
        waiting, self.queue = self.queue, []
        for name, call, *given in waiting:
            if name == "await":
                self.serve(call)
                assert self.boards[-1].has_key(call), "a kernel waits for a key, and nobody gives it any"
            elif name == "unmask":
                self.done.append((name, call, read_keys(self.fd, self.boards[-1])[call], *given))
            else:
                self.done.append((name, call, *given))

    def serve(self, call):
        """Give a call its key, unless one is there already, which the GPU would see first."""
        self.launched.append(max(at for at in range(CALLS + 1) if self.boards[-1].is_launched(at)))
        if not self.boards[-1].has_key(call):
            self.boards[-1].give(call, next(self.keys, 0))


class SeenBoard(GpuBoard):
    """A board that the GPU of a test sees."""

    def __init__(self, gpu, fd, size):
        super().__init__(fd, size)
        self.gpu, self.releases = gpu, 0

    def tell_ready(self, count):
        super().tell_ready(count)
        self.gpu.serve(count - 1)

    def release(self):
        self.releases += 1


class PlayedCall:
    """A call of a chain: what it returns lies as its slots do where it is `plain`."""

    result = None

    def __init__(self, gpu, at, *, plain=True, raises=False):
        self.gpu, self.at, self.raises = gpu, at, raises
        self.slots = [torch.zeros(4), torch.zeros(2)]
        self.results = [torch.ones(4), torch.ones(2)] if plain else None

    def __call__(self):
        if self.raises:
            raise ZeroDivisionError(self.at)
        self.result = "what it returned"
        self.gpu.launch("call", self.at)

    def put_away(self):
        self.gpu.launch("put away", self.at)

    def plain_results(self):
        return self.results


@pytest.fixture
def gpu(monkeypatch):
    with opened(2 * BOARD_BYTES, CODE) as (_, _, fd):
        played = PlayedGpu(fd)
        monkeypatch.setattr(calls_module, "MappedBoard", played.map_board)
        monkeypatch.setattr(calls_module, "ChainKernels", played.load)
        monkeypatch.setattr(calls_module, "capture", played.capture)
        monkeypatch.setattr(calls_module, "see_operations", played.seen.append)
        monkeypatch.setattr(torch.cuda, "synchronize", played.synchronize)
        played.relays = GpuChains(torch.device("cuda"))
        yield played


def run_chain(gpu, calls, keys=KEYS, **changes):
    """Have a worker answer a request for a chain; its descriptor is closed afterwards, whatever happens."""
    for board in gpu.boards[-1:]:
        board.clear()
    gpu.keys = iter(keys)
    request = {"size": BOARD_BYTES + len(CODE), "stride": 256, "inputs": 64, "operations": 5, "settles": False}
    copy = os.dup(gpu.fd)
    try:
        return gpu.relays.run({**request, "indices": range(len(calls)), **changes}, copy, calls, 4_096)
    finally:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(copy)


def make_calls(gpu, **traits):
    return [PlayedCall(gpu, at, **traits) for at in range(CALLS)]


def steps_of(calls, keys=KEYS, nbytes=64):
    """Return what a GPU does for some calls with these keys."""
    steps = []
    for call, key in zip(calls, keys, strict=False):
        commit = "commit", call.at, [one.data_ptr() for one in call.results or call.slots]
        ends = [commit, ("put away", call.at)]  # before they are put away nobody has copied results
        steps += [("unmask", call.at, key, Piece(4_096 + 256 * call.at, nbytes)), ("call", call.at)]
        steps += ends if call.results else ends[::-1]
    return steps


WAYS = {
    "a graph": ({}, [CALLS] * CALLS),
    "launches": ({"operations": None}, [CALLS] * CALLS),
    "settled": ({"settles": True}, [1, 2, 3]),
}


@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize("way", WAYS)
def test_each_call_gets_its_inputs_by_the_sessions_key_and_commits_to_its_results(gpu, way, plain):
    fields, launched = WAYS[way]
    calls = make_calls(gpu, plain=plain)
    assert run_chain(gpu, calls, **fields) == {"relayed": CALLS, "joined": way == "a graph"}
    assert (gpu.done, gpu.launched) == (steps_of(calls), launched)
    assert gpu.captures == (way == "a graph")
    assert all(call.result is None for call in calls)


@pytest.mark.parametrize(("nbytes", "kernels"), [(1 << 15, 1), ((1 << 15) + 16, 2)])
def test_a_graph_has_the_operations_of_a_call_and_what_goes_before_it(gpu, nbytes, kernels):
    calls = make_calls(gpu)
    run_chain(gpu, calls, inputs=nbytes)
    assert (gpu.seen, gpu.done) == ([5 + kernels], steps_of(calls, nbytes=nbytes))


def test_calls_are_captured_once_until_they_are_forgotten(gpu):
    calls = make_calls(gpu)
    for keys in (KEYS, [7, 8, 9]):
        assert run_chain(gpu, calls, keys)["joined"]
    assert gpu.done == steps_of(calls) + steps_of(calls, [7, 8, 9])
    assert (len(gpu.boards), gpu.captures) == (1, 1)
    assert (gpu.relays.forget(), gpu.relays.forget(), gpu.boards[0].releases) == (True, False, 1)
    assert run_chain(gpu, calls)["joined"]
    assert (len(gpu.boards), gpu.captures) == (2, 2)


def test_calls_that_no_graph_holds_are_launched_and_not_captured_again(gpu, monkeypatch):
    def see(least):
        raise CaptureRefused("a graph of it holds fewer")

    monkeypatch.setattr(calls_module, "see_operations", see)
    calls = make_calls(gpu)
    for _ in range(2):
        assert run_chain(gpu, calls) == {"relayed": CALLS, "joined": False}
    assert (gpu.captures, gpu.done) == (1, 2 * steps_of(calls))


@pytest.mark.parametrize("raises", range(CALLS))
@pytest.mark.parametrize("way", WAYS)
def test_where_a_call_raises_no_kernel_waits_for_a_key_any_more(gpu, way, raises):
    with pytest.raises(ZeroDivisionError, match=str(raises)):
        run_chain(gpu, [PlayedCall(gpu, at, raises=at == raises) for at in range(CALLS)], **WAYS[way][0])
    given = KEYS[: raises + 1] if way == "settled" else []
    assert read_keys(gpu.fd, gpu.boards[-1], CALLS + 1) == [*given, *[1] * (CALLS - len(given)), 0]
    assert gpu.queue == []  # the device was waited for
    assert [step for step in gpu.done if step[0] == "call"] == [("call", at) for at in range(raises)]


def test_what_a_call_raised_is_told_where_it_has_broken_the_device(gpu, monkeypatch):
    def fail(device):
        raise RuntimeError("an illegal memory access")

    monkeypatch.setattr(torch.cuda, "synchronize", fail)
    with pytest.raises(ZeroDivisionError):
        run_chain(gpu, [PlayedCall(gpu, 0, raises=True)])


def test_a_settled_call_does_not_wait_for_its_key_for_ever(gpu, monkeypatch):
    monkeypatch.setattr(calls_module, "LIMIT_S", 0.01)
    calls = make_calls(gpu)
    run_chain(gpu, calls, keys=(), settles=True)
    assert gpu.done == steps_of(calls, [0] * CALLS)


def test_where_the_board_cannot_be_mapped_its_memory_is_given_up(gpu, monkeypatch):
    def fail(fd, size):
        raise DriverError("mapping the board failed")

    monkeypatch.setattr(calls_module, "MappedBoard", fail)
    with pytest.raises(DriverError, match="mapping the board"):
        run_chain(gpu, make_calls(gpu))
    assert not gpu.relays.forget()
