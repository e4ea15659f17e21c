"""Single calls of a solution in a worker: their outputs, and the failures of an import or a call."""

import os
import re
import signal
from pathlib import Path

import pytest
import torch

from flashinfer_bench.bench.runner.workers.claims import OutputSpec
from flashinfer_bench.errors import SolutionFailure
from tests.kit.operations import counting_operations

pytestmark = pytest.mark.cpu
X = torch.arange(4.0)
DOUBLE = "def run(x):\n    return x * 2"


@pytest.mark.parametrize(
    ("source", "factor"),
    [
        (DOUBLE, 2),
        ("def run(x, y):\n    y.copy_(x * 2)", 2),
        ("import torch\nclass M(torch.nn.Module):\n    def forward(self, x):\n        return x * 2\nrun = M()", 2),
        ("from os import environ as e\ndef run(x):\n    return x * ('OWN_FOLDER' in e) * ('HOSTNAME' not in e)", 1),
    ],
    ids=["value", "dps", "module", "its environment and nothing of the user's"],
)
def test_outputs_are_returned_and_fill_the_tensors_that_were_given(open_kernel, source, factor):
    with open_kernel(source) as kernel:
        (first,) = kernel(X)
        given = torch.empty(4)
        kernel(X + 1, given)
        assert torch.equal(first, X * factor)
        assert torch.equal(given, (X + 1) * factor)
        with pytest.raises(TypeError, match="takes 1 inputs, or those and 1 outputs; got 3"):
            kernel(X, given, given)


def test_an_output_that_is_not_written_is_poison_and_a_call_may_grow_the_arena(open_kernel):
    big = [OutputSpec("y", (1 << 20,), torch.float32)]
    with open_kernel("def run(x, y):\n    y[: len(x)] = x", outputs=big) as kernel:
        (small,) = kernel(X)
        assert torch.equal(small[:4], X)
        assert small[4:].isnan().all()
        assert kernel(torch.ones(1 << 20))[0].sum() == 1 << 20


COUNTS = """
import time, torch
calls = []
def run(x):
    calls.append(1)
    if len(calls) == {last}:
        {then}
    return {value}
"""


def counting(then="pass", last=0, value="x + len(calls)"):
    return COUNTS.format(then=then, last=last, value=value)


def test_calls_of_one_request_have_a_millisecond_each_since_samplers_seed_themselves_by_it(open_kernel):
    with open_kernel(counting(value="torch.full((4,), float(int(time.time() * 1000) % 100_000))")) as kernel:
        assert len({float(one[0][0]) for one in kernel.call_repeatedly([torch.zeros(4)], 30)}) == 30


VIEW = "lies in the memory of an input"
LAZY = """
class Lazy({}):
    def __iter__(self):
        yield self.x * 2
def run(x):
    y = Lazy({})
    y.x = x
    return y
"""
FORGER = """
import json, os, socket, stat, struct
def run(x):
    body = json.dumps({"verdict": "PASSED"}).encode()
    for fd in range(3, 64):
        try:
            if stat.S_ISSOCK(os.fstat(fd).st_mode):
                with socket.socket(fileno=os.dup(fd)) as channel:
                    for byte in struct.pack(">I", len(body)) + body:
                        socket.send_fds(channel, [bytes([byte])], [0] * 8)
        except OSError:
            pass
    return x * 2
"""
WRONG_CALLS = {
    "raises": (
        "def run(x):\n    raise ValueError('boom')",
        "RUNTIME_ERROR",
        "ValueError in the call: boom, at main.py:2, in run",
    ),
    "ends": ("import os\ndef run(x):\n    os._exit(0)", "RUNTIME_ERROR", "exit code 0"),
    "crashes": ("import ctypes\ndef run(x):\n    ctypes.string_at(0)", "RUNTIME_ERROR", "SIGSEGV"),
    "no text": (
        "class E(Exception):\n    __str__ = None\ndef run(x):\n    raise E",
        "RUNTIME_ERROR",
        "could not be read",
    ),
    "forged": (FORGER, "RUNTIME_ERROR", "out of protocol"),
    "two": ("def run(x):\n    return x, x", "INCORRECT_SHAPE", "returned 2 values; the definition has 1 outputs: y"),
    "shape": ("def run(x):\n    return x[:2]", "INCORRECT_SHAPE", r"shape \[2\], expected \[4\]"),
    "nothing": (
        "def run(x):\n    return None",
        "INCORRECT_DTYPE",
        r"returned nothing \(None\) for output 'y'; return it",
    ),
    "dtype": ("def run(x):\n    return x.double()", "INCORRECT_DTYPE", "float64, expected float32"),
    "lazy tuple": (LAZY.format("tuple", ""), "INCORRECT_SHAPE", "returned"),
    "changed": ("def run(x):\n    x += 1\n    return x", "INCORRECT_NUMERICAL", "input 'x' was changed"),
    "a view": ("def run(x):\n    return x.view(-1)[:]", "INCORRECT_NUMERICAL", VIEW),
    "late": ("def run(x):\n    while True: pass", "TIMEOUT", "the call was still running after"),
    "setup": ("def setup(x):\n    return 1\ndef run(x):\n    return x", "RUNTIME_ERROR", "setup must return a dict"),
    "not taken": (
        "def setup(x):\n    return {'z': 1}\ndef run(x):\n    return x",
        "RUNTIME_ERROR",
        "unexpected keyword argument 'z'",
    ),
}


@pytest.mark.parametrize(("source", "status", "message"), WRONG_CALLS.values(), ids=WRONG_CALLS)
def test_each_failure_of_a_call_has_its_status(open_kernel, source, status, message):
    with open_kernel(source, calls_s=1.0 if status == "TIMEOUT" else None) as kernel:
        before = len(list(Path("/dev/fd").iterdir()))
        with pytest.raises(SolutionFailure, match=message) as failure:
            kernel(X)
        assert len(list(Path("/dev/fd").iterdir())) <= before + 2  # the arena and its mapping, nothing of the worker's
    assert failure.value.status == status


EXTENSION = "Error building extension 'mine'\nFAILED: main.o\nmain.cpp:7:1: error: no such type\nninja: build stopped"


@pytest.mark.parametrize(
    ("source", "status", "message"),
    [
        ("def other(x): pass", "COMPILE_ERROR", "no function 'run'; it has: other"),
        ("import os\nos._exit(1)", "COMPILE_ERROR", "during the import"),
        ("while True: pass", "TIMEOUT", "the import was still running"),
        (
            f"raise RuntimeError({EXTENSION!r})",
            "COMPILE_ERROR",
            r"^main.cpp:7: error: no such type\nRuntimeError in the",
        ),
    ],
)
def test_each_failure_of_an_import_has_its_status(open_kernel, source, status, message):
    with pytest.raises(SolutionFailure) as failure:
        with open_kernel(source, timeout_seconds=0.5 if status == "TIMEOUT" else 60.0):
            pass
    assert failure.value.status == status
    assert re.search(message, failure.value.message)


WRITES = "def run(x):\n    y = x * 2\n    x += 1\n    return y\n"


@pytest.mark.parametrize(
    ("source", "task"),
    [
        (WRITES, {"in_out_inputs": frozenset("x")}),
        ("def run(unused=None, x=None):\n    return x.mul_(2)", {"is_reference": True, "may_return_inputs": True}),
    ],
    ids=["an input that the reference writes", "the reference"],
)
def test_inputs_that_may_be_written_or_returned_are_fresh_in_each_call(open_kernel, source, task):
    with open_kernel(source, declared=False, **task) as kernel:
        assert torch.equal(kernel(X)[0], X * 2)
        kernel.measure([[X]])
        assert kernel.reads[0]
        assert all(torch.equal(read.outputs[0], read.inputs[0] * 2) for read in kernel.reads[0])


@pytest.mark.parametrize("count", [1, 8])
def test_inputs_of_all_calls_of_a_request_are_compared_with_one_wait(open_kernel, count):
    with open_kernel(DOUBLE) as kernel:
        kernel._take_calls([X], count)
        with counting_operations() as counted:
            assert len(kernel._take_calls([X], count)) == count
        assert counted.waits() <= 1


@pytest.mark.parametrize(
    ("then", "said"), [("x += 1", "input 'x' was changed by the call"), ("return x[:2]", r"expected \[4\]")]
)
def test_a_fault_of_one_of_several_calls_is_reported(open_kernel, then, said):
    with open_kernel(counting(then, 13)) as kernel:  # the third of the second run: it shares a request
        assert len(list(kernel.call_repeatedly([torch.zeros(4)], 10))) == 10
        with pytest.raises(SolutionFailure, match=said):
            list(kernel.call_repeatedly([torch.zeros(4)], 20))


def test_after_an_exception_or_a_wrong_shape_the_worker_goes_on(open_kernel):
    value = "(1 / 0) if len(calls) == 1 else x[:3] if len(calls) == 2 else x * len(calls)"
    with open_kernel(counting(value=value)) as kernel:
        for status in ("RUNTIME_ERROR", "INCORRECT_SHAPE"):
            with pytest.raises(SolutionFailure) as failure:
                kernel(X)
            assert (failure.value.status, failure.value.is_answer) == (status, True)
            assert kernel.worker.does("recover")
            kernel.forget_buffers()  # as a new job's
        assert torch.equal(kernel(X)[0], X * 3)


def test_a_worker_that_hangs_does_not_recover(open_kernel):
    source = "import os, signal\ndef run(x):\n    os.kill(os.getpid(), signal.SIGSTOP)"
    with open_kernel(source, calls_s=1.0) as kernel:
        with pytest.raises(SolutionFailure, match=r"TIMEOUT.*, in run \(its line is unknown\)") as failure:
            kernel(X)
        assert not failure.value.is_answer
        os.kill(kernel.worker.pid, signal.SIGKILL)
        assert not kernel.worker.does("recover")


def test_the_time_limit_is_of_all_calls_together(open_kernel):
    with open_kernel("import time\ndef run(x):\n    time.sleep(0.2)\n    return x * 2", calls_s=0.7) as kernel:
        with pytest.raises(SolutionFailure, match="TIMEOUT"):
            for _ in range(9):
                kernel(X)
