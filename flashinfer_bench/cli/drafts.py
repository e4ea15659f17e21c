"""Solutions that a command names by a path. They join the set in memory. If results are saved, the solutions also join
the set on disk."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path

from flashinfer_bench.cli.args import Output
from flashinfer_bench.cli.output import write_err
from flashinfer_bench.data import Definition, Solution, TraceSet
from flashinfer_bench.data.entry import check_entry
from flashinfer_bench.data.store.drafts import AUTHOR, Draft, DraftHints, is_draft_path, is_kept_draft, read_draft
from flashinfer_bench.data.store.layout import solution_path
from flashinfer_bench.errors import DataSetError, UsageError


def list_draft_paths(args: Namespace) -> list[Path]:
    """Return the paths among the values of `--solutions`."""
    return [Path(name) for name in args.solutions if is_draft_path(name)]


def take_drafts(args: Namespace, trace_set: TraceSet) -> list[Draft]:
    """Add the sources of a command line to the set in memory. In `args`, solution names replace the paths of the
    sources.

    Raises:
        UsageError: a flag for sources was given without a source.
        DataSetError: a source cannot be read or understood, or its name belongs to a solution of the set.
    """
    named = args.solutions
    paths = [
        name for name in named if is_draft_path(name) and (Path(name).exists() or trace_set.get_solution(name) is None)
    ]
    given = [f"--{name}" for name in ("entry", "language") if getattr(args, name) is not None]
    if given and len(paths) != 1:
        raise UsageError(f"{' and '.join(given)}: say it of one source file or folder: --solution FILE")
    drafts: dict[str, Draft] = {}
    for text in dict.fromkeys(paths):
        draft = drafts[text] = read_draft(Path(text), trace_set.definitions, read_hints(args))
        mine = draft.solution
        if any(one.solution.name == mine.name and one.solution != mine for one in drafts.values()):
            raise UsageError(f"{text}: another of the named sources is {mine.name!r}, too; rename the file")
        _refuse_name_of_another(draft, trace_set.get_solution(mine.name))
        describe_draft(draft, trace_set.definitions, is_quiet=getattr(args, "quiet", False))
        others = [item for item in trace_set.solutions.get(mine.definition, []) if item.name != mine.name]
        trace_set.solutions[mine.definition] = [*others, mine]
        file = trace_set.definition_files.get(mine.definition)
        if file is not None and (home := trace_set.root_of(file)) is not None:
            trace_set.solution_roots.setdefault(mine.name, home)
    if drafts:
        args.solutions = [drafts[name].solution.name if name in drafts else name for name in named]
    return list(drafts.values())


def read_hints(args: Namespace) -> DraftHints:
    """Return the hints about a source that the flags give."""
    definitions: Sequence[str] = args.definitions
    authors: Sequence[str] = getattr(args, "authors", ())
    return DraftHints(
        definition=definitions[0] if len(definitions) == 1 else None,
        entry=args.entry,
        language=args.language,
        author=authors[0] if len(authors) == 1 else AUTHOR,
    )


def describe_draft(draft: Draft, definitions: Mapping[str, Definition], *, is_quiet: bool) -> None:
    """Warn of each reason why an entry function cannot work. Print the detected properties, except with `is_quiet`."""
    for line in check_entry(draft.solution, definitions[draft.solution.definition]):
        write_err(f"warning: {draft.path}: {line.removeprefix(f'{draft.path.name}: ')}")
    if not is_quiet:
        write_err(draft.found)


def save_draft(draft: Draft, trace_set: TraceSet) -> Path:
    """Write the solution of a source into the root that gets the solution's traces. Return the file."""
    solution = draft.solution
    root = trace_set.solution_root(solution.name) or Path()
    definition = trace_set.definitions[solution.definition]
    file = trace_set.solution_files.get(solution.name) or solution_path(
        root,
        author=solution.author,
        op_type=definition.op_type,
        definition=definition.name,
        solution=solution.name,
    )
    Output(file, trace_set.root_of(file) or root).write(
        solution.to_json(indent=2) + "\n", "; --no-save-results writes nothing"
    )
    trace_set.solution_files[solution.name] = file
    return file


def _refuse_name_of_another(draft: Draft, there: Solution | None) -> None:
    """Refuse a source that would replace a solution of another author or of other files."""
    mine = draft.solution
    if there is None or there == mine:
        return
    is_another = (there.author, there.definition) != (mine.author, mine.definition)
    files = {source.path for source in there.sources}
    # the files of a folder may be renamed
    is_same = draft.path.is_dir() and all(Path(file).stem != mine.name for file in files)
    is_same = is_same or not files.isdisjoint(source.path for source in mine.sources)
    if is_another or not (draft.is_packed or (is_kept_draft(there) and is_same)):
        raise DataSetError(
            f"{draft.path}: the set has another solution {mine.name!r} (author {there.author}, of {there.definition}, "
            f"in {', '.join(source.path for source in there.sources)}); rename the file, or `forget` that solution"
        )
