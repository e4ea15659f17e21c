"""Converts tasks in KernelBench's form and judges a right and a wrong `ModelNew` of each; exits with 1 if a verdict is
another.

    python benchmarks/run_kernelbench.py                                               all 40 tasks on a CPU
    python benchmarks/run_kernelbench.py --tasks tests/kernelbench/gpu_tasks.txt --device 0   CUDA and Triton
    python benchmarks/run_kernelbench.py --only 11 12 -- --num-trials 5                two tasks; flags of `run`

A file of tasks has, for each: "=== FILE", the task, "--- ModelNew", its right solution, and "--- OLD => NEW", the edit
that makes it wrong.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

CHECKOUT = Path(__file__).resolve().parents[1]
TASKS = CHECKOUT / "tests/kernelbench/tasks.txt"
HEAD = "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n"
FEW_CALLS = ("--warmup-runs", "1", "--iterations", "3", "--num-trials", "2", "--interpret", "--format", "json")


class Task(NamedTuple):
    """One task, and two solutions of it."""

    name: str
    source: str
    right: str
    wrong: str
    """Empty if it is not judged."""

    @property
    def number(self) -> int:
        """Its number in the level."""
        return int(self.name.partition("_")[0])


def read_tasks(file: Path) -> Iterator[Task]:
    """Yield the tasks of a file."""
    for section in re.split(r"^=== ", file.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        task, right, edit = re.split(r"^--- ", section, flags=re.MULTILINE)
        name, _, source = task.partition("\n")
        old, new = edit.strip("\n").split(" => ")
        right = HEAD + right.partition("\n")[2]
        assert old in right, f"{name}: the edit finds nothing"
        yield Task(name, HEAD + source, right, right.replace(old, new))


def write_tasks(folder: Path, tasks: Iterable[Task]) -> None:
    """Write tasks, and their solutions as two runs of KernelBench."""
    for run in ("level1", "right", "wrong"):
        (folder / run).mkdir(parents=True, exist_ok=True)
    for task in tasks:
        (folder / "level1" / f"{task.name}.py").write_text(task.source)
        for run in ("right", "wrong"):
            if text := getattr(task, run):
                (folder / run / f"level_1_problem_{task.number}_sample_0_kernel.py").write_text(text)


def command(*words: str | Path, limit_s: float | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command of the package. At its limit it is interrupted, and prints the results so far."""
    program = [sys.executable, "-m", "flashinfer_bench", *map(str, words)]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=CHECKOUT) as process:
        try:
            texts = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            texts = process.communicate()
    return subprocess.CompletedProcess(program, process.returncode, *texts)


def judge_tasks(
    folder: Path, tasks: Sequence[Task], flags: Sequence[str] = (), limit_s: float | None = None
) -> list[tuple[str, str, str, str]]:
    """Return definition, author, status and log of each solution."""
    write_tasks(folder / "tasks", tasks)
    done = command(
        "convert", folder / "tasks", "--from", "kernelbench", "--output", folder / "set", "--trust-definitions"
    )
    if done.returncode:
        print(done.stdout, done.stderr, file=sys.stderr)
    ran = command("run", "--local", folder / "set", *FEW_CALLS, *flags, limit_s=limit_s)
    if not ran.stdout:
        print(ran.stderr, file=sys.stderr)
    document: dict[str, Any] = json.loads(ran.stdout)
    for problem in ("faults", "skipped", "data_errors"):
        print(*(document.get(problem) or ()), sep="\n", file=sys.stderr)
    jobs = document["jobs"]
    return [
        (job["definition"], job["solution"].partition("_")[0], job["status"], job.get("reason") or "") for job in jobs
    ]


def main() -> int:
    """Judge the tasks, and print each unexpected verdict."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=Path, default=TASKS, metavar="FILE", help="the file of tasks")
    parser.add_argument("--only", type=int, nargs="+", metavar="N", help="only these tasks")
    parser.add_argument("--right-only", type=int, nargs="+", metavar="N", help="judge no wrong solution of these tasks")
    parser.add_argument("--limit-s", type=float, metavar="F", help="interrupt the run after these seconds")
    parser.add_argument("--device", default="cpu", help="the device (default: %(default)s)")
    parser.add_argument("flags", nargs="*", help="further flags of `run`, after --")
    args = parser.parse_args()
    tasks = [task for task in read_tasks(args.tasks) if args.only is None or task.number in args.only]
    tasks = [task._replace(wrong="") if task.number in (args.right_only or ()) else task for task in tasks]
    wanted = sum(bool(text) for task in tasks for text in (task.right, task.wrong))
    with tempfile.TemporaryDirectory() as folder:
        rows = judge_tasks(Path(folder), tasks, ["--devices", args.device, *args.flags], args.limit_s)
    expected = [row for row in rows if (row[1] == "right") == (row[2] == "PASSED")]
    for row in sorted(rows):
        mark = "ok" if row in expected else "UNEXPECTED"
        print(mark, *row[:3], "" if row[2] == "PASSED" else row[3].strip().replace("\n", " ")[-300:])
    print(f"{len(expected)} of {wanted} verdicts are right")
    return int(len(expected) != wanted)


if __name__ == "__main__":
    sys.exit(main())
