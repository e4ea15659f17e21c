"""The flags and the help of the commands about this machine."""

from __future__ import annotations

from typing import Final

from flashinfer_bench.cli.flags.engine_words import NCU, NCU_SET, NCU_TIMEOUT_S, SANITIZER, SANITIZER_TYPES
from flashinfer_bench.cli.parser import (
    EXIT_CODES,
    PROGRAM,
    NameList,
    Parser,
    add_format,
    add_local,
    add_names,
    add_sandbox,
    number,
    whole_number,
)
from flashinfer_bench.cli.settings import add_setting

WALLS: Final = (
    "The tool and the solution run in the walls of a worker. Open for them: a loopback and local sockets in a\n"
    "network of their own, and the names of threads below /proc. What comes out is a lead and no verdict, since\n"
    "a solution could forge it. An NVIDIA GPU is needed (docs/inspect.md)."
)
SANITIZER_TIMEOUT_S: Final = 300.0


def declare_build(parser: Parser) -> None:
    """Add the help and the flags of the command."""
    parser.describe(
        "Compile the solutions of a trace set, or single solution files, without running any. No GPU is\n"
        "needed: CUDA solutions are compiled for the GPUs here, else for sm_90a. What is built is kept for `run`.\n"
        "A solution for which something is missing here (a compiler, a package) is skipped with the reason.\n"
        f"{EXIT_CODES}",
        usage="%(prog)s [FILE ...] [--local PATH] [flags]",
        example=f"{PROGRAM} build --local flashinfer-trace --authors cuda --arch sm_80 sm_90a",
        execute="machine.build:execute",
    )
    parser.add_argument("files", nargs="*", metavar="FILE", help="solution files (default: the solutions of the set)")
    add_local(parser)
    group = parser.add_argument_group("what to build", "one or more names each, separated by spaces or commas")
    add_names(group, "--definitions", "only solutions of these definitions")
    add_names(group, "--op-types", "only solutions of these op types")
    add_names(group, "--solutions", "only these solutions")
    add_names(group, "--authors", "only solutions of these authors")
    group = parser.add_argument_group("how")
    add_names(group, "--arch", "GPU architectures to compile CUDA solutions for, such as sm_90a (default: those here)")
    jobs_help = "compilers at once (default: as many as there are cores)"
    add_setting(group, "build_jobs", jobs_help)
    group.add_argument("--require-built", action="store_true", help="exit with 1 when anything was skipped, too")
    add_format(group)
    group.add_argument("--quiet", action="store_true", help="no progress; only errors and the result")
    parser.set_defaults(config=None)


def declare_cache(parser: Parser) -> None:
    """Add the help and the sub-commands."""
    text = "List, remove or check what is built, and the times of references."
    parser.describe(text, example=f"{PROGRAM} cache show")
    commands = parser.add_commands()
    show = commands.add_parser("show", help="list what is built")
    show.describe(
        "List the built solutions, precompiled headers, and solutions that did not compile: where they lie and how\n"
        f"much room they take, and how much the kernels that judge. {EXIT_CODES}",
        example=f"{PROGRAM} cache show",
        execute="machine.cache:execute_show",
    )
    clear = commands.add_parser("clear", help="remove what is built")
    clear.describe(
        "Remove the built solutions, what solutions have compiled when they ran, and the kernels that judge. What a\n"
        f"run is using stays. {EXIT_CODES}",
        example=f"{PROGRAM} cache clear --keep-gb 5",
        execute="machine.cache:execute_clear",
    )
    which = clear.add_mutually_exclusive_group()
    which.add_argument(
        "--failed", action="store_true", help="forget only what did not compile, so that it is tried again"
    )
    which.add_argument(
        "--keep-gb", type=number, metavar="F", help="remove what was not used for longest, until this much is left"
    )
    verify = commands.add_parser("verify", help="check what is built")
    verify.describe(
        "Hold every built file against the digest that was noted when it was built. What is damaged is\n"
        f"built again when it is next needed. {EXIT_CODES}",
        example=f"{PROGRAM} cache verify --remove",
        execute="machine.cache:execute_verify",
    )
    verify.add_argument("--remove", action="store_true", help="remove what is damaged")
    baselines = commands.add_parser("baselines", help="list the times of references that runs have kept")
    baselines.describe(
        "List what references took on the GPUs of this machine. A later run on the same GPU, with the same versions\n"
        f"and settings, takes these times over, unless --fresh-baselines is given. {EXIT_CODES}",
        example=f"{PROGRAM} cache baselines",
        execute="machine.cache:execute_baselines",
    )
    baselines.add_argument("--clear", action="store_true", help="remove them")
    for command in (show, clear, verify, baselines):
        add_format(command)


def declare_doctor(parser: Parser) -> None:
    """Add the help and the flags of the command."""
    parser.describe(
        "Tell what this machine can measure, by which method, and how far its times can be compared: "
        "exit code 0 where it can, 1 where something is broken.",
        example=f"{PROGRAM} doctor --device 0",
        execute="machine.doctor:execute",
    )
    parser.add_argument("--device", metavar="NAME", help="0, cuda:1, a GPU's uuid, or cpu (default: the first GPU)")
    add_sandbox(parser, default="auto")
    parser.add_argument("--quick", action="store_true", help="do not time the same kernels twice through the engine")
    add_format(parser)


def declare_inspect(parser: Parser) -> None:
    """Add the help and the sub-commands."""
    parser.describe(
        "Look at one call of a solution with Nsight Compute or compute-sanitizer.",
        example=f"{PROGRAM} inspect ncu --local flashinfer-trace --solution cuda_rmsnorm_h4096 --workload d01172",
    )
    commands = parser.add_commands()
    _declare_ncu(commands.add_parser("ncu", help="profile its kernels with Nsight Compute"))
    _declare_sanitizer(commands.add_parser("sanitizer", help="find bad memory accesses and races"))


def _declare_ncu(parser: Parser) -> None:
    parser.describe(
        "Profile the kernels of one call: duration, achieved bandwidth, occupancy, use of tensor cores, why warps\n"
        "wait; beside them the share of the roofline, where the cost of the workload is known.\n"
        f"{WALLS}\n{EXIT_CODES}",
        usage="%(prog)s --solution S --workload U [--local PATH] [flags]",
        example=f"{PROGRAM} inspect ncu --local flashinfer-trace --solution cuda_rmsnorm_h4096 --workload d01172",
        execute="machine.inspect:execute_ncu",
    )
    _add_subject(parser)
    group = parser.add_argument_group("what is profiled")
    group.add_argument("--set", default=NCU_SET, metavar="NAME", help="ncu's set of sections (default: detailed)")
    sections = "further sections of ncu's"
    group.add_argument("--sections", nargs="+", action=NameList, default=[], metavar="NAME", help=sections)
    group.add_argument("--kernel-name", metavar="NAME", help="only these kernels, as ncu takes it: NAME, or regex:EXPR")
    group.add_argument("--page", choices=("details", "raw"), default="details", help="what of the report is printed")
    cold = "L2 before each kernel: flushed, or left as it is (default: %(default)s)"
    group.add_argument("--l2-cache", choices=("cold", "warm"), default="cold", help=cold)
    group.add_argument("--warmup-runs", type=whole_number, default=2, metavar="N", help="calls before (default: 2)")
    group.add_argument("--ncu-path", default=NCU, metavar="PATH", help="the program (default: ncu)")
    _add_how(parser, NCU_TIMEOUT_S)


def _declare_sanitizer(parser: Parser) -> None:
    parser.describe(
        "Find accesses out of bounds (memcheck), races in shared memory (racecheck), reads of memory that nobody\n"
        "wrote (initcheck) and wrong barriers (synccheck) in one call, with file and line.\n"
        f"{WALLS}\n{EXIT_CODES} A finding is a failure.",
        usage="%(prog)s --solution S --workload U [--local PATH] [flags]",
        example=f"{PROGRAM} inspect sanitizer --local flashinfer-trace --solution cuda_rmsnorm_h4096 --workload d01172",
        execute="machine.inspect:execute_sanitizer",
    )
    _add_subject(parser)
    group = parser.add_argument_group("what is checked")
    checks = f"of {', '.join(SANITIZER_TYPES)} (default: all)"
    group.add_argument("--checks", nargs="+", action=NameList, default=[], metavar="NAME", help=checks)
    path = "the program (default: compute-sanitizer)"
    group.add_argument("--sanitizer-path", default=SANITIZER, metavar="PATH", help=path)
    _add_how(parser, SANITIZER_TIMEOUT_S)


def _add_subject(parser: Parser) -> None:
    parser.add_argument("--solution", "--solutions", required=True, metavar="S", help="its name, or a JSON file")
    text = "a uuid or a unique beginning of one, or a JSON file"
    parser.add_argument("--workload", "--workloads", required=True, metavar="U", help=text)
    parser.add_argument("--definition", "--definitions", metavar="D", help="its name (default: the solution's)")
    add_local(parser)


def _add_how(parser: Parser, limit_s: float) -> None:
    group = parser.add_argument_group("how")
    group.add_argument("--device", metavar="NAME", help="0, cuda:1, or a GPU's uuid (default: the first GPU)")
    group.add_argument("--seed", type=whole_number, metavar="N", help="seed of the inputs (default: always the same)")
    limit = f"seconds that the tool may take (default: {limit_s:g}; of compute-sanitizer for each check)"
    group.add_argument("--timeout", type=number, default=limit_s, metavar="F", help=limit)
    add_sandbox(group, default="auto")
    add_format(group)
