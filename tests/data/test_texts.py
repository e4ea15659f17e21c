"""Texts of sets: single JSON files for scripts, lines of fields, and YAML that expands."""

from __future__ import annotations

import pytest
import yaml

from flashinfer_bench.data import Definition, Solution, Trace, load_json_file, load_jsonl_file
from flashinfer_bench.data.store.yaml_file import parse_yaml
from flashinfer_bench.errors import DataSetError
from tests.kit import make_definition, make_trace

WHOLE = make_definition().to_json()


@pytest.mark.parametrize(
    ("load", "kind", "text", "words"),
    [
        (
            load_json_file,
            Solution,
            '{"name": "s"}',
            ["definition: is missing", "author: is missing", "spec: is missing"],
        ),
        (load_json_file, Trace, None, ["cannot be read: No such file"]),
        (load_json_file, Definition, f"[{WHOLE}, {WHOLE}]", ["holds 2 objects"]),
        (load_jsonl_file, Trace, make_trace().to_json() + "\n{", ["file:2: not JSON"]),
    ],
)
def test_everything_wrong_with_a_file_is_said_at_once(tmp_path, load, kind, text, words):
    if text is not None:
        (tmp_path / "file").write_text(text)
    with pytest.raises(DataSetError) as caught:
        load(kind, tmp_path / "file")
    assert [word for word in words if str(caught.value).count(word) != 1] == []


def unfold(level):
    """Return YAML in which each level expands to ten values of the level below."""
    lines = ["a0: &a0 {" + ", ".join(f"k{n}: {n}" for n in range(10)) + "}"]
    return "\n".join(lines + [f"a{n}: &a{n}\n  {level(f'*a{n - 1}')}" for n in range(1, 12)])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (unfold(lambda below: f"<<: [{', '.join([below] * 10)}]"), "unfolds to more than 100,000 values"),
        (unfold(lambda below: f"[{', '.join([below] * 10)}]"), "unfolds to more than 100,000 values"),
        ("a: &loop [*loop]", "contains itself"),
        ("- " * 4000, "nested too deeply"),
        ("a: " + "1" * 5000, "4300 digits"),
        ("a: 2026-99-99", "month"),
        ("? [a]\n: 1", "unhashable"),
    ],
    ids=["merge keys", "lists", "loop", "deep", "integer", "date", "key"],
)
def test_yaml_that_cannot_be_unfolded_is_refused(text, words):
    with pytest.raises(yaml.YAMLError, match=words):
        parse_yaml(text)


def test_anchors_aliases_and_merge_keys_of_people_are_read():
    text = "base: &base {rtol: 0.01, atol: 0.1}\nown:\n  <<: *base\n  atol: 0.2\n"
    assert parse_yaml(text)[1]["own"] == {"rtol": 0.01, "atol": 0.2}
    assert parse_yaml("# nothing\n") == (None, None)


def test_keys_are_text_as_it_is_written():
    text = "48201933: 1\n0x12: 0x12\non: on\n2026-01-02: &a 7\n? *a\n: *a\n=: x\n"
    expected = {"48201933": 1, "0x12": 18, "on": True, "2026-01-02": 7, "7": 7, "=": "x"}
    assert parse_yaml(text)[1] == expected
