"""Makes a session's order of a block: its solutions are built, its jobs have their seeds and their settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from flashinfer_bench.bench.planning.plan import Job
from flashinfer_bench.bench.runner.protocol import BlockJob, BlockOrder, BlockSolution
from flashinfer_bench.bench.schedule import Block
from flashinfer_bench.compile import BuildFarm, BuildFault, Built


@dataclass
class OrderMaker:
    """Makes the orders of blocks."""

    farm: BuildFarm
    """Has built the solutions of a block."""
    blob_root_for: Callable[[Job], Path]
    """Says where the stored inputs of a job lie."""
    seed_of: Callable[[Job], int]

    def make(self, block: Block) -> tuple[BlockOrder, list[tuple[Job, str]]]:
        """Return the order, and the jobs whose solution this machine could not build, with the reason."""
        solutions: dict[str, BlockSolution] = {}
        broken: dict[str, str] = {}
        faults: list[tuple[Job, str]] = []
        jobs: list[BlockJob] = []
        first = block.jobs[0]
        for job in block.jobs:
            key = job.solution_key
            if key not in solutions and key not in broken:
                built = self.farm.built(job.solution)
                if isinstance(built.error, BuildFault):
                    broken[key] = str(built.error)
                else:
                    solutions[key] = describe_solution(built)
            if key in broken:
                faults.append((job, broken[key]))
                continue
            jobs.append(
                BlockJob(
                    index=job.index,
                    solution=key,
                    workload=job.workload.model_dump(mode="json"),
                    blob_root=str(self.blob_root_for(job)),
                    seed=self.seed_of(job),
                    settings=job.config.beyond(first.config),
                )
            )
        definition, config = first.definition.model_dump(mode="json"), first.config.to_order()
        return BlockOrder(definition=definition, config=config, solutions=solutions, jobs=jobs), faults


def describe_solution(built: Built) -> BlockSolution:
    """Tell the session what came of a solution's build."""
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
