"""What a session keeps from one block to the next."""

from types import SimpleNamespace

import pytest
import torch

from flashinfer_bench.bench.config import BenchmarkConfig
from flashinfer_bench.bench.runner.protocol import BlockJob, BlockOrder, BlockSolution
from flashinfer_bench.bench.runner.readout import Readout
from flashinfer_bench.bench.runner.session import device_session
from flashinfer_bench.bench.runner.workers.arena import SharedArena
from flashinfer_bench.bench.runner.workers.kernel import SessionTools
from flashinfer_bench.timing.measurement import Measured
from tests.kit import make_definition

pytestmark = pytest.mark.cpu
CPU = torch.device("cpu")


class FakePool:
    """Notes how large the arena is when its worker is ended."""

    def __init__(self, arena):
        self.arena = arena
        self.sizes = []

    def discard(self):
        self.sizes.append(self.arena.size)


@pytest.fixture
def arena():
    with SharedArena(CPU) as arena:
        yield arena


def _open_session(arena, pool):
    return device_session.DeviceSession(None, pool, SessionTools(arena, Readout(None), lambda: None), print)


@pytest.mark.parametrize(("size", "is_kept"), [(1 << 20, True), ((1 << 30) + (2 << 20), False)], ids=["small", "large"])
def test_a_large_arena_is_given_back_between_blocks_after_its_worker(arena, size, is_kept):
    pool = FakePool(arena)
    session = _open_session(arena, pool)
    arena.reserve(size)
    definition = make_definition()
    config = BenchmarkConfig().resolve_eval_config(definition).values()
    session.open_block(BlockOrder(definition=definition.model_dump(mode="json"), config=config, solutions={}, jobs=[]))
    assert pool.sizes == ([] if is_kept else [size])
    assert arena.size == (size if is_kept else 0)


@pytest.mark.parametrize(("known", "lacks"), [(None, True), (Measured(2.0, [2.0], {}), False)], ids=["no", "yes"])
def test_a_baseline_whose_time_is_known_from_an_earlier_run_is_made_beside_a_loaded_solution(arena, known, lacks):
    pool = FakePool(arena)
    kept = SimpleNamespace(find=lambda job, plan: known, keep=None)
    hello = SimpleNamespace(isolated=False, baseline_budget_s=2.0, timing=None, device="cpu")
    tools = SessionTools(arena, Readout(None), lambda: None)
    session = device_session.DeviceSession(hello, pool, tools, print, kept)
    definition = make_definition()
    solution = {"name": "s", "language": "python", "declared_style": None, "digest": "1", "directory": "/", "entry": ""}
    solution |= {"symbol": "", "kind": "python", "build_error": None}
    order = BlockOrder(
        definition=definition.model_dump(mode="json"),
        config=BenchmarkConfig().resolve_eval_config(definition).values(),
        solutions={"s": BlockSolution(**solution)},
        jobs=[BlockJob(index=0, solution="s", workload={"uuid": "w0", "axes": {}}, blob_root="/", seed=1)],
    )
    assert session.lacks_baseline(session.open_block(order), order.jobs[0]) is lacks


@pytest.mark.parametrize("error", device_session.OUT_OF_MEMORY, ids=lambda kind: kind.__name__)
def test_want_of_memory_in_the_judge_is_a_fault_that_says_so_and_gives_the_arena_back(arena, monkeypatch, error):
    session = _open_session(arena, FakePool(arena))
    arena.reserve(1 << 20)
    definition = make_definition()
    config = BenchmarkConfig().resolve_eval_config(definition).values()
    shared = session.open_block(
        BlockOrder(definition=definition.model_dump(mode="json"), config=config, solutions={}, jobs=[])
    )
    monkeypatch.setattr(session, "_load", lambda *_arguments: (_ for _ in ()).throw(error("out of memory: 80 GB")))
    workload = {"uuid": "w0", "axes": {}, "inputs": {}}
    job = BlockJob(index=3, solution="s", workload=workload, blob_root="/", seed=1)
    fault = session.run_job(shared, job)
    assert (fault.job, fault.retry, arena.size) == (3, False, 0)
    assert "workload w0: the judge needs more memory" in fault.message
