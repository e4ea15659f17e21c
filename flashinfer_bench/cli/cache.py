"""`cache`: shows, clears and verifies the builds; `cache baselines`: cached times of references."""

from __future__ import annotations

import os
import time
from argparse import Namespace
from collections.abc import Mapping
from typing import Any, Final

from flashinfer_bench.bench.evaluators.compare.kernel_cache import JUDGE_FOLDER
from flashinfer_bench.cli.parser import EXIT_CODES, Parser, add_flags, add_format
from flashinfer_bench.cli.tables import count, lay_out, write_result
from flashinfer_bench.compile.cache import ArtifactCache, Entry, size_limit, size_of_folder
from flashinfer_bench.env import cache_root

TABLE: Final = {
    "Solution": "{solution}",
    "Language": "{language}",
    "#Bytes": "{size_bytes}",
    "#Seconds": "{build_seconds}",
    "Last used": "{last_used}",
}
BASELINES: Final = {
    "Definition": "{definition}",
    "Workload": "{workload}",
    "GPU": "{hardware}",
    "#Milliseconds": "{latency_ms}",
    "Measured": "{taken}",
    "Last used": "{last_used}",
}
PROBLEMS: Final = {"Artifact": "{artifact}", "Solution": "{solution}", "Reason": "{reason}", "Removed": "{removed}"}
GIGABYTE: Final = 1e9


def declare_cache(parser: Parser) -> None:
    """Add the help and the sub-commands."""
    parser.describe("List, remove or check cached builds, and cached times of references.", example="cache show")

    def add(word: str, line: str, text: str, execute: Any, flags: Mapping[str, str], more: str = "") -> None:
        example, text = f"cache {word}{more}", f"{text} {EXIT_CODES}"
        command = parser.add_command(word, line, description=text, example=example, execute=execute)
        add_format(command)
        if flags:
            add_flags(command.add_mutually_exclusive_group(), flags)

    add(
        "show",
        "list the builds",
        "List the built solutions, precompiled headers, and solutions that did not compile, with the disk\n"
        "space of these and of the kernels that judge.",
        execute_show,
        {},
    )
    add(
        "clear",
        "remove the builds",
        "Remove the built solutions, the code that solutions compiled at run time, and the kernels that judge.\n"
        "Builds that a run is using stay.",
        execute_clear,
        {
            "--failed": "remove only failed builds, so that they are tried again",
            "--keep-gb F": "remove the least recently used builds until this size is left",
        },
        " --keep-gb 5",
    )
    add(
        "verify",
        "check the builds",
        "Compare every built file with the digest of its build. A damaged build is\n"
        "built again when it is next needed.",
        execute_verify,
        {"--remove": "remove damaged builds"},
        " --remove",
    )
    add(
        "baselines",
        "list the cached times of references",
        "List the times of references on the GPUs of this machine. A later run on the same GPU, with the same\n"
        "versions and settings, uses these times, unless --fresh-baselines is given.",
        execute_baselines,
        {"--clear": "remove them"},
    )


def execute_show(args: Namespace) -> int:
    """List the artifacts, and the code that solutions compiled at run time. The most recently used entries come
    first."""
    cache = _open()
    entries, folders = list(map(_document, cache.entries())), list(map(_document, cache.jit_folders()))
    judge_bytes = size_of_folder(cache.root / JUDGE_FOLDER)
    size = sum(one["size_bytes"] for one in [*entries, *folders])
    document = {
        "cache": str(cache.root),
        "limit_bytes": size_limit(),
        "size_bytes": size,
        "judge_bytes": judge_bytes,
        "artifacts": entries,
        "compiled_at_run": folders,
    }
    reported = f"{_bytes(size)} of {_bytes(size_limit())}; kernels that judge: {_bytes(judge_bytes)}"
    total = f"{count(len(entries), 'artifact')}, and code that was compiled at run time: {reported}; in {cache.root}"
    write_result(args, document, lay_out(TABLE, [*entries, *folders]), [total])
    return 0


def execute_clear(args: Namespace) -> int:
    """Remove all artifacts, or the least recently used artifacts."""
    cache = _open()
    before, size = _measure(cache)
    if args.failed:
        cache.remove(entry for entry in cache.entries() if entry.has_failed)
    elif args.keep_gb is not None:
        cache.evict(max(0.0, args.keep_gb) * GIGABYTE)
    else:
        cache.clear(JUDGE_FOLDER)
    kept, left = _measure(cache)
    document = {
        "cache": str(cache.root),
        "removed": before - kept,
        "kept": kept,
        "removed_bytes": size - left,
        "kept_bytes": left,
    }
    lines = [f"removed {count(before - kept, 'artifact')}, {_bytes(size - left)}; {kept} left, {_bytes(left)}"]
    if left and args.keep_gb is None and not args.failed:
        lines.append("a run uses the rest")
    write_result(args, document, lines)
    return 0


def execute_verify(args: Namespace) -> int:
    """Compare every artifact with its manifest; return 1 if a damaged artifact remains."""
    cache = _open()
    checked, problems = len(cache.entries()), cache.verify()
    removed = {entry.digest for entry in cache.remove(entry for entry, _ in problems if args.remove)}
    found = [
        {"artifact": entry.digest, "solution": entry.solution, "reason": reason, "removed": entry.digest in removed}
        for entry, reason in problems
    ]
    total = f"{count(checked, 'artifact')} checked, {len(problems)} damaged, in {cache.root}"
    document = {"cache": str(cache.root), "checked": checked, "problems": found}
    write_result(args, document, lay_out(PROBLEMS, found), [total])
    return 1 if len(removed) < len(problems) else 0


def execute_baselines(args: Namespace) -> int:
    """List or remove the cached times of references. The most recently used times come first."""
    from flashinfer_bench.bench.runner.baseline_cache import BaselineCache

    cache = BaselineCache(_open().root)
    if args.clear:
        removed = cache.clear()
        result = [f"removed {count(removed, 'baseline')}"]
        write_result(args, {"baselines": str(cache.folder), "removed": removed}, result)
        return 0
    entries = [
        {
            "path": str(file.path),
            "size_bytes": file.size_bytes,
            "last_used": _date(file.last_used_s),
            **(file.baseline.model_dump(mode="json", exclude_none=True) if file.baseline else {}),
        }
        for file in cache.files()
    ]
    usable = [one for one in entries if "definition" in one]
    size = sum(one["size_bytes"] for one in entries)
    damaged = f", {len(entries) - len(usable)} that cannot be used" if usable != entries else ""
    total = f"{count(len(entries), 'baseline')}{damaged}, {_bytes(size)}, in {cache.folder}"
    document = {"baselines": str(cache.folder), "size_bytes": size, "entries": entries}
    write_result(args, document, lay_out(BASELINES, usable), [total])
    return 0


def _open() -> ArtifactCache:
    return ArtifactCache(cache_root(os.environ).resolve())


def _document(entry: Entry) -> dict[str, Any]:
    built = {name: getattr(entry.manifest, name, None) for name in ("language", "build_seconds", "failure")}
    metadata = {"path": str(entry.path), "size_bytes": entry.size_bytes, "last_used": _date(entry.last_used_s)}
    return {**metadata, "solution": entry.solution, "artifact": entry.digest, "is_whole": entry.is_whole, **built}


def _measure(cache: ArtifactCache) -> tuple[int, int]:
    """Return the number of artifacts, and the bytes of all that the cache holds."""
    entries = cache.entries()
    size = sum(entry.size_bytes for entry in [*entries, *cache.jit_folders()])
    return len(entries), size + size_of_folder(cache.root / JUDGE_FOLDER)


def _bytes(size: int) -> str:
    from rich.filesize import decimal

    return decimal(size)


def _date(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
