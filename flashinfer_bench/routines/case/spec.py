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
    """What a message says: a value "must be" this."""
    least: float
    most: float

    def __contains__(self, value: float) -> bool:
        """Tell whether a number is one of them; nan never is."""
        return self.least <= value <= self.most


POSITIVE: Final = Span("above 0, from 1e-30 to 1e30", 1e-30, 1e30)
"""Further out, a product or quotient of float32 becomes 0 or infinite, and then nothing is compared but NaN."""
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
    """What a float may be."""

    @property
    def least(self) -> int:
        """The smallest whole number that it takes: 0 where that is its default, else 1."""
        return 0 if self.default == 0 else 1

    def why_not(self, value: float) -> str | None:
        """Say why it does not take a number; None where it does, and for flags that are none."""
        if self.kind == "int" and value < self.least:
            return f"--{self.name} {value}: must be at least {self.least}"
        if self.kind == "float" and value not in self.span:
            return f"--{self.name} {value}: must be {self.span.words}"
        return None


@dataclass(frozen=True)
class Source:
    """A function of `routines.code`, to be lifted into a file of its own."""

    file: str
    """Module of `routines.code`."""
    function: str
    """It becomes `run`."""
    constants: Mapping[str, Any] = field(default_factory=dict)
    """Values for constants of the module, by name."""


@dataclass(frozen=True)
class Tensor:
    """An input or output."""

    dtype: str
    shape: str | None
    """Axes and numbers with spaces between; None for a Python number."""
    value: npt.NDArray[Any] | float | None = None
    """What the input holds; None for values drawn from the seed."""
    note: str = ""
    """For people, and for the rules that draw values."""


@dataclass(frozen=True)
class Check:
    """When an output is right: see `bench.evaluators.compare.rule`."""

    rtol: float = 1e-2
    atol: float = 1e-2
    ratio: float | None = None
    """Share of elements that must match; None leaves it to the evaluator."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Parameters of the evaluator."""

    def settings(self) -> dict[str, Any]:
        """Return it in the words of a configuration's section."""
        return {
            "rtol": self.rtol,
            "atol": self.atol,
            "required_matched_ratio": self.ratio,
            "extra": dict(self.extra),
        }


@dataclass(frozen=True)
class Case:
    """One routine with all its sizes: everything that a run of it needs."""

    label: str
    """The sizes in a few letters; part of the definition's name."""
    op_type: str
    axes: Mapping[str, int]
    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]
    reference: Source
    solutions: Mapping[str, Source]
    """Backend to the code that calls it; `torch` is not among them."""
    cost: Cost
    check: Check = Check()
    tags: tuple[str, ...] = ()
    refusals: Mapping[str, str] = field(default_factory=dict)
    """Backend to the reason why it cannot do this case, whatever the GPU."""
    columns: Mapping[str, Any] = field(default_factory=dict)
    """What the table gets beside the flags, such as the average sequence length."""
    notes: tuple[str, ...] = ()
    """Lines for -v."""
    shown: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Whole numbers that stand behind the inputs, for -vv."""
    dps: frozenset[str] = frozenset()
    """Backends whose code writes into outputs that it is given."""
    needs_ranks: frozenset[str] = frozenset()
    """Backends that run as ranks of mpirun, past the engine; they have no solution."""


@dataclass(frozen=True)
class Routine:
    """One line of the table."""

    name: str
    family: str
    summary: str
    flags: tuple[Flag, ...]
    default_backends: tuple[str, ...]
    support: Mapping[str, tuple[str, ...]]
    """Backend to the compute capabilities that it runs on."""
    make_case: Callable[[Namespace], Case]
    """Raises Misuse where flags do not go together."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Other spellings of backends, as older documents have them."""
    module: str = ""
    """What the library compiles at the first call of any case of it; routines of one module share it. Empty where it
    depends on the case."""

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
