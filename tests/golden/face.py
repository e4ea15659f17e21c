"""What the golden tests know of the package: how to start it, and how to write and read the files of a set.

Nothing of the package is imported here. The program is `python -m flashinfer_bench` of the tree that these tests lie
in, so a copy of the tree tests the copy.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

TREE = Path(__file__).resolve().parents[2]
BUNDLED = TREE / "flashinfer-trace"
WRONG = BUNDLED / "wrong"
PROGRAM = [sys.executable, "-m", "flashinfer_bench"]
QUICK = ("--warmup-runs", "1", "--iterations", "3", "--num-trials", "1")
"""Settings of a run whose times nobody reads."""
LIMIT_S = 560.0
"""Longer than any command of these tests takes on a busy machine."""
DEVICES = "FIB_GOLDEN_DEVICES"
"""Environment variable: the GPUs that these tests may use. Without it they use none, also where there is one."""
MARK = "FIB_GOLDEN_MARK"
"""Environment variable by which the processes of one command are found, whoever their parent is."""
CONTRADICTED = "as timed from outside"
"""A part of the reason of a RUNTIME_ERROR that a busy CPU can cause. It is noise of the clock, and no verdict here."""
OLD_INTERPRETER = "only 0-dimensional arrays can be converted"
"""What Triton 3.6's interpreter says of products with NumPy 2.5, which it does not know yet."""


def environment(**more: str) -> dict[str, str]:
    """Return the environment of a command: this tree, no GPU unless asked for, nothing of the user's settings."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("FIB_", "COLUMNS", "LINES"))}
    kept["CUDA_VISIBLE_DEVICES"] = os.environ.get(DEVICES, "")
    kept["PYTHONPATH"] = os.pathsep.join([str(TREE), *filter(None, [os.environ.get("PYTHONPATH")])])
    kept.pop("PYTHONDONTWRITEBYTECODE", None)
    return kept | more


class Face:
    """The command line, with a cache and a working directory of its own."""

    def __init__(self, cache: Path, folder: Path, **variables: str) -> None:
        self.folder = folder
        self.variables = environment(FIB_CACHE_PATH=str(cache), **variables)

    def start(self, *words: object, program: list[str] | None = None, **more: str) -> subprocess.Popen[str]:
        """Start a command in a process group of its own."""
        return subprocess.Popen(
            [*(program or PROGRAM), *map(str, words)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
            cwd=self.folder,
            env=self.variables | more,
            start_new_session=True,
        )

    def __call__(self, *words: object, program: list[str] | None = None, **more: str) -> Done:
        """Run a command to its end."""
        process = self.start(*words, program=program, **more)
        try:
            out, told = process.communicate(timeout=LIMIT_S)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            raise
        return Done(process.returncode, out, told, [str(word) for word in words])

    def python(self, script: str, *words: object, **more: str) -> Any:
        """Run a script with the package in a process of its own; return the JSON of the last line that it prints."""
        path = self.folder / f"script_{abs(hash((script, words))):x}.py"
        path.write_text(script)
        done = self(path, *words, program=[sys.executable, "-W", "ignore::UserWarning"], **more)
        assert done.code == 0, done
        return json.loads(done.out.strip().splitlines()[-1])


class Done:
    """A command that has ended: `code`, `out` (stdout) and `told` (stderr)."""

    def __init__(self, code: int, out: str, told: str, words: list[str]) -> None:
        self.code, self.out, self.told, self.words = code, out, told, words

    @property
    def json(self) -> Any:
        """stdout as one JSON document."""
        try:
            return json.loads(self.out)
        except ValueError as error:
            raise AssertionError(f"stdout is no JSON document: {self}") from error

    @property
    def text(self) -> str:
        """stdout and stderr in one line, whatever the width of the screen."""
        return " ".join((self.out + "\n" + self.told).split())

    def __repr__(self) -> str:
        words = " ".join(self.words)
        return f"exit code {self.code} of: {words}\n--- stdout\n{self.out[-6000:]}\n--- stderr\n{self.told[-6000:]}"


def write_json(path: Path, content: object) -> Path:
    """Write a file of a set, and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path


def write_lines(path: Path, lines: list[Any]) -> Path:
    """Write a JSONL file; a line that is a text is written as it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def spec(shape: list[str] | None, dtype: str, **more: object) -> dict[str, object]:
    """Return an input or output of a definition."""
    return {"shape": shape, "dtype": dtype, **more}


class SmallSet:
    """A trace set of small definitions, written file by file as docs/trace-set.md says."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.types: dict[str, str] = {}

    def definition(
        self,
        name: str,
        reference: str,
        inputs: dict[str, Any],
        outputs: dict[str, Any],
        *,
        axes: dict[str, Any] | None = None,
        op_type: str = "golden",
        **more: object,
    ) -> None:
        """Write a definition; without ``axes`` it has one: n, 64 long."""
        self.types[name] = op_type
        content = {
            "name": name,
            "op_type": op_type,
            "axes": axes or {"n": {"type": "const", "value": 64}},
            "inputs": inputs,
            "outputs": outputs,
            "reference": reference,
            **more,
        }
        write_json(self.root / "definitions" / op_type / f"{name}.json", content)

    def workload(
        self, definition: str, uuid: str, inputs: dict[str, Any] | None = None, axes: dict[str, int] | None = None
    ) -> None:
        """Add a line to the workloads of a definition."""
        path = self.root / "workloads" / self.types[definition] / f"{definition}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        line = {"definition": definition, "workload": {"uuid": uuid, "axes": axes or {}, "inputs": inputs or {}}}
        with path.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def solution(
        self,
        definition: str,
        name: str,
        source: str,
        *,
        author: str = "me",
        dps: bool | None = False,
        language: str = "python",
        entry: str = "main.py::run",
        **more: object,
    ) -> Path:
        """Write a solution of one file."""
        content = make_solution(definition, name, source, author=author, dps=dps, language=language, entry=entry)
        op_type = self.types.get(definition, "golden")
        return write_json(self.root / "solutions" / author / op_type / definition / f"{name}.json", content | more)

    def stored(self, definition: str, uuid: str, tensors: dict[str, Any]) -> dict[str, Any]:
        """Write tensors to a blob; return the inputs that name them."""
        from safetensors.torch import save_file

        path = Path("blob") / "workloads" / self.types[definition] / definition / f"{definition}_{uuid}.safetensors"
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        save_file(tensors, self.root / path)
        return {key: {"type": "safetensors", "path": str(path), "tensor_key": key} for key in tensors}

    def traces(self) -> list[dict[str, Any]]:
        """Return all recorded traces; each line of each file has to be JSON."""
        return read_traces(self.root)


def make_solution(
    definition: str,
    name: str,
    source: str,
    *,
    author: str = "me",
    dps: bool | None = False,
    language: str = "python",
    entry: str = "main.py::run",
) -> dict[str, Any]:
    """Return the JSON of a solution of one file."""
    form: dict[str, Any] = {
        "language": language,
        "target_hardware": ["cpu", "cuda"],
        "entry_point": entry,
        "dependencies": [],
    }
    if dps is not None:
        form["destination_passing_style"] = dps
    sources = [{"path": entry.partition("::")[0], "content": source}]
    return {"name": name, "definition": definition, "author": author, "spec": form, "sources": sources}


def read_traces(root: Path) -> list[dict[str, Any]]:
    """Return the traces below a set's root, file by file; each line has to be whole."""
    found = []
    for path in sorted((root / "traces").rglob("*.jsonl")):
        text = path.read_text()
        assert text.endswith("\n") or not text, f"{path}: the last line is not whole"
        found += [json.loads(line) for line in text.splitlines()]
    return found


def is_noise(job: dict[str, Any]) -> bool:
    """Tell whether a verdict came of a busy CPU, whose clock contradicted a time, or of Triton's interpreter."""
    reason = job.get("reason") or ""
    return job["status"] == "RUNTIME_ERROR" and (CONTRADICTED in reason or OLD_INTERPRETER in reason)


def statuses(document: dict[str, Any]) -> dict[str, str]:
    """Return solution → status of the jobs of `run --format json`, without noise; of several workloads the worst."""
    found: dict[str, str] = {}
    for job in document["jobs"]:
        if not is_noise(job) and found.get(job["solution"], "PASSED") == "PASSED":
            found[job["solution"]] = job["status"]
    return found


def assert_subset(expected: Any, found: Any, where: str = "") -> None:
    """Assert that all that is expected is there, with these values; further keys never fail."""
    if isinstance(expected, dict):
        assert isinstance(found, dict), f"{where}: {found!r} is no table"
        for key, value in expected.items():
            assert key in found, f"{where}.{key} is missing; there are {sorted(found)}"
            assert_subset(value, found[key], f"{where}.{key}")
    elif isinstance(expected, list):
        assert isinstance(found, list), f"{where}: {found!r} is no list"
        assert len(found) == len(expected), f"{where}: {len(found)} items, {len(expected)} expected: {found!r}"
        for place, (one, other) in enumerate(zip(expected, found, strict=True)):
            assert_subset(one, other, f"{where}[{place}]")
    else:
        assert found == expected, f"{where}: {found!r}, expected {expected!r}"


def assert_has(found: dict[str, Any], keys: str) -> None:
    """Assert that a table has all of these keys, which blanks separate."""
    missing = [key for key in keys.split() if key not in found]
    assert not missing, f"missing: {missing}; there are {sorted(found)}"


def wait_until(is_so: Any, limit_s: float = 300.0) -> None:
    """Poll until something holds."""
    end = time.monotonic() + limit_s
    while not is_so():
        assert time.monotonic() < end, "it did not come about in time"
        time.sleep(0.05)


def marked_processes(mark: str) -> list[int]:
    """Return the processes that bear a mark in their environment, as far as it can be read."""
    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                if f"{MARK}={mark}\0".encode() in (path / "environ").read_bytes():
                    found.append(int(path.name))
            except OSError:
                continue
    return found
