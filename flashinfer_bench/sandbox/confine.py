"""The limits of one worker, and how a fresh fork gives up all other access permanently.

The session makes a policy (`bench/runner/workers/sandbox_policy.py`) and sends it with the spawn order. The worker
applies the policy before it has threads. The policy holds for all descendants. A worker without a policy keeps its
user's files and connections. It still gives up its session, descriptors, environment, capabilities, and its view of
other processes.
"""

from __future__ import annotations

import ctypes
import io
import os
import resource
import signal
import socket
import struct
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from flashinfer_bench.sandbox import landlock
from flashinfer_bench.sandbox.namespaces import enter_own_network, seal_proc
from flashinfer_bench.sandbox.process_tree import PR_SET_NO_NEW_PRIVS, die_with_parent, limit_resources, prctl
from flashinfer_bench.sandbox.seccomp import install_filter

PLAIN_DEVICES: Final = ("null", "zero", "full", "random", "urandom")
"""Device nodes that every program uses."""
OWN_THREADS, ALL_THREADS = "/proc/self/task", "/proc"
"""CUDA writes the name of each thread that it starts to a file below the first folder. Without access to this file,
CUDA fails. A tool starts programs whose folders are not known yet, so a tool gets the second folder."""
RESET_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE)
MOST_DESCRIPTORS: Final = 4096
"""Maximum descriptors of a worker's process, and maximum descriptors in transit through sockets. The kernel counts
descriptors in transit per user, and applies the sender's limit."""
MOST_FILE_BYTES: Final = 16 << 30
"""Maximum bytes of a file that a worker writes."""
LEAST_OOM_SCORE: Final = 500
"""Minimum out-of-memory score of a worker; the maximum is 1,000. If memory runs out, the kernel ends workers before the
judge."""
PR_CAPBSET_DROP, CAPABILITY_VERSION, MAX_CAPABILITIES = 24, 0x20080522, 64
CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 1, 2
"""A worker without a policy keeps CAP_DAC_OVERRIDE. Otherwise root could not read a cache of another user. This
capability gives no access to a process's memory."""


@dataclass(frozen=True)
class Policy:
    """The access of a worker."""

    readable: Sequence[str]
    """Folders and files that it can read and execute."""
    writable: Sequence[str]
    """Its own folders."""
    devices: Sequence[str]
    """Device nodes that it can read, write and control."""
    user: int | None = None
    """The user and group that it becomes; None to keep its user."""
    reads_all_owners: bool = False
    """Whether root keeps its right to read files of other owners. It needs the right if the environment belongs to
    another user."""
    for_tool: bool = False
    """Whether this is for a tool that inspects a solution. A tool has its own network, and its programs can name their
    threads."""

    def to_json(self) -> dict[str, Any]:
        """Return the policy as JSON-able values."""
        return asdict(self)

    def without_gpu(self) -> Policy:
        """Return the policy of a worker without a GPU."""
        return replace(self, devices=tuple(path for path in self.devices if Path(path).name in PLAIN_DEVICES))

    def enter(self) -> int | None:
        """Enter a Landlock domain with the policy's files, become its user, drop capabilities, and filter system calls.

        Returns:
            The descriptor through which the filter asks the supervisor.

        Raises:
            OSError: a step failed; the worker must not continue.
        """
        rules = [(path, landlock.READING) for path in self.readable]
        rules += [(path, landlock.OWNING) for path in self.writable]
        rules += [(path, landlock.USING) for path in self.devices]
        rules.append((ALL_THREADS if self.for_tool else OWN_THREADS, landlock.NAMING))
        if self.for_tool and self.user is None and os.geteuid() == 0:
            seal_proc()
        if self.for_tool and not enter_own_network():
            raise OSError("a process cannot have a network of its own here")
        landlock.restrict_files(rules, keeps_tcp=self.for_tool)
        if self.user is not None:
            os.setgroups([])
            os.setresgid(self.user, self.user, self.user)
            os.setresuid(self.user, self.user, self.user)
        if not drop_capabilities(kept=CAP_DAC_READ_SEARCH if self.reads_all_owners else None):
            raise OSError("this process's capabilities cannot be dropped")
        die_with_parent(signal.SIGKILL)  # becoming another user resets this setting
        return install_filter(sandboxed=True, has_own_user=self.user is not None, for_tool=self.for_tool)


def confine(order: Mapping[str, Any], fds: Sequence[int], supervisor: socket.socket) -> None:
    """Turn this fresh fork into a worker: own session, one pipe for output, one socket, its own folder.

    Args:
        order: the worker's `home` and `environment`; perhaps a `sandbox` policy; and `most_tasks`, the maximum number
            of threads and processes of the worker's user.
        fds: the socket, and the pipe.
        supervisor: gets the descriptor through which the filter asks.
    """
    keep_fd, out_fd = fds
    os.setsid()
    die_with_parent(signal.SIGKILL)
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    signal.set_wakeup_fd(-1)
    for number in RESET_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (out_fd, 1), (out_fd, 2)):
        os.dup2(source, target)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)  # output printed before a crash must arrive
    inherited = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    set_limits(order.get("most_tasks"))
    if order.get("sandbox") is not None:
        listener = Policy(**order["sandbox"]).enter()
    else:
        drop_capabilities()
        landlock.keep_apart()
        listener = install_filter()
    if listener is not None:
        socket.send_fds(supervisor, [b"x"], [listener])
    supervisor.detach()
    os.closerange(3, keep_fd)
    os.closerange(keep_fd + 1, inherited)
    os.environ.clear()
    os.environ.update(order["environment"])
    tempfile.tempdir = None  # this fork has cached the session's folder
    os.chdir(order["home"])


def set_limits(most_tasks: int | None) -> None:
    """Limit the resources of this process and its children. Address space has no limit: CUDA reserves terabytes."""
    score = Path("/proc/self/oom_score_adj")
    with suppress(OSError, ValueError):  # if this fails, workers and judge have the same score
        score.write_text(str(max(LEAST_OOM_SCORE, int(score.read_text()))))
    limits = {resource.RLIMIT_CORE: 0, resource.RLIMIT_FSIZE: MOST_FILE_BYTES, resource.RLIMIT_NOFILE: MOST_DESCRIPTORS}
    if most_tasks is not None:
        limits[resource.RLIMIT_NPROC] = most_tasks
    limit_resources(limits)


def drop_capabilities(kept: int | None = CAP_DAC_OVERRIDE) -> bool:
    """Drop every capability except one, also for programs that are started; return whether it worked."""
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        header = struct.pack("Ii", CAPABILITY_VERSION, 0)
        held = ctypes.create_string_buffer(24)
        if libc.capget(header, held) != 0:
            return False
        permitted = struct.unpack("6I", held.raw)[1]
        for number in range(MAX_CAPABILITIES):
            if number != kept:
                prctl(PR_CAPBSET_DROP, number)  # fails for an ordinary user without capabilities
        left = 0 if kept is None else permitted & (1 << kept)
        return bool(libc.capset(header, struct.pack("6I", left, left, 0, 0, 0, 0)) == 0)
    except (OSError, AttributeError):
        return False
