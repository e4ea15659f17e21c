"""Which flags a solution may ask for; none may read or write outside the build, or be run by a shell."""

from pathlib import Path

import pytest

from flashinfer_bench.compile import BuildFailure
from flashinfer_bench.compile.flags import check_flags
from flashinfer_bench.data.solution import CompileOptions

TOOLKIT = Path("/usr/local/cuda")
SAME = {
    "cflags": "-O3 -std=c++20 -march=native -mtune=native -Wno-unused-parameter -fopenmp -fno-strict-aliasing",
    "cuda_cflags": "-gencode=arch=compute_90,code=[sm_90,compute_90] --use_fast_math --expt-extended-lambda "
    "-U__CUDA_NO_HALF_OPERATORS__ -rdc=true",
    "ld_flags": "-L/usr/local/cuda/lib64 -Wl,--no-as-needed -Wl,-rpath,/usr/local/cuda/lib64 "
    "-Wl,--exclude-libs,libx.a:liby.a",
}
"""Flags that compilers get as they stand."""
SPELT = {
    "cflags": {
        "-D NAME='\"a b\"'": ['-DNAME="a b"'],
        "-Iinclude/deep": ["-I./include/deep"],
        "-isystem ./include/": ["-isystem", "./include"],
        "-I /usr/local/cuda/include": ["-I/usr/local/cuda/include"],
        "'-DMIN(a,b)=((a)<(b)?(a):(b))'": ["-DMIN(a,b)=((a)<(b)?(a):(b))"],
    },
    "cuda_cflags": {
        "-gencode arch=compute_90a,code=sm_90a": ["-gencode=arch=compute_90a,code=sm_90a"],
        "-arch sm_90a": ["-arch=sm_90a"],
        "-Xptxas -v,-O3": ["-Xptxas", "-v", "-Xptxas", "-O3"],
        "-Xcompiler=-fopenmp,-O2": ["-Xcompiler", "-fopenmp", "-Xcompiler", "-O2"],
        "-Xcudafe --diag_suppress=177": ["-Xcudafe", "--diag_suppress=177"],
        "--maxrregcount 64": ["--maxrregcount=64"],
    },
    "ld_flags": {"-lcublas -l cuda": ["-lcublas", "-lcuda"], "-Llib": ["-L./lib"]},
}
HARMFUL = """
-o x|-o/tmp/x|@flags|-include /etc/passwd|-imacros x|-fplugin=evil|-fplugin-arg-x-y|-wrapper sh|-B/tmp|-specs=x|-I/etc
-I../up|-isystem /root|-L/tmp|-Wl,-o,x|-Wl,-T,x|-Wl,@x|-Wl,-Map=x|-fdump-tree-all|-fprofile-use=x|-fprofile-generate
-fauto-profile=x|-fcallgraph-info|-save-temps|-DX=$(id)|-DX=`id`|-D'X=a\\b'|-x c|-E|-M|-MF x|-Xlinker a
-Xpreprocessor -DX|--param a=1|-keep|-ccbin sh|--compiler-bindir=/tmp|-optf x|--options-file x|-Xptxas -o,x
-Xcompiler -o,x|-Xcompiler -fplugin=x|-Xnvlink -o|-dlink|main.cpp|-|-l../x|-l/x|-time x|--dryrun|-I|'
-I @flags|-I@flags|-isystem @flags|-isystem -fplugin=x|-L @flags|-Wl,-rpath,@flags|-Wl,-rpath-link=@flags
-Wl,-rpath,lib,-T,script|-Wl,--exclude-libs,a,-plugin,x.so|-I a,/etc|-DX=1,@flags|-D 'X=1, @flags'|-U X=1,@flags
-D X=a,b,@flags|-l@flags|-Xcompiler @flags|-Xcompiler=-O2,@flags|-Xptxas @flags|-Xcudafe @flags
-Xcompiler -wrapper,sh|-foffload=x
"""
"""Flags that leave the sources, write, start something, or make a tool read flags from a file."""


def check(kind, *entries):
    return getattr(check_flags(CompileOptions(**{kind: list(entries)}), [TOOLKIT]), kind)


@pytest.mark.parametrize("kind", SAME)
def test_requirements_of_solutions_reach_the_compilers_word_by_word(kind):
    assert check(kind, SAME[kind]) == SAME[kind].split()
    for given, expected in SPELT[kind].items():
        assert check(kind, given) == expected


@pytest.mark.parametrize("kind", SAME)
@pytest.mark.parametrize("flag", HARMFUL.strip().replace("\n", "|").split("|"))
def test_flags_that_could_reach_outside_are_refused(kind, flag):
    with pytest.raises(BuildFailure, match=rf"^compile_options\.{kind}: "):
        check(kind, flag)


def test_all_wrong_flags_are_reported_at_once_even_if_split_over_entries():
    with pytest.raises(
        BuildFailure, match=r"(?s)cflags: '-o'.*cuda_cflags: '-keep'.*ld_flags: '-T'.*docs/building\.md"
    ):
        check_flags(CompileOptions(cflags=["-O3 -o", "/tmp/x"], cuda_cflags=["-keep"], ld_flags=["-T x"]), [])


def test_no_flag_takes_more_than_one_core():
    assert check("ld_flags", "-flto=64 -flto=auto -flto -fopenmp") == ["-flto=1", "-flto=1", "-flto", "-fopenmp"]
    assert check("cuda_cflags", "--threads=0 -t8 --split-compile 2 -Xptxas --split-compile=9") == [
        *("--threads=1", "-t1", "--split-compile=1", "-Xptxas", "--split-compile=1")
    ]
