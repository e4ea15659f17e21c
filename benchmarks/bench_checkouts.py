"""Another checkout and this one in turns, on one machine: what a change is worth to who waits for a command.

    git worktree add /tmp/before COMMIT
    python benchmarks/bench_checkouts.py /tmp/before [--sets gemm sampler] [--turns 3] [--devices 0] [--json FILE]

Machines of one kind differ more than most changes, and one machine differs from minute to minute. So each set is run by
both, one after the other, `--turns` times, with baselines taken anew and a cache that both share. The one that begins
changes each time. A run of each goes before, so that kernels are compiled. I is what `import torch` takes, before each
pair. Seconds count from the start of a command's process.

Sets are those of `bench_engine.py`: verdicts, gemm, sampler and runners on a GPU, python (8 solutions x 8 workloads) on
a CPU; --try makes them tiny. The table goes to stdout. Exits with 1 where a command fails or a verdict is not the
expected one, with 2 where there is no such checkout.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.engine.command import CHECKOUT, measure_import, run_command
from benchmarks.engine.rows import (
    BATCHES_OF_8,
    FRESH,
    Bench,
    Make,
    make_gemm,
    make_python,
    make_sampler,
    make_triton,
    make_verdicts,
)
from flashinfer_bench.bench.machine import discover_devices

DRIVE: Final = Path("benchmarks", "engine", "drive.py")
"""What a checkout needs for its commands to be timed."""
ON_GPU: Final[dict[str, Make]] = {
    "verdicts": make_verdicts,
    "gemm": make_gemm,
    "sampler": make_sampler,
    "runners": make_triton(8, *BATCHES_OF_8),
}
SETS: Final[dict[str, Make]] = {**ON_GPU, "python": make_python}


@dataclass(frozen=True)
class Turn:
    """One command of one checkout."""

    set: str
    checkout: str
    import_s: float
    wall_s: float
    first_verdict_s: float | None
    last_verdict_s: float | None
    odd: list[str]
    """Why it did not end well, and which verdicts are not the expected ones."""


def take_set(name: str, others: Path, bench: Bench, turns: int) -> list[Turn]:
    """Run a set by both checkouts in turns."""
    made, cache, taken = SETS[name](bench, bench.folder_for("set")), bench.folder_for("cache"), []
    devices = ("--devices", bench.devices[0])
    order = [("other", others), ("this", CHECKOUT)]
    for _, checkout in order:
        run_command(made.root, *devices, cache=cache, checkout=checkout)
    for _ in range(turns):
        import_s = measure_import()
        for label, checkout in order:
            run = run_command(made.root, *devices, FRESH, cache=cache, checkout=checkout)
            timeline = run.timeline
            odd = ([run.error] if run.error else []) + timeline.find_odd(made.expected)
            last_s = timeline.verdicts[-1].at_s if timeline.verdicts else None
            taken.append(Turn(name, label, import_s, run.wall_s, timeline.first_verdict_s, last_s, odd))
            print(render(taken[-1]), flush=True)
        order.reverse()
    return taken


def render(turn: Turn) -> str:
    """Return a line of the table."""
    first, last = (
        f"{value:7.2f}" if value is not None else "      -" for value in (turn.first_verdict_s, turn.last_verdict_s)
    )
    line = f"{turn.set:10} {turn.checkout:6} {turn.import_s:5.2f} {turn.wall_s:8.2f} {first} {last}"
    return f"{line}  {'; '.join(turn.odd)[:200]}".rstrip()


def summarise(name: str, taken: Sequence[Turn]) -> str:
    """Return the medians of both, of what did well, and what this checkout takes of what the other one takes."""
    both = [[turn.wall_s for turn in taken if turn.checkout == label and not turn.odd] for label in ("other", "this")]
    if not all(both):
        return f"{name}: no command of {'the other' if both[1] else 'this'} checkout did well"
    other, this = map(median, both)
    return f"{name}: {other:.2f} s and {this:.2f} s, {this / other:.3f} times as long"


def main() -> int:
    """Run the sets; print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, help="another checkout of this project")
    parser.add_argument("--sets", nargs="+", choices=list(SETS), help="default: all that this machine can run")
    parser.add_argument("--turns", type=int, default=2, help="pairs of each set (default: %(default)s)")
    parser.add_argument("--devices", nargs=1, metavar="N", help="the GPU to use (default: the first)")
    parser.add_argument("--json", type=Path, help="write each turn here")
    parser.add_argument("--try", dest="is_trial", action="store_true", help="tiny sets")
    asked = parser.parse_args()
    if not (asked.other / DRIVE).is_file():
        parser.error(f"{asked.other} is no checkout of this project: it has no {DRIVE}")
    devices = tuple("cpu" if device.kind == "cpu" else str(device.index) for device in discover_devices(asked.devices))
    taken: list[Turn] = []
    print(f"{'set':10} {'':6} {'I':>5} {'command':>8} {'first':>7} {'last':>7}")
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), 0.0, devices, is_trial=asked.is_trial)
        for name in asked.sets or (ON_GPU if bench.has_gpus else ["python"]):
            found = take_set(name, asked.other.resolve(), bench, asked.turns)
            print(summarise(name, found))
            taken += found
    if asked.json:
        asked.json.write_text(json.dumps([asdict(turn) for turn in taken], indent=1), encoding="utf-8")
    return int(any(turn.odd for turn in taken))


if __name__ == "__main__":
    sys.exit(main())
