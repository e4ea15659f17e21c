"""Text and JSON of a plan: its jobs, its skips with reasons, the jobs that a resumed run leaves out, the settings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from flashinfer_bench.bench.config import BenchmarkConfig, ResolvedEvalConfig
from flashinfer_bench.bench.evaluator_record import find_misspelt_extras
from flashinfer_bench.bench.machine import Machine
from flashinfer_bench.bench.planning.plan import Plan, Skip
from flashinfer_bench.cli.given.settings import Setting, Subject, format_value, resolved_settings, top_settings
from flashinfer_bench.cli.screen.tables import Column, count, render_table, wrap_line

COLUMNS: Final = (*map(Column, ("Definition", "Op type", "Solution", "Author")), Column("Workloads", True))
SHOWN_NAMES: Final = 3


def render_plan(plan: Plan, config: BenchmarkConfig, machine: Machine, width: int) -> str:
    """Lay out what a run will do."""
    rows = [[row.definition, row.op_type, row.solution, row.author, str(row.workloads)] for row in plan.rows()]
    parts = [render_table(COLUMNS, rows, width)] if rows else []
    skips = [wrap_line(line, width) for line in describe_skips(plan.skips)]
    settings = [wrap_line(line, width) for line in _describe_settings(plan, config)]
    totals = [describe_plan(plan, machine), *describe_resume(plan)]
    return "\n".join([*parts, *("\n".join([*lines, ""]) for lines in (skips, settings, totals) if lines)])


def describe_plan(plan: Plan, machine: Machine) -> str:
    """Return the one line that tells how much there is to do, and where."""
    rows = plan.rows()
    of = f"{count(len({row.definition for row in rows}), 'definition')}, {count(len(rows), 'solution')}"
    devices = ", ".join(f"{device.label} ({device.name})" for device in machine.devices)
    skipped = f"; {len(plan.skips)} skipped" if plan.skips else ""
    return f"{count(len(plan.jobs), 'job')} ({of}) on {devices}{skipped}" if rows else f"no job to run{skipped}"


def describe_resume(plan: Plan) -> list[str]:
    """Return how many recorded jobs are left out, and how many are done again and why."""
    lines = []
    if plan.resumed:
        lines.append(f"resume: {count(plan.resumed, 'recorded job')} left out, unchanged since")
    if plan.redone:
        reasons = ", ".join(f"{reason}: {number}" for reason, number in sorted(plan.redone_reasons.items()))
        lines.append(f"resume: {count(plan.redone, 'recorded job')} done again ({reasons})")
    return lines


def describe_odd_keys(plan: Plan) -> list[str]:
    """Return a warning for each key of `extra` that is probably misspelt."""
    return [f"warning: {line}" for line in find_misspelt_extras(_configs(plan).values(), plan.plug_in_keys)]


def describe_skips(skips: Iterable[Skip]) -> list[str]:
    """Return one line per reason, with the first names that it holds for."""
    by_reason: dict[str, list[str]] = {}
    for skip in skips:
        name = " / ".join(part for part in (skip.definition, skip.solution, skip.workload) if part)
        by_reason.setdefault(skip.reason, []).append(name)
    return [f"skipped {_some(names)}: {reason}" for reason, names in by_reason.items()]


def plan_document(plan: Plan, config: BenchmarkConfig, machine: Machine) -> dict[str, Any]:
    """Return the plan as JSON-able values."""
    return {
        "counts": plan_counts(plan),
        "devices": [{"label": device.label, "name": device.name, "uuid": device.uuid} for device in machine.devices],
        "solutions": [
            {"definition": row.definition, "op_type": row.op_type, "solution": row.solution, "author": row.author}
            | {"workloads": row.workloads}
            for row in plan.rows()
        ],
        "skipped": skip_documents(plan.skips),
        "settings": {
            "run": _as_values(_system_settings(config)),
            "definitions": {name: _as_values(resolved_settings(resolved)) for name, resolved in _configs(plan).items()},
        },
    }


def plan_counts(plan: Plan) -> dict[str, Any]:
    """Return the plan in numbers."""
    return {
        "jobs": len(plan.jobs),
        "skipped": len(plan.skips),
        "resumed": plan.resumed,
        "redone": plan.redone,
        "redone_reasons": dict(plan.redone_reasons),
    }


def skip_documents(skips: Iterable[Skip]) -> list[dict[str, str | bool | None]]:
    """Return the skips as JSON-able values."""
    return [
        {
            "definition": skip.definition,
            "solution": skip.solution,
            "workload": skip.workload,
            "reason": skip.reason,
            "fault": skip.is_fault,
        }
        for skip in skips
    ]


def _describe_settings(plan: Plan, config: BenchmarkConfig) -> list[str]:
    """Return a line for the run and one for each set of settings that definitions share."""
    lines = [f"settings of the run: {_assignments(_system_settings(config))}"]
    groups: dict[str, list[str]] = {}
    for name, resolved in _configs(plan).items():
        groups.setdefault(_assignments(resolved_settings(resolved)), []).append(name)
    return lines + [f"settings of {_some(names)}: {settings}" for settings, names in groups.items()]


def _configs(plan: Plan) -> dict[str, ResolvedEvalConfig]:
    """Return the settings of each definition that has jobs."""
    return {job.definition.name: job.config for job in plan.jobs}


def _system_settings(config: BenchmarkConfig) -> list[Setting]:
    filters = {"definitions", "solutions", "op_types", "authors", "workloads", "devices"}
    eval_names = {setting.name for setting in resolved_settings(config.resolve_eval_config(Subject("", "")))}
    return [setting for setting in top_settings(config) if setting.name not in eval_names | filters]


def _assignments(settings: Sequence[Setting]) -> str:
    return " ".join(f"{item.name}={format_value(item.value)}" for item in settings if item.value is not None)


def _as_values(settings: Sequence[Setting]) -> dict[str, Any]:
    return {setting.name: setting.value for setting in settings}


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN_NAMES} more" if len(names) > SHOWN_NAMES else ""
    return f"{', '.join(names[:SHOWN_NAMES])}{more}"
