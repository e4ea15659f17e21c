"""Random tensors of any dtype. Large tensors are filled in place or in chunks, never copied whole.

A `ValueSpec` describes an input that has no values yet. The functions here make values of inputs; `rules` picks the
function. Small integer tensors are made on the CPU and moved, so that every device gets the same values.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

import torch

from flashinfer_bench.bench.evaluators.compare.packed import is_packed, storage_shape
from flashinfer_bench.bench.evaluators.inputs.seeds import make_generator
from flashinfer_bench.data import Definition
from flashinfer_bench.data.dtypes import DTYPES, POWERS_OF_TWO, Dtype, torch_dtype

CHUNK_ELEMENTS: Final = 1 << 22
"""Elements that are made at once if torch cannot fill the dtype in place."""
EXPONENTS: Final = (125, 130)
"""Range of the bytes of random float8_e8m0fnu values, end excluded: 2 ** -2 to 2 ** 2."""
_CPU: Final = torch.device("cpu")


@dataclass(frozen=True)
class ValueSpec:
    """An input that has no values yet: its name, shape and seed, and the inputs made before it."""

    name: str
    definition: Definition
    shape: tuple[int, ...]
    """In elements, not stored bytes. A single number also has the shape ()."""
    axes: Mapping[str, int]
    """Every axis by name."""
    made: Mapping[str, Any] = field(default_factory=dict)
    """The inputs that have values already, by name."""
    seed: int = 0
    device: torch.device = _CPU
    given: Mapping[str, Any] = field(default_factory=dict)
    """The inputs that are the same for each seed, by name: numbers of the workload, and tensors of files."""
    is_plain: bool = False
    """Whether the input is for a trial run of the reference. If so, its values are made without trial runs."""

    @property
    def dtype_name(self) -> str:
        """The definition's name of the dtype."""
        return self.definition.inputs[self.name].dtype

    @property
    def dtype(self) -> Dtype:
        """Size and kind of an element."""
        return DTYPES[self.dtype_name]

    def size(self, *names: str) -> int | None:
        """Return the size of the first of these axes that exists; None if no axis exists."""
        return next((self.axes[name] for name in names if name in self.axes), None)

    def generator(self, device: torch.device = _CPU, *names: str) -> torch.Generator:
        """Return a new generator with the input's own seed."""
        return make_generator(self.seed, self.name, *names, device=device)

    def empty(self) -> torch.Tensor:
        """Return the input's tensor with no values set."""
        shape = storage_shape(self.shape, self.dtype_name)
        return torch.empty(shape, dtype=torch_dtype(self.dtype_name), device=self.device)

    def finish(self, values: torch.Tensor) -> torch.Tensor:
        """Bring values into the input's shape and dtype, and onto its device."""
        return values.reshape(self.shape).to(self.device, torch_dtype(self.dtype_name))


Mode = Literal["scaled", "rolled", "redrawn", "fixed"]
"""How an input differs from call to call; `contents.py` explains each mode."""
Make = Callable[[ValueSpec], Any]
ANY: Final = ".*"


class Rule(NamedTuple):
    """One line of the table of random values."""

    op_type: str
    """Regular expression that the op type matches."""
    kinds: str
    """Kinds of dtype that the rule is for, with spaces between them."""
    name: str
    """Regular expression that the name matches."""
    make: Make
    what: str
    """The values, in words: the site's page of random values lists them."""
    mode: Mode | None = None
    """How the input differs from call to call; None leaves it to the dtype."""
    when: Callable[[ValueSpec], bool] | None = None
    """A condition that the input must also meet; `what` states the condition."""
    deviation: Callable[[ValueSpec], float] | None = None
    """Standard deviation of the values; None if they are not normal around zero."""


def find_rule(rules: tuple[Rule, ...], value_spec: ValueSpec) -> Rule:
    """Return the first rule that fits an input; the last rules of a table fit all inputs."""
    op_type, name = value_spec.definition.op_type.replace("-", "_"), value_spec.name.lower()
    return next(
        rule
        for rule in rules
        if value_spec.dtype.kind in rule.kinds.split()
        and re.fullmatch(rule.op_type, op_type)
        and re.fullmatch(rule.name, name)
        and (rule.when is None or rule.when(value_spec))
    )


def fill_floats(value_spec: ValueSpec, fill: Callable[[torch.Tensor, torch.Generator], object]) -> torch.Tensor:
    """Make a float input; if torch cannot fill the dtype in place, float32 chunks are made and rounded.

    Packed 4-bit floats get every code equally often; float8_e8m0fnu gets 2 ** -2 to 2 ** 2.
    """
    tensor = value_spec.empty()
    if is_packed(tensor.dtype):
        return fill_bytes(value_spec)
    if value_spec.dtype_name == POWERS_OF_TWO:
        return fill_bytes(value_spec, *EXPONENTS)
    generator = value_spec.generator(value_spec.device)
    if tensor.itemsize > 1:
        fill(tensor, generator)
        return tensor
    for part in torch.split(tensor.view(-1), CHUNK_ELEMENTS):
        values = torch.empty(part.shape, dtype=torch.float32, device=value_spec.device)
        fill(values, generator)
        part.copy_(values)
    return tensor


def normal(value_spec: ValueSpec, deviation: float = 1.0) -> torch.Tensor:
    """Make normal values around zero."""
    return fill_floats(value_spec, lambda values, generator: values.normal_(0.0, deviation, generator=generator))


def uniform(value_spec: ValueSpec, low: float, high: float) -> torch.Tensor:
    """Make uniform values between two numbers."""
    return fill_floats(value_spec, lambda values, generator: values.uniform_(low, high, generator=generator))


def uniform_logs(value_spec: ValueSpec, low: float, high: float) -> torch.Tensor:
    """Make float32 values that are uniform between log(low) and log(high)."""
    values = torch.empty(value_spec.shape, device=value_spec.device)
    return values.uniform_(math.log(low), math.log(high), generator=value_spec.generator(value_spec.device))


def fill_bytes(value_spec: ValueSpec, low: int = 0, high: int = 256) -> torch.Tensor:
    """Make an input of random bytes in [low, high)."""
    tensor = value_spec.empty()
    tensor.view(-1).view(torch.uint8).random_(low, high, generator=value_spec.generator(value_spec.device))
    return tensor


def distinct_rows(value_spec: ValueSpec, limit: int) -> torch.Tensor:
    """Make random integers in [0, limit).

    If `limit` is large enough, no number occurs twice in the tensor. Otherwise the numbers within each row are
    distinct, if `limit` is large enough for that.
    """
    generator = value_spec.generator()
    columns = value_spec.shape[-1] if value_spec.shape else 1
    rows = math.prod(value_spec.shape) // max(columns, 1)
    if rows * columns <= limit:
        return value_spec.finish(torch.randperm(limit, generator=generator)[: rows * columns])
    if columns > limit:
        return value_spec.finish(torch.randint(max(limit, 1), (rows, columns), generator=generator))
    # Each column draws from its own part of the range, so the numbers are distinct without a permutation of `limit` for
    # every row.
    ends = torch.arange(columns + 1) * limit // columns
    picked = ends[:-1] + (torch.rand(rows, columns, generator=generator, dtype=torch.float64) * ends.diff()).long()
    order = torch.rand(rows, columns, generator=generator).argsort(dim=1)
    return value_spec.finish(picked.gather(1, order))


def split_total(total: int, parts: int, generator: torch.Generator) -> torch.Tensor:
    """Split a number into random parts; no part is zero if the number is large enough."""
    least = 1 if total >= parts else 0
    weights = torch.empty(parts, dtype=torch.float64).exponential_(generator=generator)
    edges = (weights.cumsum(0) / weights.sum() * (total - least * parts)).round().long()
    return torch.diff(edges, prepend=torch.zeros(1, dtype=torch.long)) + least
