"""References of the sampling family. Samplers draw from torch's generator and are judged by their draws."""

import torch

FILTER_APPLY_ORDER = "top_k_first"
TOP_K = 50


def keep_top_k(weights, top_k, other=0.0):
    """Put another number in place of all but the k largest of a row; what ties with the last of them stays."""
    if not 0 < top_k < weights.shape[-1]:
        return weights.clone()
    least = weights.topk(top_k, dim=-1).values[:, -1:]
    return torch.where(weights >= least, weights, other)


def keep_top_p(weights, top_p):
    """Set all but the largest that together reach p of the row's sum to zero; the one that crosses p stays."""
    ordered, index = weights.sort(dim=-1, descending=True)
    mass = ordered.double().cumsum(dim=-1)
    kept = (mass - ordered < top_p * weights.double().sum(dim=-1, keepdim=True)) | (mass <= ordered)
    return torch.where(torch.zeros_like(kept).scatter(-1, index, kept), weights, 0.0)


def rescale(weights):
    """Divide each row by its sum."""
    return weights / weights.sum(dim=-1, keepdim=True)


def draw(weights):
    """Draw one token of each row."""
    # As an exponential race: multinomial takes no more than 2^24 categories and rows that sum to about 1.
    race = torch.empty_like(weights, dtype=torch.float64).exponential_()
    return (weights.double() / race).argmax(dim=-1).to(torch.int32)


def softmax(logits, temperature):
    """Softmax of logits divided by the temperature, in float32."""
    return (logits.float() / temperature).softmax(dim=-1)


def sampling_from_probs(probs):
    """Draw from probabilities."""
    return draw(probs)


def sampling_from_logits(logits):
    """Draw from the softmax of logits."""
    return draw(logits.float().softmax(dim=-1))


def top_k_sampling_from_probs(probs, top_k):
    """Draw from the k largest."""
    return draw(keep_top_k(probs, top_k))


def top_p_sampling_from_probs(probs, top_p):
    """Draw from the nucleus."""
    return draw(keep_top_p(probs, top_p))


def min_p_sampling_from_probs(probs, min_p):
    """Draw from what has at least min_p of the largest probability."""
    return draw(torch.where(probs >= min_p * probs.amax(dim=-1, keepdim=True), probs, 0.0))


def top_k_top_p_sampling_from_probs(probs, top_k, top_p):
    """Draw from the nucleus of the k largest, or from what both filters leave of the row as it was."""
    if FILTER_APPLY_ORDER == "joint":
        return draw(torch.where(keep_top_p(probs, top_p) > 0, keep_top_k(probs, top_k), 0.0))
    return draw(keep_top_p(keep_top_k(probs, top_k), top_p))


def top_k_top_p_sampling_from_logits(logits, top_k, top_p):
    """The same from the softmax of logits."""
    return top_k_top_p_sampling_from_probs(logits.float().softmax(dim=-1), top_k, top_p)


def top_k_renorm_probs(probs, top_k):
    """Rescale the k largest."""
    return rescale(keep_top_k(probs.float(), top_k)).to(probs.dtype)


def top_p_renorm_probs(probs, top_p):
    """Rescale the nucleus."""
    return rescale(keep_top_p(probs, top_p))


def top_k_mask_logits(logits, top_k):
    """Put minus infinity in place of all but the k largest."""
    return keep_top_k(logits, top_k, float("-inf"))


def chain_speculative_sampling(draft_probs, draft_token_ids, target_probs):
    """Accept drafted tokens with min(1, p / q) until one is rejected, then draw from what the target has more."""
    rows, drafted = draft_token_ids.shape
    ids, row = draft_token_ids.long()[..., None], torch.arange(rows, device=draft_token_ids.device)
    ratio = (target_probs[:, :drafted].gather(-1, ids) / draft_probs.gather(-1, ids))[..., 0]
    accepted = torch.rand_like(ratio) < ratio
    emitted = accepted.int().cumprod(dim=1).sum(dim=1)
    left = (target_probs - torch.nn.functional.pad(draft_probs, (0, 0, 0, 1))).clamp(min=0)
    tokens = torch.nn.functional.pad(draft_token_ids, (0, 1)).int()
    tokens = tokens.where(torch.arange(drafted + 1, device=row.device) < emitted[:, None], -1)
    tokens[row, emitted] = draw(left[row, emitted])
    return tokens, accepted.sum(dim=1).int(), emitted.int()


def top_k(scores):
    """The k largest of a row and where they are."""
    found = scores.topk(TOP_K, dim=-1)
    return found.values, found.indices


def choose(scores, lengths):
    """Give the columns of the k largest within the lengths; -1 where a row has fewer."""
    kept = min(TOP_K, scores.shape[1])
    column = torch.arange(scores.shape[1], device=scores.device)
    chosen = scores.float().where(column < lengths[:, None], float("-inf")).topk(kept, dim=-1).indices
    chosen = chosen.where(column[:kept] < lengths[:, None], -1)
    return torch.nn.functional.pad(chosen, (0, TOP_K - kept), value=-1)


def top_k_page_table_transform(scores, src_page_table, lengths, row_to_batch):
    """Look the k largest up in the page table of the row's sequence."""
    chosen = choose(scores, lengths)
    return src_page_table[row_to_batch].gather(1, chosen.clamp(min=0)).where(chosen >= 0, -1)


def top_k_ragged_transform(scores, offsets, lengths):
    """Add the row's offset to the k largest."""
    chosen = choose(scores, lengths)
    return (chosen + offsets[:, None]).where(chosen >= 0, -1).int()
