"""`validate`: shows everything that is wrong with a trace set."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar, get_args

from flashinfer_bench.base.files.writing import open_folder
from flashinfer_bench.cli.args import find_output, has_nothing, load_trace_set
from flashinfer_bench.cli.exit_codes import FAILED, RAN
from flashinfer_bench.cli.output import write_err, write_out
from flashinfer_bench.cli.parser import PROGRAM, Parser, add_format, add_local, add_names
from flashinfer_bench.cli.sets.validate.chosen import Chosen, choose
from flashinfer_bench.cli.sets.validate.coverage import find_coverage
from flashinfer_bench.cli.sets.validate.text import render_validation
from flashinfer_bench.cli.sets.validate.validation import Check, Validation, read_validation, to_text
from flashinfer_bench.data import LoadIssue, TraceSet
from flashinfer_bench.data.names import did_you_mean
from flashinfer_bench.data.store.jsonl import write_whole
from flashinfer_bench.errors import Misuse

if TYPE_CHECKING:
    from flashinfer_bench.cli.sets.validate.judging import JudgedSet

CHECKS: Final[tuple[Check, ...]] = get_args(Check)
FILE_CHECKS: Final[tuple[Check, ...]] = CHECKS[:5]
"""Those that run no code of the set."""
OUTPUTS: Final = ("stdout", "json", "text")
REPORT_FILES: Final = {"json": "report.json", "text": "report.txt"}
"""Output → its file in the output folder."""
BASELINE_AUTHOR: Final = "baseline"

Word = TypeVar("Word", bound=str)


def declare_validate(parser: Parser) -> None:
    """Add the help and the flags of the command."""
    parser.describe(
        "Show every error and warning of a trace set: file, line, field, reason; and what it does not cover.\n"
        "Exit codes: 0 no errors, 1 errors, 2 misuse.",
        example=f"{PROGRAM} validate --local flashinfer-trace",
        execute=execute,
    )
    add_local(parser, flags=("--local", "--dataset"))
    add_names(parser, "--checks", f"of {', '.join(CHECKS)} (default: the first five)")
    add_names(parser, "--definitions", "only these definitions")
    add_names(parser, "--op-types", "only these op types")
    parser.add_argument("--disable-gpu", action="store_true", help="baseline and benchmark judge on the CPU")
    author = "whose solutions benchmark judges (default: %(default)s)"
    parser.add_argument("--baseline-author", metavar="NAME", default=BASELINE_AUTHOR, help=author)
    add_names(parser, "--outputs", "of stdout, json, text (default: stdout; with a folder all)")
    files = " and ".join(REPORT_FILES.values())
    parser.add_argument("--output-folder", metavar="DIR", help=f"where {files} are written")
    add_format(parser)


def declare_validate_render(parser: Parser) -> None:
    """Add the help and the arguments of the command."""
    parser.describe(
        "Show a report that `validate --outputs json` wrote, as the text that it would print.\n"
        "Exit codes are those of validate: 1 where the report has errors.",
        example=f"{PROGRAM} validate-render report.json",
        execute=execute_render,
    )
    parser.add_argument("report", metavar="REPORT", help="the report.json")


def execute(args: argparse.Namespace) -> int:
    """Make the checks, write what they found, and return 1 if there are errors."""
    checks = _known("--checks", getattr(args, "checks", FILE_CHECKS), CHECKS)
    outputs = _choose_outputs(args)
    folder = _make_folder(args)
    trace_set = load_trace_set(args)
    if has_nothing(trace_set):
        trace_set.issues = [_as_error(issue) for issue in trace_set.issues]
    validation = _validate(trace_set, choose(trace_set, args), checks, args)
    texts = {"text": render_validation(validation), "json": validation.model_dump_json(indent=2) + "\n"}
    if "stdout" in outputs:
        write_out(texts["json" if args.format == "json" else "text"])
    if folder is not None:
        _write_files({folder / name: texts[output] for output, name in REPORT_FILES.items() if output in outputs}, args)
    return FAILED if validation.errors else RAN


def execute_render(args: argparse.Namespace) -> int:
    """Print a report that `validate` wrote; return 1 if it has errors."""
    validation = read_validation(Path(args.report))
    write_out(render_validation(validation))
    return FAILED if validation.errors else RAN


def _validate(trace_set: TraceSet, chosen: Chosen, checks: list[Check], args: argparse.Namespace) -> Validation:
    from flashinfer_bench.cli.sets.validate.judging import judge_baselines, judge_references  # the engine

    part = chosen.trace_set
    judged = []
    if "baseline" in checks:
        judged.append(judge_references(part, cpu_only=args.disable_gpu))
    if "benchmark" in checks:
        judged.append(judge_baselines(part, author=args.baseline_author, cpu_only=args.disable_gpu))
    return _gather(trace_set, chosen, checks, judged, args.baseline_author)


def _gather(
    trace_set: TraceSet, chosen: Chosen, checks: list[Check], judged: Sequence[JudgedSet], author: str
) -> Validation:
    from flashinfer_bench.cli.sets.validate.file_checks import check_files

    part = chosen.trace_set
    jobs = [job for one in judged for job in one.jobs]
    return Validation(
        roots=[to_text(root) for root in trace_set.roots],
        checks=checks,
        definitions=len(part.definitions),
        solutions=sum(map(len, part.solutions.values())),
        workloads=sum(map(len, part.workloads.values())),
        traces=sum(map(len, part.traces.values())),
        issues=[*check_files(trace_set, chosen, checks), *(issue for one in judged for issue in one.issues)],
        jobs=jobs,
        coverage=find_coverage(part, jobs, baseline_author=author),
    )


def _as_error(issue: LoadIssue) -> LoadIssue:
    """Turn the warning that a root has no definitions into an error: all roots are empty."""
    return replace(issue, severity="error") if issue.missing_definition == "" else issue


def _known(flag: str, given: Sequence[str], known: Sequence[Word]) -> list[Word]:
    """Return the words in the order in which they are known; refuse any other."""
    wrong = [word for word in given if word not in known]
    if wrong:
        hints = (did_you_mean(word, known) or f"; known: {', '.join(known)}" for word in wrong)
        raise Misuse("\n".join(f"{flag}: unknown {word!r}{hint}" for word, hint in zip(wrong, hints, strict=True)))
    return [word for word in known if word in given]


def _choose_outputs(args: argparse.Namespace) -> list[str]:
    usual = OUTPUTS if args.output_folder else OUTPUTS[:1]
    outputs = _known("--outputs", getattr(args, "outputs", usual), OUTPUTS)
    if not args.output_folder and set(outputs) & REPORT_FILES.keys():
        raise Misuse("--outputs json and text are files: give --output-folder, too")
    return outputs


def _make_folder(args: argparse.Namespace) -> Path | None:
    name = args.output_folder
    if name is None:
        return None
    try:
        place = find_output(name, args)
        with open_folder(place.path, place.root):
            return Path(name)
    except OSError as error:
        raise Misuse(f"--output-folder: {name}: {error.strerror}") from error


def _write_files(texts: dict[Path, str], args: argparse.Namespace) -> None:
    for file, text in texts.items():
        place = find_output(file, args)
        write_whole(place.path, text, root=place.root)
        write_err(f"report: {file}")
