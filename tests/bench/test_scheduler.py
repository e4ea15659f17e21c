"""The loop over the devices with pretended sessions: which session gets which jobs, and when."""

import random
import threading

import pytest

from flashinfer_bench.bench import context
from flashinfer_bench.bench.machine import Device
from flashinfer_bench.bench.runner import client
from flashinfer_bench.compile import find_toolchain
from flashinfer_bench.data import TraceSet
from tests.bench.played import PlayedSession, play
from tests.bench.small_runs import HONEST, judge
from tests.kit.make import make_definition, make_solution, make_trace, make_workload, write_trace_set
from tests.kit.native import make_native, pretend_compiler

pytestmark = pytest.mark.cpu
TOOLCHAIN = find_toolchain()
needs_compiler = pytest.mark.skipif(TOOLCHAIN.cxx is None or TOOLCHAIN.tvm_ffi is None, reason="needs g++ and tvm-ffi")


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Run solutions on pretended devices; return the events, and all sessions.

    `jobs` counts the workloads; `action` is a pretended compiler's action; `note` is called with each event.
    """

    def go(solutions, jobs, *, devices=1, kind="cuda", ask=lambda *_: iter(()), action=None, loss=0.0, **asked):
        opened = threading.Event()
        opened.set()
        play(monkeypatch, gate=opened, chance=random.Random(0), loss=loss)
        monkeypatch.setattr(client, "ask_for_device", ask)
        if action is not None:
            toolchain = pretend_compiler(tmp_path, action=action)
            monkeypatch.setattr(context, "find_toolchain", lambda: toolchain)
        lines = [make_trace(workload=make_workload(f"w{at}"), solution=None) for at in range(jobs)]
        parts = {"definitions": [make_definition()], "solutions": solutions, "workloads": lines}
        trace_set = TraceSet.from_path(write_trace_set(tmp_path / "set", **parts))
        machine = [Device(kind, at, "a device", f"GPU-{at}") for at in range(devices)]
        done = judge(trace_set, machine=machine, cache=tmp_path / "cache", build_jobs=1, **asked)
        done.order = [one.job.solution.name for one in done.finished]
        done.sessions = PlayedSession.all
        return done

    return go


def make_solutions(count):
    return [make_solution(f"s{at}", source=f"# {at}\n{HONEST}") for at in range(count)]


@pytest.mark.parametrize(("devices", "shape", "loss"), [(2, (5, 4), 0.05), (4, (3, 8), 0.1), (3, (1, 9), 0.1)])
def test_every_job_is_done_once_whatever_is_lost_and_taken_back(run, devices, shape, loss):
    done = run(make_solutions(shape[0]), shape[1], devices=devices, loss=loss)
    reported = [(one.job.solution.name, one.job.workload.uuid) for one in (*done.finished, *done.faults)]
    assert sorted(reported) == [(f"s{at}", f"w{work}") for at in range(shape[0]) for work in range(shape[1])]


def test_a_run_with_another_device_does_not_wait_for_a_locked_device(run):
    def ask(device, stack):
        while device.label == "cuda:0":
            yield None

    assert {one.device.label for one in run(make_solutions(1), 2, devices=2, ask=ask).finished} == {"cuda:1"}


@needs_compiler
def test_sources_that_do_not_compile_are_judged_and_builds_that_this_machine_cannot_make_are_a_fault(run):
    refused = make_native("refused", compile_options={"cflags": ["-o x"]})
    done = run([refused, make_native()], 2, action="kill -9 $$")
    assert done.order == ["refused"] * 2
    (solution,) = done.sessions[0].begun[0].solutions.values()
    assert solution.build_error.startswith("compile_options.cflags: '-o'")
    assert [fault.job.solution.name for fault in done.faults] == ["native"] * 2
    assert "a compiler was killed" in done.faults[0].message
    assert any("compiling 1 solution" in notice for notice in done.notices)
