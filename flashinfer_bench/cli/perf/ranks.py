"""`perf` as one rank of mpirun: the backend moe_a2a of moe_a2a_dispatch_combine. Rank 0 writes lines and files.

This needs mpi4py, flashinfer-python, and one GPU per rank in the same NVLink domain. The engine is not used, because it
has one process per solution. Every rank makes the inputs of all ranks from the seed. The rank compares returned tokens
with the case's reference, which computes all ranks. Then rounds are timed. The slowest rank decides the time.
"""

from __future__ import annotations

import importlib
from argparse import Namespace
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median, pstdev
from typing import Any, Final

import torch

from flashinfer_bench.base.files.held_folders import temporary_folder
from flashinfer_bench.bench.evaluators.compare.tolerance import Tolerance, find_beyond
from flashinfer_bench.bench.evaluators.inputs.generate import InputMaker
from flashinfer_bench.cli.perf.cases import Request
from flashinfer_bench.cli.perf.results import Results, make_row
from flashinfer_bench.roofline.peaks import describe_time
from flashinfer_bench.routines.case.generated_entry import write_entry
from flashinfer_bench.routines.case.spec import Check
from flashinfer_bench.routines.families.moe_comm import count_phases

PHASES: Final = ("a2a_dispatch", "moe_kernel", "a2a_combine")
ASTRAY: Final = 0.5
"""Largest allowed error of a token, as a share of the token's norm. The limit applies even if the matched ratio allows
wrong elements. A lost token has an error of 1."""
RENORMALIZE: Final = 1
"""The library's id of the routing method that leaves the given weights unchanged."""
MOST_TOKENS: Final = 8192
"""The library tunes kernels for up to this number of tokens, or for the tokens of all ranks if there are more."""


class Stopwatch:
    """Measures the time between CUDA events on the current stream."""

    def __init__(self) -> None:
        self._marks: list[torch.cuda.Event] = []

    def mark(self) -> None:
        """Record an event."""
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call] # torch's own lack
        event.record()
        self._marks.append(event)

    def read(self) -> list[float]:
        """Wait for the device, return milliseconds between the events, and forget the events."""
        torch.cuda.synchronize()
        marks, self._marks = self._marks, []
        return [float(start.elapsed_time(end)) for start, end in pairwise(marks)]


def run_ranks(request: Request, session: Namespace) -> int:
    """Time the case on this rank, together with all other ranks. Rank 0 reports."""
    comm = importlib.import_module("flashinfer.comm")
    communicator: Any = importlib.import_module("mpi4py.MPI").COMM_WORLD
    rank, ranks, args = communicator.Get_rank(), communicator.Get_size(), request.args
    torch.cuda.set_device(rank % torch.cuda.device_count())
    mapping = comm.Mapping(rank=rank, world_size=ranks, tp_size=ranks, moe_ep_size=ranks, gpus_per_node=ranks)
    most = args.max_num_tokens or args.num_tokens
    between = comm.MoeAlltoAll(mapping, most, args.top_k, args.num_experts, hidden_size=args.hidden_size)
    times, problems = time_rounds(request, between, communicator, Stopwatch(), torch.device("cuda"))
    return report_ranks(request, session, times, problems) if rank == 0 else 0


def time_rounds(
    request: Request, between: Any, communicator: Any, stopwatch: Any, device: torch.device
) -> tuple[dict[str, list[float]], list[str]]:
    """Check one round, then time rounds. Every rank waits for all other ranks before a round.

    Args:
        between: the exchange between ranks, FlashInfer's MoeAlltoAll.
        stopwatch: measures the time of the phases.

    Returns:
        Milliseconds of each round on the slowest rank, per phase and in total; and the first error of any rank.
    """
    rank, ranks, args, case = communicator.Get_rank(), communicator.Get_size(), request.args, request.case
    assert case is not None  # the workspace exists
    reference: dict[str, Any] = {}
    exec(request.entry.definition.reference, reference)
    with temporary_folder("perf") as root:
        write_entry(Path(root), request.entry)
        maker = InputMaker(request.entry.definition, request.entry.workload, device, Path(root))
        inputs = maker.make(args.random_seed)
    hidden, ids, factors = (part[rank] for part in inputs[:3])
    wanted, payload = reference["run"](*inputs)[rank], reference["pack"](hidden)
    local = args.num_experts // ranks
    first = rank * local
    weights = [part[first : first + local].clone() for part in inputs[3:]]
    del inputs
    # Rows without a token get an expert of a different rank. With a single rank, every row has a token.
    absent = ((first + local) % args.num_experts, len(payload)) if weights else ()

    def weigh(tokens: Sequence[torch.Tensor], experts: torch.Tensor, shares: torch.Tensor) -> Any:
        own = torch.where((experts >= first) & (experts < first + local), shares, 0.0)
        return reference["weigh"](reference["unpack"](*tokens), experts, own)

    experts = make_experts(args, weights, rank, ranks, hidden.dtype) if weights else weigh

    def run_round() -> Any:
        stopwatch.mark()
        *tokens, chosen, shares = between.dispatch(ids, [*payload, ids, factors], len(hidden), *absent)
        stopwatch.mark()
        rows = [part.flatten(0, 1) for part in tokens]
        done = experts(rows, chosen.flatten(0, 1), shares.flatten(0, 1)).to(hidden.dtype)
        stopwatch.mark()
        back = between.combine(done.view(*chosen.shape[:2], -1), len(hidden))
        stopwatch.mark()
        return back

    back = run_round()
    stopwatch.read()
    problems = communicator.allgather(find_mismatch(rank, back, wanted.float(), case.check))
    rounds = []
    for _ in range(args.dry_run_iters + args.num_iters):
        communicator.Barrier()
        run_round()
        rounds.append(stopwatch.read())
    slowest = torch.tensor(communicator.allgather(rounds[args.dry_run_iters :]), dtype=torch.float64).amax(dim=0)
    times = {phase: slowest[:, column].tolist() for column, phase in enumerate(PHASES)}
    both = (slowest[:, 0] + slowest[:, 2]).tolist()
    return {"a2a_total": both, **times}, [problem for problem in problems if problem is not None]


def make_experts(args: Namespace, weights: Sequence[torch.Tensor], rank: int, ranks: int, dtype: torch.dtype) -> Any:
    """Return a function that calls the library's kernel of --real_math with the weights of this rank.

    The function takes rows of the payload, and the expert ids and factors of the rows, [rows, top_k]. The function
    returns [rows, hidden].
    """
    library = importlib.import_module("flashinfer.fused_moe")
    most = max(MOST_TOKENS, ranks * args.num_tokens)

    def run_nvfp4(rows: Sequence[torch.Tensor], ids: torch.Tensor, factors: torch.Tensor) -> Any:
        """Call cutlass_fused_moe, which skips experts of other ranks."""
        one = torch.ones((), dtype=torch.float32, device=ids.device)
        scales = [part for i in (0, 3) for part in (one, weights[i + 1].view(torch.int32), weights[i + 2])]
        out = torch.empty(len(ids), args.hidden_size, dtype=dtype, device=ids.device)
        library.cutlass_fused_moe(
            rows[0],
            ids,
            factors,
            *(part.view(torch.uint8).view(torch.int64) for part in (weights[0], weights[3])),
            dtype,
            scales,
            input_sf=rows[1],
            swizzled_input_sf=False,
            ep_size=ranks,
            ep_rank=rank,
            output=out,
            tune_max_num_tokens=most,
        )
        return out

    def run_fp8(rows: Sequence[torch.Tensor], ids: torch.Tensor, factors: torch.Tensor) -> Any:
        """Call trtllm_fp8_block_scale_routed_moe, which takes words that pack an id and a bfloat16 factor."""
        words = factors.to(torch.bfloat16).view(torch.int16).to(torch.int32)
        return library.trtllm_fp8_block_scale_routed_moe(
            (ids << 16) | (words & 0xFFFF),
            None,
            rows[0].view(torch.float8_e4m3fn),
            rows[1].T.contiguous(),
            *weights,
            args.num_experts,
            args.top_k,
            None,
            None,
            args.intermediate_size,
            rank * len(weights[0]),
            len(weights[0]),
            None,
            routing_method_type=RENORMALIZE,
            tune_max_num_tokens=most,
        )

    return run_nvfp4 if args.quant_dtype == "nvfp4" else run_fp8


def find_mismatch(rank: int, back: torch.Tensor, wanted: torch.Tensor, check: Check) -> str | None:
    """Return how returned tokens differ from expected tokens; None if the check allows it.

    A completely wrong token is an error, even if the matched ratio allows wrong elements.
    """
    wrong = find_beyond(wanted, back.float(), Tolerance(check.rtol, check.atol))
    astray = ~((back.float() - wanted).norm(dim=-1) <= ASTRAY * wanted.norm(dim=-1))
    count, allowed = (
        int(wrong.sum()),
        0.0 if check.required_matched_ratio is None else (1 - check.required_matched_ratio) * wrong.numel(),
    )
    if count <= allowed and not (astray & wrong.any(dim=-1)).any():
        return None
    return f"{count} / {wrong.numel()} elements of rank {rank} are different"


def report_ranks(request: Request, session: Namespace, times: dict[str, list[float]], problems: list[str]) -> int:
    """Write the lines and rows of the whole round. With --per_phase_timing, also write those of each phase.

    Returns: 1 if an output is wrong and the flags make wrong outputs errors, else 0.
    """
    args = request.args
    args.refcheck |= args.validate
    results = Results([request], session)
    costs = count_phases(args, request.case.inputs["token_selected_experts"].value)
    status, reason = "mismatch" if problems else "passed", "; ".join(problems)
    request.backends = [*times][: None if args.per_phase_timing else 1]
    for phase in request.backends:
        took, samples = median(times[phase]), len(times[phase])
        record = {"method": "cuda_events", "cache_state": "warm", "samples": samples, "samples_ms": times[phase]}
        found = {"median_ms": took, "std_ms": pstdev(times[phase]), "measurement": record}
        facts = describe_time(costs[phase], "", took) or {}
        results.put(request, make_row(request, phase, status, reason, facts=facts, **found))
    return results.exit_code
