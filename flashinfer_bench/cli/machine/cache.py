"""`cache`: shows, clears and verifies what is built; `cache baselines`: kept times of references."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from typing import Any, Final

from flashinfer_bench.bench.evaluators.compare.kernel_cache import JUDGE_FOLDER
from flashinfer_bench.cli.output import write_json, write_out
from flashinfer_bench.cli.parser import EXIT_CODES, PROGRAM, Parser, add_format, number
from flashinfer_bench.cli.render import Column, Row, available_width, count, render_table, shorten_uuid
from flashinfer_bench.compile.cache import JIT_FOLDER, ArtifactCache, Entry, size_limit, size_of_folder
from flashinfer_bench.env import cache_root

COLUMNS: Final = (
    *(Column("Solution"), Column("Language"), Column("Artifact")),
    *(Column("Size", True), Column("Build", True), Column("Last used", True)),
)
BASELINE_COLUMNS: Final = (
    *(Column("Definition"), Column("Workload"), Column("GPU")),
    *(Column("Latency", True), Column("Measured"), Column("Last used", True)),
)
SHOWN_DIGITS: Final = 12
GIGABYTE: Final = 1e9


def declare_cache(parser: Parser) -> None:
    """Add the help and the sub-commands."""
    text = "List, remove or check what is built, and the times of references."
    parser.describe(text, example=f"{PROGRAM} cache show")
    commands = parser.add_commands()
    show = commands.add_parser("show", help="list what is built")
    show.describe(
        "List the built solutions, precompiled headers, and solutions that did not compile: where they lie and how\n"
        f"much room they take, and how much the kernels that judge. {EXIT_CODES}",
        example=f"{PROGRAM} cache show",
        execute=execute_show,
    )
    clear = commands.add_parser("clear", help="remove what is built")
    clear.describe(
        "Remove the built solutions, what solutions have compiled when they ran, and the kernels that judge. What a\n"
        f"run is using stays. {EXIT_CODES}",
        example=f"{PROGRAM} cache clear --keep-gb 5",
        execute=execute_clear,
    )
    which = clear.add_mutually_exclusive_group()
    which.add_argument(
        "--failed", action="store_true", help="forget only what did not compile, so that it is tried again"
    )
    which.add_argument(
        "--keep-gb", type=number, metavar="F", help="remove what was not used for longest, until this much is left"
    )
    verify = commands.add_parser("verify", help="check what is built")
    verify.describe(
        "Hold every built file against the digest that was noted when it was built. What is damaged is\n"
        f"built again when it is next needed. {EXIT_CODES}",
        example=f"{PROGRAM} cache verify --remove",
        execute=execute_verify,
    )
    verify.add_argument("--remove", action="store_true", help="remove what is damaged")
    baselines = commands.add_parser("baselines", help="list the times of references that runs have kept")
    baselines.describe(
        "List what references took on the GPUs of this machine. A later run on the same GPU, with the same versions\n"
        f"and settings, takes these times over, unless --fresh-baselines is given. {EXIT_CODES}",
        example=f"{PROGRAM} cache baselines",
        execute=execute_baselines,
    )
    baselines.add_argument("--clear", action="store_true", help="remove them")
    for command in (show, clear, verify, baselines):
        add_format(command)


def execute_show(args: argparse.Namespace) -> int:
    """List the artifacts and what solutions compiled when they ran, the one that was used last first."""
    cache = _open()
    entries = cache.entries()
    folders = cache.jit_folders()
    judge_bytes = size_of_folder(cache.root / JUDGE_FOLDER)
    if args.format == "json":
        write_json(
            {
                "cache": str(cache.root),
                "limit_bytes": size_limit(),
                "size_bytes": _size(entries) + _size(folders),
                "judge_bytes": judge_bytes,
                "artifacts": [_document(entry) for entry in entries],
                "compiled_at_run": [_document(folder) for folder in folders],
            }
        )
        return 0
    size = f"{_bytes(_size(entries) + _size(folders))} of {_bytes(size_limit())}"
    compiled = f" of that compiled when solutions ran: {_bytes(_size(folders))};" if folders else ""
    judge = f"kernels that judge: {_bytes(judge_bytes)}\n" if judge_bytes else ""
    total = f"{count(len(entries), 'artifact')}, {size},{compiled} in {cache.root}"
    write_out(f"{_table(COLUMNS, [_cells(entry) for entry in (*entries, *folders)])}{total}\n{judge}")
    return 0


def execute_clear(args: argparse.Namespace) -> int:
    """Remove all artifacts, or those whose last use is the longest ago."""
    cache = _open()
    before = cache.entries()
    sizes = _sizes(cache)
    clears_all = args.keep_gb is None and not args.failed
    if args.failed:
        cache.forget_failures()
    elif clears_all:
        cache.clear(JUDGE_FOLDER)
    else:
        cache.evict(max(0.0, args.keep_gb) * GIGABYTE)
    compiled_left = clears_all and (cache.root / JIT_FOLDER).exists()
    left = cache.entries()
    sizes_left = _sizes(cache)
    kept_digests = {entry.digest for entry in left}
    removed = [entry for entry in before if entry.digest not in kept_digests]
    if args.format == "json":
        document: dict[str, Any] = {"cache": str(cache.root), "removed": len(removed), "removed_bytes": _size(removed)}
        document |= {"kept": len(left), "kept_bytes": _size(left), "compiled_at_run_left": compiled_left}
        for kind, size in sizes.items():
            document |= {f"{kind}_removed_bytes": size - sizes_left[kind], f"{kind}_kept_bytes": sizes_left[kind]}
        write_json(document)
        return 0
    in_use = "; a run uses them" if left and clears_all else ""
    rest = f"{len(left)} left ({_bytes(_size(left))}){in_use}"
    lines = [f"removed {count(len(removed), 'artifact')} ({_bytes(_size(removed))}), {rest}"]
    if sizes["jit"] > sizes_left["jit"]:
        lines.append(f"what solutions compiled when they ran is removed ({_bytes(sizes['jit'] - sizes_left['jit'])})")
    if sizes["judge"] and clears_all:
        stay = f"stay ({_bytes(sizes_left['judge'])}): a run uses them"
        end = stay if sizes_left["judge"] else f"are removed ({_bytes(sizes['judge'])})"
        lines.append(f"the kernels that judge {end}")
    if compiled_left:
        lines.append("what solutions compile when they run stays: a run uses it")
    write_out("".join(f"{line}\n" for line in lines))
    return 0


def execute_verify(args: argparse.Namespace) -> int:
    """Compare every artifact with its manifest; return 1 if a damaged one is still there afterwards."""
    cache = _open()
    checked = len(cache.entries())
    problems = cache.verify()
    removed = {entry.digest for entry in cache.remove(entry for entry, _ in problems if args.remove)}
    found = [
        {"artifact": entry.digest, "solution": entry.solution, "reason": reason, "removed": entry.digest in removed}
        for entry, reason in problems
    ]
    if args.format == "json":
        write_json({"cache": str(cache.root), "checked": checked, "problems": found})
    else:
        for entry, reason in problems:
            end = "; removed" if entry.digest in removed else ""
            write_out(f"{entry.digest[:SHOWN_DIGITS]} {entry.solution or 'unknown solution'}: {reason}{end}\n")
        write_out(f"{count(checked, 'artifact')} checked, {len(problems)} damaged, in {cache.root}\n")
    return 1 if len(removed) < len(problems) else 0


def execute_baselines(args: argparse.Namespace) -> int:
    """List the kept times of references, the one that was used last first; or remove them."""
    from flashinfer_bench.bench.runner.baseline_cache import BaselineCache

    cache = BaselineCache(cache_root(os.environ).resolve())
    if args.clear:
        removed = cache.clear()
        if args.format == "json":
            write_json({"baselines": str(cache.folder), "removed": removed})
        else:
            write_out(f"removed {count(removed, 'baseline')}\n")
        return 0
    files = cache.files()
    size = sum(file.size_bytes for file in files)
    rows: list[Row] = []
    documents = []
    for file in files:
        kept = file.baseline
        facts = {"path": str(file.path), "size_bytes": file.size_bytes, "last_used": round(file.last_used_s, 3)}
        documents.append({**facts, **(kept.model_dump(mode="json", exclude_none=True) if kept is not None else {})})
        if kept is not None:
            times = [f"{kept.latency_ms:.4g} ms", kept.taken, _age(file.last_used_s)]
            rows.append([kept.definition, shorten_uuid(kept.workload), kept.hardware, *times])
    if args.format == "json":
        write_json({"baselines": str(cache.folder), "size_bytes": size, "entries": documents})
        return 0
    damaged = f", {len(files) - len(rows)} that cannot be used" if len(files) > len(rows) else ""
    total = f"{count(len(files), 'baseline')}{damaged}, {_bytes(size)}, in {cache.folder}"
    write_out(f"{_table(BASELINE_COLUMNS, rows)}{total}\n")
    return 0


def _open() -> ArtifactCache:
    return ArtifactCache(cache_root(os.environ).resolve())


def _table(columns: Sequence[Column], rows: Sequence[Row]) -> str:
    return render_table(columns, rows, available_width(sys.stdout)) + "\n" if rows else ""


def _cells(entry: Entry) -> list[str]:
    """Return the cells of an artifact, or of a folder of what a solution compiled when it ran."""
    if entry.is_jit:
        size = _bytes(entry.size_bytes) if entry.is_whole else f"> {_bytes(entry.size_bytes)}"
        return [entry.solution or "?", "when run", entry.digest[:SHOWN_DIGITS], size, "", _age(entry.last_used_s)]
    manifest = entry.manifest
    build = f"{manifest.build_seconds:.1f} s" if manifest is not None and manifest.build_seconds else ""
    build = "failed" if entry.has_failed else build
    language = manifest.language if manifest is not None else ""
    facts = [entry.digest[:SHOWN_DIGITS], _bytes(entry.size_bytes), build, _age(entry.last_used_s)]
    return [entry.solution or "(damaged)", language, *facts]


def _document(entry: Entry) -> dict[str, Any]:
    manifest = entry.manifest
    facts = {"path": str(entry.path), "size_bytes": entry.size_bytes, "last_used": round(entry.last_used_s, 3)}
    facts |= {"solution": entry.solution}
    if entry.is_jit:
        return {**facts, "digest": entry.digest, "is_whole": entry.is_whole}
    built = {name: getattr(manifest, name, None) for name in ("language", "build_seconds", "failure")}
    return {**facts, "artifact": entry.digest, **built}


def _sizes(cache: ArtifactCache) -> dict[str, int]:
    """Return the bytes of what is no artifact."""
    return {"judge": size_of_folder(cache.root / JUDGE_FOLDER), "jit": _size(cache.jit_folders())}


def _size(entries: Sequence[Entry]) -> int:
    return sum(entry.size_bytes for entry in entries)


def _bytes(size: int) -> str:
    for limit, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size >= limit:
            return f"{size / limit:.1f} {unit}"
    return f"{size} B"


def _age(last_used_s: float) -> str:
    seconds = time.time() - last_used_s
    for length, unit in ((86400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit} ago"
    return "now"
