"""Axis expressions: whole-number arithmetic, and no way to run code or to burn time."""

from __future__ import annotations

import pytest

from flashinfer_bench.data.expression import evaluate_axis, names_in, order_axes, parse_expression


@pytest.mark.parametrize(
    ("text", "value"),
    [("n * 2 - 3", 13), ("n // 3 + n % 3", 4), ("n / 4", 2), ("2 ** n", 256), ("min(n, 3)", 3), ("max(n, 3)", 8),
     ("ceil_div(n, 3)", 3), ("cdiv(n, 4)", 2), ("-(-n // 3)", 3), ("n / 3 * 6", 16), ("int(n * 0.3)", 2),
     ("math.ceil(n / 3)", 3), ("floor(n / 3)", 2), ("n if n == 3 else 0.5 * n", 4)],
)  # fmt: skip
def test_an_expression_has_its_value(text, value):
    assert evaluate_axis(text, {"n": 8}) == value


@pytest.mark.parametrize(
    "text",
    ["n / 3", "n // 0", "n - 9", "m", "2 ** (2 ** n)", "9 ** 63 * 9 ** 63", "__import__('os')", "n.bit_length()",
     "[n][0]", "min(n, key=n)", "ceil_div(n)", "n if n else 1", "1.5", "n @ n",
     "1e999", "min(n)()", "n ** 0.5", "(n / 7) ** 63", "math.sqrt(n)", "n and 1", "1 < n < 3"],
)  # fmt: skip
def test_anything_else_is_refused(text):
    with pytest.raises(ValueError, match=r"\w"):
        evaluate_axis(text, {"n": 8})


@pytest.mark.parametrize(
    ("text", "words"), [("(" * 400 + "1" + ")" * 400, "not a Python expression"), ("1+" * 9000 + "1", "longer than")]
)
def test_deep_nesting_and_text_without_end_are_refused(text, words):
    with pytest.raises(ValueError, match=words):
        parse_expression(text)


def test_axes_are_ordered_after_the_axes_that_they_use():
    assert names_in("math.ceil(max(n, m) / m)") == {"n", "m"}
    assert order_axes({"c": "b + a", "b": "a * n", "a": "n + 1"}) == ("a", "b", "c")
    with pytest.raises(ValueError, match="a, b depend on each other"):
        order_axes({"a": "b + 1", "b": "a", "c": "n"})
    chain = {f"a{number}": f"a{number + 1} + 1" for number in range(2_000)}
    assert order_axes(chain)[-1] == "a0"
