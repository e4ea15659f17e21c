"""Routines with states against naive kernels, which the library's calls of the same arguments reach.

A kernel takes one number of a head at a time, in float64. It is called twice after one `setup`: states that a call has
written may not change the next.
"""

from __future__ import annotations

import itertools
import math
import sys
from types import SimpleNamespace

import pytest
import torch

from flashinfer_bench.routines.case.generated_entry import generate_entry
from flashinfer_bench.routines.code.gdn_torch import unit_rows
from flashinfer_bench.routines.table import find_routine
from tests.routines.judged import JudgedRoutine, load

pytestmark = pytest.mark.cpu


def softplus(x):
    return math.log1p(math.exp(x))


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def update_states(pool, x, dt, A, B, C, D, z=None, **given):
    """Take packed or separate sequences of one or more tokens, and write to the slots that are not -1."""
    assert [dt.stride(-1), A.stride(1), A.stride(2), D.stride(1), given["dt_bias"].stride(1)] == [0] * 5
    read, written = given["state_batch_indices"], given["dst_state_batch_indices"]
    batch, heads, dim = len(read), *x.shape[-2:]
    out, groups, tokens = torch.empty_like(x), B.shape[-2], x.numel() // (batch * heads * dim)
    if "cu_seqlens" in given:
        assert given["cu_seqlens"].tolist() == [*range(0, len(x) + 1, tokens)]
    rows, steps, outs = (one.view(batch, tokens, heads, -1) for one in (x, dt[..., :1].contiguous(), out))
    keys, queries = (one.view(batch, tokens, groups, -1).double() for one in (B, C))
    for n in range(batch):
        for h in range(heads):
            state = pool[read[n], h].double()
            for t in range(tokens):
                step = float(steps[n, t, h, 0]) + float(given["dt_bias"][h, 0])
                step = softplus(step) if given["dt_softplus"] else step
                row, group = rows[n, t, h].double(), h // (heads // groups)
                state = state * math.exp(float(A[h, 0, 0]) * step) + step * row.outer(keys[n, t, group])
                y = state @ queries[n, t, group] + float(D[h, 0]) * row
                gate = None if z is None else z.view(rows.shape)[n, t, h].double()
                outs[n, t, h] = y if gate is None else y * gate / (1 + torch.exp(-gate))
                if written[n, t] >= 0:
                    pool[written[n, t], h] = state.to(pool.dtype)
    return out


def walk(q, k, v, state, decays, rates, out):
    """Take one head of one sequence; yield the states after each token."""
    for t in range(len(q)):
        query, key, value = q[t].double(), k[t].double(), v[t].double()
        state = state * decays[t]
        state = state + rates[t] * (value - state @ key).outer(key)
        out[t] = state @ query / math.sqrt(len(key))
        yield state


def unit(x):
    x = x.double()
    return x / ((x * x).sum(dim=-1, keepdim=True) + 1e-6).sqrt()


def decode(q, k, v, state, A_log, a, dt_bias, b, *, output, use_qk_l2norm, **given):
    """Take the tokens; read and write the slots of a pool, or the states in place."""
    pool = given.get("initial_state", state)
    read = given.get("initial_state_indices", range(len(q)))
    written = given.get("output_state_indices", read)
    if use_qk_l2norm:
        q, k = unit(q), unit(k)
    for n in range(len(q)):
        for h in range(v.shape[2]):
            at = h // (v.shape[2] // q.shape[2])
            decays = [
                math.exp(-math.exp(A_log[h]) * softplus(float(a[n, t, h] + dt_bias[h]))) for t in range(len(q[n]))
            ]
            rates = [sigmoid(float(one)) for one in b[n, :, h]]
            first = pool[read[n], h].double()
            heads = (q[n, :, at], k[n, :, at], v[n, :, h], first, decays, rates, output[n, :, h])
            for t, last in enumerate(walk(*heads)):
                if "intermediate_states_buffer" in given:
                    given["intermediate_states_buffer"][n, t, h] = last
            if not given.get("disable_state_update"):
                pool[written[n], h] = last.to(pool.dtype)


def decode_transposed(q, k, v, state, *rest, **given):
    assert state.dtype == torch.float32
    decode(q, k, v, state.mT, *rest, **given)


def verify(q, k, v, initial_state, initial_state_indices, A_log, a, dt_bias, b, **given):
    assert initial_state_indices.tolist() == [*range(len(q))]
    given |= {"initial_state": initial_state, "initial_state_indices": initial_state_indices}
    decode(q, k, v, None, A_log, a, dt_bias, b, **given)


def prefill(q, k, v, g, beta, scale, initial, keeps, cu_seqlens, *, output, output_state):
    assert (scale, initial, keeps) == (None, None, True)
    heads, bounds = g.shape[1], cu_seqlens.tolist()
    for n, (start, end) in enumerate(itertools.pairwise(bounds)):
        for h in range(heads):
            at = [one[start:end, h * one.shape[1] // heads] for one in (q, k, v)]
            first = torch.zeros(at[0].shape[1], at[0].shape[1], dtype=torch.float64)
            gates = g[start:end, h].tolist(), beta[start:end, h].tolist()
            *_, output_state[n, h] = walk(*at, first, *gates, output[start:end, h])


def kimi(*, q, k, v, g, beta, A_log, dt_bias, lower_bound, initial_state=None, cu_seqlens=None, **switches):
    assert switches == dict.fromkeys(("output_final_state", "use_gate_in_kernel", "beta_is_logit"), True)
    batch, heads, width = len(q) if cu_seqlens is None else len(cu_seqlens) - 1, *q.shape[2:]
    state = torch.zeros(batch, heads, width, width, dtype=q.dtype) if initial_state is None else initial_state
    out = torch.empty_like(v)
    parts = [one.reshape(batch, -1, *one.shape[2:]) for one in (unit(q), unit(k), v, g, beta, out)]
    for n in range(batch):
        for h in range(heads):
            queries, keys, values, raw, logits, outs = (one[n, :, h] for one in parts)
            gates = [math.exp(A_log[h]) * (one.double() + dt_bias[h].double()) for one in raw]
            decays = [torch.exp(lower_bound / (1 + torch.exp(-one))) for one in gates]
            rates = [sigmoid(float(one)) for one in logits]
            *_, state[n, h] = walk(queries, keys, values, state[n, h].double(), decays, rates, outs)
    return out, state


LIBRARY = SimpleNamespace(
    mamba=SimpleNamespace(selective_state_update=update_states),
    gdn_decode=SimpleNamespace(
        gated_delta_rule_decode_pretranspose=decode,
        gated_delta_rule_decode=decode_transposed,
        gated_delta_rule_mtp=verify,
    ),
    gdn_prefill=SimpleNamespace(chunk_gated_delta_rule=prefill),
    recurrent_kda=kimi,
)
MAMBA = "--batch_size 2 --nheads 4 --dim 64 --dstate 64 --ngroups 2"
HEADS = "--batch_size 2 --num_q_heads 2 --num_k_heads 2 --num_v_heads"
CASES = [
    ("selective_state_update", f"{MAMBA} --has_z --dt_softplus"),
    ("selective_state_update", f"{MAMBA} --cache_steps 3 --state_dtype float32"),
    ("selective_state_update", f"{MAMBA} --cache_steps 3 --varlen --has_z --weight_dtype bfloat16"),
    ("gated_delta_rule_decode", f"{HEADS} 4"),
    ("gated_delta_rule_decode", f"{HEADS} 2 --state_layout nontranspose --no_qk_l2norm"),
    ("gated_delta_rule_mtp", f"{HEADS} 4 --seq_len 3"),
    ("gated_delta_rule_mtp", f"{HEADS} 4 --seq_len 3 --state_dtype bfloat16"),
    ("gated_delta_rule_mtp", f"{HEADS} 4 --seq_len 3 --update_state --cache_intermediate_states"),
    ("chunk_gated_delta_rule", f"{HEADS} 4 --s_qo 5"),
    ("chunk_gated_delta_rule", "--batch_size 2 --num_q_heads 4 --num_k_heads 2 --num_v_heads 2 --s_qo 5"),
    ("recurrent_kda_prefill", "--batch_size 2 --num_q_heads 2 --s_qo 5 --packed --has_initial_state"),
    ("recurrent_kda_prefill", "--batch_size 2 --num_q_heads 2 --s_qo 5 --packed --lower_bound -2"),
]


def test_short_queries_and_keys_are_not_stretched_to_unit_length():
    for size in (1.0, 1e-3, 0.0):
        rows = torch.full((2, 4), size)
        torch.testing.assert_close(unit_rows(rows).double(), unit(rows))


@pytest.mark.parametrize(("routine", "flags"), CASES)
def test_a_naive_kernel_with_states_passes_and_may_be_called_again(routine, flags, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "flashinfer", LIBRARY)
    job = JudgedRoutine(routine, tmp_path, flags)
    solution = generate_entry(find_routine(routine), job.case, ["flashinfer"]).solutions["flashinfer"]
    functions, kept = load(solution), [one.clone() for one in job.inputs]

    def run(*inputs):
        outputs = [torch.empty_like(one) for one in job.baseline.outputs[0]]
        given = [*inputs, *(outputs if solution.spec.destination_passing_style else ())]
        prepared = functions.get("setup", lambda *_: {})(*given)
        for _ in range(2):
            returned = functions["run"](*given, **prepared)
        return list(returned or outputs)

    assert job.status(run) == "PASSED"
    assert all(map(torch.equal, job.inputs, kept))
