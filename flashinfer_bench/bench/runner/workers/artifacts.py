"""The files that a worker loads: the built artifact, which is checked again just before the load."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from flashinfer_bench.bench.runner.protocol import RequestedSolution
from flashinfer_bench.compile import Artifact
from flashinfer_bench.compile.building import write_files
from flashinfer_bench.compile.cache import find_change, find_unlisted, name_jit_folder
from flashinfer_bench.errors import BuildFault
from flashinfer_bench.worker.protocol import Signature

if TYPE_CHECKING:
    from flashinfer_bench.bench.runner.workers.kernel import RemoteKernel


def find_artifact(solution: RequestedSolution, make_folder: Callable[[], Path], *, anew: bool = False) -> Artifact:
    """Return a solution's artifact. If its files were changed, write its sources into a new folder.

    Args:
        make_folder: returns a new, empty folder.
        anew: write its sources in any case, because the worker cannot reach the artifact.

    Raises:
        BuildFault: the artifact was changed, and only a compiler can restore it.
    """
    directory, problem = Path(solution.directory or ""), None
    anew = anew or not solution.directory
    if not (solution.sources and anew):
        problem = find_change(directory, solution.files)
        if solution.sources:
            problem = problem or find_unlisted(directory, solution.sources)
        elif problem is not None:
            message = f"the artifact of {solution.name} was changed while the run used it: {problem} ({directory})"
            raise BuildFault(message)
    if solution.sources and (anew or problem is not None):
        directory = make_folder()
        write_files(directory, {path: content.encode() for path, content in solution.sources.items()})
    return Artifact(directory, solution.entry, solution.symbol, solution.kind)


def load_solution(kernel: RemoteKernel, solution: RequestedSolution) -> Signature | None:
    """Have a kernel's fresh worker import a solution or a reference; return the signature of its entry function.

    Raises:
        BuildFault: its artifact was changed.
        SolutionFailure: the import failed.
    """
    kernel.tools.pool.await_writers()
    policies, worker = kernel.tools.pool.policies, kernel.worker
    if not worker.is_adopted:
        name_jit_folder(policies.folder(solution.digest), solution.name)  # `cache show` lists the name
    reaches_none = solution.kind == "reference" or worker.is_adopted
    artifact = find_artifact(solution, worker.make_folder, anew=reaches_none)
    return kernel.load(policies.hand_over(artifact, worker.home))


def location_of(artifact: Artifact) -> dict[str, str]:
    """Return the location of an artifact and its kind, as fields of a `load` request."""
    return {name: str(getattr(artifact, name)) for name in ("directory", "entry", "symbol", "kind")}
