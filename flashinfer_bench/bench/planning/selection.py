"""Which definitions, solutions and workloads the filters of a configuration leave, and whether all their names exist.

All wrong names are told at once, each with its place and the nearest known name. Used by plan.py only.
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
    definitions = [item for item in trace_set.definitions.values() if _keeps_definition(config, item)]
    if not definitions and trace_set.definitions:
        raise ConfigError("no definition has a name in `definitions` and an op type in `op_types`; widen one of them")
    uuids = _resolve_uuids(config.workloads or [], definitions, trace_set)
    selected = [
        Selected(
            definition,
            tuple(item for item in _solutions(trace_set, definition) if _keeps_solution(config, item)),
            tuple(item for item in _workloads(trace_set, definition) if not config.workloads or item.uuid in uuids),
        )
        for definition in definitions
    ]
    _check_something_is_left(config, selected)
    return [item for item in selected if not _is_filtered_out(config, item)]


def set_missing_aside(selected: Sequence[Selected], trace_set: TraceSet) -> tuple[list[Selected], dict[str, str]]:
    """Take out the workloads whose stored inputs are missing.

    Returns:
        What is left, without definitions that have no workload any more; and definition → what was taken out, and why.
    """
    left, reasons = [], {}
    for item in selected:
        missing = _find_missing(item, trace_set)
        kept = tuple(workload for workload in item.workloads if workload.uuid not in missing)
        if missing:
            first = f"blob {next(iter(missing.values()))} is not there"
            more = f", nor are those of {len(missing) - 1} more" if len(missing) > 1 else ""
            lack = f"{len(missing)} of {len(item.workloads)} workloads lack their stored inputs: {first}{more}"
            reasons[item.definition.name] = f"{lack}; download the blob/ folder of the data set"
        if kept or not missing:
            left.append(replace(item, workloads=kept))
    return left, reasons


def _find_missing(selected: Selected, trace_set: TraceSet) -> dict[str, Path]:
    """Return the uuid of each workload that has a missing blob, with the first one."""
    missing: dict[str, Path] = {}
    looked_at: dict[tuple[Path, str], bool] = {}
    for workload in selected.workloads:
        paths = [source.path for source in workload.stored_inputs.values()]
        root = (trace_set.blob_root(selected.definition.name, workload.uuid) if paths else None) or Path()
        for path in paths:
            if (root, path) not in looked_at:
                looked_at[root, path] = BlobStore(root).is_missing(path)
            if looked_at[root, path]:
                missing.setdefault(workload.uuid, root / path)
    return missing


def check_names(trace_set: TraceSet, config: BenchmarkConfig) -> None:
    """Raise one ConfigError that lists every name which the set does not have."""
    definitions = list(trace_set.definitions)
    op_types = {normalise_op_type(item.op_type): item.op_type for item in trace_set.definitions.values()}
    solutions = [item for listed in trace_set.solutions.values() for item in listed]
    problems = [
        *_unknown("definitions", "definition", config.definitions, definitions),
        *_wrong_solutions(config, trace_set),
        *_unknown("op_types", "op type", config.op_types, op_types.values(), normalise_op_type),
        *_unknown("authors", "author", config.authors, [item.author for item in solutions]),
        *_wrong_uuids(config, trace_set),
    ]
    for place, name in config.section_places("op_type_config", users_only=True):
        problems += _unknown(place, "op type", [name], [*op_types.values(), *known_op_types()], normalise_op_type)
    for place, name in config.section_places("definition_config", users_only=True):
        problems += _unknown(place, "definition", [name], definitions)
    if problems:
        raise ConfigError("\n".join(problems))


def _unknown(
    place: str, kind: str, names: Iterable[str] | None, known: Iterable[str], identity: Callable[[str], str] = str
) -> Iterator[str]:
    there = dict.fromkeys(known)
    identities = {identity(name) for name in there}
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
    authors = {item.author for item in solutions}
    kept = {item.name for item in trace_set.definitions.values() if _keeps_definition(config, item)}
    there = [item.name for item in solutions if item.definition in kept]
    for wanted in dict.fromkeys(config.solutions or ()):
        if wanted in authors and not any(item.name == wanted for item in solutions):
            yield f"solutions: the trace set has no solution {wanted!r}; that is an author: give it to `authors`"
        elif not any(item.name == wanted for item in solutions):
            near = did_you_mean(wanted, there) or did_you_mean(wanted, [item.name for item in solutions])
            yield f"solutions: the trace set has no solution {wanted!r}{near or _list_some(there)}"


def _wrong_uuids(config: BenchmarkConfig, trace_set: TraceSet) -> Iterator[str]:
    definitions = [item for item in trace_set.definitions.values() if _keeps_definition(config, item)]
    definitions = [item for item in definitions if _has_wanted(config, trace_set, item)] or definitions
    all_uuids = _uuids(trace_set, trace_set.definitions.values())
    for wanted in config.workloads or ():
        candidates = _matching(wanted, _uuids(trace_set, definitions)) or _matching(wanted, all_uuids)
        if len(candidates) > 1:
            yield f"workloads: {wanted!r} is the start of several uuids{_list_some(candidates)}; write more of it"
        elif not candidates and any(uuid.startswith(wanted) for uuid in all_uuids):
            yield f"workloads: {wanted!r} is too short: the start of a uuid needs {MIN_PREFIX} characters"
        elif not candidates:
            hint = did_you_mean(wanted, all_uuids) or _list_some(_uuids(trace_set, definitions))
            yield f"workloads: the trace set has no workload {wanted!r}{hint}"


def _has_wanted(config: BenchmarkConfig, trace_set: TraceSet, definition: Definition) -> bool:
    """Tell whether a definition has one of the chosen solutions."""
    return any(_keeps_solution(config, item) for item in _solutions(trace_set, definition))


def _matching(wanted: str, uuids: Sequence[str]) -> list[str]:
    if wanted in uuids:
        return [wanted]
    return [uuid for uuid in uuids if uuid.startswith(wanted)] if len(wanted) >= MIN_PREFIX else []


def _resolve_uuids(wanted: Sequence[str], definitions: Sequence[Definition], trace_set: TraceSet) -> set[str]:
    uuids = _uuids(trace_set, definitions)
    return {uuid for name in wanted for uuid in _matching(name, uuids)}


def _uuids(trace_set: TraceSet, definitions: Iterable[Definition]) -> list[str]:
    return list(dict.fromkeys(item.uuid for definition in definitions for item in _workloads(trace_set, definition)))


def _workloads(trace_set: TraceSet, definition: Definition) -> list[Workload]:
    return [trace.workload for trace in trace_set.workloads.get(definition.name, [])]


def _solutions(trace_set: TraceSet, definition: Definition) -> list[Solution]:
    return list(trace_set.solutions.get(definition.name, []))


def _keeps_definition(config: BenchmarkConfig, definition: Definition) -> bool:
    op_types = {normalise_op_type(name) for name in config.op_types or ()}
    by_name = config.definitions is None or definition.name in config.definitions
    return by_name and (config.op_types is None or normalise_op_type(definition.op_type) in op_types)


def _keeps_solution(config: BenchmarkConfig, solution: Solution) -> bool:
    by_name = config.solutions is None or solution.name in config.solutions
    return by_name and (config.authors is None or solution.author in config.authors)


def _filters_solutions(config: BenchmarkConfig) -> bool:
    return config.solutions is not None or config.authors is not None


def _is_filtered_out(config: BenchmarkConfig, selected: Selected) -> bool:
    no_solution = _filters_solutions(config) and not selected.solutions
    return no_solution or (config.workloads is not None and not selected.workloads)


def _check_something_is_left(config: BenchmarkConfig, selected: Sequence[Selected]) -> None:
    given = [name for name in ("definitions", "op_types", "solutions", "authors", "workloads") if getattr(config, name)]
    among = f"; the filters given are {', '.join(given)}: widen one of them"
    by_solution = _filters_solutions(config)
    if by_solution and not any(item.solutions for item in selected):
        raise ConfigError(f"no solution is left{among}")
    if config.workloads is not None and not any(item.workloads for item in selected):
        raise ConfigError(f"no workload is left{among}")
    if selected and all(_is_filtered_out(config, item) for item in selected):
        raise ConfigError(f"no definition has both a solution and a workload left{among}")
