"""Calls of FlashInfer's MSA kernels."""

from functools import cache

import flashinfer
import torch

BATCH_SIZE = 1
S_QO = 4096
S_KV = 4096
TOPK = 16
COLUMNS = 32
CAUSAL = True
KV_LAYOUT = "flat"
PAGE = 128


@cache
def bounds(length, device):
    """Give where each sequence begins, and the total."""
    return torch.arange(0, BATCH_SIZE * length + 1, length, dtype=torch.int32, device=device)


@cache
def every(value, count, device):
    """Give the same number for each sequence."""
    return torch.full((count,), value, dtype=torch.int32, device=device)


def places(caches):
    """Give the mask, and where the keys of a sequence are; the table of pages is the last input."""
    device = caches[0].device
    if KV_LAYOUT == "flat":
        return {"causal": CAUSAL, "cu_seqlens_k": bounds(S_KV, device)}
    return {"causal": CAUSAL, "page_table": caches[-1], "seqused_k": every(S_KV, BATCH_SIZE, device)}


def proxy(q, k, scores, *table):
    """msa_proxy_score."""
    options = {**places((k, *table)), "max_seqlen_q": S_QO, "output": scores}
    flashinfer.msa_ops.msa_proxy_score(q, k, bounds(S_QO, q.device), **options)


def proxy_fp4(q, k, q_scale, k_scale, scores, *table):
    """msa_proxy_score_fp4."""
    options = {**places((k, *table)), "max_seqlen_q": S_QO, "output": scores}
    codes = (one.view(torch.uint8) for one in (q, k, q_scale, k_scale))
    flashinfer.msa_ops.msa_proxy_score_fp4(*codes, 1.0, 1.0, bounds(S_QO, q.device), **options)


def halves(caches):
    """Give keys and values."""
    return caches[0].chunk(2, dim=-1) if KV_LAYOUT == "packed" else caches[:2]


def attend(q, blocks, *caches):
    """msa_sparse_attention."""
    given = (*halves(caches), blocks, bounds(S_QO, q.device))
    return flashinfer.msa_ops.msa_sparse_attention(q, *given, **places(caches))


def decode(q, blocks, *caches):
    """msa_sparse_decode_attention."""
    options = {**places(caches), "seqlen_q": S_QO}
    return flashinfer.msa_ops.msa_sparse_decode_attention(q, *halves(caches), blocks, **options)


@cache
def seen(device):
    """Give the blocks that each query sees."""
    last = torch.arange(S_KV - S_QO, S_KV, device=device) if CAUSAL else every(S_KV - 1, S_QO, device)
    return (last // PAGE + 1).int().repeat(BATCH_SIZE)


def pipeline(index_q, index_k, q, *caches):
    """msa_proxy_score, msa_topk_select, msa_sparse_attention."""
    scores = torch.empty(index_q.shape[1], COLUMNS, len(q), device=q.device)
    proxy(index_q, index_k, scores, *caches[2 if KV_LAYOUT == "paged" else 1 :])
    chosen = flashinfer.msa_ops.msa_topk_select(scores, TOPK, seen(q.device), force_end_blocks=1)
    return attend(q, chosen.transpose(0, 1).contiguous(), *caches)
