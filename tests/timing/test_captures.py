"""What making a graph does where there is no GPU: with torch's own captures replaced by false ones."""

from contextlib import contextmanager
from typing import ClassVar

import pytest
import torch

from flashinfer_bench.timing import driver, graphs
from flashinfer_bench.timing.graphs import (
    CAPTURES_FIRST,
    CaptureRefused,
    capture,
    capture_first,
    see_operations,
)

pytestmark = pytest.mark.cpu
CUDA = torch.device("cuda", 0)


class FalseStream:
    """A stream that notes how many there are."""

    made = 0
    active = "current"

    waits: ClassVar[list] = []

    def __init__(self, handle, _device=0):
        type(self).made += 1
        self.cuda_stream = handle
        self.name = "own" if handle else "current"

    def wait_stream(self, other):
        """Note who waits for whom."""
        self.waits.append((self.name, other.name))


@pytest.fixture
def false_torch(monkeypatch):
    """Return the log of captures, and a dict whose "fails" makes them fail; its "count" is what their graphs hold."""
    log, faults = [], {"fails": None, "count": 1}

    class FalseGraph:
        def capture_begin(self, pool=None):
            if faults["fails"]:
                raise RuntimeError(faults["fails"])
            log.append("begin" if pool is None else f"begin in {pool}")

        def capture_end(self):
            log.append("end")

        def replay(self):
            log.append("replay")

        def pool(self):
            return "its memory"

    @contextmanager
    def nothing(_thing):
        yield

    @contextmanager
    def on_stream(chosen):
        FalseStream.active = chosen.name
        yield
        FalseStream.active = "current"

    stream = FalseStream(0)
    FalseStream.made, FalseStream.active = 0, "current"
    FalseStream.waits.clear()
    for name, stand_in in {
        "CUDAGraph": FalseGraph,
        "ExternalStream": FalseStream,
        "stream": on_stream,
        "device": nothing,
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


def test_a_capture_gives_its_replay(false_torch):
    log, _ = false_torch
    replay = capture(lambda: log.append("call"))
    replay()
    assert log == ["begin", "call", "end", "replay"]


def test_the_captures_that_change_later_ones_are_made_once_and_no_capture_makes_them(false_torch):
    log, _ = false_torch
    capture(lambda: None)
    assert log.count("begin") == 1
    for _ in range(2):
        capture_first(CUDA)
    assert log.count("begin") == 1 + CAPTURES_FIRST


def test_all_captures_use_one_stream(false_torch):
    capture_first(CUDA)
    capture(lambda: None)
    assert FalseStream.made == 1


def test_first_captures_that_fail_are_no_fault_of_a_call(false_torch):
    log, faults = false_torch
    faults["fails"] = "out of memory\nat some place"
    capture_first(CUDA)
    assert "synchronize" in log
    with pytest.raises(CaptureRefused, match=r"cannot be captured: out of memory$"):
        capture(lambda: None)
    faults["fails"] = None
    assert callable(capture(lambda: None))


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


def test_a_cpu_has_none_to_make(false_torch):
    capture_first(torch.device("cpu"))
    assert false_torch[0] == []


def test_a_call_is_captured_on_a_stream_that_waits_and_is_waited_for(false_torch):
    capture(lambda: FalseStream.waits.append(FalseStream.active))
    assert FalseStream.waits == [("own", "current"), "own", ("current", "own")]


def test_a_call_that_raises_ends_its_capture_and_says_why_in_a_line(false_torch):
    log, _ = false_torch

    def call():
        raise ValueError("x" * 500 + "\nmore")

    with pytest.raises(CaptureRefused) as refused:
        capture(call)
    assert log == ["begin", "end", "synchronize"]
    assert str(refused.value) == "the call cannot be captured: " + "x" * 200
