"""The reference of the selection from rows of several lengths."""

from flashinfer_bench.routines.code.sampling_torch import choose


def top_k_varlen(scores, lengths):
    """Give the columns of the k largest within the lengths."""
    return choose(scores, lengths).int()
