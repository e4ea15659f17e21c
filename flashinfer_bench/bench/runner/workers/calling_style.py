"""How a solution is called: with inputs only, returning outputs ("value"), or with outputs to fill ("dps").

A solution can declare its style. Without a declaration, the signature of the solution decides. If the signature allows
any number of arguments, the names of the parameters decide. If the names do not decide, the solution is called once
with its inputs only. Outputs are judged in the same way for both styles, so no trust is needed here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from flashinfer_bench.errors import SolutionFailure
from flashinfer_bench.worker.protocol import Returned, Signature, Style

DECLARED: Final = "the solution's spec"
FORMAT_DEFAULT: Final = "the format's default"
NOTHING: Final = "builtins.NoneType"
"""The type of None in a worker's report."""


@dataclass(frozen=True)
class CallingStyle:
    """A calling style, and how it was found."""

    style: Style
    reported_by: str
    """Source of the style, for the trace."""
    is_known: bool = True
    """False if the style is unknown and a call must show it (`RemoteKernel.settle_style`)."""

    @property
    def is_dps(self) -> bool:
        """Whether outputs to fill are passed in."""
        return self.style == "dps"

    def to_note(self) -> dict[str, str] | None:
        """Return the style for a trace; None if the solution declares it."""
        return None if self.reported_by == DECLARED else {"style": self.style, "told_by": self.reported_by}


def choose_style(
    signature: Signature | None,
    *,
    inputs: Sequence[str],
    outputs: Sequence[str],
    declared: bool | None,
    is_python: bool,
) -> CallingStyle:
    """Return how a solution is called, as far as this is known without a call.

    A solution may declare no style, and both styles may fit. In this case the parameters after the inputs have
    defaults, such as `eps=1e-6`. Parameters with defaults are no outputs, so the solution is value-returning.

    Args:
        signature: signature of the entry function; None if it is unknown.
        inputs: names of the definition's inputs.
        outputs: names of the definition's outputs.
        declared: `destination_passing_style`; None if the solution does not declare it.
        is_python: the entry function is not compiled. A compiled function without a known signature gets the format's
            default.

    Raises:
        SolutionFailure: the entry function cannot be called in this style (COMPILE_ERROR). The message shows both
            signatures.
    """
    if declared is None and signature is None and not is_python:
        return CallingStyle("dps", FORMAT_DEFAULT)

    def fits(count: int) -> bool:
        if signature is None:
            return True
        return signature.minimum <= count and (signature.maximum is None or count <= signature.maximum)

    counts: dict[Style, int] = {"value": len(inputs), "dps": len(inputs) + len(outputs)}
    wanted: list[Style] = ["value", "dps"] if declared is None else ["dps"] if declared else ["value"]
    fitting = [style for style in wanted if fits(counts[style])]
    if not fitting:
        raise SolutionFailure("COMPILE_ERROR", _describe_misfit(signature, wanted, inputs, outputs))
    if declared is not None:
        return CallingStyle(fitting[0], DECLARED)
    if signature is not None and (signature.maximum is not None or len(fitting) == 1):
        return CallingStyle(fitting[0], "the number of its parameters")
    return _find_open_style(signature, list(inputs), list(outputs))


def _find_open_style(signature: Signature | None, inputs: list[str], outputs: list[str]) -> CallingStyle:
    """Return the style of a function that takes any number of arguments."""
    if signature is not None and signature.names == [*inputs, *outputs]:
        return CallingStyle("dps", "its parameters are the inputs and outputs")
    if signature is not None and signature.names == inputs:
        return CallingStyle("value", "its parameters are the inputs")
    return CallingStyle("value", "nothing yet", is_known=False)


def find_style(returned: Sequence[Returned], outputs: Sequence[str]) -> CallingStyle:
    """Return the style shown by a call with the inputs only."""
    if outputs and [value.type for value in returned] == [NOTHING]:
        return CallingStyle("dps", "a call with its inputs alone returned nothing")
    return CallingStyle("value", "a call with its inputs alone returned a value")


def _describe_misfit(
    signature: Signature | None, wanted: Sequence[Style], inputs: Sequence[str], outputs: Sequence[str]
) -> str:
    names = {"value": ", ".join(inputs), "dps": ", ".join((*inputs, *outputs))}
    expected = " or ".join(f"({names[style]})" for style in wanted)
    found = signature.text if signature else "(...)"
    return f"the entry function takes {found}, not the definition's arguments {expected}"
