"""What copies of outputs take: no more than they take where no worker has its hands in them."""

import pytest
import torch

from flashinfer_bench.bench.runner.workers.timed import copies
from flashinfer_bench.bench.runner.workers.timed.copies import OWN_CALLS, SLOWER_COPIES, OutputCopies, time_copies

pytestmark = pytest.mark.cpu


def test_copies_take_a_thread_the_longer_the_more_there_is_to_copy():
    tensors = torch.zeros(1 << 10), torch.zeros(1 << 20)
    small, large = (min(time_copies([one] * 4) for _ in range(5)) for one in tensors)
    assert 0 <= small < large / 10
    assert time_copies([]) >= 0


@pytest.mark.parametrize(("taken_ns", "told_ns"), [(90, 30.0), (180, 60.0), (900, SLOWER_COPIES * 50)])
def test_copies_that_a_worker_makes_slow_are_bounded_by_such_within_this_process(monkeypatch, taken_ns, told_ns):
    outputs = [torch.zeros(4), torch.zeros(8)]
    own = OutputCopies(outputs)
    monkeypatch.setattr(copies, "time_copies", lambda tensors: taken_ns if tensors is left else 50 * OWN_CALLS)
    left = outputs * 3
    assert own.time(left, 3) == told_ns


def test_the_copies_within_this_process_are_of_as_many_bytes(monkeypatch):
    seen = []
    monkeypatch.setattr(copies, "time_copies", lambda tensors: seen.append([one.nbytes for one in tensors]) or 1.0)
    OutputCopies([torch.zeros(4), torch.zeros(8)]).time([], 3)
    assert sorted(seen[1]) == [16] * OWN_CALLS + [32] * OWN_CALLS
