"""One rank of the all-to-all of experts, under mpirun: send, weigh in place of experts, return; checked, then timed.

What stands between ranks is a parameter (FlashInfer's MoeAlltoAll, or a test's), and so are the communicator (mpi4py's)
and the stopwatch. A reading is the slowest rank's. This goes past the engine, which has one process for a solution.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, Protocol

import torch

from flashinfer_bench.routines.code.moe_comm_torch import E2M1_SIZES
from flashinfer_bench.routines.code.quantization_torch import pack_e2m1

PHASES: Final = ("a2a_dispatch", "moe_kernel", "a2a_combine")
FP8_MAX: Final = 448.0
E2M1_MAX: Final = 6.0
RELATIVE, ABSOLUTE = 2e-2, 5e-3
"""Tolerance of a returned element; partial sums are rounded on each rank."""


class AllToAll(Protocol):
    """What moves tokens between ranks."""

    def dispatch(self, token_selected_experts: torch.Tensor, input_payloads: list[torch.Tensor], most: int) -> Any:
        """Send payloads [tokens, …] to the ranks of their experts; return what came, [ranks, most, …] each."""

    def combine(self, payload: torch.Tensor, most: int) -> torch.Tensor:
        """Return [ranks, most, hidden] to where they came from, added up: [tokens, hidden]."""


class Communicator(Protocol):
    """The part of mpi4py's communicator that is used."""

    def Barrier(self) -> None:
        """Wait for all ranks."""

    def allgather(self, value: Any) -> list[Any]:
        """Give everybody's value to everybody."""


class Stopwatch(Protocol):
    """Takes the time between marks."""

    def mark(self) -> None:
        """Note this moment of the device's work."""

    def read(self) -> list[float]:
        """Return the milliseconds between the marks, and forget them."""


class CudaStopwatch:
    """CUDA events on the current stream."""

    def __init__(self) -> None:
        self._marks: list[torch.cuda.Event] = []

    def mark(self) -> None:
        """Record an event."""
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call] # torch's own lack
        event.record()
        self._marks.append(event)

    def read(self) -> list[float]:
        """Wait for the device, and return milliseconds between the events."""
        torch.cuda.synchronize()
        marks, self._marks = self._marks, []
        return [float(start.elapsed_time(end)) for start, end in pairwise(marks)]


@dataclass(frozen=True)
class RankInputs:
    """What one rank has before it sends."""

    hidden_states: torch.Tensor
    """[tokens, hidden]."""
    experts: torch.Tensor
    """int32 [tokens, top_k]."""
    factors: torch.Tensor
    """float32 [tokens, top_k]."""
    experts_in_all: int
    rank: int
    ranks: int
    quant: str | None
    """Format that tokens are sent in."""

    @property
    def local(self) -> range:
        """The experts of this rank."""
        each = self.experts_in_all // self.ranks
        return range(self.rank * each, (self.rank + 1) * each)


def pack(x: torch.Tensor, quant: str | None) -> list[torch.Tensor]:
    """Bring tokens into the format that they are sent in: the tokens, then their scales."""
    if quant is None:
        return [x]
    if quant == "nvfp4":
        blocks = x.float().view(len(x), -1, 16)
        scale = (blocks.abs().amax(dim=-1) / E2M1_MAX).to(torch.float8_e4m3fn)
        factor = scale.float().clamp(min=2**-9)
        packed = pack_e2m1((blocks / factor[..., None]).view(x.shape))
        return [packed.view(torch.uint8), scale.view(torch.uint8)]
    block = x.shape[1] if quant == "fp8" else 128
    blocks = x.float().view(len(x), -1, block)
    largest = blocks.abs().amax(dim=-1, keepdim=True)
    scale = (largest.max().expand_as(largest) if quant == "fp8" else largest).clamp(min=1e-12) / FP8_MAX
    values = (blocks / scale).to(torch.float8_e4m3fn).view(x.shape)
    return [values.view(torch.uint8), scale[..., 0].contiguous()]


def unpack(payload: Sequence[torch.Tensor], quant: str | None) -> torch.Tensor:
    """Give the tokens of `pack` in float32; leading dimensions may be any."""
    if quant is None:
        return payload[0].float()
    if quant == "nvfp4":
        sizes = torch.tensor([*E2M1_SIZES, *(-size for size in E2M1_SIZES)], device=payload[0].device)
        raw = payload[0].to(torch.int32)
        values = sizes[torch.stack((raw & 0xF, raw >> 4), dim=-1)].flatten(-2)
        scale = payload[1].view(torch.float8_e4m3fn).float().clamp(min=2**-9)
        return values * scale.repeat_interleave(16, dim=-1)
    values = payload[0].view(torch.float8_e4m3fn).float()
    return values * payload[1].repeat_interleave(values.shape[-1] // payload[1].shape[-1], dim=-1)


def weigh(tokens: torch.Tensor, experts: torch.Tensor, factors: torch.Tensor, inputs: RankInputs) -> torch.Tensor:
    """Multiply tokens by what this rank's experts are worth to them: the sum of factor (1 + expert / all)."""
    is_here = (experts >= inputs.local.start) & (experts < inputs.local.stop)
    share = torch.where(is_here, factors * (1 + experts / inputs.experts_in_all), 0.0).sum(dim=-1, keepdim=True)
    return tokens * share


def run_round(inputs: RankInputs, between: AllToAll, stopwatch: Stopwatch, payload: list[torch.Tensor]) -> torch.Tensor:
    """Send, weigh, return; marks are taken before and after each of the three."""
    most = len(inputs.hidden_states)
    stopwatch.mark()
    came = between.dispatch(inputs.experts, [*payload, inputs.experts, inputs.factors], most)
    stopwatch.mark()
    tokens = unpack(came[: len(payload)], inputs.quant)
    done = weigh(tokens, came[-2], came[-1], inputs).to(inputs.hidden_states.dtype)
    stopwatch.mark()
    back = between.combine(done, most)
    stopwatch.mark()
    return back


def find_mismatch(inputs: RankInputs, back: torch.Tensor, payload: list[torch.Tensor]) -> str | None:
    """Say how what came back differs from what every expert of a token would have made of it."""
    share = (inputs.factors * (1 + inputs.experts / inputs.experts_in_all)).sum(dim=-1, keepdim=True)
    wanted = unpack(payload, inputs.quant) * share
    error = (back.float() - wanted).abs()
    wrong = ~((error <= ABSOLUTE) | (error <= RELATIVE * wanted.abs()))
    count = int(wrong.sum())
    return None if count == 0 else f"{count} / {wrong.numel()} elements of rank {inputs.rank} are different"


def time_rounds(
    inputs: RankInputs,
    between: AllToAll,
    communicator: Communicator,
    stopwatch: Stopwatch,
    *,
    dry_run_iters: int,
    num_iters: int,
) -> tuple[dict[str, list[float]], list[str]]:
    """Check one round, then time rounds; each begins when every rank is there.

    Returns:
        Milliseconds by phase and in all, the slowest rank's in each round; and what any rank found wrong.
    """
    payload = pack(inputs.hidden_states, inputs.quant)
    first = run_round(inputs, between, stopwatch, payload)
    stopwatch.read()
    problems = communicator.allgather(find_mismatch(inputs, first, payload))
    rounds = []
    for _ in range(dry_run_iters + num_iters):
        communicator.Barrier()
        run_round(inputs, between, stopwatch, payload)
        rounds.append(stopwatch.read())
    slowest = torch.tensor(communicator.allgather(rounds[dry_run_iters:]), dtype=torch.float64).amax(dim=0)
    times = {phase: slowest[:, column].tolist() for column, phase in enumerate(PHASES)}
    both = slowest[:, 0] + slowest[:, 2]
    return {"a2a_total": both.tolist(), **times}, [problem for problem in problems if problem is not None]
