"""Runs the probe in a process of its own. So the doctor's own process makes no CUDA context and imports no torch."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Final

from flashinfer_bench.base.exits import describe_exit
from flashinfer_bench.bench.machine import Device
from flashinfer_bench.bench.runner.environments import session_environment
from flashinfer_bench.examine.doctor.readings import Readings, readings_from_json

CHILD: Final = "flashinfer_bench.examine.doctor.probe"
LIMIT_S: Final = 300.0
"""A probe that takes longer is ended, and has measured nothing."""


class ProbeFailed(Exception):
    """The probe gave no readings; the reason is its text."""


def run_probe(
    device: Device,
    *,
    limit_s: float = LIMIT_S,
    command: Sequence[str] = (sys.executable, "-m", CHILD),
    environment: Mapping[str, str] = os.environ,
) -> Readings:
    """Measure a device.

    Args:
        device: the only device that the probe sees.
        limit_s: seconds that it may take.
        command: what is started; the device's kind is added to it.
        environment: what it is started in, with the device chosen.

    Raises:
        ProbeFailed: it could not measure. The text has the last line that it wrote, and its command.
    """
    words = [*command, device.kind]
    try:
        child = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=session_environment(environment, device, interpret_triton=False),
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ProbeFailed(f"measuring took more than {limit_s:g} s: {shlex.join(words)}") from None
    try:
        return readings_from_json(child.stdout)
    except (ValueError, KeyError, TypeError):
        said = child.stderr.strip().splitlines()
        last = said[-1] if said else "it said nothing"
        raise ProbeFailed(
            f"the process that measures {describe_exit(child.returncode)}: {last} (command: {shlex.join(words)})"
        ) from None
