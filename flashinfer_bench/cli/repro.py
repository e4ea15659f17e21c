"""`repro`: judges a job again. The call that decided the verdict is written to files, with a script that shows the
failure."""

from __future__ import annotations

import json
import shlex
import shutil
from argparse import Namespace
from hashlib import sha256
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Final

from flashinfer_bench.base.files.held_folders import temporary_folder
from flashinfer_bench.base.files.trees import remove_tree
from flashinfer_bench.cli.output import write_err
from flashinfer_bench.cli.parser import (
    PROGRAM,
    SET_HELP,
    SOURCE_FLAGS,
    Parser,
    add_flags,
    add_format,
    add_local,
    add_names,
)
from flashinfer_bench.cli.settings import add_settings
from flashinfer_bench.errors import DataSetError, UsageError

if TYPE_CHECKING:
    from flashinfer_bench.data import Trace

DIGESTS: Final = "digests.json"
"""File of a dump that has the digests of the other files."""


def declare_repro(parser: Parser) -> None:
    """Add the help and the flags of the command."""
    parser.describe(
        "Write the call that decided a verdict to files: judge the job once more, the solution in its sandbox, and\n"
        "write inputs, expected and got as safetensors, a map of the failing elements, and a script (repro.py) that\n"
        "shows the failure with torch alone. A recorded job gets its recorded inputs.\n"
        "Exit codes: 0 written, 1 the job cannot be judged, 2 usage error.",
        usage="%(prog)s TRACE.jsonl[:LINE] | SOLUTION WORKLOAD [--local SET] [--dump DIR] [flags]",
        example="repro plain_rmsnorm_h4096 d01172 --local flashinfer-trace --dump why",
        execute=execute,
    )
    what = "a recorded job; or a solution (its name, or a file) and a workload"
    parser.add_argument("what", nargs="+", metavar="WHAT", help=what)
    add_local(parser, SET_HELP)
    parser.set_defaults(takes_sets=False)
    add_flags(
        parser, {"--dump DIR": "folder to write: new, empty, or an earlier dump (default: repro-SOLUTION-WORKLOAD)"}
    )
    add_names(parser, "--definitions", "the definition, if the solution does not name it")
    add_names(parser, "--devices", "device that judges it (default: the first device)")
    add_flags(parser, SOURCE_FLAGS)
    add_settings(parser)
    add_format(parser)


def execute(args: Namespace) -> int:
    """Judge the job, write the files, and print the result."""
    from flashinfer_bench.base.printable import to_printable
    from flashinfer_bench.bench.config import EDITED_CALL_S
    from flashinfer_bench.bench.planning.plan import describe_nothing
    from flashinfer_bench.cli.args import find_output, open_trace_set
    from flashinfer_bench.cli.drafts import take_drafts
    from flashinfer_bench.cli.run_jobs import plan_recorded, refuse_other_evaluator, set_words
    from flashinfer_bench.cli.settings import read_config, setting_words
    from flashinfer_bench.cli.tables import shorten_uuid, some, write_result
    from flashinfer_bench.cli.verdicts import describe_job, name_jobs
    from flashinfer_bench.data.generated import add_generated
    from flashinfer_bench.data.measurement import read_reported
    from flashinfer_bench.data.sets.results import find_latest
    from flashinfer_bench.data.store.layout import path_part
    from flashinfer_bench.data.workload import find_named
    from flashinfer_bench.examine.repro.start import QUICK, reproduce

    recorded = _read_recorded(args)
    trace_set = open_trace_set(args)
    for trace in recorded:
        if trace_set.get_solution(trace.solution or "") is None:
            words = ["repro", "FILE", shorten_uuid(trace.workload.uuid), "--definition", trace.definition]
            way = shlex.join([PROGRAM, *words, *set_words(args)])
            raise DataSetError(f"the trace set has no solution {trace.solution!r}; give the submitted file: `{way}`")
    if not recorded:
        args.solutions, args.workloads = args.what[:1], args.what[1:]
        take_drafts(args, trace_set)
        add_generated(trace_set, find_named(args.what[1], trace_set.all_traces(), attrgetter("workload")))
    config = read_config(args)
    config = config.with_overrides(**QUICK, call_timeout_seconds=config.call_timeout_seconds or EDITED_CALL_S)
    engine, plan = plan_recorded(args, trace_set, config, recorded)
    if not plan.jobs:
        raise DataSetError(describe_nothing(plan))
    job, *others = plan.jobs
    if others:
        uuids = some([shorten_uuid(one.workload.uuid) for one in plan.jobs])
        raise UsageError(f"{args.what[1]!r} names several workloads: {uuids}; give one of them")
    if not recorded:
        refuse_other_evaluator(plan, find_latest(trace_set.all_traces()))
    for trace in recorded:
        digest = trace.evaluation and read_reported(trace.evaluation).run.solution_digest
        if digest and digest != job.solution.digest():
            write_err(f"warning: {job.solution.name} has changed since it was judged; its present source is called")
    name = args.dump or f"repro-{path_part(job.solution.name)}-{path_part(job.workload.uuid)}"
    find_output(name, args)  # refuses links in a set
    folder = Path(name)
    args.config = args.config and str(Path(args.config).absolute())  # the script starts the judge in its own folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _refuse_edited(folder)
        with temporary_folder("repro", folder.resolve().parent) as staging:
            evaluation = reproduce(engine, job, staging, write_err, settings=setting_words(args))
            (staging / DIGESTS).write_bytes(_digest_files(staging))
            _refuse_edited(folder)  # it may have been edited during the run
            for path in folder.iterdir():
                remove_tree(path)
            for path in staging.iterdir():
                shutil.move(path, folder)
    except OSError as error:
        raise UsageError(f"--dump: {folder}: {error.strerror or error}") from error
    found = (folder / "map.txt").read_text(encoding="utf-8")
    names = {"definition": job.definition.name, "solution": job.solution.name, "workload": job.workload.uuid}
    status = evaluation.status.value
    files = sorted(str(file) for file in folder.rglob("*") if file.is_file())
    document = {"status": status, "message": evaluation.log, "map": found, "folder": str(folder), "files": files}
    note = "it is right this time, so what is written shows no failure" if status == "PASSED" else ""
    listed = trace_set.workloads[job.definition.name]
    head = f"{describe_job(job, name_jobs([job, *listed]))}: {status}"
    text = "\n".join(filter(None, [head, evaluation.log.strip(), found, note]))
    lines = [to_printable(line) for line in text.splitlines()]
    write_result(args, names | document, [*lines, f"see it: python {folder / 'repro.py'}"])
    return 0


def _read_recorded(args: Namespace) -> list[Trace]:
    """Return a list with the recorded job of the arguments; empty if the arguments name a solution and a workload.

    Raises:
        UsageError: the arguments are neither a recorded job, nor a solution and a workload.
    """
    from flashinfer_bench.cli.args import read_recorded
    from flashinfer_bench.cli.verdicts import name_jobs
    from flashinfer_bench.data.store.layout import TRACES

    if len(args.what) == 2:
        return []
    if len(args.what) != 1 or ".jsonl" not in args.what[0]:
        raise UsageError(f"give a recorded job (TRACE.jsonl[:LINE]), or SOLUTION WORKLOAD; see {PROGRAM} repro --help")
    traces = read_recorded(args.what[0])
    wrong = [trace for trace in traces if trace.evaluation is not None and not trace.is_successful()]
    chosen = (wrong or traces)[-1]
    if len(traces) > 1:
        called = name_jobs(traces)[chosen.definition, chosen.workload.uuid]
        write_err(f"of {len(traces)} verdicts: the last wrong one, {chosen.solution} on {called}")
    if not args.local:
        roots = [folder.parent for folder in Path(args.what[0]).absolute().parents if folder.name == TRACES]
        args.local = [str(roots[0])] if roots else args.local
    return [chosen]


def _refuse_edited(folder: Path) -> None:
    """Raise an error unless the folder is empty, or a dump in which nothing was changed, added or removed."""
    file = folder / DIGESTS
    if file.read_bytes() != _digest_files(folder) if file.exists() else any(folder.iterdir()):
        raise DataSetError(f"{folder} is there, and was edited or is no dump; name another folder with --dump")


def _digest_files(folder: Path) -> bytes:
    """Return the digests of a dump's files as JSON, without Python's caches. Folders have none."""
    digests = {
        str(name): path.is_file() and sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if "__pycache__" not in (name := path.relative_to(folder)).parts and path != folder / DIGESTS
    }
    return json.dumps(digests, sort_keys=True).encode()
