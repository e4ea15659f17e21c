"""The all-to-all of experts: ranks as threads, with a plain exchange between them.

Places that no token came to hold bytes that are NaN in every format, and nothing comes back from them.
"""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType, SimpleNamespace

import pytest
import torch

from flashinfer_bench.cli.perf.flags import split_session
from flashinfer_bench.cli.perf.ranks import PHASES, report_ranks, time_rounds
from flashinfer_bench.routines.case.support import Platform
from flashinfer_bench.routines.code import moe_comm_torch, moe_torch
from flashinfer_bench.routines.code.formats import by_blocks, by_rows, by_tiles
from flashinfer_bench.routines.families.moe_comm import count_ranks, why_not_here
from tests.routines.judged import JudgedRoutine
from tests.routines.small import ask, read_rows

pytestmark = pytest.mark.cpu

RANKS, HIDDEN, EXPERTS, INTERMEDIATE = 2, 128, 8, 256
PLACE = Platform("NVIDIA B200", "10.0", {}, frozenset({"flashinfer"}))
NAME = "moe_a2a_dispatch_combine"
SIZES = "--num_tokens 5 --hidden_size 128 --num_experts 8 --top_k 3"
REAL = {
    quant: f"{SIZES} --real_math --intermediate_size 256 --quant_dtype {quant}"
    for quant in ("nvfp4", "fp8_block_scale")
}
PLAIN = {quant: f"{SIZES} --quant_dtype {quant}" for quant in ("fp8", "fp8_block_scale", "nvfp4")} | {None: SIZES}


class Rank:
    """One thread's exchange, communicator and stopwatch; `spoil` is done to what comes back."""

    def __init__(self, rank, barrier, posted, spoil):
        self.rank, self.barrier, self.posted, self.spoil = rank, barrier, posted, spoil

    def Get_rank(self):
        return self.rank

    def Get_size(self):
        return RANKS

    def allgather(self, value):
        self.posted[self.rank] = value
        self.Barrier()
        seen = list(self.posted)
        self.Barrier()
        return seen

    def Barrier(self):
        self.barrier.wait(timeout=30)

    def dispatch(self, experts, payloads, most, absent=None, ids_at=None):
        everybody = self.allgather((experts, payloads))
        self.came = torch.stack([(ids // (EXPERTS // RANKS) == self.rank).any(dim=-1) for ids, _ in everybody])
        parts = [torch.stack(sent) for sent in zip(*(payloads for _, payloads in everybody), strict=True)]
        for index, part in enumerate(parts):
            part.view(torch.uint8)[~self.came] = 0xFF
            if index == ids_at:
                part[~self.came] = absent
        return parts

    def combine(self, payload, most):
        everybody = self.allgather((payload, self.came))
        kept = [torch.where(came[self.rank][:, None], part[self.rank].float(), 0.0) for part, came in everybody]
        return self.spoil(sum(kept).to(payload.dtype))

    def mark(self):
        """Do nothing: each phase of rank 0 takes 1 ms, and each of rank 1 takes 2."""

    def read(self):
        return [self.rank + 1.0] * len(PHASES)


@pytest.fixture(autouse=True)
def _two_ranks(monkeypatch):
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", str(RANKS))


@pytest.fixture
def run(monkeypatch):
    """A function that plays both ranks, with experts of a library of its own, and returns what they return."""

    def play(flags, spoil=lambda back: back, error=1.0):
        for name, module in {"flashinfer": ModuleType("flashinfer"), "flashinfer.fused_moe": Library(error)}.items():
            monkeypatch.setitem(sys.modules, name, module)
        (request,) = ask(f"--routine {NAME} {flags} --backends torch --num_iters 3 --dry_run_iters 1", PLACE)
        barrier, posted = threading.Barrier(RANKS), [None] * RANKS
        ranks = [Rank(rank, barrier, posted, spoil if rank == 1 else lambda back: back) for rank in range(RANKS)]
        with ThreadPoolExecutor(RANKS) as pool:
            return list(pool.map(lambda own: time_rounds(request, own, own, own, torch.device("cpu")), ranks))

    return play


class Library(SimpleNamespace):
    """What flashinfer.fused_moe documents of the calls that are made of it, in plain torch; `error` is its rounding."""

    def __init__(self, error):
        super().__init__()
        self.error = error

    def cutlass_fused_moe(self, x, ids, factors, first, second, dtype, scales, **given):
        assert (given["swizzled_input_sf"], scales[0].ndim, scales[3].ndim) == (False, 0, 0)
        plain = by_rows(x, given["input_sf"].view(torch.float8_e4m3fn))
        weights = [part for at, codes in ((0, first), (3, second)) for part in layer(codes, *scales[at + 1 : at + 3])]
        assert given["ep_size"] * len(first) == EXPERTS
        assert bool(((ids >= 0) & (ids < EXPERTS)).all())
        local = ids - given["ep_rank"] * len(first)
        given["output"].copy_(moe_torch.mix(plain, local, factors, weights, by_tiles) * self.error)

    def trtllm_fp8_block_scale_routed_moe(self, packed, bias, x, scale, *rest, routing_method_type, **_):
        weights, (experts, top_k, _, _, inner, start, local, _) = rest[:4], rest[4:]
        assert (experts, top_k, inner, local) == (EXPERTS, 3, INTERMEDIATE, EXPERTS // RANKS)
        plain = x.float() * scale.T.repeat_interleave(128, dim=1)
        factors = (packed & 0xFFFF).to(torch.int16).view(torch.bfloat16).float()
        ids = packed >> 16
        assert bool(((ids >= 0) & (ids < EXPERTS)).all())
        done = moe_torch.mix(plain, ids - start, factors, weights, by_blocks) * self.error
        return done.to(torch.bfloat16)


def layer(codes, scales, factors):
    """Return codes, scales and factors of a product as the reference has them."""
    return codes.view(torch.uint8), scales.view(torch.float8_e4m3fn), factors


@pytest.mark.parametrize("quant", PLAIN)
def test_what_comes_back_is_what_the_experts_make_of_it_and_the_slowest_rank_is_told(quant, run):
    times = {"a2a_total": [4.0] * 3, **{phase: [2.0] * 3 for phase in PHASES}}
    assert run(PLAIN[quant]) == [(times, [])] * RANKS


@pytest.mark.parametrize("quant", REAL)
def test_real_experts_of_all_ranks_make_what_comes_back(quant, run):
    assert [problems for _, problems in run(REAL[quant])] == [[], []]
    wrong = run(REAL[quant], error=1.3)[0][1]
    assert (len(wrong), "of rank 0 are different" in wrong[0]) == (2, True)


def test_the_reference_has_real_experts_between_sending_and_returning(tmp_path, monkeypatch):
    job = JudgedRoutine(NAME, tmp_path, REAL["fp8_block_scale"])
    monkeypatch.setattr(moe_comm_torch, "QUANT_DTYPE", "fp8_block_scale")

    def run(x, ids, factors, *weights):
        sent = moe_comm_torch.unpack(*moe_comm_torch.pack(x.flatten(0, 1)))
        out = torch.zeros_like(sent)
        for expert, own in enumerate(zip(*weights, strict=True)):
            linear, gate = (sent @ by_blocks(*own[:2]).T).chunk(2, dim=-1)
            share = torch.where(ids == expert, factors, 0.0).sum(dim=-1).view(-1, 1)
            out += (torch.nn.functional.silu(gate) * linear) @ by_blocks(*own[2:]).T * share
        return [out.to(torch.bfloat16).view(x.shape)]

    assert job.status(run) == "PASSED"
    assert job.status(lambda x, ids, *rest: run(x, (ids + 1) % EXPERTS, *rest)) != "PASSED"


SPOILT = {
    "wrong scale": (SIZES, lambda back: back * 1.3),
    "one row skipped": (REAL["nvfp4"], lambda back: torch.cat((back[:-1], back[-1:] * 0))),
    "one NaN": (SIZES, lambda back: back.index_fill(0, torch.tensor([2]), float("nan"))),
}


@pytest.mark.parametrize(("flags", "spoil"), SPOILT.values(), ids=SPOILT)
def test_what_one_rank_gets_wrong_every_rank_is_told(flags, spoil, run):
    found = [problems for _, problems in run(flags, spoil)]
    assert found[0] == found[1]
    assert "of rank 1 are different" in found[0][0]


@pytest.mark.parametrize(("quant", "error"), [(None, 0), ("fp8", 0.07), ("fp8_block_scale", 0.07), ("nvfp4", 0.35)])
def test_packing_keeps_tokens_within_the_rounding_of_its_format(quant, error, monkeypatch):
    monkeypatch.setattr(moe_comm_torch, "QUANT_DTYPE", quant)
    x = torch.randn(6, HIDDEN, generator=torch.Generator().manual_seed(3)).to(torch.bfloat16)
    again = moe_comm_torch.unpack(*moe_comm_torch.pack(x))
    assert float(((again - x.float()).abs() / x.float().abs().clamp(min=0.3)).max()) <= error


def test_what_is_missing_is_told():
    assert "mpirun" in why_not_here({})
    assert count_ranks({"OMPI_COMM_WORLD_SIZE": "4"}) == 4


def test_rows_are_phases_with_their_work_and_a_mismatch_fails(tmp_path, capsys):
    command = f"--routine {NAME} {REAL['nvfp4']} --validate --backends torch"
    session = split_session(["--output_path", str(tmp_path / "a.csv")])[0]
    times = {name: [2.0, 4.0, 3.0] for name in ("a2a_total", *PHASES)}
    (request,) = ask(command, PLACE)
    assert report_ranks(request, session, times, ["3 / 9 elements of rank 1 are different"]) == 1
    out = capsys.readouterr().out
    reported = "[ERROR] Output tensor mismatch between backends torch and a2a_total: 3 / 9"
    assert (reported in out, "[PERF]" in out) == (True, False)
    for words, reported in {"": ["a2a_total"], "--per_phase_timing": [*times]}.items():
        (request,) = ask(f"{command} {words}", PLACE)
        assert report_ranks(request, session, times, []) == 0
        assert capsys.readouterr().out.count("[PERF]") == len(reported)
        rows = {row["backend"]: row for row in read_rows(tmp_path / "a.csv")}
        assert [*rows] == reported
    moved = {name: float(row["bytes"]) for name, row in rows.items()}
    assert moved["a2a_total"] == moved["a2a_dispatch"] + moved["a2a_combine"]
    assert moved["a2a_total"] + moved["moe_kernel"] == pytest.approx(request.case.cost.bytes)
    assert float(rows["moe_kernel"]["tflops"]) == pytest.approx(request.case.cost.flops / 3e9)
