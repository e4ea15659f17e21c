"""`inspect ncu` and `inspect sanitizer`: look at one call of a solution with a tool of the vendor's."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from flashinfer_bench.cli.output import write_err, write_json, write_out
from flashinfer_bench.cli.parser import (
    EXIT_CODES,
    PROGRAM,
    NameList,
    Parser,
    add_format,
    add_local,
    add_sandbox,
    number,
    whole_number,
)

if TYPE_CHECKING:
    from flashinfer_bench.examine.inspect.look import Inspected, ToolStep

WALLS: Final = (
    "The tool and the solution run in the walls of a worker. Open for them: a loopback and local sockets in a\n"
    "network of their own, and the names of threads below /proc. What comes out is a lead and no verdict, since\n"
    "a solution could forge it. An NVIDIA GPU is needed (docs/inspect.md)."
)


NCU_FLAGS: Final = ("set", "sections", "kernel_name", "page", "l2_cache", "warmup_runs", "timeout")


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
    _add_target(parser)
    group = parser.add_argument_group("what is profiled")
    group.add_argument("--set", default="detailed", metavar="NAME", help="ncu's set of sections (default: detailed)")
    sections = "further sections of ncu's"
    group.add_argument("--sections", nargs="+", action=NameList, default=[], metavar="NAME", help=sections)
    group.add_argument("--kernel-name", metavar="NAME", help="only these kernels, as ncu takes it: NAME, or regex:EXPR")
    group.add_argument("--page", choices=("details", "raw"), default="details", help="what of the report is printed")
    cold = "L2 before each kernel: flushed, or left as it is (default: %(default)s)"
    group.add_argument("--l2-cache", choices=("cold", "warm"), default="cold", help=cold)
    group.add_argument("--warmup-runs", type=whole_number, default=2, metavar="N", help="calls before (default: 2)")
    group.add_argument("--ncu-path", default="ncu", metavar="PATH", help="the program (default: ncu)")
    _add_how(parser)


def _declare_sanitizer(parser: Parser) -> None:
    parser.describe(
        "Find accesses out of bounds (memcheck), races in shared memory (racecheck), reads of memory that nobody\n"
        "wrote (initcheck) and wrong barriers (synccheck) in one call, with file and line.\n"
        f"{WALLS}\n{EXIT_CODES} A finding is a failure.",
        usage="%(prog)s --solution S --workload U [--local PATH] [flags]",
        example=f"{PROGRAM} inspect sanitizer --local flashinfer-trace --solution cuda_rmsnorm_h4096 --workload d01172",
        execute="machine.inspect:execute_sanitizer",
    )
    _add_target(parser)
    group = parser.add_argument_group("what is checked")
    checks = "of memcheck, racecheck, initcheck, synccheck (default: all)"
    group.add_argument("--checks", nargs="+", action=NameList, default=[], metavar="NAME", help=checks)
    path = "the program (default: compute-sanitizer)"
    group.add_argument("--sanitizer-path", default="compute-sanitizer", metavar="PATH", help=path)
    _add_how(parser)


def _add_target(parser: Parser) -> None:
    parser.add_argument("--solution", "--solutions", required=True, metavar="S", help="its name, or a JSON file")
    text = "a uuid or a unique beginning of one, or a JSON file"
    parser.add_argument("--workload", "--workloads", required=True, metavar="U", help=text)
    parser.add_argument("--definition", "--definitions", metavar="D", help="its name (default: the solution's)")
    add_local(parser)


def _add_how(parser: Parser) -> None:
    group = parser.add_argument_group("how")
    group.add_argument("--device", metavar="NAME", help="0, cuda:1, or a GPU's uuid (default: the first GPU)")
    group.add_argument("--seed", type=whole_number, metavar="N", help="seed of the inputs (default: always the same)")
    limit = "seconds that the tool may take (default: 300; of compute-sanitizer for each check)"
    group.add_argument("--timeout", type=number, default=300.0, metavar="F", help=limit)
    add_sandbox(group, default="auto")
    add_format(group)


def execute_ncu(args: argparse.Namespace) -> int:
    """Profile one call."""
    from flashinfer_bench.examine.inspect import look, ncu

    program = look.find_tool("ncu", args.ncu_path)
    how = {name: getattr(args, name) for name in NCU_FLAGS}
    plan = ncu.plan_ncu(program, ncu.list_metrics(program), **how)
    document, page = ncu.read_profile(_look(args, plan))
    _write(args, document, f"{look.plain(page).rstrip()}\n\n{ncu.render_profile(document)}")
    return 0


def execute_sanitizer(args: argparse.Namespace) -> int:
    """Check one call; return 1 if something was found, or could not be checked."""
    from flashinfer_bench.examine.inspect import look, sanitizer

    types = sanitizer.check_types(args.checks)
    program = look.find_tool("compute-sanitizer", args.sanitizer_path)
    document = sanitizer.read_findings(_look(args, sanitizer.plan_sanitizer(program, types, args.timeout)))
    _write(args, document, sanitizer.render_findings(document))
    return 1 if document["findings"] or document["problems"] else 0


def _look(args: argparse.Namespace, steps: list[ToolStep]) -> Inspected:
    from flashinfer_bench.cli.args import open_trace_set
    from flashinfer_bench.examine.inspect import look

    device = look.find_gpu(args.device)
    how = {"definition": args.definition, "sandbox": args.sandbox, "seed": args.seed, "tell": write_err}
    return look.look(open_trace_set(args), args.solution, args.workload, steps, device, **how)


def _write(args: argparse.Namespace, document: Mapping[str, Any], text: str) -> None:
    if args.format == "json":
        write_json(document)
    else:
        write_out(text)
