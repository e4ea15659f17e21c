"""Calls of FlashInfer's sampling and top-k kernels."""

from typing import Any

import flashinfer
from torch import Tensor

FILTER_APPLY_ORDER = "top_k_first"
K = 50
BY_ROW = True
"""Row i belongs to sequence i."""
ENABLE_PDL = False


def softmax(logits: Tensor, temperature: float) -> Any:
    """softmax."""
    return flashinfer.sampling.softmax(logits, temperature=temperature, enable_pdl=ENABLE_PDL)


def sampling_from_probs(probs: Tensor) -> Any:
    """sampling_from_probs."""
    return flashinfer.sampling.sampling_from_probs(probs)


def sampling_from_logits(logits: Tensor) -> Any:
    """sampling_from_logits."""
    return flashinfer.sampling.sampling_from_logits(logits)


def top_k_sampling_from_probs(probs: Tensor, top_k: int) -> Any:
    """top_k_sampling_from_probs."""
    return flashinfer.sampling.top_k_sampling_from_probs(probs, top_k)


def top_p_sampling_from_probs(probs: Tensor, top_p: float) -> Any:
    """top_p_sampling_from_probs."""
    return flashinfer.sampling.top_p_sampling_from_probs(probs, top_p)


def min_p_sampling_from_probs(probs: Tensor, min_p: float) -> Any:
    """min_p_sampling_from_probs."""
    return flashinfer.sampling.min_p_sampling_from_probs(probs, min_p)


def top_k_top_p_sampling_from_probs(probs: Tensor, top_k: int, top_p: float) -> Any:
    """top_k_top_p_sampling_from_probs."""
    return flashinfer.sampling.top_k_top_p_sampling_from_probs(
        probs, top_k, top_p, filter_apply_order=FILTER_APPLY_ORDER
    )


def top_k_top_p_sampling_from_logits(logits: Tensor, top_k: int, top_p: float) -> Any:
    """top_k_top_p_sampling_from_logits."""
    return flashinfer.sampling.top_k_top_p_sampling_from_logits(
        logits, top_k, top_p, filter_apply_order=FILTER_APPLY_ORDER
    )


def top_k_renorm_probs(probs: Tensor, top_k: int) -> Any:
    """top_k_renorm_probs."""
    return flashinfer.sampling.top_k_renorm_probs(probs, top_k)


def top_p_renorm_probs(probs: Tensor, top_p: float) -> Any:
    """top_p_renorm_probs."""
    return flashinfer.sampling.top_p_renorm_probs(probs, top_p)


def top_k_mask_logits(logits: Tensor, top_k: int) -> Any:
    """top_k_mask_logits."""
    return flashinfer.sampling.top_k_mask_logits(logits, top_k)


def chain_speculative_sampling(draft_probs: Tensor, draft_token_ids: Tensor, target_probs: Tensor) -> Any:
    """chain_speculative_sampling; the counts begin at zero in each call."""
    return flashinfer.sampling.chain_speculative_sampling(draft_probs, draft_token_ids, target_probs)


def top_k(scores: Tensor) -> Any:
    """top_k, in no order."""
    return flashinfer.top_k(scores, K)


def top_k_page_table_transform(scores: Tensor, src_page_table: Tensor, lengths: Tensor, row_to_batch: Tensor) -> Any:
    """top_k_page_table_transform."""
    rows = None if BY_ROW else row_to_batch
    return flashinfer.top_k_page_table_transform(scores, src_page_table, lengths, K, row_to_batch=rows)


def top_k_ragged_transform(scores: Tensor, offsets: Tensor, lengths: Tensor) -> Any:
    """top_k_ragged_transform."""
    return flashinfer.top_k_ragged_transform(scores, offsets, lengths, K)
