import sys

import pytest

from flashinfer_bench.compile import BuildFailure, Toolchain, build_solution, find_unavailable_languages
from tests.kit.make import make_solution


def test_sources_are_written_where_the_entry_point_says(tmp_path):
    solution = make_solution(
        sources={"pkg/main.py": "from .f import g\ndef run(x): ...", "pkg/f.py": "g = 1"},
        entry_point="pkg/main.py::run",
    )
    artifact = build_solution(solution, tmp_path)
    assert (artifact.entry, artifact.symbol) == ("pkg/main.py", "run")
    assert (artifact.directory / "pkg" / "f.py").read_text() == "g = 1"


def test_building_runs_none_of_the_code(tmp_path):
    build_solution(make_solution(source="import sys\nsys.modules['was_run'] = 1\ndef run(x): ..."), tmp_path)
    assert "was_run" not in sys.modules


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def run(x:\n", r"SyntaxError: .*, at main\.py:1"),
        ("x = 1\n  y = 2", r"IndentationError: .*, at main\.py:2"),
        ("a\0b", r"null bytes, at main\.py"),
        ("(" * 5000, r"main\.py"),
        ("#" * (5 << 20), "the limit for a source file"),
    ],
    ids=["syntax", "indentation", "null", "nested", "large"],
)
def test_a_file_that_does_not_parse_is_named(tmp_path, source, message):
    with pytest.raises(BuildFailure, match=message):
        build_solution(make_solution(source=source), tmp_path)


def test_a_description_changes_no_artifact_and_a_source_does(tmp_path):
    first = build_solution(make_solution(), tmp_path).directory
    assert build_solution(make_solution("renamed", author="bob"), tmp_path).directory == first
    assert build_solution(make_solution(source="def run(x):\n    return x + x\n"), tmp_path).directory != first


def test_a_missing_compiler_or_package_has_a_reason_and_a_remedy():
    nothing = Toolchain(None, None, None, None, None)
    reasons = find_unavailable_languages(nothing, installed=lambda package: False)
    assert reasons["python"] is None
    assert "pip install triton" in reasons["triton"]
    assert "install g++" in reasons["cpp"]
    assert "CUDA_HOME" in reasons["cuda"]
    assert find_unavailable_languages(nothing, installed=lambda package: True)["triton"] is None
