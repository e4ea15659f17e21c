"""One rank of the all-to-all of experts, under mpirun: send, compute, return; checked, then timed.

Parameters are the exchange between ranks (FlashInfer's MoeAlltoAll), the experts (`Weighing` or `RealExperts`), the
communicator (mpi4py's) and the stopwatch; tests have their own. The time of a round is that of the slowest rank. The
engine takes no part, because it has one process for a solution.

Experts compute [ranks, most, hidden] of what came, tell what this rank's tokens must be in the end, and name an
`absent` expert for places to which no token came; None where any may stand there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import torch

from flashinfer_bench.bench.evaluators.compare.rule import Tolerance, find_beyond
from flashinfer_bench.routines.case.spec import Check
from flashinfer_bench.routines.code.formats import E2M1_MAX, E4M3_MAX, by_blocks, by_rows, pack_e2m1, to_tiles
from flashinfer_bench.routines.code.moe_comm_torch import feed
from flashinfer_bench.routines.families.moe import E2M1_DEVIATION, METHODS

PHASES: Final = ("a2a_dispatch", "moe_kernel", "a2a_combine")
ASTRAY: Final = 0.5
"""A token whose error exceeds this share of its length is wrong, even where a share of elements may be wrong. A lost
token has an error of 1; experts that quantise between their products cause an error of 0.2."""
SEED_STRIDE: Final = 1_000_003
"""Distance between the seeds of two sessions. No expert of one session has the seed of an expert of another."""
MOST_TOKENS: Final = 8192
"""The library tunes its kernels for at least this number of tokens."""


class CudaStopwatch:
    """Takes the time between marks: CUDA events on the current stream."""

    def __init__(self) -> None:
        self._marks: list[torch.cuda.Event] = []

    def mark(self) -> None:
        """Record an event."""
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call] # torch's own lack
        event.record()
        self._marks.append(event)

    def read(self) -> list[float]:
        """Wait for the device, return milliseconds between the events, and forget them."""
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
        packed = pack_e2m1((blocks / scale.float().clamp(min=2**-9)[..., None]).view(x.shape))
        return [packed.view(torch.uint8), scale.view(torch.uint8)]
    block = x.shape[1] if quant == "fp8" else 128
    blocks = x.float().view(len(x), -1, block)
    largest = blocks.abs().amax(dim=-1, keepdim=True)
    scale = (largest.max().expand_as(largest) if quant == "fp8" else largest).clamp(min=1e-12) / E4M3_MAX
    values = (blocks / scale).to(torch.float8_e4m3fn).view(x.shape)
    return [values.view(torch.uint8), scale[..., 0].contiguous()]


def unpack(payload: Sequence[torch.Tensor], quant: str | None) -> Any:
    """Give the tokens of `pack` in float32; leading dimensions may be any."""
    if quant is None:
        return payload[0].float()
    if quant == "nvfp4":
        return by_rows(payload[0], payload[1].view(torch.float8_e4m3fn).float().clamp(min=2**-9))
    values = payload[0].view(torch.float8_e4m3fn).float()
    return values * payload[1].repeat_interleave(values.shape[-1] // payload[1].shape[-1], dim=-1)


class Weighing:
    """Takes the place of experts: multiplies by 1 + expert / all, which differs for each expert and factor."""

    absent = None

    def __init__(self, inputs: RankInputs) -> None:
        self._inputs = inputs

    def compute(self, payload: Sequence[torch.Tensor], experts: torch.Tensor, factors: torch.Tensor) -> Any:
        """Multiply tokens by what this rank's experts are worth to them."""
        local = self._inputs.local
        return self._weigh(
            payload, experts, torch.where((experts >= local.start) & (experts < local.stop), factors, 0.0)
        )

    def expect(self, payload: Sequence[torch.Tensor]) -> Any:
        """Multiply tokens by what all experts are worth to them."""
        return self._weigh(payload, self._inputs.experts, self._inputs.factors)

    def _weigh(self, payload: Sequence[torch.Tensor], experts: torch.Tensor, factors: torch.Tensor) -> Any:
        share = factors * (1 + experts / self._inputs.experts_in_all)
        return unpack(payload, self._inputs.quant) * share.sum(dim=-1, keepdim=True)


Layer = tuple[torch.Tensor, torch.Tensor, float]
"""The weights of one product of an expert: codes, scales, and the factor of the layer. nvfp4: uint8 [rows, columns / 2]
and e4m3 [rows, columns / 16]; fp8: [rows, columns] and float32 [rows / 128, columns / 128]."""


def draw_layer(generator: torch.Generator, rows: int, columns: int, *, is_nvfp4: bool) -> Layer:
    """Make the weights of a product, so that inputs of deviation 1 give results of deviation 1."""
    place: Any = {"device": generator.device, "generator": generator}
    if is_nvfp4:
        codes = torch.randint(0, 256, (rows, columns // 2), dtype=torch.uint8, **place)
        scales = (torch.rand(rows, columns // 16, **place) + 0.5).to(torch.float8_e4m3fn)
        return codes, scales, 1 / (E2M1_DEVIATION * math.sqrt(columns))
    codes = torch.randn(rows, columns, **place).to(torch.float8_e4m3fn)
    return codes, (torch.rand(rows // 128, columns // 128, **place) + 0.5) / math.sqrt(columns), 1.0


class RealExperts:
    """A rank's experts with --real_math, as kernels of the library.

    Weights are drawn from the seed and the expert's number. So every rank can make the weights of any expert: it keeps
    those of its own, and makes the others to check its tokens.
    """

    def __init__(self, inputs: RankInputs, library: Any, *, intermediate: int, seed: int) -> None:
        """Draw and lay out this rank's weights.

        Args:
            inputs: what the rank has.
            library: the module flashinfer.fused_moe.
            intermediate: the size between the products.
            seed: the seed of all weights.
        """
        self._inputs, self._intermediate, self._seed = inputs, intermediate, seed
        self._is_nvfp4 = inputs.quant == "nvfp4"
        # An expert of another rank. With a single rank it is an own one: then no place is empty.
        self.absent = inputs.local.stop % inputs.experts_in_all
        make = make_nvfp4_kernel if self._is_nvfp4 else make_fp8_kernel
        self._kernel = make(library, inputs, *zip(*map(self._draw, inputs.local), strict=True))

    def _draw(self, expert: int) -> tuple[Layer, Layer]:
        device, hidden = self._inputs.hidden_states.device, self._inputs.hidden_states.shape[1]
        generator = torch.Generator(device=device).manual_seed((self._seed + 1) * SEED_STRIDE + expert)
        first = draw_layer(generator, 2 * self._intermediate, hidden, is_nvfp4=self._is_nvfp4)
        return first, draw_layer(generator, hidden, self._intermediate, is_nvfp4=self._is_nvfp4)

    def compute(self, payload: Sequence[torch.Tensor], experts: torch.Tensor, factors: torch.Tensor) -> Any:
        """Send what came, [ranks, most, …] each, through the experts that are here."""
        done = self._kernel([part.flatten(0, 1) for part in payload], experts.flatten(0, 1), factors.flatten(0, 1))
        return done.view(*experts.shape[:2], -1)

    def expect(self, payload: Sequence[torch.Tensor]) -> Any:
        """Give what the experts of all ranks make of this rank's tokens, in float32."""
        inputs, tokens = self._inputs, unpack(payload, self._inputs.quant)
        out = torch.zeros_like(tokens)
        expand: Any = by_rows if self._is_nvfp4 else by_blocks
        for expert in sorted(set(inputs.experts.flatten().tolist())):
            token, place = (inputs.experts == expert).nonzero(as_tuple=True)
            weights = [expand(codes, scales) * factor for codes, scales, factor in self._draw(expert)]
            out.index_add_(0, token, feed(tokens[token], *weights) * inputs.factors[token, place, None])
        return out


Kernel = Callable[[Sequence[torch.Tensor], torch.Tensor, torch.Tensor], torch.Tensor]
"""Computes [rows, hidden] from rows of the payload, their expert ids and their factors [rows, top_k]."""


def make_nvfp4_kernel(library: Any, inputs: RankInputs, *layers: Sequence[Layer]) -> Kernel:
    """Lay nvfp4 weights out for cutlass_fused_moe, which leaves out experts of other ranks."""
    one = torch.ones((), dtype=torch.float32, device=inputs.hidden_states.device)
    weights, scales = [], []
    for layer in layers:
        codes, plain, factors = zip(*layer, strict=True)
        weights.append(torch.stack(codes).view(torch.int64))
        tiled = torch.stack([to_tiles(scale, 128, 0xFF).view(scale.shape) for scale in plain])
        scales += [one, tiled.view(torch.int32), one.new_tensor(factors)]

    def run(rows: Sequence[torch.Tensor], ids: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
        out = torch.empty(len(ids), inputs.hidden_states.shape[1], dtype=inputs.hidden_states.dtype, device=ids.device)
        library.cutlass_fused_moe(
            rows[0],
            ids,
            factors,
            *weights,
            out.dtype,
            scales,
            input_sf=rows[1],
            swizzled_input_sf=False,
            ep_size=inputs.ranks,
            ep_rank=inputs.rank,
            output=out,
            tune_max_num_tokens=max(MOST_TOKENS, len(ids)),
        )
        return out

    return run


def make_fp8_kernel(library: Any, inputs: RankInputs, *layers: Sequence[Layer]) -> Kernel:
    """Stack fp8 weights for trtllm_fp8_block_scale_routed_moe: an id and its bfloat16 factor share a word."""
    weights = [torch.stack(parts) for layer in layers for parts in list(zip(*layer, strict=True))[:2]]

    def run(rows: Sequence[torch.Tensor], ids: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
        words = factors.to(torch.bfloat16).view(torch.int16).to(torch.int32)
        done: torch.Tensor = library.trtllm_fp8_block_scale_routed_moe(
            (ids << 16) | (words & 0xFFFF),
            None,
            rows[0].view(torch.float8_e4m3fn),
            rows[1].T.contiguous(),
            *weights,
            inputs.experts_in_all,
            ids.shape[1],
            None,
            None,
            weights[2].shape[2],
            inputs.local.start,
            len(inputs.local),
            None,
            routing_method_type=METHODS["renormalize"],
            tune_max_num_tokens=max(MOST_TOKENS, len(ids)),
        )
        return done

    return run


def _run_round(inputs: RankInputs, payload: list[torch.Tensor], experts: Any, between: Any, stopwatch: Any) -> Any:
    """Send, compute, and return what comes back. A mark is taken before and after each of the three."""
    most = len(inputs.hidden_states)
    names_absent = () if experts.absent is None else (experts.absent, len(payload))
    stopwatch.mark()
    came = between.dispatch(inputs.experts, [*payload, inputs.experts, inputs.factors], most, *names_absent)
    stopwatch.mark()
    done = experts.compute(came[: len(payload)], came[-2], came[-1]).to(inputs.hidden_states.dtype)
    stopwatch.mark()
    back = between.combine(done, most)
    stopwatch.mark()
    return back


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
    inputs: RankInputs,
    experts: Any,
    between: Any,
    check: Check,
    communicator: Any,
    stopwatch: Any,
    *,
    dry_run_iters: int,
    num_iters: int,
) -> tuple[dict[str, list[float]], list[str]]:
    """Check one round, then time rounds. A round begins when every rank has come to it.

    Returns:
        Milliseconds of each round, for each phase and in all, of the slowest rank; and what any rank found wrong.
    """
    payload = pack(inputs.hidden_states, inputs.quant)
    back = _run_round(inputs, payload, experts, between, stopwatch)
    stopwatch.read()
    problems = communicator.allgather(find_mismatch(inputs.rank, back, experts.expect(payload), check))
    rounds = []
    for _ in range(dry_run_iters + num_iters):
        communicator.Barrier()
        _run_round(inputs, payload, experts, between, stopwatch)
        rounds.append(stopwatch.read())
    slowest = torch.tensor(communicator.allgather(rounds[dry_run_iters:]), dtype=torch.float64).amax(dim=0)
    times = {phase: slowest[:, column].tolist() for column, phase in enumerate(PHASES)}
    both = slowest[:, 0] + slowest[:, 2]
    return {"a2a_total": both.tolist(), **times}, [problem for problem in problems if problem is not None]
