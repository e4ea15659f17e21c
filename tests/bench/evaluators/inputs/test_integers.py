"""Random integers: valid for the reference's use of them, else by their names."""

import pytest
import torch

from flashinfer_bench.bench.evaluators.inputs.contents import find_varied
from tests.bench.evaluators.judging import CPU, define, make
from tests.kit.make import make_workload

pytestmark = pytest.mark.cpu

SIZES = {"t": 2048, "s": 6, "v": 30, "w": 64, "p": 16, "d": 3}
UNPACKED = "((q[:, None, :] >> torch.arange(0, 32, 4)[None, :, None]) & 15).reshape(-1, q.shape[1])"


def describe(body, constraints=(), before="", **inputs):
    """Return a definition of lines between semicolons, with `~` as an indent, or of an expression."""
    lines = body.replace("; ", "\n").replace("~", "    ") if "; " in body else f"return {body}"
    return define(inputs, lines, before=before, constraints=list(constraints))


def draw(definition, **sizes):
    return make(definition, runs=True, **{**SIZES, **sizes})


def ends(values):
    return int(values.min()), int(values.max())


GRAD = "with torch.enable_grad():; ~w = table.clone().requires_grad_()"
TABLE = {"table": "float32[v, d]", "tok": "int64[t]"}
RANGES = [
    # indices of a table, in any form
    ("table[tok]", 0, 29),
    ("table.index_select(0, tok.view(-1))", 0, 29),
    ("table.gather(1, tok[:30, None])", 0, 2),
    ("out = torch.zeros_like(table); out[tok] = 1.0; return out", 0, 29),
    ("torch.zeros(len(tok), 12).scatter_(1, tok[:, None], 1.0)", 0, 11),
    ("F.one_hot(tok, table.shape[1])", 0, 2),
    ("F.cross_entropy(torch.ones(len(tok), 12), tok)", 0, 11),
    ("assert (tok < 20).all(); return table[tok]", 0, 19),
    # values computed before
    ("table[tok // 4]", 0, 119),
    ("table[tok - 9]", 9, 38),
    ("table[(tok[:, None] * 2 + torch.arange(2)).view(-1)]", 0, 14),
    ("torch.cat([torch.zeros(1, 3), table])[tok + 1]", 0, 29),
    ("table[tok // PAGE + SHIFT]", 0, 115),
    ("other = str(tok); return table[tok * 10]", 0, 2),
    ("sum(torch.where(tok >= k, 1, 0)[:, None] * table[tok - k] for k in range(30))", 0, 29),
    # values that the reference wraps or clamps itself
    ("table[tok % table.shape[0]]", 0, 59),
    ("table[(tok - 5).clamp(0, 29)]", 0, 59),
    ("torch.stack([table, table])[tok % 2]", 0, 7),
    # no indices, or runs see too little: small
    ("torch.stack([table[int(one)] for one in tok])", 0, 7),
    ("table[table.argmax(0)[tok % 3]]", 0, 7),
    ("assert table.data_ptr(); return table[tok % 40]", 0, 7),
    # references of all kinds are followed or left alone
    (f"{GRAD}; ~w[tok + 1].sum().backward(); return w.grad", 0, 28),
    ("tok += 1; return table[tok]", 0, 28),
    ("import sys; (tok > 20).any() and sys.exit(); return table[tok]", 0, 20),
    ("names = {'tok': tok}; exec('at = tok + 1', names); return table[names['at']]", 0, 28),
    ("if torch.isnan(table).any() or not torch.isfinite(table).all():; ~raise ValueError; return table[tok]", 0, 7),
    ("if torch.isnan(table).any():; ~raise ValueError; return table[tok + 1]", 0, 28),
    ("keep = table[:, 0] > -9; return table[keep][tok + 1]", 0, 28),
]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(("body", "least", "most"), RANGES)
def test_integers_are_valid_and_reach_the_whole_indexed_axis(body, least, most):
    definition = describe(body, before="PAGE = 4\nSHIFT = PAGE - 3", **TABLE)
    assert ends(draw(definition)["tok"]) == (least, most)


OTHERS = [
    ("sizes", "x[sizes.cumsum(0) - sizes]", {"x": "float32[3333, 2]", "sizes": "int64[p]"}, 0, 222),
    ("tok", "table.view(-1)[tok * 3 + more]", {"more": "int64[t]"}, 0, 27),
    ("positions", "table[positions + 2]", {"positions": "int64[t]"}, 0, 27),
    ("seq_lens", "x[torch.arange(x.shape[0]), seq_lens - 1]", {"x": "float32[t, 5]", "seq_lens": "int64[t]"}, 1, 5),
    ("seq_lens", "x[0, : seq_lens[0]]", {"x": "float32[t, 5]", "seq_lens": "int64[t]"}, 1, 16),
    ("indptr", "[table[a:b] for a, b in zip(indptr.tolist(), indptr.tolist()[1:])]", {"indptr": "int64[p]"}, 0, 60),
    ("pos", "cache[pages[0, pos // cache.shape[1]], pos % cache.shape[1]]",
     {"cache": "float32[v, 4, d]", "pages": "int32[t, 5]", "pos": "int64[t]"}, 0, 19),
    ("pages", "cache.view(-1, 3)[pages[:, :, None] * 4 + torch.arange(4)]",
     {"cache": "float32[v, 4, d]", "pages": "int32[t, 5]"}, 0, 29),
    ("at", "table[(at * 40).long()]", {"table": "float32[100000, d]", "at": "int16[t]"}, 0, 819),
    ("labels", "F.nll_loss(x.log_softmax(-1), labels)", {"x": "float32[t, w]", "labels": "int64[t]"}, 0, 63),
]  # fmt: skip


@pytest.mark.parametrize(("name", "body", "inputs", "least", "most"), OTHERS)
def test_other_inputs_and_names_count_as_well(name, body, inputs, least, most):
    made = draw(describe(body, **{**TABLE, **inputs}), num_classes=9)[name]
    low, high = ends(made)
    assert least <= low <= high <= most
    assert made.numel() < 99 or (low, high) == (least, most) or most > 600


@pytest.mark.parametrize(
    ("table", "size"),
    [("F.pad(x, (0, 0, 1, 1))", 32), ("F.pad(x, (0, 0, 0, 2))", 32), ("F.avg_pool2d(x[None], 2)[0]", 15)],
)
def test_indices_of_tables_that_are_padded_or_made_smaller_are_valid(table, size):
    definition = describe(f"{table}[tok]", x="float32[v, w]", tok="int64[t]")
    assert ends(draw(definition)["tok"])[1] < size


@pytest.mark.gpu
def test_a_gpu_gives_the_same_ranges():
    body = "table[tok + 1].to(tok.device) * (tok >= 0)[:, None] + torch.ones(3, device=tok.device)"
    cuda, cpu = (
        ends(make(describe(body, **TABLE), device=torch.device(one), **SIZES)["tok"]) for one in ("cuda", "cpu")
    )
    assert cuda == cpu == (-1, 28)  # rows of negative integers are masked


@pytest.mark.parametrize(
    ("constraint", "least", "most"),
    [
        ("tok.max() < 20", 0, 19),
        ("0 <= tok <= 20", 0, 20),
        ("tok.sum() >= 0", 0, 29),
        ("tok[0] < v", 0, 29),
        ("tok.max() < strange", 0, 29),
    ],
)
def test_constraints_bound_the_indices_of_a_reference(constraint, least, most):
    assert ends(draw(describe("table[tok]", [constraint], **TABLE))["tok"]) == (least, most)


EACH = "total = 0; for i in range(min(99, labels.shape[0])):; ~y = int(labels[i]);"
SKIP = "~if y == -100:; ~~continue;"
PADDED = [
    # -1
    ("tok", "table[tok.clamp(min=0)] * (tok >= 0)[:, None]", -1),
    ("tok", "table.index_select(0, torch.where((tok >= 0).flip(0), tok.flip(0), 0))", -1),
    ("tok", "i = int(tok[0]); if i < 0:; ~return table; return table[i]", -1),
    ("tok", "table[tok.clamp(min=0)]", None),
    ("tok", "y = table.index_select(0, tok); y[tok < 0] = 0; return y", None),
    ("tok", "if (tok < 0).any():; ~raise ValueError; return table[tok]", None),
    ("tok", "table[tok * 2] * ((tok - 3) >= 0)[:, None]", None),
    # another negative number
    ("labels", "x.log_softmax(-1).gather(1, labels.masked_fill(labels == -100, 0)[:, None])", -100),
    ("labels", "F.cross_entropy(x, labels, ignore_index=-100)", -100),
    ("labels", f"{EACH} {SKIP} ~total = total + x[i, y]; return total", -100),
    ("labels", "x.gather(1, labels[:, None])[:, 0] * (labels != -100)", None),
    ("labels", f"{EACH} ~if i > 5000:; ~{SKIP.replace(' ~', ' ~~')} ~total = total + x[i, y]; return total", None),
    ("labels", "x.gather(1, torch.where(labels != -100000, labels, 0).long()[:, None])", None),
]


@pytest.mark.parametrize(("name", "body", "padding"), PADDED)
def test_padding_is_used_only_if_the_reference_tests_for_it_and_accepts_it(name, body, padding):
    dtype = "int16" if "100000" in body else "int64"
    inputs = TABLE if name == "tok" else {"x": "float32[t, w]", "labels": f"{dtype}[t]"}
    made = draw(describe(body, **inputs))[name]
    share = (made == padding).double().mean() if padding is not None else 0
    assert share == pytest.approx({None: 0, -1: 1 / 8, -100: 1 / 4}[padding], abs=0.04)
    assert int(made[made != padding].min() if padding else made.min()) == 0


@pytest.mark.parametrize("name", ["indices", "slot_ids", "page_indices"])
def test_a_row_has_some_padding_and_never_all(name):
    body, inputs = f"(table[{name}.clamp(min=0)] * ({name} >= 0)[..., None])", {name: "int64[t, 2]"}
    definition = describe(body, table="float32[v, d]", **inputs)
    many, few = draw(definition, v=4096)[name], draw(definition, t=4, v=4096)[name]
    assert not (many == -1).all(dim=1).any()
    assert 1 <= int((few == -1).sum()) <= 4
    bounded = describe(body, [f"{name}.min() >= 0"], table="float32[v, d]", **inputs)
    assert draw(bounded)[name].min() == 0


WORDS = [
    ("int32", "(qweight // 16) % 16", True),
    ("int32", "qweight.view(torch.uint8)", True),
    ("int32", "qweight.float()", False),
    ("int32", f"x @ {UNPACKED}.float()", True),
    ("uint32", f"x @ {UNPACKED.replace('q[:', 'q.long()[:')}.float()", True),
    ("int64", "w = q >> 4; w &= 15; return w.float()", True),
    ("int32", "w = torch.empty(64, q.shape[1]); for i in range(8):; ~w[i::8] = (q >> 4 * i) & 15; return x @ w", True),
    ("int32", "x[0, (q >> 4) & 15]", False),
    ("int32", "if ((q >> 16) & 255).max() > 3:; ~raise ValueError; return x", False),
    ("int32", "(q & -16 | (q >> 8 & 1)).view(torch.float32)", False),
    ("int32", "torch.exp2(((q >> 8) & 255).float())", False),
    ("int32", "(q // 16) % 16", False),
]


@pytest.mark.parametrize(("dtype", "body", "has_any_bits"), WORDS)
def test_words_that_are_shifted_and_masked_have_any_bits(dtype, body, has_any_bits):
    name = "qweight" if "qweight" in body else "q"  # a name reveals words that are opened differently
    definition = describe(body, x="float32[2, w]", **{name: f"{dtype}[8, 512]"})
    held = draw(definition)[name].view(torch.uint8).float()
    assert (120 < float(held.mean()) < 135 and len(held.unique()) == 256) is has_any_bits
    bounded = describe(body, [f"{name}.max() < 4"], x="float32[2, w]", **{name: f"{dtype}[8, 512]"})
    assert "int32" not in dtype or int(draw(bounded)[name].long().max()) < 4
    modes = []
    for columns in (256, 512):
        definition = describe(body, x="float32[2, w]", **{name: f"{dtype}[8, {columns}]"})
        modes.append(find_varied(definition, make_workload(axes={"w": 64}, inputs={}), CPU)[1].mode)
    # Few other integers may be amounts of work.
    assert modes == ["redrawn" if has_any_bits else "fixed", "redrawn"]


def test_integers_that_are_made_anew_fit_the_numbers_of_the_workload_and_stay_beside_stored_integers():
    axes, file = {"t": 8192, "v": 30, "d": 3}, {"type": "safetensors", "path": "x.safetensors", "tensor_key": "x"}
    for first, given, mode in (("int64", 0, "redrawn"), ("int64", 5, "redrawn"), ("int64[d]", file, "fixed")):
        definition = describe(
            "table[tok - first.max()]" if "[" in first else "table[tok - first]", first=first, **TABLE
        )
        varied = find_varied(definition, make_workload(axes=axes, inputs={"first": given}), CPU)[-1]
        assert (varied.name, varied.mode) == ("tok", mode)
        assert mode == "fixed" or ends(varied.remake(1)) == (given, given + 29)
