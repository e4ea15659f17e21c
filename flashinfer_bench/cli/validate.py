"""`validate`: reports all problems and gaps of a trace set. `validate-render` prints a written report again.

Five checks read files and run no code of the set. Two more checks judge solutions (`validate_by_judging.py`). All
findings are one document, which is printed as text, or written as JSON. `validate-render` reads the JSON.
"""

from __future__ import annotations

import json
import os
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from flashinfer_bench.base.files.reading import read_whole
from flashinfer_bench.base.files.writing import open_folder
from flashinfer_bench.base.printable import to_printable
from flashinfer_bench.cli.args import (
    choose_definitions,
    describe_issues,
    find_output,
    has_nothing,
    load_trace_set,
    without_unread,
)
from flashinfer_bench.cli.github import Annotation
from flashinfer_bench.cli.output import FAILED, RAN, write_err, write_out
from flashinfer_bench.cli.parser import GITHUB_FLAG, Parser, add_flags, add_format, add_local, add_names
from flashinfer_bench.cli.tables import count, list_counts, some
from flashinfer_bench.data import LoadIssue, TraceSet
from flashinfer_bench.data.check import Asked, find_entry_issues, find_input_issues, find_reference_issues, parts_below
from flashinfer_bench.data.evaluation import as_time
from flashinfer_bench.data.generated import is_generated
from flashinfer_bench.data.names import did_you_mean
from flashinfer_bench.data.sets.removal import find_orphans, is_served, remove_traces
from flashinfer_bench.data.sets.results import find_latest
from flashinfer_bench.data.store import layout
from flashinfer_bench.data.store.jsonl import MOST_JSON_BYTES
from flashinfer_bench.errors import DataSetError, UsageError

FORMAT_VERSION: Final = 1
"""Version of the report. 1: the first."""
CHECKS: Final = ("layout", "definition", "workload", "solution", "trace", "baseline", "benchmark")
"""Kinds of checks. The first five checks read files. The last two checks judge solutions."""
FILE_CHECKS: Final = CHECKS[:5]
FOLDERS: Final = {
    layout.DEFINITIONS: "definition",
    Path(layout.TOLERANCES_FILE).stem: "definition",
    layout.WORKLOADS: "workload",
    layout.BLOB: "workload",
    layout.SOLUTIONS: "solution",
    layout.TRACES: "trace",
}
"""Entry of the root → the check that reports problems of the entry."""
COUNTED: Final = ("definition", "solution", "workload", "trace")
REPORT_FILES: Final = {"json": "report.json", "text": "report.txt"}
"""Output → file in the output folder."""
OUTPUTS: Final = ("stdout", *REPORT_FILES)


def declare_validate(parser: Parser) -> None:
    """Add the help and the flags of the command."""
    parser.describe(
        "Show every error and warning of a trace set: file, line, field, reason; and what it does not cover.\n"
        "Exit codes: 0 no errors, 1 errors, 2 usage error.",
        example="validate --local flashinfer-trace",
        execute=execute,
    )
    add_local(parser, flags=("--local", "--dataset"))
    add_names(parser, "--checks", f"of {', '.join(CHECKS)} (default: the first five)")
    add_names(parser, "--definitions")
    add_names(parser, "--op-types")
    flags = {
        "--disable-gpu": "run the checks baseline and benchmark on the CPU",
        "--baseline-author NAME": "author whose solutions benchmark judges (default: %(default)s)",
    }
    add_flags(parser, flags, baseline_author="baseline")
    add_names(parser, "--outputs", "of stdout, json, text (default: stdout; with a folder all)")
    add_flags(parser, {"--prune": "remove traces whose definition, solution or workload is gone"})
    add_flags(parser, {"--output-folder DIR": f"folder for {' and '.join(REPORT_FILES.values())}"})
    add_format(parser)
    add_flags(parser, GITHUB_FLAG)


def declare_validate_render(parser: Parser) -> None:
    """Add the help and the arguments of the command."""
    parser.describe(
        "Print a report of `validate --outputs json` as text.\n"
        "Exit codes are those of validate: 1 if the report has errors.",
        example="validate-render report.json",
        execute=execute_render,
    )
    add_flags(parser, {"REPORT": "the report.json"})


def execute(args: Namespace) -> int:
    """Run the checks, write the findings, and return 1 if there are errors."""
    checks = _known("--checks", args.checks or FILE_CHECKS, CHECKS)
    outputs = _known("--outputs", args.outputs or (OUTPUTS if args.output_folder else OUTPUTS[:1]), OUTPUTS)
    if not args.output_folder and outputs != ["stdout"]:
        raise UsageError("--outputs json and text are files: give --output-folder, too")
    if args.output_folder:
        try:
            folder = find_output(args.output_folder, args)
            with open_folder(folder.path, folder.root):
                pass
        except OSError as error:
            raise UsageError(f"--output-folder: {args.output_folder}: {error.strerror}") from error
    if args.prune and (args.definitions or args.op_types):
        raise UsageError("--prune is about the whole set: leave out --definitions and --op-types")
    trace_set = load_trace_set(args)
    if has_nothing(trace_set):  # then a root without definitions is an error in the report
        empty = [replace(one, severity="error") if one.missing_definition == "" else one for one in trace_set.issues]
        trace_set.issues = empty
    report = _validate(trace_set, checks, args)
    refusal = _why_not_pruned(trace_set) if args.prune else ""
    if args.prune and not refusal:
        removed = remove_traces(trace_set, find_orphans(trace_set))
        report["pruned"] = {_to_text(file): number for file, number in removed.items()}
    texts = {"text": render_report(report), "json": json.dumps(report, indent=2) + "\n"}
    if "stdout" in outputs:
        write_out(texts["json" if args.format == "json" else "text"])
    if args.github:
        found = [Annotation(one.severity, one.text, "", one.file, one.line) for one in _issues_of(report)]
        args.github.annotations = found
        args.github.count = args.github.summary = texts["text"].splitlines()[-1]
    for output in (one for one in REPORT_FILES if one in outputs):
        file = Path(args.output_folder) / REPORT_FILES[output]
        find_output(file, args).write(texts[output])
        write_err(f"report: {file}")
    if refusal:
        raise DataSetError(refusal)
    return _exit_code(report)


def execute_render(args: Namespace) -> int:
    """Print a report that `validate` wrote; return 1 if the report has errors.

    Raises:
        UsageError: the file cannot be read, or is no report of `validate`.
    """
    try:
        report = json.loads(read_whole(Path(args.report), MOST_JSON_BYTES).decode("utf-8-sig"))
        text, code = render_report(report), _exit_code(report)
    except OSError as error:
        raise UsageError(f"{args.report}: cannot be read: {error.strerror}") from error
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise UsageError(f"{args.report}: no report of `validate`: {error!r}") from error
    write_out(text)
    return code


def render_report(report: Mapping[str, Any]) -> str:
    """Render a report: errors, warnings, results of judging, gaps of the set, and the counts in the last line."""
    if report["version"] != FORMAT_VERSION:
        raise ValueError(f"its version is {report['version']!r}")
    issues = _issues_of(report)
    lines = describe_issues(issues, shown_warnings=len(issues))
    for check in dict.fromkeys(job["check"] for job in report["jobs"]):
        statuses = Counter(job["status"] for job in report["jobs"] if job["check"] == check)
        lines.append(f"{check}: {count(statuses.total(), 'job')}: {list_counts(statuses)}")
    coverage, total = report["coverage"], count(report["definitions"], "definition")
    if bare := coverage["without_workloads"]:
        lines.append(f"coverage: {len(bare)} of {total} without workloads: {some(bare)}")
    bare = coverage["without_baseline"]
    if 0 < len(bare) < report["definitions"]:  # not if the set never uses this author
        whose = f"without a solution of the baseline author {coverage['baseline_author']!r}"
        lines.append(f"coverage: {len(bare)} of {total} {whose}: {some(bare)}")
    if open_uuids := coverage["not_passed"]:
        of = [f"{name} ({len(uuids)})" for name, uuids in open_uuids.items()]
        workloads = f"{sum(map(len, open_uuids.values()))} of {count(report['workloads'], 'workload')}"
        lines.append(f"coverage: no solution passed {workloads}: {some(of)}")
    if (pruned := report.get("pruned")) is not None:
        lines += [f"pruned: {count(number, 'trace')} of {file}" for file, number in pruned.items()]
        lines += [] if pruned else ["pruned: nothing"]
    errors = sum(issue.severity == "error" for issue in issues)
    sizes = ", ".join(count(report[f"{noun}s"], noun) for noun in COUNTED)
    lines.append(f"{sizes}: {count(errors, 'error')}, {count(len(issues) - errors, 'warning')}")
    return "".join(f"{to_printable(line)}\n" for line in lines)


def _issues_of(report: Mapping[str, Any]) -> list[LoadIssue]:
    locations = [(Path(one["file"]), one["line"], one["field"], str(one["reason"])) for one in report["issues"]]
    return [LoadIssue(one["severity"], *location) for one, location in zip(report["issues"], locations, strict=True)]


def _exit_code(report: Mapping[str, Any]) -> int:
    return FAILED if any(issue["severity"] == "error" for issue in report["issues"]) else RAN


def _validate(whole: TraceSet, checks: list[str], args: Namespace) -> dict[str, Any]:
    """Run the checks on the selected part of a set, and return the report."""
    from flashinfer_bench.cli.settings import find_tolerance_issues

    asked = Asked(args.definitions, op_types=args.op_types)
    part = _choose(whole, args)
    read = [*whole.issues, *find_tolerance_issues(whole)]
    found = [(_check_of(issue, whole), issue) for issue in read if asked.is_about(issue, whole)]
    found += [(check, issue) for check, find in FURTHER.items() if check in checks for issue in find(part)]
    jobs: list[dict[str, Any]] = []
    for check in (one for one in checks if one not in FILE_CHECKS):
        from flashinfer_bench.cli.validate_by_judging import judge_set  # the engine

        judged, issues = judge_set(check, part, author=args.baseline_author, cpu_only=args.disable_gpu)
        jobs += judged
        found += [(check, issue) for issue in issues]
    sizes = {f"{noun}s": sum(map(len, getattr(part, f"{noun}s").values())) for noun in COUNTED[1:]}
    return {
        "version": FORMAT_VERSION,
        "roots": list(map(_to_text, whole.roots)),
        "checks": checks,
        "definitions": len(part.definitions),
        **sizes,
        "issues": [
            {
                "check": check,
                "severity": one.severity,
                "file": _to_text(one.file),
                "line": one.line,
                "field": one.field,
                "reason": one.reason,
            }
            for check, one in found
            if check in checks
        ],
        "jobs": jobs,
        "coverage": _find_coverage(part, jobs, args.baseline_author),
    }


def _choose(whole: TraceSet, args: Namespace) -> TraceSet:
    """Return the set with only the chosen definitions. Names of definitions with unreadable files are allowed."""
    asked = args.definitions
    readable = without_unread(whole, asked, whole.definitions)
    chosen = choose_definitions(whole, Namespace(**{**vars(args), "definitions": readable}))
    names = {item.name for item in chosen if not asked or item.name in asked}
    kept: dict[str, Any] = {
        field: {name: items for name, items in getattr(whole, field).items() if name in names}
        for field in (f"{noun}s" for noun in COUNTED)
    }
    return whole if len(names) == len(whole.definitions) else replace(whole, **kept)


def _check_of(issue: LoadIssue, trace_set: TraceSet) -> str:
    """Return the check that reports an issue of loading, by the folder of the issue's file."""
    parts = () if issue.is_about_location else parts_below(issue.file, trace_set.roots)
    return FOLDERS.get(parts[0], "layout") if parts else "layout"


def _find_definition_issues(trace_set: TraceSet) -> Iterator[LoadIssue]:
    """Yield the problems of references, and each constraint that is never checked because of an unknown name."""
    from flashinfer_bench.bench.evaluators.inputs.constraints import find_strange_names

    yield from find_reference_issues(trace_set, trace_set.definitions.values())
    for name, definition in trace_set.definitions.items():
        file = trace_set.definition_files.get(name, trace_set.root or Path())
        for constraint, strange in find_strange_names(definition).items():
            hint = did_you_mean(strange[0], [*definition.axes, *definition.inputs]) if len(strange) == 1 else ""
            why = f"{name}: constraint {constraint!r} is never checked: no axis and no input has the name"
            yield LoadIssue("warning", file, None, "constraints", f"{why} {', '.join(strange)}{hint}")


def _find_workload_issues(trace_set: TraceSet) -> Iterator[LoadIssue]:
    """Yield the problems of stored inputs, and a warning for each workload whose axes break a constraint."""
    from flashinfer_bench.bench.evaluators.inputs.constraints import find_broken_by_axes

    jobs = [(name, line.workload) for name, group in trace_set.workloads.items() for line in group]
    yield from find_input_issues(trace_set, jobs)
    for name, workload in jobs:
        definition = trace_set.definitions.get(name)
        if definition is not None and (broken := find_broken_by_axes(definition, workload)):
            root = trace_set.blob_root(name, workload.uuid) or Path()
            file = layout.workloads_path(root, op_type=definition.op_type, definition=name)
            file = file if file.is_file() else file.parent.parent  # files of the set may have other names
            why = f"workload {workload.uuid} of {name}: constraint {'; '.join(broken.values())}"
            yield LoadIssue("warning", file, None, None, f"{why}: it is judged nevertheless")


def _find_trace_issues(trace_set: TraceSet) -> Iterator[LoadIssue]:
    """Yield a warning for each kind of trace that contradicts the set, or that cannot be right."""
    file = (trace_set.root or Path()) / layout.TRACES
    for name in trace_set.definitions:
        solutions = {item.name for item in trace_set.solutions.get(name, [])}
        workloads = {line.workload.uuid: line.workload for line in trace_set.workloads.get(name, [])}
        unserved, unknown, changed, timeless = Counter[str](), Counter[str](), 0, list[str]()
        for trace in trace_set.all_traces(name):
            solution, uuid = trace.solution or "", trace.workload.uuid
            time = trace.evaluation.performance if trace.evaluation is not None else None
            if solution not in solutions and not is_served(trace):
                unserved[solution] += 1
            if uuid in workloads:
                changed += trace.workload.axes != workloads[uuid].axes
            elif not is_generated(trace):
                unknown[uuid] += 1
            if trace.workload.timed and time is not None and as_time(time.latency_ms) is None:
                timeless.append(solution)
        why = "PASSED with a latency that no call has, such as 0 or infinity"
        reasons = [
            _of_unknown("solution", unserved, solutions),
            _of_unknown("workload", unknown, workloads),
            changed and f"{_have(changed)} other sizes than the workload of the same uuid has now",
            timeless and f"{_have(len(timeless))} {why}: {some(sorted(set(timeless)))}",
        ]
        yield from (LoadIssue("warning", file, None, None, f"{name}: {reason}") for reason in reasons if reason)


FURTHER: Final[Mapping[str, Callable[[TraceSet], Iterator[LoadIssue]]]] = {
    "definition": _find_definition_issues,
    "workload": _find_workload_issues,
    "solution": find_entry_issues,
    "trace": _find_trace_issues,
}
"""Check → the function that finds issues, in addition to the issues of loading."""


def _of_unknown(kind: str, traces: Counter[str], known: Collection[str]) -> str:
    """Return the warning of traces whose solution or workload the set lacks, by name; empty without such traces."""
    if not traces:
        return ""
    first, *others = traces
    what = f"{len(traces)} {kind}s ({some([first, *others])})" if others else f"{kind} {first!r}"
    hint = "" if others else did_you_mean(first, known)
    total = count(traces.total(), "trace")
    return f"{total} of {what}, which the set lacks (`validate --prune` removes such traces){hint}"


def _why_not_pruned(trace_set: TraceSet) -> str:
    """Return why traces may seem to be orphans, such as an unreadable part of the set; empty if there is no reason."""
    kept = [root / layout.TRACES for root in trace_set.roots]
    read = [issue for issue in trace_set.issues if not any(map(issue.file.is_relative_to, kept))]
    if unread := [issue for issue in read if issue.severity == "error" or issue.missing_definition is not None]:
        why = f"--prune: nothing was removed, since a part of the set may be missing: {unread[0].file}"
        return f"{why}: {unread[0].reason}; mend it, or name the base set, too"
    return ""


def _have(traces: int) -> str:
    return f"{count(traces, 'trace')} {'has' if traces == 1 else 'have'}"


def _find_coverage(trace_set: TraceSet, jobs: Sequence[Mapping[str, Any]], author: str) -> dict[str, Any]:
    """Find the gaps of a set. A workload is covered if a latest trace passed, or if a job of the check `benchmark`
    passed. Verdicts on the reference do not count."""
    judged = (job for job in jobs if job["check"] == "benchmark" and job["status"] == "PASSED")
    passed = {(job["definition"], job["workload"]) for job in judged}
    latest = find_latest(trace_set.all_traces())
    passed |= {(trace.definition, trace.workload.uuid) for trace in latest if trace.is_successful()}
    not_passed = {
        name: [line.workload.uuid for line in lines if (name, line.workload.uuid) not in passed]
        for name, lines in trace_set.workloads.items()
    }
    have = {item.definition for item in trace_set.all_solutions() if item.author == author}
    return {
        "baseline_author": author,
        "without_workloads": [name for name in trace_set.definitions if not trace_set.workloads.get(name)],
        "without_baseline": [name for name in trace_set.definitions if name not in have],
        "not_passed": {name: uuids for name, uuids in not_passed.items() if uuids},
    }


def _known(flag: str, given: Sequence[str], known: Sequence[str]) -> list[str]:
    """Return the words in the order of the known words; refuse unknown words."""
    hints = {word: did_you_mean(word, known) or f"; known: {', '.join(known)}" for word in given if word not in known}
    if hints:
        raise UsageError("\n".join(f"{flag}: unknown {word!r}{hint}" for word, hint in hints.items()))
    return [word for word in known if word in given]


def _to_text(path: Path) -> str:
    """Return a path for JSON: bytes that are not UTF-8 are replaced."""
    return os.fsencode(path).decode("utf-8", "replace")
