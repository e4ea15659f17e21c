"""The all-to-all of experts: ranks as threads, with a plain exchange between them.

Places that no token came to hold bytes that are NaN in every format, and nothing comes back from them.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from flashinfer_bench.cli.perf.flags import split_session
from flashinfer_bench.cli.perf.ranks import report_ranks
from flashinfer_bench.routines.case.support import Platform
from flashinfer_bench.routines.code import moe_torch
from flashinfer_bench.routines.code.formats import by_blocks, by_rows, from_tiles
from flashinfer_bench.routines.families.moe_comm import EXCHANGE, count_ranks, why_not_here
from flashinfer_bench.routines.ranks import PHASES, RankInputs, RealExperts, Weighing, pack, time_rounds, unpack
from tests.routines.judged import JudgedRoutine, make_case
from tests.routines.small import ask, read_rows

pytestmark = pytest.mark.cpu

RANKS, TOKENS, HIDDEN, EXPERTS, INTERMEDIATE = 2, 5, 128, 8, 256
PLACE = Platform("NVIDIA B200", "10.0", {}, frozenset({"flashinfer"}))
SIZES = "--num_tokens 5 --hidden_size 128 --num_experts 8"


REAL = {
    quant: ("moe_a2a_dispatch_combine", f"{SIZES} --top_k 3 --real_math --intermediate_size 256 --quant_dtype {quant}")
    for quant in ("nvfp4", "fp8_block_scale")
}


class Rank:
    """One thread's exchange and communicator; `spoil` is done to what comes back."""

    def __init__(self, rank, barrier, posted, spoil):
        self.rank, self.barrier, self.posted, self.spoil = rank, barrier, posted, spoil

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


def run(quant, spoil=lambda back: back, library=None):
    barrier, posted = threading.Barrier(RANKS), [None] * RANKS

    def one(rank):
        source = torch.Generator().manual_seed(rank)
        hidden = torch.randn(TOKENS, HIDDEN, generator=source).to(torch.bfloat16)
        ids = torch.stack([torch.randperm(EXPERTS, generator=source)[:3] for _ in range(TOKENS)]).int()
        factors = torch.rand(TOKENS, 3, generator=source).softmax(dim=-1)
        inputs = RankInputs(hidden, ids, factors, EXPERTS, rank, RANKS, quant)
        own = Rank(rank, barrier, posted, spoil if rank == 1 else lambda back: back)
        check, experts = EXCHANGE, Weighing(inputs)
        if library is not None:
            check = make_case(*REAL[quant]).check
            experts = RealExperts(inputs, library, intermediate=INTERMEDIATE, seed=7)
        return time_rounds(inputs, experts, own, check, own, own, dry_run_iters=1, num_iters=3)

    with ThreadPoolExecutor(RANKS) as pool:
        return list(pool.map(one, range(RANKS)))


@pytest.mark.parametrize("quant", [None, "fp8", "fp8_block_scale", "nvfp4"])
def test_what_comes_back_is_what_the_experts_make_of_it_and_the_slowest_rank_is_told(quant):
    times = {"a2a_total": [4.0] * 3, **{phase: [2.0] * 3 for phase in PHASES}}
    assert run(quant) == [(times, [])] * RANKS


def expand(codes, scales, *factors):
    """Return the weights of each expert in float32: nvfp4 where factors of the experts are given, else fp8."""
    if not factors:
        return list(map(by_blocks, codes, scales))
    return [by_rows(*one) * factor for *one, factor in zip(codes, scales, *factors, strict=True)]


def mix(x, ids, factors, first, second):
    def compute(tokens, expert):
        return moe_torch.activate(tokens @ first[expert].T) @ second[expert].T

    return moe_torch.mix(x, ids, factors, len(first), compute)


class Library:
    """What flashinfer.fused_moe documents of the calls that are made of it, in plain torch; `error` is its rounding."""

    def __init__(self, error=1.0):
        self.error = error

    def cutlass_fused_moe(self, x, ids, factors, first, second, dtype, scales, **given):
        assert (given["swizzled_input_sf"], scales[0].ndim, scales[3].ndim) == (False, 0, 0)
        plain = by_rows(x, given["input_sf"].view(torch.float8_e4m3fn))
        layers = []
        for codes, (_, tiled, factor) in zip((first, second), (scales[:3], scales[3:]), strict=True):
            packed = codes.view(torch.uint8)
            size = packed.shape[1], packed.shape[2] // 8
            flat = [from_tiles(one.view(torch.float8_e4m3fn), *size) for one in tiled]
            layers.append(expand(packed, flat, factor))
        assert given["ep_size"] * len(layers[0]) == EXPERTS
        assert bool(((ids >= 0) & (ids < EXPERTS)).all())
        done = mix(plain, ids - given["ep_rank"] * len(layers[0]), factors, *layers) * self.error
        given["output"].copy_(done)

    def trtllm_fp8_block_scale_routed_moe(self, packed, bias, x, scale, *rest, routing_method_type, **_):
        first, first_scale, second, second_scale, experts, top_k, _, _, inner, start, local, _ = rest
        assert (experts, top_k, inner, local) == (EXPERTS, 3, INTERMEDIATE, EXPERTS // RANKS)
        plain = x.float() * scale.T.repeat_interleave(128, dim=1)
        factors = (packed & 0xFFFF).to(torch.int16).view(torch.bfloat16).float()
        ids = packed >> 16
        assert bool(((ids >= 0) & (ids < EXPERTS)).all())
        done = mix(plain, ids - start, factors, expand(first, first_scale), expand(second, second_scale)) * self.error
        return done.to(torch.bfloat16)


@pytest.mark.parametrize("quant", REAL)
def test_real_experts_of_all_ranks_make_what_comes_back(quant):
    assert [problems for _, problems in run(quant, library=Library())] == [[], []]
    wrong = run(quant, library=Library(error=1.3))[0][1]
    assert len(wrong) == 2
    assert "of rank 0 are different" in wrong[0]


@pytest.mark.parametrize("quant", REAL)
def test_the_reference_has_real_experts_between_sending_and_returning(quant, tmp_path):
    job = JudgedRoutine(REAL[quant][0], tmp_path, REAL[quant][1])

    def run(x, ids, factors, *weights):
        flat = [part.flatten(0, 1) for part in (x, ids, factors)]
        half = len(weights) // 2
        done = mix(unpack(pack(flat[0], quant), quant), *flat[1:], expand(*weights[:half]), expand(*weights[half:]))
        return [done.to(torch.bfloat16).view(x.shape)]

    assert job.status(run) == "PASSED"
    assert job.status(lambda x, ids, *rest: run(x, (ids + 1) % EXPERTS, *rest)) != "PASSED"


SPOILT = {
    "wrong scale": lambda back: back * 1.3,
    "one row skipped": lambda back: torch.cat((back[:-1], back[-1:] * 0)),
    "one NaN": lambda back: back.index_fill(0, torch.tensor([2]), float("nan")),
}


@pytest.mark.parametrize("spoil", SPOILT.values(), ids=SPOILT)
@pytest.mark.parametrize("quant", [None, *REAL])
def test_what_one_rank_gets_wrong_every_rank_is_told(spoil, quant):
    found = [problems for _, problems in run(quant, spoil, Library() if quant else None)]
    assert found[0] == found[1]
    assert "of rank 1 are different" in found[0][0]


@pytest.mark.parametrize(("quant", "error"), [(None, 0), ("fp8", 0.07), ("fp8_block_scale", 0.07), ("nvfp4", 0.35)])
def test_packing_keeps_tokens_within_the_rounding_of_its_format(quant, error):
    x = torch.randn(6, HIDDEN, generator=torch.Generator().manual_seed(3)).to(torch.bfloat16)
    again = unpack(pack(x, quant), quant)
    assert float(((again - x.float()).abs() / x.float().abs().clamp(min=0.3)).max()) <= error


def test_what_is_missing_is_told():
    assert "mpirun" in why_not_here({})
    assert count_ranks({"OMPI_COMM_WORLD_SIZE": "4"}) == 4


def test_rows_are_phases_with_their_work_and_a_mismatch_fails(tmp_path, capsys):
    command = f"--routine {' '.join(REAL['nvfp4'])} --validate --backends torch"
    session = split_session(["--output_path", str(tmp_path / "a.csv")])[0]
    times = {name: [2.0, 4.0, 3.0] for name in ("a2a_total", *PHASES)}
    (request,) = ask(command, PLACE)
    assert report_ranks(request, session, PLACE, times, ["3 / 9 elements of rank 1 are different"]) == 1
    out = capsys.readouterr().out
    assert "[ERROR] Output tensor mismatch between backends torch and moe_a2a: 3 / 9" in out
    assert "[PERF]" not in out
    for words, told in {"": ["a2a_total"], "--per_phase_timing": [*times]}.items():
        (request,) = ask(f"{command} {words}", PLACE)
        assert report_ranks(request, session, PLACE, times, []) == 0
        assert capsys.readouterr().out.count("[PERF]") == len(told)
        rows = {row["backend"]: row for row in read_rows(tmp_path / "a.csv")}
        assert [*rows] == told
    moved = {name: float(row["bytes"]) for name, row in rows.items()}
    assert moved["a2a_total"] == moved["a2a_dispatch"] + moved["a2a_combine"]
    assert moved["a2a_total"] + moved["moe_kernel"] == pytest.approx(request.case.cost.bytes)
    assert float(rows["moe_kernel"]["tflops"]) == pytest.approx(request.case.cost.flops / 3e9)
