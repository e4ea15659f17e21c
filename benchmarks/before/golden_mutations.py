"""Seed changes of the public face, one at a time, in a copy of the tree, and see whether tests/golden finds each.

    python benchmarks/before/golden_mutations.py                     # all; the table is golden_mutations.json
    python benchmarks/before/golden_mutations.py --only speedup      # those whose name has this in it
    python benchmarks/before/golden_mutations.py --lanes 2           # two at once, each in a copy of its own

Each change is described by behaviour, so that it can be seeded again where the code looks otherwise. Without any change
the tests must pass: the first row is the copy as it is. A change that can no longer be made (its text is not there) is
an error, and the exit code is 1 where one was not made or not found.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import Queue

TREE = Path(__file__).resolve().parents[2]
RESULT = Path(__file__).with_suffix(".json")
COPIED = ("flashinfer_bench", "flashinfer-trace", "tests/golden", "pyproject.toml")
LIMIT_S = 900
PACKAGE = "flashinfer_bench/"


@dataclass(frozen=True)
class Change:
    """One seeded change: what is otherwise for a user, where, and which golden tests are asked."""

    name: str
    behaviour: str
    edits: tuple[tuple[str, str, str], ...]
    """(file below the package, text, other text); each place of the text is changed."""
    tests: tuple[str, ...]
    """Files below tests/golden/promised, and `-k` with its words."""


def one(file: str, old: str, new: str) -> tuple[tuple[str, str, str], ...]:
    """Return the edits of a change in one place."""
    return ((file, old, new),)


KINDS = ("test_golden_kinds.py",)
CHANGES = (
    Change(
        "tolerance_edge",
        "an element whose error is exactly what is allowed fails (>= in place of >)",
        one("bench/evaluators/compare/tolerance.py", "(error <= bounds_of(", "(error < bounds_of(")
        + one("bench/evaluators/compare/outputs.py", "one.score <= 1 for one", "one.score < 1 for one"),
        KINDS,
    ),
    Change(
        "too_few_outputs_status",
        "too few or too many outputs are INCORRECT_DTYPE, not INCORRECT_SHAPE",
        one("bench/runner/workers/claims.py", '"INCORRECT_SHAPE", f"returned', '"INCORRECT_DTYPE", f"returned'),
        KINDS,
    ),
    Change(
        "nan_like_nan",
        "NaN where the reference has NaN is wrong",
        one("bench/evaluators/compare/tolerance.py", " | (got.isnan() & expected.isnan())", ""),
        KINDS,
    ),
    Change(
        "speedup_inverted",
        "speedup_factor is the solution's latency over the reference's",
        one("bench/evaluators/default.py", "reference_ms / measured.latency_ms", "measured.latency_ms / reference_ms"),
        KINDS,
    ),
    Change(
        "reference_latency_missing",
        "a trace has no latency of the reference (0)",
        one("bench/evaluators/default.py", "reference_latency_ms=reference_ms", "reference_latency_ms=0.0"),
        KINDS,
    ),
    Change(
        "setup_not_counted",
        "the latency is that of run alone, without setup",
        one(
            "bench/runner/workers/timed/reported_time.py",
            "latency_ms, medians_ms = latency_ms + setup_ms,",
            "medians_ms =",
        ),
        KINDS,
    ),
    Change(
        "lowbit_ratio",
        "op type lowbit asks for a share of 0.9 of the elements, not 0.95",
        one("bench/evaluators/lowbit.py", "DEFAULT_MATCHED_RATIO: Final = 0.95", "DEFAULT_MATCHED_RATIO: Final = 0.9"),
        KINDS,
    ),
    Change(
        "document_key",
        "`run --format json` calls a job's reference_latency_ms otherwise",
        one("cli/outcome.py", '"reference_latency_ms"', '"reference_ms"'),
        KINDS,
    ),
    Change(
        "perf_column_dropped",
        "the CSV of perf has no column random_seed",
        one("cli/perf/results.py", "allow_output_mismatch random_seed", "allow_output_mismatch"),
        ("test_golden_perf.py", "-k", "csv"),
    ),
    Change(
        "perf_line",
        "[PERF] lines say `tflops` in place of `achieved tflops`",
        one("cli/perf/results.py", "achieved tflops {", "tflops {"),
        ("test_golden_perf.py", "-k", "lines_are"),
    ),
    Change(
        "perf_backends_form",
        "`--backends torch fa2 cudnn` is refused: one word only",
        one("cli/perf/flags.py", '"--backends", nargs="+", default=default', '"--backends", nargs=1, default=default'),
        ("test_golden_perf.py", "-k", "backends"),
    ),
    Change(
        "names_form",
        "`--definitions a b` is refused: one word only",
        one("cli/parser.py", '"nargs": "+", "metavar": "NAME"', '"nargs": 1, "metavar": "NAME"'),
        ("test_golden_config.py", "-k", "flags"),
    ),
    Change(
        "export_column_renamed",
        "the export calls roofline_share otherwise",
        one("data/sets/columns.py", '"roofline_share", "number"', '"roofline", "number"'),
        ("test_golden_reports.py", "-k", "export"),
    ),
    Change(
        "best_is_slowest",
        "get_best_trace gives the passing trace with the lowest speed-up",
        one("data/trace_set.py", "max(ranked, key=", "min(ranked, key="),
        ("test_golden_reports.py", "-k", "best_trace"),
    ),
    Change(
        "first_verdict_counts",
        "of several traces of one job the first counts, not the latest",
        one(
            "data/sets/latest.py",
            "                trace = whole[key]\n        latest[key] = trace\n",
            "                trace = whole[key]\n        latest[key] = before or trace\n",
        ),
        ("test_golden_reports.py",),
    ),
    Change(
        "interrupted_exit_code",
        "a run that Ctrl-C ends has exit code 1, not 130",
        one("cli/output.py", "INTERRUPTED: Final = 130", "INTERRUPTED: Final = 1"),
        ("test_golden_signals.py", "-k", "SIGINT"),
    ),
    Change(
        "misuse_exit_code",
        "misuse has exit code 1, not 2",
        one("errors.py", "exit_code = 2", "exit_code = 1"),
        ("test_golden_commands.py", "-k", "misuse"),
    ),
    Change(
        "fault_exit_code",
        "a run ends with 0 though a job has no verdict or a blob is missing",
        one("cli/outcome.py", "return FAILED if has_faults or (", "return FAILED if ("),
        ("test_golden_broken.py", "-k", "exit_code"),
    ),
    Change(
        "default_iterations",
        "the default of iterations is 30, not 50",
        one("bench/config_sources.py", "iterations: Iterations = 50", "iterations: Iterations = 30"),
        ("test_golden_config.py",),
    ),
    Change(
        "bundled_settings",
        "the bundled settings ask moe for a share of 0.9, not 0.95",
        one("bench/eval_config.yaml", "required_matched_ratio: 0.95", "required_matched_ratio: 0.9"),
        ("test_golden_config.py",),
    ),
    Change(
        "section_order",
        "a section of an op type beats that of a definition",
        one(
            "bench/config_sources.py",
            "SECTIONS: Final = (OP_TYPES, DEFINITIONS)",
            "SECTIONS: Final = (DEFINITIONS, OP_TYPES)",
        ),
        ("test_golden_config.py",),
    ),
    Change(
        "name_not_exported",
        "flashinfer_bench.data has no AxisSpec",
        one(
            "data/__init__.py", '"AxisConst", "AxisExpr", "AxisSpec", "AxisVar",', '"AxisConst", "AxisExpr", "AxisVar",'
        ),
        ("test_golden_models.py",),
    ),
    Change(
        "resume_judges_again",
        "--resume judges what is recorded and unchanged",
        one("bench/planning/resume.py", "trace=(timed or same)[-1][0]", "trace=None"),
        ("test_golden_evaluator.py", "-k", "configuration"),
    ),
    Change(
        "plug_in_asked_last",
        "an evaluator of the configuration is never asked",
        one("bench/evaluators/registry.py", "    _EVALUATORS[:0] = first\n", ""),
        ("test_golden_evaluator.py", "-k", "configuration"),
    ),
    Change(
        "task_status",
        "a task of the server whose workloads all have a verdict is `failed`, not `completed`",
        one("serve/tasks.py", '"completed" if is_completed else "failed"', '"failed"'),
        ("test_golden_serve.py", "-k", "task_is_completed"),
    ),
)


def copy_tree(to: Path) -> Path:
    """Copy what the golden tests need; compiled files stay valid."""
    for part in COPIED:
        source = TREE / part
        (to / part).parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if source.is_dir() else shutil.copy2)(source, to / part)
    return to


def run_tests(copy: Path, tests: tuple[str, ...]) -> tuple[list[str], int, str]:
    """Run some golden tests in a copy; return which failed, the exit code of pytest, and the end of what it said."""
    files = [f"tests/golden/promised/{word}" if word.endswith(".py") else word for word in tests]
    base = Path(tempfile.mkdtemp(dir=copy.parent))
    command = [
        sys.executable, "-m", "pytest", *files, "-x", "-q", "--confcutdir=tests/golden", "-p", "no:cacheprovider",
        "--tb=line", f"--basetemp={base}",
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(copy)}
    try:
        done = subprocess.run(
            command, cwd=copy, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
    finally:
        shutil.rmtree(base, ignore_errors=True)
    failed = re.findall(r"^(?:FAILED|ERROR) \S*?::(\S+)", done.stdout, re.MULTILINE)
    return failed, done.returncode, done.stdout[-1500:]


def seed(copy: Path, change: Change) -> dict[Path, bytes]:
    """Make a change in a copy; return the files as they were."""
    before: dict[Path, bytes] = {}
    for file, old, new in change.edits:
        path = copy / PACKAGE / file
        before.setdefault(path, path.read_bytes())
        text = path.read_text()
        if old not in text:
            restore(before)
            raise LookupError(f"{file} has no {old!r}")
        path.write_text(text.replace(old, new))
        mark(path)
    return before


def restore(before: dict[Path, bytes]) -> None:
    """Take a change back."""
    for path, content in before.items():
        path.write_bytes(content)
        mark(path)


def mark(path: Path) -> None:
    """Give a file a time that no compiled file has."""
    stamp = time.time_ns() % 10**9
    os.utime(path, (stamp, stamp))


def try_change(copy: Path, change: Change) -> dict[str, object]:
    """Seed one change, run the tests that are to find it, and take it back."""
    row: dict[str, object] = {"name": change.name, "behaviour": change.behaviour, "tests": " ".join(change.tests)}
    begun = time.monotonic()
    try:
        before = seed(copy, change)
    except (LookupError, OSError) as error:
        return row | {"outcome": f"not made: {error}"}
    try:
        failed, code, said = run_tests(copy, change.tests)
    finally:
        restore(before)
    is_found = code == 1 and bool(failed)
    row |= {
        "outcome": "found" if is_found else "NOT FOUND",
        "failed": failed,
        "seconds": round(time.monotonic() - begun),
    }
    return row if is_found else row | {"said": said}


def write_rows(rows: list[dict[str, object]]) -> None:
    """Write the table; rows of changes that were not tried now stay."""
    known = json.loads(RESULT.read_text())["changes"] if RESULT.exists() else []
    found = {(row["name"], row["tests"]): row for row in known} | {(row["name"], row["tests"]): row for row in rows}
    RESULT.write_text(json.dumps({"python": sys.version.split()[0], "changes": list(found.values())}, indent=1) + "\n")


def main() -> int:
    """Try the changes; print a row each; write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="only changes whose name has this in it")
    parser.add_argument("--lanes", type=int, default=1, help="how many at once")
    parser.add_argument(
        "--unchanged", action="store_true", help="run the tests of these changes without any change, too"
    )
    args = parser.parse_args()
    chosen = [change for change in CHANGES if args.only in change.name]
    with tempfile.TemporaryDirectory(prefix="golden-mutations-") as above:
        copies: Queue[Path] = Queue()
        for lane in range(args.lanes):
            copies.put(copy_tree(Path(above) / str(lane) / "tree"))
        rows: list[dict[str, object]] = []
        if args.unchanged:
            for tests in dict.fromkeys(change.tests for change in chosen):
                failed, code, _ = run_tests(Path(above) / "0" / "tree", tests)
                rows.append(
                    {
                        "name": "unchanged",
                        "tests": " ".join(tests),
                        "outcome": "passed" if not code else "FAILED",
                        "failed": failed,
                    }
                )
                print(rows[-1], flush=True)

        def attempt(change: Change) -> dict[str, object]:
            copy = copies.get()
            try:
                row = try_change(copy, change)
            finally:
                copies.put(copy)
            print(f"{row['outcome']:<10} {change.name}: {row.get('failed', '')}", flush=True)
            return row

        with ThreadPoolExecutor(args.lanes) as lanes:
            rows += list(lanes.map(attempt, chosen))
    write_rows(rows)
    return 0 if all(row["outcome"] in ("found", "passed") for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
