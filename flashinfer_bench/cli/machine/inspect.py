"""`inspect ncu` and `inspect sanitizer`: look at one call of a solution with a tool of the vendor's."""

from __future__ import annotations

import argparse
import json
from typing import Any

from flashinfer_bench.cli.args import open_trace_set
from flashinfer_bench.cli.output import write_err, write_out
from flashinfer_bench.errors import Misuse
from flashinfer_bench.examine.inspect.ncu import NcuOptions, list_metrics, plan_ncu, read_profile
from flashinfer_bench.examine.inspect.sanitizer import TYPES, find_problems, plan_sanitizer, read_findings
from flashinfer_bench.examine.inspect.start import InspectSite, InspectSubject, look
from flashinfer_bench.examine.inspect.subject import resolve_subject
from flashinfer_bench.examine.inspect.summary import (
    findings_document,
    plain,
    profile_document,
    render_findings,
    render_profile,
)
from flashinfer_bench.examine.inspect.tools import NCU, SANITIZER, find_gpu, find_tool


def execute_ncu(args: argparse.Namespace) -> int:
    """Profile one call."""
    program = find_tool(NCU, args.ncu_path)
    device = find_gpu(args.device)
    subject = choose_subject(args)
    options = NcuOptions(
        set=args.set,
        sections=args.sections,
        kernel_name=args.kernel_name,
        page=args.page,
        cache=args.l2_cache,
        warm_up_calls=args.warmup_runs,
        timeout_s=args.timeout,
    )
    site = InspectSite(device, args.sandbox, seed=args.seed)
    done = look(subject, plan_ncu(program, options, list_metrics(program)), site, write_err)
    kernels, page = read_profile(done)
    document = profile_document(subject, device, kernels, done)
    _write(args, document, f"{plain(page).rstrip()}\n\n{render_profile(document)}")
    return 0


def execute_sanitizer(args: argparse.Namespace) -> int:
    """Check one call; return 1 where something was found, or could not be checked."""
    types = check_types(args.checks)
    program = find_tool(SANITIZER, args.sanitizer_path)
    device = find_gpu(args.device)
    subject = choose_subject(args)
    plan = plan_sanitizer(program, types, args.timeout)
    done = look(subject, plan, InspectSite(device, args.sandbox, seed=args.seed), write_err)
    findings = read_findings(done, [source.path for source in subject.solution.sources])
    problems = find_problems(done, findings)
    document = findings_document(subject, device, findings, problems, done)
    _write(args, document, render_findings(document, findings))
    return 1 if findings or problems else 0


def check_types(given: list[str]) -> list[str]:
    """Return the checks to make: those that were named, or all.

    Raises:
        Misuse: one of them is unknown.
    """
    unknown = [name for name in given if name not in TYPES]
    if unknown:
        raise Misuse(f"--checks: unknown {', '.join(unknown)}; known: {', '.join(TYPES)}")
    return list(dict.fromkeys(given or TYPES))


def choose_subject(args: argparse.Namespace) -> InspectSubject:
    """Return what the flags name."""
    return resolve_subject(open_trace_set(args), args.solution, args.workload, args.definition)


def _write(args: argparse.Namespace, document: dict[str, Any], text: str) -> None:
    write_out(json.dumps(document, indent=2) + "\n" if args.format == "json" else text)
