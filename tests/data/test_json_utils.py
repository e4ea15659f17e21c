"""Single files for scripts: written whole, read back equal, refused with everything that is wrong."""

from __future__ import annotations

import json

import pytest

from flashinfer_bench.data import (
    Definition,
    Solution,
    Trace,
    append_jsonl_file,
    load_json_file,
    load_jsonl_file,
    save_json_file,
    save_jsonl_file,
)
from flashinfer_bench.errors import DataSetError
from tests.kit import make_definition, make_solution, make_trace, make_workload


@pytest.mark.parametrize(
    "model", [make_definition(), make_solution(), make_trace(), make_workload()], ids=lambda model: type(model).__name__
)
def test_a_model_survives_its_file(tmp_path, model):
    path = tmp_path / "new" / "model.json"
    save_json_file(model, path)
    assert load_json_file(type(model), str(path)) == model


def test_lines_survive_their_file_and_can_be_added_to(tmp_path):
    path, first, second = tmp_path / "a.jsonl", make_trace(), make_trace(status="TIMEOUT")
    save_jsonl_file([second], path)
    save_jsonl_file([first], path)
    append_jsonl_file([second, first], path)
    assert load_jsonl_file(Trace, path) == [first, second, first]


def test_a_file_in_another_dialect_is_read(tmp_path):
    raw = {**make_definition().to_dict(), "tags": None}
    (tmp_path / "d.json").write_text(json.dumps(raw))
    assert load_json_file(Definition, tmp_path / "d.json") == make_definition()


def test_everything_wrong_is_said_at_once(tmp_path):
    (tmp_path / "s.json").write_text('{"name": "s"}')
    with pytest.raises(DataSetError) as caught:
        load_json_file(Solution, tmp_path / "s.json")
    for field in ("definition", "author", "sources", "spec"):
        assert f"{field}: is missing" in str(caught.value)


@pytest.mark.parametrize("load", [load_json_file, load_jsonl_file])
def test_a_file_that_is_not_there_is_an_error(tmp_path, load):
    with pytest.raises(DataSetError, match="cannot be read"):
        load(Trace, tmp_path / "none.json")


def test_a_file_that_is_not_there_is_said_once(tmp_path):
    with pytest.raises(DataSetError) as caught:
        load_json_file(Trace, tmp_path / "none.json")
    assert str(caught.value) == f"{tmp_path / 'none.json'} cannot be read: there is no such file"


def test_a_file_with_two_objects_is_not_one(tmp_path):
    (tmp_path / "d.json").write_text(f"[{make_definition().to_json()}, {make_definition().to_json()}]")
    with pytest.raises(DataSetError, match="holds 2 objects"):
        load_json_file(Definition, tmp_path / "d.json")


def test_a_broken_line_is_named(tmp_path):
    (tmp_path / "t.jsonl").write_text(make_trace().to_json() + "\n{")
    with pytest.raises(DataSetError, match=r"t\.jsonl:2: not JSON"):
        load_jsonl_file(Trace, tmp_path / "t.jsonl")
