from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from flashinfer_bench.bench.runner.readout import Readout
from flashinfer_bench.bench.runner.workers.arena import SharedArena
from flashinfer_bench.bench.runner.workers.claims import OutputSpec, choose_style
from flashinfer_bench.bench.runner.workers.kernel import (
    KernelMetadata,
    KernelTask,
    MeasurePlan,
    RemoteKernel,
    SessionTools,
)
from flashinfer_bench.bench.runner.workers.process import WorkerProcess
from flashinfer_bench.compile import Artifact
from flashinfer_bench.errors import SolutionFailure
from flashinfer_bench.timing.recipe import most_readings
from flashinfer_bench.worker.protocol import Signature
from tests.kit.workers import running_template, worker_order

pytestmark = pytest.mark.cpu
OUTPUTS = [OutputSpec("y", (4,), torch.float32)]
PLAN = MeasurePlan(2, 5, 1.0)


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    with running_template(tmp_path_factory.mktemp("session") / "run") as socket:
        yield socket


@pytest.fixture
def open_kernel(template, tmp_path):
    """Return a context manager that gives a loaded kernel of some source, y = f(x) with four float32 elements."""

    @contextmanager
    def opened(source, *, outputs=OUTPUTS, declared=None, timeout_seconds=10.0, plan=PLAN):
        folder = tmp_path / "artifact"
        folder.mkdir()
        (folder / "main.py").write_text(source)
        with (
            WorkerProcess(template, worker_order(), tmp_path / "home") as worker,
            SharedArena(torch.device("cpu")) as arena,
        ):
            worker.wait_ready()
            tools = SessionTools(arena, Readout(None), lambda: None)
            task = KernelTask(["x"], outputs, timeout_seconds, plan)
            kernel = RemoteKernel(worker, tools, task, KernelMetadata("s", "d", True))
            signature = kernel.load(Artifact(folder, "main.py", "run"), {"OWN_FOLDER": str(tmp_path)})
            style = choose_style(signature, inputs=1, outputs=len(outputs), declared=declared)
            kernel.metadata = replace(kernel.metadata, destination_passing_style=style == "dps")
            yield kernel

    return opened


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


def test_results_of_an_earlier_call_are_not_overwritten_by_a_later_one(open_kernel):
    with open_kernel("def run(x, y):\n    y.copy_(x)") as kernel:
        (first,) = kernel(X)
        kernel(X + 1)
    assert torch.equal(first, X)


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


def test_a_measurement_has_a_reading_per_iteration(open_kernel):
    with open_kernel("def run(x, y):\n    y.copy_(x)") as kernel:
        measured = kernel.measure([[X], [X]])
    assert measured.record["method"] == "wall"
    assert (measured.record["samples"], len(measured.trials)) == (10, 2)
    assert measured.latency_ms > 0


@pytest.mark.parametrize(
    ("source", "status", "message"),
    [
        ("def run(x):\n    raise ValueError('boom')", "RUNTIME_ERROR", "ValueError in the call: boom"),
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
    with open_kernel(source, timeout_seconds=0.5 if status == "TIMEOUT" else 10.0) as kernel:
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
        with open_kernel(source, timeout_seconds=0.5 if status == "TIMEOUT" else 10.0):
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


FACTS = {"method": "wall", "cache_state": "warm", "calls": 1}
SAMPLED = {"span_ns": [1], "enqueue_ns": [1], "busy_ns": None, "operations": None, "late": [False], "facts": FACTS}
FORGER_OF_READINGS = """
calls = 0
def run(x):
    global calls
    calls += 1
    return forge(x) if calls == 2 else x * 2  # the first call is the checked one
"""


def forge_readings(**changes):
    """Return a solution whose second call answers its measurement itself: load, bind and call were requests 1 to 3."""
    answer = repr({"id": 4, "stop": "count", **SAMPLED, **changes})
    return FORGER.replace("{answer}", answer).replace("def run", "def forge") + FORGER_OF_READINGS


def test_a_forged_answer_reaches_the_measurement_that_it_is_made_for(open_kernel):
    with open_kernel(forge_readings(span_ns=[1_234])) as kernel:
        kernel(X)
        assert kernel.measure([[X]]).latency_ms == 1_234 / 1e6


@pytest.mark.parametrize(
    "changes",
    [
        {"span_ns": [10**12]},
        {"span_ns": [10**12], "enqueue_ns": [0], "busy_ns": [0], "operations": [0]},
    ],
    ids=["too long", "too long without operations"],
)
def test_readings_that_add_up_to_more_than_the_time_outside_are_refused(open_kernel, changes):
    with open_kernel(forge_readings(**changes)) as kernel:
        kernel(X)
        with pytest.raises(SolutionFailure, match="readings add up to more than the time that passed") as failure:
            kernel.measure([[X]])
    assert failure.value.status == "RUNTIME_ERROR"


def test_a_trial_may_take_all_its_extra_readings():
    assert most_readings(50) == 50 + 10 * 50


def test_a_measurement_plans_with_what_is_left_of_the_solutions_time(open_kernel):
    """0.1 s a call: a hundred calls would take longer than the four seconds that it may take."""
    source = "import time\ndef run(x):\n    time.sleep(0.1)\n    return x * 2"
    with open_kernel(source, timeout_seconds=4.0, plan=MeasurePlan(10, 90, 10.0)) as kernel:
        kernel(X)
        measured = kernel.measure([[X], [X]])
    assert measured.record["stop"] in ("budget", "precision")
    assert measured.latency_ms == pytest.approx(100, rel=0.1)


def test_a_solution_that_was_checked_and_takes_longer_than_the_budget_is_made_once_a_trial(open_kernel):
    source = "import time\ndef run(x):\n    time.sleep(0.3)\n    return x * 2"
    with open_kernel(source, plan=MeasurePlan(10, 90, 0.1)) as kernel:
        kernel(X)
        measured = kernel.measure([[X]])
    assert (measured.record["calls"], measured.record["samples"]) == (1, 1)


def test_more_readings_than_a_trial_takes_are_refused(open_kernel):
    count = 6
    with open_kernel(forge_readings(span_ns=[1] * count, enqueue_ns=[1] * count, late=[False] * count)) as kernel:
        kernel(X)
        too_many = f"{count} readings, and {count - 1} are the most that a trial takes"
        with pytest.raises(SolutionFailure, match=too_many) as failure:
            kernel.measure([[X]])
    assert failure.value.status == "RUNTIME_ERROR"


@pytest.mark.parametrize(
    "changes",
    [
        {"facts": {**FACTS, "lead_ns": float("nan")}},
        {"facts": {**FACTS, "lead_ns": float("inf")}},
        {"facts": {**FACTS, "lead_ns": 10**400}},
        {"facts": {**FACTS, "lead_ns": 1e300}},
        {"span_ns": [-1]},
        {"late": []},
        {"stop": "because"},
    ],
    ids=["nan", "inf", "huge int", "huge float", "negative", "lengths", "stop"],
)
def test_readings_that_are_out_of_bounds_are_refused(open_kernel, changes):
    with open_kernel(forge_readings(**changes)) as kernel:
        kernel(X)
        with pytest.raises(SolutionFailure, match="out of protocol during the measurement") as failure:
            kernel.measure([[X]])
    assert failure.value.status == "RUNTIME_ERROR"


def test_a_frame_out_of_protocol_is_the_solutions_doing(open_kernel):
    with open_kernel(FORGER.replace("{answer}", '{"verdict": "PASSED"}')) as kernel:
        with pytest.raises(SolutionFailure, match="out of protocol") as failure:
            kernel(X)
    assert failure.value.status == "RUNTIME_ERROR"


def sign(minimum, maximum):
    return Signature(text="(...)", minimum=minimum, maximum=maximum)


@pytest.mark.parametrize(
    ("signature", "declared", "style"),
    [
        (sign(3, 3), None, "dps"),
        (sign(2, 2), None, "value"),
        (sign(2, 3), None, "value"),
        (sign(0, 9), None, "value"),
        (sign(0, None), False, "value"),
        (sign(0, None), True, "dps"),
        (sign(2, 3), False, "value"),
        (sign(3, 3), True, "dps"),
        (None, None, "dps"),
        (None, False, "value"),
    ],
)
def test_the_declared_style_decides_and_else_the_arity(signature, declared, style):
    assert choose_style(signature, inputs=2, outputs=1, declared=declared) == style


@pytest.mark.parametrize("minimum", [0, 2])
def test_any_number_of_arguments_tells_no_style(minimum):
    told = r"run\(\.\.\.\) takes any number .* set destination_passing_style"
    with pytest.raises(SolutionFailure, match=told) as failure:
        choose_style(sign(minimum, None), inputs=2, outputs=1, declared=None)
    assert failure.value.status == "COMPILE_ERROR"


@pytest.mark.parametrize(("signature", "declared"), [(sign(2, 2), True), (sign(3, 3), False), (sign(4, 5), None)])
def test_a_signature_that_fits_no_style_shows_both(signature, declared):
    with pytest.raises(SolutionFailure, match=r"(?s)expected .* arguments.*found run\(\.\.\.\)"):
        choose_style(signature, inputs=2, outputs=1, declared=declared)


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
