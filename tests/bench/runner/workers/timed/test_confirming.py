"""When a kernel's calls are made in a chain, and what follows: batches whose content no call had before."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from flashinfer_bench.bench.runner.readout import Readout
from flashinfer_bench.bench.runner.workers import kernel as kernel_module
from flashinfer_bench.bench.runner.workers.kernel import RemoteKernel
from flashinfer_bench.bench.runner.workers.timed.batches import BatchOverhead
from flashinfer_bench.bench.runner.workers.timed.confirmation import Claimed, Confirmation
from flashinfer_bench.timing.settings import TimingSettings
from tests.kit.trials import make_trial

pytestmark = pytest.mark.cpu
CLAIMED = Claimed(5_000.0)
BY_CHAIN = Confirmation(None, None, chain_ns=2_000.0, chain_calls=10, chain_share=0.5)


@pytest.fixture
def open_idle(arena):
    """Return a kernel that nobody asks anything, and a trial of its calls."""

    def opened(assurance="full", most=1):
        tools = SimpleNamespace(arena=SimpleNamespace(device=torch.device("cuda"), size=7), readout=Readout(None))
        plan = SimpleNamespace(timing=TimingSettings(assurance=assurance))
        task = SimpleNamespace(timeout_seconds=1.0, is_ours=False, plan=plan)
        worker = SimpleNamespace(overhead=BatchOverhead())
        kernel = RemoteKernel(worker, tools, task, SimpleNamespace(destination_passing_style=True))
        kernel.reads = [[]]
        return kernel, make_trial(arena, device_type="cuda", most=most)

    return opened


@pytest.mark.parametrize("claimed_ns", [5_000.0, 500.0])
@pytest.mark.parametrize("leaves_open", [True, False])
@pytest.mark.parametrize("assurance", ["standard", "full"])
def test_at_full_assurance_batches_follow_a_chain_that_leaves_something_open(
    open_idle, monkeypatch, claimed_ns, leaves_open, assurance
):
    kernel, remote = open_idle(assurance)
    follows = leaves_open and assurance == "full"
    asked, chained = [], remote.moved_to(remote.places, 0)

    def confirm(claimed_ns):
        asked.append(claimed_ns)
        chained.write([0, 1, 2])
        return BY_CHAIN

    def batch(trial, claimed, most_ns, *, by_relays):
        asked.append((trial.write([0]), most_ns, by_relays))
        return Confirmation(1_500.0, 20.0, "too good", calls=6)

    timer = SimpleNamespace(most_ns=7_000.0, confirm=confirm)
    timer.leaves_open = lambda told_ns: asked.append(told_ns) or leaves_open
    monkeypatch.setattr(kernel, "_open_relays", lambda trial, claimed: (timer, chained))
    monkeypatch.setattr(kernel, "_confirm_by_bursts", batch)
    found = kernel._confirm(remote, Claimed(claimed_ns), [])
    assert asked[:2] == [claimed_ns, *([max(claimed_ns, 1_000.0)] if assurance == "full" else [])]
    assert asked[2:] == [([3], 7_000.0, BY_CHAIN)] * follows  # no content comes again
    by_both = replace(BY_CHAIN, batch_ns=1_500.0, resolution_ns=20.0, why_not="too good", calls=6)
    assert found == (by_both if follows else BY_CHAIN)


@pytest.mark.parametrize("doubt", [None, "a call in a batch takes 1 ms"])
def test_what_a_chain_doubts_stays_doubted_whatever_batches_say(open_idle, monkeypatch, doubt):
    kernel, remote = open_idle()
    by_chain = replace(BY_CHAIN, why_not="a call in a chain takes 2 ms")
    timer = SimpleNamespace(most_ns=1.0, confirm=lambda claimed_ns: by_chain, leaves_open=lambda told_ns: True)
    monkeypatch.setattr(kernel, "_open_relays", lambda trial, claimed: (timer, remote.moved_to(remote.places, 0)))
    monkeypatch.setattr(kernel, "_confirm_by_bursts", lambda *given, by_relays: Confirmation(1.0, 1.0, doubt))
    assert kernel._confirm(remote, CLAIMED, []).why_not == (doubt or by_chain.why_not)


@pytest.mark.parametrize(
    ("claimed_ns", "desk", "places", "calls"),
    [
        (5_000.0, "a desk", 99, 17),
        (5_000.0, "a desk", 2, 2),
        (5_000.0, "a desk", 1, 0),
        (5_000.0, None, 17, 0),
        (1e9, "a desk", 99, 5),
        (1e9 + 1, "a desk", 5, 0),
    ],
)
def test_a_chain_needs_a_desk_and_room_for_two_calls(arena, open_idle, monkeypatch, claimed_ns, desk, places, calls):
    """Where there is no room, it is found out who holds it."""
    kernel, remote = open_idle()
    kernel._tools.readout.add_launch_gap(1_100)
    checks = []
    monkeypatch.setattr(kernel_module, "open_chain_tools", lambda device: desk)
    monkeypatch.setattr(kernel_module, "ChainTimer", lambda ask, *given, **how: (*given, how))
    monkeypatch.setattr(kernel_module, "check_room", lambda *given: checks.append(given))
    monkeypatch.setattr(kernel, "_lay_out", lambda inputs, most: make_trial(arena, most=min(most, places)).places)
    claimed = Claimed(claimed_ns)
    found = kernel._open_relays(remote, claimed)
    assert (found is not None) is (calls > 0)
    assert checks == ([(remote.places.stride, kernel._arena.device, 7)] if places == 1 else [])
    if found is not None:
        given, chained = found
        assert given == (chained, desk, claimed, {"calls": calls, "gap_ns": 1_100})
        assert (len(chained.places), chained.reader.wanted) == (calls, 6)


@pytest.mark.parametrize(("most", "replayed", "is_anew"), [(16, set(), True), (64, set(), False), (64, {0}, True)])
def test_a_chain_lies_in_places_of_the_readings_where_there_are_enough_without_graphs(
    arena, open_idle, monkeypatch, most, replayed, is_anew
):
    kernel, remote = open_idle(most=most)
    remote.places.replayed |= replayed
    monkeypatch.setattr(kernel_module, "open_chain_tools", lambda device: "a desk")
    monkeypatch.setattr(kernel_module, "ChainTimer", lambda *given, calls, gap_ns: calls)
    monkeypatch.setattr(kernel, "_lay_out", lambda inputs, most: make_trial(arena, most=most).places)
    calls, chained = kernel._open_relays(remote, CLAIMED)
    assert calls == 17
    assert (chained.places is not remote.places) is is_anew


@pytest.mark.parametrize(
    ("floor_ms", "has_setup", "told_ms", "bound"),
    [(0.0, False, 0.004, "chain"), (0.009, False, 0.009, "floor"), (0.009, True, 0.004, "chain")],
    ids=["no floor", "a floor", "with a setup"],
)
def test_a_claim_is_told_as_no_less_than_its_inputs_take_to_be_read(
    open_idle, monkeypatch, floor_ms, has_setup, told_ms, bound
):
    kernel, remote = open_idle()
    kernel.task.floor_ms = lambda claimed_ms: floor_ms if claimed_ms == 0.002 else 0.0
    monkeypatch.setattr(kernel, "_confirm", lambda *given: Confirmation(None, None, chain_ns=4_000.0, chain_calls=9))
    record = {}
    assert kernel._bound(replace(remote, has_setup=has_setup), 0.002, record, []) == told_ms
    assert (record["bound"], record["claimed_ms"], record["assurance"]) == (bound, 0.002, "full")
