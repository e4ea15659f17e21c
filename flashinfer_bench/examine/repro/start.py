"""The host's side: judges a job once more in an ordinary run, in the session of `capture.py`, and writes the script."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from flashinfer_bench.bench import evaluators
from flashinfer_bench.bench.benchmark import Benchmark
from flashinfer_bench.bench.events import JobFaulted, JobFinished, Notice
from flashinfer_bench.bench.planning.plan import Job, Plan
from flashinfer_bench.data import Evaluation, Trace
from flashinfer_bench.data.store.pack import unpack_solution
from flashinfer_bench.errors import Fault

QUICK: Final = {"profile_baseline": False, "time_budget_s": 1.0, "baseline_budget_s": 1.0, "confirm": False}
"""Settings of the run. It times the solution, because some failures show only in timed calls."""
CAPTURE: Final = "flashinfer_bench.examine.repro.capture"
COPIED: Final = ("compare.tolerance", "compare.outputs", "compare.packed", "compare.pattern", "integrity.norms")
"""Modules of `bench/evaluators/` that are copied for the script, to `judge/…`."""


def reproduce(
    engine: Benchmark,
    job: Job,
    folder: Path,
    progress: Callable[[str], object] = lambda _line: None,
    *,
    settings: Sequence[str] = (),
) -> Evaluation:
    """Judge a job once more, and write the deciding call to a folder; return the verdict.

    Args:
        engine: the engine of the trace set, with the settings `QUICK`.
        job: the job.
        folder: an empty folder.
        progress: receives each line of progress.
        settings: the flags with which `run` judges as the engine does.

    Raises:
        Fault: the job cannot be judged, or the solution was not called.
    """
    traces: list[Trace] = []
    engine.context.tool = CAPTURE, str(folder.absolute())
    for event in engine.run(Plan((job,)), save_results=False):
        if isinstance(event, JobFaulted):
            raise Fault(event.message)
        if isinstance(event, Notice):
            progress(event.message)
        if isinstance(event, JobFinished):
            traces.append(event.trace)
    file = folder / "call.json"
    evaluation = traces[0].evaluation if traces else None
    if evaluation is None or not file.exists():
        raise Fault(f"{job.solution.name} was not called: {evaluation and evaluation.log}")
    call: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    roots = [word for root in engine.get_trace_set().roots for word in ("--local", str(root.absolute()))]
    judged = ["--replay", "trace.jsonl", "--solutions", "./solution", "--devices", call["device"]]
    call |= {
        "inputs": list(job.definition.inputs),
        "title": f"{job.solution.name} of {job.definition.name}, workload {job.workload.uuid}",
        "status": evaluation.status.value,
        "message": evaluation.log.strip(),
        "entry": job.solution.spec.entry_point,
        "limit_s": (evaluation.extra or {}).get("timeout", {}).get("limit_s", engine.config.timeout_seconds),
        "is_python": not job.solution.spec.language.record.is_compiled,
        "sources": {source.path: source.content for source in job.solution.sources},
        "command": ["run", *roots, *judged, *settings, "--require-passed", "--quiet"],
    }
    unpack_solution(job.solution, folder / "solution")
    texts = {
        "call.json": json.dumps(call, indent=2) + "\n",
        "trace.jsonl": traces[0].to_json() + "\n",
        "reference.py": job.definition.reference,
        "repro.py": Path(__file__).with_name("standalone.py").read_text(encoding="utf-8"),
    }
    for name in COPIED:
        source = Path(evaluators.__file__).parent.joinpath(*name.split(".")).with_suffix(".py")
        texts[f"judge/{source.name}"] = source.read_text(encoding="utf-8")
    (folder / "judge").mkdir()
    for path, text in texts.items():
        for name in COPIED:
            text = text.replace(f"from {evaluators.__name__}.{name} ", f"from judge.{name.partition('.')[2]} ")
        (folder / path).write_text(text, encoding="utf-8")
    return evaluation
