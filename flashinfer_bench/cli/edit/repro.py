"""`repro`: has a job judged once more, and writes the call that decided to files, with a script that shows it."""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from flashinfer_bench.base.printable import to_printable
from flashinfer_bench.bench.benchmark import Benchmark
from flashinfer_bench.bench.planning.plan import Job, describe_nothing
from flashinfer_bench.bench.runner.job_seeds import JobSeeds, recorded_seeds
from flashinfer_bench.cli.args import choose_recorded, find_output, keep_recorded, open_trace_set, read_recorded
from flashinfer_bench.cli.drafts import take_drafts
from flashinfer_bench.cli.output import write_err, write_out
from flashinfer_bench.cli.parser import PROGRAM
from flashinfer_bench.cli.settings import naming_flags, read_config
from flashinfer_bench.data import Evaluation, EvaluationStatus, Trace, TraceSet
from flashinfer_bench.data.store.layout import TRACES, path_part
from flashinfer_bench.errors import DataSetError, Misuse
from flashinfer_bench.examine.repro.start import SCRIPT, ReproOrder, reproduce

FOLDER: Final = "repro"
"""The beginning of the folder's name where none is given."""


def execute(args: argparse.Namespace) -> int:
    """Judge, write, tell."""
    recorded = _read_recorded(args)
    trace_set = open_trace_set(args)
    if not recorded:
        args.solutions, args.workloads = [args.what[0]], [args.what[1]]
        take_drafts(args, trace_set)
    config = read_config(args).for_set(trace_set)
    with naming_flags(args):
        engine = Benchmark(trace_set, choose_recorded(config, recorded) if recorded else config)
        plan = engine.plan()
    plan = keep_recorded(plan, recorded) if recorded else plan
    if not plan.jobs:
        raise DataSetError(describe_nothing(plan))
    job = plan.jobs[0]
    _warn_of_changes(job, recorded)
    run_seed, seeds = recorded_seeds(recorded)
    name = args.dump or f"{FOLDER}-{path_part(job.solution.name)}-{path_part(job.workload.uuid)}"
    find_output(name, args)  # refuses links in a set
    folder = _make_folder(name)
    order = ReproOrder(
        job=job,
        seed=JobSeeds(config.seed if run_seed is None else run_seed, seeds).of(job),
        device=engine.machine.devices[0],
        config=config,
        trace_set=trace_set,
        folder=folder,
    )
    evaluation = reproduce(order, _replay_command(args, trace_set, recorded, job), write_err)
    _tell(args, folder, evaluation, job)
    return 0


def _read_recorded(args: argparse.Namespace) -> list[Trace]:
    """Return the recorded job that is meant; none where a solution and a workload are named.

    Raises:
        Misuse: neither is.
    """
    if len(args.what) == 2:
        return []
    if len(args.what) != 1 or ".jsonl" not in args.what[0]:
        raise Misuse(f"give a recorded job (TRACE.jsonl[:LINE]), or SOLUTION WORKLOAD; see {PROGRAM} repro --help")
    traces = read_recorded(args.what[0])
    wrong = [trace for trace in traces if trace.evaluation is not None and not trace.is_successful()]
    chosen = (wrong or traces)[-1]
    if len(traces) > 1:
        write_err(f"of {len(traces)} verdicts: the last wrong one, {chosen.solution} on {chosen.workload.uuid}")
    if not bool(args.local):
        roots = [folder.parent for folder in Path(args.what[0]).absolute().parents if folder.name == TRACES]
        args.local = [str(roots[0])] if roots else args.local
    return [chosen]


def _warn_of_changes(job: Job, recorded: Sequence[Trace]) -> None:
    """Say where the solution is no longer the one that was judged."""
    for trace in recorded:
        run = (trace.evaluation.extra or {}).get("run") if trace.evaluation is not None else None
        marks = run.get("fingerprint") if isinstance(run, dict) else None
        known = marks.get("solution") if isinstance(marks, dict) else None
        if known is not None and known != job.solution.digest():
            write_err(f"warning: {job.solution.name} has changed since it was judged; its present source is called")


def _make_folder(name: str) -> Path:
    folder = Path(name)
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise DataSetError(f"{folder} is there and not empty; name another folder with --dump")
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Misuse(f"--dump: {folder}: {error.strerror}") from error
    return folder


def _replay_command(args: argparse.Namespace, trace_set: TraceSet, recorded: Sequence[Trace], job: Job) -> str:
    """Return the command that judges the job once more as a run does."""
    sets = [word for root in trace_set.roots for word in ("--local", str(root))]
    if recorded:
        return shlex.join([PROGRAM, "run", *sets, "--replay", args.what[0]])
    return shlex.join([PROGRAM, "run", *sets, "--solutions", args.what[0], "--workloads", job.workload.uuid])


def _tell(args: argparse.Namespace, folder: Path, evaluation: Evaluation, job: Job) -> None:
    drawn = folder / "map.txt"
    found = drawn.read_text(encoding="utf-8") if drawn.exists() else ""
    if args.format == "json":
        document = {
            "definition": job.definition.name,
            "solution": job.solution.name,
            "workload": job.workload.uuid,
            "status": evaluation.status.value,
            "message": evaluation.log,
            "map": found,
            "folder": str(folder),
            "files": sorted(str(file) for file in folder.rglob("*") if file.is_file()),
        }
        write_out(json.dumps(document, indent=2) + "\n")
        return
    head = f"{job.definition.name} / {job.solution.name} / {job.workload.uuid}: {evaluation.status.value}"
    right = "it is right this time, so what is written shows no failure\n"
    note = right if evaluation.status is EvaluationStatus.PASSED else ""
    text = "\n".join(filter(None, [head, evaluation.log.strip(), "", found, note.strip()]))
    write_out("".join(f"{to_printable(line)}\n" for line in text.splitlines()))
    write_out(f"see it: python {folder / SCRIPT}\n")
