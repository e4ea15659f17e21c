"""How fast the engine is, as its user sees it: whole commands in fresh processes, held against goals.

    python benchmarks/bench_engine.py [--rows NAME ...] [--no-goals] [--cold] [--rounds 3] [--devices 0 1] > engine.json
    python benchmarks/bench_engine.py --list

Each row makes a set of its own in a temporary folder, or takes the bundled one, and runs `flashinfer-bench run` on it
with the default settings; nothing is saved. Seconds count from the start of the command's process to its end. I is what
`import torch` takes in a fresh process: the median of three, warm. Rows for one GPU take the first one.

Each solution has a text of its own. By default a run of the same set goes before the one that counts ("before"), in a
cache of the row's own, so that Triton's kernels are compiled; baselines are taken anew in the run that counts. The
bundled set is built in the cache of this user. With --cold each row begins with an empty cache, and no run goes before.

The table goes to stderr, one JSON document to stdout. Exits with 1 where a goal is missed or no row can be taken here,
unless --no-goals is given.
--try runs every row on what this machine has, with tiny sets, and holds verdicts only: does the script work here?

Beside it: `bench_build_farm.py --binding torch --count 96 --kernels 2` builds, `bench_repeatability.py` has the A/A.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median_low
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.engine.command import measure_import
from benchmarks.engine.goals import Check
from benchmarks.engine.rows import ROWS, SHOWN, Bench, Row, choose_rows, why_skipped
from flashinfer_bench.base.host import usable_cores
from flashinfer_bench.bench.machine import Device, discover_devices


def main() -> int:
    """Take the rows; print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", metavar="NAME", help="only these")
    parser.add_argument("--list", action="store_true", help="list the rows and take none")
    parser.add_argument("--no-goals", action="store_true", help="exit with 0 also where a goal is missed")
    parser.add_argument("--cold", action="store_true", help="begin each row with an empty cache")
    parser.add_argument("--rounds", type=int, default=1, help="take each row so often; the median counts")
    parser.add_argument("--devices", nargs="+", metavar="N", help="GPUs to use (default: all)")
    parser.add_argument(
        "--try", dest="is_trial", action="store_true", help="tiny sets on any machine; verdicts count, seconds do not"
    )
    asked = parser.parse_args()
    try:
        rows = choose_rows(asked.rows)
    except ValueError as error:
        parser.error(str(error))
    if asked.list:
        print("\n".join(f"{row.name:15} {row.about}" for row in ROWS))
        return 0
    devices = discover_devices(asked.devices)
    document = take_rows(rows, devices, asked)
    print(json.dumps(document, indent=1))
    return int(not document["held"] and not asked.no_goals)


def take_rows(rows: tuple[Row, ...], devices: tuple[Device, ...], asked: argparse.Namespace) -> dict[str, Any]:
    """Take the rows one after the other; write a line for each as it ends. Return the document."""
    import_s = measure_import()
    names = tuple("cpu" if device.kind == "cpu" else str(device.index) for device in devices)
    gpus = sum(device.kind == "cuda" for device in devices)
    machine = f"{' + '.join(device.name for device in devices)}, {usable_cores()} cores"
    tell(f"{machine}, load average {os.getloadavg()[0]:.1f}\nI = {import_s:.2f} s (import torch, median of three)")
    folder = Path(tempfile.mkdtemp(prefix="bench_engine_"))
    documents = []
    try:
        bench = Bench(folder, import_s, names, asked.cold, asked.is_trial)
        for row in rows:
            why = "" if asked.is_trial else why_skipped(row, gpus, is_named=asked.rows is not None)
            if why:
                tell(f"\n{row.name}: skipped: {why}")
                documents.append({"row": row.name, "about": row.about, "skipped": why})
                continue
            own = Bench(folder, import_s, ("cpu",), asked.cold, asked.is_trial) if row.needs == "cpu" else bench
            documents.append(take_row(row, own, asked.rounds))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return {
        "import_s": round(import_s, 3),
        "machine": machine,
        "versions": {name: find_version(name) for name in ("torch", "triton")} | {"python": sys.version.split()[0]},
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "load_average": os.getloadavg()[0],
        "trial": asked.is_trial,
        "rows": documents,
        "held": any("held" in one for one in documents) and all(one.get("held", True) for one in documents),
    }


def take_row(row: Row, bench: Bench, rounds: int) -> dict[str, Any]:
    """Take a row, show it, and return its document: of the median round, by the first check as a share of its limit."""
    tell(f"\n{row.name}: {row.about}")
    taken = [row.take_once(bench) for _ in range(rounds)]
    shares = [share_of_limit(one.checks[0]) for one in taken]
    chosen = taken[shares.index(median_low(shares))]
    for check in chosen.checks:
        tell(render_check(check, is_trial=bench.is_trial))
    tell("  " + ", ".join(f"{name} {value}" for name, value in chosen.figures.items()))
    odd = [line for one in taken for line in one.odd]
    for line in odd[:SHOWN]:
        tell(f"  odd: {line}")
    return {
        "row": row.name,
        "about": row.about,
        "checks": [check.document() for check in chosen.checks],
        "held": not odd and (bench.is_trial or all(check.is_held for check in chosen.checks)),
        "figures": chosen.figures,
        "odd": odd,
        "rounds": [one.checks[0].document() for one in taken],
    }


def share_of_limit(check: Check) -> float:
    """Return what rounds are compared by."""
    return float("inf") if check.value is None else check.value / (check.limit or 1)


def render_check(check: Check, *, is_trial: bool = False) -> str:
    """Lay out one line: what, its value, held or missed, its limit and the rule of that; a trial holds nothing."""
    value = "none" if check.value is None else f"{check.value:.2f} {check.unit}".rstrip()
    side = "at least" if check.at_least else "at most"
    limit = f"{side} {check.limit:.2f} {check.unit}".rstrip()
    verdict = "trial" if is_trial else "held" if check.is_held else "MISSED"
    return f"  {check.what:15} {value:>10}   {verdict}: {limit} ({check.rule})"


def find_version(package: str) -> str | None:
    """Return the version of an installed package."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def tell(text: str) -> None:
    """Write to stderr at once."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
