"""Samplers to be judged: a perfect one, and those that are wrong in a way that somebody has shipped before."""

import torch

from flashinfer_bench.bench.evaluators.evaluator import JudgedCall
from flashinfer_bench.bench.evaluators.sampling.rules import SamplingProblem
from tests.kit.make import make_definition

CALLS = 100


def make_problem(generator, *, rows=64, vocabulary=1000, filters="", sharpest=3.0):
    """Make rows of mixed sharpness; `filters` has k, p and m for top-k, top-p and min-p."""
    logits = torch.randn(rows, vocabulary, generator=generator)
    sharpness = sharpest * (1 - 0.7 * torch.rand(rows, 1, generator=generator))
    half = torch.full((rows,), 0.5, dtype=torch.float64)
    known = {"k": ("top_k", half.long() + vocabulary // 4), "p": ("top_p", half + 0.3), "m": ("min_p", half / 10)}
    return SamplingProblem((logits * sharpness).softmax(dim=-1), dict(known[letter] for letter in filters))


def expected_shares(problem):
    """Filter and rescale, the slow and plain way."""
    shares = torch.zeros(problem.probabilities.shape, dtype=torch.float64)
    for row, probabilities in enumerate(problem.probabilities.double()):
        ordered, ids = probabilities.sort(descending=True)
        filters = {name: value[row] for name, value in problem.filters.items()}
        ordered[ordered < filters.get("min_p", 0) * ordered[0]] = 0
        ordered[int(filters.get("top_k", len(ordered))) :] = 0
        ordered /= ordered.sum()
        ordered[ordered.cumsum(0) - ordered >= filters.get("top_p", 2)] = 0
        shares[row, ids] = ordered / ordered.sum()
    return shares


def draw(shares, generator, calls=CALLS):
    """Draw perfectly: [calls, rows]."""
    return torch.multinomial(shares, calls, replacement=True, generator=generator).T.contiguous()


def as_calls(problem, tokens):
    """Return the definition that has a problem's filters, and calls that gave these tokens [calls, rows]."""
    filters = {name: f"{'int64' if name == 'top_k' else 'float64'}[n]" for name in problem.filters}
    definition = make_definition(
        "joint" if problem.joint else "rows",
        op_type="sampling",
        axes={"n": None, "v": problem.probabilities.shape[1]},
        inputs={"probs": "float32[n, v]", **filters},
        outputs={"samples": "int64[n]"},
    )
    inputs = [problem.probabilities, *problem.filters.values()]
    return definition, [JudgedCall(inputs, [drawn], [drawn]) for drawn in tokens]


def draw_with_a_tenth_moved(shares, generator, is_target):
    """Move a tenth of each row's mass to some tokens, in proportion; less if there is less."""
    source, target = shares * ~is_target, shares * is_target
    left, right = (part.sum(dim=1, keepdim=True) for part in (source, target))
    moved = left.clamp(max=0.1) * (right > 0)
    source, target = source * (1 - moved / left.clamp(min=1e-9)), target * (1 + moved / right.clamp(min=1e-9))
    return draw(source.clamp(min=0) + target, generator)


def same_random_number_in_every_row(shares, generator):
    numbers = torch.rand(CALLS, dtype=torch.float64, generator=generator).expand(len(shares), -1).contiguous()
    return torch.searchsorted(shares.cumsum(dim=1), numbers).clamp(max=shares.shape[1] - 1).T.contiguous()


def tail_of(shares):
    ordered, ids = shares.sort(dim=1, descending=True)
    return torch.zeros_like(shares).scatter_(1, ids, ((ordered.cumsum(dim=1) - ordered) >= 0.5).double()) > 0


def even_ids(shares):
    return (torch.arange(shares.shape[1]) % 2 == 0).expand(len(shares), -1)


WRONG = {
    "argmax": lambda shares, _: shares.argmax(dim=1).expand(CALLS, -1).contiguous(),
    "off by one": lambda shares, chance: (draw(shares, chance) + 1) % shares.shape[1],
    "same twice": lambda shares, chance: draw(shares, chance, CALLS // 2).repeat_interleave(2, dim=0),
    "same token in every row": lambda shares, chance: draw(shares, chance)[:, :1].expand(-1, len(shares)),
    "same random number in every row": same_random_number_in_every_row,
    "a tenth moved to the tail": lambda shares, chance: draw_with_a_tenth_moved(shares, chance, tail_of(shares)),
    "a tenth moved to even ids": lambda shares, chance: draw_with_a_tenth_moved(shares, chance, even_ids(shares)),
}
"""Takes the right shares [rows, vocabulary] and a generator; gives draws [calls, rows]."""
