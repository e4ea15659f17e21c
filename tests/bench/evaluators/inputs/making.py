"""Definitions and inputs for the tests of this folder: axes are the names in the specs."""

from __future__ import annotations

import re
from pathlib import Path

import torch

from flashinfer_bench.bench.evaluators.inputs.make import InputMaker
from tests.kit.make import make_definition, make_workload

CPU = torch.device("cpu")


def define(inputs, body="return 1", *, before="", axes=(), outputs=None, **others):
    """Return a definition whose reference has this body; every axis that `axes` does not say is variable."""
    outputs = outputs or {"y": "float32"}
    specs = [
        spec if isinstance(spec, str) else " ".join(spec["shape"]) for spec in (*inputs.values(), *outputs.values())
    ]
    names = {name for spec in specs for name in re.findall(r"\b[a-z]\w*", spec.partition("[")[2])}
    reference = f"import torch\nfrom torch.nn import functional as F\n{before}\ndef run({', '.join(inputs)}):\n"
    return make_definition(
        axes=dict.fromkeys(sorted(names)) | dict(axes),
        inputs=inputs,
        outputs=outputs,
        reference=reference + "".join(f"    {line}\n" for line in body.split("\n")),
        **others,
    )


def make(definition, sources=None, *, seed=1, root=Path("nowhere"), device=CPU, runs=False, **sizes):
    """Return inputs by name; the reference has to bear them if it runs."""
    sizes = {name: size for name, size in sizes.items() if name in definition.axes}
    made = InputMaker(definition, make_workload(axes=sizes, inputs=sources or {}), device, root).make(seed)
    if runs:
        names = {}
        exec(compile(definition.reference, "reference", "exec"), names)
        names["run"](*(value.clone() if isinstance(value, torch.Tensor) else value for value in made))
    return dict(zip(definition.inputs, made, strict=True))
