"""What the table tells of `auto`."""

from __future__ import annotations

import shlex

import pytest

from flashinfer_bench.cli.perf.cases import read_requests
from flashinfer_bench.cli.perf.files import to_cells, to_document
from flashinfer_bench.cli.perf.rows import make_failed, make_skipped
from flashinfer_bench.routines.case.support import Platform
from flashinfer_bench.routines.table import ROUTINES

DECODE, PREFILL = "BatchDecodeWithPagedKVCacheWrapper", "BatchPrefillWithPagedKVCacheWrapper"
SIZES = "--batch_size 2 --s_qo 1 --s_kv 64 --num_qo_heads 8 --num_kv_heads 2 --head_dim_qk 128 --page_size 16"


def resolved(routine, flags="", *, capability="9.0", backend="auto", make=make_failed):
    place = Platform("a GPU", capability, {}, frozenset({"flashinfer"}))
    request = read_requests(shlex.split(f"--routine {routine} {SIZES} {flags}"), None, place)[0]
    return to_cells(to_document(make(request, backend, "a reason", place), place))["resolved_backend"]


@pytest.mark.parametrize(
    ("routine", "flags", "capability", "expected"),
    [
        (PREFILL, "", "9.0", "fa3"),
        (PREFILL, "--kv_dtype fp8_e4m3", "9.0", "fa2"),
        (PREFILL, "", "8.0", "fa2"),
        (PREFILL, "", "10.0", "fa2"),
        (DECODE, "", "9.0", "fa2_tc"),
        (DECODE, "--kv_dtype fp8_e5m2", "8.9", "fa2_tc"),
    ],
)
def test_auto_is_told_by_what_it_stands_for(routine, flags, capability, expected):
    assert resolved(routine, flags, capability=capability) == expected
    assert expected in ROUTINES[routine].backends


def test_any_other_name_stays_and_so_does_auto_where_nothing_ran():
    assert resolved(PREFILL, backend="cudnn") == "cudnn"
    assert resolved(PREFILL, make=make_skipped) == "auto"
    assert resolved(PREFILL, capability=None) == "auto"
