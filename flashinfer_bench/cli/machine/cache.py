"""`cache`: shows, clears and verifies what is built; `cache baselines`: kept times of references."""

from __future__ import annotations

import os
import time
from argparse import Namespace
from typing import Any, Final

from flashinfer_bench.bench.evaluators.compare.kernel_cache import JUDGE_FOLDER
from flashinfer_bench.cli.output import write_result
from flashinfer_bench.cli.parser import EXIT_CODES, PROGRAM, Parser, add_format, number
from flashinfer_bench.cli.render import Column, count, render_table, shorten_uuid
from flashinfer_bench.compile.cache import ArtifactCache, Entry, size_limit, size_of_folder
from flashinfer_bench.env import cache_root

COLUMNS: Final = (
    *map(Column, ("Solution", "Language", "Artifact")),
    *(Column("Size", True), Column("Build", True), Column("Last used", True)),
)
BASELINE_COLUMNS: Final = (
    *map(Column, ("Definition", "Workload", "GPU")),
    *(Column("Latency", True), Column("Measured"), Column("Last used", True)),
)
KINDS: Final = {"": "built solutions", "jit_": "compiled when solutions ran", "judge_": "kernels that judge"}
"""Beginning of the keys of a document → what it counts."""
SHOWN_DIGITS: Final = 12
GIGABYTE: Final = 1e9


def declare_cache(parser: Parser) -> None:
    """Add the help and the sub-commands."""
    parser.describe(
        "List, remove or check what is built, and the times of references.", example=f"{PROGRAM} cache show"
    )
    commands = parser.add_commands()

    def add(word: str, line: str, text: str, execute: Any, more: str = "") -> Parser:
        command = commands.add_parser(word, help=line)
        command.describe(f"{text} {EXIT_CODES}", example=f"{PROGRAM} cache {word}{more}", execute=execute)
        add_format(command)
        return command

    add(
        "show",
        "list what is built",
        "List the built solutions, precompiled headers, and solutions that did not compile: where they lie and how\n"
        "much room they take, and how much the kernels that judge.",
        execute_show,
    )
    clear = add(
        "clear",
        "remove what is built",
        "Remove the built solutions, what solutions have compiled when they ran, and the kernels that judge. What a\n"
        "run is using stays.",
        execute_clear,
        " --keep-gb 5",
    )
    which = clear.add_mutually_exclusive_group()
    failed = "forget only what did not compile, so that it is tried again"
    which.add_argument("--failed", action="store_true", help=failed)
    kept = "remove what was not used for longest, until this much is left"
    which.add_argument("--keep-gb", type=number, metavar="F", help=kept)
    verify = add(
        "verify",
        "check what is built",
        "Hold every built file against the digest that was noted when it was built. What is damaged is\n"
        "built again when it is next needed.",
        execute_verify,
        " --remove",
    )
    verify.add_argument("--remove", action="store_true", help="remove what is damaged")
    baselines = add(
        "baselines",
        "list the times of references that runs have kept",
        "List what references took on the GPUs of this machine. A later run on the same GPU, with the same versions\n"
        "and settings, takes these times over, unless --fresh-baselines is given.",
        execute_baselines,
    )
    baselines.add_argument("--clear", action="store_true", help="remove them")


def execute_show(args: Namespace) -> int:
    """List the artifacts and what solutions compiled when they ran, the one that was used last first."""
    cache = _open()
    entries, folders, sizes = cache.entries(), cache.jit_folders(), _sizes(cache)
    document = {
        "cache": str(cache.root),
        "limit_bytes": size_limit(),
        "size_bytes": sizes[""] + sizes["jit_"],
        "judge_bytes": sizes["judge_"],
        "artifacts": list(map(_document, entries)),
        "compiled_at_run": list(map(_document, folders)),
    }
    rows = [
        [
            one.solution or "(unknown)",
            getattr(one.manifest, "language", "when run" if one.is_jit else ""),
            one.digest[:SHOWN_DIGITS],
            f"{'' if one.is_whole else '> '}{_bytes(one.size_bytes)}",
            "failed" if one.has_failed else f"{getattr(one.manifest, 'build_seconds', 0.0):.1f} s",
            _date(one.last_used_s),
        ]
        for one in (*entries, *folders)
    ]
    table = render_table(COLUMNS, rows) + "\n" if rows else ""
    parts = ", ".join(f"{_bytes(size)} {KINDS[kind]}" for kind, size in sizes.items())
    limit = f"limit {_bytes(size_limit())}, in {cache.root}"
    write_result(args, document, f"{table}{count(len(entries), 'artifact')}, {parts}; {limit}\n")
    return 0


def execute_clear(args: Namespace) -> int:
    """Remove all artifacts, or those whose last use is the longest ago."""
    cache = _open()
    before, sizes = len(cache.entries()), _sizes(cache)
    if args.failed:
        cache.forget_failures()
    elif args.keep_gb is not None:
        cache.evict(max(0.0, args.keep_gb) * GIGABYTE)
    else:
        cache.clear(JUDGE_FOLDER)
    left, removed = _sizes(cache), before - len(cache.entries())
    document: dict[str, Any] = {"cache": str(cache.root), "removed": removed, "kept": before - removed}
    lines = [f"removed {count(removed, 'artifact')}, {before - removed} left"]
    for kind, size in sizes.items():
        document |= {f"{kind}removed_bytes": size - left[kind], f"{kind}kept_bytes": left[kind]}
        lines.append(f"{KINDS[kind]}: {_bytes(size - left[kind])} removed, {_bytes(left[kind])} left")
    if any(left.values()) and args.keep_gb is None and not args.failed:
        lines.append("a run uses what is left")
    write_result(args, document, "".join(f"{line}\n" for line in lines))
    return 0


def execute_verify(args: Namespace) -> int:
    """Compare every artifact with its manifest; return 1 if a damaged one is still there afterwards."""
    cache = _open()
    checked, problems = len(cache.entries()), cache.verify()
    removed = {entry.digest for entry in cache.remove(entry for entry, _ in problems if args.remove)}
    found = [
        {"artifact": entry.digest, "solution": entry.solution, "reason": reason, "removed": entry.digest in removed}
        for entry, reason in problems
    ]
    lines = [
        f"{entry.digest[:SHOWN_DIGITS]} {entry.solution}: {reason}{'; removed' if entry.digest in removed else ''}\n"
        for entry, reason in problems
    ]
    total = f"{count(checked, 'artifact')} checked, {len(problems)} damaged, in {cache.root}\n"
    document = {"cache": str(cache.root), "checked": checked, "problems": found}
    write_result(args, document, "".join([*lines, total]))
    return 1 if len(removed) < len(problems) else 0


def execute_baselines(args: Namespace) -> int:
    """List the kept times of references, the one that was used last first; or remove them."""
    from flashinfer_bench.bench.runner.baseline_cache import BaselineCache

    cache = BaselineCache(cache_root(os.environ).resolve())
    if args.clear:
        removed = cache.clear()
        document = {"baselines": str(cache.folder), "removed": removed}
        write_result(args, document, f"removed {count(removed, 'baseline')}\n")
        return 0
    files = cache.files()
    size = sum(file.size_bytes for file in files)
    rows, entries = [], []
    for file in files:
        facts = {"path": str(file.path), "size_bytes": file.size_bytes, "last_used": round(file.last_used_s, 3)}
        if (kept := file.baseline) is not None:
            facts |= kept.model_dump(mode="json", exclude_none=True)
            times = [f"{kept.latency_ms:.4g} ms", kept.taken, _date(file.last_used_s)]
            rows.append([kept.definition, shorten_uuid(kept.workload), kept.hardware, *times])
        entries.append(facts)
    table = render_table(BASELINE_COLUMNS, rows) + "\n" if rows else ""
    damaged = f", {len(files) - len(rows)} that cannot be used" if len(files) > len(rows) else ""
    total = f"{count(len(files), 'baseline')}{damaged}, {_bytes(size)}, in {cache.folder}\n"
    write_result(args, {"baselines": str(cache.folder), "size_bytes": size, "entries": entries}, table + total)
    return 0


def _open() -> ArtifactCache:
    return ArtifactCache(cache_root(os.environ).resolve())


def _document(entry: Entry) -> dict[str, Any]:
    built = {name: getattr(entry.manifest, name, None) for name in ("language", "build_seconds", "failure")}
    facts = {"path": str(entry.path), "size_bytes": entry.size_bytes, "last_used": round(entry.last_used_s, 3)}
    return {**facts, "solution": entry.solution, "artifact": entry.digest, "is_whole": entry.is_whole, **built}


def _sizes(cache: ArtifactCache) -> dict[str, int]:
    """Return the bytes of each of `KINDS`."""
    found = [sum(one.size_bytes for one in entries) for entries in (cache.entries(), cache.jit_folders())]
    return dict(zip(KINDS, [*found, size_of_folder(cache.root / JUDGE_FOLDER)], strict=True))


def _bytes(size: int) -> str:
    from rich.filesize import decimal

    return decimal(size)


def _date(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
