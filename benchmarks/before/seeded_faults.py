"""Seed mistakes in copies of the tree, one at a time, and tell which of them the tests find.

    python benchmarks/before/seeded_faults.py check               # each text is in the package, once
    python benchmarks/before/seeded_faults.py run --lanes 2       # the tests of each fault's room
    python benchmarks/before/seeded_faults.py run --room golden   # changes of the public face alone
    python benchmarks/before/seeded_faults.py run --only flops-of-bmm-halved --tests tests/routines
    python benchmarks/before/seeded_faults.py show                # found and not found, of the latest results

The faults are in `seeded_faults.json`. In a later tree, describe each anew by its behaviour. A test that fails finds a
fault only if it passes without the fault, and fails with it once more. Results are appended to
`seeded_faults_found.jsonl`. Exit code 1: a fault was not found.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Queue
from typing import Any

TREE = Path(__file__).resolve().parents[2]
DOCUMENT = json.loads(Path(__file__).with_suffix(".json").read_text("utf-8"))
FOUND = Path(__file__).with_name("seeded_faults_found.jsonl")
FAILED = re.compile(r"^(?:FAILED|ERROR) (tests/.+?)(?: - .*)?$", re.MULTILINE)
Fault = dict[str, Any]


def git(*words: str) -> str:
    """Return what git prints."""
    return subprocess.run(["git", *words], cwd=TREE, capture_output=True, text=True, check=True).stdout


def find_edits(tree: Path, fault: Fault) -> list[tuple[Path, str, str]]:
    """Return (file, text, other text) of each edit; the text stands in one file, once."""
    files = [file for file in (tree / "flashinfer_bench").rglob("*.*") if file.suffix in (".py", ".yaml")]
    found = []
    for old, new in fault["edits"]:
        holding = [(file, count) for file in files if (count := file.read_text("utf-8").count(old))]
        if [count for _, count in holding] != [1]:
            raise LookupError(f"{fault['id']}: {old!r} stands in {[file.name for file, _ in holding]}")
        found.append((holding[0][0], old, new))
    return found


@contextmanager
def seeded(tree: Path, fault: Fault) -> Iterator[None]:
    """Seed a fault in a copy, and take it out again. Compiled files of either state are of no use to the other."""
    edits = find_edits(tree, fault)
    before = {file: file.read_text("utf-8") for file, _, _ in edits}
    try:
        for file, old, new in edits:
            write(file, file.read_text("utf-8").replace(old, new))
        yield
    finally:
        for file, text in before.items():
            write(file, text)


def write(file: Path, text: str) -> None:
    """Write a source with a time that no compiled file has."""
    file.write_text(text, encoding="utf-8")
    stamp = time.time_ns() % 10**9
    os.utime(file, (stamp, stamp))


def test(tree: Path, words: list[str], limit_s: float) -> tuple[list[str], bool]:
    """Run tests in a copy; return which failed, and whether the time was over."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--tb=no", *words]
    with tempfile.TemporaryDirectory() as base, tempfile.TemporaryFile("w+") as said:
        environment = {**os.environ, "PYTHONPATH": str(tree)}
        process = subprocess.Popen(
            [*command, f"--basetemp={base}"], cwd=tree, env=environment, stdout=said, start_new_session=True
        )
        is_late = False
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            is_late = True
        finally:
            for number in (signal.SIGTERM, signal.SIGKILL):
                with suppress(ProcessLookupError, subprocess.TimeoutExpired):
                    os.killpg(process.pid, number)
                    process.wait(10)
        said.seek(0)
        failed = FAILED.findall(said.read())
    return failed or ["collection"] * (not is_late and process.returncode not in (0, 5)), is_late


def ask(tree: Path, fault: Fault, words: list[str], limit_s: float) -> Fault:
    """Run tests with a fault until one fails that passes without it; return the result."""
    begun, unsteady, by, is_late = time.monotonic(), list[str](), None, False
    while by is None and not is_late:
        skipped = [word for name in unsteady for word in ("--deselect", name)]
        with seeded(tree, fault):
            failed, is_late = test(tree, [*words, *skipped], limit_s - (time.monotonic() - begun))
        if not failed:
            break
        if is_steady(tree, fault, failed[0]):
            by = failed[0]
        else:
            unsteady.append(failed[0])
    return {"id": fault["id"], "found": by is not None, "by": by, "late": is_late, "unsteady": unsteady,
            "seconds": round(time.monotonic() - begun)}  # fmt: skip


def is_steady(tree: Path, fault: Fault, name: str) -> bool:
    """Tell whether a test passes without a fault, and fails with it once more."""
    if name == "collection":
        return True
    if test(tree, [name], 120)[0]:
        return False
    with seeded(tree, fault):
        return bool(test(tree, [name], 120)[0])


def run(faults: list[Fault], asked: argparse.Namespace) -> None:
    """Ask about the faults, several at once, each in a copy of the tree."""
    commit = git("rev-parse", "--short=8", "HEAD").strip()
    deadline, copies = time.monotonic() + asked.minutes * 60, Queue[Path]()
    with tempfile.TemporaryDirectory(prefix="seeded-") as above, ThreadPoolExecutor(asked.lanes) as lanes:
        for lane in range(asked.lanes):
            copy = Path(above) / str(lane) / "tree"
            for name in git("ls-files").splitlines():
                (copy / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(TREE / name, copy / name, follow_symlinks=False)
            copies.put(copy)

        def ask_in_turn(fault: Fault) -> None:
            copy = copies.get()
            try:
                left_s = min(asked.limit, deadline - time.monotonic())
                if left_s < 10:
                    return
                words = asked.tests or fault.get("tests") or DOCUMENT["rooms"][fault["room"]]
                words = [word for word in words if word[:6] != "tests/" or (copy / word.split("::")[0]).exists()]
                result = ask(copy, fault, words, left_s) | {"commit": commit}
            finally:
                copies.put(copy)
            with FOUND.open("a", encoding="utf-8") as file:
                file.write(json.dumps(result) + "\n")
            print(json.dumps(result), flush=True)

        list(lanes.map(ask_in_turn, faults))


def show(faults: list[Fault]) -> int:
    """Print a line a fault, and the counts; return how many were not found."""
    latest = {line["id"]: line for line in map(json.loads, FOUND.read_text("utf-8").splitlines())}
    counts = Counter[str]()
    for fault in faults:
        line = latest.get(fault["id"])
        word = "not asked" if line is None else "found" if line["found"] else "late" if line["late"] else "NOT FOUND"
        counts[word] += 1
        print(f"{word:9} {fault['id']}: {(line and line['by']) or fault['behaviour']}")
    print(dict(counts))
    return len(faults) - counts["found"]


def main() -> int:
    """Do what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["check", "run", "show"])
    parser.add_argument("--only", nargs="+", metavar="ID")
    parser.add_argument("--room", help="by default all rooms but golden")
    parser.add_argument("--tests", nargs="+", help="words for pytest, in place of the room's")
    parser.add_argument("--lanes", type=int, default=1, help="how many at once")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds for the tests of one fault")
    parser.add_argument("--minutes", type=float, default=60.0, help="for all of them")
    asked = parser.parse_args()
    faults = DOCUMENT["faults"]
    if asked.only:
        faults = [fault for fault in faults if fault["id"] in asked.only]
    elif asked.what != "check":
        rooms = [asked.room] if asked.room else {*DOCUMENT["rooms"]} - {"golden"}
        faults = [fault for fault in faults if fault["room"] in rooms]
    if asked.what == "check":
        for fault in faults:
            find_edits(TREE, fault)
    elif asked.what == "run":
        run(faults, asked)
    return show(faults) and 1 if asked.what != "check" else 0


if __name__ == "__main__":
    sys.exit(main())
