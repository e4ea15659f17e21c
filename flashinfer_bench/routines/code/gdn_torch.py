"""References of the gdn family: the gated delta rule, token by token in float32, rounded once at the end."""

import torch

NO_QK_L2NORM = False
STATE_LAYOUT = "pretranspose"
UPDATE_STATE = True
CACHE_INTERMEDIATE_STATES = False


def recur(q, k, v, decay, beta, state):
    """Yield the output and the state after each token. States are [batch, heads, values, keys].

    All other tensors are [batch, tokens, heads], and most have a fourth dimension.
    """
    for query, key, value, kept, rate in zip(*(one.unbind(1) for one in (q, k, v, decay, beta)), strict=True):
        state = state * kept[..., None, :]
        change = rate[..., None] * (value - (state * key[..., None, :]).sum(dim=-1))
        state = state + change[..., None] * key[..., None, :]
        yield (state * query[..., None, :]).sum(dim=-1), state


def scan(*given):
    """Return the outputs of all tokens, and the last state."""
    outputs, last = [], None
    for output, state in recur(*given):
        outputs.append(output)
        last = state
    return torch.stack(outputs, dim=1), last


def unit_rows(rows):
    """Divide each row by its length. Like the kernels, add 1e-6 to the square of the length."""
    rows = rows.float()
    return rows * torch.rsqrt(rows.square().sum(dim=-1, keepdim=True) + 1e-6)


def spread(q, k, v, heads):
    """Repeat heads, until queries, keys and values have the same number, and scale the queries."""
    q, k, v = (one.float().repeat_interleave(heads // one.shape[-2], dim=-2) for one in (q, k, v))
    return q * q.shape[-1] ** -0.5, k, v


def gated_delta_rule(q, k, v, state, A_log, a, dt_bias, b):
    """Take one token or several; return the outputs, and the last state and all states if they are wanted."""
    if not NO_QK_L2NORM:
        q, k = unit_rows(q), unit_rows(k)
    decay = torch.exp(-torch.exp(A_log) * torch.nn.functional.softplus(a.float() + dt_bias))[..., None]
    is_nontranspose = STATE_LAYOUT == "nontranspose"
    first = (state.mT if is_nontranspose else state).float()
    outputs, states = zip(*recur(*spread(q, k, v, state.shape[1]), decay, torch.sigmoid(b.float()), first), strict=True)
    found = [torch.stack(outputs, dim=1).to(v.dtype)]
    if UPDATE_STATE:
        found.append((states[-1].mT.contiguous() if is_nontranspose else states[-1]).to(state.dtype))
    if CACHE_INTERMEDIATE_STATES:
        found.append(torch.stack(states, dim=1).to(state.dtype))
    return found


def chunk_gated_delta_rule(q, k, v, g, beta, cu_seqlens):
    """Take sequences of equal lengths, packed; return the outputs and the last states."""
    batch, heads, width = len(cu_seqlens) - 1, g.shape[-1], v.shape[-1]
    given = (*spread(q, k, v, heads), g[..., None], beta)
    first = torch.zeros(batch, heads, width, width, device=q.device)
    out, last = scan(*(one.unflatten(0, (batch, -1)) for one in given), first)
    return out.flatten(0, 1).to(v.dtype), last
