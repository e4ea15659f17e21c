"""What making a graph does without a GPU, with torch's own captures replaced; and what the driver is told ahead."""

from contextlib import nullcontext
from unittest.mock import Mock

import pytest
import torch

from flashinfer_bench.timing import driver, graphs
from flashinfer_bench.timing.graphs import CaptureRefused, capture, see_operations

pytestmark = pytest.mark.cpu


@pytest.fixture
def log(monkeypatch):
    """The log of captures on a stream that is not there."""
    log, current = [], Mock()
    own = Mock(wait_stream=lambda other: log.append("waits"))
    current.wait_stream = lambda other: log.append("is waited for")
    graph = Mock(
        capture_begin=lambda: log.append("begin"),
        capture_end=lambda: log.append("end"),
        replay=lambda: log.append("replay"),
    )
    for name, stand_in in {
        "CUDAGraph": lambda: graph,
        "stream": nullcontext,
        "current_stream": lambda: current,
        "current_device": lambda: 0,
        "synchronize": lambda: log.append("synchronize"),
    }.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    monkeypatch.setattr(graphs, "_capture_stream", lambda _device: own)
    monkeypatch.setattr(graphs, "_free_generator", lambda: None)
    return log


@pytest.mark.parametrize("count", [1, 2, 3, None])
def test_a_graph_with_fewer_operations_than_the_call_stands_for_no_call(monkeypatch, log, count):
    """`None`: the driver does not say."""
    monkeypatch.setattr(driver, "count_captured", lambda _handle: count)
    if count == 1:
        with pytest.raises(CaptureRefused, match=r": it launches 2 operations, and a graph of it holds 1$"):
            capture(lambda: see_operations(2))
        assert log == ["waits", "begin", "end", "synchronize"]
    else:
        capture(lambda: see_operations(2))()
        assert log == ["waits", "begin", "end", "is waited for", "replay"]


def test_a_call_that_raises_ends_its_capture_and_says_why_in_a_line(log):
    with pytest.raises(CaptureRefused, match=r"^the call cannot be captured: a line$"):
        capture(Mock(side_effect=ValueError("a line\nmore")))
    assert log == ["waits", "begin", "end", "synchronize"]
