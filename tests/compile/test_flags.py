"""Which flags a solution may ask for; none may read or write outside the build, or be run by a shell."""

from pathlib import Path

import pytest

from flashinfer_bench.compile import BuildFailure
from flashinfer_bench.compile.compilers import Compilers, StepLimits
from flashinfer_bench.compile.flags import check_flags, limit_threads
from flashinfer_bench.compile.recipe import BuildStep
from flashinfer_bench.data.solution import CompileOptions

TOOLKIT = Path("/usr/local/cuda")

HARMLESS = {
    "cflags": [
        ["-O3", "-O3"],
        ["-std=c++20", "-std=c++20"],
        ["-march=native -mtune=native", "-march=native", "-mtune=native"],
        ["-Wno-unused-parameter", "-Wno-unused-parameter"],
        ["-fopenmp", "-fopenmp"],
        ["-fno-strict-aliasing", "-fno-strict-aliasing"],
        ["-D NAME='\"a b\"'", '-DNAME="a b"'],
        ["-Iinclude/deep", "-I./include/deep"],
        ["-isystem ./include/", "-isystem", "./include"],
        ["-I /usr/local/cuda/include", "-I/usr/local/cuda/include"],
        ["'-DMIN(a,b)=((a)<(b)?(a):(b))'", "-DMIN(a,b)=((a)<(b)?(a):(b))"],
    ],
    "cuda_cflags": [
        ["-gencode arch=compute_90a,code=sm_90a", "-gencode=arch=compute_90a,code=sm_90a"],
        ["-gencode=arch=compute_90,code=[sm_90,compute_90]", "-gencode=arch=compute_90,code=[sm_90,compute_90]"],
        ["-arch sm_90a", "-arch=sm_90a"],
        ["--use_fast_math", "--use_fast_math"],
        ["--expt-extended-lambda", "--expt-extended-lambda"],
        ["-Xptxas -v,-O3", "-Xptxas", "-v", "-Xptxas", "-O3"],
        ["-Xcompiler=-fopenmp,-O2", "-Xcompiler", "-fopenmp", "-Xcompiler", "-O2"],
        ["-Xcudafe --diag_suppress=177", "-Xcudafe", "--diag_suppress=177"],
        ["--maxrregcount 64", "--maxrregcount=64"],
        ["-U__CUDA_NO_HALF_OPERATORS__", "-U__CUDA_NO_HALF_OPERATORS__"],
        ["-rdc=true", "-rdc=true"],
    ],
    "ld_flags": [
        ["-lcublas -l cuda", "-lcublas", "-lcuda"],
        ["-L/usr/local/cuda/lib64", "-L/usr/local/cuda/lib64"],
        ["-Wl,--no-as-needed", "-Wl,--no-as-needed"],
        ["-Wl,-rpath,/usr/local/cuda/lib64", "-Wl,-rpath,/usr/local/cuda/lib64"],
        ["-Wl,--exclude-libs,libx.a:liby.a", "-Wl,--exclude-libs,libx.a:liby.a"],
        ["-Llib", "-L./lib"],
    ],
}
HARMFUL = [
    *(
        "-o x",
        "-o/tmp/x",
        "@flags",
        "-include /etc/passwd",
        "-imacros x",
        "-fplugin=evil",
        "-fplugin-arg-x-y",
        "-wrapper sh",
    ),
    *(
        "-B/tmp",
        "-specs=x",
        "-I/etc",
        "-I../up",
        "-isystem /root",
        "-L/tmp",
        "-Wl,-o,x",
        "-Wl,-T,x",
        "-Wl,@x",
        "-Wl,-Map=x",
    ),
    *(
        "-fdump-tree-all",
        "-fprofile-use=x",
        "-fprofile-generate",
        "-fauto-profile=x",
        "-fcallgraph-info",
        "-save-temps",
    ),
    *(
        "-DX=$(id)",
        "-DX=`id`",
        "-D'X=a\\b'",
        "-x c",
        "-E",
        "-M",
        "-MF x",
        "-Xlinker a",
        "-Xpreprocessor -DX",
        "--param a=1",
    ),
    *("-keep", "-ccbin sh", "--compiler-bindir=/tmp", "-optf x", "--options-file x", "-Xptxas -o,x", "-Xcompiler -o,x"),
    *(
        "-Xcompiler -fplugin=x",
        "-Xnvlink -o",
        "-dlink",
        "main.cpp",
        "-",
        "-l../x",
        "-l/x",
        "-time x",
        "--dryrun",
        "-I",
        "'",
    ),
]


@pytest.mark.parametrize(
    ("kind", "given", "expected"), [(kind, case[0], case[1:]) for kind, cases in HARMLESS.items() for case in cases]
)
def test_what_solutions_need_reaches_the_compilers_word_by_word(kind, given, expected):
    flags = check_flags(CompileOptions(**{kind: [given]}), [TOOLKIT])
    assert [*flags.cxx, *flags.nvcc, *flags.link] == expected


RESPONSE_FILES = [
    *("-I @flags", "-I@flags", "-isystem @flags", "-isystem -fplugin=x", "-L @flags", "-Wl,-rpath,@flags"),
    *("-Wl,-rpath-link=@flags", "-Wl,-rpath,lib,-T,script", "-Wl,--exclude-libs,a,-plugin,x.so", "-I a,/etc"),
    *("-DX=1,@flags", "-D 'X=1, @flags'", "-U X=1,@flags", "-D X=a,b,@flags", "-l@flags", "-Xcompiler @flags"),
    *("-Xcompiler=-O2,@flags", "-Xptxas @flags", "-Xcudafe @flags", "-Xcompiler -wrapper,sh", "-foffload=x"),
]


@pytest.mark.parametrize("kind", HARMLESS)
@pytest.mark.parametrize("flag", HARMFUL)
def test_what_could_reach_outside_is_refused(kind, flag):
    with pytest.raises(BuildFailure, match=rf"^compile_options\.{kind}: "):
        check_flags(CompileOptions(**{kind: [flag]}), [TOOLKIT])


@pytest.mark.parametrize("kind", HARMLESS)
@pytest.mark.parametrize("flag", RESPONSE_FILES)
def test_no_value_makes_a_tool_read_flags_from_a_file_or_begins_another_flag(kind, flag):
    with pytest.raises(BuildFailure, match=rf"^compile_options\.{kind}: "):
        check_flags(CompileOptions(**{kind: [flag]}), [TOOLKIT])


def test_a_harmful_flag_is_not_hidden_by_being_split_over_entries():
    with pytest.raises(BuildFailure, match="'-o'"):
        check_flags(CompileOptions(cflags=["-O3 -o", "/tmp/x"]), [])


def test_all_wrong_flags_are_told_at_once():
    with pytest.raises(BuildFailure) as refused:
        check_flags(CompileOptions(cflags=["-o x"], cuda_cflags=["-keep"], ld_flags=["-T x"]), [])
    assert str(refused.value).count("compile_options.") == 3
    assert "docs/building.md" in str(refused.value)


def test_no_options_are_no_flags():
    assert check_flags(None, []) == check_flags(CompileOptions(), [])


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["-flto=64"], ["-flto=4"]),
        (["-flto=2", "-flto", "-flto=thin"], ["-flto=2", "-flto", "-flto=thin"]),
        (["-flto=auto", "-flto=jobserver", "-flto-jobs=9"], ["-flto=4", "-flto=4", "-flto-jobs=4"]),
        (["--threads=64", "-threads=3", "-t=64", "-t64"], ["--threads=4", "-threads=3", "-t=4", "-t4"]),
        (["--threads=0", "--split-compile=0"], ["--threads=4", "--split-compile=4"]),
        (["-Xptxas", "--split-compile=64"], ["-Xptxas", "--split-compile=4"]),
        (["-fopenmp", "-O3", "-ftree-parallelize-loops=64"], ["-fopenmp", "-O3", "-ftree-parallelize-loops=64"]),
    ],
)
def test_no_flag_takes_more_cores_than_a_build_has(words, expected):
    assert limit_threads(words, 4) == expected


def test_a_compiler_is_started_with_no_more_threads_than_its_build_may_use(tmp_path):
    for folder in ("src", "obj", "files", "tmp"):
        (tmp_path / folder).mkdir()
    stage = [BuildStep(str(index), ("/bin/echo", "-flto=64")) for index in range(2)]
    reports = Compilers(StepLimits(60, 1 << 30)).run([stage], tmp_path, 60.0, parallel=6)
    assert [step.output for step in reports] == ["-flto=3\n"] * 2
