"""Honest solutions of definitions that choose, round or draw inside a float output, for `false_rejections.py`.

The solutions of a definition differ as right kernels do: another algorithm, another order of equal values, or, of op
type lowbit, where some elements may fail, a choice by numbers of fewer bits.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from benchmarks.kit import sets
from flashinfer_bench.data import TraceSet


class Choice(NamedTuple):
    """A definition with its honest solutions; each source is the body of `run` over the names of the inputs."""

    inputs: dict[str, str]
    """Name → dtype and axes."""
    outputs: dict[str, str]
    axes: dict[str, int]
    reference: str
    solutions: tuple[str, ...]
    op_type: str = "choice"


SCORES: Final = {"softmax": "torch.softmax({} / 8, -1)", "sigmoid": "torch.sigmoid({} / 8)"}
EXACT: Final = "x @ gate.T"
COARSE: Final = "x.bfloat16().float() @ gate.bfloat16().float().T"
ROUTED: Final = """
    x, gate, experts = x.float(), gate.float(), experts.float()
    scores = {scores}
    weights, chosen = scores.topk(4, dim=1)
    combine = torch.zeros_like(scores).scatter(1, chosen, weights / weights.sum(-1, keepdim=True))
    return torch.einsum("te,th,ehd->td", combine, x, experts).to(torch.{dtype})
"""
ROUTED_IN_TURN: Final = """
    x, gate, experts = x.float(), gate.float(), experts.float()
    scores = {choosing}
    {choose}
    weights = {scores}.gather(1, chosen)
    y = torch.zeros(len(x), experts.shape[2], device=x.device)
    for slot in range(4):
        weight = (weights[:, slot] / weights.sum(-1))[:, None]
        y += weight * torch.bmm(x[:, None], experts[chosen[:, slot]])[:, 0]
    return y.to(torch.{dtype})
"""
WAYS: Final = (
    "chosen = scores.shape[1] - 1 - scores.flip(1).argsort(dim=1, descending=True, stable=True)[:, :4]",
    "chosen = scores.argsort(dim=1, descending=True, stable=True)[:, :4]",
    """left, picked = scores.clone(), []
    for _ in range(4):
        picked.append(left.max(dim=1).indices)
        left.scatter_(1, picked[-1][:, None], -torch.inf)
    chosen = torch.stack(picked, 1)""",
)
"""Which of equal values are taken: the last ones, the first ones, any."""

SORTED: Final = "    return x.sort(-1).values\n"
THRESHOLD: Final = "    return torch.where(x >= x.kthvalue(241, dim=-1, keepdim=True).values, x, 0.0)\n"
WINSOR: Final = """
    s = x{wide}.sort(-1).values
    return torch.minimum(torch.maximum(x, s[:, 25:26]), s[:, -26:-25]).to(x.dtype)
"""
TOP_SUM: Final = """
    p = x.float() * torch.softmax(x.float(), -1)
    return {top}.sum(-1).to(x.dtype)
"""
NUCLEUS: Final = """
    p = torch.softmax(x.float(), -1)
    {rank}
    kept = torch.where(ranked.cumsum(-1) - ranked < 0.9, ranked, 0.0)
    kept = torch.zeros_like(p).scatter(-1, at, kept)
    return kept / kept.sum(-1, keepdim=True)
"""
RANKS: Final = "    return (x.argsort(-1).argsort(-1).float() / 256).to(x.dtype)\n"
RANKS_BY_SCATTER: Final = """
    places = torch.arange(256.0, device=x.device).expand(x.shape)
    return (torch.zeros(x.shape, device=x.device).scatter(-1, x.sort(-1).indices, places) / 256).to(x.dtype)
"""
ROUNDED: Final = """
    wide = x.float()
    scale = wide.abs().amax(-1, keepdim=True).clamp(min=1e-12) / 127
    return ({rounded} * scale).to(x.dtype)
"""
DROPPED: Final = """
    generator = torch.Generator(device=x.device).manual_seed(7)
    kept = torch.rand(x.shape, generator=generator, device=x.device) >= 0.1
    return {dropped}
"""
OF_ROWS: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "sorted": (
        SORTED,
        (
            "    return -((-x).sort(stable=True, dim=-1, descending=True).values)\n",
            "    return x.topk(256, -1, largest=False).values\n",
            "    return x.gather(-1, 255 - x.flip(-1).argsort(-1))\n",
        ),
    ),
    "kth": (
        THRESHOLD,
        (
            "    return torch.where(x >= x.topk(16, -1).values[:, -1:], x, 0.0)\n",
            "    return torch.where(x < x.sort(-1).values[:, -16:-15], torch.zeros_like(x), x)\n",
        ),
    ),
    "median": (
        "    return x - x.median(-1, keepdim=True).values\n",
        ("    return x - x.sort(-1).values[:, 127:128]\n",),
    ),
    "winsor": (WINSOR.format(wide=""), (WINSOR.format(wide=".float()"),)),
    "top_sum": (TOP_SUM.format(top="p.topk(8, -1).values"), (TOP_SUM.format(top="p.sort(-1).values[:, -8:]"),)),
    "ranks": (RANKS, (RANKS_BY_SCATTER,)),
    "nucleus": (
        NUCLEUS.format(rank="ranked, at = p.sort(-1, descending=True)"),
        (
            NUCLEUS.format(
                rank="ranked, at = p.flip(-1).sort(dim=-1, descending=True, stable=True)\n    at = 255 - at",
            ),
        ),
    ),
    "dropped": (
        DROPPED.format(dropped="torch.where(kept, x / 0.9, 0.0)"),
        (DROPPED.format(dropped="(x.float() * kept / 0.9).to(x.dtype)"),),
    ),
    "rounded": (
        ROUNDED.format(rounded="(wide / scale).round()"),
        (
            ROUNDED.format(rounded="(wide * scale.reciprocal() + 0.5).floor()"),
            ROUNDED.format(rounded="((wide / scale).abs() + 0.5).trunc().copysign(wide)"),
        ),
    ),
}
"""Name → reference and solutions over x [32, 256]."""

TOKENS: Final = {"x": "float32 t h", "gate": "float32 e h", "table": "float32 e d"}
GROUPED: Final = """
    s = torch.sigmoid(x.float() @ gate.T)
    groups = (s + bias).view(len(x), 8, 4).topk(2, -1).values.sum(-1).topk(4, -1, sorted=False).indices
    kept = torch.zeros(len(x), 8, device=x.device).scatter(1, groups, 1.0).repeat_interleave(4, 1)
    at = (s + bias).masked_fill(kept == 0, -torch.inf).topk(8, -1, sorted=False).indices
    w = s * torch.zeros_like(s).scatter(1, at, 1.0)
    return w / (w.sum(-1, keepdim=True) + 1e-20) * 2.5
"""
GROUPED_LAST_FIRST: Final = """
    s = torch.sigmoid(x.float() @ gate.T)
    two = (s + bias).view(len(x), 8, 4).flip(1).sort(-1, descending=True).values[..., :2].sum(-1)
    groups = 7 - two.argsort(dim=-1, descending=True, stable=True)[:, :4]
    kept = torch.zeros(len(x), 8, device=x.device).scatter(1, groups, 1.0).repeat_interleave(4, 1)
    left = torch.where(kept > 0, s + bias, -torch.inf)
    at = 31 - left.flip(1).argsort(dim=-1, descending=True, stable=True)[:, :8]
    w = torch.zeros_like(s).scatter(1, at, s.gather(1, at))
    return 2.5 * w / (w.sum(-1, keepdim=True) + 1e-20)
"""
FP4_BY_TABLE: Final = """
    table = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], device=x.device)
    blocks = x.view(-1, 16)
    scale = (blocks.abs().amax(-1, keepdim=True) / 6).clamp(min=1e-12)
    at = ((blocks / scale).abs()[:, :, None] - table).abs().argmin(-1)
    values = (torch.nn.functional.one_hot(at, 8) * table).sum(-1)
    return (values * blocks.sign() * scale).view(x.shape)
"""
FP4_BY_ROUNDING: Final = """
    blocks = x.view(-1, 16)
    scale = (blocks.abs().amax(-1, keepdim=True) / 6).clamp(min=1e-12)
    a = (blocks * scale.reciprocal()).abs()
    v = torch.where(a < 2, (a * 2).round() / 2, torch.where(a < 4, a.round(), torch.where(a < 5, 4.0, 6.0)))
    return (v.copysign(blocks) * scale).view(x.shape)
"""
SELECTED: Final = """
    s = {scores}
    at = {at}
    return torch.einsum("tk,tkd->td", torch.softmax(s.gather(1, at), 1), table[at])
"""
NORMALISED: Final = "torch.nn.functional.layer_norm(x, x.shape[-1:]) @ gate.T"
OTHERS: Final[dict[str, Choice]] = {
    "codebook": Choice(
        {"x": "float32 t h", "book": "float32 e h"},
        {"y": "float32 t h"},
        {"t": 64, "h": 32, "e": 64},
        "    return book[torch.cdist(x, book).argmin(1)]\n",
        (
            "    return book[(x.square().sum(1)[:, None] - 2 * x @ book.T + book.square().sum(1)).argmin(1)]\n",
            "    return book[(x @ book.T - book.square().sum(1) / 2).max(1).indices]\n",
            "    return book[63 - (x[:, None] - book).square().sum(-1).flip(1).argmin(1)]\n",
        ),
    ),
    "hard_attention": Choice(
        TOKENS,
        {"y": "float32 t d"},
        {"t": 64, "h": 32, "e": 128, "d": 32},
        "    return torch.nn.functional.one_hot((x @ gate.T).argmax(1), 128).float() @ table\n",
        (
            "    return table[(gate @ x.T).max(0).indices]\n",
            "    return table[127 - (x @ gate.T).flip(1).argmax(1)]\n",
            "    return table[(x.double() @ gate.double().T).sort(1).indices[:, -1]]\n",
        ),
    ),
    "index_as_float": Choice(
        {"x": "float32 t h", "gate": "float32 e h"},
        {"y": "float32 t"},
        {"t": 256, "h": 32, "e": 32},
        "    return torch.sigmoid(x @ gate.T / 8).argmax(1).float()\n",
        (
            "    return 31.0 - torch.sigmoid(x @ gate.T / 8).flip(1).argmax(1)\n",
            "    return torch.sigmoid((x / 8) @ gate.T).topk(2, 1).indices[:, 0].float()\n",
        ),
    ),
    "top_attention": Choice(
        TOKENS,
        {"y": "float32 t d"},
        {"t": 64, "h": 32, "e": 128, "d": 32},
        SELECTED.format(scores="x @ gate.T / 6", at="s.topk(16, 1).indices"),
        (
            "    s = x @ gate.T / 6\n"
            "    return torch.softmax(s.masked_fill(s < s.topk(16, 1).values[:, -1:], -torch.inf), 1) @ table\n",
            SELECTED.format(scores="(x / 6) @ gate.T", at="s.argsort(1)[:, -16:]"),
        ),
    ),
    "normalised_routing": Choice(
        TOKENS,
        {"y": "float32 t d"},
        {"t": 64, "h": 64, "e": 32, "d": 32},
        SELECTED.format(scores=NORMALISED, at="s.topk(4, -1).indices"),
        (
            SELECTED.format(
                scores="(x - x.mean(-1, keepdim=True)) @ gate.T * (x.var(-1, False, keepdim=True) + 1e-5).rsqrt()",
                at="31 - s.flip(1).argsort(dim=1, descending=True, stable=True)[:, :4]",
            ),
        ),
    ),
    "after_relu": Choice(
        TOKENS,
        {"y": "float32 t d"},
        {"t": 64, "h": 64, "e": 64, "d": 32},
        SELECTED.format(scores="torch.relu(x @ gate.T)", at="s.topk(8, -1).indices"),
        (
            SELECTED.format(
                scores="torch.relu(x @ gate.T)",
                at="63 - s.flip(1).argsort(dim=1, descending=True, stable=True)[:, :8]",
            ),
        ),
    ),
    "codes_of_signs": Choice(
        {"x": "float32 t h", "planes": "float32 h b", "table": "float32 c d"},
        {"y": "float32 t d"},
        {"t": 64, "h": 64, "b": 6, "c": 64, "d": 32},
        """
    code = ((x @ planes > 0).long() * 2 ** torch.arange(6, device=x.device)).sum(1)
    return torch.nn.functional.one_hot(code, 64).float() @ table
""",
        ("    bits = (planes.T @ x.T).gt(0).long()\n    return table[sum(bits[at] << at for at in range(6))]\n",),
    ),
    "expert_choice": Choice(
        {"x": "float32 t h", "gate": "float32 e h"},
        {"y": "float32 t h"},
        {"t": 64, "h": 64, "e": 8},
        """
    p = torch.softmax(x @ gate.T, -1)
    top = p.topk(16, dim=0)
    return torch.zeros_like(p).scatter(0, top.indices, top.values) @ gate + x
""",
        (
            """
    p = torch.softmax(x @ gate.T, -1)
    at = 63 - p.flip(0).argsort(dim=0, descending=True, stable=True)[:16]
    return torch.einsum("te,eh->th", torch.zeros_like(p).scatter(0, at, p.gather(0, at)), gate) + x
""",
        ),
    ),
    "grouped": Choice(
        {"x": "bfloat16 t h", "gate": "float32 e h", "bias": "float32 e"},
        {"weights": "float32 t e"},
        {"t": 64, "h": 64, "e": 32},
        GROUPED,
        (GROUPED_LAST_FIRST,),
    ),
    "drawn": Choice(
        TOKENS,
        {"y": "float32 t d"},
        {"t": 64, "h": 32, "e": 32, "d": 32},
        """
    generator = torch.Generator(device=x.device).manual_seed(3)
    p = torch.softmax(x @ gate.T / 6, -1)
    return table[torch.multinomial(p, 1, generator=generator)[:, 0]]
""",
        (
            """
    generator = torch.Generator(device=x.device).manual_seed(3)
    s = (x / 6) @ gate.T
    p = (s - s.logsumexp(-1, keepdim=True)).exp()
    return table[torch.multinomial(p, 1, generator=generator)[:, 0]]
""",
        ),
    ),
    "quantised_fp8": Choice(
        {"x": "bfloat16 r n"},
        {"q": "float8_e4m3fn r n", "scale": "float32 r"},
        {"r": 64, "n": 256},
        """
    scale = x.float().abs().amax(-1).clamp(min=1e-12) / 448
    return (x.float() / scale[:, None]).clamp(-448, 448).to(torch.float8_e4m3fn), scale
""",
        (
            """
    largest = x.abs().amax(-1).float().clamp(min=1e-12)
    scaled = x.float() * (448 / largest)[:, None]
    return scaled.clamp(-448, 448).to(torch.float8_e4m3fn), largest * (1 / 448)
""",
        ),
        "lowbit",
    ),
    "quantised_fp4": Choice(
        {"x": "float32 r n"},
        {"y": "float32 r n"},
        {"r": 64, "n": 256},
        FP4_BY_TABLE,
        (FP4_BY_ROUNDING,),
        "lowbit",
    ),
    "hard_examples": Choice(
        {"x": "float32 t e", "z": "float32 t e"},
        {"loss": "float32"},
        {"t": 256, "e": 32},
        """
    losses = torch.logsumexp(x, -1) - (x * torch.softmax(z, -1)).sum(-1)
    return losses.topk(32).values.mean()
""",
        (
            """
    losses = torch.nn.functional.cross_entropy(x, torch.softmax(z, -1), reduction="none")
    return losses.sort().values[-32:].sum() / 32
""",
        ),
    ),
    "most_of_bytes": Choice(
        {"x": "int8 r n"},
        {"y": "float32 r"},
        {"r": 64, "n": 4096},
        "    return x.float().topk(8, -1).values.sum(-1) / 8\n",
        ("    return x.sort(-1).values[:, -8:].float().mean(-1)\n",),
    ),
}


def make_choices() -> dict[str, Choice]:
    """Return all definitions by name."""
    found = dict(OTHERS)
    for dtype in ("float32", "bfloat16", "float16"):
        rows, axes = f"{dtype} r n", {"r": 32, "n": 256}
        for name, (reference, solutions) in OF_ROWS.items():
            out = {"top_sum": f"{dtype} r", "nucleus": "float32 r n"}.get(name, rows)
            op_type = "lowbit" if name == "rounded" else "choice"
            found[f"{name}_{dtype}"] = Choice({"x": rows}, {"y": out}, axes, reference, solutions, op_type)
        inputs = {"x": f"{dtype} t h", "gate": f"{dtype} e h", "experts": f"{dtype} e h d"}
        axes = {"t": 256, "h": 64, "e": 16, "d": 32}
        for name, form in SCORES.items():
            scores = form.format(EXACT)
            reference = ROUTED.format(scores=scores, dtype=dtype)
            for choosing, kind, op_type in ((EXACT, "", "choice"), (COARSE, "_coarsely", "lowbit")):
                ways = (
                    ROUTED_IN_TURN.format(scores=scores, choosing=form.format(choosing), choose=way, dtype=dtype)
                    for way in WAYS
                )
                one = Choice(inputs, {"y": f"{dtype} t d"}, axes, reference, tuple(ways), op_type)
                found[f"routed_by_{name}_{dtype}{kind}"] = one
    return found


def make_set() -> TraceSet:
    """Return a set in memory with each choice as a definition and one workload of it."""
    parts = []
    for name, choice in make_choices().items():
        head = f"import torch\n\n\ndef run({', '.join(choice.inputs)}):\n"
        tensors, axes = (choice.inputs, choice.outputs), dict[str, int | None](choice.axes)
        made = sets.definition(name, *tensors, axes, head + choice.reference, op_type=choice.op_type)
        bodies = (choice.reference, *choice.solutions)
        solutions = [sets.solution(name, f"{name}_{at}", head + body) for at, body in enumerate(bodies)]
        parts.append((made, solutions, sets.workloads(made)))
    return sets.in_memory(*parts)
