"""One rank of the all-to-all of experts, under mpirun: send, compute, return; checked, then timed.

Parameters are the exchange between ranks (FlashInfer's MoeAlltoAll), the experts (`Weighing`, or those of `experts`),
the communicator (mpi4py's) and the stopwatch; tests have their own. The time of a round is that of the slowest rank.
The engine takes no part, because it has one process for a solution.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Final, Protocol

import torch

from flashinfer_bench.bench.evaluators.compare.rule import Tolerance, find_beyond
from flashinfer_bench.routines.case.spec import Check
from flashinfer_bench.routines.code.moe_comm_torch import E2M1_SIZES
from flashinfer_bench.routines.code.quantization_torch import pack_e2m1

PHASES: Final = ("a2a_dispatch", "moe_kernel", "a2a_combine")
FP8_MAX: Final = 448.0
E2M1_MAX: Final = 6.0
ASTRAY: Final = 0.5
"""A token whose error exceeds this share of its length is wrong, even where a share of elements may be wrong. A lost
token has an error of 1; experts that quantise between their products cause an error of 0.2."""


class AllToAll(Protocol):
    """Moves tokens between ranks."""

    def dispatch(
        self,
        token_selected_experts: torch.Tensor,
        input_payloads: list[torch.Tensor],
        most: int,
        invalid_token_expert_id: int | None = None,
        expert_id_payload_index: int | None = None,
    ) -> Any:
        """Send payloads [tokens, …] to the ranks of their experts; return what came, [ranks, most, …] each.

        A place to which no token came may hold anything. In the payload with the given index it holds the given expert.
        """

    def combine(self, payload: torch.Tensor, most: int) -> torch.Tensor:
        """Send [ranks, most, hidden] back to where the tokens came from; return their sums, [tokens, hidden]."""


class Experts(Protocol):
    """Computes on tokens between sending and returning."""

    @property
    def absent(self) -> int | None:
        """The expert that stands where no token came; None where any may stand there."""

    def compute(self, payload: Sequence[torch.Tensor], experts: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
        """Give what this rank's experts make of what came, [ranks, most, hidden]."""

    def expect(self, payload: Sequence[torch.Tensor]) -> torch.Tensor:
        """Give the results that this rank's tokens must have in the end, float32 [tokens, hidden]."""


class Communicator(Protocol):
    """The part of mpi4py's communicator that is used here."""

    def Barrier(self) -> None:
        """Wait for all ranks."""

    def allgather(self, value: Any) -> list[Any]:
        """Return the values of all ranks, to every rank."""


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
    """The tokens of one rank before it sends them, and its place among the ranks."""

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
    """Format in which tokens are sent; None for their own dtype."""

    @property
    def local(self) -> range:
        """The experts of this rank."""
        each = self.experts_in_all // self.ranks
        return range(self.rank * each, (self.rank + 1) * each)


def pack(x: torch.Tensor, quant: str | None) -> list[torch.Tensor]:
    """Bring tokens into the format in which they are sent: the tokens, then their scales."""
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


@dataclass(frozen=True)
class Weighing:
    """Takes the place of experts: multiplies by 1 + expert / all, which differs for each expert and factor."""

    inputs: RankInputs
    absent: int | None = None

    def compute(self, payload: Sequence[torch.Tensor], experts: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
        """Multiply tokens by what this rank's experts are worth to them."""
        local = self.inputs.local
        share = torch.where((experts >= local.start) & (experts < local.stop), self._worth(experts, factors), 0.0)
        return unpack(payload, self.inputs.quant) * share.sum(dim=-1, keepdim=True)

    def expect(self, payload: Sequence[torch.Tensor]) -> torch.Tensor:
        """Multiply tokens by what all experts are worth to them."""
        share = self._worth(self.inputs.experts, self.inputs.factors)
        return unpack(payload, self.inputs.quant) * share.sum(dim=-1, keepdim=True)

    def _worth(self, experts: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
        return factors * (1 + experts / self.inputs.experts_in_all)


@dataclass(frozen=True)
class Round:
    """What one round is made of, the same each time."""

    inputs: RankInputs
    experts: Experts
    between: AllToAll
    check: Check
    """The tolerance of what comes back."""

    @cached_property
    def payload(self) -> list[torch.Tensor]:
        """The tokens as they are sent."""
        return pack(self.inputs.hidden_states, self.inputs.quant)

    def run(self, stopwatch: Stopwatch) -> torch.Tensor:
        """Send, compute, return. A mark is taken before and after each of the three."""
        inputs, most = self.inputs, len(self.inputs.hidden_states)
        parts = [*self.payload, inputs.experts, inputs.factors]
        absent = self.experts.absent
        names_absent = () if absent is None else (absent, len(self.payload))
        stopwatch.mark()
        came = self.between.dispatch(inputs.experts, parts, most, *names_absent)
        stopwatch.mark()
        done = self.experts.compute(came[: len(self.payload)], came[-2], came[-1]).to(inputs.hidden_states.dtype)
        stopwatch.mark()
        back = self.between.combine(done, most)
        stopwatch.mark()
        return back

    def find_mismatch(self, back: torch.Tensor) -> str | None:
        """Say how the tokens that came back differ from the expected ones; None where they are right."""
        return find_mismatch(self.inputs.rank, back, self.experts.expect(self.payload), self.check)


def find_mismatch(rank: int, back: torch.Tensor, wanted: torch.Tensor, check: Check) -> str | None:
    """Say how the tokens that came back differ from the expected ones. One token that is wrong as a whole is enough."""
    error = (back.float() - wanted).abs()
    wrong = find_beyond(wanted, back.float(), Tolerance(check.rtol, check.atol))
    astray = ~(error.norm(dim=-1) <= ASTRAY * wanted.norm(dim=-1))
    count = int(wrong.sum())
    allowed = (1 - (1.0 if check.ratio is None else check.ratio)) * wrong.numel()
    if count <= allowed and not (astray & wrong.any(dim=-1)).any():
        return None
    return f"{count} / {wrong.numel()} elements of rank {rank} are different"


def time_rounds(
    exchange: Round, communicator: Communicator, stopwatch: Stopwatch, *, dry_run_iters: int, num_iters: int
) -> tuple[dict[str, list[float]], list[str]]:
    """Check one round, then time rounds. A round begins when every rank has come to it.

    Returns:
        Milliseconds of each round, for each phase and in all, of the slowest rank; and what any rank found wrong.
    """
    first = exchange.run(stopwatch)
    stopwatch.read()
    problems = communicator.allgather(exchange.find_mismatch(first))
    rounds = []
    for _ in range(dry_run_iters + num_iters):
        communicator.Barrier()
        exchange.run(stopwatch)
        rounds.append(stopwatch.read())
    slowest = torch.tensor(communicator.allgather(rounds[dry_run_iters:]), dtype=torch.float64).amax(dim=0)
    times = {phase: slowest[:, column].tolist() for column, phase in enumerate(PHASES)}
    both = slowest[:, 0] + slowest[:, 2]
    return {"a2a_total": both.tolist(), **times}, [problem for problem in problems if problem is not None]
