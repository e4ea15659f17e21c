"""What a session is ordered: batches whose solutions are built, and solutions that it compiles ahead of their turn."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from flashinfer_bench.bench.planning.first_call import FirstCall, find_first_call
from flashinfer_bench.bench.planning.plan import Job
from flashinfer_bench.bench.runner.protocol import Announced, BlockJob, BlockOrder, BlockSolution
from flashinfer_bench.compile import BuildFault, Built

if TYPE_CHECKING:
    from flashinfer_bench.bench.runner.places import Builds

ANNOUNCED_AT_ONCE: Final = 16
"""Solutions that are announced with one batch, at most."""
LONGEST_TEXT: Final = 1 << 20
"""Characters of a solution that is announced, at most: a batch is one message."""
ANNOUNCED_WORKLOADS: Final = 8
"""Workloads that are sent of an announced solution, at most: others hardly need another module."""


@dataclass
class OrderMaker:
    """Makes the orders of batches.

    A solution whose first call compiles modules for minutes may be announced before its turn: the session of a run's
    only device compiles it beside its measurements.
    """

    farm: Builds
    """Has built the solutions of a batch."""
    blob_root_for: Callable[[Job], Path]
    """Returns the folder with the stored inputs of a job."""
    seed_of: Callable[[Job], int]
    _announced: dict[str, list[Job]] = field(default_factory=dict)
    """Solution's key → its jobs, empty once it is announced."""

    def make(self, jobs: Sequence[Job]) -> tuple[BlockOrder, list[tuple[Job, str]]]:
        """Return the order, and the jobs whose solution this machine could not build, with the reason."""
        solutions: dict[str, BlockSolution] = {}
        broken: dict[str, str] = {}
        for job in {job.solution_key: job for job in jobs}.values():
            built = self.farm.built(job.solution)
            if isinstance(built.error, BuildFault):
                broken[job.solution_key] = str(built.error)
            else:
                solutions[job.solution_key] = describe_solution(built)
        first = jobs[0]
        sent = [
            BlockJob(
                index=job.index,
                solution=job.solution_key,
                workload=job.workload.model_dump(mode="json"),
                blob_root=str(self.blob_root_for(job)),
                seed=self.seed_of(job),
                settings=job.config.beyond(first.config),
            )
            for job in jobs
            if job.solution_key in solutions
        ]
        definition, config = first.definition.model_dump(mode="json"), first.config.to_order()
        order = BlockOrder(definition=definition, config=config, solutions=solutions, jobs=sent)
        return order, [(job, broken[job.solution_key]) for job in jobs if job.solution_key in broken]

    def expect(self, jobs: Iterable[Job]) -> None:
        """Note the solutions among further jobs that are to be announced."""
        for job in jobs:
            if job.solution_key not in self._announced:
                is_short = sum(len(source.content) for source in job.solution.sources) <= LONGEST_TEXT
                is_meant = is_short and find_first_call(job.solution) is FirstCall.MODULES
                self._announced[job.solution_key] = [job] if is_meant else []
            elif self._announced[job.solution_key]:
                self._announced[job.solution_key].append(job)

    def announce(self) -> list[Announced]:
        """Return solutions that are built and were not announced yet."""
        waiting = (listed for listed in self._announced.values() if listed)
        ready = [listed for listed in waiting if self.farm.is_ready(listed[0].solution)][:ANNOUNCED_AT_ONCE]
        for listed in ready:
            self._announced[listed[0].solution_key] = []
        return [
            Announced(
                solution=describe_solution(self.farm.built(jobs[0].solution)),
                definition=jobs[0].definition.model_dump(mode="json"),
                workloads=[job.workload.model_dump(mode="json") for job in jobs[:ANNOUNCED_WORKLOADS]],
            )
            for jobs in ready
        ]


def describe_solution(built: Built) -> BlockSolution:
    """Return what a session is told of a solution's build."""
    solution, artifact = built.solution, built.artifact
    keeps = artifact is not None and artifact.kind == "python"
    return BlockSolution(
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
        build_error=str(built.error) if built.error else None,
    )
