"""Axis expressions: whole-number arithmetic, and no way to run code or to burn time."""

from __future__ import annotations

import pytest

from flashinfer_bench.data.expression import evaluate_axis, names_in, parse_expression


@pytest.mark.parametrize(
    ("text", "value"),
    [("n + 1", 9), ("n * 2 - 3", 13), ("n // 3", 2), ("n / 4", 2), ("n % 3", 2), ("2 ** n", 256), ("min(n, 3)", 3),
     ("max(n, 3)", 8), ("ceil_div(n, 3)", 3), ("-(-n // 3)", 3)],
)  # fmt: skip
def test_an_expression_has_its_value(text, value):
    assert evaluate_axis(text, {"n": 8}) == value


@pytest.mark.parametrize(
    "text",
    ["n / 3", "n // 0", "n - 9", "m", "2 ** (2 ** n)", "9 ** 63 * 9 ** 63", "__import__('os')", "n.bit_length()",
     "[n][0]", "min(n, key=n)", "ceil_div(n)", "n if n else 1", "1.5", "n @ n"],
)  # fmt: skip
def test_anything_else_is_refused(text):
    with pytest.raises(ValueError, match=r"\w"):
        evaluate_axis(text, {"n": 8})


def test_deep_nesting_is_refused():
    with pytest.raises(ValueError, match="not a Python expression"):
        parse_expression("(" * 4000 + "1" + ")" * 4000)


def test_text_without_end_is_refused():
    with pytest.raises(ValueError, match="longer than"):
        parse_expression("1+" * 9000 + "1")


def test_names_leave_known_functions_out():
    assert names_in("max(n, m) + 1") == {"n", "m"}
