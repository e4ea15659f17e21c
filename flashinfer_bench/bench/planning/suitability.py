"""Whether a solution can run on this machine at all, from its language and the free text of its target_hardware.

In doubt it runs: only a solution that names one kind of device and nothing else is kept from the other kind.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, Literal

from flashinfer_bench.bench.machine import Machine
from flashinfer_bench.data.solution import Solution, SupportedLanguages

CPU_WORDS: Final = frozenset({"cpu", "cpus", "x86", "amd64", "arm64", "aarch64", "host"})
GPU_WORDS: Final = frozenset(
    {"gpu", "gpus", "cuda", "nvidia", "rtx", "sm", "ampere", "ada", "hopper", "blackwell", "rubin"}
)
INTERPRET_HINT: Final = " (--interpret runs it in Triton's interpreter, whose times say nothing)"
GPU_MODEL: Final = re.compile(r"(?:[abhlvt]|gb|gh|rtx|sm|mi)\d{2,4}[a-z]{0,2}")
"""Names of GPUs, for example H100, GB200, L40S, RTX5090, sm90 or MI300X."""


def why_not_here(solution: Solution, machine: Machine, *, interpret: bool = False) -> str | None:
    """Return why a solution cannot run on this machine, or None when it can.

    Args:
        solution: what is to run.
        machine: where.
        interpret: Triton's interpreter runs kernels that are for GPUs alone, where there is no GPU.
    """
    language = solution.spec.language
    if language.value not in machine.languages:
        return f"language {language.value} has no builder"
    reason = machine.languages[language.value]
    if reason is not None:
        return f"language {language.value} is not available here: {reason}"
    reason = machine.why_not_buildable(solution)
    if reason is not None:
        return reason
    if machine.kind == "cpu" and language.record.needs_gpu:
        return f"a {language.value} solution needs an NVIDIA GPU; the device here is {machine.hardware}"
    kinds = read_target_kinds(solution.spec.target_hardware)
    if not kinds or machine.kind in kinds:
        return None
    wanted = ", ".join(solution.spec.target_hardware)
    reason = f"target_hardware is {wanted}; the device here is {machine.hardware}"
    if machine.kind == "cpu" and language is SupportedLanguages.TRITON:
        return None if interpret else f"{reason}{INTERPRET_HINT}"
    return reason


def read_target_kinds(target_hardware: Iterable[str]) -> frozenset[Literal["cpu", "cuda"]]:
    """Return the kinds of device that the entries name; empty when an entry may mean any device."""
    kinds: set[Literal["cpu", "cuda"]] = set()
    for entry in target_hardware:
        words = set(re.split(r"[^a-z0-9]+", entry.lower()))
        if words & CPU_WORDS:
            kinds.add("cpu")
        elif words & GPU_WORDS or any(GPU_MODEL.fullmatch(word) for word in words):
            kinds.add("cuda")
        else:
            return frozenset()
    return frozenset(kinds)
