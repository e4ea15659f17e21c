"""What comes of single calls of a solution in a worker, and of its import."""

import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from flashinfer_bench.bench.evaluators.compare.outputs import compare
from flashinfer_bench.bench.evaluators.compare.rule import Tolerance
from flashinfer_bench.bench.evaluators.verdict import Rejected, check_form
from flashinfer_bench.bench.runner.workers import kernel as kernel_module
from flashinfer_bench.bench.runner.workers.arena import SharedArena
from flashinfer_bench.bench.runner.workers.claims import OutputSpec
from flashinfer_bench.bench.runner.workers.kernel import HUGE_SHARE
from flashinfer_bench.bench.runner.workers.kernel_task import KernelTask, MeasurePlan
from flashinfer_bench.bench.runner.workers.timed.call_places import LARGE_SHARE
from flashinfer_bench.bench.runner.workers.timed.stress_calls import StressInputs
from flashinfer_bench.errors import SolutionFailure
from flashinfer_bench.sandbox.processes import descendants
from tests.kit.make import make_definition

pytestmark = pytest.mark.cpu
X = torch.arange(4.0)


@pytest.mark.parametrize(
    "source",
    [
        "def run(x):\n    return x * 2",
        "def run(x):\n    return (x * 2,)",
        "def run(x, y):\n    y.copy_(x * 2)",
        "def run(x, *, eps=1e-6):\n    return x * 2",
        "def run(x, eps=1e-6):\n    return x * 2",
        "import torch\nclass M(torch.nn.Module):\n    def forward(self, x):\n        return x * 2\nrun = M()",
    ],
    ids=["value", "tuple", "dps", "keyword", "default", "module"],
)
def test_both_calling_styles_give_the_same_outputs(open_kernel, source):
    with open_kernel(source) as kernel:
        (result,) = kernel(X)
        given = torch.empty(4)
        kernel(X, given)
    assert torch.equal(result, X * 2)
    assert torch.equal(given, X * 2)


def test_an_output_that_is_not_written_is_poison(open_kernel):
    with open_kernel("def run(x, y):\n    y[:2] = 1") as kernel:
        (result,) = kernel(X)
    assert result[:2].tolist() == [1, 1]
    assert result[2:].isnan().all()


@pytest.mark.parametrize("name", ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("line", ["y[:2] = (-(x[:2] * torch.nan)).to(y.dtype)", "y[:2] = torch.nan", "pass"])
def test_elements_that_are_nan_by_right_have_to_be_written(open_kernel, name, line):
    dtype, definition = getattr(torch, name), make_definition(outputs={"y": f"{name}[n]"})
    expected = torch.cat([torch.full((2,), torch.nan), X[2:]]).to(dtype)
    source = f"import torch\ndef run(x, y):\n    {line}\n    y[2:] = x[2:].to(y.dtype)\n"
    right = []
    with open_kernel(source, outputs=[OutputSpec("y", (4,), dtype)]) as kernel:
        for _ in range(20):  # of 8 bits, one call in four has an output that holds NaN
            got = check_form(definition, kernel(X), [expected])
            right.append(
                not isinstance(got, Rejected) and compare(expected, got[0], Tolerance(0.01, 0.01)).mismatched == 0
            )
    assert all(right) if line != "pass" else not all(right) and ("float8" in name or not any(right))


def test_results_of_an_earlier_call_are_not_overwritten_by_a_later_one(open_kernel):
    with open_kernel("def run(x, y):\n    y.copy_(x)") as kernel:
        (first,) = kernel(X)
        kernel(X + 1)
    assert torch.equal(first, X)


COUNTS = """
CALLS = []


def run(x):
    CALLS.append(1)
    if len(CALLS) == {last}:
        {then}
    return x + len(CALLS)
"""


def counting(then="pass", last=0):
    return "import torch\n" + COUNTS.format(then=then, last=last)


def test_repeated_calls_share_requests_once_the_first_one_is_seen(open_kernel, monkeypatch):
    with open_kernel(counting()) as kernel:
        asked, ask = [], kernel.worker.ask

        def noted(verb, expected, limit_s, **fields):
            asked.append(len(fields["indices"]) if verb == "calls" else verb)
            return ask(verb, expected, limit_s, **fields)

        monkeypatch.setattr(kernel.worker, "ask", noted)
        outputs = list(kernel.call_repeatedly([torch.zeros(4)], 20))
        assert [float(one[0][0]) for one in outputs] == list(range(1, 21))
        counts = [one for one in asked if isinstance(one, int)]
        assert counts[0] == 1
        assert sum(counts) == 20
        assert len(counts) <= 7
        asked.clear()
        assert [float(one[0][0]) for one in kernel.call_repeatedly([torch.ones(4)], 9)] == list(range(22, 31))
        assert [one for one in asked if isinstance(one, int)] == [1, 8]  # it is known to be quick


MILLISECONDS = """
import time, torch
def run(x):
    return torch.full((4,), float(int(time.time() * 1000) % 100_000))
"""


def test_calls_of_one_request_have_a_millisecond_each_since_samplers_seed_themselves_by_it(open_kernel):
    with open_kernel(MILLISECONDS) as kernel:
        seen = [float(one[0][0]) for one in kernel.call_repeatedly([torch.zeros(4)], 30)]
    assert len(set(seen)) == 30


def test_an_answer_that_came_while_something_else_was_done_is_in_time(open_kernel):
    with open_kernel("def run(x):\n    return x * 2") as kernel:
        kernel._left_s = 1.0
        kernel.meanwhile = lambda: time.sleep(1.2)
        assert torch.equal(kernel.call_once([X])[0], X * 2)


def test_what_is_wrong_with_one_of_several_calls_is_told(open_kernel):
    with open_kernel(counting("return x[:2]", 11)) as kernel, pytest.raises(SolutionFailure) as raised:
        list(kernel.call_repeatedly([torch.zeros(4)], 20))
    assert raised.value.status == "INCORRECT_SHAPE"


def test_an_input_that_one_of_several_calls_changes_is_told(open_kernel):
    with open_kernel(counting("x += 1", 11)) as kernel, pytest.raises(SolutionFailure, match="was changed"):
        list(kernel.call_repeatedly([torch.zeros(4)], 20))


def test_slow_calls_have_a_request_each(open_kernel, monkeypatch):
    monkeypatch.setattr("flashinfer_bench.bench.runner.workers.calling.QUICK_REQUEST_S", 0.0)
    with open_kernel(counting()) as kernel:
        asked, ask = [], kernel.worker.ask
        monkeypatch.setattr(kernel.worker, "ask", lambda *given, **more: asked.append(given[0]) or ask(*given, **more))
        assert len(list(kernel.call_repeatedly([torch.zeros(4)], 3))) == 3
        assert asked.count("calls") == 3


def test_a_call_may_grow_the_arena(open_kernel):
    big = [OutputSpec("y", (1 << 20,), torch.float32)]
    with open_kernel("def run(x, y):\n    y.fill_(0)\n    y[: len(x)] = x", outputs=big) as kernel:
        kernel(X)
        (result,) = kernel(torch.ones(1 << 20))
    assert result.sum() == 1 << 20


def test_a_worker_sees_its_own_environment_and_nothing_of_the_users(open_kernel):
    source = "from os import environ as e\ndef run(x):\n    return x * ('OWN_FOLDER' in e) * ('HOSTNAME' not in e)"
    with open_kernel(source) as kernel:
        (result,) = kernel(X)
    assert torch.equal(result, X)


@pytest.mark.parametrize(
    ("source", "status", "message"),
    [
        (
            "def run(x):\n    raise ValueError('boom')",
            "RUNTIME_ERROR",
            "ValueError in the call: boom, at main.py:2, in run",
        ),
        ("import sys\ndef run(x):\n    sys.exit(0)", "RUNTIME_ERROR", "SystemExit"),
        ("import os\ndef run(x):\n    os._exit(0)", "RUNTIME_ERROR", "exit code 0"),
        ("import ctypes\ndef run(x):\n    ctypes.string_at(0)", "RUNTIME_ERROR", "SIGSEGV"),
        ("class E(Exception):\n    __str__ = None\ndef run(x):\n    raise E", "RUNTIME_ERROR", "could not be read"),
        ("def run(x):\n    return x, x", "INCORRECT_SHAPE", "returned 2 values; the definition has 1 outputs: y"),
        ("def run(x):\n    return ()", "INCORRECT_SHAPE", "returned 0 values"),
        ("def run(x):\n    return x[:2]", "INCORRECT_SHAPE", r"shape \[2\], expected \[4\]"),
        ("def run(x):\n    return 1.0", "INCORRECT_SHAPE", "Python float"),
        ("def run(x):\n    return None", "INCORRECT_DTYPE", r"returned nothing \(None\) for output 'y'; return it"),
        ("def run(x):\n    return x.double()", "INCORRECT_DTYPE", "float64, expected float32"),
        (
            "import torch\nclass T(torch.Tensor): pass\ndef run(x):\n    return x.as_subclass(T)",
            "INCORRECT_DTYPE",
            "plain",
        ),
        ("def run(x):\n    x += 1\n    return x", "INCORRECT_NUMERICAL", "input 'x' was changed"),
        ("def run(x):\n    while True: pass", "TIMEOUT", "the call was still running after"),
    ],
)
def test_what_goes_wrong_in_a_call_has_its_status(open_kernel, source, status, message):
    with open_kernel(source, timeout_seconds=0.5 if status == "TIMEOUT" else 60.0) as kernel:
        with pytest.raises(SolutionFailure, match=message) as failure:
            kernel(X)
    assert failure.value.status == status


@pytest.mark.parametrize(
    ("source", "status", "message"),
    [
        ("import no_such_module\ndef run(x): pass", "COMPILE_ERROR", "No module named 'no_such_module'"),
        ("def other(x): pass", "COMPILE_ERROR", "no function 'run'; it has: other"),
        ("import os\nos._exit(1)", "COMPILE_ERROR", "during the import"),
        ("while True: pass", "TIMEOUT", "the import was still running"),
        ("def run(a, b, c): pass", "COMPILE_ERROR", r"found run\(a, b, c\)"),
    ],
)
def test_what_goes_wrong_at_import_has_its_status(open_kernel, source, status, message):
    with pytest.raises(SolutionFailure, match=message) as failure:
        with open_kernel(source, timeout_seconds=0.5 if status == "TIMEOUT" else 60.0):
            pass
    assert failure.value.status == status


FORGER = """
import json, os, stat, struct
nan, inf = float("nan"), float("inf")
def run(x):
    body = json.dumps({answer}).encode()
    for fd in range(3, 64):
        try:
            if stat.S_ISSOCK(os.fstat(fd).st_mode):
                os.write(fd, struct.pack(">I", len(body)) + body)
        except OSError:
            pass
    return x * 2
"""


def test_a_frame_out_of_protocol_is_the_solutions_doing(open_kernel):
    with open_kernel(FORGER.replace("{answer}", '{"verdict": "PASSED"}')) as kernel:
        with pytest.raises(SolutionFailure, match="out of protocol") as failure:
            kernel(X)
    assert failure.value.status == "RUNTIME_ERROR"


SENDS_DESCRIPTORS = """
import os, socket, stat
def run(x):
    for fd in range(3, 64):
        try:
            is_socket = stat.S_ISSOCK(os.fstat(fd).st_mode)
        except OSError:
            continue
        if is_socket:
            with socket.socket(fileno=os.dup(fd)) as channel:
                for byte in b"\\0\\0\\0\\x02{}":
                    socket.send_fds(channel, [bytes([byte])], [0] * 8)
    return x
"""


def count_descriptors():
    return len(list(Path("/dev/fd").iterdir()))


def test_descriptors_that_a_worker_sends_do_not_reach_the_session(open_kernel):
    with open_kernel(SENDS_DESCRIPTORS) as kernel:
        before = count_descriptors()
        with pytest.raises(SolutionFailure, match="out of protocol"):
            kernel(X)
        assert count_descriptors() <= before + 2  # the arena and its mapping


def test_after_an_exception_or_a_wrong_shape_the_worker_goes_on(open_kernel):
    source = """
seen = []
def run(x):
    seen.append(x)
    if len(seen) == 1:
        raise ValueError("not yet")
    return x.new_zeros(3) if len(seen) == 2 else x * len(seen)
"""
    with open_kernel(source) as kernel:
        for status in ("RUNTIME_ERROR", "INCORRECT_SHAPE"):
            with pytest.raises(SolutionFailure) as failure:
                kernel(torch.ones(4))
            assert (failure.value.status, failure.value.is_answer) == (status, True)
            assert kernel.worker.recover()
            kernel._laid_out = None  # as a new job's
        assert kernel(torch.ones(4))[0].tolist() == [3.0] * 4


def test_a_worker_that_has_given_the_memory_up_maps_it_again_for_its_next_calls(open_kernel):
    with open_kernel("def run(x):\n    return x * 2") as kernel:
        assert kernel(torch.ones(4))[0].tolist() == [2.0] * 4
        assert kernel.worker.unbind()
        assert kernel(torch.full((4,), 3.0))[0].tolist() == [6.0] * 4


def test_a_worker_maps_the_memory_once_for_all_its_jobs_until_that_is_other_memory(open_kernel, monkeypatch):
    with open_kernel("def run(x):\n    return x * 2") as kernel:
        asked, ask = [], kernel.worker.ask
        monkeypatch.setattr(
            kernel.worker, "ask", lambda verb, *given, **fields: asked.append(verb) or ask(verb, *given, **fields)
        )
        for at in range(3):  # jobs, each with a kernel of its own
            later = type(kernel)(kernel.worker, kernel._tools, kernel.task, kernel.metadata)
            later.calling_style = kernel.calling_style
            assert later(torch.full((4,), float(at)))[0].tolist() == [2.0 * at] * 4
        assert asked.count("bind") == 1
        with SharedArena(kernel._arena.device) as other:  # of the same generation
            later = type(kernel)(kernel.worker, replace(kernel._tools, arena=other), kernel.task, kernel.metadata)
            later.calling_style = kernel.calling_style
            assert later(torch.ones(4))[0].tolist() == [2.0] * 4
            assert (asked.count("bind"), other.generation) == (2, kernel._arena.generation)
        kernel._arena.renew()  # on a CPU that is other memory
        later = type(kernel)(kernel.worker, kernel._tools, kernel.task, kernel.metadata)
        later.calling_style = kernel.calling_style
        assert later(torch.ones(4))[0].tolist() == [2.0] * 4
        assert asked.count("bind") == 3


@pytest.mark.parametrize(("share", "wanted"), [(LARGE_SHARE, 6), (LARGE_SHARE - 1, 3), (HUGE_SHARE - 1, 1)])
def test_of_calls_that_take_much_memory_the_first_few_are_stress_calls(open_kernel, monkeypatch, share, wanted):
    stress = SimpleNamespace(free=[True], calls=list("abcdef"))
    with open_kernel("def run(x):\n    return x * 2") as kernel:
        places = kernel._lay_out([torch.ones(4)])
        monkeypatch.setattr(kernel_module, "total_bytes", lambda _device: share * places.stride)
        assert kernel._schedule_stress(places, 3, StressInputs(stress, None)).left == list("abcdef")[:wanted]


@pytest.mark.parametrize(
    ("is_ours", "device_type", "is_looked_at"),
    [(False, "cuda", True), (False, "cpu", True), (True, "cpu", True), (True, "cuda", False)],
)
def test_timed_calls_are_looked_at_but_for_those_of_a_reference_on_a_gpu(is_ours, device_type, is_looked_at):
    task = KernelTask([], [], 1.0, MeasurePlan(2, 5, 1.0), None, is_ours=is_ours)
    assert task.is_looked_at(device_type) is is_looked_at


@pytest.mark.parametrize("is_ours", [True, False])
def test_a_trial_has_an_idle_reader_where_nobody_looks(open_kernel, monkeypatch, is_ours):
    with open_kernel("def run(x):\n    return x * 2", is_ours=is_ours) as kernel:
        monkeypatch.setattr(KernelTask, "is_looked_at", lambda task, device_type: not task.is_ours)
        kernel.measure([[torch.ones(4)]])
        assert (kernel.reads == [[]]) is is_ours


def test_a_worker_that_hangs_or_is_gone_does_not_recover(open_kernel):
    source = "import os, signal\ndef run(x):\n    os.kill(os.getpid(), signal.SIGSTOP)"
    with open_kernel(source, timeout_seconds=0.3) as kernel:
        with pytest.raises(SolutionFailure, match="TIMEOUT") as failure:
            kernel(X)
        assert not failure.value.is_answer
        assert not kernel.worker.recover(0.1)
        os.kill(kernel.worker.pid, signal.SIGKILL)
        assert not kernel.worker.recover()


def test_a_worker_imports_nothing_before_its_solution_that_its_template_has_not(open_kernel):
    source = """
import sys
names = list(sys.modules)
print(*names[names.index("flashinfer_bench.worker.fork_server") + 1 :])
def run(x):
    return x
"""
    with open_kernel(source) as kernel:
        kernel.worker.drain()
        assert {name.partition(".")[0] for name in kernel.worker.log.take().split()} == {"flashinfer_bench_solution"}


def test_the_compilers_error_comes_first_where_an_import_builds_an_extension(open_kernel):
    said = "Error building extension 'mine'\nFAILED: main.o\nmain.cpp:7:1: error: no such type\nninja: build stopped"
    with pytest.raises(SolutionFailure) as failure, open_kernel(f"raise RuntimeError({said!r})"):
        pass
    assert failure.value.status == "COMPILE_ERROR"
    assert failure.value.message.startswith("main.cpp:7: error: no such type\nRuntimeError in the import: ")


def test_the_clock_is_on_from_the_first_trial_to_the_last(open_kernel, monkeypatch):
    with open_kernel("def run(x):\n    return x * 2") as kernel:
        asked, ask = [], kernel.worker.ask
        monkeypatch.setattr(
            kernel.worker, "ask", lambda verb, *given, **fields: asked.append(verb) or ask(verb, *given, **fields)
        )
        kernel.measure([[torch.ones(4)], [torch.zeros(4)]])
    assert [verb for verb in asked if verb not in ("calls", "bind", "lay_out")] == ["start", "stop"]


def test_a_worker_that_rests_is_stopped_with_what_it_has_started_until_it_is_asked(open_kernel):
    source = "import os, time\nif os.fork() == 0:\n    time.sleep(60)\n    os._exit(0)\ndef run(x):\n    return x * 2"
    with open_kernel(source) as kernel:
        pids = descendants(kernel.worker.supervisor_pid)
        assert len(pids) == 2

        def are_stopped(wanted):
            deadline = time.monotonic() + 10
            while time.monotonic() < deadline:
                states = {Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] for pid in pids}
                if (states == {"T"}) is wanted and ("T" in states) is wanted:
                    return True
            return False

        with kernel.worker.resting():
            kernel.worker.rest_all()
            assert are_stopped(True)
            assert torch.equal(kernel(torch.ones(4))[0], torch.full((4,), 2.0))
            assert are_stopped(False)
            kernel.worker.rest_all()
        assert are_stopped(False)
