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
from flashinfer_bench.cli.perf.results import Row, introduce, make_row, perf_line
from flashinfer_bench.roofline.cost import Cost
from flashinfer_bench.routines.case.support import Platform
from flashinfer_bench.routines.families.moe_comm import count_traffic, count_work

BACKEND: Final = "moe_a2a"


def run_ranks(request: Request, session: argparse.Namespace, place: Platform) -> int:
    """Time the case on this rank, together with all others; rank 0 reports."""
    import torch
    from flashinfer import fused_moe
    from flashinfer.comm import Mapping, MoeAlltoAll

    from flashinfer_bench.routines.ranks import CudaStopwatch, RankInputs, RealExperts, Weighing, time_rounds

    communicator: Any = importlib.import_module("mpi4py.MPI").COMM_WORLD
    rank, ranks = communicator.Get_rank(), communicator.Get_size()
    torch.cuda.set_device(rank % torch.cuda.device_count())
    case, args = request.case, request.args
    assert case is not None  # the caller has made it
    chosen: list[Any] = [case.inputs[name].value for name in ("token_selected_experts", "token_final_factors")]
    generator = torch.Generator(device="cuda").manual_seed(args.random_seed + rank)
    hidden = torch.empty(
        args.num_tokens, args.hidden_size, dtype=getattr(torch, case.inputs["hidden_states"].dtype), device="cuda"
    ).normal_(generator=generator)
    mapping = Mapping(rank=rank, world_size=ranks, tp_size=ranks, moe_ep_size=ranks, gpus_per_node=ranks)
    most = args.max_num_tokens or args.num_tokens
    between = MoeAlltoAll(mapping, most, args.top_k, args.num_experts, hidden_size=args.hidden_size)
    ids, factors = (torch.from_numpy(value[rank]).cuda() for value in chosen)
    inputs = RankInputs(hidden, ids, factors, args.num_experts, rank, ranks, args.quant_dtype)
    experts: Any = Weighing(inputs)
    if args.real_math:
        experts = RealExperts(inputs, fused_moe, intermediate=args.intermediate_size, seed=args.random_seed)
    counts = {"dry_run_iters": args.dry_run_iters, "num_iters": args.num_iters}
    times, problems = time_rounds(inputs, experts, between, case.check, communicator, CudaStopwatch(), **counts)
    return report_ranks(request, session, place, times, problems) if rank == 0 else 0


def report_ranks(
    request: Request, session: argparse.Namespace, place: Platform, times: dict[str, list[float]], problems: list[str]
) -> int:
    """Write the lines and rows of all phases. Return 1 if an output is wrong and the flags make that an error."""
    args = request.args
    lines = list(introduce(request, place))
    label = "ERROR" if args.refcheck or args.validate else "WARNING"
    lines += [f"[{label}] Output tensor mismatch between backends torch and {BACKEND}: {what}" for what in problems]
    is_error = bool(problems) and label == "ERROR" and not args.allow_output_mismatch
    files = ResultFiles(session.output_path, session.json_path)
    for row in make_rows(request, place, times, "; ".join(problems)):
        files.add(row)
        lines += [] if is_error else [perf_line(row)]
    write_out("".join(f"{line}\n" for line in lines))
    return 1 if is_error or files.lost else 0


def make_rows(request: Request, place: Platform, times: dict[str, list[float]], problem: str) -> list[Row]:
    """Return a row for the whole round. With --per_phase_timing, return one for each phase too."""
    out, back = count_traffic(request.args)
    flops, weights = count_work(request.args)
    moved = {"a2a_total": out + back, "a2a_dispatch": out, "a2a_combine": back, "moe_kernel": weights}
    rows = []
    for phase, taken in times.items():
        if phase != "a2a_total" and not request.args.per_phase_timing:
            continue
        row = make_row(request, phase, place, "mismatch" if problem else "passed", problem)
        row["median_ms"], row["std_ms"] = median(taken), pstdev(taken)
        row["measurement"] = {
            "method": "cuda_events",
            "cache_state": "warm",
            "samples": len(taken),
            "samples_ms": taken,
        }
        cost = Cost(flops if phase == "moe_kernel" else 0.0, moved[phase])
        rates = (cost.tflops(median(taken)), cost.tb_per_sec(median(taken))) if median(taken) else (0.0, 0.0)
        row["facts"] = {"tflops": rates[0], "tb_per_sec": rates[1], "bytes": cost.bytes}
        rows.append(row)
    return rows
