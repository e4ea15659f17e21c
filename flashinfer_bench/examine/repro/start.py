"""The host's side: has a job judged once more by a session that keeps the call, and writes the files beside it."""

from __future__ import annotations

import ast
import json
import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from flashinfer_bench.base.files.held_folders import sweep_folders
from flashinfer_bench.base.isolated import IsolatedFailure, run_isolated
from flashinfer_bench.bench import evaluators
from flashinfer_bench.bench.context import HarnessContext
from flashinfer_bench.bench.planning.plan import Job
from flashinfer_bench.bench.runner.device_lock import lock_device
from flashinfer_bench.bench.runner.environments import session_environment
from flashinfer_bench.bench.runner.orders import OrderMaker
from flashinfer_bench.bench.scheduler import Rules
from flashinfer_bench.compile import BuildFarm, BuildTarget
from flashinfer_bench.data import Evaluation
from flashinfer_bench.data.solution import check_source_path
from flashinfer_bench.errors import DeviceFault, Fault

MODULE: Final = "flashinfer_bench.examine.repro.session"
SCRIPT: Final = "repro.py"
RULE: Final = ("bounds_of", "find_beyond", "match_bits")
"""Functions of `compare/rule.py` that the script has a copy of."""
RULE_IMPORT: Final = "from flashinfer_bench.bench.evaluators.compare.rule import find_beyond, match_bits\n"
QUICK: Final = {"profile_baseline": False, "time_budget_s": 1.0, "baseline_budget_s": 1.0}
"""Settings of the session. It times the solution, since some failures show in timed calls alone."""
LIMIT_S: Final = 7200.0


def reproduce(
    context: HarnessContext,
    job: Job,
    seed: int,
    folder: Path,
    replay: str,
    tell: Callable[[str], object] = lambda _line: None,
) -> Evaluation:
    """Judge a job once more, and write the call that decided to a folder; return the verdict.

    Args:
        context: of the trace set.
        job: the job.
        seed: of its inputs.
        folder: an empty folder.
        replay: the command that judges the job as a run does.
        tell: gets lines for people meanwhile.

    Raises:
        Fault: the job cannot be judged.
    """
    quick = HarnessContext(context.trace_set, context.config.with_overrides(**QUICK), context.cache)
    device = quick.machine.devices[0]
    hello = quick.greet(device, Rules(), needs_triton=job.solution.spec.language.value == "triton")
    with ExitStack() as stack:
        stack.callback(sweep_folders)  # a killed process leaves its own
        for line in lock_device(device, stack):
            tell(line)
        farm = stack.enter_context(BuildFarm(quick.cache, target=BuildTarget.of(quick.machine.capabilities)))
        list(farm.build_all([job.solution]))
        order, broken = OrderMaker(farm, quick.blob_root_for, lambda _job: seed).make([job])
        if broken:
            raise Fault(broken[0][1])
        request = {
            "hello": hello.model_dump(mode="json"),
            "block": order.model_dump(mode="json"),
            "folder": str(folder.absolute()),
        }
        environment = session_environment(os.environ, device, interpret_triton=device.kind == "cpu")
        try:
            answer = run_isolated(MODULE, request, limit_s=LIMIT_S, environment=environment)
        except IsolatedFailure as failure:
            raise DeviceFault(f"the session ended without a verdict: {failure.log}") from None
    if "fault" in answer:
        raise Fault(answer["fault"])
    evaluation = Evaluation.model_validate(answer["evaluation"])
    _write_script(job, folder, seed=seed, evaluation=evaluation, replay=replay)
    return evaluation


def _write_script(job: Job, folder: Path, *, seed: int, evaluation: Evaluation, replay: str) -> None:
    """Write the sources and the script, and complete the facts of the call."""
    facts: dict[str, Any] = json.loads((folder / "call.json").read_text(encoding="utf-8"))
    facts |= {
        "definition": job.definition.name,
        "solution": job.solution.name,
        "workload": job.workload.uuid,
        "seed": seed,
        "status": evaluation.status.value,
        "message": evaluation.log.strip(),
        "entry": job.solution.spec.entry_point,
        "is_python": not job.solution.spec.language.record.is_compiled,
        "replay": replay,
    }
    texts = {f"solution/{check_source_path(source.path)}": source.content for source in job.solution.sources}
    texts |= {
        "call.json": json.dumps(facts, indent=2) + "\n",
        "definition.json": job.definition.to_json(indent=2) + "\n",
        "solution.json": job.solution.to_json(indent=2) + "\n",
        "reference.py": job.definition.reference,
        SCRIPT: make_script(),
    }
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")


def make_script() -> str:
    """Return the script, with the source of the rule of tolerances in place of its import."""
    rule = Path(evaluators.__file__).with_name("compare").joinpath("rule.py").read_text(encoding="utf-8")
    functions = [node for node in ast.parse(rule).body if isinstance(node, ast.FunctionDef) and node.name in RULE]
    source = "\n\n\n".join(ast.get_source_segment(rule, node) or "" for node in functions)
    return Path(__file__).with_name("standalone.py").read_text(encoding="utf-8").replace(RULE_IMPORT, f"{source}\n")
