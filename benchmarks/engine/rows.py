"""The rows of the table: what each one runs, what it needs, and what it is held against.

A row takes its figures from whole commands (`command.py`). What it knows of the machine stands in `Bench`.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal

from benchmarks.engine import sets
from benchmarks.engine.command import RunTaken, ScriptFailed, run_command, run_script
from benchmarks.engine.goals import Check, hold_idle, hold_isolated, hold_scaling, hold_verdicts, within
from benchmarks.engine.sets import MadeSet
from benchmarks.engine.timeline import Timeline

FRESH: Final = "--fresh-baselines"
REFERENCE_MS: Final = 24.0
SHOWN: Final = 3
BUNDLED_S: Final = 40.0
FOUR: Final = 4
"""The goal of a row on all GPUs is meant for so many; with fewer its seconds are only shown."""


@dataclass(frozen=True)
class Bench:
    """What all rows share."""

    folder: Path
    """For sets and caches; the script removes it."""
    import_s: float
    devices: tuple[str, ...]
    """Names of the devices, as `--devices` takes them."""
    is_cold: bool = False
    """Each row begins with an empty cache, and no run goes before the one that counts."""
    is_trial: bool = False
    """Sets are tiny."""

    @cached_property
    def context_s(self) -> dict[str, float]:
        """How many at once → seconds that each context takes then."""
        found: dict[str, float] = json.loads(run_script("contexts"))
        return found

    @property
    def has_gpus(self) -> bool:
        """Whether the devices are GPUs."""
        return "cpu" not in self.devices

    def folder_for(self, prefix: str) -> Path:
        """Make an empty folder."""
        return Path(tempfile.mkdtemp(prefix=f"{prefix}_", dir=self.folder))

    def batches(self, *sizes: int) -> Sequence[int]:
        """Return the batches of a set; a trial has two."""
        return sizes[:2] if self.is_trial else sizes

    def count(self, solutions: int) -> int:
        """Return how many solutions a set has; a trial has two."""
        return min(2, solutions) if self.is_trial else solutions


@dataclass
class Taken:
    """What a row came to."""

    checks: list[Check] = field(default_factory=list)
    """The first one is what rounds are compared by."""
    figures: dict[str, Any] = field(default_factory=dict)
    """What else is told."""
    odd: list[str] = field(default_factory=list)
    """What is odd about the verdicts, and why commands did not end well."""

    def add(self, name: str, run: RunTaken, made: MadeSet) -> Timeline:
        """Keep the figures of a run, and what is odd about it."""
        timeline = run.timeline
        self.figures[f"{name}_s"] = round(run.wall_s, 2)
        first_s = timeline.first_verdict_s
        self.figures[f"{name}_first_verdict_s"] = None if first_s is None else round(first_s, 2)
        self.odd += [f"{name}: {run.error}"] if run.error else []
        self.odd += [f"{name}: {line}" for line in timeline.find_odd(made.expected)]
        return timeline

    def close(self) -> Taken:
        """Hold the verdicts, after all else."""
        self.checks.append(hold_verdicts(len(self.odd)))
        return self


Take = Callable[[Bench], Taken]
Make = Callable[[Bench, Path], MadeSet]


@dataclass(frozen=True)
class Row:
    """One row."""

    name: str
    about: str
    take: Take
    needs: Literal["gpu", "gpus", "cpu"] = "gpu"
    """A GPU, several of one host, or a machine without GPUs."""

    def take_once(self, bench: Bench) -> Taken:
        """Take the row; one whose scripts fail is odd and has no figures."""
        try:
            return self.take(bench)
        except ScriptFailed as error:
            return Taken(odd=[str(error)]).close()


def whole(make: Make, extra_s: float, *flags: str, on_all: bool = False) -> Take:
    """Return a row that is one command: held against the import and so many seconds, to its end.

    A run of the same set goes before it, so that what it compiles is compiled; the baselines that it kept are not used.
    """

    def take(bench: Bench) -> Taken:
        taken, made = Taken(), make(bench, bench.folder_for("set"))
        cache = bench.folder_for("cache")
        devices = ("--devices", *(bench.devices if on_all else bench.devices[:1]))
        if not bench.is_cold:
            taken.add("before", run_command(made.root, *devices, *flags, cache=cache), made)
        run = run_command(made.root, *devices, FRESH, *flags, cache=cache)
        taken.figures["cache"] = "cold" if bench.is_cold else "warm"
        timeline = taken.add("run", run, made)
        taken.figures |= {"jobs": len(timeline.verdicts), "status": timeline.statuses()}
        if not on_all or len(bench.devices) >= FOUR:
            taken.checks.append(within("end of the run", run.wall_s, bench.import_s, extra_s))
        return taken.close()

    return take


def compare_runners(make: Make, extra_s: float | None) -> Take:
    """Return a row that runs a set with a worker for each solution, then with a worker for each job.

    Args:
        make: writes the set.
        extra_s: what the first of them is held against, beside the import; None where it is not.
    """

    def take(bench: Bench) -> Taken:
        taken, made = Taken(), make(bench, bench.folder_for("set"))
        cache, device = bench.folder_for("cache"), ("--devices", bench.devices[0])
        if bench.has_gpus:  # what runs on a CPU is not compiled
            if not bench.is_cold:
                taken.add("before", run_command(made.root, *device, cache=cache), made)
            taken.figures["cache"] = "cold" if bench.is_cold else "warm"
        persistent = run_command(made.root, *device, FRESH, cache=cache)
        cache = bench.folder_for("cache") if bench.is_cold else cache
        isolated = run_command(made.root, *device, FRESH, "--use-isolated-runner", cache=cache)
        spans_s = [taken.add("persistent", persistent, made).busy_s, taken.add("isolated", isolated, made).busy_s]
        floor_s = None
        if bench.has_gpus:
            contexts_s = min(bench.context_s.values()) * len(made.expected or ())
            floor_s = bench.import_s + contexts_s
            seconds = {width: round(each_s, 3) for width, each_s in bench.context_s.items()}
            taken.figures |= {"contexts_s": round(contexts_s, 2), "context_s_by_number_at_once": seconds}
        taken.figures["ratio"] = round(isolated.wall_s / persistent.wall_s, 2)
        taken.figures["ratio_without_start"] = round(spans_s[1] / spans_s[0], 2) if spans_s[0] else None
        taken.checks.append(hold_isolated(isolated.wall_s, persistent.wall_s, floor_s))
        if extra_s is not None:
            taken.checks.append(within("persistent", persistent.wall_s, bench.import_s, extra_s))
        return taken.close()

    return take


def take_slow_reference(bench: Bench) -> Taken:
    """Run a slow reference on many workloads with an empty cache, then once more with the baselines that were kept."""
    width, rows = (256, range(64, 80, 8)) if bench.is_trial else (4096, range(2048, 2048 + 8 * sets.SLOW_WORKLOADS, 8))
    milliseconds = REFERENCE_MS if bench.has_gpus else REFERENCE_MS / 4
    given = ("--milliseconds", str(milliseconds), "--rows", str(rows[len(rows) // 2]), "--width", str(width))
    steps = int(run_script("calibrate", *given))
    taken, cache = Taken(), bench.folder_for("cache")
    made = sets.slow_reference(bench.folder_for("set"), steps=steps, width=width, rows=rows)
    device = ("--devices", bench.devices[0])
    run = run_command(made.root, *device, cache=cache)
    timeline = taken.add("run", run, made)
    kept = taken.add("kept_baselines", run_command(made.root, *device, cache=cache), made)
    reference_ms = None if timeline.reference_ms is None else round(timeline.reference_ms, 2)
    taken.figures |= {"reference_ms": reference_ms, "baselines_kept": kept.cached, "jobs": len(timeline.verdicts)}
    taken.checks += [
        within("first verdict", timeline.first_verdict_s, bench.import_s, 3),
        within("end of the run", run.wall_s, bench.import_s, 20),
    ]
    return taken.close()


def take_bundled(bench: Bench) -> Taken:
    """Run the bundled set twice, with the cache of this user; what it builds is built by the first run."""
    made = MadeSet(sets.BUNDLED, None)
    flags = ("--devices", bench.devices[0], *(["--definitions", sets.RMSNORM[1]] if bench.is_trial else []))
    cache = bench.folder_for("cache") if bench.is_cold else None
    taken = Taken()
    taken.add("before", run_command(made.root, *flags, cache=cache), made)
    run = run_command(made.root, *flags, FRESH, cache=cache)
    timeline = taken.add("run", run, made)
    taken.figures |= {"jobs": len(timeline.verdicts), "status": timeline.statuses()}
    taken.checks.append(Check("end of the run", run.wall_s, BUNDLED_S, "warm build caches"))
    return taken.close()


def take_scaling(bench: Bench) -> Taken:
    """Run a set on all devices and on one, start-up left out; a short run of each solution goes before."""
    made = make_triton(64, *(16 * number for number in range(1, 33)))(bench, bench.folder_for("set"))
    cache, taken = bench.folder_for("cache"), Taken()
    if not bench.is_cold:
        first = run_command(made.root, "--devices", *bench.devices, "--quick", "--workloads", "w00", cache=cache)
        taken.odd += [f"before: {first.error}"] if first.error else []
        taken.figures["before_s"] = round(first.wall_s, 2)
    taken.figures["cache"] = "cold" if bench.is_cold else "warm"
    together = taken.add("all", run_command(made.root, "--devices", *bench.devices, FRESH, cache=cache), made)
    cache = bench.folder_for("cache") if bench.is_cold else cache
    alone = taken.add("one", run_command(made.root, "--devices", bench.devices[0], FRESH, cache=cache), made)
    idle = together.idle_shares()
    taken.figures |= {
        "devices": len(bench.devices),
        "all_without_start_s": round(together.busy_s, 2),
        "one_without_start_s": round(alone.busy_s, 2),
        "idle": {device: round(share, 3) for device, share in idle.items()},
    }
    taken.checks += [hold_scaling(alone.busy_s, together.busy_s, len(bench.devices)), hold_idle(idle)]
    return taken.close()


def make_triton(solutions: int, *batches: int) -> Make:
    """Return what writes a set of Triton solutions."""
    return lambda bench, root: sets.triton(root, bench.count(solutions), bench.batches(*batches))


def make_verdicts(bench: Bench, root: Path) -> MadeSet:
    """Write right, wrong and raising solutions."""
    return sets.verdicts(root, bench.batches(1, 16, 64, 256, 1024))


def make_gemm(bench: Bench, root: Path) -> MadeSet:
    """Write matrix products."""
    return sets.gemm(root, bench.batches(1, 16, 128, 1024))


def make_sampler(_bench: Bench, root: Path) -> MadeSet:
    """Write a sampler."""
    return sets.sampler(root)


def make_python(bench: Bench, root: Path) -> MadeSet:
    """Write solutions for a CPU."""
    return sets.python(root, bench.count(8), bench.batches(*range(1, 9)))


BATCHES_OF_8: Final = tuple(16 * 2**number for number in range(8))
BATCHES_OF_32: Final = tuple(16 * number for number in range(1, 33))
ROWS: Final = (
    Row(
        "verdicts", "4 rmsnorm solutions x 5 workloads, half of them wrong or raising: I + 3 s", whole(make_verdicts, 3)
    ),
    Row("gemm", "2 gemm solutions x 4 workloads: I + 2 s", whole(make_gemm, 2)),
    Row("sampler", "one sampler, batch 2, 32,000 tokens: I + 1 s", whole(make_sampler, 1)),
    Row(
        "runners",
        "8 Triton solutions x 8 workloads: I + 6 s; isolated 1.5 times that, or what its contexts take",
        compare_runners(make_triton(8, *BATCHES_OF_8), 6),
    ),
    Row("many", "16 Triton solutions x 32 workloads: I + 30 s", whole(make_triton(16, *BATCHES_OF_32), 30)),
    Row(
        "many-on-all",
        "the same on all GPUs: I + 9 s, which is meant for four",
        whole(make_triton(16, *BATCHES_OF_32), 9, on_all=True),
        "gpus",
    ),
    Row(
        "slow-reference",
        "a reference of 24 ms on 47 workloads: first verdict I + 3 s, all I + 20 s; then with kept baselines",
        take_slow_reference,
    ),
    Row("bundled", "the bundled set, with what it builds built: 40 s", take_bundled),
    Row(
        "scaling",
        "64 Triton solutions x 32 workloads: all GPUs 0.9 times their number as fast as one, none idle beyond 5 %",
        take_scaling,
        "gpus",
    ),
    Row(
        "runners-on-cpu",
        "8 Python solutions x 8 workloads: isolated 1.5 times persistent",
        compare_runners(make_python, None),
        "cpu",
    ),
)


def choose_rows(names: Iterable[str] | None) -> tuple[Row, ...]:
    """Return the rows of these names, in the order of the table; all where none is given.

    Raises:
        ValueError: a name is unknown.
    """
    if names is None:
        return ROWS
    wanted, known = set(names), {row.name for row in ROWS}
    if wanted - known:
        raise ValueError(f"no such row: {', '.join(sorted(wanted - known))}; known: {', '.join(r.name for r in ROWS)}")
    return tuple(row for row in ROWS if row.name in wanted)


def why_skipped(row: Row, gpus: int, *, is_named: bool) -> str:
    """Say why a row is not taken on a machine with so many GPUs; empty where it is."""
    if row.needs == "cpu":
        return "" if not gpus or is_named else "it is meant for a machine without a GPU; name it to take it"
    least = 1 if row.needs == "gpu" else 2
    if gpus >= least:
        return ""
    return f"needs {'a GPU' if least == 1 else 'several GPUs'}; this machine has {gpus or 'none'}"
