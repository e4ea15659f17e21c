"""The requests for a session: batches whose solutions are built, and solutions to compile ahead."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from flashinfer_bench.bench.planning.first_call import FirstCall, find_first_call
from flashinfer_bench.bench.planning.plan import Job
from flashinfer_bench.bench.runner.protocol import Announced, RequestedJob, RequestedSolution, SessionRequest
from flashinfer_bench.compile import BuildFault, BuildPool, Built

ANNOUNCED_WORKLOADS: Final = 8
"""Largest number of workloads sent with an announced solution. Further workloads rarely need another module."""


@dataclass
class RequestMaker:
    """Makes the requests for batches.

    A solution whose first call compiles modules for minutes can be announced ahead. If the run has only one device, its
    session compiles that solution while it measures other solutions.
    """

    build_pool: BuildPool
    """The build pool that has built the solutions of a batch."""
    blob_root_for: Callable[[Job], Path]
    """Returns the folder with the stored inputs of a job."""
    seed_of: Callable[[Job], int]
    _later: dict[str, list[Job]] = field(default_factory=dict)
    """Key of a solution that may be announced → its jobs."""

    def make(self, jobs: Sequence[Job]) -> tuple[SessionRequest, list[tuple[Job, str]]]:
        """Return the request, and the jobs whose solution this machine could not build, with the reason."""
        unique = {job.solution_key: job.solution for job in jobs}
        built = {key: self.build_pool.built(solution) for key, solution in unique.items()}
        broken = {key: str(one.error) for key, one in built.items() if isinstance(one.error, BuildFault)}
        first = jobs[0]
        sent = [
            RequestedJob(
                index=job.index,
                solution=job.solution_key,
                workload=job.workload.model_dump(mode="json"),
                blob_root=str(self.blob_root_for(job)),
                seed=self.seed_of(job),
                settings=job.config.beyond(first.config),
                assurance=job.assurance,
            )
            for job in jobs
            if job.solution_key not in broken
        ]
        request = SessionRequest(
            definition=first.definition.model_dump(mode="json"),
            config=first.config.to_order(),
            solutions={key: describe_solution(one) for key, one in built.items() if key not in broken},
            jobs=sent,
            announced=self.announce() if sent else [],
        )
        return request, [(job, broken[job.solution_key]) for job in jobs if job.solution_key in broken]

    def expect(self, jobs: Iterable[Job]) -> None:
        """Add later jobs. A solution is announced if its first call compiles modules."""
        for job in jobs:
            self._later.setdefault(job.solution_key, []).append(job)

    def announce(self) -> list[Announced]:
        """Return the added solutions that are built by now, and whose first call compiles modules. Each solution is
        returned only once."""
        ready = [key for key, jobs in self._later.items() if self.build_pool.is_ready(jobs[0].solution)]
        found = [self._later.pop(key) for key in ready]
        return [
            Announced(
                solution=describe_solution(self.build_pool.built(jobs[0].solution)),
                definition=jobs[0].definition.model_dump(mode="json"),
                workloads=[job.workload.model_dump(mode="json") for job in jobs[:ANNOUNCED_WORKLOADS]],
            )
            for jobs in found
            if find_first_call(jobs[0].solution) is FirstCall.MODULES
        ]


def describe_solution(built: Built) -> RequestedSolution:
    """Return the description of a built solution for a session."""
    solution, artifact = built.solution, built.artifact
    keeps = artifact is not None and artifact.kind == "python"
    return RequestedSolution(
        name=solution.name,
        language=solution.spec.language.value,
        declared_style=solution.spec.declared_style,
        digest=solution.digest(),
        directory=str(artifact.directory) if artifact else None,
        entry=artifact.entry if artifact else "",
        symbol=artifact.symbol if artifact else "",
        kind=artifact.kind if artifact else "python",
        files=dict(artifact.files) if artifact else {},
        sources={source.path: source.content for source in solution.sources} if keeps else {},
        first_call=find_first_call(solution) if artifact else FirstCall.NOTHING,
        build_error=str(built.error) if built.error else None,
    )
