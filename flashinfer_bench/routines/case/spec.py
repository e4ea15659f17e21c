"""Declarations of the routines: a flag, a routine, and the case that a routine makes from flags. Frozen, without torch.

A case decides the values of some inputs, such as lengths and page tables. `stored` makes these inputs. Random values in
a case depend only on `--random_seed`, so equal flags give an equal case.
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
from flashinfer_bench.errors import UsageError
from flashinfer_bench.roofline.cost import Cost, size_of

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Kind = Literal["int", "float", "text", "file", "switch"]
TORCH: Final = "torch"
"""The backend that every routine has: the reference."""
NOT_IN_PACKAGE: Final = "its kernels are not in the package flashinfer-python"
"""Why a backend without any compute capability cannot run. FlashInfer's own benchmark has its kernels elsewhere."""
DTYPES: Final = {
    "bfloat16": "bfloat16",
    "float16": "float16",
    "float32": "float32",
    "fp8_e4m3": "float8_e4m3fn",
    "fp8_e5m2": "float8_e5m2",
}
"""Name of a dtype in flags → name of the dtype in definitions."""
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
        """Return why a number is invalid for the flag; None for a valid number, or for a flag that takes text."""
        is_outside = self.kind in ("int", "float") and not self.least <= value <= self.most
        return f"{value} must be from {self.least} to {self.most}" if is_outside else None


size = partial(Flag, "int", required=True)
whole = partial(Flag, "int")
from_zero = partial(Flag, "int", default=0, least=0)
real = partial(Flag, "float", least=1e-30, most=1e30)
"""A flag with a float. Numbers outside the limits make float32 products and quotients 0 or infinite, and outputs
NaN."""
word = partial(Flag, "text")
switch = partial(Flag, "switch", default=False)
PDL: Final = switch("enable_pdl", "programmatic dependent launch")


def direct(function: str, *arguments: str, **options: object) -> str:
    """Return the source text of a call of the library. Arguments are texts, options are values."""
    return f"{function}({', '.join([*arguments, *(f'{name}={value!r}' for name, value in options.items())])})"


@dataclass(frozen=True)
class Tensor:
    """An input or output."""

    dtype: str
    shape: str | None
    """Axes and numbers with spaces between; None for a Python number."""
    value: npt.NDArray[Any] | float | None = None
    """The values of an input; None for random values from the job's seed."""
    counted: float | None = None
    """Number of elements that a call must read or write; None for all."""

    @classmethod
    def read(cls, given: Any) -> Tensor:
        """Return a tensor unchanged, or parse a dtype and a shape, such as "float16[batch_size 2 hidden_size]"."""
        if isinstance(given, Tensor):
            return given
        dtype, _, shape = given.removesuffix("]").partition("[")
        return cls(dtype, shape)

    def sizes(self, axes: Mapping[str, int]) -> list[int]:
        """Return the size of each dimension; an empty list for a Python number."""
        return [axes[axis] if axis in axes else int(axis) for axis in (self.shape or "").split()]

    def count_bytes(self, axes: Mapping[str, int]) -> float:
        """Return the bytes that a call must read or write; 0 for a Python number."""
        if self.shape is None:
            return 0
        return (math.prod(self.sizes(axes)) if self.counted is None else self.counted) * size_of(self.dtype)


def counted(tensor: Any, elements: float) -> Any:
    """Return a tensor with the number of elements that a call reads or writes. The argument may be a text."""
    return replace(Tensor.read(tensor), counted=elements)


def stored(values: Any, dtype: str = "int32") -> Any:
    """Return an input with these values: numbers, rows of numbers, or a scalar."""
    import numpy as np  # not for --help

    made = np.array(values, dtype=dtype)
    return Tensor(dtype, " ".join(map(str, made.shape)), made)


floats = partial(stored, dtype="float32")


def offsets(lengths: Iterable[int]) -> Any:
    """Return the start of each sequence, and the total length, as an input: [0, l0, l0 + l1, …]."""
    return stored([0, *accumulate(lengths)])


def generator(args: Namespace, salt: int = 0) -> np.random.Generator:
    """Return the random generator of a case, seeded by --random_seed. Different salts give independent values."""
    import numpy as np  # not for --help

    return np.random.default_rng((int(args.random_seed), salt))


@dataclass(frozen=True)
class Check:
    """The tolerance of an output, by a configuration's names; `bench.evaluators.compare.tolerance` has the rule."""

    rtol: float = 1e-2
    atol: float = 1e-2
    required_matched_ratio: float | None = None
    """Share of elements that must match; None for the evaluator's default."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One routine with one set of sizes, ready to run."""

    op_type: str = ""
    """Op type of the definition; empty for the routine's family."""
    inputs: Mapping[str, Any]
    outputs: Mapping[str, Any]
    """Name → `Tensor`, or a text with dtype and shape, such as "float16[batch_size 2 hidden_size]"."""
    reference: str = ""
    """Name of the function in `*_torch` and in `*_flashinfer`; empty for the routine's name. In `*_flashinfer`, a
    function with the backend as a suffix takes precedence."""
    constants: Mapping[str, Any] = field(default_factory=dict)
    """Name of a constant in both modules → value. BACKEND is the backend's name. Each flag also gives a constant, with
    the flag's name in capitals."""
    call: str | Mapping[str, str] = ""
    """The library's call as one expression, or backend → expression. Only a routine without a function in
    `*_flashinfer` has an expression. An expression that names an output writes to the outputs. All other expressions
    return the outputs."""
    axes: Mapping[str, int] = field(default_factory=dict)
    """Axis in shapes → size. The size of an axis with the name of a flag is the flag's value."""
    flops: float = 0
    unit: Unit = "fp32"
    """Unit of the operations of a call, as in `Cost`."""
    bytes: float | None = None
    """Bytes that a call moves; None for the sum over the tensors."""
    check: Check = Check()
    refusals: Mapping[str, Any] = field(default_factory=dict)
    """Backend → why the backend cannot run this case on any GPU. Empty or False means no reason."""
    columns: Mapping[str, Any] = field(default_factory=dict)
    """Additional columns of the table, such as the average sequence length."""
    notes: Sequence[str] = ()
    """Lines that -v shows."""
    shown: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Integers from which the inputs were made; -vv shows them."""
    label: str = ""
    """The sizes and words that the user gave, as part of the definition's name."""

    @property
    def cost(self) -> Cost:
        """The minimum cost of a call."""
        tensors = (*self.inputs.values(), *self.outputs.values())
        counted = sum(tensor.count_bytes(self.axes) for tensor in tensors) if self.bytes is None else self.bytes
        return Cost(self.flops, counted, self.unit)


@dataclass(frozen=True)
class Routine:
    """One routine, with its flags, its backends, and the GPUs of each backend."""

    family: str
    flags: Sequence[Flag]
    build: Callable[[Namespace], Case]
    """Makes a case from a namespace of flags, in which `routine` is the routine's name. Contradictory flags raise
    UsageError."""
    name: str
    summary: str
    support: Mapping[str, Sequence[str]]
    """Backend → compute capabilities that the backend supports. The first backend is the default."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Old name of a backend in FlashInfer's documents → present name."""
    module: str = ""
    """The module that the library compiles at the first call. Routines with the same module share one compilation ahead
    of timing. Empty if the module depends on the case."""
    needs_ranks: bool = False
    """Whether the routine's backends run as ranks of mpirun, outside of the engine, without solutions."""

    def make_case(self, args: Namespace) -> Case:
        """Make a case from flags.

        Raises:
            UsageError: flags contradict each other.
        """
        case = self.build(args)
        given = {flag: getattr(args, flag.name) for flag in self.flags}
        words = [
            f"{''.join(part[0] for part in flag.name.split('_')) if flag.kind == 'int' else ''}{value}"
            for flag, value in given.items()
            if flag.kind in ("int", "text") and value != flag.default
        ]
        absent = {backend: NOT_IN_PACKAGE for backend, capabilities in self.support.items() if not capabilities}
        inputs, outputs = (
            {name: Tensor.read(one) for name, one in part.items()} for part in (case.inputs, case.outputs)
        )
        shapes = " ".join(tensor.shape or "" for tensor in (*inputs.values(), *outputs.values())).split()
        filled = {axis: getattr(args, axis, 0) for axis in sorted(shapes) if not axis.isdigit()}
        return replace(
            case,
            inputs=inputs,
            outputs=outputs,
            op_type=case.op_type or self.family,
            label="_".join(words),
            axes={**filled, **case.axes},
            constants={**{flag.name.upper(): value for flag, value in given.items()}, **case.constants},
            reference=case.reference or self.name,
            refusals={**absent, **{backend: why for backend, why in case.refusals.items() if why}},
        )

    @property
    def backends(self) -> tuple[str, ...]:
        """Every backend, `torch` last."""
        return (*self.support, TORCH)


CAPABILITIES: Final = ("7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "10.3", "10.7", "11.0", "12.0", "12.1")
"""The compute capabilities of the support matrix."""
ALL: Final = ("7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "10.3", "12.0")
"""The capabilities that FlashInfer's documents list for kernels that run on every GPU."""
AMPERE_ON: Final = ALL[1:]
ADA_ON: Final = ALL[3:]
HOPPER: Final = ("9.0",)
BLACKWELL: Final = ("10.0", "10.3")
GEFORCE: Final = ("12.0", "12.1")


def require(condition: object, message: str) -> None:
    """Raise UsageError unless a condition on flags holds."""
    if not condition:
        raise UsageError(message)


def needed(args: Namespace, flag: str, why: str = "") -> int:
    """Return the value of a required flag, or raise UsageError if the flag is missing."""
    value = getattr(args, flag)
    require(value, f"--{flag} is missing{why}")
    return int(value)


def at_most(args: Namespace, flag: str, limit: str) -> int:
    """Return the value of a flag; raise UsageError if the value exceeds that of the flag `limit`."""
    value, most = getattr(args, flag), getattr(args, limit)
    require(value <= most, f"--{flag} {value} is more than --{limit} {most}")
    return int(value)


def split(args: Namespace, flag: str, step: int) -> int:
    """Divide the value of a flag by a step; raise UsageError if there is a remainder."""
    value = getattr(args, flag)
    require(value % step == 0, f"--{flag} {value} is no multiple of {step}")
    return int(value // step)


def round_up(value: int, step: int) -> int:
    """Round a value up to a multiple of `step`."""
    return -(-value // step) * step
