"""The GPU oracle: what trust and speed were before a change, and are after it. Frozen: later work runs it as it is.

    python benchmarks/before/oracle.py --short --output FILE               at most 6 minutes of one H100
    python benchmarks/before/oracle.py --full --part 1 --output FILE       parts 1 to 4, each below 9 minutes
    python benchmarks/before/oracle.py --short --against OLD_CHECKOUT --output FILE    cost only, both in turns
    python benchmarks/before/oracle.py --short --device cpu --tiny --output FILE       does the script work here?

It judges the engine through its executable (`python -m flashinfer_bench run`) and through `run_exploits.py`. The engine
is that of --checkout, by default of the checkout that holds this file. Sets and attacks are always of the checkout that
holds this file. So a worktree of this commit can judge any later tree: `--checkout LATER_TREE`.

Each figure is one JSON line, appended to --output as soon as it is known, with the facts of the host. Figures:

    import              I: seconds of `import torch`, the median of three fresh processes
    attacks             credited attacks; 0 is good. Details: the largest gains, twins that did not pass
    identical           share of pairs of identical solutions within 1.5 %, the worst pair, each kernel's latencies
    references          the worst speed-up of a reference as its own solution; 1 is right
    norms-8x8 ...       seconds of a whole command, with seconds a job, the first and the last verdict, and statuses
    ... in turns        with --against: seconds of this checkout as a share of the other's (medians)

A row begins with a run that is not counted, so that kernels are compiled; the counted run times all references anew.
Exit codes: 0 done and nothing odd, 1 a figure is odd (`is_odd`), 2 the arguments or the machine do not fit.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from itertools import combinations
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final

HOME: Final = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(HOME))
from benchmarks.kit import sets  # noqa: E402 - the path comes first
from benchmarks.kit.commands import calibrate, measure_import  # noqa: E402 - likewise
from benchmarks.kit.sets import BATCHES_OF_8, BATCHES_OF_32, REFERENCE_MS  # noqa: E402 - likewise
from benchmarks.repeatability import KERNELS, make_trace_set  # noqa: E402 - likewise

PARTS: Final = 4
LIMIT_S: Final = 500
"""One command may take so long."""
VERDICT: Final = re.compile(r"\[ *\d+/\d+\]")
"""How the progress on stderr tells a verdict; where it does not, first and last verdict are unknown."""
SHORT_ATTACKS: Final = (
    *("gpu_slow_clock", "gpu_slow_clock_small", "gpu_slow_clock_tiny", "gpu_slow_clock_row", "gpu_all_in_one"),
    *("gpu_all_in_one_large", "gpu_records_of_a_move", "gpu_told_as_waiting", "gpu_stale_memory", "gpu_every_other"),
    *("gpu_zeros", "some_rows_of_squares_after_a_look_on_gpu"),
)
FIRST_CLASSES: Final = ("forged_readings", "native")
OTHER_CLASSES: Final = ("predictable_inputs", "replay", "two_behaviours", "wrong_outputs")
TINY_ATTACKS: Final = ("identity", "every_other")
SHORT_KERNELS: Final = ("add_256k", "layer_norm_256k", "softmax_2m", "matmul_2k", "chain_12", "rms_64")
TINY_KERNELS: Final = ("add_16k", "layer_norm_256k")
COPIES: Final = 6
WITHIN: Final = 0.015
TINY_OP_TYPE: Final = "rmsnorm"


@dataclass(frozen=True)
class Command:
    """One `run`, from the start of its process to its end."""

    wall_s: float
    first_s: float | None
    last_s: float | None
    document: dict[str, Any]
    error: str

    @property
    def jobs(self) -> list[dict[str, Any]]:
        """The jobs that have verdicts."""
        found: list[dict[str, Any]] = self.document.get("jobs", [])
        return found

    def details(self) -> dict[str, Any]:
        """Return what is told of the command beside its wall time."""
        count, seconds = len(self.jobs), [job["seconds"] for job in self.jobs if job.get("seconds") is not None]
        is_told = self.first_s is not None and self.last_s is not None and count > 1
        between_s = (self.last_s - self.first_s) / (count - 1) if is_told else None  # type: ignore[operator]
        return {
            "jobs": count,
            "first_verdict_s": shorten(self.first_s),
            "last_verdict_s": shorten(self.last_s),
            "s_a_job": shorten(between_s, 4),
            "job_s_mean": shorten(fmean(seconds) if seconds else None, 4),
            "job_s_median": shorten(median(seconds) if seconds else None, 4),
            "statuses": dict(Counter(job["status"] for job in self.jobs)),
            "faults": [fault.get("message", "")[:300] for fault in self.document.get("faults", [])][:5],
            "skipped": len(self.document.get("skipped", [])),
            "error": self.error,
        }

    def odd(self, made: sets.MadeSet) -> list[str]:
        """Return why it did not end well, and which verdicts are not the expected ones."""
        seen = {(job["definition"], job["solution"], job["workload"]): job["status"] for job in self.jobs}
        expected = made.expected if made.expected is not None else dict.fromkeys(seen, "PASSED")
        odd = [f"{' / '.join(job)}: {seen.get(job)}, expected: {status}" for job, status in expected.items()
               if seen.get(job) != status]  # fmt: skip
        return ([self.error] if self.error else []) + ([] if seen else ["no verdicts"]) + odd[:5]


class Oracle:
    """Takes figures and writes them down.

    Args:
        asked: the command line.
        folder: for sets and caches.
    """

    def __init__(self, asked: argparse.Namespace, folder: Path) -> None:
        self.asked = asked
        self.folder = folder
        self.is_tiny, self.device = asked.tiny, "cpu" if asked.device == "cpu" else "0"
        self.is_odd = False
        self.import_s = measure_import()
        self.host = tell_host(asked)
        self._begin_s = time.monotonic()
        self.write("import", self.import_s, "s", {})

    def write(self, figure: str, value: float | None, unit: str, details: dict[str, Any], *, odd: object = ()) -> None:
        """Append a figure to the file."""
        self.is_odd |= bool(odd)
        line = {"figure": figure, "value": shorten(value, 4), "unit": unit, "is_odd": bool(odd), "details": details}
        line |= {"odd": odd} if odd else {}
        line |= {"at_s": round(time.monotonic() - self._begin_s, 1), "import_s": round(self.import_s, 3)}
        line |= {"load": os.getloadavg()[0], "host": self.host}
        with self.asked.output.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        print(f"{line['at_s']:6.0f} s  {figure}: {line['value']} {unit}{'  ODD' if odd else ''}", flush=True)

    def empty(self, prefix: str) -> Path:
        """Make an empty folder."""
        return Path(tempfile.mkdtemp(prefix=f"{prefix}_", dir=self.folder))

    def run(self, root: Path, *flags: str, cache: Path | None, checkout: Path | None = None) -> Command:
        """Run a set by the executable; nothing is saved."""
        given = ("--local", str(root), "--no-save-results", "--format", "json", "--devices", self.device)
        return run_command(checkout or self.asked.checkout, *given, *flags, cache=cache)

    def cost(self, name: str, make: Callable[[Path], sets.MadeSet], *, quick: bool = False, own: bool = False) -> None:
        """Take a row of cost.

        Args:
            name: of the figure.
            make: writes the set into a folder.
            quick: the run before is a short one, on one workload of each solution.
            own: what is built lies in this user's cache.
        """
        made = make(self.empty("set"))
        before = ("--quick", "--workloads", "w00") if quick else ("--quick",) if own else ()
        ways: list[tuple[str, Path, tuple[str, ...]]] = [("this", self.asked.checkout, ())]
        ways += [("full", self.asked.checkout, ("--assurance", "full"))] if self.asked.both_levels else []
        ways += [("other", self.asked.against, ())] if self.asked.against else []
        caches = {checkout: None if own else self.empty("cache") for _, checkout, _ in ways}
        for label, checkout, _ in ways:
            if label == "full":
                continue
            first = self.run(made.root, *before, cache=caches[checkout], checkout=checkout)
            if first.error:
                self.write(f"{name} before, {label}", first.wall_s, "s", first.details(), odd=[first.error])
        taken: dict[str, list[float]] = {label: [] for label, _, _ in ways}
        for _ in range(self.asked.turns if len(ways) > 1 else 1):
            for label, checkout, flags in ways:
                done = self.run(made.root, "--fresh-baselines", *flags, cache=caches[checkout], checkout=checkout)
                odd = done.odd(made)
                taken[label] += [] if odd else [done.wall_s]
                said = name if len(ways) == 1 else f"{name} {label}"
                over_s = round(done.wall_s - self.import_s, 2)
                self.write(said, done.wall_s, "s", {"over_import_s": over_s, **done.details()}, odd=odd)
            ways.reverse()
        for label in set(taken) - {"other"} if self.asked.against and all(taken.values()) else ():
            share = median(taken[label]) / median(taken["other"])
            self.write(f"{name} {label} in turns", share, "of the other's seconds", taken)

    def slow_reference(self) -> None:
        """A reference of 24 ms on 47 workloads; then once more with the baselines that were kept."""
        width, rows = (
            (256, range(64, 80, 8)) if self.is_tiny else (4096, range(2048, 2048 + 8 * sets.SLOW_WORKLOADS, 8))
        )
        milliseconds = REFERENCE_MS / 12 if self.is_tiny else REFERENCE_MS
        steps = calibrate(milliseconds, rows[len(rows) // 2], width)
        make = partial(sets.slow_reference, steps=steps, width=width, rows=rows)
        if self.asked.against:
            self.cost("slow-reference", make, quick=True)
            return
        made, cache = make(self.empty("set")), self.empty("cache")
        for name in ("slow-reference", "slow-reference with kept baselines"):
            done = self.run(made.root, cache=cache)
            self.write(name, done.wall_s, "s", done.details(), odd=done.odd(made))

    def attacks(self, *flags: str) -> None:
        """Try attacks; each that is credited at first is tried once more. Names that the suite lacks are left out."""
        flags = ("--only", *TINY_ATTACKS) if self.is_tiny else flags
        command = [sys.executable, "benchmarks/run_exploits.py", "--device", self.asked.device]
        command += ["--portable"] if self.asked.device == "cuda" else []
        listed = subprocess.run([*command, "--list"], cwd=HOME, capture_output=True, text=True, check=True).stdout
        known = {word for line in listed.splitlines() for word in line.split()[:2]}
        missing = [word for word in flags[1:] if word not in known]
        command += [flags[0], *(word for word in flags[1:] if word in known), "--again", "1", "--format", "json"]
        command += ["--package", str(self.asked.checkout / "flashinfer_bench")]
        begin_s = time.monotonic()
        done = subprocess.run(command, cwd=HOME, stdout=subprocess.PIPE, text=True, check=False)
        seconds = round(time.monotonic() - begin_s, 1)
        if done.returncode not in (0, 1) or not done.stdout.strip():
            self.write("attacks", None, "credited", {"seconds": seconds}, odd=[f"it ended with {done.returncode}"])
            return
        document = json.loads(done.stdout)
        tried = document["attacks"]
        credited = {one["name"]: one["credited_for"] for one in tried if one["credited_for"]}
        twins = {one["name"]: one["twin"] for one in tried if one["twin"] != "PASSED"}
        gains = {one["name"]: shorten(one["gain"]) for one in tried if one["gain"] is not None}
        largest = dict(sorted(gains.items(), key=lambda item: -item[1])[:12])
        passed = sorted(one["name"] for one in tried if "PASSED" in one["statuses"])
        details = {"tried": len(tried), "seconds": seconds, "credited": credited, "twins": twins, "gains": largest}
        details |= {"passed": passed, "left_out": document["left_out"], "flags": flags, "missing": missing}
        self.write("attacks", len(credited), "credited", details, odd=[*credited, *twins])

    def identical(self, names: Sequence[str], copies: int) -> None:
        """Time identical solutions, each in a worker of its own, and hold each pair of a kernel against each other."""
        root = self.empty("identical")
        made = make_trace_set(list(names), copies, 1)
        for name, definition in made.definitions.items():
            write(root / "definitions" / definition.op_type / f"{name}.json", dump(definition))
            lines = "".join(f"{dump(trace)}\n" for trace in made.workloads[name])
            write(root / "workloads" / definition.op_type / f"{name}.jsonl", lines)
            for solution in made.solutions[name]:
                folder = root / "solutions" / solution.author / definition.op_type / name
                write(folder / f"{solution.name}.json", dump(solution))
        done = self.run(root, "--no-profile-baseline", cache=self.empty("cache"))
        kernels: dict[str, list[float]] = {name: [] for name in names}
        for job in done.jobs:
            flags = (job.get("timing") or {}).get("flags") or {}
            if job["latency_ms"] is not None and "throttled" not in flags:
                kernels[job["definition"]].append(job["latency_ms"] * 1e3)
        off = [abs(a / b - 1) for latencies in kernels.values() for a, b in combinations(latencies, 2)]
        spreads = {name: shorten(max(us) / min(us) - 1, 4) for name, us in kernels.items() if us}
        details = {
            "pairs": len(off),
            "worst": shorten(max(off, default=None), 4),
            "spreads": spreads,
            "latencies_us": {name: [shorten(one, 4) for one in us] for name, us in kernels.items()},
            "wall_s": round(done.wall_s, 2),
            **done.details(),
        }
        within = sum(one <= WITHIN for one in off) / len(off) if off else None
        self.write("identical", within, "of pairs within 1.5 %", details, odd=done.odd(sets.MadeSet(root, None)))

    def references(self) -> None:
        """Judge each reference of the bundled set as its own solution, on the first workload."""
        root = self.empty("references")
        shutil.copytree(sets.BUNDLED / "blob", root / "blob")
        count = 0
        for file in sorted((sets.BUNDLED / "definitions").rglob("*.json")):
            definition = json.loads(file.read_text(encoding="utf-8"))
            op_type, name = definition["op_type"], definition["name"]
            if self.is_tiny and op_type != TINY_OP_TYPE:
                continue
            first = (sets.BUNDLED / "workloads" / op_type / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()[0]
            spec = {"language": "python", "target_hardware": ["cuda", "cpu"], "entry_point": "main.py::run"}
            source = {"path": "main.py", "content": definition["reference"]}
            solution = {"name": f"reference_{name}", "definition": name, "author": "reference", "sources": [source]}
            solution["spec"] = {**spec, "destination_passing_style": False}
            write(root / "definitions" / op_type / f"{name}.json", json.dumps(definition))
            write(root / "workloads" / op_type / f"{name}.jsonl", f"{first}\n")
            folder = root / "solutions" / "reference" / op_type / name
            write(folder / f"reference_{name}.json", json.dumps(solution))
            count += 1
        done = self.run(root, "--fresh-baselines", cache=self.empty("cache"))
        speedups = {job["definition"]: job["speedup"] for job in done.jobs if job["speedup"]}
        caveats = {job["definition"]: job["timing_caveat"] for job in done.jobs if job.get("timing_caveat")}
        flags = {job["definition"]: sorted((job.get("timing") or {}).get("flags") or {}) for job in done.jobs}
        worst = max(speedups.values(), key=lambda one: abs(one - 1), default=None)
        details = {"speedups": {name: shorten(one, 4) for name, one in speedups.items()}, "flags": flags}
        details |= {"caveats": caveats, "wall_s": round(done.wall_s, 2), **done.details()}
        odd = done.odd(sets.MadeSet(root, None)) + ([] if len(speedups) == count else [f"{len(speedups)} of {count}"])
        self.write("references", worst, "speed-up, the worst", details, odd=odd)


def run_command(checkout: Path, *flags: str, cache: Path | None) -> Command:
    """Run `flashinfer_bench run` of a checkout in a fresh process, and note when verdicts are told on stderr."""
    environment = environment_for(checkout) | ({"FIB_CACHE_PATH": str(cache)} if cache is not None else {})
    told_s: list[float] = []
    tail: list[str] = []
    with tempfile.TemporaryFile("w+", encoding="utf-8") as stdout:
        begin_s = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-m", "flashinfer_bench", "run", *flags],
            cwd=checkout, env=environment, stdout=stdout, stderr=subprocess.PIPE, text=True, errors="replace",
        )  # fmt: skip
        timer = threading.Timer(LIMIT_S, process.kill)
        timer.start()
        for line in process.stderr or ():
            if VERDICT.match(line):
                told_s.append(time.monotonic() - begin_s)
            tail = [*tail[-19:], line]
        code = process.wait()
        wall_s = time.monotonic() - begin_s
        timer.cancel()
        stdout.seek(0)
        text = stdout.read()
    # A set with a wrong solution, or one that a machine cannot run, ends with another code than 0.
    try:
        document = json.loads(text)
        error = ""
    except ValueError:
        document, error = {}, f"it ended with {code} after {wall_s:.0f} s: {''.join(tail)[-1500:]}"
    return Command(wall_s, told_s[0] if told_s else None, told_s[-1] if told_s else None, document, error)


def environment_for(checkout: Path) -> dict[str, str]:
    """Return an environment in which the package of a checkout is the one that is imported."""
    path = [str(checkout), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(path)}


def why_no_checkout(checkout: Path) -> str:
    """Say why the engine of a checkout cannot be run; empty where it can."""
    command = [sys.executable, "-c", "import flashinfer_bench; print(flashinfer_bench.__file__)"]
    done = subprocess.run(
        command, cwd=checkout, env=environment_for(checkout), capture_output=True, text=True, check=False
    )
    found = Path(done.stdout.strip() or "/").resolve()
    return "" if found.is_relative_to(checkout) else f"{checkout}: the package that is imported there is {found}"


def tell_host(asked: argparse.Namespace) -> dict[str, Any]:
    """Return the facts of the host and of the checkout."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    gpu, driver = "", ""
    if asked.device == "cuda":
        first = subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()[0]
        gpu, driver = (part.strip() for part in first.split(","))
    facts: dict[str, Any] = {name: find_version(name) for name in ("torch", "triton", "cupti-python")}
    facts |= {"gpu": gpu, "driver": driver, "python": sys.version.split()[0], "cores": len(os.sched_getaffinity(0))}
    facts |= {"commit": asked.commit or find_commit(asked.checkout), "package": digest(asked.checkout)}
    facts |= {"oracle": find_commit(HOME), "time": time.strftime("%Y-%m-%dT%H:%M:%S%z")}
    if asked.against:
        facts |= {"other_commit": find_commit(asked.against), "other_package": digest(asked.against)}
    return facts


def find_version(package: str) -> str | None:
    """Return the version of an installed package."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def find_commit(checkout: Path) -> str:
    """Return the commit of a checkout, with a plus where files differ from it; empty where there is no repository."""
    git = ["git", "-C", str(checkout)]
    try:
        done = subprocess.run([*git, "rev-parse", "--short=8", "HEAD"], capture_output=True, text=True, check=False)
        state = [*git, "status", "--porcelain", "--", "flashinfer_bench"]
        changed = subprocess.run(state, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        return ""
    return done.stdout.strip() + ("+" if changed else "")


def digest(checkout: Path) -> str:
    """Return a short digest of the files of a checkout's package, which tells trees apart where there is no git."""
    found = hashlib.sha256()
    for file in sorted((checkout / "flashinfer_bench").rglob("*")):
        if file.is_file() and "__pycache__" not in file.parts:
            found.update(str(file.relative_to(checkout)).encode() + b"\0" + file.read_bytes())
    return found.hexdigest()[:12]


def dump(model: Any) -> str:
    """Return a model of the public schema as JSON."""
    return str(model.model_dump_json(exclude_none=True))


def write(path: Path, text: str) -> None:
    """Write a file, with its folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def shorten(value: float | None, digits: int = 3) -> float | None:
    """Return a number with few digits after the point."""
    return None if value is None else round(value, digits)


def list_steps(oracle: Oracle) -> Iterator[tuple[str, int, Callable[[], None]]]:
    """Yield name, part and step of all that can be taken, in order; the short form takes part 0."""
    tiny = oracle.is_tiny
    eight = partial(sets.python, solutions=2, batches=(1, 2)) if tiny else None
    eight = eight or partial(sets.triton, solutions=8, batches=BATCHES_OF_8)
    many = partial(sets.python, solutions=2, batches=(1, 2, 3)) if tiny else None
    many = many or partial(sets.triton, solutions=16, batches=BATCHES_OF_32)
    norms = partial(sets.verdicts, batches=(1, 16, 64, 256, 1024))
    products = partial(sets.gemm, batches=(1,) if tiny else (1, 16, 128, 1024))
    bundled: Callable[[Path], sets.MadeSet] = lambda _root: sets.MadeSet(sets.BUNDLED, None)  # noqa: E731 - one of many
    few, kernels = (2, TINY_KERNELS) if tiny else (COPIES, SHORT_KERNELS)
    if not oracle.asked.against:
        yield "attacks", 0, partial(oracle.attacks, "--only", *SHORT_ATTACKS)
        yield "attacks", 1, partial(oracle.attacks, "--class", *FIRST_CLASSES)
        yield "attacks", 2, partial(oracle.attacks, "--class", *OTHER_CLASSES)
        yield "identical", 0, partial(oracle.identical, kernels, few)
        yield "identical", 1, partial(oracle.identical, kernels if tiny else list(KERNELS), few)
        yield "references", 0, oracle.references
        yield "references", 3, oracle.references
    yield "norms-8x8", 0, partial(oracle.cost, "norms-8x8", eight)
    yield "norms-8x8", 3, partial(oracle.cost, "norms-8x8", eight)
    if oracle.device != "cpu":
        for part in (0, 3) if oracle.asked.against else (3,):
            yield "norms-4x5", part, partial(oracle.cost, "norms-4x5", norms)
            yield "products-2x4", part, partial(oracle.cost, "products-2x4", products)
            yield "sampler", part, partial(oracle.cost, "sampler", sets.sampler)
    yield "norms-16x32", 1 if oracle.asked.against else 3, partial(oracle.cost, "norms-16x32", many, quick=True)
    yield "slow-reference", 2 if oracle.asked.against else 1, oracle.slow_reference
    if oracle.device != "cpu" and not oracle.asked.against:
        yield "bundled", 4, partial(oracle.cost, "bundled", bundled, own=True)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    form = parser.add_mutually_exclusive_group(required=True)
    form.add_argument("--short", action="store_true", help="at most 6 minutes of one H100")
    form.add_argument("--full", action="store_true", help="everything; about 25 minutes")
    parser.add_argument("--part", type=int, choices=range(1, PARTS + 1), help="with --full: only this part")
    parser.add_argument("--only", nargs="+", metavar="STEP", help="only these steps, such as attacks or norms-8x8")
    parser.add_argument("--output", type=Path, required=True, help="file to append JSON lines to")
    parser.add_argument("--checkout", type=Path, default=HOME, help="whose engine is judged (default: this one's)")
    parser.add_argument("--against", type=Path, metavar="CHECKOUT", help="take the rows of cost in turns with another")
    parser.add_argument("--both-levels", action="store_true", help="take each row of cost at full assurance, too")
    parser.add_argument("--turns", type=int, default=2, help="with --against: pairs of each row (default: %(default)s)")
    parser.add_argument("--commit", help="name of the checkout's commit, where there is no git")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--tiny", action="store_true", help="tiny sets; on a CPU they are needed")
    asked = parser.parse_args(arguments)
    asked.checkout, asked.output = asked.checkout.resolve(), asked.output.resolve()
    asked.against = asked.against and asked.against.resolve()
    if asked.part and asked.short:
        parser.error("--part goes with --full")
    if asked.device == "cpu" and not asked.tiny:
        parser.error("--device cpu needs --tiny")
    for checkout in filter(None, (asked.checkout, asked.against)):
        if why := why_no_checkout(checkout):
            parser.error(why)
    return asked


def main(arguments: Sequence[str] | None = None) -> int:
    """Take the figures."""
    asked = parse(arguments)
    asked.output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="oracle_") as folder:
        oracle = Oracle(asked, Path(folder))
        for name, part, step in list_steps(oracle):
            is_asked = part == 0 if asked.short else part > 0 and asked.part in (None, part)
            if not is_asked or (asked.only and name not in asked.only):
                continue
            try:
                step()
            except Exception as error:
                oracle.write(name, None, "", {}, odd=[f"{type(error).__name__}: {error}"[:1500]])
        oracle.write("done", time.monotonic() - oracle._begin_s, "s", {})
    return int(oracle.is_odd)


if __name__ == "__main__":
    sys.exit(main())
