"""One strange file in a set costs itself: it is told in one line, and everything else is read."""

from __future__ import annotations

import json
import os

import pytest

from flashinfer_bench.data import Definition, Solution, Trace, TraceSet, load_json_file, load_jsonl_file
from flashinfer_bench.data.entry import check_entry
from flashinfer_bench.data.store import jsonl, layout
from flashinfer_bench.data.store.blobs import BlobStore
from flashinfer_bench.data.store.jsonl import append_line, write_whole
from flashinfer_bench.data.store.pack import pack_folder
from flashinfer_bench.errors import DataSetError, Fault, WorkloadFault
from tests.kit.make import make_definition, make_solution, make_trace, make_workload, write_trace_set
from tests.kit.strange import STRANGE

PLACES = (
    "definitions/test/x.json",
    "solutions/a/x.json",
    "workloads/test/x.jsonl",
    "traces/a/x.jsonl",
    "traces/a/x.json",
)


@pytest.fixture
def root(tmp_path):
    line = make_trace(solution=None, workload=make_workload("w0"))
    write_trace_set(tmp_path, definitions=[make_definition()], solutions=[make_solution()], workloads=[line])
    return tmp_path


def only_issue(root):
    """Load a set; return its one issue, and see that the good files are there."""
    loaded = TraceSet.from_path(root)
    assert list(loaded.definitions) == ["double"]
    assert [solution.name for solution in loaded.solutions["double"]] == ["double_python"]
    assert [trace.workload.uuid for trace in loaded.workloads["double"]] == ["w0"]
    (issue,) = loaded.issues
    assert "\n" not in str(issue)
    assert len(str(issue)) < 3000
    return issue


def test_a_line_and_a_file_of_lines_have_limits(tmp_path, monkeypatch):
    monkeypatch.setattr(jsonl, "MOST_JSON_BYTES", 10)
    monkeypatch.setattr(jsonl, "MOST_LINES", 3)
    (tmp_path / "long").write_bytes(b"1\n" + b"2" * 20)
    with pytest.raises(OSError, match="line 2 has more than 10 bytes"):
        list(jsonl.read_lines(tmp_path / "long"))
    (tmp_path / "many").write_bytes(b"\n" * 20)
    with pytest.raises(OSError, match="more than 3 lines"):
        list(jsonl.read_lines(tmp_path / "many"))
    with pytest.raises(Fault, match="last line has more than 10 bytes"):
        append_line(tmp_path / "long", "{}")


@pytest.mark.parametrize("words", ["a pipe", "a device", "a socket"])
def test_nothing_waits_for_what_stands_in_place_of_a_traces_file(root, words):
    path = layout.traces_path(root, author="a", op_type="test", definition="double")
    path.parent.mkdir(parents=True)
    STRANGE[words](path)
    with pytest.raises(Fault, match=f"cannot append to .*({words}|No such device or address)"):
        append_line(path, "{}")
    with pytest.raises(DataSetError, match=words):
        load_jsonl_file(Trace, path)
    with pytest.raises(DataSetError, match=words):
        load_json_file(Definition, path)


def test_a_torn_line_is_not_moved_into_a_pipe(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"torn')
    os.mkfifo(tmp_path / "a.jsonl.torn")
    with pytest.raises(Fault, match="cannot append"):
        append_line(tmp_path / "a.jsonl", "{}")
    assert (tmp_path / "a.jsonl").read_text() == '{"torn'


def test_a_file_is_written_whole_though_a_pipe_has_its_staging_name(tmp_path, monkeypatch):
    monkeypatch.setattr(jsonl, "get_ident", lambda: 1)
    os.mkfifo(tmp_path / f".a.json.{os.getpid()}.1.tmp")
    write_whole(tmp_path / "a.json", "{}")
    assert (tmp_path / "a.json").read_text() == "{}"


@pytest.mark.parametrize("words", STRANGE)
def test_a_source_beside_its_solution_is_read_if_it_is_a_file(root, words):
    raw = {**make_solution("other").to_dict(), "sources": ["main.py"]}
    (root / "solutions/b").mkdir(parents=True)
    (root / "solutions/b/other.json").write_text(json.dumps(raw))
    STRANGE[words](root / "solutions/b/main.py")
    assert only_issue(root).field == "sources.0.content"


@pytest.mark.parametrize("words", ["a pipe", "a device", "a socket"])
def test_a_blob_that_is_no_file_is_not_opened(tmp_path, words):
    STRANGE[words](tmp_path / "blob")
    with pytest.raises(WorkloadFault, match="no regular file"):
        BlobStore(tmp_path).locate("blob")


@pytest.mark.parametrize("words", STRANGE)
@pytest.mark.parametrize("name", ["solution.yaml", "solution.json", "main.py"])
def test_packing_refuses_what_is_no_file(tmp_path, name, words):
    manifest = {key: value for key, value in make_solution().to_dict().items() if key != "sources"}
    (tmp_path / "solution.json").write_text(json.dumps({**manifest, "sources": ["main.py"]}))
    if name == "solution.json":
        (tmp_path / name).unlink()
    STRANGE[words](tmp_path / name)
    with pytest.raises(DataSetError):
        pack_folder(tmp_path)


@pytest.mark.parametrize("text", ["/*" * 100_000, "#define x \\\n" * 20_000, "#define" * 30_000], ids=str.__len__)
def test_a_source_is_searched_in_linear_time(text):
    solution = make_solution(language="cpp", sources={"main.cpp": text}, entry_point="main.cpp::run")
    assert "there is no function 'run'" in check_entry(solution)[0]


def test_sources_have_a_depth_a_number_and_a_length():
    for path in ("d/" * 40 + "main.py", "d" * 150 + ("/" + "d" * 150) * 7):
        with pytest.raises(ValueError, match="folders deep"):
            make_solution(sources={path: ""}, entry_point=f"{path}::run")
    with pytest.raises(ValueError, match="at most 4096"):
        make_solution(sources={f"{number}.py": "" for number in range(4097)}, entry_point="1.py::run")
    assert isinstance(make_solution(source="x = 1\n" * 100_000), Solution)
    assert check_entry(make_solution(source="x = 1\n" * 100_000)) == []
