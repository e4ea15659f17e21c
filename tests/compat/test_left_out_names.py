"""Names of the public package that stay out: an import says so, and what to read."""

import pytest

import flashinfer_bench

NAMES = [
    *("apply", "enable_apply", "disable_apply", "ApplyConfig", "ApplyConfigRegistry"),
    *("enable_tracing", "disable_tracing", "TracingConfig", "TracingConfigRegistry", "integration"),
]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_stays_out_is_an_import_error_with_the_reason(name):
    with pytest.raises(ImportError, match=rf"flashinfer_bench has no {name}: .*docs/migration\.md"):
        exec(f"from flashinfer_bench import {name}")
    assert name not in dir(flashinfer_bench)


def test_any_other_name_is_what_it_always_was():
    assert not hasattr(flashinfer_bench, "aply")
