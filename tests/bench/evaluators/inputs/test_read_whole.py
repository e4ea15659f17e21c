"""Which inputs a reference provably reads whole."""

import pytest

from flashinfer_bench.bench.evaluators.inputs.read_whole import find_read_whole
from tests.bench.evaluators.judging import define
from tests.kit.make import make_workload

pytestmark = pytest.mark.cpu
X, W, R = {"x": "bfloat16[n, d]"}, {"w": "bfloat16[d, k]"}, {"r": "bfloat16[n, d]"}
V, INDICES = {"v": "bfloat16[d]"}, {"i": "int32[n]"}
WHOLE = {
    "matmul": (X | W, "x @ w", "x w"),
    "norm": (X | V, "(x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6) * v).to(x.dtype)", "v x"),
    "two outputs": (X | R | V, "(x + r, x * v)", "r v x"),
    "transposed": (X | W, "(w.T @ x.T).T.contiguous()", "w x"),
    "in several shapes": (X | V, "(x.view(-1, 2, 4)[:, :, None] * v.view(2, 4)[None, :, None]).flatten(1)", "v x"),
    "its shape is used": (X | R, "x * (2 + r.shape[1])", "x"),
}
NOT = {
    "sliced": (X | W, "x[:, :4] @ w[:4]"),
    "gathered": (X | INDICES, "x[i.long()] * 2"),
    "masked by numbers": (X | INDICES, "x * i[:, None]"),
    "masked by itself": (X | R, "torch.where(r > 0, x, 0.0)"),
    "attention": (X | R, "torch.softmax((x @ r.T).float(), -1).to(x.dtype) @ r"),
    "times nothing": (X | R, "x * 0.0"),
    "cancelled beside another": (X | R, "(x + r) - r"),
    "given back": (X, "x"),
    "a branch on values": (X, "x * 2 if x.sum() > 0 else x * 3"),
    "written in place": (X, "x.clone().mul_(2)"),
    "a random mask": (X, "x * (torch.rand(x.shape, device=x.device) > 0.5)"),
    "with constants made inside": (X, "x * torch.zeros(8, device=x.device)"),
    "largest": (X, "x.amax(-1)"),
    "a loop without end": (X, "sum((x * 2 for _ in range(10_000)), x)"),
    "no torch": (X, "torch.from_numpy(x.numpy() * 2)"),
}


def find(inputs, expression, given=None, n=3):
    definition = define(inputs, f"return {expression}", axes={"d": 8, "k": 4})
    return find_read_whole(definition, make_workload(axes={"n": n}, inputs=given or {}))


@pytest.mark.parametrize("case", [*WHOLE, *NOT])
def test_an_input_is_read_whole_only_if_each_element_changes_an_output(case):
    inputs, expression, *names = (WHOLE | NOT)[case]
    assert sorted(find(inputs, expression)) == sorted(" ".join(names).split())


STORED = {"type": "safetensors", "path": "blob/w.safetensors", "tensor_key": "v"}
NUMBER = X | {"factor": "float32"}


@pytest.mark.parametrize(
    ("inputs", "expression", "given", "n", "found"),
    [
        (X | W, "x @ w", {}, 5, {"x": 5 * 8 * 2, "w": 8 * 4 * 2}),
        (X | W, "x @ w", {}, 0, {}),
        (X | V, "x * v", {"v": STORED}, 3, {}),  # it may be a mask
        (X | W | V, "(x @ w, x * v)", {"v": STORED}, 3, {"x": 48, "w": 64}),
        *(
            (NUMBER, "x * factor", {"factor": {"type": "scalar", "value": factor}}, 3, found)
            for factor, found in ((2.0, {"x": 48}), (0.0, {}), (float("inf"), {}))
        ),
    ],
)
def test_bytes_are_those_of_random_inputs_that_a_number_does_not_hide(inputs, expression, given, n, found):
    assert find(inputs, expression, given, n) == found
