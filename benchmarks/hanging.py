"""Looks at a tool that hangs: what each thread of it, and of what it started, waits for; its sockets and files."""

import os
import threading
import time
from contextlib import suppress
from pathlib import Path

from flashinfer_bench.sandbox.process_tree import descendants

CALLER = "flashinfer_bench.worker.one_call"
POLL_S = 0.5
WAITS_FOR_THE_GUARD = "seccomp"
"""Part of the kernel's name for the place where a filtered call waits."""


class HangWatch:
    """Looks at the processes below this one that run a tool, once they have run for some seconds.

    Args:
        program: the tool.
        after_s: so long after its start.
    """

    def __init__(self, program, after_s):
        self.name = Path(program).name
        self.after_s = after_s
        self.found = ""
        self.summary = ""
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._end.set()
        self._thread.join()

    def _watch(self):
        since = {}
        while not self._end.wait(POLL_S):
            now = time.monotonic()
            since = {pid: since.get(pid, now) for pid in descendants(os.getpid()) if self._is_of_tool(pid)}
            late = [pid for pid, start in since.items() if now - start >= self.after_s]
            if late:
                self.found, self.summary = describe(late[0])
                return

    def _is_of_tool(self, pid):
        words = _command(pid)
        return self.name in words and CALLER in words


def describe(pid):
    """Return all that is seen of a process with its tree, and a line a process."""
    above = [int(one) for one in (_status(pid).get("PPid"),) if one]
    whole, lines = "##### hanging\n", []
    for one in dict.fromkeys([*above, pid, *descendants(pid)]):
        threads = [*_threads(one)]
        whole += f"### {one} {_command(one)[:300]}\n{_read(one, 'status')}"
        for thread, name, place, call in threads:
            whole += f"thread {thread} {name}: {place}, call {call}\n"
        for fd, target in _descriptors(one):
            whole += f"fd {fd} {target}\n"
        places = sorted({f"{place} ({call.split(' ')[0]})" for _, _, place, call in threads})
        asks = " ASKS THE GUARD" * any(WAITS_FOR_THE_GUARD in place for _, _, place, _ in threads)
        lines.append(f"      {one} {_command(one)[:90]}: {', '.join(places)[:300]}{asks}")
    for table in ("tcp", "tcp6", "unix"):
        whole += f"### {table} of {pid}\n{_read(pid, f'net/{table}')}"
    whole += f"### environment of {pid}\n{_read(pid, 'environ').replace(chr(0), chr(10))}\n"
    return whole, "\n".join(lines)


def _threads(pid):
    for folder in sorted(Path(f"/proc/{pid}/task").glob("*")):
        parts = [_read(f"{pid}/task/{folder.name}", part).strip() for part in ("comm", "wchan", "syscall")]
        yield folder.name, *parts


def _descriptors(pid):
    with suppress(OSError):
        for link in sorted(Path(f"/proc/{pid}/fd").iterdir(), key=lambda one: int(one.name)):
            with suppress(OSError):
                yield link.name, link.readlink()


def _status(pid):
    lines = [line.partition(":") for line in _read(pid, "status").splitlines()]
    return {key: value.strip() for key, _, value in lines}


def _command(pid):
    return _read(pid, "cmdline").replace("\0", " ")


def _read(pid, part):
    try:
        return Path(f"/proc/{pid}/{part}").read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        return f"{error}\n"
