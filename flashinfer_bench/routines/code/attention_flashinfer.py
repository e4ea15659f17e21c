"""Calls of FlashInfer's attention. The call's `setup` (a function with the suffix `_setup`) plans, or counts from
lengths. The call gets the result of `setup` as keyword arguments.

A plan depends only on lengths and page tables, and a case has one set of lengths and page tables. So each call plans
the same wrapper again, as a server does for each step. Calls that are set up together share the wrapper.
"""

from functools import cache

import flashinfer
import torch
from flashinfer.attention import prims_ts

from flashinfer_bench.routines.code.tuning import call

BACKEND = "fa2"
TENSOR_CORES = BACKEND in ("fa2_tc", "auto")
MLA_BACKEND = {"trtllm-native": "trtllm-gen"}.get(BACKEND, BACKEND)
SM_SCALE = 0.125
CAUSAL = False
MASK = "causal" if CAUSAL else "dense"
OUT_DTYPE = "bfloat16"
ENABLE_PDL = False
MLA_OPTIONS = {}
FACTOR = 1.0
PAGE_SIZE = 16
HEAD_DIM_CKV = 512
HEAD_DIM_KPE = 64
NOPE_DIM = 128
S_QO = 1
S_KV = 1024
"""cuDNN wants a page table as wide as its longest sequence."""
WORKSPACE_BYTES = 512 << 20
LONGEST = {"max_token_per_sequence": S_QO, "max_sequence_kv": S_KV}


@cache
def workspace(device):
    """Give the scratch memory, zeroed once."""
    return torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=device)


@cache
def wrapper_of(kind, device, *layout, **options):
    """Give the wrapper, made once."""
    return kind(workspace(device), *layout, **options)


def plan(wrapper, q, kv, *lists, **options):
    """Plan a wrapper for these lists, and return it."""
    if q.dtype != getattr(torch, OUT_DTYPE):
        options["o_data_type"] = getattr(torch, OUT_DTYPE)
    wrapper.plan(*lists, sm_scale=SM_SCALE, q_data_type=q.dtype, kv_data_type=kv.dtype, **options)
    return {"wrapper": wrapper}


def sums_of(counts):
    """Give where each sequence begins, and the total."""
    return torch.nn.functional.pad(counts.cumsum(0), (1, 0)).int()


def page_lists(block_tables, kv_lens):
    """Give the page table as offsets, indices and the tokens of each last page."""
    lengths = kv_lens.cpu()
    counts = (lengths + PAGE_SIZE - 1) // PAGE_SIZE
    indices = torch.cat([row[:count] for row, count in zip(block_tables, counts.tolist(), strict=True)])
    return sums_of(counts), indices, (lengths - (counts - 1) * PAGE_SIZE).int()


def page_sizes(q, kv_cache):
    """Give query heads, key heads, the dimension of a head, and the tokens of a page."""
    return q.shape[1], kv_cache.shape[3], q.shape[2], PAGE_SIZE


def by_heads(kv_cache):
    """View keys and values as [pages, heads, page_size, dim]."""
    return kv_cache[:, 0].transpose(1, 2), kv_cache[:, 1].transpose(1, 2)


def in_elements(indptr, rows):
    """Give offsets in elements; rows are [tokens, heads, dim]."""
    return indptr * (rows.shape[1] * rows.shape[2])


def as_counts(lengths):
    """View lengths as cuDNN wants them."""
    return lengths.view(-1, 1, 1, 1)


def run_wrapper(wrapper, *tensors, out):
    """Run a wrapper. Without --enable_pdl the library decides."""
    wrapper.run(*tensors, out=out, enable_pdl=ENABLE_PDL or None)


def decode_setup(q, kv_cache, block_tables, kv_lens):
    """Plan the decoding wrapper."""
    options = {"use_tensor_cores": TENSOR_CORES, "backend": BACKEND.removesuffix("_tc")}
    wrapper = wrapper_of(flashinfer.BatchDecodeWithPagedKVCacheWrapper, q.device, "NHD", **options)
    lists = (*page_lists(block_tables, kv_lens), *page_sizes(q, kv_cache))
    return plan(wrapper, q, kv_cache, *lists, block_tables=block_tables.clone())


def decode(q, kv_cache, out, *, wrapper):
    """BatchDecodeWithPagedKVCacheWrapper: fa2, fa2 on tensor cores, auto, trtllm-gen."""
    run_wrapper(wrapper, q, kv_cache, out=out)


def decode_cudnn(q, kv_cache, block_tables, kv_lens, out):
    """cudnn_batch_decode_with_kv_cache."""
    flashinfer.decode.cudnn_batch_decode_with_kv_cache(
        q,
        *by_heads(kv_cache),
        SM_SCALE,
        workspace(q.device),
        max_sequence_kv=S_KV,
        actual_seq_lens_kv=as_counts(kv_lens),
        block_tables=block_tables,
        is_cuda_graph_compatible=True,
        out=out,
    )


def decode_trtllm_native(q, kv_cache, block_tables, kv_lens, out):
    """trtllm_batch_decode_with_kv_cache."""
    lists = (workspace(q.device), block_tables, kv_lens, S_KV)
    flashinfer.decode.trtllm_batch_decode_with_kv_cache(
        q, kv_cache, *lists, bmm1_scale=SM_SCALE, bmm2_scale=1.0, out=out, kv_layout="NHD"
    )


def in_pools(kv_cache):
    """Copy keys and values into a pool each, [pages, heads, page_size, dim], as prims-ts wants them."""
    return tuple(pool.contiguous() for pool in by_heads(kv_cache))


def decode_prims_ts_setup(q, kv_cache, block_tables, kv_lens):
    """Plan the decoding of prims-ts, and copy the cache."""
    wrapper = prims_ts.BatchDecodePagedTSWrapper()
    lists = (one.to(q.device) for one in page_lists(block_tables, kv_lens))
    wrapper.plan(*lists, *page_sizes(q, kv_cache), q_data_type=q.dtype, max_kv_len=S_KV)
    return {"wrapper": wrapper, "pools": in_pools(kv_cache)}


def decode_prims_ts(q, out, *, wrapper, pools):
    """BatchDecodePagedTSWrapper."""
    wrapper.run(q, pools, bmm1_scale=SM_SCALE, out=out)


def decode_nvfp4_setup(kv_cache, kv_scale):
    """Copy codes and scales into pools. Scales of the values of four tokens lie side by side."""
    k, v = in_pools(kv_scale)
    scales = (k, v.unflatten(2, (-1, 4)).mT.reshape(v.shape))
    return {"pools": in_pools(kv_cache.view(torch.uint8)), "scales": scales}


def decode_nvfp4(q, block_tables, kv_lens, out, *, pools, scales):
    """trtllm_batch_decode_with_kv_cache of 4-bit floats."""
    lists = (workspace(q.device), block_tables, kv_lens, S_KV)
    options = {"bmm1_scale": SM_SCALE * FACTOR, "bmm2_scale": FACTOR, "kv_cache_sf": scales}
    flashinfer.decode.trtllm_batch_decode_with_kv_cache(q, pools, *lists, out=out, kv_layout="HND", **options)


def plan_paged(qo_indptr, q, kv_cache, block_tables, kv_lens, **options):
    """Plan the prefill wrapper over pages."""
    wrapper = wrapper_of(flashinfer.BatchPrefillWithPagedKVCacheWrapper, q.device, "NHD", backend=BACKEND)
    indptr, indices, last = page_lists(block_tables, kv_lens)
    lists = (qo_indptr, indptr.to(q.device), indices, last.to(q.device), *page_sizes(q, kv_cache))
    return plan(wrapper, q, kv_cache, *lists, causal=CAUSAL, block_tables=block_tables.clone(), **options)


def paged_setup(qo_indptr, *rest):
    """Plan the prefill wrapper."""
    return plan_paged(qo_indptr.clone(), *rest)


def paged(q, kv_cache, out, *, wrapper):
    """BatchPrefillWithPagedKVCacheWrapper: fa2, fa3, auto, trtllm-gen."""
    run_wrapper(wrapper, q, kv_cache, out=out)


def paged_cudnn_setup(qo_indptr, *rest):
    """Plan the wrapper's cudnn backend, which counts offsets in elements."""
    lengths = {"seq_lens": as_counts(rest[-1].clone()), "seq_lens_q": as_counts(torch.diff(qo_indptr))}
    return plan_paged(in_elements(qo_indptr, rest[0]), *rest, **lengths, **LONGEST)


def paged_cudnn(q, kv_cache, out, *, wrapper):
    """The wrapper's cudnn backend."""
    wrapper.run(q, by_heads(kv_cache), out=out)


def prefill_cudnn(q, k, v, out, **lists):
    """cudnn_batch_prefill_with_kv_cache."""
    options = {"causal": CAUSAL, "return_lse": True, "out": out, "is_cuda_graph_compatible": True}
    flashinfer.prefill.cudnn_batch_prefill_with_kv_cache(
        q, k, v, SM_SCALE, workspace(q.device), **LONGEST, **options, **lists
    )


def paged_cudnn_native_setup(q, qo_indptr):
    """Count lengths, and offsets in elements."""
    offsets = in_elements(qo_indptr, q)
    lens = as_counts(torch.diff(qo_indptr))
    return {"lists": {"actual_seq_lens_q": lens, "batch_offsets_q": offsets, "batch_offsets_o": offsets}}


def paged_cudnn_native(q, kv_cache, block_tables, kv_lens, out, *, lists):
    """cudnn_batch_prefill_with_kv_cache over pages."""
    pages = {"actual_seq_lens_kv": as_counts(kv_lens), "block_tables": block_tables}
    prefill_cudnn(q, *by_heads(kv_cache), out, **pages, **lists)


def paged_trtllm_native_setup(kv_lens):
    """Count where the keys of each sequence begin."""
    return {"kv_indptr": sums_of(kv_lens)}


def paged_trtllm_native(q, kv_cache, qo_indptr, block_tables, kv_lens, out, *, kv_indptr):
    """trtllm_batch_context_with_kv_cache."""
    lists = (block_tables, kv_lens, S_QO, S_KV, SM_SCALE, 1.0, len(kv_lens), qo_indptr, kv_indptr)
    flashinfer.prefill.trtllm_batch_context_with_kv_cache(
        q, kv_cache, workspace(q.device), *lists, out=out, kv_layout="NHD", causal=CAUSAL
    )


def run_fmha_v2(parts, layout, kv_lens, *more):
    """trtllm_fmha_v2_prefill; more are the offsets, the page table, and the output."""
    numbers = (S_QO, S_KV, SM_SCALE, 1.0, len(kv_lens))
    mask = "causal" if CAUSAL else "padding"
    flashinfer.prefill.trtllm_fmha_v2_prefill(
        parts, layout, workspace(kv_lens.device), kv_lens, *numbers, *more, mask_mode=mask
    )


paged_trtllm_fmha_v2_setup = paged_trtllm_native_setup


def paged_trtllm_fmha_v2(q, kv_cache, qo_indptr, block_tables, kv_lens, out, *, kv_indptr):
    """trtllm_fmha_v2_prefill over pages."""
    run_fmha_v2((q, kv_cache), "Q_PAGED_KV_NHD", kv_lens, qo_indptr, kv_indptr, block_tables, out)


def paged_prims_ts_setup(q, kv_cache, qo_indptr, block_tables, kv_lens):
    """Plan the prefill of prims-ts, and copy the cache."""
    wrapper, pools = prims_ts.BatchPrefillPagedTSWrapper(), in_pools(kv_cache)
    lists = (one.to(q.device) for one in page_lists(block_tables, kv_lens))
    wrapper.plan(q, *pools, qo_indptr.clone(), *lists, page_size=PAGE_SIZE, mask_type=MASK, sm_scale=SM_SCALE)
    return {"wrapper": wrapper, "pools": pools}


def paged_prims_ts(q, out, *, wrapper, pools):
    """BatchPrefillPagedTSWrapper."""
    wrapper.run(q, *pools, out=out)


def paged_nvfp4_setup(kv_cache, kv_scale, kv_lens):
    """Copy codes and scales into pools, and count where the keys of each sequence begin."""
    return {**decode_nvfp4_setup(kv_cache, kv_scale), "kv_indptr": sums_of(kv_lens)}


def paged_nvfp4(q, qo_indptr, block_tables, kv_lens, out, *, pools, scales, kv_indptr):
    """trtllm_batch_context_with_kv_cache of 4-bit floats."""
    numbers = (S_QO, S_KV, SM_SCALE * FACTOR, FACTOR, len(kv_lens))
    lists = (workspace(q.device), block_tables, kv_lens, *numbers, qo_indptr, kv_indptr)
    options = {"out": out, "kv_layout": "HND", "causal": CAUSAL, "kv_cache_sf": scales}
    flashinfer.prefill.trtllm_batch_context_with_kv_cache(q, pools, *lists, **options)


def plan_ragged(q, k, v, *offsets, **options):
    """Plan the prefill wrapper without pages."""
    wrapper = wrapper_of(flashinfer.BatchPrefillWithRaggedKVCacheWrapper, q.device, "NHD", backend=BACKEND)
    sizes = (q.shape[1], k.shape[1], q.shape[2])
    return plan(wrapper, q, k, *offsets, *sizes, head_dim_vo=v.shape[2], causal=CAUSAL, **options)


def ragged_setup(q, k, v, qo_indptr, kv_indptr):
    """Plan the prefill wrapper."""
    return plan_ragged(q, k, v, qo_indptr.clone(), kv_indptr.clone())


def ragged(q, k, v, out, *, wrapper):
    """BatchPrefillWithRaggedKVCacheWrapper: fa2, fa3, cutlass, cute-dsl."""
    run_wrapper(wrapper, q, k, v, out=out)


def ragged_cudnn_native_setup(q, k, v, qo_indptr, kv_indptr):
    """Give lengths, and offsets in elements."""
    lists = {
        "actual_seq_lens_q": as_counts(torch.diff(qo_indptr)),
        "actual_seq_lens_kv": as_counts(torch.diff(kv_indptr)),
        "batch_offsets_q": in_elements(qo_indptr, q),
        "batch_offsets_k": in_elements(kv_indptr, k),
        "batch_offsets_v": in_elements(kv_indptr, v),
        "batch_offsets_o": qo_indptr * (q.shape[1] * v.shape[2]),
    }
    return {"lists": lists}


def ragged_cudnn_setup(q, k, v, *rest):
    """Plan the wrapper's cudnn backend, which counts offsets in elements."""
    lens_q, lens_kv, *first, of_v, of_o = ragged_cudnn_native_setup(q, k, v, *rest)["lists"].values()
    lists = {"seq_lens": lens_kv, "seq_lens_q": lens_q, "v_indptr": of_v, "o_indptr": of_o}
    return plan_ragged(q, k, v, *first, **lists, **LONGEST)


def ragged_cudnn(q, k, v, out, *, wrapper):
    """The wrapper's cudnn backend."""
    wrapper.run(q, k, v, out=out)


def ragged_cudnn_native(q, k, v, out, *, lists):
    """cudnn_batch_prefill_with_kv_cache without pages."""
    prefill_cudnn(q, k, v, out, **lists)


def ragged_trtllm_native_setup(kv_indptr):
    """Count the keys of each sequence."""
    return {"lens": torch.diff(kv_indptr)}


def ragged_trtllm_native(q, k, v, qo_indptr, kv_indptr, out, *, lens):
    """trtllm_ragged_attention_deepseek."""
    numbers = (lens, S_QO, S_KV, SM_SCALE, 1.0, -1.0, len(lens), -1)
    flashinfer.prefill.trtllm_ragged_attention_deepseek(
        q, k, v, workspace(q.device), *numbers, qo_indptr, kv_indptr, False, CAUSAL, True, out=out
    )


ragged_trtllm_fmha_v2_setup = ragged_trtllm_native_setup


def ragged_trtllm_fmha_v2(q, k, v, qo_indptr, kv_indptr, out, *, lens):
    """trtllm_fmha_v2_prefill without pages."""
    run_fmha_v2((q, k, v), "SEPARATE_Q_K_V", lens, qo_indptr, kv_indptr, None, out)


def ragged_prims_ts_setup(q, k, v, qo_indptr, kv_indptr):
    """Plan the prefill of prims-ts."""
    wrapper = prims_ts.BatchPrefillTSWrapper()
    offsets = {"qo_indptr": qo_indptr.clone(), "kv_indptr": kv_indptr.clone()}
    wrapper.plan(q, k, v, mask_type=MASK, sm_scale=SM_SCALE, **offsets)
    return {"wrapper": wrapper}


def ragged_prims_ts(q, k, v, out, *, wrapper):
    """BatchPrefillTSWrapper."""
    wrapper.run(q, k, v, out=out)


def run_mla(wrapper, q, kv_cache, out, **options):
    """Run a wrapper on queries and cache, each in two parts."""
    wholes = (q.flatten(0, 1), kv_cache)
    parts = [part for whole in wholes for part in whole.tensor_split((HEAD_DIM_CKV,), dim=-1)]
    wrapper.run(*parts, out=out.view(-1, *out.shape[2:]), **options)


def mla_setup(q, kv_cache, block_tables, kv_lens):
    """Plan the MLA wrapper."""
    batch, queries, heads, _ = q.shape
    wrapper = wrapper_of(flashinfer.mla.BatchMLAPagedAttentionWrapper, q.device, backend=BACKEND)
    qo_indptr = torch.arange(0, batch * queries + 1, queries, dtype=torch.int32, device=q.device)
    indptr, indices, _ = page_lists(block_tables, kv_lens)
    sizes = (heads, HEAD_DIM_CKV, HEAD_DIM_KPE, PAGE_SIZE, CAUSAL, SM_SCALE)
    wrapper.plan(qo_indptr, indptr.to(q.device), indices, kv_lens.clone(), *sizes, q.dtype, kv_cache.dtype)
    return {"wrapper": wrapper}


def mla(q, kv_cache, out, *, wrapper):
    """BatchMLAPagedAttentionWrapper: fa2, fa3."""
    run_mla(wrapper, q, kv_cache, out)


def mla_cutlass(q, kv_cache, block_tables, kv_lens, out):
    """The wrapper's cutlass backend, which plans nothing and takes queries and cache in one piece."""
    wrapper = wrapper_of(flashinfer.mla.BatchMLAPagedAttentionWrapper, q.device, backend=BACKEND)
    run_mla(wrapper, q, kv_cache, out, kv_len=kv_lens, page_table=block_tables)


def mla_trtllm_native(q, kv_cache, block_tables, kv_lens, out):
    """trtllm_batch_decode_with_kv_cache_mla: kernels of trtllm-gen, of CuTe DSL, or those that the library chooses."""
    sizes = (NOPE_DIM, HEAD_DIM_CKV, HEAD_DIM_KPE, block_tables, kv_lens, S_KV)
    options = {"out": out, "bmm1_scale": SM_SCALE, "bmm2_scale": 1.0, "backend": MLA_BACKEND, **MLA_OPTIONS}
    function = flashinfer.mla.trtllm_batch_decode_with_kv_cache_mla
    call(function, q, kv_cache.unsqueeze(1), workspace(q.device), *sizes, **options)


mla_auto = mla_cute_dsl = mla_trtllm_native


def mla_prims_ts_setup(q, block_tables, kv_lens):
    """Plan the MLA of prims-ts."""
    wrapper = prims_ts.BatchMLADecodePagedTSWrapper()
    sizes = (q.shape[2], HEAD_DIM_CKV, HEAD_DIM_KPE, PAGE_SIZE)
    lists = (block_tables.clone(), kv_lens.clone())
    wrapper.plan(*lists, *sizes, max_seq_len_q=S_QO, mask_type=MASK, max_kv_len=S_KV)
    return {"wrapper": wrapper}


def mla_prims_ts(q, kv_cache, out, *, wrapper):
    """BatchMLADecodePagedTSWrapper."""
    wrapper.run(q, kv_cache, bmm1_scale=SM_SCALE, out=out)
