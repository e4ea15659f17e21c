"""Calls of FlashInfer's top-k selection from rows of different lengths."""

import flashinfer
import torch

BACKEND = "radix_cutlass"
TOP_K = 512


def top_k_varlen(scores, lengths, indices, *hint):
    """top_k_varlen, which gets a guess if there is one."""
    flashinfer.top_k_varlen(scores, lengths, TOP_K, *hint, out_indices=indices, backend=BACKEND)


def top_k_varlen_gvr_setup(scores, lengths):
    """Guess as FlashInfer's benchmark does: the column of the largest entry, then columns from 1 on."""
    hint = torch.arange(TOP_K, dtype=torch.int32, device=scores.device).repeat(len(scores), 1)
    column = torch.arange(scores.shape[1], device=scores.device)
    hint[:, 0] = scores.where(column < lengths[:, None], float("-inf")).argmax(dim=1)
    return {"hint": hint}


def top_k_varlen_gvr(scores, lengths, indices, *, hint):
    """top_k_varlen of the gvr backend, which begins with a guess."""
    top_k_varlen(scores, lengths, indices, hint)
