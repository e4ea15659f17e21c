"""Check that `repro` writes a script that shows the failure, for each wrong twin that fails numerically.

    python -m benchmarks.check_repro --python VENV/bin/python [--jobs 2] [--only NAME ...] [--keep FOLDER]

VENV has torch and nothing else; the scripts run there. Those of samplers and indexers need the package, and run by this
Python. In each folder the script runs twice: on the twin, where it has to end with 1, and with the definition's
reference in the place of the solution, where it has to end with 0. Prints a line for each twin, and exits with 1 where
one is not as it should be. Run it from the root of the repository.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from flashinfer_bench.bench import Benchmark, BenchmarkConfig
from flashinfer_bench.data import Solution, SourceFile, TraceSet
from flashinfer_bench.data.store.pack import unpack_solution
from flashinfer_bench.errors import Fault
from flashinfer_bench.examine.repro import start

SET = Path("flashinfer-trace")
WRONG = SET / "wrong"
NUMERICAL = "INCORRECT_NUMERICAL"
FORKS = """
import os, runpy, sys, torch
torch.set_num_threads(1)
for line in sys.stdin:
    folder = line.strip()
    child = os.fork()
    if not child:
        out = os.open(folder + "/printed.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(out, 1)
        os.dup2(out, 2)
        sys.argv = [folder + "/repro.py"]
        sys.path.insert(0, folder)
        code = 70
        try:
            runpy.run_path(sys.argv[0], run_name="__main__")
        except SystemExit as end:
            code = end.code
        except BaseException as error:
            print(repr(error))
        sys.stdout.flush()
        os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
"""Runs in the interpreter that has torch alone: each line of its input is a folder. Importing torch takes most of the
time of a script, and is done once."""
QUICK = {"warmup_runs": 0, "iterations": 1, "num_trials": 1, "time_budget_s": 0.5}


@dataclass(frozen=True)
class Checked:
    """What came of one twin."""

    name: str
    seen: str
    """`now`: the call in the script's own process fails; `recorded`: only what was returned to the judge does."""
    problem: str | None
    seconds: float


def list_twins(trace_set: TraceSet) -> list[tuple[Solution, str]]:
    """Return the twins that fail numerically, each with the smallest workload that shows its fault."""
    expected = json.loads((WRONG / "expected.json").read_text())
    found = []
    for file in sorted((WRONG / "solutions" / "twin").rglob("*.json")):
        facts = expected[file.stem]
        if facts["status"] != NUMERICAL:
            continue
        twin = Solution.model_validate_json(file.read_text())
        seen_in = tuple(facts.get("seen_in", [""]))
        known = [one.workload for one in trace_set.workloads[twin.definition]]
        workloads = [one for one in known if one.uuid.startswith(seen_in)]
        found.append((twin, min(workloads, key=lambda one: sum(one.axes.values())).uuid))
    return found


def check(twin: Solution, uuid: str, folder: Path, args: argparse.Namespace) -> Checked:
    """Write a twin's failure down, run the script, and run it once more with the reference in the twin's place."""
    start = time.monotonic()
    try:
        seen, problem = _check(twin, uuid, folder, args)
    except Fault as error:
        seen, problem = "", f"{type(error).__name__}: {error}"
    return Checked(twin.name, seen, problem, time.monotonic() - start)


def write_down(twin: Solution, uuid: str, folder: Path) -> dict:
    """Write a twin's failure down, as the command does; return what is known of the call."""
    trace_set = TraceSet.merge([TraceSet.from_path(SET), TraceSet.from_path(WRONG)])
    settings = {**start.QUICK, **QUICK}
    config = BenchmarkConfig.default(devices=["cpu"], solutions=[twin.name], workloads=[uuid], **settings)
    engine = Benchmark(trace_set, config)
    (job,) = engine.plan().jobs
    folder.mkdir(parents=True, exist_ok=True)
    start.reproduce(engine, job, folder)
    return json.loads((folder / "call.json").read_text())


def _check(twin: Solution, uuid: str, folder: Path, args: argparse.Namespace) -> tuple[str, str | None]:
    facts = write_down(twin, uuid, folder)
    if facts["status"] != NUMERICAL:
        return "", f"repro tells {facts['status']}: {facts['message'][:200]}"
    python = args.alone if facts["compares"] else args.whole
    code, told = python.run(folder)
    if code != 1 or "the failure shows" not in told:
        return "", f"repro.py ended with {code}: {told[-1000:]}"
    seen = "judge" if not facts["compares"] else "recorded" if "when it was judged" in told else "now"
    _take_reference(twin, folder, facts)
    code, told = python.run(folder)
    return seen, f"with the reference it ended with {code}: {told[-1000:]}" if code else None


def _take_reference(twin: Solution, folder: Path, facts: dict) -> None:
    """Put the definition's reference in the place of the solution."""
    file, _, symbol = facts["entry"].partition("::")
    names = ", ".join(facts["inputs"])
    given = ", ".join(f"{name}={name}" for name in facts["inputs"])
    body = f"\n\ntheirs = run\n\n\ndef {symbol}({names}):\n    return theirs({given})\n"
    shutil.rmtree(folder / "solution")
    source = SourceFile(path=file, content=(folder / "reference.py").read_text() + body)
    spec = twin.spec.model_copy(update={"destination_passing_style": False})
    unpack_solution(twin.model_copy(update={"sources": [source], "spec": spec}), folder / "solution")
    (folder / "call.json").write_text(json.dumps({**facts, "style": "value"}))


class Python:
    """An interpreter that has torch imported, and runs each script in a fork of itself.

    Args:
        executable: the interpreter.
        with_package: whether it may see this package's source.
    """

    def __init__(self, executable: str, *, with_package: bool) -> None:
        hidden = set() if with_package else {"PYTHONPATH"}
        environment = {name: value for name, value in os.environ.items() if name not in hidden}
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [executable, "-c", FORKS], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
        )

    def run(self, folder: Path) -> tuple[int, str]:
        """Run the script of a folder; return its exit code, and what it printed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._lock:
            self._process.stdin.write(f"{folder}\n")
            self._process.stdin.flush()
            code = int(self._process.stdout.readline())
        return code, (folder / "printed.txt").read_text()

    def close(self) -> None:
        """End it."""
        self._process.communicate()


def main() -> int:
    """Check all twins and tell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True, help="the interpreter of an environment with torch alone")
    parser.add_argument("--jobs", type=int, default=2, help="so many twins at once (default: 2)")
    parser.add_argument("--only", nargs="+", default=[], help="twins with one of these words in their names")
    parser.add_argument("--keep", help="a folder where what repro wrote stays (default: nothing stays)")
    args = parser.parse_args()
    twins = list_twins(TraceSet.from_path(SET))
    chosen = [(twin, uuid) for twin, uuid in twins if not args.only or any(word in twin.name for word in args.only)]
    args.alone = Python(args.python, with_package=False)
    args.whole = Python(sys.executable, with_package=True)
    with (
        closing(args.alone),
        closing(args.whole),
        tempfile.TemporaryDirectory() as scratch,
        ThreadPoolExecutor(args.jobs) as pool,
    ):
        root = Path(args.keep or scratch)
        checked = []
        for one in pool.map(lambda pair: check(*pair, root / pair[0].name, args), chosen):
            checked.append(one)
            problem = f": {one.problem}" if one.problem else ""
            print(f"{one.name}: {one.seen or '-'}, {one.seconds:.1f} s{problem}", flush=True)
    wrong = [one for one in checked if one.problem]
    kinds = {kind: sum(one.seen == kind for one in checked) for kind in ("now", "recorded", "judge")}
    print(f"{len(checked) - len(wrong)} of {len(checked)} twins as they should be; seen: {kinds}")
    return 1 if wrong or not checked else 0


if __name__ == "__main__":
    sys.exit(main())
