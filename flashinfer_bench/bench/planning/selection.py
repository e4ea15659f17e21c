"""Which definitions, solutions and workloads the filters of a configuration leave, and whether all their names exist.

All wrong names are told at once, each with its place and the nearest known name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from flashinfer_bench.bench.config import BenchmarkConfig
from flashinfer_bench.bench.evaluator_record import known_op_types
from flashinfer_bench.data.definition import Definition, normalise_op_type
from flashinfer_bench.data.names import did_you_mean
from flashinfer_bench.data.solution import Solution
from flashinfer_bench.data.store.blobs import BlobStore
from flashinfer_bench.data.trace_set import TraceSet
from flashinfer_bench.data.workload import MIN_PREFIX, Workload
from flashinfer_bench.errors import ConfigError

SHOWN_NAMES: Final = 8
FILTERS: Final = ("definitions", "op_types", "solutions", "authors", "workloads")


@dataclass(frozen=True)
class Selected:
    """What is left of one definition's matrix."""

    definition: Definition
    solutions: tuple[Solution, ...]
    workloads: tuple[Workload, ...]


def select(trace_set: TraceSet, config: BenchmarkConfig) -> list[Selected]:
    """Return the definitions that the filters leave, with their solutions and workloads, in the order of the set.

    Raises:
        ConfigError: a name does not exist (all such names are listed), or the filters together leave nothing.
    """
    check_names(trace_set, config)
    definitions = _kept_definitions(trace_set, config)
    if not definitions and trace_set.definitions:
        raise ConfigError("no definition has a name in `definitions` and an op type in `op_types`; widen one of them")
    known = _uuids(trace_set, definitions)
    uuids = {uuid for name in config.workloads or () for uuid in _matching(name, known)}
    selected = [
        Selected(
            item,
            tuple(one for one in trace_set.solutions.get(item.name, ()) if _keeps_solution(config, one)),
            tuple(one for one in _workloads(trace_set, item) if not config.workloads or one.uuid in uuids),
        )
        for item in definitions
    ]
    by_solution, by_workload = not _keeps_all_solutions(config), config.workloads is not None
    left = [item for item in selected if (item.solutions or not by_solution) and (item.workloads or not by_workload)]
    for is_empty, lack in (
        (by_solution and not any(item.solutions for item in selected), "no solution is left"),
        (by_workload and not any(item.workloads for item in selected), "no workload is left"),
        (selected and not left, "no definition has both a solution and a workload left"),
    ):
        if is_empty:
            given = ", ".join(name for name in FILTERS if getattr(config, name))
            raise ConfigError(f"{lack}; the filters given are {given}: widen one of them")
    return left


def set_missing_aside(selected: Sequence[Selected], trace_set: TraceSet) -> tuple[list[Selected], dict[str, str]]:
    """Take out the workloads whose stored inputs are missing.

    Returns:
        What is left, without definitions that have no workload any more; and definition → what was taken out, and why.
    """
    left, reasons = [], {}
    looked_at: dict[Path, bool] = {}
    for item in selected:
        missing: dict[str, Path] = {}
        for workload in item.workloads:
            paths = [source.path for source in workload.stored_inputs.values()]
            root = (trace_set.blob_root(item.definition.name, workload.uuid) if paths else None) or Path()
            for path in paths:
                if root / path not in looked_at:
                    looked_at[root / path] = BlobStore(root).is_missing(path)
                if looked_at[root / path]:
                    missing.setdefault(workload.uuid, root / path)
        kept = tuple(workload for workload in item.workloads if workload.uuid not in missing)
        if missing:
            first = f"blob {next(iter(missing.values()))} is not there"
            more = f", nor are those of {len(missing) - 1} more" if len(missing) > 1 else ""
            lack = f"{len(missing)} of {len(item.workloads)} workloads lack their stored inputs: {first}{more}"
            reasons[item.definition.name] = f"{lack}; download the blob/ folder of the data set"
        if kept or not missing:
            left.append(replace(item, workloads=kept))
    return left, reasons


def check_names(trace_set: TraceSet, config: BenchmarkConfig) -> None:
    """Raise one ConfigError that lists every name which the set does not have."""
    definitions = list(trace_set.definitions)
    op_types = {normalise_op_type(item.op_type): item.op_type for item in trace_set.definitions.values()}.values()
    authors = [item.author for listed in trace_set.solutions.values() for item in listed]
    problems = [
        *_unknown("definitions", "definition", config.definitions, definitions),
        *_wrong_solutions(config, trace_set),
        *_unknown("op_types", "op type", config.op_types, op_types, normalise_op_type),
        *_unknown("authors", "author", config.authors, authors),
        *_wrong_uuids(config, trace_set),
    ]
    for place, name in config.section_places("op_type_config", users_only=True):
        problems += _unknown(place, "op type", [name], [*op_types, *known_op_types()], normalise_op_type)
    for place, name in config.section_places("definition_config", users_only=True):
        problems += _unknown(place, "definition", [name], definitions)
    if problems:
        raise ConfigError("\n".join(problems))


def _unknown(
    place: str, kind: str, names: Iterable[str] | None, known: Iterable[str], identity: Callable[[str], str] = str
) -> Iterator[str]:
    there = dict.fromkeys(known)
    identities = set(map(identity, there))
    for name in names or ():
        if identity(name) not in identities:
            yield f"{place}: the trace set has no {kind} {name!r}{did_you_mean(name, there) or _list_some(there)}"


def _list_some(names: Iterable[str]) -> str:
    listed = sorted(names)
    more = f" and {len(listed) - SHOWN_NAMES} more" if len(listed) > SHOWN_NAMES else ""
    return f"; it has {', '.join(listed[:SHOWN_NAMES])}{more}" if listed else "; it has none"


def _wrong_solutions(config: BenchmarkConfig, trace_set: TraceSet) -> Iterator[str]:
    """Yield a line for each unknown solution, with those of the chosen definitions; an author is told as one."""
    solutions = [item for listed in trace_set.solutions.values() for item in listed]
    names = {item.name for item in solutions}
    kept = {item.name for item in _kept_definitions(trace_set, config)}
    there = [item.name for item in solutions if item.definition in kept]
    for wanted in dict.fromkeys(config.solutions or ()):
        if wanted in names:
            continue
        if any(item.author == wanted for item in solutions):
            hint = "; that is an author: give it to `authors`"
        else:
            hint = did_you_mean(wanted, there) or did_you_mean(wanted, names) or _list_some(there)
        yield f"solutions: the trace set has no solution {wanted!r}{hint}"


def _wrong_uuids(config: BenchmarkConfig, trace_set: TraceSet) -> Iterator[str]:
    kept = _kept_definitions(trace_set, config)
    of_solutions = {
        one.definition for listed in trace_set.solutions.values() for one in listed if _keeps_solution(config, one)
    }
    near = _uuids(trace_set, [item for item in kept if item.name in of_solutions] or kept)
    all_uuids = _uuids(trace_set, trace_set.definitions.values())
    for wanted in config.workloads or ():
        candidates = _matching(wanted, near) or _matching(wanted, all_uuids)
        if len(candidates) > 1:
            yield f"workloads: {wanted!r} is the start of several uuids{_list_some(candidates)}; write more of it"
        elif not candidates and any(uuid.startswith(wanted) for uuid in all_uuids):
            yield f"workloads: {wanted!r} is too short: the start of a uuid needs {MIN_PREFIX} characters"
        elif not candidates:
            hint = did_you_mean(wanted, all_uuids) or _list_some(near)
            yield f"workloads: the trace set has no workload {wanted!r}{hint}"


def _matching(wanted: str, uuids: Sequence[str]) -> list[str]:
    if wanted in uuids:
        return [wanted]
    return [uuid for uuid in uuids if uuid.startswith(wanted)] if len(wanted) >= MIN_PREFIX else []


def _uuids(trace_set: TraceSet, definitions: Iterable[Definition]) -> list[str]:
    return list(dict.fromkeys(item.uuid for definition in definitions for item in _workloads(trace_set, definition)))


def _workloads(trace_set: TraceSet, definition: Definition) -> list[Workload]:
    return [trace.workload for trace in trace_set.workloads.get(definition.name, [])]


def _kept_definitions(trace_set: TraceSet, config: BenchmarkConfig) -> list[Definition]:
    op_types = None if config.op_types is None else set(map(normalise_op_type, config.op_types))
    return [
        item
        for item in trace_set.definitions.values()
        if (config.definitions is None or item.name in config.definitions)
        and (op_types is None or normalise_op_type(item.op_type) in op_types)
    ]


def _keeps_solution(config: BenchmarkConfig, solution: Solution) -> bool:
    by_name = config.solutions is None or solution.name in config.solutions
    return by_name and (config.authors is None or solution.author in config.authors)


def _keeps_all_solutions(config: BenchmarkConfig) -> bool:
    return config.solutions is None and config.authors is None
