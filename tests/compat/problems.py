"""Problems in their own folders, as in other engines, for tests."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

REFERENCE: Final = """
import torch

def get_inputs(axes_and_scalars, device):
    rows, wide = axes_and_scalars["rows"], axes_and_scalars["wide"]
    x = torch.softmax(torch.randn(rows, wide, device=device), dim=-1)
    return {"x": x, "offsets": torch.arange(rows + 1, dtype=torch.int32, device=device)}

@torch.no_grad()
def run(x, offsets, scale):
    assert offsets.shape[0] == x.shape[0] + 1
    return (x.double().cumsum(-1) * scale).float()
"""
DEFINITION: Final[dict[str, Any]] = {
    "name": "scaled_cumsum",
    "hf_id": "org/model",
    "custom_inputs_entrypoint": "get_inputs",
    "axes": {
        "rows": {"type": "var"},
        "heads": {"type": "const", "value": 4},
        "wide": {"type": "expr", "expression": "half * 2"},
        "half": {"type": "expr", "expression": "heads * 8"},
        "ends": {"type": "expr", "expression": "rows + 1"},
    },
    "inputs": {
        "x": {"shape": ["rows", "wide"], "dtype": "float32"},
        "offsets": {"shape": ["ends"], "dtype": "int32"},
        "scale": {"shape": None, "dtype": "float32"},
    },
    "outputs": {"y": {"shape": ["rows", "wide"], "dtype": "float32"}},
    "reference": REFERENCE,
}
INPUTS: Final = {"x": {"type": "custom"}, "offsets": {"type": "custom"}, "scale": {"type": "scalar", "value": 2.0}}
STRICT: Final = {"max_atol": 1e-6, "max_rtol": 1e-6, "required_matched_ratio": 1.0}
RIGHT: Final = "import torch\n\ndef run(x, offsets, scale):\n    return (x.double().cumsum(-1) * scale).float()\n"
HALF_A_PERCENT_OFF: Final = RIGHT.replace("* scale)", "* scale * 1.005)")


def make_line(uuid: str, rows: int = 8, **others: Any) -> dict[str, Any]:
    """Make a workload's line, without a trace around it."""
    return {"axes": {"rows": rows}, "inputs": INPUTS, "uuid": uuid, **others}


def make_answer(name: str, **changes: Any) -> dict[str, Any]:
    """Make a solution with its source in the next file, `<name>.py`."""
    spec = {
        "languages": ["pytorch"],
        "target_hardware": ["LOCAL"],
        "entry_point": f"{name}.py::run",
        "destination_passing_style": False,
    }
    return {"name": name, "definition": "scaled_cumsum", "author": "somebody", "spec": spec,
            "sources": [{"path": f"{name}.py"}], **changes}  # fmt: skip


def write_problem(
    folder: Path,
    *,
    lines: Sequence[Mapping[str, Any]] = (),
    answers: Mapping[str, str] | None = None,
    **changes: Any,
) -> Path:
    """Write a problem's folder; answers are name → source. Returns the folder."""
    folder.mkdir(parents=True)
    (folder / "definition.json").write_text(json.dumps({**DEFINITION, **changes}, indent=2))
    (folder / "workload.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines or [make_line("w0")]))
    for name, source in (answers or {}).items():
        (folder / f"solution_{name}.json").write_text(json.dumps(make_answer(name)))
        (folder / f"{name}.py").write_text(source)
    return folder
