"""Where a solution raised, in the words of its own files."""

import sys

import pytest

from flashinfer_bench.worker.errors import find_location, message_of
from flashinfer_bench.worker.load import load_python

pytestmark = pytest.mark.cpu

HELPER = "def fail():\n    raise ValueError('no such tile')\n"
CHAINED = """\
from helper import fail
def run(x):
    try:
        fail()
    except ValueError as error:
        raise RuntimeError("bad") from error
"""
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
    {line}

def run(x):
    source = ASTSource(fn=kernel, signature={{"p": "*fp32"}}, constexprs={{}})
    triton.compile(source, target=GPUTarget("cuda", 90, 32))
"""


@pytest.fixture
def raised(tmp_path, monkeypatch):
    """Import sources and call `run` of main.py; returns what was raised."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = set(sys.modules)

    def raise_it(**sources):
        for name, text in sources.items():
            (tmp_path / f"{name}.py").write_text(text)
        with pytest.raises(BaseException) as caught:
            load_python(tmp_path, "main.py", "run").function(1)
        return caught.value

    yield raise_it
    for name in {*sys.modules} - before:
        if name == "helper" or "solution" in name:
            del sys.modules[name]


@pytest.mark.parametrize(
    ("source", "location"),
    [
        ("from helper import fail as run\n\n\nfail = run\nrun = lambda x: fail()\n", "at helper.py:2, in fail"),
        ("import nowhere\ndef run(x): ...\n", "at main.py:1"),
        ("def run(x)\n", "at main.py:1"),
        ("import json\ndef run(x):\n    json.loads('{')\n", "at main.py:3, in run"),
        (CHAINED, "at main.py:6, in run; caused by ValueError: no such tile, at helper.py:2, in fail"),
        ("def run(x):\n    exec('1 / 0')\n", "at main.py:2, in run"),
    ],
    ids=["helper", "import", "syntax", "library", "cause", "exec"],
)
def test_the_innermost_line_of_the_solution_is_named(raised, source, location):
    assert find_location(raised(main=source, helper=HELPER)) == location


def test_what_is_raised_outside_has_no_location():
    assert find_location(ValueError("x")) == ""


@pytest.mark.parametrize(
    ("line", "location"),
    [
        ("tl.store(p, tl.nowhere(1))", "at main.py:12, in kernel"),
        ("tl.store(p, missing)", "at main.py:12, in kernel"),
        ("tl.store(p, inner(1))", "at main.py:8, in inner"),
    ],
    ids=["attribute", "name", "called"],
)
@pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")
def test_a_kernel_that_does_not_compile_is_named_by_its_line(raised, line, location):
    pytest.importorskip("triton")
    error = raised(main=KERNEL.format(line=line))
    assert find_location(error) == location
    assert message_of(error).startswith(("AttributeError", "NameError", "module", "name"))
