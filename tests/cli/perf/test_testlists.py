"""Testlists of `perf`: what is given beside one, and what its lines may say."""

from __future__ import annotations

import json

import pytest

from flashinfer_bench.cli.main import cli as main
from flashinfer_bench.cli.perf.cases import read_requests
from flashinfer_bench.cli.perf.flags import make_session_parser
from flashinfer_bench.cli.perf.text import introduce
from flashinfer_bench.routines.case.support import Platform
from tests.routines.tables import read_rows

pytestmark = pytest.mark.cpu
CPU = Platform("a CPU", None, {}, frozenset())
RMSNORM = "--routine rmsnorm --batch_size 4 --hidden_size 64 --backends torch"
SOFTMAX = "--routine softmax --batch_size 2 --vocab_size 16 --backends torch"
QUICK = ["--devices", "cpu", "--num_iters", "2", "--dry_run_iters", "1"]


@pytest.fixture
def testlist(tmp_path):
    path = tmp_path / "list.txt"
    path.write_text(f"{RMSNORM}\n{SOFTMAX}\n")
    return path


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--refchek", "unknown flag --refchek; did you mean --refcheck?"),
        ("--rsume", "unknown flag --rsume; did you mean --resume?"),
        ("--json_pth out.jsonl", "unknown flag --json_pth; did you mean --json_path?"),
        ("--hiden_size 4 --timeot=3", "unknown flag --timeot; did you mean --timeout?"),
        ("--frobnicate", "unknown flag --frobnicate; see flashinfer-bench perf --help"),
        ("more.txt", "unexpected argument more.txt"),
        ("--num_iters many", "--num_iters: needs a whole number, not 'many'"),
        ("--top_p nan", "--top_p: needs a finite number, not 'nan'"),
        ("--num_iters", "--num_iters: expected one argument"),
    ],
)
def test_a_slip_beside_a_testlist_ends_it_before_anything_is_opened(testlist, tmp_path, words, said, capsys):
    table = tmp_path / "out.csv"
    table.write_text("kept")
    assert main(["perf", "--testlist", str(testlist), "--output_path", str(table), *words.split()]) == 2
    ended = capsys.readouterr()
    assert (ended.out, table.read_text()) == ("", "kept")
    assert f"error: {said}" in ended.err


def test_all_unknown_flags_beside_a_testlist_are_told_at_once(testlist, capsys):
    assert main(["perf", "--testlist", str(testlist), "--refchek", "--vocab_sise", "4"]) == 2
    assert [line.partition(";")[0] for line in capsys.readouterr().err.splitlines()] == [
        "error: unknown flag --refchek",
        "error: unknown flag --vocab_sise",
    ]


def test_a_flag_beside_a_testlist_that_some_routines_have_costs_the_others_their_lines(testlist):
    with_size = read_requests(["--vocab_size", "32", "--input_dtype", "bfloat16"], str(testlist), CPU)
    assert [request.problem for request in with_size] == [
        "unknown flag --vocab_size; see flashinfer-bench perf --help",
        None,
    ]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (f"{RMSNORM} --rsume", "unknown flag --rsume; did you mean --resume?"),
        (f"{RMSNORM} --refchek", "unknown flag --refchek; did you mean --refcheck?"),
        ("--testlst list.txt", "unknown flag --testlst; did you mean --testlist? --routine is missing"),
    ],
)
def test_hints_for_a_single_case_know_the_sessions_flags_too(words, said, capsys):
    assert main(["perf", *words.split()]) == 2
    assert capsys.readouterr().err.startswith(f"error: {said}")


def test_flags_of_the_session_in_a_line_are_warned_of_and_its_case_runs(tmp_path, capsys):
    path, unwanted = tmp_path / "list.txt", tmp_path / "unwanted.jsonl"
    path.write_text(f"{RMSNORM} --timeout 5 --json_path={unwanted}\n{RMSNORM} --case_tag 'no --timeout 5'\n")
    assert main(["perf", "--testlist", str(path), *QUICK]) == 0
    out = capsys.readouterr().out
    assert [line for line in out.splitlines() if line.startswith("[WARNING] Line")] == [
        "[WARNING] Line 1: without effect: --json_path, --timeout; "
        "what holds for the whole session goes on the command line"
    ]
    assert out.count("[PERF]") == 2
    assert not unwanted.exists()


def test_every_flag_of_the_session_is_warned_of_in_a_line(tmp_path):
    flags = make_session_parser().flags()
    path = tmp_path / "list.txt"
    values = {
        "--no_empty_columns": "",
        "--resume": "",
        "--retry_timeouts": "",
        "--sandbox": "off",
        "--log-level": "info",
        "--log_level": "INFO",
    }
    path.write_text("\n".join(f"{RMSNORM} {flag} {values.get(flag, 1)}" for flag in flags))
    for flag, request in zip(flags, read_requests([], str(path), CPU), strict=True):
        assert request.problem is None
        assert list(introduce(request, CPU))[1].startswith(f"[WARNING] Line {request.line}: without effect: {flag};")


def test_a_line_that_fails_is_not_said_to_run_without_a_flag(tmp_path):
    path = tmp_path / "list.txt"
    path.write_text(f"{RMSNORM} --timeout 0\n")
    (request,) = read_requests([], str(path), CPU)
    assert request.problem is not None
    assert not [line for line in introduce(request, CPU) if "without effect" in line]


def test_a_byte_order_mark_is_no_part_of_the_first_line(tmp_path):
    path = tmp_path / "list.txt"
    path.write_text(f"{RMSNORM}\n", encoding="utf-8-sig")
    assert [request.problem for request in read_requests([], str(path), CPU)] == [None]


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("--routine softmax --case_tag 'my tag' --temperature nan", ("softmax", "my tag")),
        ("--routine softmax --frobnicate --case_tag=t", ("softmax", "t")),
        ("--case_tag t -R softmax --timeout soon", ("softmax", "t")),
        ("--routine sofmax --case_tag t", ("sofmax", "t")),
        ("--routine softmax --case_tag", ("softmax", "")),
        ("--case_tag t --vocab_size 4", ("", "t")),
        ("--routine softmax --case_tag 'open end", ("softmax", "")),
    ],
    ids=["value", "flag", "session", "unknown", "no_value", "no_routine", "quote"],
)
def test_the_row_of_a_line_that_fails_has_the_names_that_the_line_gives(tmp_path, line, named):
    path, table = tmp_path / "list.txt", tmp_path / "out.csv"
    path.write_text(f"{line}\n")
    lines = tmp_path / "out.jsonl"
    command = ["perf", "--testlist", str(path), "--output_path", str(table), "--json_path", str(lines), *QUICK]
    assert main(command) == 1
    (row,) = read_rows(table)
    assert (row["status"], row["routine"], row["case_tag"]) == ("failed", *named)
    document = json.loads(lines.read_text())
    assert (document["routine"], document["flags"].get("case_tag") or "") == named


def test_a_tag_beside_the_testlist_is_that_of_lines_that_fail_too(tmp_path):
    path = tmp_path / "list.txt"
    path.write_text("--routine softmax --frobnicate\n")
    (request,) = read_requests(["--case_tag", "outer"], str(path), CPU)
    assert (request.named, request.args.case_tag) == ("softmax", "outer")


def test_a_line_that_cannot_be_run_is_a_row(tmp_path):
    path, table = tmp_path / "list.txt", tmp_path / "out.csv"
    path.write_text(f"{SOFTMAX} --temperature nan\n")
    assert main(["perf", "--testlist", str(path), "--output_path", str(table), *QUICK]) == 1
    (row,) = read_rows(table)
    assert (row["status"], row["testlist_line"]) == ("failed", "1")
    assert "needs a finite number" in row["reason"]


PAGES = "--routine BatchDecodeWithPagedKVCacheWrapper --num_qo_heads 4 --num_kv_heads 4 --head_dim_qk 16 --page_size 1"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (f"{RMSNORM} --random_seed 99999999999999999999", "seed"),
        (f"{RMSNORM} --num_iters 99999999999999999999", "iterations"),
        (f"{PAGES} --backends torch --batch_size 4000000 --s_kv 100000", "more memory than this machine has"),
        ("--routine rmsnorm --backends torch --batch_size 1000000000 --hidden_size 1000000", "more memory"),
    ],
    ids=["seed", "count", "lists of pages", "inputs"],
)
def test_a_line_that_no_run_can_do_costs_that_line_alone(tmp_path, line, reason):
    path, table = tmp_path / "list.txt", tmp_path / "out.csv"
    path.write_text(f"{RMSNORM}\n{line}\n{SOFTMAX}\n")
    assert main(["perf", "--testlist", str(path), "--output_path", str(table), "--devices", "cpu"]) == 1
    rows = {row["testlist_line"]: row for row in read_rows(table)}
    assert [rows[at]["status"] for at in "123"] == ["passed", "failed", "passed"]
    assert (rows["2"]["median_time"], reason in rows["2"]["reason"]) == ("", True)
