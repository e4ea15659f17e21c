"""A gated chain on a CPU: the session's end and the worker's, around a GPU whose time passes by what its calls take."""

import ctypes
import hashlib
import mmap
import os
import random
from collections import deque

import pytest
import torch

from flashinfer_bench.bench.runner.workers.timed import chain
from flashinfer_bench.bench.runner.workers.timed.reported_time import Claimed
from flashinfer_bench.timing.clocks import CaptureRefused
from flashinfer_bench.worker.gated_chain import calls
from flashinfer_bench.worker.gated_chain.kernels import BLOCK_BYTES, ControlBlock, Piece
from tests.kit.trials import make_trial

CODE = b"\x7fELF, and so on"
CALLS = 5
TICK_NS = 100
"""Each look at the clock takes so long."""
CALL_NS, EMPTY_NS, LEAST_NS, COPY_NS = 80_000, 4_000, 3_000, 20_000
"""What a call takes from its key to what it commits to; an empty one, one of few bytes; the copy of a result."""


def word_at(address):
    return ctypes.c_uint64.from_address(address)


class PlayedBlock(ControlBlock):
    """A control block that the played GPU sees, which goes on when the session polls it."""

    def __init__(self, gpu, fd, size=BLOCK_BYTES):
        super().__init__(fd, size)
        self.gpu, self.seen = gpu, mmap.mmap(fd, BLOCK_BYTES)

    def map_to_gpu(self):
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.seen))

    def release(self):
        self.gpu.log.append(("released", 1))

    def give(self, call, key):
        super().give(call, key)
        self.gpu.given_at += [self.gpu.now] * (key > 1)  # else it is no call's

    def await_ready(self, count):
        self.gpu.go_on()
        return super().await_ready(count)

    def await_digest(self, call, groups):
        self.gpu.go_on()
        return super().await_digest(call, groups)

    def is_launched(self, count):
        return count < 1 or (self.gpu.now >= self.gpu.launched_at and super().is_launched(count))

    def tell_launched(self, count):
        super().tell_launched(count)
        self.gpu.log.append(("launched", count))

    def tell_ready(self, count):
        super().tell_ready(count)
        self.gpu.serve(self.key_at(count - 1))


class PlayedGpu:
    """Does what is launched, in its order; it is the kernels of both ends, too.

    Calls in `lost` commit to nothing. Captures in `refused` are refused,
    counted from 1. An empty call takes the next of `empties`. Launches are told at `launched_at`. Who waits for a key
    gets the next of `ahead`, before any session gives one. `log` has what was done, and `keys` by which key inputs
    were masked and unmasked.
    """

    def __init__(self, monkeypatch):
        self.now, self.tick_ns, self.launched_at, self.captures = 0, TICK_NS, 0, 0
        self.queue, self.graph, self.lost, self.refused = deque(), None, (), ()
        self.empties, self.ahead, self.meanwhile, self.on_answer = iter(()), iter(()), None, lambda: None
        self.log, self.keys, self.given_at, self.is_asked, self.gives_up = [], [], [], False, False
        for module in (chain, calls):
            monkeypatch.setattr(module, "ControlBlock", lambda *given: PlayedBlock(self, *given))
            monkeypatch.setattr(module, "ChainKernels", self.load)
            monkeypatch.setattr(module, "capture", self.capture)
        monkeypatch.setattr(chain, "chain_image", lambda: CODE)
        monkeypatch.setattr(chain, "now_ns", self.now_ns)
        monkeypatch.setattr(calls, "see_operations", lambda least: self.log.append(("operations", least)))
        monkeypatch.setattr(torch.cuda, "synchronize", self.synchronize)

    def now_ns(self):
        self.now += self.tick_ns
        return self.now

    def load(self, image, device):
        assert image.rstrip(b"\0") == CODE
        return self

    def launch(self, do):
        (self.queue if self.graph is None else self.graph).append(do)
        self.go_on()

    def capture(self, launch):
        self.captures += 1
        if self.captures in self.refused:
            raise CaptureRefused("the capture ended early")
        self.graph = held = []
        try:
            launch()
        except ZeroDivisionError:
            raise CaptureRefused("the call raised") from None
        finally:
            self.graph = None
        return lambda: self.queue.extend(held)

    def go_on(self, *, to_the_end=False):
        """Do what needs no key that is not there, up to what a call commits to."""
        reported = None
        while self.queue and reported is not False and (to_the_end or not reported):
            reported = self.queue[0]()
            if reported is not False:
                self.queue.popleft()

    def synchronize(self, device):
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            polls = iter([False])
            meanwhile(lambda: next(polls, True) and not self.on_answer())
            self.gives_up = True
        self.go_on(to_the_end=True)
        self.call = None
        assert not self.queue, "a kernel waits for a key, and nobody gives it any"

    def serve(self, slot):
        word_at(slot).value = word_at(slot).value or next(self.ahead, 0)
        return word_at(slot).value

    def warm_up(self, slot):
        assert word_at(slot).value
        ctypes.memset(slot + 16, 1, 16)

    def await_and_unmask(self, slot, row, ready, count):
        def wait():
            assert count - word_at(ready).value in (0, 1), "calls wait one after the other"
            word_at(ready).value = count
            if not self.serve(slot) and not self.gives_up:
                return False
            self.call = count - 1
            if not self.is_asked:
                self.now += next(self.empties, LEAST_NS if row.nbytes <= 16 else EMPTY_NS) - TICK_NS
            return self._unmask(row, slot)

        self.launch(wait)

    def unmask(self, row, slot):
        self.launch(lambda: self._unmask(row, slot))

    def _unmask(self, row, slot):
        self.keys.append(word_at(slot).value)
        masks = random.Random(self.keys[-1]).randbytes(row.nbytes)
        held = (ctypes.c_uint8 * row.nbytes).from_address(row.address)
        held[:] = bytes(one ^ mask for one, mask in zip(held, masks, strict=True))

    def commit(self, pieces, reported):
        def tell():
            held = b"".join(ctypes.string_at(*piece) for piece in pieces)
            words = hashlib.blake2b(held, digest_size=16 * -(-len(pieces) // 4)).digest()
            self.committed = lambda: ctypes.memmove(reported, bytes(word | 1 for word in words), len(words)) and None
            if self.call not in self.lost:
                self.committed()
            return True

        self.launch(tell)

    def committer(self, sizes, reported):
        return lambda addresses: self.commit(list(map(Piece, addresses, sizes)), reported)


class PlayedCall:
    """A call of a chain, y = 2 x."""

    result = None

    def __init__(self, worker, at):
        self.worker, self.gpu, self.at = worker, worker.gpu, at
        self.slots = worker.trial.buffers.outputs(at)
        self.made = [torch.zeros_like(one) for one in self.slots]

    def __call__(self):
        if self.at in self.worker.raising:
            raise ZeroDivisionError(self.at)
        self.result = "what it returned"
        self.gpu.launch(lambda: self.run("call", next(self.worker.takes_ns, CALL_NS) - TICK_NS))

    def put_away(self):
        self.gpu.launch(lambda: self.run("copy", COPY_NS))

    def run(self, what, takes_ns):
        self.gpu.log.append((what, self.at))
        self.gpu.now += takes_ns
        if (what == "copy") is (self.at in self.worker.late):
            (x,) = self.worker.trial.buffers.inputs(self.at)
            self.worker.sums.append(float(x.sum()))
            torch.mul(x, 2, out=self.made[0])
        if what == "copy":
            self.slots[0].copy_(self.made[0])

    def forget(self):
        self.result = None

    def plain_results(self):
        return self.made if self.worker.plain else None


class PlayedWorker:
    """The worker's end. What a call makes lies as its slots do where it is `plain`; calls in `late` compute too late.

    `asked` has what it was asked for, `answer` what it says beside what it says anyway; `then` is done at last.
    """

    def __init__(self, gpu, trial, *, takes_ns=(), plain=True, late=(), raising=(), answer=None):
        self.gpu, self.trial, self.takes_ns = gpu, trial, iter(takes_ns)
        self.plain, self.late, self.raising, self.answer = plain, late, raising, answer or {}
        self.asked, self.sums, self.then = [], [], lambda: None
        self.chains = calls.GatedChains(torch.device("cpu"))
        self.calls = [PlayedCall(self, at) for at in range(CALLS)]

    def run_chain(self, fd, **fields):
        """Answer a request; the descriptor is closed afterwards, whatever happens."""
        copy, self.gpu.is_asked = os.dup(fd), True
        try:
            return self.chains.run(fields, copy, self.calls, self.trial.buffers.arena.block.data_ptr())
        finally:
            self.gpu.is_asked = self.gpu.gives_up = False
            with pytest.raises(OSError, match="Bad file descriptor"):
                os.fstat(copy)

    def __call__(self, method, expected, what, *, fds, meanwhile, **fields):
        self.asked.append((method, fields))
        self.gpu.meanwhile = meanwhile
        answer = {"joined": self.run_chain(fds[0], **fields)}
        self.then()
        return expected.model_validate({"id": 1, **answer, **self.answer})


def open_timer(gpu, arena, *, operations=3, settles=False, gap_ns=0, wanted=2, has_setup=False, **worker):
    """Return a timer of chains on a played GPU, and the worker."""
    trial = make_trial(arena, most=CALLS, wanted=wanted, has_setup=has_setup, device_type="cuda")
    played = PlayedWorker(gpu, trial, **worker)
    claimed = Claimed(CALL_NS, operations is None, operations or 0, settles)
    desk = chain.ChainTools(torch.device("cpu"))
    return chain.ChainTimer(played, trial, desk, claimed, calls=CALLS, gap_ns=gap_ns), played
