"""Whole commands in fresh processes, timed from their start to their end, since that is what a user waits for."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks.engine.timeline import Timeline, read_events

CHECKOUT: Final = Path(__file__).resolve().parents[2]
LIMIT_S: Final = 900.0
"""Seconds that one command may take; then it is ended, and its row is missed."""
TAIL: Final = 2000
"""Characters of an error that are kept."""
IMPORT: Final = "import time; begin = time.perf_counter(); import torch; print(time.perf_counter() - begin)"


class ScriptFailed(Exception):
    """A script of this folder did not end well; its row has no figures."""


@dataclass(frozen=True)
class RunTaken:
    """One command, from its start to its end."""

    wall_s: float
    timeline: Timeline
    error: str = ""
    """Why it did not end well; empty where it did."""


def measure_import() -> float:
    """Return the seconds that `import torch` takes: the median of three processes, after one that warms the files."""
    command = [sys.executable, "-c", IMPORT]
    taken = [subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(4)]
    return median(float(text) for text in taken[1:])


def run_command(root: Path, *flags: str, cache: Path | None, checkout: Path = CHECKOUT) -> RunTaken:
    """Run a set with the command line in a fresh process; nothing is saved.

    Args:
        root: the set.
        flags: further flags of `run`.
        cache: folder for what is built and kept; None: the one of this user.
        checkout: whose command line it is.
    """
    environment = dict(os.environ) | ({"FIB_CACHE_PATH": str(cache)} if cache is not None else {})
    with tempfile.TemporaryDirectory() as folder:
        events, errors = Path(folder) / "events.jsonl", Path(folder) / "stderr"
        given = ["run", "--local", str(root), "--no-save-results", "--format", "json", *flags]
        with errors.open("wb") as stderr:
            begin_s = time.monotonic()
            process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.engine.drive", str(events), *given],
                cwd=checkout,
                env=environment,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
            )
            error = wait(process)
            wall_s = time.monotonic() - begin_s
        text = events.read_text(encoding="utf-8") if events.exists() else ""
        error = error and f"{error}\n{errors.read_text(encoding='utf-8', errors='replace')[-TAIL:]}"
    return RunTaken(wall_s, Timeline(read_events(text, begin_s)), error)


def wait(process: subprocess.Popen[bytes]) -> str:
    """Wait for a command; return why it did not end well. Its sessions end with it."""
    try:
        code = process.wait(LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return f"not done after {LIMIT_S:g} s"
    except BaseException:
        process.kill()
        process.wait()
        raise
    return f"it ended with {code}" if code else ""


def run_script(module: str, *arguments: str) -> str:
    """Run a module of this folder in a fresh process and return what it prints.

    Raises:
        ScriptFailed: it does not end well.
    """
    command = [sys.executable, "-m", f"benchmarks.engine.{module}", *arguments]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ScriptFailed(f"{module} ended with {done.returncode}\n{done.stderr[-TAIL:]}")
    return done.stdout
