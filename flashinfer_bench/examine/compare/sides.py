"""The two arguments of `compare`: solutions (names, files, folders), authors, sets, or files of traces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

from flashinfer_bench.data import Solution, Trace, TraceSet, load_jsonl_file
from flashinfer_bench.data.names import did_you_mean
from flashinfer_bench.data.sets.results import Result, group, list_results
from flashinfer_bench.data.store.drafts import Draft, DraftHints, is_draft_path, read_draft
from flashinfer_bench.data.store.layout import DEFINITIONS, SOLUTIONS, TRACES
from flashinfer_bench.data.workload import Workload, find_named
from flashinfer_bench.errors import DataSetError

T = TypeVar("T")


@dataclass(frozen=True)
class Contender:
    """One side."""

    word: str
    kind: Literal["solution", "author", "set", "run"]
    solutions: Sequence[Solution] = ()
    """Empty for a run."""
    results: Sequence[Result] = ()
    """Its recorded verdicts: the latest of each job."""
    trace_set: TraceSet | None = field(default=None, compare=False)
    """The set, opened; None for a side of another kind."""
    draft: Draft | None = field(default=None, compare=False)
    """The source, if the side is a file or a folder."""


class Pairing(NamedTuple):
    """Two solutions of one definition."""

    first: Solution
    """A."""
    second: Solution
    """B."""
    label: str = ""
    """The name of the pairing, if there are several; else empty."""


def find_sides(
    words: tuple[str, str], trace_set: TraceSet | None, hints: DraftHints | None = None
) -> tuple[Contender, Contender]:
    """Return both sides. A source that fits several definitions gets the definition of the opposite side.

    Args:
        words: the user's arguments.
        trace_set: the set of names and definitions; None if the user named no set.
        hints: the user's flags about a source.

    Raises:
        DataSetError: an argument names nothing, a file cannot be read, or a source is of another definition.
    """
    is_turned = is_draft_path(words[0]) and not is_draft_path(words[1])
    one, other = reversed(words) if is_turned else words
    first = find_contender(one, trace_set, hints)
    second = find_contender(other, trace_set, hints, beside=first)
    return (second, first) if is_turned else (first, second)


def find_contender(
    word: str, trace_set: TraceSet | None, hints: DraftHints | None = None, beside: Contender | None = None
) -> Contender:
    """Return the side that an argument names: a set, a file of traces, a source, a solution's name, or an author.

    Args:
        word: the user's argument.
        trace_set: the set of names and definitions; None if the user named no set.
        hints: the user's flags about a source.
        beside: the opposite side, if it is known.

    Raises:
        DataSetError: the argument names nothing, or the file cannot be read.
    """
    path = Path(word)
    if any((path / part).is_dir() for part in (DEFINITIONS, SOLUTIONS, TRACES)):
        opened = TraceSet.from_path(path)
        return Contender(word, "set", [*opened.all_solutions()], list_results(opened, opened.all_traces()), opened)
    if path.is_file() and path.suffix == ".jsonl":
        return Contender(word, "run", (), list_results(None, load_jsonl_file(Trace, path)))
    if trace_set is None:
        raise DataSetError(f"{word!r} is no set and no file of traces, and no trace set was named: --local PATH")
    if is_draft_path(word):
        draft = _read_beside(path, trace_set, hints or DraftHints(), beside)
        found = _of_solutions(word, "solution", [draft.solution], trace_set)
        digest = draft.solution.digest()
        same = [one for one in found.results if draft.is_packed or one.reported.run.solution_digest == digest]
        return replace(found, draft=draft, results=same)
    known = list(trace_set.all_solutions())
    if named := [one for one in known if one.name == word]:
        return _of_solutions(word, "solution", named, trace_set)
    if written := [one for one in known if one.author == word]:
        return _of_solutions(word, "author", written, trace_set)
    hint = did_you_mean(word, {name for one in known for name in (one.name, one.author)})
    raise DataSetError(f"{word!r} is no file, no solution and no author of the trace set{hint}")


def _read_beside(path: Path, trace_set: TraceSet, hints: DraftHints, beside: Contender | None) -> Draft:
    """Read a source. If it does not fit exactly one definition, use the definition of the opposite side."""
    of = {one.definition for one in beside.solutions} if beside is not None and beside.kind == "solution" else set()
    if beside is None or len(of) != 1 or hints.definition is not None:
        return read_draft(path, trace_set.definitions, hints)
    (taken,) = of
    try:
        draft = read_draft(path, trace_set.definitions, hints)
    except DataSetError:
        given = replace(hints, definition=taken)
        return read_draft(path, trace_set.definitions, given)
    if draft.solution.definition != taken:
        raise DataSetError(
            f"{draft.found}; {beside.word} is of {taken}: give two solutions of one definition, "
            f"or say that both are of it: --definition {taken}"
        )
    return draft


def _of_solutions(
    word: str, kind: Literal["solution", "author"], solutions: Sequence[Solution], trace_set: TraceSet
) -> Contender:
    names = {solution.name for solution in solutions}
    recorded = [one for one in trace_set.all_traces() if one.solution in names]
    return Contender(word, kind, solutions, list_results(trace_set, recorded))


def choose_workloads(words: Sequence[str] | None, items: Sequence[T], workload_of: Callable[[T], Workload]) -> list[T]:
    """Return the items whose workloads are named; `find_named` reads a name. Without words, return all items.

    Raises:
        DataSetError: a word names no workload.
    """
    chosen: set[int] = set()
    for word in words or ():
        found = find_named(word, items, workload_of)
        if not found:
            hint = did_you_mean(word, {workload_of(item).uuid for item in items})
            raise DataSetError(f"workloads: {word!r} is none of both sides{hint}")
        chosen |= set(map(id, found))
    return [item for item in items if words is None or id(item) in chosen]


def pair_up(first: Contender, second: Contender) -> list[Pairing]:
    """Return the pairs of solutions to measure. Two trace sets are paired by the names of solutions.

    Anything else is paired by definition.

    Raises:
        DataSetError: the sides cannot be paired, or have no definition in common.
    """
    sides = (first, second)
    if "run" in (first.kind, second.kind):
        raise DataSetError("a file of traces holds no solutions to measure: give --recorded too")
    if first.kind != second.kind:
        raise DataSetError(f"{first.word} is a {first.kind}, {second.word} is a {second.kind}: give two of a kind")
    is_set = first.kind == "set"
    grouped = [group(one.solutions, lambda one: (one.definition, one.name if is_set else "")) for one in sides]
    pairings = []
    for key in sorted(grouped[0].keys() & grouped[1].keys()):
        for side, listed in zip(sides, grouped, strict=True):
            if len(listed[key]) > 1:
                names = ", ".join(one.name for one in listed[key])
                raise DataSetError(f"{side.word} has several solutions of {key[0]}: name the one to compare: {names}")
        texts = {one.trace_set.definitions[key[0]].digest() for one in sides if one.trace_set is not None}
        if len(texts) > 1:
            raise DataSetError(f"{key[0]} is another definition in {second.word} than in {first.word}")
        a, b = (listed[key][0] for listed in grouped)
        label = "" if first.kind == "solution" else " : ".join(dict.fromkeys((a.name, b.name)))
        pairings.append(Pairing(a, b, label))
    if not pairings:
        of = [f"{side.word} is of {', '.join(sorted({one.definition for one in side.solutions}))}" for side in sides]
        raise DataSetError(f"the two sides have no definition in common: {'; '.join(of)}")
    return pairings
