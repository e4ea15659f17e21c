"""Finds out whether the solution or the machine failed: a known-good program of ours is built, loaded and called.

The text of a failure decides only whether a check is made. So a solution cannot blame the machine by its output.
"""

from __future__ import annotations

import math
import re
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import torch

from flashinfer_bench.base.files.trees import remove_tree
from flashinfer_bench.bench.evaluators.inputs.contents import Contents
from flashinfer_bench.bench.runner.protocol import RequestedSolution, SessionConfig
from flashinfer_bench.bench.runner.requests import describe_solution
from flashinfer_bench.bench.runner.session.opening import files_of
from flashinfer_bench.bench.runner.workers.artifacts import load_solution
from flashinfer_bench.bench.runner.workers.calling_style import CallingStyle
from flashinfer_bench.bench.runner.workers.claims import OutputSpec
from flashinfer_bench.bench.runner.workers.kernel import RemoteKernel
from flashinfer_bench.bench.runner.workers.kernel_task import KernelMetadata, KernelTask, MeasurePlan, SessionTools
from flashinfer_bench.compile import BuildPool, BuildTarget
from flashinfer_bench.compile.diagnostics import DISK_FULL
from flashinfer_bench.compile.known_good import NAME, KnownGood, programs_like
from flashinfer_bench.errors import BuildFault, DeviceFault, Fault, SolutionFailure

PROGRAM_S: Final = 240.0
"""Seconds for loading and calling one of our programs. torch.compile and nvcc take a minute on a busy machine."""
BELIEVED_S: Final = 60.0
"""Seconds for which a failure of our program is cached. A later try may succeed, for example if a full disk has room
again."""
SHAPE: Final = (1024,)
CURES: Final = (
    (
        r"failed to map segment|Permission denied|Operation not permitted|Exec format|Read-only file system",
        "see whether the user may write there and start programs there (mount options noexec and ro); FIB_CACHE_PATH "
        "and TMPDIR name other folders",
    ),
    (
        r"allocator is nullptr|torch_c_dlpack|c_exchange_api",
        "tvm-ffi has no bridge to this torch; try: pip install torch-c-dlpack-ext, or torch 2.10 or newer",
    ),
    (
        r"undefined symbol|GLIBCXX|CXXABI|GLIBC_|version `|symbol lookup",
        "libraries of different compilers or versions meet: reinstall torch and apache-tvm-ffi so that they fit, or "
        "name another C++ compiler in CXX",
    ),
    (r"No space left|Disk quota|Bus error|SIGBUS|signal 7\b", "free some space in the cache and in TMPDIR"),
    (r"[Nn]inja", "pip install ninja"),
    (r"Python\.h", "install Python's headers (apt-get install python3-dev)"),
    (
        r"libcuda|libcudart|driver version|unsupported toolchain|UNSUPPORTED_PTX|no kernel image|ptxas",
        "see whether the NVIDIA driver is as new as the CUDA toolkit; TRITON_LIBCUDA_PATH and TRITON_PTXAS_PATH name "
        "other files",
    ),
    (
        r"[Cc]ompiler|nvcc|gcc|g\+\+|cc1plus|CUDA_HOME|cannot open shared object|No such file|not found|"
        r"[Kk]illed|[Oo]ut of memory|bad_alloc|during the import|SIGILL|signal 4\b|dlopen|DLL",
        "see whether the compiler works, and what CC, CXX and CUDA_HOME name",
    ),
)
"""Pattern of a machine failure → its cure. A program of ours is tried only if a failure matches a pattern."""


@dataclass
class MachineCheck:
    """Tries our programs on one device. A program that works is not tried again.

    Args:
        end_workers: ends every worker that holds a solution.
    """

    session_config: SessionConfig
    tools: SessionTools
    end_workers: Callable[[], object]
    _found: dict[str, tuple[float, str]] = field(default_factory=dict)
    """Program → time of its latest try, and why it failed; empty if it works."""

    def why(self, solution: RequestedSolution, failure: SolutionFailure, report: Callable[[], object]) -> str | None:
        """Return how the machine caused a failure; None if the solution caused it.

        Args:
            report: called before a program is tried, which can take minutes.

        Raises:
            DeviceFault: no worker can be started.
        """
        if failure.status not in ("COMPILE_ERROR", "RUNTIME_ERROR") or find_cure(failure.message) is None:
            return None
        is_full = DISK_FULL.search(failure.message) is not None
        if is_full:  # the solution's own files may fill the disk
            self.end_workers()
            self._remove_folder(solution)
        for program in programs_like(solution.language, solution.kind, solution.sources.values()):
            if program.needs_gpu and self.session_config.device != "cuda":
                continue
            tried, why = self._found.get(program.what, (-math.inf, "not tried"))
            if (why or is_full) and time.monotonic() - tried >= BELIEVED_S:
                report()
                failed = self._try(program)
                why = "" if failed is None else describe(program.what, failed, self.session_config.cache_root)
                self._found[program.what] = time.monotonic(), why
            if why:
                return why
        return None

    def _try(self, program: KnownGood) -> str | None:
        """Build, load and call a program; return why it failed. None if it works, or if the machine did not cause the
        failure."""
        solution = program.solution("" if program.binding else secrets.token_hex(8))
        target = BuildTarget.of([self.session_config.gpu_capability] if self.session_config.gpu_capability else [])
        with BuildPool(Path(self.session_config.cache_root), target=target) as build_pool:
            built = next(build_pool.build_all([solution]))
            if isinstance(built.error, BuildFault):
                return str(built.error)
            if built.artifact is None:  # our program did not compile: it may not fit the binding's version
                return None
            self.end_workers()
            try:
                self._call(describe_solution(built))
            except SolutionFailure as failure:
                return None if failure.status == "TIMEOUT" else failure.message
            except DeviceFault:
                raise
            except (Fault, RuntimeError):  # this error says nothing about the solution
                return None
            finally:
                self.end_workers()
        return None

    def _call(self, solution: RequestedSolution) -> None:
        """Load one of our programs in a worker like a solution, and call it."""
        worker, _ = self.tools.pool.worker_for(files_of(solution))
        task = KernelTask(
            input_names=["x"],
            outputs=[OutputSpec("y", SHAPE, torch.float32)],
            timeout_seconds=PROGRAM_S,
            plan=MeasurePlan(0, 1, 0.0),
            vary=lambda _number, inputs: Contents(inputs, [], 0, 0),
        )
        kernel = RemoteKernel(worker, self.tools, task, KernelMetadata(solution.name, NAME, False))
        try:
            load_solution(kernel, solution)
            kernel.calling_style = CallingStyle("value", "ours")
            kernel.call_once([torch.ones(SHAPE, device=self.tools.arena.device)])
        finally:
            self._remove_folder(solution)

    def _remove_folder(self, solution: RequestedSolution) -> None:
        """Remove the files that compilers have written at run time for a solution."""
        remove_tree(self.tools.pool.policies.folder(solution.digest))


def describe(program: str, message: str, cache_root: str) -> str:
    """Return the message that our program fails on this machine, with a cure."""
    said = message.strip().partition("\n")[0] or "it failed"
    cure = find_cure(message) or "see what it says"
    reported = f"{program} does not work on this machine: a program of ours fails, too: {said}"
    return f"{reported}; {cure} (the cache is {cache_root})"


def find_cure(message: str) -> str | None:
    """Return a cure for a machine's failure; None if the message does not match such a failure."""
    return next((cure for pattern, cure in CURES if re.search(pattern, message)), None)
