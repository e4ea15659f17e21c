"""What a reference looks for: values that are no numbers, zeros, gates of a state."""

import pytest

from flashinfer_bench.bench.evaluators.inputs.looks import look_at

pytestmark = pytest.mark.cpu


@pytest.mark.parametrize(
    ("line", "kinds", "guarded"),
    [
        ("torch.isnan(x).any()", {"nan"}, {"x"}),
        ("x.isfinite().all()", {"nan", "inf", "-inf"}, {"x"}),
        ("torch.isinf(x[:, 0].float()) | y", {"inf", "-inf"}, {"x"}),
        ("torch.nan_to_num(-x) * w", {"nan"}, {"x"}),
        ("torch.isnan(x @ w)", {"nan"}, set()),
        ("x  # isnan", set(), set()),
    ],
)
def test_names_tell_which_values_that_are_not_finite_are_looked_for_and_where(line, kinds, guarded):
    looks = look_at(f"def run(x, y, w):\n    'No isnan here.'\n    return {line}\n")
    assert set(map(str, looks.not_finite)) == kinds
    assert looks.guarded - {"torch"} == guarded


@pytest.mark.parametrize(
    ("line", "does"),
    [
        ("x.sum() / (x != 0).sum()", True),
        ("torch.where(x[:, 1:] == 0.0, y, x)", True),
        ("x.ne(0) * y", True),
        ("torch.count_nonzero(x)", True),
        ("x if x.shape[0] == 0 else y", False),
        ("x if len(x) == 0 else y", False),
        ("x * (y == 1) + (x > 0)", False),
    ],
)
def test_comparisons_tell_whether_zeros_are_looked_for(line, does):
    assert look_at(f"def run(x, y):\n    return {line}\n").zeros is does


SCAN = """
def run(x, gate, other):
    f, state = torch.sigmoid(gate), 0
    for step in range(len(x)):
        state = state * f[step] + x[step]
    return state
"""


@pytest.mark.parametrize(
    ("source", "gates"),
    [
        (SCAN, {"gate"}),
        ("def run(x, gate):\n    return (x * F.logsigmoid(-gate[:, 1:]).cumsum(1).exp()).sum(1)\n", {"gate"}),
        ("def run(x, gate):\n    return (x * gate.float().sigmoid()).cumsum(1)\n", {"gate"}),
        ("def run(x, gate):\n    return x * torch.sigmoid(gate)\n", set()),
        ("def run(x, gate):\n    return torch.sigmoid(gate @ x).cumsum(1)\n", set()),
        ("def run(x, gate, other):\n    return (x * torch.sigmoid(gate[0] + other)).cumsum(1)\n", {"gate"}),
        ("def run(x, gate):\n    return (x * torch.exp(-torch.exp(gate.float()))).cumsum(1)\n", {"gate"}),
        (
            "def run(x, gate):\n    s = 0\n    for g in gate:\n        s = s + x * torch.sigmoid(gate)\n    return s\n",
            set(),
        ),
        (
            "def run(x, gate):\n    for g in gate:\n        x = torch.lerp(x, g, gate.sigmoid())\n    return x\n",
            {"gate"},
        ),
    ],
    ids=[
        *("steps", "sums of logarithms", "a method", "no state", "no input's own", "beside a bias", "twice exp"),
        *("a sum over heads", "a mixture"),
    ],
)
def test_what_a_sigmoid_is_given_is_a_gate_where_a_state_is_carried(source, gates):
    assert look_at(source).gates & {"x", "gate", "other"} == gates


@pytest.mark.parametrize("source", ["def run(x:\n    return x.isnan()\n", "return" * 2 + "\x00"])
def test_what_cannot_be_parsed_tells_nothing(source):
    assert not any(look_at(source))
