"""What the two words of `compare` name: solutions (names, files, folders), authors, sets, or files of traces.

A source file, or a folder of sources without a manifest, is a draft: what it does not say is found out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Literal

from flashinfer_bench.data import Solution, Trace, TraceSet, load_json_file, load_jsonl_file
from flashinfer_bench.data.names import did_you_mean
from flashinfer_bench.data.sets.best import passed_of
from flashinfer_bench.data.sets.latest import find_latest
from flashinfer_bench.data.sets.told import tell
from flashinfer_bench.data.store.drafts import SOURCE_SUFFIXES, Draft, DraftHints, read_draft
from flashinfer_bench.data.store.layout import DEFINITIONS, SOLUTIONS, TRACES
from flashinfer_bench.data.store.pack import MANIFEST_NAMES, pack_folder
from flashinfer_bench.data.store.trace_lines import AnyTrace, kept_of
from flashinfer_bench.errors import DataSetError
from flashinfer_bench.examine.compare.measuring import Pairing

OF_SETS: Final = (DEFINITIONS, SOLUTIONS, TRACES)
"""A folder with one of these folders in it is a trace set."""
Kind = Literal["solution", "author", "set", "run"]


@dataclass(frozen=True)
class Contender:
    """What one word names."""

    word: str
    kind: Kind
    solutions: tuple[Solution, ...] = ()
    """Empty for a run."""
    traces: tuple[AnyTrace, ...] = ()
    """What is recorded of it, the latest of each job."""
    trace_set: TraceSet | None = field(default=None, compare=False)
    """Of a set."""
    draft: Draft | None = field(default=None, compare=False)
    """Of a source file, or of a folder of sources without a manifest."""


def find_sides(
    words: tuple[str, str], trace_set: TraceSet | None, hints: DraftHints | None = None
) -> tuple[Contender, Contender]:
    """Return what both words name. A draft is taken to be of the definition of the other side.

    Args:
        words: what the user typed.
        trace_set: where names and definitions are looked up; None where no set was named.
        hints: what the user says of a draft.

    Raises:
        DataSetError: one of them names nothing, the file cannot be read, or a draft is of another definition.
    """
    first, second = words
    if _is_draft(Path(first)) and not _is_draft(Path(second)):
        found = find_contender(second, trace_set)
        return _find_beside(first, found, trace_set, hints), found
    found = find_contender(first, trace_set, hints)
    return found, _find_beside(second, found, trace_set, hints)


def find_contender(word: str, trace_set: TraceSet | None, hints: DraftHints | None = None) -> Contender:
    """Return what a word names: a file or a folder where there is one, else a solution's name, else an author.

    Args:
        word: what the user typed.
        trace_set: where names are looked up; None where no set was named.
        hints: what is known of a draft.

    Raises:
        DataSetError: it names nothing, or the file cannot be read.
    """
    path = Path(word)
    if _is_draft(path):
        return _find_draft(word, path, trace_set, hints)
    if path.is_dir():
        return _find_in_folder(word, path, trace_set)
    if path.is_file():
        return _find_in_file(word, path, trace_set)
    if trace_set is None:
        raise DataSetError(
            f"{word!r} is no file and no folder, and no trace set was named in which to look: --local PATH"
        )
    known = [solution for listed in trace_set.solutions.values() for solution in listed]
    named = tuple(solution for solution in known if solution.name == word)
    if named:
        return Contender(word, "solution", named, _recorded(trace_set, named))
    written = tuple(solution for solution in known if solution.author == word)
    if written:
        return Contender(word, "author", written, _recorded(trace_set, written))
    names = [*(solution.name for solution in known), *{solution.author for solution in known}]
    raise DataSetError(f"{word!r} is no file, no solution and no author of the trace set{did_you_mean(word, names)}")


def _find_beside(word: str, other: Contender, trace_set: TraceSet | None, hints: DraftHints | None) -> Contender:
    """Return what a word names beside the other side, whose definition a draft takes.

    Raises:
        DataSetError: as `find_contender`; or a draft's parameters or names tell another definition.
    """
    given = hints or DraftHints()
    hinted = _hints_by(other, given)
    found = find_contender(word, trace_set, hinted)
    if found.draft is None or trace_set is None or hinted.definition == given.definition:
        return found
    own = _read_alone(found.draft.path, trace_set, given)
    if own is not None and own.solution.definition != hinted.definition:
        raise DataSetError(
            f"{own.found}; {other.word} is of {hinted.definition}: give two solutions of one definition, "
            f"or say that both are of it: --definition {hinted.definition}"
        )
    return found


def _read_alone(path: Path, trace_set: TraceSet, hints: DraftHints) -> Draft | None:
    """Return a draft as it is without another side; None where it does not tell its definition itself."""
    try:
        return read_draft(path, trace_set.definitions, hints)
    except DataSetError:
        return None


def pair_up(first: Contender, second: Contender) -> list[Pairing]:
    """Return the solutions to measure against each other.

    Raises:
        DataSetError: the two cannot be paired, or have no definition in common.
    """
    if "run" in (first.kind, second.kind):
        raise DataSetError("a file of traces holds no solutions to measure: give --recorded too")
    if first.kind != second.kind:
        raise DataSetError(f"{first.word} is a {first.kind}, {second.word} is a {second.kind}: give two of a kind")
    pairings = _pair_sets(first, second) if first.kind == "set" else _pair_by_definition(first, second)
    if not pairings:
        of = [f"{one.word} is of {one.solutions[0].definition}" for one in (first, second) if one.kind == "solution"]
        why = f": {', '.join(of)}" if of else ""
        raise DataSetError(
            f"{first.word} and {second.word} have no definition in common that both have a solution for{why}"
        )
    return pairings


def _is_draft(path: Path) -> bool:
    """Tell whether a path is a file that is no JSON, or a folder without a manifest that is no set."""
    if path.is_dir():
        return not any((path / name).exists() for name in (*MANIFEST_NAMES, *OF_SETS))
    return path.suffix.lower() in SOURCE_SUFFIXES or (path.is_file() and path.suffix not in (".json", ".jsonl"))


def _find_draft(word: str, path: Path, trace_set: TraceSet | None, hints: DraftHints | None) -> Contender:
    if trace_set is None:
        raise DataSetError(f"{word}: its definition is looked up in a trace set, and none was named: --local PATH")
    draft = read_draft(path, trace_set.definitions, hints)
    solution = draft.solution
    recorded = _recorded(trace_set, (solution,))
    same = tuple(trace for trace in recorded if _judged_digest(trace) == solution.digest())
    return Contender(word, "solution", (solution,), same, draft=draft)


def _judged_digest(trace: AnyTrace) -> str:
    """Return the digest of the solution that was judged; empty where the trace does not tell it."""
    return tell(trace.evaluation).run.fingerprint.solution if trace.evaluation is not None else ""


def _hints_by(other: Contender, hints: DraftHints) -> DraftHints:
    """Return hints with the definition of the other side, where it has one and no flag says another."""
    definitions = {solution.definition for solution in other.solutions}
    if hints.definition is not None or other.kind != "solution" or len(definitions) != 1:
        return hints
    return replace(hints, definition=definitions.pop(), definition_told_by=f"as {other.word}")


def _find_in_folder(word: str, path: Path, trace_set: TraceSet | None) -> Contender:
    if any((path / name).exists() for name in MANIFEST_NAMES):
        solution = pack_folder(path).solution
        return Contender(word, "solution", (solution,), _recorded(trace_set, (solution,)))
    found = TraceSet.from_path(path)
    solutions = tuple(solution for listed in found.solutions.values() for solution in listed)
    return Contender(word, "set", solutions, _latest(_all_traces(found)), found)


def _find_in_file(word: str, path: Path, trace_set: TraceSet | None) -> Contender:
    if path.suffix == ".jsonl":
        return Contender(word, "run", (), _latest(load_jsonl_file(Trace, path)))
    solution = load_json_file(Solution, path)
    return Contender(word, "solution", (solution,), _recorded(trace_set, (solution,)))


def _pair_by_definition(first: Contender, second: Contender) -> list[Pairing]:
    sides = [_by_definition(one.solutions) for one in (first, second)]
    both = sorted(sides[0].keys() & sides[1].keys())
    pairings = []
    for name in both:
        a, b = (_choose(one, side[name]) for one, side in zip((first, second), sides, strict=True))
        pairings.append(Pairing(a, b, "" if first.kind == "solution" else f"{a.name} : {b.name}"))
    return pairings


def _pair_sets(first: Contender, second: Contender) -> list[Pairing]:
    known = {(one.definition, one.name): one for one in second.solutions}
    pairings = []
    for one in first.solutions:
        other = known.get((one.definition, one.name))
        if other is None:
            continue
        _check_same_definition(first, second, one.definition)
        pairings.append(Pairing(one, other, one.name))
    return pairings


def _check_same_definition(first: Contender, second: Contender, name: str) -> None:
    found = [one.trace_set.definitions.get(name) for one in (first, second) if one.trace_set is not None]
    digests = {definition.digest() for definition in found if definition is not None}
    if len(digests) > 1:
        raise DataSetError(f"{name} is another definition in {second.word} than in {first.word}: times say nothing")


def _choose(side: Contender, solutions: list[Solution]) -> Solution:
    """Return an author's solution of a definition: of several the one that is recorded as the fastest."""
    if len(solutions) == 1:
        return solutions[0]
    times: dict[str, list[float]] = defaultdict(list)
    for trace in passed_of(side.traces):
        if trace.evaluation is not None and trace.evaluation.performance is not None:
            times[trace.solution or ""].append(trace.evaluation.performance.latency_ms)
    recorded = [one for one in solutions if times.get(one.name)]
    if not recorded:
        names = ", ".join(one.name for one in solutions)
        raise DataSetError(
            f"{side.word} has several solutions of {solutions[0].definition}, and no trace tells the fastest: {names}; "
            "name the solutions to compare"
        )
    most = max(len(times[one.name]) for one in recorded)
    return min((one for one in recorded if len(times[one.name]) == most), key=lambda one: sum(times[one.name]))


def _by_definition(solutions: Iterable[Solution]) -> dict[str, list[Solution]]:
    grouped: dict[str, list[Solution]] = defaultdict(list)
    for solution in solutions:
        grouped[solution.definition].append(solution)
    return grouped


def _recorded(trace_set: TraceSet | None, solutions: tuple[Solution, ...]) -> tuple[AnyTrace, ...]:
    if trace_set is None:
        return ()
    names = {solution.name for solution in solutions}
    return _latest(trace for trace in _all_traces(trace_set) if trace.solution in names)


def _all_traces(trace_set: TraceSet) -> Iterable[AnyTrace]:
    return (trace for traces in trace_set.traces.values() for trace in kept_of(traces))


def _latest(traces: Iterable[AnyTrace]) -> tuple[AnyTrace, ...]:
    return tuple(trace for trace in find_latest(traces) if trace.evaluation is not None)
