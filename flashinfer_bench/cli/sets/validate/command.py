"""`validate`: shows everything that is wrong with a trace set."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeVar, get_args

from flashinfer_bench.base.files.writing import open_folder
from flashinfer_bench.cli.exit_codes import FAILED, RAN
from flashinfer_bench.cli.flags.sets import REPORT_FILES
from flashinfer_bench.cli.args import find_output
from flashinfer_bench.cli.args import has_nothing, load_trace_set
from flashinfer_bench.cli.output import write_err, write_out
from flashinfer_bench.cli.sets.validate.chosen import Chosen, choose
from flashinfer_bench.cli.sets.validate.coverage import find_coverage
from flashinfer_bench.cli.sets.validate.file_checks import check_files
from flashinfer_bench.cli.sets.validate.judging import JudgedSet, judge_baselines, judge_references
from flashinfer_bench.cli.sets.validate.text import render_validation
from flashinfer_bench.cli.sets.validate.validation import Check, Validation, to_text
from flashinfer_bench.data import LoadIssue, TraceSet
from flashinfer_bench.data.names import did_you_mean
from flashinfer_bench.data.store.jsonl import write_whole
from flashinfer_bench.errors import Misuse

CHECKS: Final[tuple[Check, ...]] = get_args(Check)
FILE_CHECKS: Final[tuple[Check, ...]] = CHECKS[:5]
"""Those that run no code of the set."""
OUTPUTS: Final = ("stdout", "json", "text")

Word = TypeVar("Word", bound=str)


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


def _validate(trace_set: TraceSet, chosen: Chosen, checks: list[Check], args: argparse.Namespace) -> Validation:
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
