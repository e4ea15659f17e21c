"""The words of the routines: a flag, a routine, and the case that a routine makes of flags. Frozen values, no torch."""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from flashinfer_bench.roofline.cost import Cost

if TYPE_CHECKING:
    import numpy.typing as npt

Kind = Literal["int", "float", "text", "switch"]
TORCH: Final = "torch"
"""The backend that every routine has: its reference."""


@dataclass(frozen=True)
class Span:
    """The numbers that a flag takes, both ends included."""

    words: str
    """The range in words, for the message that a value "must be" so."""
    least: float
    most: float

    def __contains__(self, value: float) -> bool:
        """Tell whether a number is one of them; nan never is."""
        return self.least <= value <= self.most


POSITIVE: Final = Span("above 0, from 1e-30 to 1e30", 1e-30, 1e30)
"""Beyond these numbers a float32 product or quotient becomes 0 or infinite, and only NaN would be compared."""
NOT_NEGATIVE: Final = Span("at least 0, and at most 1e30", 0.0, 1e30)
PROBABILITY: Final = Span("above 0, from 1e-30 to 1", 1e-30, 1.0)
BELOW_ONE: Final = Span("at least 0, and below 1", 0.0, math.nextafter(1.0, 0.0))


@dataclass(frozen=True)
class Flag:
    """One flag of the command line, spelt `--name`."""

    name: str
    kind: Kind
    help: str
    default: Any = None
    choices: tuple[Any, ...] = ()
    required: bool = False
    span: Span = POSITIVE
    """The range of a float."""

    @property
    def least(self) -> int:
        """The smallest whole number that the flag takes: 0 where 0 is the default, else 1."""
        return 0 if self.default == 0 else 1

    def why_not(self, value: float) -> str | None:
        """Say why the flag does not take a number; None where it does, and for flags of text."""
        if self.kind == "int" and value < self.least:
            return f"--{self.name} {value}: must be at least {self.least}"
        if self.kind == "float" and value not in self.span:
            return f"--{self.name} {value}: must be {self.span.words}"
        return None


@dataclass(frozen=True)
class Code:
    """A function of `routines.code`, to be lifted into a file of its own."""

    file: str
    """Module of `routines.code`."""
    function: str
    """The function's name in that module; in the new file it is `run`."""
    constants: Mapping[str, Any] = field(default_factory=dict)
    """Values for constants of the module, by name."""


@dataclass(frozen=True)
class Tensor:
    """An input or output."""

    dtype: str
    shape: str | None
    """Axes and numbers with spaces between; None for a Python number."""
    value: npt.NDArray[Any] | float | None = None
    """The values of an input; None for values that are drawn from the seed."""
    note: str = ""
    """A description for people. The rules that draw values read it too."""


@dataclass(frozen=True)
class Check:
    """When an output is right; `bench.evaluators.compare.rule` has the rule."""

    rtol: float = 1e-2
    atol: float = 1e-2
    ratio: float | None = None
    """Share of elements that must match; None leaves it to the evaluator."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Parameters of the evaluator."""

    def settings(self) -> dict[str, Any]:
        """Return the check as a section of a configuration."""
        return {
            "rtol": self.rtol,
            "atol": self.atol,
            "required_matched_ratio": self.ratio,
            "extra": dict(self.extra),
        }


@dataclass(frozen=True)
class Case:
    """One routine at one set of sizes, with everything that a run of it needs."""

    label: str
    """The sizes in a few letters; part of the definition's name."""
    op_type: str
    axes: Mapping[str, int]
    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]
    reference: Code
    solutions: Mapping[str, Code]
    """Backend → the code that calls it, for all backends but `torch`."""
    cost: Cost
    check: Check = Check()
    tags: tuple[str, ...] = ()
    refusals: Mapping[str, str] = field(default_factory=dict)
    """Backend → why it cannot do this case on any GPU."""
    columns: Mapping[str, Any] = field(default_factory=dict)
    """Further columns of the table, such as the average sequence length."""
    notes: tuple[str, ...] = ()
    """Lines that -v shows."""
    shown: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Whole numbers from which the inputs were made; -vv shows them."""
    dps: frozenset[str] = frozenset()
    """Backends whose code writes into given outputs, and returns nothing."""
    needs_ranks: frozenset[str] = frozenset()
    """Backends that run as ranks of mpirun and not in the engine. They have no solution."""


@dataclass(frozen=True)
class Routine:
    """One routine: what it takes, and which backends run it on which GPUs."""

    name: str
    family: str
    summary: str
    flags: tuple[Flag, ...]
    support: Mapping[str, tuple[str, ...]]
    """Backend → the compute capabilities that it runs on. The first backend is the default."""
    make_case: Callable[[Namespace], Case]
    """Makes a case of flags; raises Misuse where flags contradict each other."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Spelling of a backend in older documents → its name here."""
    module: str = ""
    """The module that the library compiles at the first call, whatever the case. Routines that share it are compiled
    ahead once. Empty where the module depends on the case."""

    @property
    def default_backends(self) -> tuple[str, ...]:
        """The backends that run where nobody names any."""
        return tuple(self.support)[:1]

    @property
    def backends(self) -> tuple[str, ...]:
        """Every backend, `torch` last."""
        return (*self.support, TORCH)


ALL: Final = ("7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "10.3", "12.0")
"""The compute capabilities of the support matrix."""
AMPERE_ON: Final = ALL[1:]
ADA_ON: Final = ALL[3:]
HOPPER: Final = ("9.0",)
BLACKWELL: Final = ("10.0", "10.3")
