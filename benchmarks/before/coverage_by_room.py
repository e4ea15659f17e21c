"""Branch coverage of the tests by room of the package. It needs `coverage` (pip install 'coverage>=7.10').

    python benchmarks/before/coverage_by_room.py run FOLDER [PATH ...] [--minutes 9] [--workers 2]
    python benchmarks/before/coverage_by_room.py report FOLDER          prints the table, writes coverage.json

`run` runs the tests below each PATH, by default of the whole suite, and keeps its data in FOLDER. A call that ends
after its minutes goes on where it was at the next call. The whole suite takes about half an hour on two quiet cores.

Processes that tests start count, too: commands, sessions, guards. Workers with walls do not: they may write to their
own folders only, and no data of theirs comes out. So code that runs in workers alone counts as far as tests call it in
their own process; the table marks its room.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any, Final

HOME: Final = Path(__file__).resolve().parents[2]
WRITTEN: Final = Path(__file__).with_name("coverage.json")
PACKAGE: Final = "flashinfer_bench"
CONFIG: Final = """\
[run]
branch = true
parallel = true
sigterm = true
patch = subprocess, _exit, fork
source = {source}
data_file = {data}
disable_warnings = couldnt-parse, no-data-collected, module-not-imported
"""
ROOMS: Final = (
    ("perf, routines", ("cli/perf/", "routines/")),
    ("cli", ("cli/",)),
    ("workers: what is timed", ("bench/runner/workers/timed/",)),
    ("workers, from outside", ("bench/runner/workers/",)),
    ("session", ("bench/runner/session/",)),
    ("runner, host side", ("bench/runner/",)),
    ("integers of inputs", ("bench/evaluators/inputs/integer", "bench/evaluators/inputs/stand_ins.py")),
    ("unusual inputs, integrity", ("bench/evaluators/inputs/stress.py", "bench/evaluators/integrity/")),
    ("inputs", ("bench/evaluators/inputs/",)),
    ("evaluators", ("bench/evaluators/",)),
    ("bench: plan, settings, engine", ("bench/",)),
    ("worker, sandbox *", ("worker/",)),
    ("data", ("data/",)),
    ("compile", ("compile/",)),
    ("cluster", ("cluster/",)),
    ("serve, client", ("serve/", "client.py")),
    ("examine", ("examine/",)),
    ("timing", ("timing/",)),
    ("testing", ("testing/",)),
    ("report", ("report/",)),
    ("roofline", ("roofline/",)),
    ("agents", ("agents/",)),
    ("base", ("",)),
)
"""Room → how the paths of its files begin; the first that fits counts. The star: see above."""
PART_S: Final = 420
"""One part of the suite may take so long; the largest folders are parts by file."""
LARGE: Final = ("bench", "compat", "cli", "worker", "gpu")


def list_parts(paths: list[str]) -> list[str]:
    """Return the parts of the suite: folders, and of large ones their files and folders."""
    if paths:
        return paths
    tests = HOME / "tests"
    found = [one for one in sorted(tests.iterdir()) if is_part(one)]
    parts = [part for one in found for part in (filter(is_part, sorted(one.iterdir())) if one.name in LARGE else [one])]
    return [str(part.relative_to(HOME)) for part in parts]


def is_part(path: Path) -> bool:
    """Tell whether a path holds tests."""
    return any(path.rglob("test_*.py")) if path.is_dir() else path.name.startswith("test_")


def run(folder: Path, paths: list[str], minutes: float, workers: int) -> int:
    """Run the parts that have not run yet."""
    folder.mkdir(parents=True, exist_ok=True)
    config, done_file = folder / "coveragerc", folder / "done.jsonl"
    config.write_text(CONFIG.format(source=HOME / PACKAGE, data=folder / "data"), encoding="utf-8")
    done = (
        {json.loads(line)["part"] for line in done_file.read_text("utf-8").splitlines()} if done_file.exists() else ()
    )
    deadline = time.monotonic() + minutes * 60
    for part in list_parts(paths):
        if part in done:
            continue
        if time.monotonic() + min(PART_S, minutes * 60 * 0.7) > deadline:
            print("the time of this call is over")
            return 1
        begin = time.monotonic()
        command = [sys.executable, "-m", "coverage", "run", f"--rcfile={config}", "-m", "pytest", "-q", part]
        command += ["-p", "no:cacheprovider", *(["-n", str(workers), "--dist", "loadfile"] if workers > 1 else [])]
        try:
            ended = subprocess.run(command, cwd=HOME, capture_output=True, text=True, timeout=PART_S, check=False)
            said = ended.stdout.strip().splitlines()[-1:]
        except subprocess.TimeoutExpired:
            said = ["the time was over"]
        seconds = round(time.monotonic() - begin)
        with done_file.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"part": part, "seconds": seconds, "said": said}) + "\n")
        print(f"{seconds:4} s  {part}: {''.join(said)}", flush=True)
    return 0


def report(folder: Path) -> int:
    """Put the data of all processes together, print the table and write the document."""
    config = f"--rcfile={folder / 'coveragerc'}"
    coverage, whole = [sys.executable, "-m", "coverage"], folder / "whole.json"
    # A process that was killed while it wrote leaves a file that cannot be read.
    combine = [*coverage, "combine", config, "--keep", "-q"]
    subprocess.run([*combine, str(folder)], cwd=HOME, check=False, stdout=subprocess.DEVNULL)
    made = [*coverage, "json", config, "-q", "-o", str(whole)]
    subprocess.run(made, cwd=HOME, check=True)
    rooms: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    files: dict[str, list[int]] = {}
    for name, facts in json.loads(whole.read_text(encoding="utf-8"))["files"].items():
        summary = facts["summary"]
        path = name.rpartition(f"{PACKAGE}/")[2]
        files[path] = [summary["covered_branches"], summary["num_branches"]]
        room = rooms[next(room for room, starts in ROOMS if path.startswith(starts))]
        for key in ("covered_branches", "num_branches", "covered_lines", "num_statements"):
            room[key] += summary[key]
        room["files"] += 1
    done = [json.loads(line) for line in (folder / "done.jsonl").read_text("utf-8").splitlines()]
    print(f"{'room':32} {'files':>5} {'branches':>9} {'covered':>8} {'lines':>7} {'covered':>8}")
    for name, room in [*rooms.items(), ("all", add_up(rooms))]:
        branches, lines = (
            share(room, "covered_branches", "num_branches"),
            share(room, "covered_lines", "num_statements"),
        )
        counts = f"{room['num_branches']:9,} {branches:8.1%} {room['num_statements']:7,} {lines:8.1%}"
        print(f"{name:32} {room['files']:5} {counts}")
    document: dict[str, Any] = {
        "commit": subprocess.run(["git", "rev-parse", "--short=8", "HEAD"], cwd=HOME, capture_output=True, text=True,
                                 check=False).stdout.strip(),
        "parts": done,
        "note": "* code of workers with walls counts only as far as tests call it in their own process",
        "rooms": {name: dict(room) for name, room in sorted(rooms.items())},
        "files": dict(sorted(files.items())),
    }  # fmt: skip
    text = json.dumps({**document, "files": None}, indent=1)
    lines_of_files = ",\n".join(f'  "{path}": {counts}' for path, counts in document["files"].items())
    WRITTEN.write_text(text.replace('"files": null', f'"files": {{\n{lines_of_files}\n }}') + "\n", encoding="utf-8")
    return 0


def add_up(rooms: dict[str, dict[str, int]]) -> dict[str, int]:
    """Return the counts of all rooms."""
    total: dict[str, int] = defaultdict(int)
    for room in rooms.values():
        for key, count in room.items():
            total[key] += count
    return total


def share(room: dict[str, int], part: str, whole: str) -> float:
    """Return a share; 1 where there is nothing to cover."""
    return room[part] / room[whole] if room[whole] else 1.0


def main() -> int:
    """Do what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["run", "report"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("paths", nargs="*", help="default: the whole suite, part by part")
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--workers", type=int, default=1, help="tests side by side (default: %(default)s)")
    asked = parser.parse_args()
    folder = asked.folder.resolve()
    return report(folder) if asked.what == "report" else run(folder, asked.paths, asked.minutes, asked.workers)


if __name__ == "__main__":
    sys.exit(main())
