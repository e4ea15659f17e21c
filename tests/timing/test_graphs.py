"""What making a graph does without a GPU, with torch's own captures replaced; and what the driver is told ahead."""

import ctypes
import os
from contextlib import contextmanager
from typing import ClassVar

import pytest
import torch

from flashinfer_bench.timing import driver, graphs
from flashinfer_bench.timing.driver import CONNECTIONS, set_connections
from flashinfer_bench.timing.graphs import CaptureRefused, capture, capture_first, see_operations

pytestmark = pytest.mark.cpu


class FalseStream:
    """A stream that notes how many there are, and which waits for which."""

    made, active = 0, "current"
    waits: ClassVar[list] = []

    def __init__(self, handle, _device=0):
        type(self).made += 1
        self.cuda_stream = handle
        self.name = "own" if handle else "current"

    def wait_stream(self, other):
        self.waits.append((self.name, other.name))


@pytest.fixture
def false_torch(monkeypatch):
    """The log of captures, and a dict whose "fails" makes them fail; its "count" is what their graphs hold."""
    log, faults = [], {"fails": None, "count": 1}

    class FalseGraph:
        def capture_begin(self):
            if faults["fails"]:
                raise RuntimeError(faults["fails"])
            log.append("begin")

        def capture_end(self):
            log.append("end")

        def replay(self):
            log.append("replay")

    @contextmanager
    def on_stream(chosen):
        FalseStream.active = getattr(chosen, "name", "current")
        yield
        FalseStream.active = "current"

    stream = FalseStream(0)
    FalseStream.made = 0
    FalseStream.waits.clear()
    for name, stand_in in {
        "CUDAGraph": FalseGraph,
        "ExternalStream": FalseStream,
        "stream": on_stream,
        "device": on_stream,
        "current_stream": lambda _device=0: stream if FalseStream.active == "current" else FalseStream(77),
        "current_device": lambda: 0,
        "synchronize": lambda: log.append("synchronize"),
    }.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    monkeypatch.setattr(driver, "make_stream", lambda: 77)
    monkeypatch.setattr(driver, "count_captured", lambda handle: faults["count"] if handle == 77 else 1 / 0)
    monkeypatch.setattr(graphs.torch, "zeros", lambda _size, device: torch.ones(1))
    for kept in (graphs.capture_first, graphs._capture_stream):
        kept.cache_clear()
    yield log, faults
    for kept in (graphs.capture_first, graphs._capture_stream):
        kept.cache_clear()


def test_a_call_is_captured_on_a_stream_of_our_own_that_waits_and_is_waited_for(false_torch):
    log, _ = false_torch
    for _ in range(2):
        capture(lambda: log.append(f"call on {FalseStream.active}"))()
    assert log == ["begin", "call on own", "end", "replay"] * 2
    assert (FalseStream.waits, FalseStream.made) == ([("own", "current"), ("current", "own")] * 2, 1)


def test_the_first_captures_are_made_once_on_a_gpu_and_their_failure_is_no_fault_of_a_call(false_torch):
    log, faults = false_torch
    capture_first(torch.device("cpu"))
    assert log == []
    faults["fails"] = "out of memory\nat some place"
    capture_first(torch.device("cuda", 1))
    with pytest.raises(CaptureRefused, match=r"cannot be captured: out of memory$"):
        capture(lambda: None)
    faults["fails"] = None
    for _ in range(2):
        capture_first(torch.device("cuda", 0))
    assert log.count("begin") == 8


@pytest.mark.parametrize(("count", "is_refused"), [(0, True), (1, True), (2, False), (3, False), (None, False)])
def test_a_graph_with_fewer_operations_than_the_call_stands_for_no_call(false_torch, count, is_refused):
    log, faults = false_torch
    faults["count"] = count
    if is_refused:
        with pytest.raises(CaptureRefused, match=f": it launches 2 operations, and a graph of it holds {count}$"):
            capture(lambda: see_operations(2))
        assert log == ["begin", "end", "synchronize"]
    else:
        assert callable(capture(lambda: see_operations(2)))


def test_a_call_that_raises_ends_its_capture_and_says_why_in_a_line(false_torch):
    log, _ = false_torch

    def call():
        raise ValueError("x" * 500 + "\nmore")

    with pytest.raises(CaptureRefused) as refused:
        capture(call)
    assert (log, str(refused.value)) == (["begin", "end", "synchronize"], "the call cannot be captured: " + "x" * 200)


@pytest.mark.parametrize("given", [None, "4"])
def test_the_driver_is_told_of_connections_and_other_processes_are_not_unless_the_user_says(monkeypatch, given):
    library = ctypes.CDLL(None)
    library.getenv.restype = ctypes.c_char_p
    monkeypatch.delenv(CONNECTIONS, raising=False)
    if given:
        monkeypatch.setenv(CONNECTIONS, given)
    for count in (1, None):
        set_connections(count)
        assert library.getenv(CONNECTIONS.encode()) == (b"4" if given else count and b"1")
        assert os.environ.get(CONNECTIONS) == given
