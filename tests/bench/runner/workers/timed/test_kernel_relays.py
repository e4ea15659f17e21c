"""When relays are run of a kernel's calls, and what follows them: bursts whose content no call had before."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from flashinfer_bench.bench.runner.readout import Readout
from flashinfer_bench.bench.runner.workers import kernel as kernel_module
from flashinfer_bench.bench.runner.workers.kernel import RemoteKernel
from flashinfer_bench.bench.runner.workers.kernel_task import MeasurePlan
from flashinfer_bench.bench.runner.workers.timed.call_places import FEWEST_CALLS, FEWEST_PLACES, GPU_BYTES
from flashinfer_bench.bench.runner.workers.timed.confirmation import Claimed, Confirmation
from flashinfer_bench.bench.runner.workers.timed.empty_bursts import BurstOverhead
from flashinfer_bench.bench.runner.workers.timed.gpu_relay import (
    CACHED_BYTES,
    GPU_RELAY_READS,
    LONGEST_NS,
    RELAY_BYTES,
    RELAY_CALLS,
    count_gpu_relay_calls,
    count_relay_reads,
)
from flashinfer_bench.bench.runner.workers.timed.readings import CREDITED_SHARE
from flashinfer_bench.bench.runner.workers.timed.relay import RelayTimer
from flashinfer_bench.bench.runner.workers.timed.trial import RemoteTrial
from flashinfer_bench.worker.gpu_relay.board import MOST_OUTPUTS
from tests.kit.trials import make_trial

pytestmark = pytest.mark.cpu
X = torch.arange(1.0, 5.0)
CLAIMED = Claimed(5_000.0)
GAP_NS = 1_100


def test_no_content_comes_twice_in_a_measurement_whose_relays_bursts_follow(open_kernel, monkeypatch):
    """A worker may keep what the calls of a relay gave: a burst of the same calls would cost it nothing."""
    write, given, numbers = RemoteTrial.write, [], []

    def noted(trial, indices, into=None):
        told = write(trial, indices, into)
        (written,) = into or trial.places.input_targets(indices)
        given.extend(one.numpy().tobytes() for one in written)
        numbers.extend((trial.contents, number) for number in told)
        return told

    monkeypatch.setattr(RemoteTrial, "write", noted)
    monkeypatch.setattr(RelayTimer, "leaves_open", lambda timer, told_ns: True)
    with open_kernel("def run(x):\n    return x * 2", plan=MeasurePlan(2, 20, 1.0, reads=12)) as kernel:
        record = kernel.measure([[X], [X + 1]]).record
        ways = {read.way for read in kernel.reads[-1]}
    assert record["relay_calls"] > 0 < record["burst_calls"]
    assert {"reading", "relay", "burst"} <= ways
    assert len(numbers) > record["relay_calls"] + record["burst_calls"]
    assert len({(id(contents), number) for contents, number in numbers}) == len(numbers)
    assert len({*given}) == len(given) == len(numbers)


def test_no_latency_is_told_as_less_than_the_least_call_that_can_be_right(open_kernel):
    with open_kernel("def run(x):\n    return x * 2", plan=MeasurePlan(2, 20, 1.0, reads=12)) as kernel:
        kernel._tools.readout.least_span_ns = 300_000_000
        measured = kernel.measure([[X], [X + 1]])
    assert measured.latency_ms == 300.0
    assert measured.record["claimed_ms"] < 100.0


@pytest.fixture
def open_idle(arena):
    """Return a kernel that nobody asks anything, and a trial of its calls."""

    def opened(kind):
        tools = SimpleNamespace(arena=SimpleNamespace(device=torch.device(kind), size=7), readout=Readout(None))
        task = SimpleNamespace(timeout_seconds=1.0, is_ours=False)
        worker = SimpleNamespace(overhead=BurstOverhead(relay=2_000.0))
        kernel = RemoteKernel(worker, tools, task, SimpleNamespace(destination_passing_style=True))
        kernel.reads = [[]]
        return kernel, replace(make_trial(arena, device_type=kind), number=23)

    return opened


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
@pytest.mark.parametrize("claimed_ns", [5_000.0, 500.0])
@pytest.mark.parametrize("leaves_open", [True, False])
def test_bursts_follow_relays_that_leave_something_open_with_the_numbers_of_later_calls(
    open_idle, monkeypatch, kind, claimed_ns, leaves_open
):
    kernel, remote = open_idle(kind)
    asked, relayed = [], remote.moved_to(remote.places, 0)
    by_relays = Confirmation(None, None, relay_ns=2_000.0, relay_calls=10, relay_share=0.5)

    class Timer:
        most_ns = 7_000.0

        def confirm(self, claimed_ns, *, is_believed):
            asked.append(claimed_ns)
            relayed.write([0, 1, 2])
            return by_relays

        def leaves_open(self, told_ns):
            asked.append(told_ns)
            return leaves_open

    def burst(trial, claimed, most_ns, *, by_relays):
        asked.append((trial.number, most_ns, by_relays))
        return Confirmation(1_500.0, 20.0, "too good", calls=6)

    monkeypatch.setattr(kernel, "_open_relays", lambda trial, claimed: (Timer(), relayed))
    monkeypatch.setattr(kernel, "_confirm_by_bursts", burst)
    found = kernel._confirm(remote, Claimed(claimed_ns), [])
    assert asked[:2] == [claimed_ns, max(claimed_ns, 1_000.0)]
    assert asked[2:] == [(23 + 3, 7_000.0, by_relays)] * leaves_open
    by_both = replace(by_relays, burst_ns=1_500.0, resolution_ns=20.0, why_not="too good", calls=6)
    assert found == (by_both if leaves_open else by_relays)


@pytest.mark.parametrize("doubt", [None, "a call in a burst takes 1 ms"])
def test_what_relays_doubt_stays_doubted_whatever_bursts_say(open_idle, monkeypatch, doubt):
    kernel, remote = open_idle("cuda")
    by_relays = Confirmation(None, None, "a call in a relay takes 2 ms", relay_ns=2e6)
    timer = SimpleNamespace(
        most_ns=1.0, confirm=lambda claimed_ns, *, is_believed: by_relays, leaves_open=lambda told_ns: True
    )
    monkeypatch.setattr(kernel, "_open_relays", lambda trial, claimed: (timer, remote.moved_to(remote.places, 0)))
    monkeypatch.setattr(kernel, "_confirm_by_bursts", lambda *given, by_relays: Confirmation(1.0, 1.0, doubt))
    assert kernel._confirm(remote, CLAIMED, []).why_not == (doubt or by_relays.why_not)


def test_bursts_follow_a_relay_on_a_cpu_where_they_could_raise_the_latency(open_idle):
    _, remote = open_idle("cpu")
    timer = RelayTimer(lambda *given: None, remote, 2_000.0)
    assert timer.leaves_open(1e12)  # no relay was run
    timer.most_ns = 1_000.0
    assert timer.leaves_open(CREDITED_SHARE["cpu"] * 1_000.0 - 1)
    assert not timer.leaves_open(CREDITED_SHARE["cpu"] * 1_000.0)


@pytest.mark.parametrize(
    ("claimed", "desk", "places", "calls"),
    [
        (CLAIMED, "a desk", RELAY_CALLS, RELAY_CALLS),
        (CLAIMED, "a desk", FEWEST_PLACES, FEWEST_PLACES),
        (CLAIMED, "a desk", FEWEST_CALLS, FEWEST_CALLS),
        (CLAIMED, "a desk", FEWEST_CALLS - 1, 0),
        (CLAIMED, None, RELAY_CALLS, 0),
        (Claimed(LONGEST_NS), "a desk", FEWEST_PLACES, FEWEST_PLACES),
        (Claimed(LONGEST_NS + 1), "a desk", FEWEST_PLACES, 0),
    ],
)
def test_relays_on_a_gpu_need_a_desk_and_room_for_some_calls(
    arena, open_idle, monkeypatch, claimed, desk, places, calls
):
    kernel, remote = open_idle("cuda")
    monkeypatch.setattr(kernel_module, "open_desk", lambda device: desk)
    monkeypatch.setattr(kernel_module, "GpuRelayTimer", lambda ask, trial, desk, claimed, **how: (trial, desk))
    monkeypatch.setattr(kernel, "_lay_out", lambda inputs, most: make_trial(arena, most=min(most, places)).places)
    monkeypatch.setattr(kernel_module, "check_room", lambda *given: None)
    found = kernel._open_relays(remote, claimed)
    assert (found is not None) is (calls > 0)
    if found is not None:
        (trial, given), relayed = found
        assert (trial, given) == (relayed, desk)
        assert (len(relayed.places), relayed.number, relayed.reader.wanted) == (calls, remote.number, GPU_RELAY_READS)


def test_what_relays_on_a_gpu_are_told_of_a_call(arena, open_idle, monkeypatch):
    kernel, remote = open_idle("cuda")
    kernel._tools.readout.add_launch_gap(GAP_NS)
    monkeypatch.setattr(kernel_module, "open_desk", lambda device: "a desk")
    monkeypatch.setattr(kernel_module, "GpuRelayTimer", lambda ask, trial, desk, claimed, **how: (claimed, how))
    monkeypatch.setattr(kernel, "_lay_out", lambda inputs, most: make_trial(arena, most=most).places)
    told, _ = kernel._open_relays(remote, CLAIMED)
    assert told == (CLAIMED, {"gap_ns": GAP_NS})


@pytest.mark.parametrize(
    ("claimed_ns", "size", "outputs", "calls"),
    [
        (5_000, 1_000, 1, RELAY_CALLS),
        (0.0, 0, 1, RELAY_CALLS),
        (2_000_000, 1_000, 1, 10),
        (20_000_000, 1_000, 1, FEWEST_PLACES),
        (LONGEST_NS, 1_000, 1, FEWEST_PLACES),
        (LONGEST_NS + 1, 1_000, 1, 0),
        (5_000, 1_000, 0, 0),
        (5_000, 1_000, MOST_OUTPUTS, RELAY_CALLS),
        (5_000, 1_000, MOST_OUTPUTS + 1, 0),
        (1, CACHED_BYTES + 16, 1, RELAY_CALLS),
        (1_000_000, RELAY_BYTES // 7, 1, 7),
        (10_000_000, RELAY_BYTES // 7, 1, FEWEST_PLACES),
        (3_000_000, RELAY_BYTES // FEWEST_PLACES, 1, FEWEST_PLACES),
        (3_000_000, RELAY_BYTES // FEWEST_PLACES + 1, 1, FEWEST_PLACES),
        (3_000_000, GPU_BYTES // FEWEST_PLACES, 1, FEWEST_PLACES),
        (3_000_000, GPU_BYTES // FEWEST_PLACES + 1, 1, FEWEST_PLACES - 1),
        (3_000_000, GPU_BYTES // 2, 1, 2),
        (3_000_000, GPU_BYTES // 2 + 1, 1, 0),
    ],
)
def test_a_relay_has_as_many_calls_as_time_and_memory_allow(claimed_ns, size, outputs, calls):
    assert count_gpu_relay_calls(claimed_ns, size, outputs) == calls


def test_of_large_calls_more_than_half_are_compared():
    large = RELAY_BYTES // FEWEST_PLACES + 1
    assert [count_relay_reads(17, size) for size in (1_000, large - 1)] == [GPU_RELAY_READS] * 2
    assert [count_relay_reads(calls, large) for calls in (5, 4, 3, 2)] == [3, 3, 2, 2]


@pytest.mark.parametrize(("is_ours", "has_relay"), [(False, False), (True, False), (False, True)])
def test_only_a_solution_is_refused_where_there_is_no_room_for_a_relay(
    arena, open_idle, monkeypatch, is_ours, has_relay
):
    kernel, remote = open_idle("cuda")
    kernel.task.is_ours = is_ours
    places, checks = 1 + has_relay, []
    monkeypatch.setattr(kernel_module, "count_gpu_relay_calls", lambda *given: FEWEST_PLACES)
    monkeypatch.setattr(kernel_module, "open_desk", lambda device: "a desk")
    monkeypatch.setattr(kernel_module, "GpuRelayTimer", lambda ask, trial, desk, claimed, **how: trial)
    monkeypatch.setattr(kernel_module, "check_room", lambda *given: checks.append(given))
    monkeypatch.setattr(kernel, "_lay_out", lambda inputs, most: make_trial(arena, most=places).places)
    assert (kernel._open_relays(remote, CLAIMED) is not None) is has_relay
    refused = [] if is_ours or has_relay else [(remote.places.stride, kernel._arena.device, 7)]
    assert checks == refused
