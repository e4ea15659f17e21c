"""The reference of the kda family, in float32, rounded once at the end."""

import torch

from flashinfer_bench.routines.code.gdn_torch import scan, spread, unit_rows

BATCH_SIZE = 1
HAS_INITIAL_STATE = False
LOWER_BOUND = -5.0


def recurrent_kda_prefill(q, k, v, g, beta, A_log, dt_bias, *rest):
    """Take the tokens of sequences of equal lengths; each channel of a key has its own decay."""
    decay = torch.exp(LOWER_BOUND * torch.sigmoid(torch.exp(A_log)[:, None] * (g.float() + dt_bias)))
    given = (*spread(unit_rows(q), unit_rows(k), v, v.shape[-2]), decay, torch.sigmoid(beta.float()))
    first = rest[0] if HAS_INITIAL_STATE else v.new_zeros(BATCH_SIZE, *v.shape[-2:], v.shape[-1])
    out, last = scan(*(one.flatten(0, 1).unflatten(0, (BATCH_SIZE, -1)) for one in given), first.float())
    return out.view(v.shape).to(v.dtype), last.to(v.dtype)
