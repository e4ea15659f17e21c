"""Which solutions the next workers of a session are for."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from flashinfer_bench.bench.runner.protocol import BlockJob, BlockOrder, BlockSolution, Hello
from flashinfer_bench.bench.runner.workers.pool import MOST_WARM, SolutionFiles, reference_files
from flashinfer_bench.data import Definition

EXPECTED_WORKERS: Final = max(MOST_WARM.values()) + 2
"""Tell the pool of this many workers: the reference's, the current job's, and as many as may be in stock."""


class WantedBlock(NamedTuple):
    """What of a block is still to be done."""

    solutions: Mapping[str, BlockSolution]
    """By name."""
    orders: Sequence[BlockJob]
    reference: Sequence[SolutionFiles] = ()
    """The reference's, where it wants a worker before all jobs."""


def list_wanted(blocks: Iterable[WantedBlock], *, isolated: bool, broken: Container[str]) -> list[SolutionFiles]:
    """Return what the next workers are for, EXPECTED_WORKERS at the most.

    Args:
        blocks: those that come.
        isolated: each job wants a worker. Else one does all jobs of a solution that stand together.
        broken: digests of solutions that want none any more.
    """
    return list(islice(_iterate_wanted(blocks, isolated, broken), EXPECTED_WORKERS))


def _iterate_wanted(blocks: Iterable[WantedBlock], isolated: bool, broken: Container[str]) -> Iterator[SolutionFiles]:
    before = ""
    for block in blocks:
        yield from block.reference
        for solution in (block.solutions[order.solution] for order in block.orders):
            is_next = isolated or solution.digest != before
            before = solution.digest
            if is_next and solution.build_error is None and solution.digest not in broken:
                yield files_of(solution)


def list_first_wanted(hello: Hello, block: BlockOrder) -> list[SolutionFiles]:
    """Return what the workers of a session's first block are for, that of the reference among them."""
    wanted = list_wanted([WantedBlock(block.solutions, block.jobs)], isolated=hello.isolated, broken=())
    if not hello.profile_baseline or not wanted:
        return wanted
    return [reference_files(Definition.model_validate(block.definition).digest()), *wanted]


def files_of(solution: BlockSolution) -> SolutionFiles:
    """Return what a worker for a solution is made for. Python that calls torch mostly launches several operations."""
    directory = Path(solution.directory) if solution.directory else None
    wants_fast = solution.language == "python"
    return SolutionFiles(solution.digest, directory, wants_fast=wants_fast)
