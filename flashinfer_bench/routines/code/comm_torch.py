"""References of sums and exchanges between ranks: all ranks in one process."""

import torch

from flashinfer_bench.routines.code.formats import E4M3_MAX, to_fp8
from flashinfer_bench.routines.code.norm_torch import normalise

INTER_DP_SIZE = 1
INTER_TP_SIZE = 1
LOCAL_DP_SIZE = 2
LOCAL_TP_SIZE = 2
SMALLEST = 2**-9
"""The smallest number of e4m3."""


def allreduce(x):
    """Add up the tokens of all ranks [ranks, tokens, hidden]."""
    return x.float().sum(dim=0).to(x.dtype)


def ar_residual_rmsnorm(x, residual, weight):
    """Add up, add the residual, then RMSNorm of the sum before rounding; and the sum."""
    total = x.float().sum(dim=0) + residual.float()
    return normalise(total, weight).to(x.dtype), total.to(x.dtype)


def ar_residual_rmsnorm_dynamic_fp8(x, residual, weight):
    """The same in fp8, with a factor for each token."""
    total = x.float().sum(dim=0) + residual.float()
    norm = normalise(total, weight)
    scale = norm.abs().amax(dim=-1, keepdim=True).clamp(min=SMALLEST) / E4M3_MAX
    return to_fp8(norm / scale, torch.float8_e4m3fn), total.to(x.dtype), scale


def gather(x):
    """Add up the tokens of each group of ranks, and put those of all groups one after the other."""
    by_place = x.float().unflatten(0, (INTER_DP_SIZE, INTER_TP_SIZE, LOCAL_DP_SIZE, LOCAL_TP_SIZE))
    return by_place.sum(dim=(1, 3)).flatten(0, 2).to(x.dtype)
