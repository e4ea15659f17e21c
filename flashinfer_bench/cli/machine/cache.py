"""`cache show`, `clear`, `verify`: what is built, and whether it is still as it was built. `cache baselines`: what
references took.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from typing import Any, Final

from flashinfer_bench.bench.evaluators.compare.kernel_cache import JUDGE_FOLDER
from flashinfer_bench.bench.runner.baseline_cache import BaselineCache, KeptBaseline, KeptFile
from flashinfer_bench.cli.output import write_out
from flashinfer_bench.cli.render import Column, available_width, count, render_table, shorten_uuid
from flashinfer_bench.compile.cache import (
    JIT_FOLDER,
    ArtifactCache,
    Entry,
    size_limit,
    size_of_folder,
)
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
DAY_S: Final = 86400.0


def execute_show(args: argparse.Namespace) -> int:
    """List the artifacts and what solutions compiled when they ran. What was used last comes first."""
    cache = _open()
    entries, folders = cache.entries(), cache.jit_folders()
    judge_bytes = size_of_folder(cache.root / JUDGE_FOLDER)
    if args.format == "json":
        _write_json(
            {
                "cache": str(cache.root),
                "limit_bytes": size_limit(),
                "size_bytes": _size(entries) + _size(folders),
                "judge_bytes": judge_bytes,
                "artifacts": [_document(entry) for entry in entries],
                "compiled_at_run": [_jit_document(folder) for folder in folders],
            }
        )
        return 0
    now = time.time()
    cells = [*(_cells(entry, now) for entry in entries), *(_jit_cells(folder, now) for folder in folders)]
    table = render_table(COLUMNS, cells, available_width(sys.stdout)) + "\n"
    size = f"{_bytes(_size(entries) + _size(folders))} of {_bytes(size_limit())}"
    compiled = f" of that compiled when solutions ran: {_bytes(_size(folders))};" if folders else ""
    total = f"{count(len(entries), 'artifact')}, {size},{compiled} in {cache.root}"
    judge = f"kernels that judge: {_bytes(judge_bytes)}\n" if judge_bytes else ""
    write_out((table if cells else "") + total + "\n" + judge)
    return 0


def execute_clear(args: argparse.Namespace) -> int:
    """Remove all artifacts, or those whose last use is the longest ago."""
    cache = _open()
    before, jit_bytes = cache.entries(), _size(cache.jit_folders())
    judge = cache.root / JUDGE_FOLDER
    judge_bytes = size_of_folder(judge)
    compiled_left = False
    if args.failed:
        cache.forget_failures()
    elif args.keep_gb is None:
        cache.clear(JUDGE_FOLDER)
        compiled_left = (cache.root / JIT_FOLDER).exists()
    else:
        cache.evict(max(0.0, args.keep_gb) * GIGABYTE)
    left, jit_left = cache.entries(), _size(cache.jit_folders())
    removed = [entry for entry in before if entry.digest not in {kept.digest for kept in left}]
    judge_left = size_of_folder(judge)
    if args.format == "json":
        kept = {"kept": len(left), "kept_bytes": _size(left)}
        kernels = {"judge_removed_bytes": judge_bytes - judge_left, "judge_kept_bytes": judge_left}
        facts = {"cache": str(cache.root), "removed": len(removed), "removed_bytes": _size(removed)}
        compiled = {"jit_removed_bytes": jit_bytes - jit_left, "jit_kept_bytes": jit_left}
        _write_json({**facts, **kept, **kernels, **compiled, "compiled_at_run_left": compiled_left})
        return 0
    clears_all = args.keep_gb is None and not args.failed
    in_use = "; a run uses them" if left and clears_all else ""
    write_out(
        f"removed {count(len(removed), 'artifact')} ({_bytes(_size(removed))}), "
        f"{len(left)} left ({_bytes(_size(left))}){in_use}\n"
    )
    if jit_bytes > jit_left:
        write_out(f"what solutions compiled when they ran is removed ({_bytes(jit_bytes - jit_left)})\n")
    if judge_bytes and clears_all:
        end = f"stay ({_bytes(judge_left)}): a run uses them" if judge_left else f"are removed ({_bytes(judge_bytes)})"
        write_out(f"the kernels that judge {end}\n")
    if compiled_left:
        write_out("what solutions compile when they run stays: a run uses it\n")
    return 0


def execute_verify(args: argparse.Namespace) -> int:
    """Compare every artifact with its manifest; return 1 if a damaged one is still there afterwards."""
    cache = _open()
    checked, problems = len(cache.entries()), cache.verify()
    removed = {entry.digest for entry in cache.remove(entry for entry, _ in problems if args.remove)}
    if args.format == "json":
        found = [
            {
                "artifact": entry.digest,
                "solution": entry.solution,
                "reason": reason,
                "removed": entry.digest in removed,
            }
            for entry, reason in problems
        ]
        _write_json({"cache": str(cache.root), "checked": checked, "problems": found})
    else:
        for entry, reason in problems:
            end = "; removed" if entry.digest in removed else ""
            name = entry.solution or "unknown solution"
            write_out(f"{entry.digest[:SHOWN_DIGITS]} {name}: {reason}{end}\n")
        write_out(f"{count(checked, 'artifact')} checked, {len(problems)} damaged, in {cache.root}\n")
    return 1 if len(removed) < len(problems) else 0


def execute_baselines(args: argparse.Namespace) -> int:
    """List the kept times of references, the one that was used last first; or remove them."""
    cache = BaselineCache(cache_root(os.environ).resolve())
    if args.clear:
        removed = cache.clear()
        if args.format == "json":
            _write_json({"baselines": str(cache.folder), "removed": removed})
        else:
            write_out(f"removed {count(removed, 'baseline')}\n")
        return 0
    files = cache.files()
    size = sum(file.size_bytes for file in files)
    if args.format == "json":
        rows = [_baseline_document(file) for file in files]
        _write_json({"baselines": str(cache.folder), "size_bytes": size, "entries": rows})
        return 0
    now = time.time()
    cells = [_baseline_cells(file.baseline, now - file.last_used_s) for file in files if file.baseline is not None]
    table = render_table(BASELINE_COLUMNS, cells, available_width(sys.stdout)) + "\n" if cells else ""
    damaged = f", {len(files) - len(cells)} that cannot be used" if len(files) > len(cells) else ""
    write_out(f"{table}{count(len(files), 'baseline')}{damaged}, {_bytes(size)}, in {cache.folder}\n")
    return 0


def _open() -> ArtifactCache:
    return ArtifactCache(cache_root(os.environ).resolve())


def _baseline_cells(kept: KeptBaseline, age_s: float) -> list[str]:
    latency = f"{kept.latency_ms:.4g} ms"
    return [kept.definition, shorten_uuid(kept.workload), kept.hardware, latency, kept.taken, _age(age_s)]


def _baseline_document(file: KeptFile) -> dict[str, Any]:
    kept = file.baseline
    facts = {"path": str(file.path), "size_bytes": file.size_bytes, "last_used": round(file.last_used_s, 3)}
    return {**facts, **(kept.model_dump(mode="json", exclude_none=True) if kept is not None else {})}


def _cells(entry: Entry, now: float) -> list[str]:
    manifest = entry.manifest
    build = f"{manifest.build_seconds:.1f} s" if manifest is not None and manifest.build_seconds else ""
    build = "failed" if entry.has_failed else build
    digest = entry.digest[:SHOWN_DIGITS]
    language = manifest.language if manifest is not None else ""
    name = entry.solution or "(damaged)"
    return [name, language, digest, _bytes(entry.size_bytes), build, _age(now - entry.last_used_s)]


def _document(entry: Entry) -> dict[str, Any]:
    manifest = entry.manifest
    return {
        "artifact": entry.digest,
        "path": str(entry.path),
        "size_bytes": entry.size_bytes,
        "last_used": round(entry.last_used_s, 3),
        "solution": entry.solution,
        "language": manifest.language if manifest is not None else None,
        "build_seconds": manifest.build_seconds if manifest is not None else None,
        "failure": manifest.failure if manifest is not None else None,
    }


def _jit_cells(folder: Entry, now: float) -> list[str]:
    size = _bytes(folder.size_bytes) if folder.is_whole else f"> {_bytes(folder.size_bytes)}"
    return [folder.solution or "?", "when run", folder.digest[:SHOWN_DIGITS], size, "", _age(now - folder.last_used_s)]


def _jit_document(folder: Entry) -> dict[str, Any]:
    return {
        "solution": folder.solution,
        "digest": folder.digest,
        "path": str(folder.path),
        "size_bytes": folder.size_bytes,
        "is_whole": folder.is_whole,
        "last_used": round(folder.last_used_s, 3),
    }


def _size(entries: Sequence[Entry]) -> int:
    return sum(entry.size_bytes for entry in entries)


def _bytes(size: int) -> str:
    for limit, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size >= limit:
            return f"{size / limit:.1f} {unit}"
    return f"{size} B"


def _age(seconds: float) -> str:
    for length, unit in ((DAY_S, "d"), (3600.0, "h"), (60.0, "min")):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit} ago"
    return "now"


def _write_json(document: dict[str, Any]) -> None:
    write_out(json.dumps(document, indent=2) + "\n")
