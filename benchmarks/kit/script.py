"""What the five scripts share: a table of rows, the figures that they take, and where these go.

A row is a function that yields figures. A script takes the rows that are asked for, prints a line for each figure, and
appends each to `benchmarks/results/SCRIPT.jsonl` with the machine, commit, versions and command. A figure that
`benchmarks/results.py` has a goal for is held against it.

Exit codes: 0 all is held, 1 a goal is missed or a verdict is odd, 2 the arguments or the machine do not fit.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final, Literal

from benchmarks.kit.commands import CHECKOUT, measure_import
from benchmarks.results import GOALS, RESULTS
from flashinfer_bench.base.host import usable_cores
from flashinfer_bench.bench import Benchmark, BenchmarkConfig
from flashinfer_bench.bench.events import JobFinished
from flashinfer_bench.bench.machine import Device, discover_devices
from flashinfer_bench.data import TraceSet

VERSIONS: Final = ("torch", "triton", "flashinfer-python")
SHOWN: Final = 5
"""Odd verdicts of a figure that are printed."""


@dataclass(frozen=True)
class Figure:
    """One number."""

    name: str
    value: float | None
    """None if the run did not get as far."""
    unit: str = ""
    note: str = ""
    odd: Sequence[str] = ()
    """Verdicts and faults that should not be."""


@dataclass
class Bench:
    """What a row is given.

    Args:
        asked: the arguments.
        folder: an empty folder, which is removed afterwards.
    """

    asked: argparse.Namespace
    folder: Path

    @cached_property
    def devices(self) -> tuple[Device, ...]:
        """The devices that were asked for; all by default."""
        found: tuple[Device, ...] = discover_devices(self.asked.devices)
        return found

    @property
    def kind(self) -> str:
        """`cuda` or `cpu`."""
        return self.devices[0].kind

    @property
    def suffix(self) -> str:
        """Ends names of figures whose goals are for a GPU, on a CPU."""
        return "" if self.kind == "cuda" else "-cpu"

    @property
    def names(self) -> tuple[str, ...]:
        """The devices, as `--devices` takes them."""
        return tuple("cpu" if one.kind == "cpu" else str(one.index) for one in self.devices)

    @property
    def is_small(self) -> bool:
        """Whether sets are tiny."""
        return bool(self.asked.small)

    @cached_property
    def import_s(self) -> float:
        """Seconds of `import torch` in a fresh process."""
        return measure_import()

    def empty(self, prefix: str = "set") -> Path:
        """Make an empty folder."""
        return Path(tempfile.mkdtemp(prefix=f"{prefix}_", dir=self.folder))


@dataclass(frozen=True)
class Row:
    """One row of a table; the first line of the function's docstring says what it takes."""

    take: Callable[[Bench], Iterable[Figure]]
    needs: Literal["", "gpu", "gpus"] = ""
    about: str = ""

    @property
    def title(self) -> str:
        """What the row takes."""
        return self.about or (self.take.__doc__ or "").splitlines()[0]

    def why_skipped(self, gpus: int) -> str:
        """Say why the row is not taken on a machine with N GPUs; empty if it is."""
        least = {"": 0, "gpu": 1, "gpus": 2}[self.needs]
        return "" if gpus >= least else f"needs {least} GPU{'s' * (least > 1)}; this machine has {gpus}"


def make_parser(doc: str, rows: dict[str, Row]) -> argparse.ArgumentParser:
    """Return a parser with the flags that all scripts have."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", choices=list(rows), metavar="ROW", help="rows to take (default: all)")
    parser.add_argument("--list", action="store_true", help="list the rows and take none")
    parser.add_argument("--devices", "--device", nargs="+", metavar="N", help="GPUs by number, or cpu (default: all)")
    parser.add_argument("--small", action="store_true", help="tiny sizes; verdicts are held, figures are not kept")
    parser.add_argument("--no-goals", action="store_true", help="exit with 0 even if a goal is missed")
    parser.add_argument("--no-save", action="store_true", help="append no lines to benchmarks/results/")
    parser.add_argument("--output", type=Path, metavar="FILE", help="append the lines to this file instead")
    return parser


def run_rows(rows: dict[str, Row], asked: argparse.Namespace, script: str) -> int:
    """Take the rows that were asked for, print and save their figures, and return the exit code."""
    if asked.list:
        print("\n".join(f"{name:18} {row.title}" for name, row in rows.items()))
        return 0
    asked.devices = ["0" if one == "cuda" else one for one in asked.devices] if asked.devices else None
    taken, is_good = 0, True
    with tempfile.TemporaryDirectory(prefix="benchmarks-") as folder:
        bench = Bench(asked, Path(folder))
        gpus = sum(one.kind == "cuda" for one in bench.devices)
        print(f"{describe(bench.devices)['machine']}, load {os.getloadavg()[0]:.1f}", flush=True)
        for name in asked.rows or rows:
            if why := rows[name].why_skipped(gpus):
                print(f"{name}: skipped: {why}")
                continue
            print(f"{name}: {rows[name].title}", flush=True)
            for figure in rows[name].take(bench):
                taken += 1
                is_good &= show(figure, is_small=asked.small)
                save(figure, asked, script, bench.devices)
    return 2 if not taken else int(not is_good and not asked.no_goals)


def show(figure: Figure, *, is_small: bool = False) -> bool:
    """Print a figure; return whether its goal is held and no verdict is odd."""
    goal = None if is_small else GOALS.get(figure.name)
    is_held = goal is None or goal.is_held(figure.value)
    value = "none" if figure.value is None else f"{figure.value:.4g}"
    said = "" if goal is None else f"{'held' if is_held else 'MISSED'}: {goal.limit}"
    print(f"  {figure.name:28} {value:>9} {figure.unit:6} {said:22} {figure.note}".rstrip(), flush=True)
    for line in figure.odd[:SHOWN]:
        print(f"    odd: {line}")
    return is_held and not figure.odd


def save(figure: Figure, asked: argparse.Namespace, script: str, devices: Sequence[Device]) -> None:
    """Append a figure to its file, unless it is of a tiny run, is odd, or is not to be saved."""
    if asked.no_save or getattr(asked, "small", False) or figure.odd or figure.value is None:
        return
    line = {"figure": figure.name, "value": round(figure.value, 6), "unit": figure.unit, **describe(devices)}
    words = ["python", "-m", f"benchmarks.{script}", *sys.argv[1:]]
    line |= {"command": shlex.join(words), "load": round(os.getloadavg()[0], 1)}
    line |= {"note": figure.note} if figure.note else {}
    path = asked.output or RESULTS / f"{script}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(f"{json.dumps(line, ensure_ascii=False)}\n")


def judge(
    bench: Bench,
    trace_set: TraceSet,
    cache: Path | None = None,
    repeats: int = 1,
    heard: Callable[[JobFinished], object] = lambda _: None,
    **settings: Any,
) -> tuple[list[Any], list[str]]:
    """Run a set on the devices that were asked for; nothing is saved.

    Args:
        bench: has the devices and `--settings`.
        trace_set: the set.
        cache: what the engine keeps (default: nothing of before).
        repeats: workers that time each solution.
        heard: is called after each verdict.
        settings: of the engine.

    Returns:
        The traces that passed, and what is odd: other statuses, and jobs without one.
    """
    given = {"devices": list(bench.names), **getattr(bench.asked, "settings", {}), **settings}
    traces, odd = [], []
    with Benchmark(trace_set, BenchmarkConfig.default(**given), cache=cache or bench.empty("cache")) as benchmark:
        benchmark.repeat(repeats)
        for event in benchmark.run(benchmark.plan(), save_results=False):
            if not isinstance(event, JobFinished):
                continue
            heard(event)
            evaluation = event.trace.evaluation
            if evaluation is not None and evaluation.performance is not None:
                traces.append(event.trace)
            else:
                odd.append(f"{event.job.solution.name}, {event.job.workload.uuid}: {evaluation}")
        odd += [fault.message for fault in benchmark.faults]
    return traces, odd


def describe(devices: Sequence[Device]) -> dict[str, Any]:
    """Return machine, GPUs, commit, versions and time."""
    gpus = [one.name for one in devices if one.kind == "cuda"]
    command = ["git", "describe", "--always", "--dirty=+", "--exclude=*"]
    git = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False)
    return {
        "machine": f"{' + '.join(gpus) or devices[0].name}, {usable_cores()} cores",
        "gpu": gpus[0] if gpus else None,
        "commit": git.stdout.strip() or "unknown",
        "versions": {name: found for name in VERSIONS if (found := find_version(name))},
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def find_version(package: str) -> str | None:
    """Return the version of an installed package."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
