"""The experts of one rank with --real_math: their weights, the library's kernels for them, and the expected results.

Weights are drawn from the seed and the expert's number. So every rank can make the weights of any expert: it keeps
those of its own, and makes the others to check its tokens. Scales and their tiles are as in `code.moe_flashinfer`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from flashinfer_bench.routines.code.moe_comm_torch import by_blocks, by_rows, feed
from flashinfer_bench.routines.code.norm_torch import swizzle
from flashinfer_bench.routines.families.moe import E2M1_DEVIATION, METHODS
from flashinfer_bench.routines.ranks.rank import RankInputs, unpack

Kernel = Callable[[Sequence[torch.Tensor], torch.Tensor, torch.Tensor], torch.Tensor]
"""Computes [rows, hidden] from rows of the payload, their expert ids and their factors [rows, top_k]."""
SEED_STRIDE: Final = 1_000_003
"""Distance between the seeds of two sessions. No expert of one session has the seed of an expert of another."""
MOST_TOKENS: Final = 8192
"""The library tunes its kernels for at least this number of tokens."""


@dataclass(frozen=True)
class ExpertLayer:
    """The weights of one product of an expert."""

    codes: torch.Tensor
    """nvfp4: uint8 [rows, columns / 2]; fp8: [rows, columns]."""
    scales: torch.Tensor
    """nvfp4: e4m3 [rows, columns / 16]; fp8: float32 [rows / 128, columns / 128]."""
    factor: float
    """nvfp4: the factor of the whole layer."""

    def expand(self) -> torch.Tensor:
        """Give the weights in float32."""
        is_packed = self.codes.dtype == torch.uint8
        return by_rows(self.codes, self.scales) * self.factor if is_packed else by_blocks(self.codes, self.scales)


Expert = tuple[ExpertLayer, ExpertLayer]


def draw_expert(expert: int, inputs: RankInputs, *, intermediate: int, seed: int) -> Expert:
    """Make the weights of an expert, so that products of inputs of deviation 1 have deviation 1."""
    device, hidden = inputs.hidden_states.device, inputs.hidden_states.shape[1]
    generator = torch.Generator(device=device).manual_seed((seed + 1) * SEED_STRIDE + expert)
    draw = _draw_nvfp4 if inputs.quant == "nvfp4" else _draw_fp8
    return draw(generator, 2 * intermediate, hidden), draw(generator, hidden, intermediate)


def _draw_nvfp4(generator: torch.Generator, rows: int, columns: int) -> ExpertLayer:
    place: Any = {"device": generator.device, "generator": generator}
    codes = torch.randint(0, 256, (rows, columns // 2), dtype=torch.uint8, **place)
    scales = (torch.rand(rows, columns // 16, **place) + 0.5).to(torch.float8_e4m3fn)
    return ExpertLayer(codes, scales, 1 / (E2M1_DEVIATION * math.sqrt(columns)))


def _draw_fp8(generator: torch.Generator, rows: int, columns: int) -> ExpertLayer:
    place: Any = {"device": generator.device, "generator": generator}
    codes = torch.randn(rows, columns, **place).to(torch.float8_e4m3fn)
    scales = (torch.rand(rows // 128, columns // 128, **place) + 0.5) / math.sqrt(columns)
    return ExpertLayer(codes, scales, 1.0)


class RealExperts:
    """A rank's experts, as kernels of the library."""

    def __init__(self, inputs: RankInputs, library: Any, *, intermediate: int, seed: int) -> None:
        """Draw and lay out this rank's weights.

        Args:
            inputs: what the rank has.
            library: the module flashinfer.fused_moe.
            intermediate: the size between the products.
            seed: the seed of all weights.
        """
        self._inputs = inputs
        self._draw: Callable[[int], Expert] = lambda expert: draw_expert(
            expert, inputs, intermediate=intermediate, seed=seed
        )
        make = make_nvfp4_kernel if inputs.quant == "nvfp4" else make_fp8_kernel
        self._kernel = make(library, inputs, [self._draw(expert) for expert in inputs.local])

    @property
    def absent(self) -> int:
        """An expert of another rank. With a single rank it is an own one: then no place is empty."""
        return self._inputs.local.stop % self._inputs.experts_in_all

    def compute(self, payload: Sequence[torch.Tensor], experts: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
        """Send what came, [ranks, most, …] each, through the experts that are here."""
        rows = [part.flatten(0, 1) for part in payload]
        done = self._kernel(rows, experts.flatten(0, 1), factors.flatten(0, 1))
        return done.view(*experts.shape[:2], -1)

    def expect(self, payload: Sequence[torch.Tensor]) -> torch.Tensor:
        """Give what the experts of all ranks make of this rank's tokens, in float32."""
        inputs, tokens = self._inputs, unpack(payload, self._inputs.quant)
        out = torch.zeros_like(tokens)
        for expert in sorted(set(inputs.experts.flatten().tolist())):
            token, place = (inputs.experts == expert).nonzero(as_tuple=True)
            first, second = self._draw(expert)
            done = feed(tokens[token], first.expand(), second.expand())
            out.index_add_(0, token, done * inputs.factors[token, place, None])
        return out


def make_nvfp4_kernel(library: Any, inputs: RankInputs, experts: Sequence[Expert]) -> Kernel:
    """Lay nvfp4 weights out for cutlass_fused_moe, which leaves out experts of other ranks."""
    one = torch.ones((), dtype=torch.float32, device=inputs.hidden_states.device)
    weights, scales = [], []
    for layers in zip(*experts, strict=True):
        weights.append(torch.stack([layer.codes for layer in layers]).view(torch.int64))
        tiled = torch.stack([swizzle(layer.scales).view(layer.scales.shape) for layer in layers])
        scales += [one, tiled.view(torch.int32), one.new_tensor([layer.factor for layer in layers])]

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


def make_fp8_kernel(library: Any, inputs: RankInputs, experts: Sequence[Expert]) -> Kernel:
    """Stack fp8 weights for trtllm_fp8_block_scale_routed_moe: an id and its bfloat16 factor share a word."""
    first, second = (
        (torch.stack([layer.codes for layer in layers]), torch.stack([layer.scales for layer in layers]))
        for layers in zip(*experts, strict=True)
    )

    def run(rows: Sequence[torch.Tensor], ids: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
        words = factors.to(torch.bfloat16).view(torch.int16).to(torch.int32)
        done: torch.Tensor = library.trtllm_fp8_block_scale_routed_moe(
            (ids << 16) | (words & 0xFFFF),
            None,
            rows[0].view(torch.float8_e4m3fn),
            rows[1].T.contiguous(),
            *first,
            *second,
            inputs.experts_in_all,
            ids.shape[1],
            None,
            None,
            second[0].shape[2],
            inputs.local.start,
            len(inputs.local),
            None,
            routing_method_type=METHODS["renormalize"],
            tune_max_num_tokens=max(MOST_TOKENS, len(ids)),
        )
        return done

    return run
