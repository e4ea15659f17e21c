"""What compilers said, for people."""

import pytest

from flashinfer_bench.compile.compilers import StepReport
from flashinfer_bench.compile.diagnostics import (
    bound_log,
    describe_failure,
    first_error,
    lead_with_error,
    other_architecture,
    ran_out_of_memory,
    why_machine,
)


def report(output, code=1):
    return StepReport("compile main.cu", code, output, 1.0)


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (
            "a.cpp: In function 'f':\nsub/a.cpp:12:5: error: 'x' was not declared\n",
            "sub/a.cpp:12: error: 'x' was not declared",
        ),
        ("a.cpp:3:10: fatal error: b.h: No such file", "a.cpp:3: error: b.h: No such file"),
        ('k.cu(7): error: identifier "x" is undefined\n', 'k.cu:7: error: identifier "x" is undefined'),
        ("k.cu(7): error #20-D: identifier is odd", "k.cu:7: error: identifier is odd"),
        ("k.cu(1): catastrophic error: cannot open", "k.cu:1: error: cannot open"),
        ("a.cpp:9:1: warning: error: in words\nb.cpp:4:1: error: real\n", "b.cpp:4: error: real"),
        (
            "ld: a.o: in function `f':\na.cpp:5: undefined reference to `g'",
            "a.cpp:5: error: undefined reference to `g'",
        ),
        ("/usr/bin/ld: cannot find -lgone: No such file", "error: /usr/bin/ld: cannot find -lgone: No such file"),
        (
            "ptxas error   : Entry function 'k' uses too much shared data",
            "error: ptxas error   : Entry function 'k' uses",
        ),
        ('At end of source: error: expected a "}"', 'error: expected a "}"'),
        ("all is well", None),
    ],
)
def test_the_first_error_has_its_file_and_line(output, expected):
    found = first_error(output)
    assert (found or "").startswith(expected or "")
    assert (found is None) == (expected is None)


def test_a_message_is_the_first_error_then_the_end_then_the_log():
    message = describe_failure(report("note\nm.cu(2): error: wrong\n")).splitlines()
    assert message[:3] == [
        "m.cu:2: error: wrong",
        "compile main.cu: the compiler ended with exit code 1",
        "--- compiler output ---",
    ]
    assert message[3:] == ["note", "m.cu(2): error: wrong"]
    assert describe_failure(report("", -11)) == "compile main.cu: the compiler was killed by SIGSEGV"
    assert describe_failure(report("", -99)) == "compile main.cu: the compiler was killed by signal 99"


def test_a_log_is_bounded_and_the_cut_is_marked():
    text = bound_log("a" * 5000 + "b" * 5000, 1000)
    assert text.startswith("a" * 750)
    assert text.endswith("b" * 250)
    assert "[... 9000 characters cut ...]" in text
    assert bound_log("short") == "short"


@pytest.mark.parametrize(
    ("output", "code", "is_machine"),
    [
        ("fatal error: error writing to x: No space left on device", 1, True),
        ("nvcc error   : 'cicc' died due to signal 9 (Kill signal)", 255, True),
        ("g++: fatal error: Killed signal terminated program cc1plus", 1, True),
        ("", -9, True),
        ("nvcc error   : 'cicc' died due to signal 11 (Invalid memory reference)", 255, False),
        ("a.cpp:1:1: error: x", 1, False),
    ],
)
def test_a_full_disk_and_a_kill_are_the_machines_where_more_than_words_tells_of_them(output, code, is_machine):
    assert (why_machine(report(output, code), disk_is_full=True, memory_kills=1) is not None) == is_machine
    assert (why_machine(report(output, code), disk_is_full=False, memory_kills=0) is not None) == (code < 0)


def test_memory_and_architecture_are_told_apart_from_other_errors():
    assert ran_out_of_memory(report("cc1plus: out of memory allocating 65536 bytes"))
    assert ran_out_of_memory(report("terminate called after throwing an instance of 'std::bad_alloc'"))
    assert not ran_out_of_memory(report("a.cpp:1:1: error: x"))
    line = "ptxas /tmp/x.ptx, line 18; error   : Instruction 'wgmma.fence' not supported on .target 'sm_80'"
    words = "Instruction 'wgmma.fence' not supported on .target 'sm_80'"
    assert other_architecture(report(f"one\n{line}\ntwo")) == words
    assert other_architecture(report("a.cpp:1:1: error: x")) is None
    printed = "a.cpp:1:15: error: static assertion failed:\n"  # by the source, which chose the next line
    assert other_architecture(report(f"{printed}{line}")) is None


NINJA = """RuntimeError in the import: Error building extension 'mine': [1/2] c++ -MMD -c main.cpp -o main.o
FAILED: [code=1] main.o
c++ -MMD -DERROR=error -c main.cpp -o main.o
In file included from main.cpp:1:
mine.h:3:5: error: 'x' was not declared in this scope
ninja: build stopped: subcommand failed.
"""


def test_what_a_build_system_only_quotes_comes_first():
    assert lead_with_error(NINJA.replace("mine.h:3", "/tmp/home/mine.h:3")).startswith("mine.h:3: error: 'x' was")
    assert lead_with_error(NINJA) == f"mine.h:3: error: 'x' was not declared in this scope\n{NINJA}"


@pytest.mark.parametrize("message", ["ValueError: a.py:3: error: mine", "ninja: build stopped: an error\n"])
def test_other_messages_stay_as_they_are(message):
    assert lead_with_error(message) == message
