"""Solutions: paths that stay inside, styles that were declared or not, what the digest covers."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from flashinfer_bench.data import Solution
from tests.kit import make_solution


@pytest.mark.parametrize(
    "path",
    ["", "/main.py", "../main.py", "a/../main.py", "..\\main.py", "\\main.py", "C:/main.py", "~/main.py", "a/",
     "main\0.py", "m\n.py", ".", "x" * 300 + ".py"],
)  # fmt: skip
def test_a_source_path_that_may_leave_its_folder_is_refused(path):
    with pytest.raises(ValidationError, match=r"sources\.0\.path"):
        make_solution(sources={path: ""}, entry_point="main.py::run")


@pytest.mark.parametrize("path", ["./pkg//main.py", "pkg\\main.py", ".\\pkg\\main.py"])
def test_source_paths_are_brought_into_one_form(path):
    solution = make_solution(sources={path: "x"}, entry_point=f"{path}::run")
    assert solution.get_entry_source().path == "pkg/main.py"
    assert str(solution.get_entry_path()) == "pkg/main.py"
    assert solution.get_entry_symbol() == "run"


def test_a_source_twice_is_refused():
    sources = [{"path": "main.py", "content": "1"}, {"path": "./main.py", "content": "2"}]
    with pytest.raises(ValidationError, match=r"'main\.py' is there twice"):
        Solution.model_validate({**make_solution().to_dict(), "sources": sources})


def test_a_file_that_is_also_a_folder_is_refused():
    with pytest.raises(ValidationError, match=r"the folder of 'main\.py/a\.py'"):
        make_solution(sources={"main.py": "", "main.py/a.py": ""})


def test_no_source_is_refused():
    with pytest.raises(ValidationError, match="no source file"):
        make_solution(sources={})


@pytest.mark.parametrize("entry_point", ["main.py", "::run", "main.py::", "../main.py::run", "main.py::a::run"])
def test_an_entry_point_needs_file_and_function(entry_point):
    with pytest.raises(ValidationError, match=r"spec\.entry_point"):
        make_solution(entry_point=entry_point)


def test_an_entry_point_that_is_no_source_is_refused_with_the_nearest():
    with pytest.raises(ValidationError, match=r"did you mean 'main\.py'"):
        make_solution(entry_point="mian.py::run")


@pytest.mark.parametrize("declared", [None, True, False])
def test_the_declared_style_survives_a_round_trip(declared):
    solution = make_solution(destination_passing_style=declared)
    again = Solution.model_validate_json(solution.to_json())
    assert again == solution
    assert again.spec.declared_style is declared
    assert again.spec.destination_passing_style is (declared is not False)


def test_the_digest_covers_sources_and_spec_alone():
    base = make_solution()
    assert make_solution(source="def run(x): return 2 * x").digest() != base.digest()
    assert make_solution(destination_passing_style=True).digest() != base.digest()
    assert make_solution(language="triton").digest() != base.digest()
    assert make_solution(definition="other").digest() != base.digest()
    assert make_solution(name="other", author="bob").digest() == base.digest() == base.hash()


def test_compile_options_are_kept():
    options = {"cflags": ["-O3"], "ld_flags": ["-lcuda"]}
    solution = make_solution(language="cuda", compile_options=options)
    assert solution.to_dict()["spec"]["compile_options"] == options
    assert solution.spec.compile_options.cuda_cflags == []
