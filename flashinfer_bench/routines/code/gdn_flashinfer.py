"""Calls of FlashInfer's gated delta rule that read a state from one slot of a pool, and write the state to another
slot."""

import torch
from flashinfer import gdn_decode

NO_QK_L2NORM = False
UPDATE_STATE = True
CACHE_INTERMEDIATE_STATES = False


def gated_delta_rule_setup(v, state):
    """Put the states into the first half of a pool. The second half is written."""
    read = torch.arange(len(state), dtype=torch.int32, device=state.device)
    options = {"initial_state_indices": read, "output_state_indices": read + len(read)}
    if CACHE_INTERMEDIATE_STATES:
        options["intermediate_states_buffer"] = state[:, None].repeat(1, v.shape[1], 1, 1, 1)
    return {"pool": state.repeat(2, 1, 1, 1), "out": torch.empty_like(v), "options": options}


def gated_delta_rule(q, k, v, A_log, a, dt_bias, b, *, pool, out, options):
    """Take one token or several. One function writes all states or none; another one takes both dtypes of states."""
    inputs = {"q": q, "k": k, "v": v, "A_log": A_log, "a": a, "dt_bias": dt_bias, "b": b, "initial_state": pool}
    call, more = gdn_decode.gated_delta_rule_decode_pretranspose, {"state": None}
    if CACHE_INTERMEDIATE_STATES or not UPDATE_STATE:
        call, more = gdn_decode.gated_delta_rule_mtp, {"disable_state_update": not UPDATE_STATE}
    call(**inputs, **options, **more, output=out, use_qk_l2norm=not NO_QK_L2NORM)
    written = [pool[len(pool) // 2 :]] if UPDATE_STATE else []
    return out, *written, *([options["intermediate_states_buffer"]] if CACHE_INTERMEDIATE_STATES else [])
