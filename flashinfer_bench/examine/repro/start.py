"""The host's side: has a job judged once more by an ordinary run whose evaluator is wrapped, and adds the script."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from flashinfer_bench.bench import evaluators
from flashinfer_bench.bench.benchmark import Benchmark
from flashinfer_bench.bench.config import BenchmarkConfig, ResolvedEvalConfig
from flashinfer_bench.bench.events import JobFaulted, JobFinished, Notice
from flashinfer_bench.bench.planning.plan import Job, Plan
from flashinfer_bench.data import Definition, Solution, SourceFile, Trace, TraceSet
from flashinfer_bench.data.solution import check_source_path
from flashinfer_bench.errors import Fault

QUICK: Final = {"profile_baseline": False, "time_budget_s": 1.0, "baseline_budget_s": 1.0, "confirm": False}
"""Settings of the run. It times the solution, since some failures show in timed calls alone."""
CAPTURE: Final = "flashinfer_bench.examine.repro.capture"
SCRIPT: Final = "repro.py"
COPIED: Final = ("compare/rule.py", "compare/outputs.py", "compare/packed.py", "integrity/norms.py")
"""Files of `bench/evaluators/` that the script has copies of, as `judge/…`."""


def judge_once(engine: Benchmark, job: Job, tell: Callable[[str], object] = lambda _line: None) -> Trace:
    """Judge one job; nothing is saved.

    Raises:
        Fault: it cannot be judged.
    """
    for event in engine.run(Plan((job,)), save_results=False):
        if isinstance(event, JobFinished):
            return event.trace
        if isinstance(event, JobFaulted):
            raise Fault(event.message)
        if isinstance(event, Notice):
            tell(event.message)
    raise Fault(f"{job.solution.name} has no verdict")


def reproduce(
    engine: Benchmark, job: Job, folder: Path, command: str, tell: Callable[[str], object] = lambda _line: None
) -> Trace:
    """Judge a job once more, and write the call that decided to a folder; return the trace.

    Args:
        engine: of the trace set, with the settings `QUICK`.
        job: the job.
        folder: an empty folder.
        command: what judges the job as a run does.
        tell: gets lines for people meanwhile.

    Raises:
        Fault: the job cannot be judged.
    """
    engine.context.keeper = CAPTURE, str(folder.absolute())
    trace = judge_once(engine, job, tell)
    file = folder / "call.json"
    evaluation = trace.evaluation
    if evaluation is None or not file.exists():
        raise Fault(f"no call was made: {evaluation.log if evaluation is not None else ''}")
    facts: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    facts |= {
        "inputs": list(job.definition.inputs),
        "definition": job.definition.name,
        "solution": job.solution.name,
        "workload": job.workload.uuid,
        "status": evaluation.status.value,
        "message": evaluation.log.strip(),
        "entry": job.solution.spec.entry_point,
        "is_python": not job.solution.spec.language.record.is_compiled,
        "blob_root": str(engine.context.blob_root_for(job)),
        "evaluator_modules": engine.config.evaluator_modules,
        "command": command,
    }
    rules = Path(evaluators.__file__).parent
    texts = {f"solution/{check_source_path(source.path)}": source.content for source in job.solution.sources}
    texts |= {
        "call.json": json.dumps(facts, indent=2) + "\n",
        "definition.json": job.definition.to_json(indent=2) + "\n",
        "solution.json": job.solution.to_json(indent=2) + "\n",
        "trace.json": trace.to_json(indent=2) + "\n",
        "reference.py": job.definition.reference,
        SCRIPT: to_standalone(Path(__file__).with_name("standalone.py")),
        **{f"judge/{Path(name).name}": to_standalone(rules / name) for name in COPIED},
    }
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return trace


def to_standalone(file: Path) -> str:
    """Return a file's text with imports of its copied neighbours."""
    text = file.read_text(encoding="utf-8")
    for name in COPIED:
        module = name.removesuffix(".py").replace("/", ".")
        text = text.replace(f"{evaluators.__name__}.{module} ", f"judge.{module.rpartition('.')[2]} ")
    return text


def judge_again(folder: Path, call: dict[str, Any]) -> Trace:
    """Have the solution of a folder of `repro` judged as it stands there, in an ordinary run with the same inputs.

    Args:
        folder: of `repro`.
        call: its `call.json`.
    """
    definition = Definition.model_validate_json((folder / "definition.json").read_text(encoding="utf-8"))
    solution = Solution.model_validate_json((folder / "solution.json").read_text(encoding="utf-8"))
    trace = Trace.model_validate_json((folder / "trace.json").read_text(encoding="utf-8"))
    sources = [
        SourceFile(path=one.path, content=(folder / "solution" / one.path).read_text(encoding="utf-8"))
        for one in solution.sources
    ]
    trace_set = TraceSet(
        root=Path(call["blob_root"]),
        definitions={definition.name: definition},
        solutions={definition.name: [solution.model_copy(update={"sources": sources})]},
        workloads={definition.name: [Trace(definition=definition.name, workload=trace.workload)]},
    )
    devices = ["cpu"] if call["device"] == "cpu" else None
    config = BenchmarkConfig.default(devices=devices, evaluator_modules=call["evaluator_modules"], **QUICK)
    engine = Benchmark(trace_set, config)
    engine.replay([trace])
    (job,) = engine.plan().jobs
    return judge_once(engine, replace(job, config=ResolvedEvalConfig.model_validate(call["config"])))
