"""The two words of `compare`: solutions (names, files, folders), authors, sets, or files of traces.

A source file, or a folder of sources without a manifest, is a draft: what it does not say is found out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from flashinfer_bench.data import Solution, Trace, TraceSet, load_json_file, load_jsonl_file
from flashinfer_bench.data.names import did_you_mean
from flashinfer_bench.data.sets.results import Result, list_results
from flashinfer_bench.data.store.drafts import SOURCE_SUFFIXES, Draft, DraftHints, read_draft
from flashinfer_bench.data.store.layout import DEFINITIONS, SOLUTIONS, TRACES
from flashinfer_bench.data.store.pack import MANIFEST_NAMES, pack_folder
from flashinfer_bench.data.store.trace_lines import AnyTrace, kept_of
from flashinfer_bench.data.workload import MIN_PREFIX
from flashinfer_bench.errors import DataSetError


@dataclass(frozen=True)
class Contender:
    """One side."""

    word: str
    kind: Literal["solution", "author", "set", "run"]
    solutions: tuple[Solution, ...] = ()
    """Empty for a run."""
    results: tuple[Result, ...] = ()
    """Its recorded verdicts, the latest of each job."""
    trace_set: TraceSet | None = field(default=None, compare=False)
    """Of a set."""
    draft: Draft | None = field(default=None, compare=False)
    """Of a source file, or of a folder of sources without a manifest."""


@dataclass(frozen=True)
class Pairing:
    """Two solutions of one definition."""

    first: Solution
    """A."""
    second: Solution
    """B."""
    label: str = ""
    """What tells it from the other pairings; empty if there is one."""


def find_sides(
    words: tuple[str, str], trace_set: TraceSet | None, hints: DraftHints | None = None
) -> tuple[Contender, Contender]:
    """Return both sides. A draft is taken to be of the definition of the other side.

    Args:
        words: what the user typed.
        trace_set: where names and definitions are looked up; None if no set was named.
        hints: what the user says of a draft.

    Raises:
        DataSetError: a word names nothing, a file cannot be read, or a draft is of another definition.
    """
    is_turned = _is_draft(Path(words[0])) and not _is_draft(Path(words[1]))
    one, other = reversed(words) if is_turned else words
    first = find_contender(one, trace_set, hints)
    second = _find_beside(other, first, trace_set, hints or DraftHints())
    return (second, first) if is_turned else (first, second)


def _find_beside(word: str, other: Contender, trace_set: TraceSet | None, hints: DraftHints) -> Contender:
    """Return a side whose draft takes the definition of the other side, if that has one and no hint says another."""
    definitions = {solution.definition for solution in other.solutions}
    if hints.definition is not None or other.kind != "solution" or len(definitions) != 1:
        return find_contender(word, trace_set, hints)
    (taken,) = definitions
    found = find_contender(word, trace_set, replace(hints, definition=taken))
    own = None
    if found.draft is not None and trace_set is not None:
        with suppress(DataSetError):  # it does not say its definition itself
            own = read_draft(found.draft.path, trace_set.definitions, hints)
    if own is not None and own.solution.definition != taken:
        raise DataSetError(
            f"{own.found}; {other.word} is of {taken}: give two solutions of one definition, "
            f"or say that both are of it: --definition {taken}"
        )
    return found


def find_contender(word: str, trace_set: TraceSet | None, hints: DraftHints | None = None) -> Contender:
    """Return the side that a word names: a file or a folder if there is one, else a solution's name, else an author.

    Args:
        word: what the user typed.
        trace_set: where names are looked up; None if no set was named.
        hints: what is known of a draft.

    Raises:
        DataSetError: it names nothing, or the file cannot be read.
    """
    path = Path(word)
    if _is_draft(path):
        if trace_set is None:
            raise DataSetError(f"{word}: its definition is looked up in a trace set, and none was named: --local PATH")
        draft = read_draft(path, trace_set.definitions, hints)
        found = _of_solutions(word, [draft.solution], trace_set)
        digest = draft.solution.digest()
        same = tuple(one for one in found.results if one.told.run.fingerprint.solution == digest)
        return replace(found, draft=draft, results=same)
    if path.is_dir() and not any((path / name).exists() for name in MANIFEST_NAMES):
        opened = TraceSet.from_path(path)
        solutions = tuple(one for listed in opened.solutions.values() for one in listed)
        return Contender(word, "set", solutions, tuple(list_results(opened, _all_traces(opened))), opened)
    if path.is_dir():
        return _of_solutions(word, [pack_folder(path).solution], trace_set)
    if path.is_file() and path.suffix == ".jsonl":
        return Contender(word, "run", (), tuple(list_results(None, load_jsonl_file(Trace, path))))
    if path.is_file():
        return _of_solutions(word, [load_json_file(Solution, path)], trace_set)
    if trace_set is None:
        raise DataSetError(
            f"{word!r} is no file and no folder, and no trace set was named in which to look: --local PATH"
        )
    known = [solution for listed in trace_set.solutions.values() for solution in listed]
    if named := [one for one in known if one.name == word]:
        return _of_solutions(word, named, trace_set)
    if written := [one for one in known if one.author == word]:
        return replace(_of_solutions(word, written, trace_set), kind="author")
    hint = did_you_mean(word, {name for one in known for name in (one.name, one.author)})
    raise DataSetError(f"{word!r} is no file, no solution and no author of the trace set{hint}")


def _is_draft(path: Path) -> bool:
    """Tell whether a path is a file that is no JSON, or a folder without a manifest that is no set."""
    if path.is_dir():
        return not any((path / name).exists() for name in (*MANIFEST_NAMES, DEFINITIONS, SOLUTIONS, TRACES))
    return path.suffix.lower() in SOURCE_SUFFIXES or (path.is_file() and path.suffix not in (".json", ".jsonl"))


def _of_solutions(word: str, solutions: list[Solution], trace_set: TraceSet | None) -> Contender:
    names = {solution.name for solution in solutions}
    recorded = [] if trace_set is None else [one for one in _all_traces(trace_set) if one.solution in names]
    return Contender(word, "solution", tuple(solutions), tuple(list_results(trace_set, recorded)))


def _all_traces(trace_set: TraceSet) -> Iterable[AnyTrace]:
    return (trace for traces in trace_set.traces.values() for trace in kept_of(traces))


def choose_workloads(words: Sequence[str] | None, known: Collection[str]) -> frozenset[str]:
    """Return the uuids that words name, each by itself or by its beginning; None names all.

    Raises:
        DataSetError: a word names none.
    """
    if words is None:
        return frozenset(known)
    chosen: set[str] = set()
    for word in words:
        found = {uuid for uuid in known if uuid == word or (len(word) >= MIN_PREFIX and uuid.startswith(word))}
        if not found:
            raise DataSetError(f"workloads: {word!r} is none of both sides{did_you_mean(word, known)}")
        chosen |= found
    return frozenset(chosen)


def pair_up(first: Contender, second: Contender) -> list[Pairing]:
    """Return the solutions to measure against each other: of sets by name, of others by definition.

    Raises:
        DataSetError: the two cannot be paired, or have no definition in common.
    """
    if "run" in (first.kind, second.kind):
        raise DataSetError("a file of traces holds no solutions to measure: give --recorded too")
    if first.kind != second.kind:
        raise DataSetError(f"{first.word} is a {first.kind}, {second.word} is a {second.kind}: give two of a kind")
    is_set = first.kind == "set"
    sides: list[dict[tuple[str, str], list[Solution]]] = [defaultdict(list), defaultdict(list)]
    for side, grouped in zip((first, second), sides, strict=True):
        for one in side.solutions:
            grouped[one.definition, one.name if is_set else ""].append(one)
    pairings = []
    for key in sorted(sides[0].keys() & sides[1].keys()):
        a, b = (_choose(side, grouped[key]) for side, grouped in zip((first, second), sides, strict=True))
        if is_set:
            _check_same_definition(first, second, a.definition)
        label = {"set": a.name, "author": f"{a.name} : {b.name}"}.get(first.kind, "")
        pairings.append(Pairing(a, b, label))
    if not pairings:
        of = [f"{one.word} is of {one.solutions[0].definition}" for one in (first, second) if one.kind == "solution"]
        why = f": {', '.join(of)}" if of else ""
        raise DataSetError(
            f"{first.word} and {second.word} have no definition in common that both have a solution for{why}"
        )
    return pairings


def _check_same_definition(first: Contender, second: Contender, name: str) -> None:
    found = [one.trace_set.definitions.get(name) for one in (first, second) if one.trace_set is not None]
    if len({definition.digest() for definition in found if definition is not None}) > 1:
        raise DataSetError(f"{name} is another definition in {second.word} than in {first.word}: times say nothing")


def _choose(side: Contender, solutions: list[Solution]) -> Solution:
    """Return an author's solution of a definition: of several the one that is recorded as the fastest."""
    if len(solutions) == 1:
        return solutions[0]
    times: dict[str, list[float]] = defaultdict(list)
    for one in side.results:
        if one.is_passed:
            times[one.solution].append(one.latency_ms or 0.0)
    if not any(times[one.name] for one in solutions):
        names = ", ".join(one.name for one in solutions)
        raise DataSetError(
            f"{side.word} has several solutions of {solutions[0].definition}, and no trace tells the fastest: {names}; "
            "name the solutions to compare"
        )
    return min(solutions, key=lambda one: (-len(times[one.name]), sum(times[one.name])))
