"""Fetches a file of a data set by git-lfs, where what the set says of itself can start no program.

A set may come from a stranger, with a `.git` of its own. Git starts what a repository's configuration names
(`core.fsmonitor`, filters, transfer agents), so that is read before git sees the repository, and a key that is not
known to be harmless is refused. A clone of a public set has none of these.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

FETCH_TIMEOUT_S: Final = 600.0
"""How many seconds git-lfs may take for one file."""
READ_TIMEOUT_S: Final = 20.0
"""How many seconds git may take to list a configuration."""
MOST_BYTES: Final = 1 << 20
"""A configuration with more is strange."""
HARMLESS: Final = re.compile(
    r"core\.(?:repositoryformatversion|filemode|bare|logallrefupdates|ignorecase|precomposeunicode|symlinks|autocrlf)"
    r"|core\.sparsecheckout(?:cone)?|extensions\.objectformat|index\.version|gc\.auto|pull\.(?:rebase|ff)"
    r"|remote\.[^\n]+\.(?:fetch|tagopt|promisor|partialclonefilter)"
    r"|branch\.[^\n]+\.(?:merge|rebase)"
    r"|user\.(?:name|email)|color\.[^\n]+|advice\.[^\n]+"
    r"|lfs\.(?:repositoryformatversion|fetchinclude|fetchexclude)"
    r"|lfs\.[^\n]+\.(?:access|locksverify)"
)
"""Keys that start nothing and lead nowhere."""
PLACES: Final = re.compile(r"remote\.[^\n]+\.(?:url|pushurl|lfsurl|lfspushurl)|lfs\.(?:url|pushurl)")
"""Keys that say where files come from."""
KNOWN: Final = re.compile(
    r"branch\.[^\n]+\.remote\n\w[\w.-]*"
    r"|filter\.lfs\.(?:clean\ngit-lfs clean -- %f|smudge\ngit-lfs smudge (?:--skip )?-- %f|required\ntrue)"
    r"|filter\.lfs\.process\ngit-lfs filter-process(?: --skip)?"
)
"""Keys that are harmless with these values: what `git clone` and `git lfs install --local` write."""
FROM_A_SERVER: Final = re.compile(r"https?://[\w@][^\s]*|(?:ssh://)?\w[\w.-]*@\w[\w.-]*[:/][\w./~-]+")
"""Addresses of servers. A path, or another kind of address, could start a program of its own."""
STARTS_NOTHING: Final = (
    *("-c", "core.fsmonitor=false", "-c", f"core.hooksPath={os.devnull}", "-c", "protocol.ext.allow=never"),
)
"""What git is told beside."""
LINE_END: Final = "\n"
"""Stands between a key and its value."""
BY_HAND: Final = "look at it, and run there yourself: git lfs pull --include"


def fetch_with_git_lfs(root: Path, path: str) -> str | None:
    """Let git-lfs fetch one file of the set; return why that failed, None when it did not."""
    if shutil.which("git-lfs") is None:
        return f"git-lfs is not installed; install it and run: git lfs pull --include {path!r}"
    real = (root / path).resolve()
    if real != root.resolve() / path:  # git-lfs would write behind the link
        return f"a link leads to it, and nothing is fetched behind one; run in {real.parent}: git lfs pull"
    top = _find_top(root.resolve())
    if top is None:
        return "the set is no git clone: no folder above it has a .git"
    strange = next(_list_strange(top), None)
    if strange is not None:
        return f"{strange}, which could start a program; {BY_HAND} {path!r}"
    return _pull(top, root, path)


def _find_top(root: Path) -> Path | None:
    """Return the folder that has the `.git` of a set; a repository is not looked for in any other way."""
    return next((folder for folder in (root, *root.parents) if os.path.lexists(folder / ".git")), None)


def _list_strange(top: Path) -> Iterator[str]:
    """Yield what in a repository could start a program."""
    git = top / ".git"
    if not stat.S_ISDIR(git.lstat().st_mode):
        yield f"{git} leads to another folder"
    if os.path.lexists(git / "commondir"):
        yield f"{git} takes its configuration from another folder"
    for file in (git / "config", top / ".lfsconfig"):
        yield from _list_strange_keys(file)


def _list_strange_keys(file: Path) -> Iterator[str]:
    try:
        found = file.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISREG(found.st_mode) or found.st_size > MOST_BYTES:
        yield f"{file} is no usual file"
        return
    command = ["git", "config", "--file", str(file), "--no-includes", "--null", "--list"]
    try:
        # From a folder without a repository, git reads this file and the user's own.
        listed = subprocess.run(
            command, cwd="/", capture_output=True, timeout=READ_TIMEOUT_S, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        yield f"{file} cannot be read: {error}"
        return
    if listed.returncode != 0:
        yield f"{file} cannot be read: {listed.stderr.decode(errors='replace').strip()[-200:]}"
    for entry in filter(None, listed.stdout.decode(errors="replace").split("\0")):
        if not _is_harmless(entry):
            yield f"{file} sets {entry.partition(LINE_END)[0]}"


def _is_harmless(entry: str) -> bool:
    """Tell whether a key and its value start nothing, and lead to a server at the most."""
    key, _, value = entry.partition(LINE_END)
    leads_to_a_server = PLACES.fullmatch(key) and FROM_A_SERVER.fullmatch(value)
    return bool(HARMLESS.fullmatch(key) or KNOWN.fullmatch(entry) or leads_to_a_server)


def _pull(top: Path, root: Path, path: str) -> str | None:
    inside = str(root.resolve().relative_to(top) / path)
    command = ["git", *STARTS_NOTHING, "lfs", "pull", "--include", inside]
    named = {"GIT_DIR": str(top / ".git"), "GIT_WORK_TREE": str(top), "GIT_TERMINAL_PROMPT": "0"}
    told = f"git lfs pull --include {path}"
    try:
        done = subprocess.run(
            command,
            cwd=top,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=FETCH_TIMEOUT_S,
            check=False,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **named, "GIT_ALLOW_PROTOCOL": "https:http:ssh"},
        )
    except subprocess.TimeoutExpired:
        return f"{told} took longer than {FETCH_TIMEOUT_S:.0f} s"
    except OSError as error:
        return f"{told} could not be started: {error.strerror}"
    if done.returncode != 0:
        return f"{told} ended with {done.returncode}: {done.stdout[-500:]}{done.stderr[-500:]}"
    return None
