"""A call that hangs costs its limit once, and its place is reported; a first call that compiles has the whole time."""

import pytest

from flashinfer_bench import Benchmark, BenchmarkConfig, TraceSet
from flashinfer_bench.bench.runner.workers.hang import CallWatch, read_stack
from tests.bench.small_runs import HONEST, QUICKLY, judge, write_set

pytestmark = [pytest.mark.cpu, pytest.mark.slow]

CALL_S = 1.5
LOOP = "def inner():\n    while True: pass\n"
SPIN = "import time; end = time.time() + 2.2\nwhile time.time() < end: pass"
CHILD = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {SPIN!r}])"
WRITES = (
    "import tempfile, time\nfor at in range(8):\n    open(f'{tempfile.gettempdir()}/{at}.o', 'w')\n    time.sleep(0.3)"
)
LIBRARY = "import timeit\ntimeit.timeit('time.sleep(0.3)', 'import time', number=8)"
QUIET = "was still running after 1.5 s in which nothing was compiled, at main.py"
HANGS = {  # name → source, part that hung, first line of the message
    "first": (f"{LOOP}def run(x):\n    inner()\n", "first call", f"the call {QUIET}:2, in inner"),
    "sleeps": ("import time\ndef run(x):\n    time.sleep(99)\n", "first call", f"the call {QUIET}:3, in run"),
    "prints": ("def run(x):\n    while True: print(1)\n", "first call", f"the call {QUIET}:2, in run"),
    "later": (
        f"{LOOP}calls = []\ndef run(x):\n    calls.append(x)\n    return x * 2 if len(calls) < 4 else inner()\n",
        "later call",
        " s, at main.py:2, in inner",
    ),
    "imports": (f"{LOOP}inner()\ndef run(x): ...\n", "import", f"the import {QUIET}:2, in inner"),
}
COMPILES = {
    name: f"done = []\ndef run(x):\n    if not done:\n        done.append(1)\n{indented}\n    return x * 2\n"
    for name, code in {"child": CHILD, "writes": WRITES, "library": LIBRARY}.items()
    for indented in ["\n".join(f"        {line}" for line in code.splitlines())]
}
SLEEPS = "import time\nn = []\ndef run(x):\n    n.append(x)\n    time.sleep(0.7 * (len(n) < 4))\n    return x * 2\n"
SLOW = {"slow_after_import": f"{CHILD}\n{SLEEPS}", "slow": SLEEPS, "right": HONEST}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    sources = {name: source for name, (source, _, _) in HANGS.items()} | COMPILES | SLOW
    trace_set = write_set(tmp_path_factory.mktemp("hangs"), sources, sizes=(8, 9))
    return judge(trace_set, call_timeout_seconds=CALL_S, iterations=3)


@pytest.mark.parametrize("name", HANGS)
def test_a_hang_is_reported_with_its_part_limit_and_stack(run, name):
    _, part, words = HANGS[name]
    evaluation = run.done[name, "w0"]
    assert evaluation.status.value == "TIMEOUT"
    assert words in evaluation.log.partition("\n")[0]
    reported = evaluation.extra["timeout"]
    assert (reported["part"], reported["compiling_s"]) == (part, 0)
    assert f"was still running after {reported['limit_s']:g} s" in evaluation.log
    # A later call has a multiple of what the calls before it took, which a busy machine makes longer.
    assert reported["limit_s"] >= CALL_S if name == "later" else reported["limit_s"] == CALL_S
    assert reported["stack"][0] in evaluation.log
    assert evaluation.extra["run"]["call_timeout_seconds"] == CALL_S
    assert (name, "w1") not in run.done


@pytest.mark.parametrize("name", [*COMPILES, *SLOW])
def test_first_calls_that_compile_and_slow_calls_pass(run, name):
    assert {one: done.log for one, done in run.done.items() if one[0] == name and done.status.value != "PASSED"} == {}
    assert {(name, "w0"), (name, "w1")} <= run.done.keys()


def test_a_verdict_under_such_a_limit_does_not_hold_without_it(tmp_path):
    trace_set = write_set(tmp_path, {"sleeps": HANGS["sleeps"][0]})
    quick = BenchmarkConfig.default(**QUICKLY, call_timeout_seconds=CALL_S)
    with Benchmark(trace_set, quick) as benchmark:
        benchmark.run_all()
    for limit_s, jobs in ((CALL_S, 0), (1.0, 0), (2.0, 1), (None, 1)):
        config = BenchmarkConfig.default(**QUICKLY, call_timeout_seconds=limit_s)
        plan = Benchmark(TraceSet.from_path(tmp_path), config).plan(resume=True)
        assert len(plan.jobs) == jobs


class TestStacks:
    """A worker's report of its stack is read as far as it is valid."""

    TEXT = (
        'Stack (most recent call first):\n  File "/a/k.py", line 3 in f\n  File "/a/k.py", line 9 in <module>\nnoise\n'
    )

    class Worker:
        solution_folder = "/a"

        def read_stack(self):
            return TestStacks.TEXT

    def test_frames_are_read_and_named_as_the_sources_name_them(self):
        assert [tuple(one) for one in read_stack(self.Worker())] == [("/a/k.py", 3, "f"), ("/a/k.py", 9, "<module>")]
        assert CallWatch(self.Worker(), 1.0).find_stack() == ["at k.py:3, in f", "at k.py:9"]


def test_without_a_limit_of_calls_the_limit_of_the_job_holds_and_the_stack_is_there(tmp_path):
    run = judge(write_set(tmp_path, {"sleeps": HANGS["sleeps"][0]}), timeout_seconds=1.0)
    reported = run.done["sleeps", "w0"].extra["timeout"]
    assert reported == {"part": "first call", "limit_s": 1.0, "stack": ["at main.py:3, in run"]}
