"""Where the time of a session goes: a log of its steps, and what a job's steps took, as a tree.

    PYTHONPATH=. SESSION_PROFILE=/tmp/steps flashinfer-bench run SET --evaluator-modules benchmarks.session_profile
    python -m benchmarks.speed --rows resident --device cuda --profile /tmp/steps
    python -m benchmarks.session_profile /tmp/steps.* [--skip 10] [--least-ms 0.4]

The module is a plug-in that judges nothing: each session imports it, and then notes when the steps below begin and end.
A session writes to a file of its own, named SESSION_PROFILE and its process id. A note costs 1 us, a job has some
hundreds of them. Steps that wait for a worker, or for the driver, are told as any other: a profiler that takes samples
of what runs does not see those.

Times are of one job in the mean, in milliseconds: how often a step comes, what it takes, and what of it is no step
below. Workers are not looked into.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

from flashinfer_bench.bench.evaluators.default import DefaultEvaluator

VARIABLE: Final = "SESSION_PROFILE"
JOB: Final = "run_job"
Note = tuple[str, int, float, float]
"""A step's name, how deep it lies, and when it began and ended, in seconds."""
STEPS: Final = (
    (
        "session.device_session",
        "DeviceSession",
        "run_job prepare expect end_workers _load _import _make_baseline _check",
    ),
    ("session.device_session", "DeviceSession", "_let_go _give_arena"),
    ("session.device_session", None, "judge_reads judge_stress"),
    ("session.main", None, "run_request judge make_evaluation"),
    ("session.precompiling", "Precompiler", "finish expect"),
    ("session.reference_timing", "ReferenceTimer", "measure"),
    ("workers.pool", "WorkerPool", "worker_for await_quiet settle discard await_readers take_output _take tend"),
    ("workers.pool", "WorkerPool", "_spawn _reap"),
    ("workers.kernel", "RemoteKernel", "call_once measure load lay_out"),
    ("workers.measuring", "Measuring", "_run_once _open _take_samples _make_up _confirm"),
    ("workers.process", "WorkerProcess", "ask end"),
    ("workers.arena", "SharedArena", "come_back renew step_aside"),
    ("workers.timed.timed_calls", "TimedCalls", "write prepare finish check_calls check_unchanged reads"),
    ("workers.timed.chain", "ChainTimer", "confirm _run_one"),
    ("workers.timed.chain", "ChainTools", "mask digests find_empty_ns"),
    ("workers.timed.call_buffers", "CallBuffers", "fill_outputs synchronize read_spots find_unwritten"),
    ("workers.timed.batches", "BatchTimer", "_run _time_one"),
    ("run_metadata", "RunMetadata", "query measured"),
)
"""Module below `bench.runner`, class or None, and its functions."""
OTHERS: Final = (
    ("timing.procedure", "TrialInProgress", "check warm_up check_lines sample choose_calls"),
    ("bench.evaluators.default", "DefaultEvaluator", "judge_trial judge_call check_reference"),
    ("bench.evaluators.default", None, "judge_norms"),
    ("bench.evaluators.inputs.generate", "InputMaker", "make"),
    ("bench.evaluators.inputs.contents", "DealtContents", "write_all make"),
    ("bench.evaluators.inputs.stress", "StressPlan", "change"),
    ("bench.evaluators.inputs.memory", None, "query_free_bytes"),
    ("bench.evaluators.reference", "Reference", "__call__"),
)
"""The same below the package."""


class Log:
    """The notes of this process."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._notes: list[Note] = []
        self._depth = 0

    def wrap(self, step: Callable[..., Any], name: str) -> Callable[..., Any]:
        """Return a function that does a step and notes it; a request to a worker is named by its method."""

        @functools.wraps(step)
        def noted(*args: Any, **fields: Any) -> Any:
            label = f"ask {args[1]}" if name == "ask" else name
            depth, start = self._depth, time.perf_counter()
            self._depth += 1
            try:
                return step(*args, **fields)
            finally:
                self._depth = depth
                self._notes.append((label, depth, start, time.perf_counter()))
                if depth == 0:
                    self.write()

        return noted

    def write(self) -> None:
        """Append the notes to the file."""
        if not self._notes:
            return
        with self._file.open("a", encoding="utf-8") as target:
            target.writelines(json.dumps(note) + "\n" for note in self._notes)
        self._notes.clear()


def install(log: Log) -> None:
    """Have every step noted from here on; one that this version does not have is left out."""
    named = [(f"flashinfer_bench.bench.runner.{module}", *rest) for module, *rest in STEPS]
    named += [(f"flashinfer_bench.{module}", *rest) for module, *rest in OTHERS]
    for path, owner_name, steps in named:
        module = importlib.import_module(path)
        owner = module if owner_name is None else getattr(module, owner_name)
        for name in steps.split():
            step = vars(owner).get(name)
            if isinstance(step, classmethod):
                setattr(owner, name, classmethod(log.wrap(step.__func__, name)))
            elif step is not None:
                setattr(owner, name, log.wrap(step, name))


class Onlooker(DefaultEvaluator):
    """Judges nothing; that it is imported is all that is wanted."""

    extra_keys: ClassVar[dict[str, Any]] = {}

    @classmethod
    def can_evaluate(cls, definition: Any) -> bool:
        """Take no definition."""
        del definition
        return False


EVALUATORS = [Onlooker]


def read_notes(files: Sequence[Path]) -> list[list[Note]]:
    """Return the notes of each file by the time when the step began, the outer step first."""
    found = []
    for file in files:
        notes = [tuple(json.loads(line)) for line in file.read_text(encoding="utf-8").splitlines()]
        found.append(sorted(notes, key=lambda note: (note[2], note[1])))
    return found


def sum_up(notes: Sequence[Note], skip: int) -> tuple[dict[tuple[str, ...], list[float]], int, float]:
    """Return of each path of steps how often it came, its seconds, those of the steps below; jobs, and their seconds.

    Args:
        notes: of one session.
        skip: jobs at the start that are left out.
    """
    jobs = [note for note in notes if note[0] == JOB][skip:]
    sums: dict[tuple[str, ...], list[float]] = {}
    if not jobs:
        return sums, 0, 0.0
    open_steps: list[Note] = []
    for note in notes:
        name, _, start, end = note
        if start < jobs[0][2] or end > jobs[-1][3]:
            continue
        while open_steps and open_steps[-1][3] <= start:
            open_steps.pop()
        path = (*(step[0] for step in open_steps), name)
        reported = sums.setdefault(path, [0, 0.0, 0.0])
        reported[0] += 1
        reported[1] += end - start
        if path[:-1] in sums:
            sums[path[:-1]][2] += end - start
        open_steps.append(note)
    return sums, len(jobs), jobs[-1][3] - jobs[0][2]


def render(sums: dict[tuple[str, ...], list[float]], jobs: int, least_ms: float) -> list[str]:
    """Return a line for each step of a job, indented, those that take most first."""
    lines = []

    def add(above: tuple[str, ...]) -> None:
        below = [path for path in sums if path[:-1] == above and len(path) == len(above) + 1]
        for path in sorted(below, key=lambda path: -sums[path][1]):
            count, seconds, inner = sums[path]
            if 1e3 * seconds / jobs < least_ms:
                continue
            name = "  " * len(above) + path[-1]
            own = 1e3 * (seconds - inner) / jobs
            lines.append(f"{name:44} {count / jobs:6.1f} times {1e3 * seconds / jobs:8.2f} ms, own {own:7.2f} ms")
            add(path)

    add(())
    return lines


def main() -> int:
    """Print the tree of each session."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--skip", type=int, default=0, help="jobs of each session that are left out at the start")
    parser.add_argument("--least-ms", type=float, default=0.4, help="leave out steps that take less of a job")
    asked = parser.parse_args()
    for file, notes in zip(asked.files, read_notes(asked.files), strict=True):
        sums, jobs, seconds = sum_up(notes, asked.skip)
        if jobs:
            sys.stdout.write(f"{file}: {jobs} jobs, {1e3 * seconds / jobs:.1f} ms from one to the next\n")
            sys.stdout.write("\n".join(render(sums, jobs, asked.least_ms)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

if os.environ.get(VARIABLE) and "flashinfer_bench.bench.runner.session.main" in sys.modules:
    _log = Log(Path(f"{os.environ[VARIABLE]}.{os.getpid()}"))
    install(_log)
