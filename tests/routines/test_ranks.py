"""The all-to-all of experts: two ranks as threads, with a plain exchange between them."""

from __future__ import annotations

import csv
import shlex
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from flashinfer_bench.cli.perf_cases import read_requests
from flashinfer_bench.cli.perf_flags import split_session
from flashinfer_bench.cli.perf_ranks import make_rows, report_ranks
from flashinfer_bench.routines.moe_comm import count_ranks, why_not_here
from flashinfer_bench.routines.ranks import RankInputs, pack, time_rounds, unpack
from flashinfer_bench.routines.support import Place
from tests.kit.stopwatch import WallStopwatch

pytestmark = pytest.mark.cpu

RANKS, TOKENS, HIDDEN, EXPERTS = 2, 5, 128, 8
PLACE = Place("NVIDIA B200", "10.0", {}, frozenset({"flashinfer"}))
FLAGS = "--routine moe_a2a_dispatch_combine --num_tokens 4 --hidden_size 128 --num_experts 16 --top_k 2"


class World:
    """What two threads share."""

    def __init__(self):
        self.barrier = threading.Barrier(RANKS)
        self.posted = [None] * RANKS

    def exchange(self, rank, value):
        self.posted[rank] = value
        self.barrier.wait(timeout=30)
        seen = list(self.posted)
        self.barrier.wait(timeout=30)
        return seen


class Rank:
    """One thread's exchange and communicator; `spoil` is done to what comes back."""

    def __init__(self, world, rank, spoil=None):
        self.world, self.rank, self.spoil = world, rank, spoil

    def dispatch(self, experts, payloads, most):
        everybody = self.world.exchange(self.rank, (experts, payloads))
        return [torch.stack([payloads[i] for _, payloads in everybody]) for i in range(len(payloads))]

    def combine(self, payload, most):
        everybody = self.world.exchange(self.rank, payload)
        back = sum(part[self.rank].float() for part in everybody).to(payload.dtype)
        return back if self.spoil is None else self.spoil(back)

    def Barrier(self):
        self.world.exchange(self.rank, None)

    def allgather(self, value):
        return self.world.exchange(self.rank, value)


def run(quant, spoil=None):
    world = World()

    def one(rank):
        source = torch.Generator().manual_seed(rank)
        hidden = torch.randn(TOKENS, HIDDEN, generator=source).to(torch.bfloat16)
        experts = torch.stack([torch.randperm(EXPERTS, generator=source)[:3] for _ in range(TOKENS)]).int()
        factors = torch.rand(TOKENS, 3, generator=source).softmax(dim=-1)
        inputs = RankInputs(hidden, experts, factors, EXPERTS, rank, RANKS, quant)
        own = Rank(world, rank, spoil if rank == 1 else None)
        return time_rounds(inputs, own, own, WallStopwatch(), dry_run_iters=1, num_iters=3)

    with ThreadPoolExecutor(RANKS) as pool:
        return list(pool.map(one, range(RANKS)))


@pytest.mark.parametrize("quant", [None, "fp8", "fp8_block_scale", "nvfp4"])
def test_what_comes_back_is_what_the_experts_make_of_it(quant):
    for times, problems in run(quant):
        assert problems == []
        assert {name: len(taken) for name, taken in times.items()} == {
            "a2a_total": 3,
            "a2a_dispatch": 3,
            "moe_kernel": 3,
            "a2a_combine": 3,
        }


@pytest.mark.parametrize(
    "spoil",
    [
        torch.zeros_like,
        lambda back: back * 1.25,
        lambda back: torch.cat((back[:-1], back[-1:] * 0)),
        lambda b: b / 0 * 0,
    ],
    ids=["zero", "wrong scale", "one row skipped", "nan"],
)
def test_what_one_rank_gets_wrong_every_rank_is_told(spoil):
    found = [problems for _, problems in run(None, spoil)]
    assert found[0] == found[1]
    assert "of rank 1 are different" in found[0][0]


@pytest.mark.parametrize(("quant", "error"), [(None, 0), ("fp8", 0.07), ("fp8_block_scale", 0.07), ("nvfp4", 0.35)])
def test_packing_keeps_tokens_within_the_rounding_of_its_format(quant, error):
    x = torch.randn(6, HIDDEN, generator=torch.Generator().manual_seed(3)).to(torch.bfloat16)
    again = unpack(pack(x, quant), quant)
    assert float(((again - x.float()).abs() / x.float().abs().clamp(min=0.3)).max()) <= error


def test_every_rank_reports_the_slowest_time():
    first, second = run(None)
    assert first[0] == second[0]


def test_what_is_missing_is_told():
    assert "mpirun" in why_not_here({})
    assert "mpi4py" in (why_not_here({"OMPI_COMM_WORLD_SIZE": "2"}) or "mpi4py")
    assert count_ranks({"OMPI_COMM_WORLD_SIZE": "4"}) == 4


@pytest.mark.parametrize(("flags", "names"), [("", ["a2a_total"]), ("--per_phase_timing", None)])
def test_phases_are_rows_where_that_is_asked_for(flags, names, tmp_path, capsys):
    session, rest = split_session(shlex.split(f"{FLAGS} {flags} --backends torch --output_path {tmp_path / 'a.csv'}"))
    request = read_requests(rest, None, PLACE)[0]
    times = {name: [2.0, 4.0, 3.0] for name in ("a2a_total", "a2a_dispatch", "moe_kernel", "a2a_combine")}
    assert report_ranks(request, session, PLACE, times, []) == 0
    with (tmp_path / "a.csv").open(newline="", encoding="utf-8") as handle:
        rows = list(csv.DictReader(handle))
    assert [row["backend"] for row in rows] == (names or list(times))
    assert capsys.readouterr().out.count("[PERF] a2a_") == (1 if names else 3)
    total, dispatch, _, combine = make_rows_of(f"{FLAGS} --per_phase_timing --backends torch", times)
    assert total.facts["bytes"] == dispatch.facts["bytes"] + combine.facts["bytes"] == request.case.cost.bytes


def make_rows_of(flags, times):
    return make_rows(read_requests(shlex.split(flags), None, PLACE)[0], PLACE, times, "")


def test_a_mismatch_fails_where_it_is_to_be_an_error(capsys):
    session, rest = split_session(shlex.split(f"{FLAGS} --validate --backends torch"))
    request = read_requests(rest, None, PLACE)[0]
    assert report_ranks(request, session, PLACE, {"a2a_total": [1.0]}, ["3 / 9 elements of rank 1 are different"]) == 1
    out = capsys.readouterr().out
    assert "[ERROR] Output tensor mismatch between backends torch and moe_a2a: 3 / 9" in out
    assert "[PERF]" not in out
