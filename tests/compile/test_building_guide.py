"""docs/building.md: its CUDA files compile as they stand; the C++ ones run in `bench/test_compiled_solutions.py`."""

import pytest

from flashinfer_bench.compile import BuildFarm, BuildTarget, find_toolchain
from tests.kit import make_solution
from tests.kit.building_guide import read_forms

TOOLCHAIN = find_toolchain()
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.cpu]
FORMS = read_forms()


def solution_of(binding):
    """Make the solution of a section of the guide, without optimisation where torch's headers take long."""
    sources = FORMS["cuda", binding]
    options = {"cflags": ["-O0"]} if binding == "torch" else {}
    parts = {"language": "cuda", "binding": binding, "entry_point": f"{next(iter(sources))}::run"}
    return make_solution(f"cuda_{binding}", sources=sources, compile_options=options, **parts)


def test_the_guide_has_each_language_with_each_binding():
    assert {*FORMS} == {(one, other) for one in ("cpp", "cuda") for other in ("tvm-ffi", "torch")}


@pytest.mark.skipif(TOOLCHAIN.cuda is None or TOOLCHAIN.tvm_ffi is None, reason="needs nvcc and tvm-ffi")
def test_the_cuda_files_compile(tmp_path):
    solutions = [solution_of(binding) for binding in ("tvm-ffi", "torch")]
    with BuildFarm(tmp_path, jobs=2, target=BuildTarget.of([(9, 0)])) as farm:
        assert [built.error for built in farm.build_all(solutions)] == [None, None]
