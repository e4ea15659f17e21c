"""How an entry function is called, where it raised, and how a tool calls it as a separate program."""

import json
import sys

import pytest
import torch

from flashinfer_bench.worker import one_call
from flashinfer_bench.worker.errors import find_location, message_of
from flashinfer_bench.worker.load import (
    KeywordRequired,
    describe_signature,
    find_operator,
    load_python,
    read_pybind_signature,
    read_tvm_schema,
)

pytestmark = pytest.mark.cpu

NAMED = (
    '{"type":"ffi.Function","named_args":{"return":[{"type":"None"}],"params":[{"type":"DLTensor*"},{"type":"int"}]}}'
)
PLAIN = '{"type":"ffi.Function","args":[{"type":"ffi.Array","args":[{"type":"ffi.Tensor"}]},{"type":"ffi.Tensor"}]}'


@pytest.mark.parametrize(
    ("doc", "counts"),
    [
        ("run(x: Tuple[int, List[int]], y: int = 3, z: str = 'a') -> Dict[str, int]\n\nWords.", (1, 3)),
        ("run(x: int, *args, **kwargs) -> object", (1, None)),
        ("run(arg0: at::Tensor, mode: Mode = <Mode.fast: 1>) -> at::Tensor", (1, 2)),
        ("words", None),
        ("run(*args, **kwargs) -> x\nOverloaded function.\n\n1. run(a: int) -> x", None),
    ],
)
def test_a_docstring_of_pybind11_tells_how_many_arguments_or_nothing(doc, counts):
    signature = read_pybind_signature(doc)
    assert (signature and (signature.minimum, signature.maximum)) == counts


def test_an_operator_that_a_library_registers_is_found_with_its_arguments():
    library = torch.library.Library("fib_load_test", "DEF")
    known = frozenset(torch._C._dispatch_get_all_op_names())
    library.define("twice(Tensor x, Tensor(a!) y) -> ()")
    signature = describe_signature(find_operator("twice", known))
    assert (signature.minimum, signature.maximum) == (2, 2)
    assert find_operator("twice", [*known, "fib_load_test::twice"]) is None
    assert find_operator("add", known) is None


def test_both_forms_of_tvm_ffis_metadata_are_read_and_odd_ones_tell_nothing():
    assert read_tvm_schema(NAMED) == (["DLTensor*", "int"], "None")
    assert read_tvm_schema(PLAIN) == (["ffi.Tensor"], "ffi.Array")
    for odd in (None, "[]", '{"args":[1]}'):
        assert read_tvm_schema(odd) == (None, None)


def test_a_required_keyword_is_refused_unless_setup_gives_it():
    with pytest.raises(KeywordRequired, match=r"needs a by keyword"):
        describe_signature(lambda x, *, a: None)
    signature = describe_signature(lambda x, *, a: None, is_prepared=True)
    assert (signature.minimum, signature.maximum) == (1, 1)

    def setup(x, *, a): ...

    with pytest.raises(KeywordRequired, match=r"^setup .* needs a by keyword"):
        describe_signature(setup)


# Where a solution raised, in the words of its own files.

HELPER = "def fail():\n    raise ValueError('no such tile')\n"
CHAINED = """\
from helper import fail
def run(x):
    try:
        fail()
    except ValueError as error:
        raise RuntimeError("bad") from error
"""


@pytest.fixture
def raised(tmp_path, monkeypatch):
    """Import sources and call `run` of main.py; return the exception."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = set(sys.modules)

    def raise_it(source):
        (tmp_path / "main.py").write_text(source)
        (tmp_path / "helper.py").write_text(HELPER)
        with pytest.raises(BaseException) as caught:
            load_python(tmp_path, "main.py", "run").function(1)
        return caught.value

    yield raise_it
    for name in {*sys.modules} - before:
        if name == "helper" or "solution" in name:
            del sys.modules[name]


LOCATIONS = {
    "helper": ("from helper import fail as run\n\n\nfail = run\nrun = lambda x: fail()\n", "at helper.py:2, in fail"),
    "import": ("import nowhere\ndef run(x): ...\n", "at main.py:1"),
    "syntax": ("def run(x)\n", "at main.py:1"),
    "library": ("import json\ndef run(x):\n    json.loads('{')\n", "at main.py:3, in run"),
    "cause": (CHAINED, "at helper.py:2, in fail"),
}


@pytest.mark.parametrize(("source", "location"), LOCATIONS.values(), ids=LOCATIONS)
def test_the_innermost_line_of_the_solution_is_named(raised, source, location):
    assert find_location(raised(source)) == location
    assert find_location(ValueError("it was raised outside")) == ""


@pytest.mark.parametrize(
    ("file", "location"),
    [
        ("src/kernel.cu", "at src/kernel.cu:3, in ns::run"),
        ("/usr/include/tvm/ffi/function.h", ""),
        ("python/tvm_ffi/cython/function.pxi", ""),
    ],
)
def test_a_frame_of_tvm_ffi_names_the_solutions_source(file, location):
    code = compile("\n\nraise ValueError", file, "exec").replace(co_name="void ns::run(tvm::ffi::TensorView, int)")
    with pytest.raises(ValueError) as caught:
        exec(code)
    assert find_location(caught.value) == location


KERNEL = """\
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

@triton.jit
def inner(x):
    return tl.nothing(x)

@triton.jit
def kernel(p):
    tl.store(p, inner(1))

def run(x):
    triton.compile(ASTSource(fn=kernel, signature={"p": "*fp32"}, constexprs={}), target=GPUTarget("cuda", 90, 32))
"""


@pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")
def test_a_kernel_that_does_not_compile_is_told_in_one_line_with_the_line_that_launched_it(
    raised, monkeypatch, tmp_path
):
    pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    error = raised(KERNEL)
    assert "has no attribute 'nothing'" in message_of(error).partition("\n")[0]
    assert find_location(error) == "at main.py:15, in run"


PROGRAMS = {
    "value": ("run = lambda *args: 1", None),
    "few arguments": ("def run(x):\n    return x", None),
    "many arguments": ("def run(x, y):\n    y.fill_(x)", None),
    "dps": ("def fill(x, y):\n    y.fill_(x)\nrun = lambda *args: fill(*args)", None),
    "in place": ("def run(x):\n    assert x == 2\n    return x.add_(1)", None),
    "in place, any arguments": (
        "def add(x):\n    assert x == 2\n    return x.add_(1)\nrun = lambda *args: add(*args)",
        None,
    ),
    "wrong": ("def fail(*args):\n    raise ValueError(len(args))\nrun = lambda *args: fail(*args)", "ValueError: 2"),
}


@pytest.mark.parametrize(("source", "error"), PROGRAMS.values(), ids=PROGRAMS)
def test_a_program_of_its_own_shows_its_style_by_a_call(tmp_path, monkeypatch, source, error):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "main.py").write_text(source)
    outcome, order = tmp_path / "outcome.json", tmp_path / "order.json"
    place = {"directory": str(tmp_path), "entry": "main.py", "symbol": "run", "kind": "python", "device": "cpu"}
    values = tmp_path / "values.pt"
    torch.save({"arguments": {"x": torch.tensor(2)}, "outputs": [torch.empty(2, device="meta")]}, values)
    style = {"style": None, "warm_up_calls": 1, "outcome": str(outcome), "values": str(values)}
    order.write_text(json.dumps(place | style))
    assert one_call.main([str(order)]) == (1 if error else 0)
    reported = json.loads(outcome.read_text())
    assert reported == {"called": True} if error is None else error in reported["error"]
