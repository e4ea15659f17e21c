"""Seeded faults: which realistic mistakes do the tests find? `seeded_faults.json` has them, described by behaviour.

    python benchmarks/before/seeded_faults.py make SCRATCH              a copy of this checkout with a venv of its own
    python benchmarks/before/seeded_faults.py each SCRATCH [--stage near|further] [--only ID ...] [--minutes 9]
    python benchmarks/before/seeded_faults.py together SCRATCH [--paths tests/cli ...] [--minutes 9]
    python benchmarks/before/seeded_faults.py show [--missing]

`each` seeds one fault after the other into the copy and runs tests until one fails: those nearest to it (near), or
those of its room and around it (further). `together` seeds all faults that no test has found, runs test files, and then
tells whose each failure is: so the whole suite is asked with one run. A test that fails counts only where it passes
without the fault, and fails with it once more. Results are appended to `seeded_faults_found.jsonl`. A call that ends
after its minutes goes on where it was at the next call.

In another tree: describe each fault anew by its `behaviour`, with the place and the texts of that tree.
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
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

HOME: Final = Path(__file__).resolve().parents[2]
FAULTS: Final = Path(__file__).with_name("seeded_faults.json")
FOUND: Final = Path(__file__).with_name("seeded_faults_found.jsonl")
SOURCES: Final = "flashinfer_bench"
FAILED: Final = re.compile(r"^(?:FAILED|ERROR) (tests/.+?)(?: - .*)?$", re.MULTILINE)
LIMITS_S: Final = {"near": 150, "further": 240}
"""Seconds that the tests of one fault may take."""
FILE_S: Final = 200
"""Seconds that one file of tests may take where faults are seeded together."""
TELLS_WHERE: Final = """\
import torch
import flashinfer_bench

print("imported from", flashinfer_bench.__file__)


def run(x):
    return x + 1
"""


def load() -> dict[str, Any]:
    """Read the faults; each text has to be there exactly once."""
    document: dict[str, Any] = json.loads(FAULTS.read_text(encoding="utf-8"))
    return document


def read_found() -> list[dict[str, Any]]:
    """Read the results so far."""
    return [json.loads(line) for line in FOUND.read_text("utf-8").splitlines()] if FOUND.exists() else []


def record(**fields: Any) -> None:
    """Append a result."""
    with FOUND.open("a", encoding="utf-8") as file:
        file.write(json.dumps({**fields, "commit": find_commit()}) + "\n")
    print(json.dumps(fields)[:300], flush=True)


def find_commit() -> str:
    """Return the commit whose tests are asked."""
    done = subprocess.run(["git", "-C", str(HOME), "log", "-1", "--format=%h", "--", SOURCES, "tests"],
                          capture_output=True, text=True, check=False)  # fmt: skip
    return done.stdout.strip()


class Scratch:
    """The copy in which faults are seeded.

    Args:
        root: its folder.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.python = root / ".venv" / "bin" / "python"
        self._stamp = int(time.time())

    def make(self) -> None:
        """Copy the tracked files and the venv, and see that workers import the copy."""
        self.root.mkdir(parents=True, exist_ok=True)
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=HOME, capture_output=True, check=True).stdout
        for name in filter(None, listed.decode().split("\0")):
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(HOME / name, self.root / name, follow_symlinks=False)
        if not (self.root / ".git").exists():
            subprocess.run(["git", "init", "-q"], cwd=self.root, check=True)
        venv = self.root / ".venv"
        if not venv.exists():
            shutil.copytree(HOME / ".venv", venv, symlinks=True)
        site = next(venv.glob("lib/python*/site-packages"))
        named = [*(venv / "bin").iterdir(), venv / "pyvenv.cfg", *site.glob("__editable__*.p*")]
        named += [file for folder in site.glob("flashinfer_bench-*") for file in folder.iterdir()]
        for file in named:
            if file.is_file() and not file.is_symlink():
                content = file.read_bytes()
                if b"\0" not in content and str(HOME).encode() in content:
                    file.write_bytes(content.replace(str(HOME).encode(), str(self.root).encode()))
        for file in (site / "__pycache__").glob("__editable__*"):
            file.unlink()
        self.check_worker()

    def check_worker(self) -> None:
        """Run a solution that tells where it imports the package from; it has to be the copy."""
        axes, tensor = {"n": {"type": "const", "value": 1024}}, {"shape": ["n"], "dtype": "float32"}
        reference = "import torch\n\ndef run(x):\n    return x + 1\n"
        definition = {"name": "plus_one", "op_type": "elementwise", "axes": axes, "inputs": {"x": tensor}}
        definition |= {"outputs": {"y": tensor}, "reference": reference}
        spec = {"language": "python", "target_hardware": ["cpu"], "entry_point": "main.py::run"}
        solution = {"name": "tells", "definition": "plus_one", "author": "bench", "spec": spec}
        solution |= {"sources": [{"path": "main.py", "content": TELLS_WHERE}]}
        spec["destination_passing_style"] = False  # type: ignore[assignment]
        workload = {"uuid": "w0", "axes": {}, "inputs": {"x": {"type": "random"}}}
        line = {"definition": "plus_one", "workload": workload}
        with tempfile.TemporaryDirectory() as folder:
            files = {"definitions/elementwise/plus_one.json": definition}
            files |= {"workloads/elementwise/plus_one.jsonl": line}
            files |= {"solutions/bench/elementwise/plus_one/tells.json": solution}
            for name, content in files.items():
                (Path(folder) / name).parent.mkdir(parents=True, exist_ok=True)
                (Path(folder) / name).write_text(json.dumps(content) + "\n", encoding="utf-8")
            command = [self.root / ".venv/bin/flashinfer-bench", "run", folder, "--quick", "--quiet"]
            subprocess.run(command, cwd="/", check=True, stdout=subprocess.DEVNULL)
            text = "".join(file.read_text("utf-8") for file in (Path(folder) / "traces").rglob("*.jsonl"))
        where = re.search(r"imported from (\S+?)/flashinfer_bench/", text)
        if where is None or where[1] != str(self.root):
            raise SystemExit(f"a worker imports {where and where[1]}, and not the copy {self.root}")
        print(f"workers import {where[1]}")

    @contextmanager
    def seeded(self, faults: Iterable[dict[str, Any]]) -> Iterator[None]:
        """Seed faults, and take them out again."""
        before: dict[Path, str] = {}
        try:
            for fault in faults:
                file = self.root / fault["file"]
                text = file.read_text(encoding="utf-8")
                before.setdefault(file, text)
                if text.count(fault["search"]) != 1:
                    raise SystemExit(
                        f"{fault['id']}: its text is {text.count(fault['search'])} times in {fault['file']}"
                    )
                self._write(file, text.replace(fault["search"], fault["replace"]))
            yield
        finally:
            for file, text in before.items():
                self._write(file, text)

    def _write(self, file: Path, text: str) -> None:
        """Write a source with a time that no compiled copy of it has."""
        file.write_text(text, encoding="utf-8")
        self._stamp += 1
        os.utime(file, (self._stamp, self._stamp))

    def test(self, arguments: Sequence[str], limit_s: float) -> tuple[list[str], bool, str]:
        """Run tests; return those that failed, whether the time was over, and the end of what was printed."""
        command = [str(self.python), "-m", "pytest", "-q", "-p", "no:cacheprovider", "--no-header", *arguments]
        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as said:
            process = subprocess.Popen(
                command, cwd=self.root, stdout=said, stderr=subprocess.STDOUT, start_new_session=True
            )
            try:
                process.wait(limit_s)
                is_late = False
            except subprocess.TimeoutExpired:
                is_late = True
            finally:
                end(process)
            said.seek(0)
            text = said.read()
        failed = list(dict.fromkeys(FAILED.findall(text)))
        if not is_late and process.returncode not in (0, 5) and not failed:
            failed = ["collection"]  # nothing could be imported
        return failed, is_late, text[-1500:]


def ask_each(scratch: Scratch, faults: list[dict[str, Any]], stage: str, deadline: float) -> None:
    """Seed one fault after the other and run the tests of a stage."""
    done = {line["id"] for line in read_found() if line["found"] or (line["stage"] == stage and not line["late"])}
    rooms = load()["rooms"]
    for fault in faults:
        if fault["id"] in done:
            continue
        if time.monotonic() + LIMITS_S[stage] > deadline:
            print("the time of this call is over")
            return
        paths = fault.get(stage) or rooms[fault["room"]][stage]
        ask_one(scratch, fault, stage, paths)


def ask_one(scratch: Scratch, fault: dict[str, Any], stage: str, paths: Sequence[str]) -> None:
    """Run tests with one fault until one fails that does not fail without it."""
    begin, unsteady, by, is_late = time.monotonic(), [], None, False
    while by is None:
        left_s = LIMITS_S[stage] - (time.monotonic() - begin)
        if left_s <= 5:
            is_late = True
            break
        skipped = [word for name in unsteady for word in ("--deselect", name)]
        with scratch.seeded([fault]):
            failed, is_late, _ = scratch.test(["-x", *paths, *skipped], left_s)
        if not failed:
            break
        if failed == ["collection"] or is_confirmed(scratch, fault, failed[0]):
            by = failed[0]
        else:
            unsteady.append(failed[0])
    seconds = round(time.monotonic() - begin)
    record(id=fault["id"], stage=stage, found=by is not None, by=by, late=is_late, seconds=seconds, unsteady=unsteady)


def is_confirmed(scratch: Scratch, fault: dict[str, Any], name: str) -> bool:
    """Tell whether a test passes without a fault, and fails with it once more."""
    if scratch.test([name], 120)[0]:
        return False
    with scratch.seeded([fault]):
        return bool(scratch.test([name], 120)[0])


def ask_together(scratch: Scratch, faults: list[dict[str, Any]], paths: Sequence[str], deadline: float) -> None:
    """Seed all faults that were not found, run files of tests, and tell whose each failure is."""
    files = sorted({file for path in paths for file in list_tests(scratch.root / path)})
    known = {line["file"] for line in read_found() if line["stage"] == "together"}
    for file in files:
        name = str(file.relative_to(scratch.root))
        if name in known:
            continue
        if time.monotonic() + FILE_S > deadline:
            print("the time of this call is over")
            return
        found = {line["id"] for line in read_found() if line["found"]}
        left = [fault for fault in faults if fault["id"] not in found]
        begin = time.monotonic()
        with scratch.seeded(left):
            failed, is_late, _ = scratch.test([name], FILE_S)
        for test in failed[:6]:
            for fault in left:
                if is_confirmed(scratch, fault, test):
                    record(id=fault["id"], stage="whole", found=True, by=test, late=False, seconds=0, unsteady=[])
                    left = [one for one in left if one is not fault]
                    break
        seconds = round(time.monotonic() - begin)
        record(id="", stage="together", file=name, found=False, failed=failed[:20], late=is_late, seconds=seconds)


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process that is still there, with its group."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            os.killpg(process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                process.wait(10)


def leave(*_: object) -> None:
    """Leave so that the fault is taken out again."""
    raise SystemExit(143)


def list_tests(path: Path) -> list[Path]:
    """Return the files of tests below a path."""
    return [path] if path.is_file() else list(path.rglob("test_*.py"))


def show(faults: list[dict[str, Any]], *, only_missing: bool) -> None:
    """Print a line a fault, and how many of each room were found."""
    lines: dict[str, list[dict[str, Any]]] = {}
    for line in read_found():
        lines.setdefault(line["id"], []).append(line)
    found, asked = Counter(), Counter()
    for fault in faults:
        own = lines.get(fault["id"], [])
        by = next((line["by"] for line in own if line["found"]), None)
        stages = ", ".join(f"{line['stage']}{' (time over)' if line['late'] else ''}" for line in own)
        asked[fault["room"]] += bool(own)
        found[fault["room"]] += by is not None
        if not (only_missing and (by or not own)):
            print(f"{fault['id']:34} {'found' if by else 'NOT FOUND' if own else 'not asked':9} {by or stages}")
    for room in asked:
        print(f"{room:14} {found[room]} of {asked[room]} found")
    print(f"{found.total()} of {asked.total()} found; {len(faults)} faults")


def main() -> int:
    """Do what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["make", "each", "together", "show", "check"])
    parser.add_argument("scratch", type=Path, nargs="?")
    parser.add_argument("--stage", choices=list(LIMITS_S), default="near")
    parser.add_argument("--only", nargs="+", metavar="ID")
    parser.add_argument("--paths", nargs="+", default=["tests"])
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--missing", action="store_true", help="show: only what was asked for and not found")
    asked = parser.parse_args()
    faults = [fault for fault in load()["faults"] if not asked.only or fault["id"] in asked.only]
    if asked.what == "show":
        show(faults, only_missing=asked.missing)
        return 0
    if asked.what == "check":
        for fault in faults:
            count = (HOME / fault["file"]).read_text(encoding="utf-8").count(fault["search"])
            if count != 1 or fault["room"] not in load()["rooms"]:
                print(f"{fault['id']}: its text is {count} times in {fault['file']}")
        print(f"{len(faults)} faults")
        return 0
    if asked.scratch is None:
        parser.error("name the folder of the copy")
    signal.signal(signal.SIGTERM, leave)
    scratch = Scratch(asked.scratch.resolve())
    deadline = time.monotonic() + asked.minutes * 60
    if asked.what == "make":
        scratch.make()
    elif asked.what == "each":
        ask_each(scratch, faults, asked.stage, deadline)
    else:
        ask_together(scratch, faults, asked.paths, deadline)
    return 0


if __name__ == "__main__":
    sys.exit(main())
