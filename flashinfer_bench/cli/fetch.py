"""`fetch`: downloads a trace set, or a part of it, from the Hugging Face hub."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Collection
from pathlib import PurePosixPath

from flashinfer_bench.cli.args import find_output, refuse_unknown
from flashinfer_bench.cli.output import FAILED, RAN, write_err
from flashinfer_bench.cli.parser import QUIET_FLAG, Parser, add_flags, add_format, add_names
from flashinfer_bench.cli.tables import count, write_result


def declare_fetch(parser: Parser) -> None:
    """Add the help and the flags of the command."""
    parser.describe(
        "Download a trace set of the Hugging Face hub into a folder, and check each file by size and digest.\n"
        "Right files are not downloaded again, so the same command resumes an interrupted fetch. Other files\n"
        "are replaced, except traces, to which runs append.\n"
        "Exit codes: 0 complete, 1 a file is missing or was refused, 2 usage error.",
        usage="%(prog)s OWNER/NAME [--output DIR] [flags]",
        example="fetch flashinfer-ai/flashinfer-trace --op-types rmsnorm",
        execute=execute,
    )
    parser.add_argument("repository", metavar="OWNER/NAME", help="the data set on the hub")
    add_flags(parser, {"--output DIR": "the folder of the set (default: NAME here)"})
    add_names(parser, "--definitions", "only these definitions, their workloads and blobs, solutions and traces")
    add_names(parser, "--op-types", "only definitions of these op types, and what belongs to them")
    flags = {
        "--missing": "only the blobs that workloads in DIR name",
        "--revision REV": "a branch, a tag or a whole commit hash (default: main; with --missing the fetched commit)",
        "--offline": "send no request, only check the files that are here (also with HF_HUB_OFFLINE=1)",
    }
    add_flags(parser, flags | QUIET_FLAG)
    add_format(parser)


def execute(args: Namespace) -> int:
    """Fetch the files, and report the commit and the problems; return 1 if there are problems."""
    from flashinfer_bench.hub import DOWNLOADED, FINE, KEPT, RIGHT, fetch_set  # imports of the data models

    root = find_output(args.output or args.repository.rpartition("/")[2]).path  # refuses links in a set
    done = fetch_set(
        args.repository,
        root,
        choose=lambda paths: choose_names(paths, args),
        only_missing=args.missing,
        revision=args.revision,
        is_offline=args.offline or os.environ.get("HF_HUB_OFFLINE") == "1",
        is_quiet=args.quiet,
    )
    kept, downloaded, commit = done.results[KEPT], len(done.results[DOWNLOADED]), done.record.commit
    problems = sorted(f"{path}: {why}" for why in done.results.keys() - FINE for path in done.results[why])
    files = len(done.results[RIGHT]) + downloaded
    write_err(*(f"kept, though it differs from the hub's: {path}" for path in kept))
    write_err(*(f"stays, though the commit has it no more: {path}" for path in done.left))
    write_err(*(f"error: {line}" for line in problems))
    document = {"output": str(root), "repository": args.repository, "commit": commit, "kept": kept}
    document |= {"files": files, "downloaded": downloaded, "problems": problems}
    text = f"{root}: {count(files, 'file')} of {args.repository} at {commit}; {downloaded} downloaded now"
    write_result(args, document, [text])
    return FAILED if problems else RAN


def choose_names(paths: Collection[str], args: Namespace) -> set[str] | None:
    """Return the file names of the chosen definitions; None without a choice."""
    from flashinfer_bench.data.definition import normalise_op_type
    from flashinfer_bench.data.store.layout import DEFINITIONS, path_part

    files = (PurePosixPath(path) for path in paths if path.startswith(f"{DEFINITIONS}/"))
    known = {file.stem: normalise_op_type(file.parent.name) for file in files}
    names = [path_part(name) for name in args.definitions]
    op_types = [normalise_op_type(name) for name in args.op_types]
    refuse_unknown(("definition", names, known), ("op type", op_types, known.values()))
    if not names and not op_types:
        return None
    return {name for name in known if name in (names or known) and known[name] in (op_types or known.values())}
