"""`perf` as one rank of mpirun: the backend moe_a2a of moe_a2a_dispatch_combine. Rank 0 writes lines and files.

It needs mpi4py, flashinfer-python, and a GPU for each rank, all of one NVLink domain.
"""

from __future__ import annotations

import argparse
import importlib
from statistics import median, pstdev
from typing import Any, Final

from flashinfer_bench.cli.output import write_out
from flashinfer_bench.cli.perf.cases import Request
from flashinfer_bench.cli.perf.files import ResultFiles
from flashinfer_bench.cli.perf.rows import PerfRow, RowTiming
from flashinfer_bench.cli.perf.text import introduce, perf_line
from flashinfer_bench.routines.case.support import Platform
from flashinfer_bench.routines.families.moe_comm import count_traffic, count_work

BACKEND: Final = "moe_a2a"


def run_ranks(request: Request, session: argparse.Namespace, place: Platform) -> int:
    """Time the case on this rank, together with all others; rank 0 reports."""
    import torch
    from flashinfer.comm import Mapping, MoeAlltoAll

    from flashinfer_bench.routines.ranks.rank import CudaStopwatch, RankInputs, Round, time_rounds

    communicator: Any = importlib.import_module("mpi4py.MPI").COMM_WORLD
    rank, ranks = communicator.Get_rank(), communicator.Get_size()
    torch.cuda.set_device(rank % torch.cuda.device_count())
    case, args = request.case, request.args
    assert case is not None  # the caller has made it
    chosen = [case.inputs[name].value for name in ("token_selected_experts", "token_final_factors")]
    experts, factors = (torch.from_numpy(value[rank]).cuda() for value in chosen)  # type: ignore[index] # both are arrays
    generator = torch.Generator(device="cuda").manual_seed(args.random_seed + rank)
    dtype = getattr(torch, case.inputs["hidden_states"].dtype)
    hidden = torch.empty(args.num_tokens, args.hidden_size, dtype=dtype, device="cuda").normal_(generator=generator)
    mapping = Mapping(rank=rank, world_size=ranks, tp_size=ranks, moe_ep_size=ranks, gpus_per_node=ranks)
    most = args.max_num_tokens or args.num_tokens
    between = MoeAlltoAll(mapping, most, args.top_k, args.num_experts, hidden_size=args.hidden_size)
    inputs = RankInputs(hidden, experts, factors, args.num_experts, rank, ranks, args.quant_dtype)
    exchange = Round(inputs, _make_experts(inputs, args), between, case.check)
    counts = {"dry_run_iters": args.dry_run_iters, "num_iters": args.num_iters}
    times, problems = time_rounds(exchange, communicator, CudaStopwatch(), **counts)
    return report_ranks(request, session, place, times, problems) if rank == 0 else 0


def _make_experts(inputs: Any, args: argparse.Namespace) -> Any:
    if not args.real_math:
        from flashinfer_bench.routines.ranks.rank import Weighing

        return Weighing(inputs)
    from flashinfer import fused_moe

    from flashinfer_bench.routines.ranks.experts import RealExperts

    return RealExperts(inputs, fused_moe, intermediate=args.intermediate_size, seed=args.random_seed)


def report_ranks(
    request: Request, session: argparse.Namespace, place: Platform, times: dict[str, list[float]], problems: list[str]
) -> int:
    """Write the lines and rows of all phases. Return 1 if an output is wrong and the flags make that an error."""
    args = request.args
    lines = list(introduce(request, place))
    label = "ERROR" if args.refcheck or args.validate else "WARNING"
    lines += [f"[{label}] Output tensor mismatch between backends torch and {BACKEND}: {what}" for what in problems]
    is_error = bool(problems) and label == "ERROR" and not args.allow_output_mismatch
    files = ResultFiles(session.output_path, session.json_path, place)
    for row in make_rows(request, place, times, "; ".join(problems)):
        files.add(row)
        lines += [] if is_error else [perf_line(row)]
    write_out("".join(f"{line}\n" for line in lines))
    return 1 if is_error or files.lost else 0


def make_rows(request: Request, place: Platform, times: dict[str, list[float]], problem: str) -> list[PerfRow]:
    """Return a row for the whole round. With --per_phase_timing, return one for each phase too."""
    out, back = count_traffic(request.args)
    flops, weights = count_work(request.args)
    bytes_of = {"a2a_total": out + back, "a2a_dispatch": out, "a2a_combine": back, "moe_kernel": weights}
    rows = []
    for phase, taken in times.items():
        if phase != "a2a_total" and not request.args.per_phase_timing:
            continue
        timing = RowTiming(median(taken), pstdev(taken))
        work = flops if phase == "moe_kernel" else 0.0
        rate, speed = (
            amount / 1e9 / timing.median_ms if timing.median_ms > 0 else 0.0 for amount in (bytes_of[phase], work)
        )
        record = {"method": "cuda_events", "cache_state": "warm", "samples": len(taken), "samples_ms": taken}
        facts = {"tflops": speed, "tb_per_sec": rate, "bytes": bytes_of[phase]}
        outcome: Any = "mismatch" if problem else "passed"
        rows.append(PerfRow(request, phase, outcome, problem, timing, facts, record, place.device))
    return rows
