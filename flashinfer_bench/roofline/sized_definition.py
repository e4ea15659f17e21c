"""A definition with its sizes and known values: what the formulas of the op types need."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from flashinfer_bench.data.definition import Definition
from flashinfer_bench.roofline.cost import size_of

Values = Mapping[str, Sequence[int]]
"""Name of an input → its numbers: offsets, lengths, indices."""
Counted = tuple[float, Mapping[str, float]]
"""FLOPs; and for inputs and outputs that are used in part: name → bytes of that part."""


class Unknown(Exception):
    """The definition or workload lacks an axis or a length that the formula needs."""


@dataclass(frozen=True)
class SizedDefinition:
    """A definition with the sizes of its axes, and the values of its index inputs."""

    definition: Definition
    axes: Mapping[str, int]
    """Every axis → its size."""
    values: Values = field(default_factory=dict)

    @property
    def first_input(self) -> str:
        """The name of the first input.

        Raises:
            Unknown: there is none.
        """
        return self._first(self.definition.inputs)

    @property
    def first_output(self) -> str:
        """The name of the first output.

        Raises:
            Unknown: there is none.
        """
        return self._first(self.definition.outputs)

    def _first(self, names: Iterable[str]) -> str:
        for name in names:
            return name
        raise Unknown(f"{self.definition.name} has nothing to count")

    def size(self, *names: str) -> int:
        """Return the size of the first of these axes that the definition has.

        Raises:
            Unknown: none is there.
        """
        for name in names:
            if name in self.axes:
                return self.axes[name]
        raise Unknown(f"{self.definition.name} has no axis {' or '.join(names)}")

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of an input or output, in elements."""
        spec = {**self.definition.inputs, **self.definition.outputs}[name]
        return tuple(self.axes[axis] if axis in self.axes else int(axis) for axis in spec.shape or ())

    def nbytes(self, name: str) -> float:
        """Return the bytes of an input or output; 0 for a single number."""
        spec = {**self.definition.inputs, **self.definition.outputs}[name]
        return 0.0 if spec.shape is None else prod(self.shape(name)) * size_of(spec.dtype)

    def numbers(self, *names: str) -> Sequence[int]:
        """Return the numbers of the first of these inputs whose values are known.

        Raises:
            Unknown: none is.
        """
        for name in names:
            if name in self.values:
                return self.values[name]
        raise Unknown(f"{self.definition.name}: the values of {' or '.join(names)} are not known")
