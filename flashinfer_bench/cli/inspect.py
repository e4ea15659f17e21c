"""`inspect ncu` and `inspect sanitizer`: run a tool of NVIDIA on one call of a solution."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING, Final

from flashinfer_bench.cli.output import write_err
from flashinfer_bench.cli.parser import EXIT_CODES, Parser, add_flags, add_format, add_local, add_sandbox

if TYPE_CHECKING:
    from flashinfer_bench.examine.inspect.tool_runs import Inspected, ToolStep

SANDBOX: Final = (
    "The tool and the solution run in a worker's sandbox. Exemptions for the tool: a private network with\n"
    "loopback and local sockets, and the names of threads below /proc. The output is a hint and no verdict,\n"
    "because a solution could forge it. An NVIDIA GPU is needed (docs/inspect.md)."
)


NCU_FLAGS: Final = ("set", "sections", "kernel_name", "page", "l2_cache", "warmup_runs", "timeout")


EXAMPLE: Final = "--local flashinfer-trace --solution cuda_rmsnorm_h4096 --workload d01172"
USAGE: Final = "%(prog)s --solution S --workload U [--local PATH] [flags]"


def declare_inspect(parser: Parser) -> None:
    """Add the help and the sub-commands."""
    parser.describe(
        "Inspect one call of a solution with Nsight Compute or compute-sanitizer.", example=f"inspect ncu {EXAMPLE}"
    )
    ncu = parser.add_command(
        "ncu",
        "profile its kernels with Nsight Compute",
        description="Profile the kernels of one call: duration, achieved bandwidth, occupancy, use of tensor cores, "
        "why warps\nwait, and the share of the roofline if the cost of the workload is known.\n"
        f"{SANDBOX}\n{EXIT_CODES}",
        usage=USAGE,
        example=f"inspect ncu {EXAMPLE}",
        execute=execute_ncu,
    )
    _add_target(ncu)
    flags = {
        "--set NAME": "ncu's set of sections (default: detailed)",
        "--sections NAME...": "further sections of ncu",
        "--kernel-name NAME": "only these kernels: NAME, or regex:EXPR, in ncu's syntax",
        "--page details|raw": "page of the report to print",
        "--l2-cache cold|warm": "L2 before each kernel: flushed (cold), or not flushed (warm) (default: %(default)s)",
        "--warmup-runs N": "warm-up calls before the profiled call (default: 2)",
        "--ncu-path PATH": "the program (default: ncu)",
    }
    defaults = {"set": "detailed", "page": "details", "l2_cache": "cold", "warmup_runs": 2, "ncu_path": "ncu"}
    add_flags(ncu.add_argument_group("what to profile"), flags, sections=[], **defaults)
    _add_how(ncu)
    sanitizer = parser.add_command(
        "sanitizer",
        "find bad memory accesses and races",
        description="Find accesses out of bounds (memcheck), races in shared memory (racecheck), reads of unwritten "
        "memory\n(initcheck) and wrong barriers (synccheck) in one call, with file and line.\n"
        f"{SANDBOX}\n{EXIT_CODES} A finding is a failure.",
        usage=USAGE,
        example=f"inspect sanitizer {EXAMPLE}",
        execute=execute_sanitizer,
    )
    _add_target(sanitizer)
    flags = {
        "--checks NAME...": "of memcheck, racecheck, initcheck, synccheck (default: all)",
        "--sanitizer-path PATH": "the program (default: compute-sanitizer)",
    }
    group = sanitizer.add_argument_group("what to check")
    add_flags(group, flags, checks=[], sanitizer_path="compute-sanitizer")
    _add_how(sanitizer)


def _add_target(parser: Parser) -> None:
    parser.add_argument("--solution", "--solutions", required=True, metavar="S", help="its name, or a JSON file")
    text = "a uuid or its unique beginning, or a JSON file"
    parser.add_argument("--workload", "--workloads", required=True, metavar="U", help=text)
    add_flags(parser, {"--definition --definitions D": "its name (default: the solution's)"})
    add_local(parser)


def _add_how(parser: Parser) -> None:
    group = parser.add_argument_group("how")
    flags = {
        "--device NAME": "0, cuda:1, or a GPU's uuid (default: the first GPU)",
        "--seed N": "seed of the inputs (default: always the same)",
        "--timeout F": "time limit of the tool in seconds (default: 300; for compute-sanitizer per check)",
    }
    add_flags(group, flags, timeout=300.0)
    add_sandbox(group, default="auto")
    add_format(group)


def execute_ncu(args: Namespace) -> int:
    """Profile one call."""
    from flashinfer_bench.cli.tables import write_result
    from flashinfer_bench.examine.inspect import ncu, tool_runs

    program = tool_runs.find_tool("ncu", args.ncu_path)
    how = {name: getattr(args, name) for name in NCU_FLAGS}
    plan = ncu.plan_ncu(program, ncu.list_metrics(program), **how)
    document, page = ncu.read_profile(_run_tool(args, plan))
    write_result(args, document, f"{tool_runs.plain(page).rstrip()}\n\n{ncu.render_profile(document)}")
    return 0


def execute_sanitizer(args: Namespace) -> int:
    """Check one call; return 1 if there is a finding, or a check could not run."""
    from flashinfer_bench.cli.tables import write_result
    from flashinfer_bench.examine.inspect import sanitizer, tool_runs

    types = sanitizer.check_types(args.checks)
    program = tool_runs.find_tool("compute-sanitizer", args.sanitizer_path)
    document = sanitizer.read_findings(_run_tool(args, sanitizer.plan_sanitizer(program, types, args.timeout)))
    write_result(args, document, sanitizer.render_findings(document))
    return 1 if document["findings"] or document["problems"] else 0


def _run_tool(args: Namespace, steps: list[ToolStep]) -> Inspected:
    from flashinfer_bench.cli.args import open_trace_set
    from flashinfer_bench.examine.inspect import tool_runs

    device = tool_runs.find_gpu(args.device)
    how = {"definition": args.definition, "sandbox": args.sandbox, "seed": args.seed, "progress": write_err}
    return tool_runs.run_tool(open_trace_set(args), args.solution, args.workload, steps, device, **how)
