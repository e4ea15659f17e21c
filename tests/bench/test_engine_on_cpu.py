"""The resident engine with real sessions on a CPU: verdicts, a killed session, leftovers."""

import os
import signal
import threading
from pathlib import Path

import pytest

from flashinfer_bench import BenchmarkConfig, Engine
from flashinfer_bench.bench.events import JobStarted, Notice
from tests.bench.played import write_two
from tests.kit.make import make_solution
from tests.kit.processes import marked, wait_until_gone

pytestmark = [pytest.mark.cpu, pytest.mark.slow]
LIMIT_S = 60.0
LOOKS = """
# {number}
import os
from pathlib import Path

mine = Path(os.environ["TRITON_CACHE_DIR"])
mine.mkdir(parents=True, exist_ok=True)
(mine / "compiled").write_text("{number}")
print("mine:", mine)
for path in (mine.parents[2], mine.parents[1], Path(__file__).parents[2]):
    try:
        print("sees:", *os.listdir(path))
    except PermissionError:
        print("sees nothing")
def run(x):
    return x * 2
"""
WAITS = "import time\ndef run(x):\n    time.sleep(0.02)\n    return x * 2\n"


def statuses(task):
    return [trace.evaluation.status.value for trace in task.result(LIMIT_S)]


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def engine(tmp_path_factory, cache):
    """An engine that all tests share; at the end no process and no thread of it is left."""
    folder = tmp_path_factory.mktemp("engine")
    config = BenchmarkConfig.default(devices=["cpu"], warmup_runs=1, iterations=2, num_trials=1)
    with marked() as alive:
        with Engine(write_two(folder / "set"), config, cache=cache) as engine:
            yield engine
        assert wait_until_gone(alive) == []
    assert "flashinfer-bench engine" not in {thread.name for thread in threading.enumerate()}


def test_right_and_wrong_solutions_of_one_name_in_one_block_get_their_own_verdicts(engine):
    texts = {
        "def run(x):\n    return x * 2\n": ["PASSED"] * 2,
        "def run(x):\n    return x * 3\n": ["INCORRECT_NUMERICAL"] * 2,
        "def run(x):\n    raise ValueError('no')\n": ["RUNTIME_ERROR"] * 2,
        "def ru(x:\n": ["COMPILE_ERROR"] * 2,
    }
    tasks = [engine.submit(make_solution("same", source=text)) for text in texts]
    assert [statuses(task) for task in tasks] == list(texts.values())


def test_each_solution_has_a_folder_of_its_own_and_sees_no_other(engine):
    if not engine.context.sandbox.is_sandboxed:
        pytest.skip("this machine gives workers no walls")
    seen = []
    for number in (1, 2, 1):
        (trace,) = engine.submit(
            make_solution(f"looks_{number}", source=LOOKS.replace("{number}", str(number))), ["d0"]
        ).result(LIMIT_S)
        assert trace.evaluation.status.value == "PASSED"
        seen.append(trace.evaluation.log.splitlines()[:4])
    folders = [Path(lines[0].removeprefix("mine: ")) for lines in seen]
    assert [lines[1:] for lines in seen] == [["sees nothing"] * 3] * 3
    assert len({*folders}) == 3, "a worker that was made for a new solution has a folder of its own"
    assert not any(folder.exists() for folder in folders[:2])


def test_a_session_that_is_killed_is_replaced_and_the_job_done_again(engine, cache):
    notices, solution = [], make_solution("slow", source=WAITS)
    assert statuses(engine.submit(make_solution("usual"), ["d0"])) == ["PASSED"]  # the reference has its folder then
    before = set(cache.glob("jit/*/*"))

    def hear(event):
        if isinstance(event, Notice):
            notices.append(event.message)
        elif isinstance(event, JobStarted) and not notices:
            notices.append("killed")
            os.kill(engine._harness.slots[0].session._process.pid, signal.SIGKILL)

    end = engine.subscribe(hear)
    assert statuses(engine.submit(solution, ["d0"])) == ["PASSED"]
    end()
    assert "1 of its jobs go back to the queue" in notices[1]
    made = {path.name.removesuffix("-own").removesuffix(".solution") for path in set(cache.glob("jit/*/*")) - before}
    assert made <= {solution.digest()}, "a worker that was made ahead left its folder in the cache"
