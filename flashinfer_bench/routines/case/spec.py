"""The words of the routines: a flag, a routine, and the case that a routine makes of flags. Frozen values, no torch.

Inputs whose values a case decides itself, such as lengths and page tables, come from `stored`. Random ones of these
come from `--random_seed`, so that equal flags give an equal case.
"""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, Literal

from flashinfer_bench.data.dtypes import Unit
from flashinfer_bench.errors import Misuse
from flashinfer_bench.roofline.cost import Cost, size_of

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Kind = Literal["int", "float", "text", "file", "switch"]
TORCH: Final = "torch"
"""The backend that every routine has: its reference."""
DTYPES: Final = {
    "bfloat16": "bfloat16",
    "float16": "float16",
    "float32": "float32",
    "fp8_e4m3": "float8_e4m3fn",
    "fp8_e5m2": "float8_e5m2",
}
"""A dtype as flags spell it → as definitions spell it."""
HALF: Final = ("bfloat16", "float16")
FP8: Final = ("fp8_e4m3", "fp8_e5m2")


@dataclass(frozen=True)
class Flag:
    """One flag of the command line, spelt `--name`."""

    kind: Kind
    name: str
    help: str
    default: Any = None
    choices: Sequence[Any] = ()
    required: bool = False
    least: float = 1
    most: float = 2**63 - 1
    """The smallest and the largest number that the flag takes."""

    def why_not(self, value: Any) -> str | None:
        """Say why the flag does not take a number; None where it does, and for flags of text."""
        is_outside = self.kind in ("int", "float") and not self.least <= value <= self.most
        return f"{value} must be from {self.least} to {self.most}" if is_outside else None


size = partial(Flag, "int", required=True)
whole = partial(Flag, "int")
from_zero = partial(Flag, "int", default=0, least=0)
real = partial(Flag, "float", least=1e-30, most=1e30)
"""Beyond these numbers a float32 product or quotient becomes 0 or infinite, and only NaN would be compared."""
word = partial(Flag, "text")
switch = partial(Flag, "switch", default=False)
PDL: Final = switch("enable_pdl", "programmatic dependent launch")


def direct(function: str, *arguments: str, **options: object) -> str:
    """Return the text of a call of the library's on inputs, and outputs if they are named."""
    return f"{function}({', '.join([*arguments, *(f'{name}={value!r}' for name, value in options.items())])})"


@dataclass(frozen=True)
class Tensor:
    """An input or output."""

    dtype: str
    shape: str | None
    """Axes and numbers with spaces between; None for a Python number."""
    value: npt.NDArray[Any] | float | None = None
    """The values of an input; None for values that are drawn from the seed."""
    counted: float | None = None
    """Elements that a call has to read or write; None for all."""

    @classmethod
    def read(cls, given: Any) -> Tensor:
        """Return a tensor as it is, or that of a dtype and a shape, such as "float16[batch_size 2 hidden_size]"."""
        if isinstance(given, Tensor):
            return given
        dtype, _, shape = given.removesuffix("]").partition("[")
        return cls(dtype, shape)

    def sizes(self, axes: Mapping[str, int]) -> list[int]:
        """Return the size of each dimension; none of a number."""
        return [axes[axis] if axis in axes else int(axis) for axis in (self.shape or "").split()]

    def count_bytes(self, axes: Mapping[str, int]) -> float:
        """Return the bytes that a call has to read or write. A number costs none."""
        if self.shape is None:
            return 0
        return (math.prod(self.sizes(axes)) if self.counted is None else self.counted) * size_of(self.dtype)


def counted(tensor: Any, elements: float) -> Any:
    """Return a tensor, or that of a text, of which a call has to read or write this number of elements."""
    return replace(Tensor.read(tensor), counted=elements)


def stored(values: Any, dtype: str = "int32") -> Any:
    """Return an input with these values: numbers, rows of them, or one number without a dimension."""
    import numpy as np  # not for --help

    made = np.array(values, dtype=dtype)
    return Tensor(dtype, " ".join(map(str, made.shape)), made)


floats = partial(stored, dtype="float32")


def offsets(lengths: Iterable[int]) -> Any:
    """Return where each sequence begins, and the total: [0, l0, l0 + l1, …]."""
    return stored([0, *accumulate(lengths)])


def generator(args: Namespace, salt: int = 0) -> np.random.Generator:
    """Return the generator of a case, from --random_seed; another salt gives an independent one."""
    import numpy as np  # not for --help

    return np.random.default_rng((int(args.random_seed), salt))


@dataclass(frozen=True)
class Check:
    """When an output is right; `bench.evaluators.compare.tolerance` has the rule."""

    rtol: float = 1e-2
    atol: float = 1e-2
    ratio: float | None = None
    """Share of elements that must match; None leaves it to the evaluator."""

    def settings(self) -> dict[str, Any]:
        """Return the check as a section of a configuration."""
        return {"rtol": self.rtol, "atol": self.atol, "required_matched_ratio": self.ratio, "extra": {}}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One routine at one set of sizes, with everything that a run of it needs."""

    op_type: str
    inputs: Mapping[str, Any]
    outputs: Mapping[str, Any]
    """Name → `Tensor`, or its dtype and shape as a text, such as "float16[batch_size 2 hidden_size]"."""
    reference: str = ""
    """The function of `*_torch`. That of `*_flashinfer` has its name, maybe with a backend's name behind it.
    Empty for the routine's name."""
    constants: Mapping[str, Any] = field(default_factory=dict)
    """Values for constants of both modules. BACKEND is the backend's name, and each flag is a constant of its name."""
    call: str = ""
    """One expression on inputs that a backend of the library is, if no module has a function for it. It writes into the
    outputs if it names one, and returns them otherwise."""
    axes: Mapping[str, int] = field(default_factory=dict)
    """The sizes of shapes; those that are flags of the same name are filled in."""
    flops: float = 0
    unit: Unit = "fp32"
    """What `Cost` says of the operations of a call."""
    bytes: float | None = None
    """Bytes that a call moves; None for those of the tensors."""
    check: Check = Check()
    refusals: Mapping[str, Any] = field(default_factory=dict)
    """Backend → why it cannot do this case on any GPU; empty or False if it can."""
    columns: Mapping[str, Any] = field(default_factory=dict)
    """Further columns of the table, such as the average sequence length."""
    notes: Sequence[str] = ()
    """Lines that -v shows."""
    shown: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Whole numbers from which the inputs were made; -vv shows them."""
    label: str = ""
    """The sizes and words that were given; part of the definition's name."""

    @property
    def cost(self) -> Cost:
        """The least work of a call."""
        tensors = (*self.inputs.values(), *self.outputs.values())
        counted = sum(tensor.count_bytes(self.axes) for tensor in tensors) if self.bytes is None else self.bytes
        return Cost(self.flops, counted, self.unit)


@dataclass(frozen=True)
class Routine:
    """One routine: what it takes, and which backends run it on which GPUs."""

    family: str
    flags: Sequence[Flag]
    build: Callable[[Namespace], Case]
    """Makes a case of flags, of which `routine` is the name; raises Misuse where flags contradict each other."""
    name: str
    summary: str
    support: Mapping[str, Sequence[str]]
    """Backend → the compute capabilities that it runs on. The first backend is the default."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Spelling of a backend in older documents → its name here."""
    module: str = ""
    """The module that the library compiles at the first call, whatever the case. Routines that share it are compiled
    ahead once. Empty where the module depends on the case."""
    needs_ranks: bool = False
    """Backends run as ranks of mpirun and not in the engine. They have no solution."""

    def make_case(self, args: Namespace) -> Case:
        """Make a case of flags.

        Raises:
            Misuse: flags contradict each other.
        """
        case = self.build(args)
        given = {flag: getattr(args, flag.name) for flag in self.flags}
        words = [
            f"{''.join(part[0] for part in flag.name.split('_')) if flag.kind == 'int' else ''}{value}"
            for flag, value in given.items()
            if flag.kind in ("int", "text") and value != flag.default
        ]
        inputs, outputs = (
            {name: Tensor.read(one) for name, one in part.items()} for part in (case.inputs, case.outputs)
        )
        shapes = " ".join(tensor.shape or "" for tensor in (*inputs.values(), *outputs.values())).split()
        filled = {axis: getattr(args, axis, 0) for axis in sorted(shapes) if not axis.isdigit()}
        return replace(
            case,
            inputs=inputs,
            outputs=outputs,
            label="_".join(words),
            axes={**filled, **case.axes},
            constants={**{flag.name.upper(): value for flag, value in given.items()}, **case.constants},
            reference=case.reference or self.name,
            refusals={backend: why for backend, why in case.refusals.items() if why},
        )

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


def require(condition: object, message: str) -> None:
    """Raise Misuse unless a condition on flags holds."""
    if not condition:
        raise Misuse(message)


def needed(args: Namespace, flag: str, why: str = "") -> int:
    """Return the value of a flag without which there is no case, or raise Misuse."""
    value = getattr(args, flag)
    require(value, f"--{flag} is missing{why}")
    return int(value)


def at_most(args: Namespace, flag: str, limit: str) -> int:
    """Return the value of a flag, or raise Misuse if it is above that of another one."""
    value, most = getattr(args, flag), getattr(args, limit)
    require(value <= most, f"--{flag} {value} is more than --{limit} {most}")
    return int(value)


def split(args: Namespace, flag: str, step: int) -> int:
    """Return how often a step is in the value of a flag, or raise Misuse unless it divides it."""
    value = getattr(args, flag)
    require(value % step == 0, f"--{flag} {value} is no multiple of {step}")
    return int(value // step)


def round_up(value: int, step: int) -> int:
    """Return the smallest multiple of `step` that is not below a value."""
    return -(-value // step) * step
