"""Selects the definitions, solutions and workloads that pass a configuration's filters, and checks that all names
exist.

All wrong names are reported at once, each with its source and the nearest known name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from flashinfer_bench.bench.config import BenchmarkConfig
from flashinfer_bench.bench.evaluator_record import known_op_types
from flashinfer_bench.data.definition import Definition, normalise_op_type
from flashinfer_bench.data.names import did_you_mean
from flashinfer_bench.data.solution import Solution
from flashinfer_bench.data.trace_set import TraceSet
from flashinfer_bench.data.workload import MIN_PREFIX, Workload, find_named
from flashinfer_bench.errors import ConfigError

SHOWN_NAMES: Final = 8
FILTERS: Final = ("definitions", "op_types", "solutions", "authors", "workloads")


@dataclass(frozen=True)
class Selected:
    """One definition with its selected solutions and workloads."""

    definition: Definition
    solutions: tuple[Solution, ...]
    workloads: tuple[Workload, ...]


def select(trace_set: TraceSet, config: BenchmarkConfig) -> list[Selected]:
    """Return the definitions that the filters leave, with their solutions and workloads, in the order of the set.

    Raises:
        ConfigError: a name does not exist (all such names are listed), or the filters together select nothing.
    """
    check_names(trace_set, config)
    op_types = None if config.op_types is None else set(map(normalise_op_type, config.op_types))
    chosen = [
        item
        for item in trace_set.definitions.values()
        if _has(config.definitions, item.name) and _has(op_types, normalise_op_type(item.op_type))
    ]
    workloads = {item.name: [line.workload for line in trace_set.workloads.get(item.name, ())] for item in chosen}
    known = [one for listed in workloads.values() for one in listed]
    wanted = None if config.workloads is None else {id(one) for name in config.workloads for one in _find(name, known)}
    by_solution = config.solutions is not None or config.authors is not None
    left = []
    for item in chosen:
        listed = trace_set.solutions.get(item.name, ())
        solutions = [one for one in listed if _has(config.solutions, one.name) and _has(config.authors, one.author)]
        kept = [one for one in workloads[item.name] if wanted is None or id(one) in wanted]
        if (solutions or not by_solution) and (kept or wanted is None):
            left.append(Selected(item, tuple(solutions), tuple(kept)))
    if trace_set.definitions and not left:
        given = ", ".join(name for name in FILTERS if getattr(config, name))
        raise ConfigError(f"nothing is left of the set; the filters given are {given}: widen one of them")
    return left


def check_names(trace_set: TraceSet, config: BenchmarkConfig) -> None:
    """Raise one ConfigError that lists all names that the set does not have."""
    definitions = trace_set.definitions
    solutions = list(trace_set.all_solutions())
    authors = {item.author for item in solutions}
    op_types = {normalise_op_type(item.op_type): item.op_type for item in definitions.values()}
    workloads = [line.workload for name in definitions for line in trace_set.workloads.get(name, ())]
    uuids = {one.uuid for one in workloads}
    named: list[tuple[str, str, Iterable[str] | None, Iterable[str]]] = [
        ("definitions", "definition", config.definitions, definitions),
        ("solutions", "solution", config.solutions, {item.name for item in solutions}),
        ("op_types", "op type", config.op_types, op_types.values()),
        ("authors", "author", config.authors, authors),
        ("workloads", "workload", config.workloads, uuids),
    ]
    for location, name in config.section_locations("op_type_config", users_only=True):
        named.append((location, "op type", [name], {*op_types.values(), *known_op_types()}))
    for location, name in config.section_locations("definition_config", users_only=True):
        named.append((location, "definition", [name], definitions))
    problems = []
    for location, kind, names, known in named:
        spell = normalise_op_type if kind == "op type" else str
        there = set(map(spell, known))
        for name in names or ():
            if spell(name) in there:
                continue
            if kind == "solution" and name in authors:
                hint = "; that is an author: give it to `authors`"
            elif kind == "workload" and find_named(name, workloads, _itself):
                continue
            elif kind == "workload" and any(uuid.startswith(name) for uuid in uuids):
                hint = f"; the start of a uuid needs {MIN_PREFIX} characters"
            else:
                hint = did_you_mean(name, known) or _list_some(known)
            problems.append(f"{location}: the trace set has no {kind} {name!r}{hint}")
    if problems:
        raise ConfigError("\n".join(problems))


def _has(names: Collection[str] | None, name: str) -> bool:
    return names is None or name in names


def _itself(workload: Workload) -> Workload:
    return workload


def _find(wanted: str, known: Iterable[Workload]) -> list[Workload]:
    """Return the workloads that a name selects. A size may select several workloads; the beginning of a uuid must
    select one."""
    result = find_named(wanted, known, _itself)
    uuids = {one.uuid for one in result}
    if "=" not in wanted and len(uuids) > 1:
        raise ConfigError(f"workloads: {wanted!r} is the start of several uuids{_list_some(uuids)}; write more of it")
    return result


def _list_some(names: Iterable[str]) -> str:
    listed = sorted(names)
    more = f" and {len(listed) - SHOWN_NAMES} more" if len(listed) > SHOWN_NAMES else ""
    return f"; it has {', '.join(listed[:SHOWN_NAMES])}{more}" if listed else "; it has none"
