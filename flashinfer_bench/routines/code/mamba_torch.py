"""The reference of the mamba family, in float32, rounded once at the end."""

import torch

NGROUPS = 8
DT_SOFTPLUS = False
VARLEN = False


def selective_state_update(state, x, dt, A, B, C, D, dt_bias, *z):
    """Take the tokens of each sequence in order; return the outputs, and the last state, or all states with VARLEN."""
    batch, heads = state.shape[:2]
    values = x.float().view(batch, -1, *x.shape[-2:])
    step = dt.float().view(*values.shape[:3], 1) + dt_bias.float()[:, None]
    step = torch.nn.functional.softplus(step) if DT_SOFTPLUS else step
    kept, added = torch.exp(A[:, None] * step)[..., None], (step * values)[..., None]
    spread = (one.float().view(batch, -1, NGROUPS, 1, one.shape[-1]) for one in (B, C))
    b, c = (one.repeat_interleave(heads // NGROUPS, dim=2) for one in spread)
    states, latest = [], state.float()
    for token in range(values.shape[1]):
        latest = latest * kept[:, token] + added[:, token] * b[:, token]
        states.append(latest)
    outputs = [(one * c[:, token]).sum(dim=-1) for token, one in enumerate(states)]
    out = torch.stack(outputs, dim=1) + D.float()[:, None] * values
    for gate in z:
        out = out * torch.nn.functional.silu(gate.float().view(out.shape))
    return out.view(x.shape).to(x.dtype), (torch.stack(states, dim=1) if VARLEN else latest).to(state.dtype)
