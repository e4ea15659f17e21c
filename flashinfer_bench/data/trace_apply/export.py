"""Writes the folder that FlashInfer's Trace Apply reads. Each file `solutions/<name>.json` has the solution for one of
FlashInfer's names.

A chosen solution has passed all workloads of its definition on one kind of hardware. A solution is not chosen if any
verdict is about an earlier version of it. Confirmed solutions precede unconfirmed solutions. A higher mean speed-up
decides next. If the best solution calls FlashInfer, nothing is written for the definition, because FlashInfer's kernel
is the best.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import TYPE_CHECKING, Final, NamedTuple

from flashinfer_bench.data.definition import Definition
from flashinfer_bench.data.measurement import CONFIRMED
from flashinfer_bench.data.sets.results import group, list_results
from flashinfer_bench.data.solution import Solution
from flashinfer_bench.data.store.jsonl import new_folder
from flashinfer_bench.data.store.layout import SOLUTIONS, find_set_around, path_part
from flashinfer_bench.data.trace_apply.families import translate
from flashinfer_bench.data.trace_apply.fitness import CallsLibrary, adapt
from flashinfer_bench.data.trace_apply.origin import WRAPPER_FILE, note_origin
from flashinfer_bench.errors import DataSetError, Fault

if TYPE_CHECKING:
    from flashinfer_bench.data.trace_set import TraceSet

NONE_PASSED: Final = "no solution passed all workloads here with a confirmed time; `run` confirms the fastest on a GPU"


@dataclass(frozen=True)
class AppliedSolution:
    """A solution in the written folder."""

    definition: str
    solution: str
    name: str
    """FlashInfer's name of the definition."""
    form: str
    """"unchanged" or "wrapped"."""
    confirmed: bool
    """Whether any time of the solution has full assurance."""
    speedup: float | None
    """Geometric mean of the solution's speed-ups over the reference."""
    limits: tuple[str, ...]
    """Properties of a call that FlashInfer does not pass or compare."""
    file: str
    """Path in the written folder."""


@dataclass(frozen=True)
class Skipped:
    """A definition or a solution that was not written."""

    definition: str
    solution: str | None
    """The skipped solution; None for all solutions of the definition."""
    reason: str


@dataclass(frozen=True)
class ExportedFolder:
    """The outcome of an export."""

    directory: str
    hardware: str | None
    written: tuple[AppliedSolution, ...]
    skipped: tuple[Skipped, ...]


class Candidate(NamedTuple):
    """A solution that passed on one kind of hardware. Candidates compare as tuples; the largest candidate is the
    best."""

    confirmed: bool
    speedup: float
    """Mean speed-up over the reference; 0 if the reference was not measured."""
    negative_ms: float
    name: str
    hardware: str


def export_apply(
    trace_set: TraceSet,
    directory: Path | str,
    *,
    definitions: Collection[str] | None = None,
    solutions: Collection[str] | None = None,
    hardware: str = "",
    unconfirmed: bool = False,
) -> ExportedFolder:
    """Write the folder for FLASHINFER_TRACE_APPLY_PATH: the best confirmed solution of each definition.

    No folder is made if no solution qualifies.

    Args:
        directory: a new or empty folder.
        definitions: names of the definitions; None for all.
        solutions: names of the solutions to choose from; None for all.
        hardware: the device, or a part of its name, such as "H200". It may be empty if all verdicts are from one kind
            of hardware.
        unconfirmed: also take solutions without a confirmed time, such as quick looks and CPU times, and solutions
            that were not judged on all workloads.

    Raises:
        DataSetError: a name is unknown, the hardware is ambiguous or has no qualified solution, or the folder is not
            empty.
        Fault: the folder cannot be written.
    """
    known = {one.name: one for one in trace_set.all_solutions()}
    if unknown := {*(definitions or ()), *(solutions or ())}.difference(trace_set.definitions, known):
        raise DataSetError(f"the trace set has no {', '.join(sorted(unknown))}")
    chosen = [one for name, one in trace_set.definitions.items() if definitions is None or name in definitions]
    candidates = {one.name: list(_find_candidates(trace_set, one, unconfirmed=unconfirmed)) for one in chosen}
    kinds = {one.hardware for found in candidates.values() for one in found if hardware.lower() in one.hardware.lower()}
    kinds = kinds & {hardware} or kinds
    judged = {one.hardware for found in candidates.values() for one in found}
    if judged and not kinds:
        raise DataSetError(f"no solution qualifies on {hardware}, but on {', '.join(sorted(judged))}")
    if len(kinds) > 1:
        raise DataSetError(f"the verdicts are from {' and '.join(sorted(kinds))}; name one of them as the hardware")
    skipped, named = list[Skipped](), dict[str, list[tuple[AppliedSolution, str]]]()
    for definition in chosen:
        here = [one for one in candidates[definition.name] if one.hardware in kinds]
        fitting = [one for one in here if solutions is None or one.name in solutions]
        for written, text in _adapt_best(definition, fitting, known, skipped):
            named.setdefault(written.name, []).append((written, text))
    files = dict[AppliedSolution, str]()
    for name, alike in named.items():
        if len(alike) > 1:
            reason = f"{len(alike)} definitions are {name} for FlashInfer; choose one of them"
            skipped += [Skipped(one.definition, one.solution, reason) for one, _ in alike]
        else:
            files.update(alike)
    if files:
        location, root = find_set_around(Path(directory))
        try:
            with new_folder(location, root) as folder:
                (folder / SOLUTIONS).mkdir()
                for written, text in files.items():
                    (folder / written.file).write_text(text, encoding="utf-8")
        except OSError as error:
            raise Fault(f"{directory} cannot be written: {error.strerror}") from error
    return ExportedFolder(str(directory), next(iter(kinds), None), tuple(files), tuple(skipped))


def _find_candidates(trace_set: TraceSet, definition: Definition, *, unconfirmed: bool) -> Iterator[Candidate]:
    """Yield the solutions whose present version failed no workload."""
    digests = {one.name: one.digest() for one in trace_set.solutions.get(definition.name, ())}
    workloads = {line.workload.uuid for line in trace_set.workloads.get(definition.name, ())}
    results = list_results(None, trace_set.all_traces(definition.name))
    for (name, hardware), judged in group(results, attrgetter("solution", "hardware")).items():
        versions = {item.reported.run.solution_digest for item in judged} - {""}
        timed = [item for item in judged if item.is_passed and item.latency_ms is not None]
        confirmed = any(item.standing == CONFIRMED and item.may_be_best for item in timed)
        is_whole = confirmed and workloads <= {item.workload for item in judged}
        if len(timed) == len(judged) and name in digests and versions <= {digests[name]} and (is_whole or unconfirmed):
            speedups = [item.speedup for item in timed if item.speedup]
            mean = geometric_mean(speedups) if speedups else 0.0
            yield Candidate(confirmed, mean, -fmean(item.latency_ms or 0 for item in timed), name, hardware)


def _adapt_best(
    definition: Definition,
    candidates: list[Candidate],
    known: Mapping[str, Solution],
    skipped: list[Skipped],
) -> Iterator[tuple[AppliedSolution, str]]:
    """Yield the best solution that Trace Apply can use, with the text of its file. Add better solutions to `skipped`,
    with the reasons."""
    try:
        family = translate(definition)
    except ValueError as error:
        skipped.append(Skipped(definition.name, None, str(error)))
        return
    if not candidates:
        skipped.append(Skipped(definition.name, None, NONE_PASSED))
    for confirmed, speedup, _, name, _ in sorted(candidates, reverse=True):
        try:
            adapted = adapt(known[name], definition, family)
        except ValueError as error:
            skipped.append(Skipped(definition.name, name, str(error)))
            if isinstance(error, CallsLibrary):
                return
            continue
        form = "wrapped" if str(adapted.get_entry_path()) == WRAPPER_FILE else "unchanged"
        file, limits = f"{SOLUTIONS}/{path_part(name)}.json", family.limits
        mean = speedup or None
        written = AppliedSolution(definition.name, name, family.name, form, confirmed, mean, limits, file)
        yield written, f"{json.dumps(note_origin(adapted, known[name]), indent=2)}\n"
        return
