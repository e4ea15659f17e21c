"""Whole commands in fresh processes, timed from their start to their end, since that is what a user waits for."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

CHECKOUT: Final = Path(__file__).resolve().parents[2]
LIMIT_S: Final = 900.0
"""Seconds until a command is ended."""
VERDICT: Final = re.compile(r"\[ *\d+/\d+\]")
"""Begins a line of the progress that has a verdict."""
IMPORT: Final = "import time; begin = time.perf_counter(); import torch; print(time.perf_counter() - begin)"
CALIBRATE: Final = """
import sys, time, torch
aim_s, rows, width = float(sys.argv[1]) / 1e3, int(sys.argv[2]), int(sys.argv[3])
device = "cuda" if torch.cuda.is_available() else "cpu"
x, weight = (torch.randn(n, width, device=device, dtype=torch.bfloat16) for n in (rows, width))
def take(steps):
    begin = time.perf_counter()
    for _ in range(steps):
        x @ weight
    if x.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - begin
steps = 1
while (seconds := min(take(steps) for _ in range(5))) < aim_s:
    steps *= 2
print(max(1, round(steps * aim_s / seconds)))
"""
Job = tuple[str, str, str]
"""Names of definition and solution, uuid of the workload."""


@dataclass(frozen=True)
class Command:
    """One `flashinfer-bench run`."""

    wall_s: float
    first_s: float | None
    """Seconds until the first verdict was shown."""
    document: dict[str, Any]
    """The document of `--format json`."""
    error: str = ""

    @property
    def jobs(self) -> list[dict[str, Any]]:
        """The jobs that have verdicts."""
        found: list[dict[str, Any]] = self.document.get("jobs", [])
        return found

    @property
    def busy_s(self) -> float:
        """Seconds from the first verdict to the end: the run without its start."""
        return self.wall_s - (self.first_s or 0.0)

    def odd(self, expected: dict[Job, str] | None = None) -> list[str]:
        """Return why the command failed, and each job whose status is not the expected one (PASSED by default)."""
        seen = {(one["definition"], one["solution"], one["workload"]): one["status"] for one in self.jobs}
        expected = dict.fromkeys(seen, "PASSED") if expected is None else expected
        missed = {job: one for job, one in expected.items() if seen.get(job) != one}
        odd = [f"{' / '.join(job)}: {seen.get(job)}, expected {one}" for job, one in missed.items()]
        lost = self.document.get("plan", {}).get("jobs", 0) - len(seen)
        odd += [f"{lost} jobs without a verdict"] if lost and not odd else []
        return ([self.error] if self.error else []) + ([] if seen else ["no verdicts"]) + odd


def run_set(root: Path, *flags: str, cache: Path | None = None) -> Command:
    """Run a set with the command line; nothing is saved.

    Args:
        root: the set.
        flags: further flags of `run`.
        cache: folder for builds and baselines (default: the one of this user).
    """
    environment = dict(os.environ) | {"PYTHONPATH": str(CHECKOUT)}
    environment |= {"FIB_CACHE_PATH": str(cache)} if cache is not None else {}
    command = [sys.executable, "-m", "flashinfer_bench", "run", "--local", str(root), "--no-save-results"]
    first_s, tail = None, ""
    with tempfile.TemporaryFile("w+", encoding="utf-8") as stdout:
        begin_s = time.monotonic()
        process = subprocess.Popen(
            [*command, "--format", "json", *flags],
            cwd=CHECKOUT,
            env=environment,
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
        )
        timer = threading.Timer(LIMIT_S, process.kill)
        timer.start()
        for line in process.stderr or ():
            if first_s is None and VERDICT.match(line):
                first_s = time.monotonic() - begin_s
            tail = (tail + line)[-1500:]
        code = process.wait()
        wall_s = time.monotonic() - begin_s
        timer.cancel()
        stdout.seek(0)
        text = stdout.read()
    try:
        return Command(wall_s, first_s, json.loads(text))
    except ValueError:
        return Command(wall_s, first_s, {}, f"the command ended with {code} after {wall_s:.0f} s: {tail}")


def run_python(*arguments: str) -> str:
    """Run Python in a fresh process and return what it prints.

    Raises:
        subprocess.CalledProcessError: it does not end with 0.
    """
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True, check=True).stdout


def measure_import() -> float:
    """Return the seconds of `import torch`: the median of three processes, after one that warms the files."""
    return median([float(run_python("-c", IMPORT)) for _ in range(4)][1:])


def calibrate(milliseconds: float, rows: int, width: int) -> int:
    """Return the number of products of [rows, width] and [width, width] that take this long here."""
    return int(run_python("-c", CALIBRATE, str(milliseconds), str(rows), str(width)))


def measure_process(command: list[str], repeats: int) -> tuple[float, float, float]:
    """Return the least seconds, processor seconds and peak GB of memory of a Python command."""
    taken = []
    for _ in range(repeats):
        begin_s = time.perf_counter()
        child = subprocess.Popen([sys.executable, *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        _, code, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(code)
        if child.returncode:
            raise SystemExit(f"{' '.join(command)} ended with {child.returncode}")
        taken.append((time.perf_counter() - begin_s, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024 / 1e9))
    seconds, cpu_seconds, gigabytes = map(min, zip(*taken, strict=True))
    return seconds, cpu_seconds, gigabytes


def count_statuses(command: Command) -> str:
    """Return the statuses of a run with their numbers."""
    return ", ".join(f"{number} {status}" for status, number in Counter(j["status"] for j in command.jobs).items())
