"""The worker for the reference of the block that comes next: it starts beside the last jobs of the one before.

Without it a block on a GPU began with a wait of 0.5 to 1.4 s for a fast context.
"""

from __future__ import annotations

from collections.abc import Callable

from flashinfer_bench.bench.config import ResolvedEvalConfig
from flashinfer_bench.bench.evaluators.reference import Reference
from flashinfer_bench.bench.evaluators.registry import find_evaluator
from flashinfer_bench.bench.runner.protocol import BlockJob, BlockOrder
from flashinfer_bench.bench.runner.session.job import BlockContext
from flashinfer_bench.bench.runner.workers.pool import SolutionFiles, reference_files
from flashinfer_bench.data import Definition


class ReferenceAhead:
    """Tells whether the block that comes next wants a worker for its reference.

    Args:
        lacks_baseline: whether a job's baseline has to be made, by its block and order.
    """

    def __init__(self, lacks_baseline: Callable[[BlockContext, BlockJob], bool]) -> None:
        self._lacks_baseline = lacks_baseline
        self._latest: tuple[BlockOrder, list[SolutionFiles]] | None = None

    def find(self, current: Definition, ahead: BlockOrder) -> list[SolutionFiles]:
        """Return what the worker is made for; nothing where none is wanted, or the current block's reference has one.

        Args:
            current: the definition of the block that runs.
            ahead: the block that comes next.
        """
        if self._latest is None or self._latest[0] is not ahead:
            self._latest = ahead, self._look(current, ahead)
        return self._latest[1]

    def _look(self, current: Definition, ahead: BlockOrder) -> list[SolutionFiles]:
        definition = Definition.model_validate(ahead.definition)
        digest = definition.digest()
        if digest == current.digest() or not ahead.jobs:
            return []
        # The source of the reference is not executed before its block: what it sets in torch would hold for this one.
        reference = Reference(definition, _not_compiled)
        config = ResolvedEvalConfig.model_validate(ahead.config)
        shared = BlockContext(definition, config, find_evaluator(definition), reference, ahead.solutions)
        return [reference_files(digest)] if self._lacks_baseline(shared, ahead.jobs[0]) else []


def _not_compiled(*_arguments: object) -> None:
    raise AssertionError("this reference is known by its definition only")
