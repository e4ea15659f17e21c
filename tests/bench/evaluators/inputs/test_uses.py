"""What a reference's source says of its integer inputs: what they index, whether they hold padding or packed words."""

import ast

import pytest

from flashinfer_bench.bench.evaluators.inputs.integers.amounts import Extent
from flashinfer_bench.bench.evaluators.inputs.integers.found import Use
from flashinfer_bench.bench.evaluators.inputs.integers.indexing import find_use, find_uses
from flashinfer_bench.bench.evaluators.inputs.integers.words import Words, find_words

pytestmark = pytest.mark.cpu

ROWS, COLUMNS = Extent("t", 0), Extent("t", 1)


def reference(*lines, helper=""):
    source = "\n".join([helper, "def run(t, idx, u, n=None):", *(f"    {line}" for line in lines)])
    assert ast.parse(source)
    return source


def use_of(*lines, helper=""):
    return find_use(reference(*lines, helper=helper), "idx")


@pytest.mark.parametrize(
    ("lines", "extent"),
    [
        (["return t[idx]"], ROWS),
        (["return t[:, idx]"], COLUMNS),
        (["return t[..., None][0, idx.long()]"], None),
        (["return t[None, 3, idx]"], COLUMNS),
        (["rows = t.float()", "i = idx.to(torch.int64).view(-1)", "return rows[i]"], ROWS),
        (["return t.index_select(0, idx)"], ROWS),
        (["return torch.index_select(t, 1, idx.reshape(-1))"], COLUMNS),
        (["return torch.index_select(t, dim=1, index=idx)"], COLUMNS),
        (["return F.embedding(idx, t)"], ROWS),
        (["return torch.nn.functional.embedding(idx, weight=t)"], ROWS),
        (["return t.gather(1, idx[:, None])"], COLUMNS),
        (["return torch.gather(t, -1, idx[:, None].expand(4, 4))"], Extent("t", -1)),
        (["return torch.take_along_dim(t, idx[:, None], dim=1)"], COLUMNS),
        (["out = torch.zeros_like(t)", "out[idx] = u", "return out"], ROWS),
        (["return t.index_add(0, idx, u)"], ROWS),
        (["one = torch.zeros(len(idx), len(t)).scatter_(1, idx[:, None], 1.0)", "return one @ t"], ROWS),
        (["return F.one_hot(idx, t.shape[1]).float() @ t.T"], COLUMNS),
        (["return F.one_hot(idx, 12)"], 12),
        (["rows, width = t.shape", "return F.one_hot(idx, width)"], COLUMNS),
        (["return F.cross_entropy(t.float(), idx)"], COLUMNS),
        (["for i in range(len(idx)):", "    u[i] = t[int(idx[i].item())]", "return u"], ROWS),
        (["return torch.stack([t[i] for i in idx.tolist()])"], ROWS),
        (["for at, i in enumerate(idx.tolist()):", "    u[at] += t[i]", "return u"], ROWS),
        (["return t[torch.where(idx < u.shape[0], idx, 0)]"], ROWS),
    ],
    ids=lambda given: given[0] if isinstance(given, list) else None,
)
def test_what_an_input_indexes_is_found(lines, extent):
    use = use_of(*lines)
    assert use == (Use(is_clear=False) if extent is None else Use(frozenset([extent]), is_clear=True))


def test_helpers_are_followed():
    helper = "def look_up(rows, at):\n    return rows.index_select(0, at)\ndef view(at):\n    return at.long()"
    assert use_of("return look_up(t, view(idx))", helper=helper) == Use(frozenset([ROWS]), is_clear=True)
    assert use_of("return look_up(at=idx, rows=t)", helper=helper) == Use(frozenset([ROWS]), is_clear=True)
    assert not use_of("return look_up(*[t, idx])", helper=helper).is_clear


def test_several_tables_count():
    assert use_of("return t[idx] + u[:, idx].T").extents == {ROWS, Extent("u", 1)}


@pytest.mark.parametrize(
    "lines",
    [
        ["return t[idx + u]"],
        ["return (t * u)[idx]"],
        ["return (t + torch.arange(3))[idx]"],
        ["return t[idx * K]"],
        ["return t[(idx % 4).cumsum(0)]"],
        ["return t[idx % 4] + str(idx % 4)"],
        ["return torch.cat([t, t], axis=1)[idx]"],
        ["return t[2:].view(-1)[idx]"],
        ["assert ((idx + 1) < t.shape[0]).all()", "return t[idx]"],
        ["return t[: int(idx[0])]"],
        ["return t[u, idx]"],
        ["return t[3:][idx]"],
        ["return t.take(idx)"],
        ["for _ in range(idx[0]):", "    t = t[idx]", "return t"],
        ["rows = t", "for _ in range(2):", "    y = rows[idx]", "    rows = u", "return y"],
        ["i = idx.view(-1)", "i.add_(1)", "return t[i]"],
        ["idx += 1", "return t[idx]"],
        ["return t[idx.half().long()]"],
        ["return t[idx.to(torch.int8).long()]"],
        ["return t[idx.view(torch.int32)]"],
        ["return t[idx.clamp(min=3)]"],
        ["assert (idx < 100).all()", "return t[idx]"],
        ["assert idx.max() < 100", "return t[idx]"],
        ["while idx[0] > 3:", "    pass", "return t[idx]"],
        ["return F.one_hot(idx)"],
        ["return custom.gather(t, 0, idx)"],
        ["def inner():", "    return idx + 1", "return t[idx]"],
        ["return (lambda: t[idx])()"],
        ["return t[{'a': idx}['a']]"],
        ["t.transpose_(0, 1)", "return t[idx]"],
        ["t.data = u", "return t[idx]"],
    ],
    ids=lambda given: given[-1] if len(given) == 1 else "; ".join(given),
)
def test_what_is_not_known_is_not_clear(lines):
    assert not use_of(*lines, helper="K = 4\nif torch.cuda.is_available():\n    K = 2").is_clear


def test_a_product_with_where_another_input_is_padding_is_not_clear():
    assert not find_use(reference("return t[u * (idx >= 0)]"), "u").is_clear


def test_what_cannot_be_read_says_nothing():
    assert find_use("def run(", "idx") == Use()
    assert find_use("def other(idx):\n    return idx", "idx") == Use()
    assert find_use(reference("return eval('t[idx]')"), "idx") == Use()
    assert find_use(reference("return t"), "missing") == Use()


def test_a_bound_that_is_an_inputs_size_is_no_doubt():
    use = use_of("assert (idx < t.shape[0]).all()", "return t[idx]")
    assert use.is_clear
    assert use.extents == {ROWS}


@pytest.mark.parametrize("test", ["idx >= 0", "0 <= idx", "idx > -1", "idx != -1", "idx.ge(0)", "torch.ne(idx, -1)"])
def test_a_test_for_padding_is_found(test):
    assert use_of(f"valid = {test}", "return t[idx.clamp(min=0)] * valid[:, None]").is_tested


@pytest.mark.parametrize(
    ("lines", "is_tested"),
    [
        (["i = int(idx[0])", "if i < 0:", "    return u", "return t[i]"], True),
        (["return t.index_select(0, idx[idx >= 0])"], True),
        (["return t.index_select(0, torch.where(idx >= 0, idx, torch.zeros_like(idx)))"], True),
        (["return F.embedding(idx.masked_fill(idx < 0, 0), t)"], True),
        (["y = t.index_select(0, idx)", "y[idx < 0] = 0", "return y"], False),
        (["return t[idx.clamp(min=0)]"], False),
        (["return t[idx] * (idx > 0)[:, None]"], False),
        (["assert (idx >= 0).all()", "return t[idx]"], False),
        (["assert idx.ge(0).all()", "return t[idx] * (idx >= 0)[:, None]"], False),
        (["if (idx < 0).any():", "    raise ValueError", "return t[idx]"], False),
        (["bad = torch.any(idx < 0)", "if bad:", "    raise ValueError", "return t[idx]"], False),
        (["return t[idx * 2] * (idx >= 0)[:, None]"], False),
        (["return t[idx.clamp(min=0)] * ((idx - 3) >= 0)[:, None]"], False),
        (["return t[idx.cumsum(0)[idx >= 0]]"], False),
        (["i = int(idx[0])", "if i >= 0:", "    u = t[i]", "return u"], True),
        (["i = int(idx[0])", "if i >= 0:", "    pass", "return t.index_select(0, i)"], False),
        (["return t.index_select(0, torch.where(idx >= 0, idx.flip(0), 0))"], False),
        (["return t.index_select(0, torch.where(idx.flip(0) >= 0, idx.flip(0), 0))"], True),
        (["return t.index_select(0, torch.where((idx >= 0).flip(0), idx.flip(0), 0))"], True),
        (["return t.index_select(0, torch.where((idx >= 0).flip(0), idx, 0))"], False),
        (["return t.index_select(0, idx.T.masked_fill(idx < 0, 0))"], False),
        (["p = idx[1:]", "return t.index_select(0, p[p >= 0])"], True),
        (["return t.index_select(0, idx[1:][idx[:-1] >= 0])"], False),
        (["return t.index_select(0, idx.gather(0, u) * (idx >= 0))"], False),
        (["for i in range(4):", "    u = t.index_select(0, idx[i][idx[i] >= 0])", "return u"], True),
        (["return t.index_select(0, idx.view(-1)[(idx >= 0).view(-1)])"], True),
    ],
    ids=lambda given: "; ".join(given) if isinstance(given, list) else None,
)
def test_padding_comes_only_where_the_reference_bears_it(lines, is_tested):
    assert use_of(*lines).is_tested is is_tested


def test_all_inputs_of_a_reference_are_told():
    uses = find_uses("def run(a, b, t):\n    return t[a] + t[:, b].T\n")
    assert {name: use.extents for name, use in uses.items()} == {"a": {ROWS}, "b": {COLUMNS}, "t": set()}


@pytest.mark.parametrize(
    "lines",
    [
        ["w = (idx[:, None, :] >> u[None, :, None]) & 15", "return t @ w.reshape(-1, idx.shape[1]).float()"],
        ["return t @ ((idx & 0xF0) >> 4).float()"],
        ["w = torch.bitwise_right_shift(idx, 4)", "w = torch.bitwise_and(w, 15)", "return t @ w.float()"],
        ["w = idx >> 4", "w &= 15", "return t @ w.float()"],
        ["w = torch.empty(64, idx.shape[1])", "for i in range(8):", "    w[i::8] = (idx >> 4 * i) & 15", "return w"],
    ],
    ids=lambda given: given[0],
)
def test_shifts_and_masks_tell_packed_words(lines):
    assert find_words(reference(*lines), "idx") == Words(is_masked=True, is_opened=True)


def test_helpers_may_take_words_apart():
    helper = "def unpack(words, bits):\n    return (words >> bits) & 15"
    assert find_words(reference("return t @ unpack(idx, 4).float()", helper=helper), "idx").is_masked


@pytest.mark.parametrize("opened", ["(idx // 16) % 16", "idx.view(torch.uint8)", "idx >> 4", "idx & 15"])
def test_other_ways_to_open_words_need_a_name_that_says_so(opened):
    assert find_words(reference(f"return t @ ({opened}).float()"), "idx") == Words(is_masked=False, is_opened=True)


@pytest.mark.parametrize(
    "lines",
    [
        ["return t[(idx >> 4) & 15]"],
        ["part = (idx >> 4) & 15", "return t.index_select(0, part)"],
        ["part = (idx >> 16) & 255", "if part.max() > 3:", "    raise ValueError", "return t * part"],
        ["assert ((idx >> 4) & 15 < 8).all()", "return t"],
        ["return torch.zeros(int((idx[0] >> 4) & 15))"],
        ["return ((idx >> 4) & 15).view(torch.float32)"],
        ["return t.repeat((idx[0] >> 4) & 15)"],
        ["return t * 2.0 ** (((idx >> 8) & 255) - 127)"],
        ["return t * torch.exp2(((idx >> 8) & 255).float())"],
        ["return t @ idx.float()"],
    ],
    ids=lambda given: given[0],
)
def test_words_whose_parts_choose_or_are_floats_are_none(lines):
    assert find_words(reference(*lines), "idx") == Words()


def test_words_of_a_source_that_cannot_be_read_are_none():
    assert find_words("def run(", "idx") == Words()
