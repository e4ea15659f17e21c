"""The call of FlashInfer's Mamba kernels, which read a state from one slot of a pool, and write the state to another
slot."""

import flashinfer
import torch

DT_SOFTPLUS = False
CACHE_STEPS = 0
VARLEN = False
ALGORITHM = "auto"


def selective_state_update_setup(state):
    """Put the states into the first slots of a pool. The other slots are written. Slot -1 means: do not write."""
    batch, steps = len(state), CACHE_STEPS if VARLEN else 1
    slots = torch.arange(batch * (steps + 1), device=state.device)
    written, skipped = slots[batch:].view(batch, steps), max(CACHE_STEPS, 1) - steps
    options = {"dst_state_batch_indices": torch.nn.functional.pad(written, (skipped, 0), value=-1)}
    if VARLEN:
        options["cu_seqlens"] = torch.arange(0, batch * steps + 1, steps, dtype=torch.int32, device=state.device)
    return {"pool": state.repeat(steps + 1, 1, 1, 1), "options": {"state_batch_indices": slots[:batch], **options}}


def selective_state_update(state, x, dt, A, B, C, D, dt_bias, *z, pool, options):
    """selective_state_update; a number of a head is a view with a stride of 0, as the kernels want."""
    heads, dim, dstate = state.shape[1:]
    bias, factor = (one[:, None].expand(heads, dim) for one in (dt_bias, D))
    out = flashinfer.mamba.selective_state_update(
        pool,
        x,
        dt[..., None].expand(*dt.shape, dim),
        A[:, None, None].expand(heads, dim, dstate),
        B,
        C,
        factor,
        *z,
        dt_bias=bias,
        dt_softplus=DT_SOFTPLUS,
        cache_steps=CACHE_STEPS,
        algorithm=ALGORITHM,
        **options,
    )
    written = pool[len(state) :]
    return out, written.unflatten(0, (-1, CACHE_STEPS)) if VARLEN else written
