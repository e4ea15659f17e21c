"""Compiles a solution's Triton kernels, its extensions of torch, and what it needs of FlashInfer, before its turn: by
calls that compute nothing, in a worker without a GPU.

It runs while another solution is measured, so it takes as little of the machine as can be: the lowest priority, and
cores that it cannot leave. What it compiles lies in the solution's own cache. Nothing that it says is believed, and a
solution that fails here is compiled at its first call, as always.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from flashinfer_bench.sandbox.process_tree import show_memory
from flashinfer_bench.sandbox.seccomp import refuse_calls
from flashinfer_bench.worker.jit.left_locks import enter_extensions
from flashinfer_bench.worker.jit.module_layer import link_modules
from flashinfer_bench.worker.jit.stand_in import LOWEST_PRIORITY, stand_in
from flashinfer_bench.worker.load import LoadedEntry, load_entry


def precompile(order: Mapping[str, Any], shared_modules: str | None = None) -> None:
    """Load the solution, and make the calls of the order on tensors without memory.

    Args:
        order: `directory`, `entry`, `symbol` and `kind` of its artifact, the `calls`, each with `inputs` and `outputs`,
            the `gpu` (see `stand_in`), the `cores` that it may use, and how many `compilers` it may run at once.
        shared_modules: FlashInfer's folder of modules that are compiled already; None where there is none.
    """
    step_back(order["cores"])
    os.environ["MAX_JOBS"] = str(order["compilers"])
    show_memory()
    if shared_modules is not None:
        link_modules(Path(shared_modules), Path(os.environ["FLASHINFER_WORKSPACE_BASE"]))
    if "TORCH_EXTENSIONS_DIR" in os.environ:
        enter_extensions(Path(os.environ["TORCH_EXTENSIONS_DIR"]))
    with stand_in(order["gpu"]):
        loaded = load_entry(Path(order["directory"]), order["entry"], order["symbol"], kind=order["kind"])
        for call in order["calls"]:
            try:
                call_once(loaded, call)
            except Exception:
                traceback.print_exc()


def step_back(cores: Sequence[int]) -> None:
    """Use idle time of these cores alone from here on; it cannot be taken back."""
    os.nice(LOWEST_PRIORITY)
    os.sched_setaffinity(0, cores)
    torch.set_num_threads(1)
    refuse_calls(("sched_setaffinity", "sched_setattr", "sched_setscheduler", "sched_setparam"))


def call_once(loaded: LoadedEntry, call: Mapping[str, Any]) -> None:
    """Make one call; with its outputs where the entry function takes these, too."""
    inputs = [make_argument(one) for one in call["inputs"]]
    outputs = [make_argument(one) for one in call["outputs"]]
    takes = loaded.signature
    fills = takes is not None and takes.minimum >= len(inputs) + len(outputs)
    given = [*inputs, *outputs] if fills else inputs
    loaded.function(*given, **loaded.bind_setup(inputs, given)())


def make_argument(described: Mapping[str, Any]) -> Any:
    """Return a number, or a tensor of this shape."""
    if "scalar" in described:
        return described["scalar"]
    return torch.empty(described["shape"], dtype=getattr(torch, described["dtype"]), device="cuda")
