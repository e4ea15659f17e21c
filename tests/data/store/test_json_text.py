"""Lines of fields in a JSON text, and keys that stand twice."""

from __future__ import annotations

import pytest

from flashinfer_bench.data.store.json_text import find_line, parse_json

TEXT = """
{ "a": {
    "b": [1,
          {"c": "}]{[\\n"},
          {"c" :
            2}],
    "d": 3
  }
}
"""


@pytest.mark.parametrize(
    ("place", "line"),
    [((), 2), (("a",), 2), (("a", "b"), 3), (("a", "b", "0"), 3), (("a", "b", "1", "c"), 4), (("a", "b", "2", "c"), 6),
     (("a", "d"), 7), (("a", "x"), 2), (("x",), 2), (("a", "b", "9", "c"), 3), (("a", "d", "deeper"), 7)],
)  # fmt: skip
def test_the_deepest_part_that_is_there_has_its_line(place, line):
    assert find_line(TEXT, place) == line


def test_keys_that_stand_twice_are_named_once_an_object():
    parsed, repeated = parse_json('{"a": 1, "b": {"c": 1, "c": 2}, "a": 3}')
    assert parsed == {"a": 3, "b": {"c": 2}}
    assert repeated == ["c", "a"]


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "1" * 5000, r'{"a": "\ud800"}', r'{"\udc00": 1}'])
def test_what_is_no_json_is_a_value_error(text):
    with pytest.raises(ValueError, match=r"\w"):
        parse_json(text)
