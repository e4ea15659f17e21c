"""`fetch` against a local server that speaks the hub's API: 200 files, in part, interrupted, wrong, offline."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import signal
import sys
import threading
from itertools import count

import pytest

from flashinfer_bench.base.files.held_folders import temporary_folder
from flashinfer_bench.base.install import install_hint
from flashinfer_bench.cli.main import cli as main
from flashinfer_bench.hub import REFUSED
from tests.kit.hub_server import REPOSITORY, HubServer
from tests.kit.make import make_definition, make_solution, make_trace, make_workload, write_trace_set

constants = pytest.importorskip("huggingface_hub.constants", reason=f"needs huggingface_hub: {install_hint('hub')}")

MANY = pytest.mark.parametrize("content", [96], ids=["200 files"], indirect=True)
"""Runs a test with 96 blobs of each definition. With the other files the repository has 200."""
TRACES = "traces/alice/doubles/double.jsonl"


def blob_of(name, number):
    return f"blob/workloads/{name}s/{name}/{name}_w{number}.safetensors"


BROKEN = blob_of("double", 2)


@pytest.fixture
def content(tmp_path, request):
    """A set with two definitions: path → bytes. A parameter is the number of blobs of each."""
    blobs = getattr(request, "param", 3)
    names, files, lines = ("double", "triple"), {"README.md": "a set"}, []
    for name, number in ((name, number) for name in names for number in range(blobs)):
        files[blob_of(name, number)] = f"{name} {number} " * 50
        stored = {"type": "safetensors", "path": f"./{blob_of(name, number)}", "tensor_key": "x"}
        workload = make_workload(f"w{number}", inputs={"x": stored})
        lines.append(make_trace(definition=name, solution=None, workload=workload))
    root = write_trace_set(
        tmp_path / "hub",
        files,
        definitions=[make_definition(name, op_type=f"{name}s") for name in names],
        solutions=[make_solution(f"{name}_python", definition=name) for name in names],
        workloads=lines,
        traces=[make_trace()],
    )
    return {str(file.relative_to(root)): file.read_bytes() for file in root.rglob("*") if file.is_file()}


@pytest.fixture
def server(content, tmp_path, monkeypatch):
    """The hub, whose client has no token, no cache and no other server."""
    monkeypatch.chdir(tmp_path)
    with HubServer(dict(content)) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        template = f"{server.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        for name in ("HF_HUB_CACHE", "HF_TOKEN_PATH"):
            monkeypatch.setattr(constants, name, str(tmp_path / "home"))
        yield server
        server.shutdown()


@pytest.fixture
def fetch(server, tmp_path, capsys):
    """Run the command with flags; returns its exit code, JSON, stderr, and the paths that were downloaded."""

    def call(line="", repository=REPOSITORY):
        server.requests.clear()
        code = main(["fetch", repository, "--output", "set", "--json", *line.split()])
        out, err = capsys.readouterr()
        return code, json.loads(out) if out else {}, err, server.downloads()

    return call


def files_in(root):
    """Return path → content of the files of a set, without the record."""
    files = {str(file.relative_to(root)): file.read_bytes() for file in root.rglob("*") if file.is_file()}
    assert files.pop(".fetched.json")
    return files


@MANY
def test_all_200_files_are_fetched_once_and_checked_offline_without_a_request(fetch, server, content, tmp_path):
    code, document, _, downloads = fetch()
    assert (code, document["files"], document["downloaded"], document["problems"]) == (0, 200, 200, [])
    assert files_in(tmp_path / "set") == content
    assert (document["commit"], len(downloads)) == (server.commit, 200)
    for flags, requests in {"": 1, f"--revision {server.commit}": 0, "--offline": 0}.items():
        code, document, _, _ = fetch(flags)
        assert (code, document["files"], document["downloaded"], len(server.requests)) == (0, 200, 0, requests), flags
    (tmp_path / "set" / BROKEN).write_bytes(b"other")
    code, document, err, _ = fetch("--offline")
    assert (code, document["files"], server.requests) == (1, 199, [])
    assert f"error: {BROKEN}: it is missing or differs, and offline" in err


@pytest.mark.parametrize("flags", ["--definitions double", "--op-types doubles"])
def test_only_the_files_of_a_definition_are_fetched(fetch, content, flags):
    assert fetch(flags)[::3] == (0, sorted(path for path in content if "triple" not in path))
    assert fetch()[::3] == (0, sorted(path for path in content if "triple" in path))


def test_missing_blobs_are_fetched_by_the_command_that_the_run_names(fetch, server, content, tmp_path, capsys):
    fetch("--definitions double")
    for number in range(3):
        (tmp_path / "set" / blob_of("double", number)).unlink()
    assert main(["validate", "set"]) == 1
    assert f"is not there; run: flashinfer-bench fetch {REPOSITORY} --missing --output set\n" in capsys.readouterr().out
    assert fetch("--missing")[::3] == (0, [blob_of("double", number) for number in range(3)])


def test_missing_blobs_are_fetched_into_a_copy_whose_other_files_stay(fetch, content, tmp_path):
    own = {"README.md": b"my own", "blob/own": b"x"}
    stored = {"x": {"type": "safetensors", "path": "blob/own", "tensor_key": "x"}}
    line = make_trace(solution=None, workload=make_workload("own", inputs=stored)).to_json().encode() + b"\n"
    there = {path: data for path, data in content.items() if path != BROKEN} | own | {"workloads/me/double.jsonl": line}
    write_trace_set(tmp_path / "set", there)
    assert fetch("--missing")[::3] == (0, [BROKEN])
    assert files_in(tmp_path / "set") == {**there, BROKEN: content[BROKEN]}


@MANY
@pytest.mark.parametrize("code", [130, 1], ids=["Ctrl-C", "error"])
def test_an_interrupted_fetch_is_resumed(fetch, server, content, tmp_path, request, code):
    downloads, interrupted = count(), threading.Event()

    def interrupt(*_):
        interrupted.set()
        raise KeyboardInterrupt

    def stop(_):
        number = next(downloads)
        if code == 130 and number == 50:
            os.kill(os.getpid(), signal.SIGINT)
        if code == 130 and number >= 50:
            interrupted.wait(60)  # the main thread may be late
        return 410 if code == 1 and number >= 50 else None

    before = signal.signal(signal.SIGINT, interrupt)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))

    server.on_download = stop
    found, _, err, _ = fetch()
    assert (found, f"fetch from {server.url}: " in err) == (code, code == 1)
    whole = files_in(tmp_path / "set")
    assert 40 < len(whole) < 200
    assert whole.items() <= content.items()
    server.on_download = lambda _: None
    assert fetch("--offline")[0] == 1
    assert fetch()[::3] == (0, sorted(content.keys() - whole.keys()))
    assert files_in(tmp_path / "set") == content


def test_the_next_fetch_removes_the_staging_folder_of_a_killed_fetch(fetch, content, tmp_path):
    write_trace_set(tmp_path / "set", {".flashinfer-bench.fetch.x/file": b"x", ".other/file": b"x"})
    with temporary_folder("fetch", tmp_path / "set") as held:
        assert fetch()[0] == 0
        assert held.exists()
    assert files_in(tmp_path / "set") == content | {".other/file": b"x"}


def test_a_download_that_breaks_off_is_continued(fetch, server, content, tmp_path):
    server.cuts.add(BROKEN)
    assert fetch("--definitions double")[:2:2] == (0,)
    assert (tmp_path / "set" / BROKEN).read_bytes() == content[BROKEN]


@pytest.mark.parametrize("path", [BROKEN, "solutions/alice/doubles/double/double_python.json"])
def test_a_file_with_a_wrong_digest_is_refused(fetch, server, content, tmp_path, path):
    server.sent[path] = content[path][::-1]
    code, document, err, _ = fetch()
    assert (code, document["files"]) == (1, len(content) - 1)
    assert f"error: {path}: refused: its size or digest differs from the hub's list" in err
    assert not (tmp_path / "set" / path).exists()
    server.sent.clear()
    assert fetch()[::3] == (0, [path])


def test_a_newer_commit_updates_the_files_that_are_here_and_keeps_traces(fetch, server, content, tmp_path):
    fetch("--definitions double")
    grown = content[TRACES] * 2
    (tmp_path / "set" / TRACES).write_bytes(grown)
    server.files |= {BROKEN: b"new", "README.md": b"new", blob_of("triple", 0): b"new"}
    code, document, err, downloads = fetch("--op-types triples")
    changed = {"README.md", BROKEN, *(path for path in content if "triple" in path)}
    assert (code, document["kept"], downloads) == (0, [TRACES], sorted(changed))
    assert f"kept, though it differs from the hub's: {TRACES}" in err
    assert (tmp_path / "set" / TRACES).read_bytes() == grown


def test_an_interrupted_update_is_completed_by_a_fetch_of_other_files(fetch, server, content, tmp_path):
    fetch("--definitions double")
    gone = "solutions/alice/doubles/double/double_python.json"
    server.files |= {BROKEN: b"new", "README.md": b"new"}
    del server.files[gone]
    server.on_download = lambda path: 410 if path == BROKEN else None
    code = fetch("--definitions triple")[0]
    assert (code, (tmp_path / "set" / BROKEN).read_bytes()) == (1, content[BROKEN])
    server.on_download = lambda _: None
    assert fetch("--definitions triple --offline")[0] == 2
    code, _, _, downloads = fetch("--definitions triple")
    assert (code, BROKEN in downloads, (tmp_path / "set" / BROKEN).read_bytes()) == (0, True, b"new")
    server.files["README.md"] = b"newer"
    code, _, _, downloads = fetch("--definitions triple")
    assert (code, downloads, (tmp_path / "set" / gone).exists()) == (0, ["README.md"], True)
    del server.files[BROKEN]
    assert f"stays, though the commit has it no more: {BROKEN}\n" in fetch("--definitions triple")[2]
    (tmp_path / "set" / blob_of("double", 1)).write_bytes(b"mine")
    assert fetch("--definitions triple")[::3] == (0, [])


def test_missing_blobs_are_fetched_after_an_interrupted_update(fetch, server, content, tmp_path):
    fetch("--definitions double")
    file, new = "workloads/doubles/double.jsonl", blob_of("double", 9)
    server.files |= {file: content[file].replace(BROKEN.encode(), new.encode()), new: b"new", "README.md": b"new"}
    server.on_download = lambda path: 410 if path == "README.md" else None
    assert fetch("--definitions double")[0] == 1
    assert "has no record of someone/small-trace at main" in fetch("--offline")[2]
    server.on_download = lambda _: None
    code, _, _, downloads = fetch("--missing")
    assert (code, {*downloads} - {file}) == (0, {"README.md", new})


def test_paths_of_the_hub_stay_in_the_set(fetch, server, tmp_path):
    server.files = {
        "../out.json": b"x",
        "/tmp/out.json": b"x",
        ".git/hooks/x": b"x",
        "a/.fetched.json": b"x",
        "b": b"x",
    }
    assert fetch()[::3] == (0, ["b"])
    assert set(files_in(tmp_path / "set")) == {"b"}
    (tmp_path / "outside").mkdir()
    (tmp_path / "set/folder").symlink_to(tmp_path / "outside")
    server.files["folder/file"] = b"x"
    code, _, err, _ = fetch()
    assert (code, list((tmp_path / "outside").iterdir())) == (1, [])
    assert (err.startswith("error: fetch: "), "no write below" in err) == (True, True)


ANSWERS = {
    "no JSON": b"<html>",
    "no list": b'{"error": "x"}',
    "no texts": b'[{"type": "file", "path": "b", "size": 1, "oid": null}]',
    "no end": b"[]",
}


@pytest.mark.parametrize("answer", ANSWERS)
def test_an_answer_that_is_not_a_hubs_is_an_error_without_a_traceback(fetch, server, answer):
    server.tree, server.is_endless = ANSWERS[answer], answer == "no end"
    code, _, err, _ = fetch()
    assert (code, err.count("\n")) == (1, 1)
    assert err.startswith(f"error: the answer of {server.url} cannot be read: ")


def test_an_etag_leads_no_write_outside(fetch, server, tmp_path):
    """The client has the ETag in the name of an unfinished download, after this digest of the file's name."""
    digest = base64.urlsafe_b64encode(hashlib.sha1(b"z.metadata").digest()).decode()
    server.files = {f"{digest}.a/file": b"x", "z": b"x" * 5000}
    server.etags["z"] = f"a{'/..' * 40}{tmp_path}/outside/file"
    server.cuts.add("z")
    found, outside = [], tmp_path / "outside"
    outside.mkdir()
    server.on_download = lambda _: found.extend(outside.iterdir())
    assert (fetch()[0], found, (tmp_path / "set/z").exists()) == (1, [], False)


def test_a_record_of_a_stranger_names_no_file_outside(fetch, server, tmp_path):
    record = {"repository": REPOSITORY, "revision": "main", "commit": server.commit, "is_updating": True}
    files = dict.fromkeys(["../../out.json", str(tmp_path / "out.json"), "README.md"], (1, "0"))
    write_trace_set(tmp_path / "set", {".fetched.json": json.dumps(record | {"files": files})})
    code, document, err, downloads = fetch()
    assert (code, downloads, document["problems"]) == (1, ["README.md"], [f"README.md: {REFUSED}"])
    assert "out.json" not in err


def test_blobs_that_the_hub_lacks_are_reported(fetch, server, content):
    del server.files[BROKEN]
    code, document, err, _ = fetch()
    assert (code, document["files"]) == (1, len(content) - 1)
    assert f"error: {BROKEN}: a workload names it, and the hub does not have it" in err


WRONG = {
    "--definitions doubel": "no definition 'doubel'; did you mean 'double'?",
    "--op-types nothing": "no op type 'nothing'",
    "--revision v9": "Revision Not Found",
    "--offline": "has no record of someone/small-trace at main; fetch it once with the network",
}


@pytest.mark.parametrize("flags", WRONG)
def test_a_name_that_matches_nothing_is_a_usage_error(fetch, tmp_path, flags):
    code, _, err, downloads = fetch(flags)
    assert (code, downloads) == (2, [])
    assert WRONG[flags] in err
    assert not (tmp_path / "set").exists()


def test_a_repository_that_is_unknown_or_another_one_is_a_usage_error(fetch):
    assert "Repository Not Found" in fetch(repository="someone/other")[2]
    assert fetch(repository="a/b/c")[0] == 2
    fetch("--definitions double")
    code, _, err, _ = fetch(repository="someone/other")
    assert (code, "was fetched from someone/small-trace; give another folder" in err) == (2, True)


def test_without_the_package_the_message_names_the_extra(fetch, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    code, _, err, _ = fetch()
    assert (code, "fetch needs huggingface_hub" in err, "'.[hub]'" in err) == (2, True, True)
