"""Calls of FlashInfer's attention. What is planned ahead is planned in the first call, for the case's own lengths.

A plan depends on lengths and page tables only, and a case has one set of these: later calls run the plan.
"""

from typing import Any

import flashinfer
import torch

BACKEND = "fa2"
TENSOR_CORES = False
SM_SCALE = 0.125
CAUSAL = False
PAGE_SIZE = 16
CKV_DIM = 512
KPE_DIM = 64
NOPE_DIM = 128
MAX_Q = 1
MAX_KV = 1024
WORKSPACE_BYTES = 512 << 20
STATE: dict[str, Any] = {}


def workspace(like: torch.Tensor) -> Any:
    """Give the scratch memory, zeroed once."""
    if "workspace" not in STATE:
        STATE["workspace"] = torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=like.device)
    return STATE["workspace"]


def page_lists(block_tables: torch.Tensor, kv_lens: torch.Tensor) -> tuple[Any, Any, Any]:
    """Give the page table as offsets, indices and the tokens of each last page."""
    lengths = kv_lens.cpu()
    counts = (lengths + PAGE_SIZE - 1) // PAGE_SIZE
    indptr = torch.nn.functional.pad(counts.cumsum(0), (1, 0)).to(torch.int32)
    indices = torch.cat([block_tables[row, :count] for row, count in enumerate(counts.tolist())])
    return indptr, indices, (lengths - (counts - 1) * PAGE_SIZE).to(torch.int32)


def by_heads(kv_cache: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """View keys and values as [pages, heads, page_size, dim]."""
    return kv_cache[:, 0].transpose(1, 2), kv_cache[:, 1].transpose(1, 2)


def decode(
    q: torch.Tensor, kv_cache: torch.Tensor, block_tables: torch.Tensor, kv_lens: torch.Tensor, out: torch.Tensor
) -> None:
    """BatchDecodeWithPagedKVCacheWrapper: fa2, fa2 on tensor cores, auto, trtllm-gen."""
    if "wrapper" not in STATE:
        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
            workspace(q), "NHD", use_tensor_cores=TENSOR_CORES, backend=BACKEND
        )
        indptr, indices, last = page_lists(block_tables, kv_lens)
        wrapper.plan(
            indptr,
            indices,
            last,
            q.shape[1],
            kv_cache.shape[3],
            q.shape[2],
            PAGE_SIZE,
            sm_scale=SM_SCALE,
            q_data_type=q.dtype,
            kv_data_type=kv_cache.dtype,
            block_tables=block_tables.clone(),
        )
        STATE["wrapper"] = wrapper
    STATE["wrapper"].run(q, kv_cache, out=out)


def decode_cudnn(
    q: torch.Tensor, kv_cache: torch.Tensor, block_tables: torch.Tensor, kv_lens: torch.Tensor, out: torch.Tensor
) -> None:
    """cudnn_batch_decode_with_kv_cache."""
    k, v = by_heads(kv_cache)
    flashinfer.decode.cudnn_batch_decode_with_kv_cache(
        q,
        k,
        v,
        SM_SCALE,
        workspace(q),
        max_sequence_kv=MAX_KV,
        actual_seq_lens_kv=kv_lens.view(-1, 1, 1, 1),
        block_tables=block_tables,
        is_cuda_graph_compatible=True,
        out=out,
    )


def decode_trtllm(
    q: torch.Tensor, kv_cache: torch.Tensor, block_tables: torch.Tensor, kv_lens: torch.Tensor, out: torch.Tensor
) -> None:
    """trtllm_batch_decode_with_kv_cache."""
    flashinfer.decode.trtllm_batch_decode_with_kv_cache(
        q,
        kv_cache,
        workspace(q),
        block_tables,
        kv_lens,
        MAX_KV,
        bmm1_scale=SM_SCALE,
        bmm2_scale=1.0,
        out=out,
        kv_layout="NHD",
    )


def paged(
    q: torch.Tensor,
    kv_cache: torch.Tensor,
    qo_indptr: torch.Tensor,
    block_tables: torch.Tensor,
    kv_lens: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """BatchPrefillWithPagedKVCacheWrapper: fa2, fa3, auto, trtllm-gen."""
    if "wrapper" not in STATE:
        wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace(q), "NHD", backend=BACKEND)
        indptr, indices, last = page_lists(block_tables, kv_lens)
        wrapper.plan(
            qo_indptr.clone(),
            indptr.to(q.device),
            indices,
            last.to(q.device),
            q.shape[1],
            kv_cache.shape[3],
            q.shape[2],
            PAGE_SIZE,
            causal=CAUSAL,
            sm_scale=SM_SCALE,
            q_data_type=q.dtype,
            kv_data_type=kv_cache.dtype,
            block_tables=block_tables.clone(),
        )
        STATE["wrapper"] = wrapper
    STATE["wrapper"].run(q, kv_cache, out=out)


def paged_cudnn(
    q: torch.Tensor,
    kv_cache: torch.Tensor,
    qo_indptr: torch.Tensor,
    block_tables: torch.Tensor,
    kv_lens: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """The wrapper's cudnn backend, which counts offsets in elements."""
    if "wrapper" not in STATE:
        wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace(q), "NHD", backend="cudnn")
        indptr, indices, last = page_lists(block_tables, kv_lens)
        wrapper.plan(
            qo_indptr * (q.shape[1] * q.shape[2]),
            indptr.to(q.device),
            indices,
            last.to(q.device),
            q.shape[1],
            kv_cache.shape[3],
            q.shape[2],
            PAGE_SIZE,
            causal=CAUSAL,
            sm_scale=SM_SCALE,
            q_data_type=q.dtype,
            kv_data_type=kv_cache.dtype,
            seq_lens=kv_lens.clone().view(-1, 1, 1, 1),
            seq_lens_q=torch.diff(qo_indptr).view(-1, 1, 1, 1),
            block_tables=block_tables.clone(),
            max_token_per_sequence=MAX_Q,
            max_sequence_kv=MAX_KV,
        )
        STATE["wrapper"] = wrapper
    STATE["wrapper"].run(q, by_heads(kv_cache), out=out)


def paged_cudnn_native(
    q: torch.Tensor,
    kv_cache: torch.Tensor,
    qo_indptr: torch.Tensor,
    block_tables: torch.Tensor,
    kv_lens: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """cudnn_batch_prefill_with_kv_cache over pages."""
    if "lens" not in STATE:
        STATE["lens"] = torch.diff(qo_indptr).view(-1, 1, 1, 1)
        STATE["offsets"] = qo_indptr * (q.shape[1] * q.shape[2])
    k, v = by_heads(kv_cache)
    flashinfer.prefill.cudnn_batch_prefill_with_kv_cache(
        q,
        k,
        v,
        SM_SCALE,
        workspace(q),
        max_token_per_sequence=MAX_Q,
        max_sequence_kv=MAX_KV,
        actual_seq_lens_q=STATE["lens"],
        actual_seq_lens_kv=kv_lens.view(-1, 1, 1, 1),
        block_tables=block_tables,
        causal=CAUSAL,
        return_lse=True,
        batch_offsets_q=STATE["offsets"],
        batch_offsets_o=STATE["offsets"],
        out=out,
        is_cuda_graph_compatible=True,
    )


def paged_trtllm(
    q: torch.Tensor,
    kv_cache: torch.Tensor,
    qo_indptr: torch.Tensor,
    block_tables: torch.Tensor,
    kv_lens: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """trtllm_batch_context_with_kv_cache."""
    if "kv_indptr" not in STATE:
        STATE["kv_indptr"] = torch.nn.functional.pad(kv_lens.cumsum(0), (1, 0)).to(torch.int32)
    flashinfer.prefill.trtllm_batch_context_with_kv_cache(
        q,
        kv_cache,
        workspace(q),
        block_tables,
        kv_lens,
        MAX_Q,
        MAX_KV,
        SM_SCALE,
        1.0,
        kv_lens.shape[0],
        qo_indptr,
        STATE["kv_indptr"],
        out=out,
        kv_layout="NHD",
        causal=CAUSAL,
    )


def ragged(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    qo_indptr: torch.Tensor,
    kv_indptr: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """BatchPrefillWithRaggedKVCacheWrapper: fa2, fa3, cutlass."""
    if "wrapper" not in STATE:
        wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(workspace(q), "NHD", backend=BACKEND)
        wrapper.plan(
            qo_indptr.clone(),
            kv_indptr.clone(),
            q.shape[1],
            k.shape[1],
            q.shape[2],
            head_dim_vo=v.shape[2],
            causal=CAUSAL,
            sm_scale=SM_SCALE,
            q_data_type=q.dtype,
            kv_data_type=k.dtype,
        )
        STATE["wrapper"] = wrapper
    STATE["wrapper"].run(q, k, v, out=out)


def ragged_offsets(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lists: Any) -> dict[str, Any]:
    """Give lengths, and offsets in elements, made once."""
    if "offsets" not in STATE:
        queries, keys = lists
        STATE["offsets"] = {
            "q": queries * (q.shape[1] * q.shape[2]),
            "k": keys * (k.shape[1] * k.shape[2]),
            "v": keys * (v.shape[1] * v.shape[2]),
            "o": queries * (q.shape[1] * v.shape[2]),
            "q_lens": torch.diff(queries).view(-1, 1, 1, 1),
            "kv_lens": torch.diff(keys).view(-1, 1, 1, 1),
        }
    found: dict[str, Any] = STATE["offsets"]
    return found


def ragged_cudnn(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    qo_indptr: torch.Tensor,
    kv_indptr: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """The wrapper's cudnn backend, which counts offsets in elements."""
    if "wrapper" not in STATE:
        where = ragged_offsets(q, k, v, (qo_indptr, kv_indptr))
        wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(workspace(q), "NHD", backend="cudnn")
        wrapper.plan(
            where["q"],
            where["k"],
            q.shape[1],
            k.shape[1],
            q.shape[2],
            head_dim_vo=v.shape[2],
            causal=CAUSAL,
            sm_scale=SM_SCALE,
            q_data_type=q.dtype,
            kv_data_type=k.dtype,
            seq_lens=where["kv_lens"],
            seq_lens_q=where["q_lens"],
            max_token_per_sequence=MAX_Q,
            max_sequence_kv=MAX_KV,
            v_indptr=where["v"],
            o_indptr=where["o"],
        )
        STATE["wrapper"] = wrapper
    STATE["wrapper"].run(q, k, v, out=out)


def ragged_cudnn_native(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    qo_indptr: torch.Tensor,
    kv_indptr: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """cudnn_batch_prefill_with_kv_cache without pages."""
    where = ragged_offsets(q, k, v, (qo_indptr, kv_indptr))
    flashinfer.prefill.cudnn_batch_prefill_with_kv_cache(
        q,
        k,
        v,
        SM_SCALE,
        workspace(q),
        max_token_per_sequence=MAX_Q,
        max_sequence_kv=MAX_KV,
        actual_seq_lens_q=where["q_lens"],
        actual_seq_lens_kv=where["kv_lens"],
        causal=CAUSAL,
        return_lse=True,
        batch_offsets_q=where["q"],
        batch_offsets_k=where["k"],
        batch_offsets_v=where["v"],
        batch_offsets_o=where["o"],
        out=out,
        is_cuda_graph_compatible=True,
    )


def ragged_trtllm(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    qo_indptr: torch.Tensor,
    kv_indptr: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """trtllm_ragged_attention_deepseek."""
    if "lens" not in STATE:
        STATE["lens"] = torch.diff(kv_indptr)
    flashinfer.prefill.trtllm_ragged_attention_deepseek(
        q,
        k,
        v,
        workspace(q),
        STATE["lens"],
        MAX_Q,
        MAX_KV,
        SM_SCALE,
        1.0,
        -1.0,
        STATE["lens"].shape[0],
        -1,
        qo_indptr,
        kv_indptr,
        False,
        CAUSAL,
        True,
        out=out,
    )


def mla(
    q: torch.Tensor, kv_cache: torch.Tensor, block_tables: torch.Tensor, kv_lens: torch.Tensor, out: torch.Tensor
) -> None:
    """BatchMLAPagedAttentionWrapper: fa2, fa3."""
    batch, queries, heads, _ = q.shape
    if "wrapper" not in STATE:
        wrapper = flashinfer.mla.BatchMLAPagedAttentionWrapper(workspace(q), backend=BACKEND)
        indptr, indices, _ = page_lists(block_tables, kv_lens)
        wrapper.plan(
            torch.arange(0, batch * queries + 1, queries, dtype=torch.int32, device=q.device),
            indptr.to(q.device),
            indices,
            kv_lens.clone(),
            heads,
            CKV_DIM,
            KPE_DIM,
            PAGE_SIZE,
            CAUSAL,
            SM_SCALE,
            q.dtype,
            kv_cache.dtype,
        )
        STATE["wrapper"] = wrapper
    flat = q.view(batch * queries, heads, -1)
    STATE["wrapper"].run(
        flat[..., :CKV_DIM],
        flat[..., CKV_DIM:],
        kv_cache[..., :CKV_DIM],
        kv_cache[..., CKV_DIM:],
        out=out.view(batch * queries, heads, CKV_DIM),
    )


def mla_cutlass(
    q: torch.Tensor, kv_cache: torch.Tensor, block_tables: torch.Tensor, kv_lens: torch.Tensor, out: torch.Tensor
) -> None:
    """The wrapper's cutlass backend, which takes queries and cache in one piece."""
    if "wrapper" not in STATE:
        STATE["wrapper"] = flashinfer.mla.BatchMLAPagedAttentionWrapper(workspace(q), backend="cutlass")
    flat = q.view(-1, *q.shape[2:])
    STATE["wrapper"].run(
        flat[..., :CKV_DIM],
        flat[..., CKV_DIM:],
        kv_cache[..., :CKV_DIM],
        kv_cache[..., CKV_DIM:],
        out=out.view(-1, q.shape[2], CKV_DIM),
        kv_len=kv_lens,
        page_table=block_tables,
    )


def mla_trtllm(
    q: torch.Tensor, kv_cache: torch.Tensor, block_tables: torch.Tensor, kv_lens: torch.Tensor, out: torch.Tensor
) -> None:
    """trtllm_batch_decode_with_kv_cache_mla."""
    flashinfer.mla.trtllm_batch_decode_with_kv_cache_mla(
        q,
        kv_cache.unsqueeze(1),
        workspace(q),
        NOPE_DIM,
        CKV_DIM,
        KPE_DIM,
        block_tables,
        kv_lens,
        MAX_KV,
        out=out,
        bmm1_scale=SM_SCALE,
        bmm2_scale=1.0,
    )
