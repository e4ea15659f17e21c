"""The call of FlashInfer's gated delta rule, which writes a state into another slot of a pool than it reads."""

import torch
from flashinfer import gdn_decode

NO_QK_L2NORM = False


def gated_delta_rule_setup(v, state):
    """Put the states into the first half of a pool. The second half is written."""
    read = torch.arange(len(state), dtype=torch.int32, device=state.device)
    slots = {"initial_state_indices": read, "output_state_indices": read + len(read)}
    return {"pool": state.repeat(2, 1, 1, 1), "out": torch.empty_like(v), "slots": slots}


def gated_delta_rule(q, k, v, A_log, a, dt_bias, b, *, pool, out, slots):
    """gated_delta_rule_decode_pretranspose, for one token or several."""
    given = (q, k, v, None, A_log, a, dt_bias, b)
    options = {"output": out, "use_qk_l2norm": not NO_QK_L2NORM, "initial_state": pool}
    gdn_decode.gated_delta_rule_decode_pretranspose(*given, **options, **slots)
    return out, pool[len(pool) // 2 :]
