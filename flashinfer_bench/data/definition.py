"""The definition: axes, inputs and outputs in call order, and the reference."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from inspect import Parameter, Signature
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, ValidationError, field_validator, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from flashinfer_bench.base.named_call import NamedCall, split_names
from flashinfer_bench.data.digest import digest_of
from flashinfer_bench.data.dtypes import DType, check_dtype, torch_dtype
from flashinfer_bench.data.expression import MAX_AXIS_VALUE, evaluate_axis, names_in, order_axes
from flashinfer_bench.data.model import DataModel, NonEmpty, TaggedModel
from flashinfer_bench.data.names import did_you_mean
from flashinfer_bench.data.reference import BYTE_ORDER_MARK, ENTRY_NAME, read_module

if TYPE_CHECKING:
    import torch


class Sizes(tuple[int, ...]):
    """A shape with sizes instead of axis names. A shape equals a list of the same sizes, since scripts use shapes and
    lists."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return super().__eq__(tuple(other) if isinstance(other, list) else other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = tuple.__hash__


Shape = Sizes | None
"""None for a Python scalar."""
MOST_EXPRESSIONS: Final = 256
"""Largest number of axes, or of constraints, of one definition. Every workload evaluates all of them."""
MOST_FAULTS: Final = 20
"""Maximum number of disagreements reported for one definition."""


class AxisConst(TaggedModel):
    """An axis whose size the definition fixes."""

    type: Literal["const"] = "const"
    value: Annotated[int, Field(strict=True, ge=0, le=MAX_AXIS_VALUE)]
    """Number of elements."""
    description: str | None = None
    """A description for people."""


class AxisVar(TaggedModel):
    """An axis whose size a workload gives."""

    type: Literal["var"] = "var"
    description: str | None = None
    """A description for people."""


class AxisExpr(TaggedModel):
    """An axis whose size follows from other axes."""

    type: Literal["expr"] = "expr"
    expression: str
    """Whole-number arithmetic over other axes."""
    description: str | None = None
    """A description for people."""


AxisSpec = AxisConst | AxisVar | AxisExpr
"""Any axis; `isinstance` accepts it."""


def _dimension(value: object) -> object:
    return str(value) if type(value) is int else value


class TensorSpec(DataModel):
    """One input or output."""

    shape: list[Annotated[NonEmpty, BeforeValidator(_dimension)]] | None
    """Axis names. Digits are literal dimensions. [] is a 0-d tensor. null is a Python scalar."""
    dtype: str
    """A name of `DTYPES`."""
    description: str | None = None
    """A description for people."""
    optional: bool = False
    """The caller may leave this input out (None is passed)."""

    @field_validator("dtype")
    @classmethod
    def _known(cls, name: str) -> str:
        return check_dtype(name.value if isinstance(name, DType) else name)


class Definition(DataModel):
    """The contract between a reference, its solutions and its workloads."""

    always_written = ("tags", "constraints")

    name: NonEmpty
    """Unique in a set."""
    op_type: NonEmpty
    """The family (gemm, rmsnorm, moe, …); picks the evaluator."""
    axes: Annotated[
        dict[NonEmpty, Annotated[AxisSpec, Field(discriminator="type")]], Field(max_length=MOST_EXPRESSIONS)
    ]
    """Axis name to its kind."""
    inputs: dict[NonEmpty, TensorSpec]
    """Input name to its shape and dtype, in call order."""
    outputs: dict[NonEmpty, TensorSpec]
    """Output name to its shape and dtype, in call order."""
    reference: str
    """Python source that defines `run`."""
    tags: list[str] = Field(default_factory=list)
    """Free words, such as model:llama-3.1-8b."""
    constraints: list[str] = Field(default_factory=list, max_length=MOST_EXPRESSIONS)
    """Python expressions over axes and inputs. Each expression must be true for every workload."""
    description: str | None = None
    """A description for people."""
    custom_inputs_entrypoint: NonEmpty | None = None
    """Function in the reference's source that makes the inputs of type "custom"."""

    @field_validator("reference")
    @classmethod
    def _reference_parses(cls, source: str) -> str:
        source = source.removeprefix(BYTE_ORDER_MARK)  # the session runs the reference as a string
        read_module(source)
        return source

    @model_validator(mode="after")
    def _parts_agree(self) -> Definition:
        faults = [
            InitErrorDetails(
                type=PydanticCustomError("disagrees", "{reason}", {"reason": reason}), loc=location, input=value
            )
            for location, value, reason in islice(_disagreements(self), MOST_FAULTS)
        ]
        if faults:
            raise ValidationError.from_exception_data(type(self).__name__, faults)
        return self

    @property
    def const_axes(self) -> dict[str, int]:
        """Const axis → size."""
        return {name: axis.value for name, axis in self.axes.items() if isinstance(axis, AxisConst)}

    @property
    def var_axes(self) -> list[str]:
        """The names of the axes that a workload binds, in order."""
        return [name for name, axis in self.axes.items() if isinstance(axis, AxisVar)]

    @property
    def unshaped_axes(self) -> list[str]:
        """The var axes that no shape depends on."""
        specs = (*self.inputs.values(), *self.outputs.values())
        used = {axis for spec in specs for axis in spec.shape or ()}
        used = used.union(*map(names_in, self._expressions.values()))
        return [name for name in self.var_axes if name not in used]

    @property
    def var_axes_bindings(self) -> dict[str, tuple[str, int]]:
        """Var axis → the name of the first input with this axis, and the index of the axis in the input's shape."""
        found: dict[str, tuple[str, int]] = {}
        for name, spec in self.inputs.items():
            for dimension, axis in enumerate(spec.shape or ()):
                if isinstance(self.axes.get(axis), AxisVar):
                    found.setdefault(axis, (name, dimension))
        return found

    @property
    def torch_input_dtypes(self) -> list[torch.dtype]:
        """The torch dtype of each input, in order."""
        return [torch_dtype(spec.dtype) for spec in self.inputs.values()]

    @property
    def torch_output_dtypes(self) -> list[torch.dtype]:
        """The torch dtype of each output, in order."""
        return [torch_dtype(spec.dtype) for spec in self.outputs.values()]

    @property
    def is_runnable(self) -> bool:
        """Whether a solution can be judged against this definition."""
        return self.not_runnable_reason is None

    @property
    def not_runnable_reason(self) -> str | None:
        """The reason if the definition is not runnable, else None."""
        module = read_module(self.reference)
        if not self.outputs:
            return "it has no outputs, so there is nothing to compare"
        if ENTRY_NAME not in module.names:
            last = f"; its last function is {module.functions[-1]!r}" if module.functions else ""
            return f"its reference has no top-level function 'run'{last}"
        why = module.names[ENTRY_NAME]
        return f"its reference's 'run' {why}" if why is not None else None

    @property
    def reference_call(self) -> NamedCall:
        """How to pass the inputs to the reference's `run`, from the parameters in its source."""
        return split_names(read_module(self.reference).signatures.get(ENTRY_NAME), self.inputs)

    def digest(self) -> str:
        """Return the digest of the parts that decide a verdict, without descriptions and tags."""
        plain: dict[str, Any] = {key: getattr(self, key) for key in ("name", "op_type", "reference", "constraints")}
        decisive = {"type", "value", "expression"}
        plain["axes"] = {name: axis.model_dump(include=decisive) for name, axis in self.axes.items()}
        for side, specs in (("inputs", self.inputs), ("outputs", self.outputs)):
            plain[side] = [[name, spec.shape, spec.dtype, spec.optional] for name, spec in specs.items()]
        if self.custom_inputs_entrypoint:
            plain["custom_inputs"] = self.custom_inputs_entrypoint
        return digest_of(plain)

    def bind_axes(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Return the size of every axis; raise ValueError if an axis has no size.

        Args:
            sizes: sizes of the var axes.
        """
        bound = {**sizes, **self.const_axes}
        missing = [axis for axis in self.var_axes if axis not in bound]
        if missing:
            raise ValueError(f"{self.name}: no value for axis {', '.join(missing)}")
        for name in order_axes(self._expressions):
            bound[name] = evaluate_axis(self._expressions[name], bound)
        return bound

    @property
    def _expressions(self) -> dict[str, str]:
        return {name: axis.expression for name, axis in self.axes.items() if isinstance(axis, AxisExpr)}

    def get_axes_values(self, input_shapes: Iterable[Sequence[int] | None]) -> dict[str, int]:
        """Bind the var axes from the shapes of the inputs, in order; raise ValueError if the shapes disagree.

        Args:
            input_shapes: one shape per input; None for a Python scalar or an omitted input.
        """
        shapes = list(input_shapes)
        if len(shapes) != len(self.inputs):
            raise ValueError(f"{self.name} has {len(self.inputs)} inputs ({', '.join(self.inputs)}), got {len(shapes)}")
        bound = dict(self.const_axes)
        expected: list[tuple[str, int, str]] = []
        for (name, spec), shape in zip(self.inputs.items(), shapes, strict=True):
            if spec.shape is None or (shape is None and spec.optional):
                continue
            if shape is None or len(shape) != len(spec.shape):
                raise ValueError(f"input {name!r} of {self.name} should have shape {spec.shape}, got {shape}")
            for axis, size in zip(spec.shape, map(int, shape), strict=True):
                if isinstance(self.axes.get(axis), AxisVar):
                    bound.setdefault(axis, size)
                expected.append((axis, size, name))
        bound = self.bind_axes(bound)
        for axis, size, name in expected:
            if (known := _size(axis, bound)) != size:
                raise ValueError(f"input {name!r} of {self.name}: axis {axis!r} is {known}, got {size}")
        return {axis: bound[axis] for axis in self.var_axes}

    def get_axes_values_from_inputs(
        self, values: Iterable[Any] | None = None, *, inputs: Iterable[Any] | None = None
    ) -> dict[str, int]:
        """Bind the var axes from input values. A value with a `shape` is a tensor. All other values are scalars.

        Args:
            values: one value for each input, in order.
            inputs: an alias of `values`.
        """
        return self.get_axes_values([getattr(value, "shape", None) for value in values or inputs or ()])

    def get_input_shapes(
        self, var_values: Mapping[str, int] | None = None, *, var_axes_values: Mapping[str, int] | None = None
    ) -> list[Shape]:
        """Return the shape of each input, in order, from the sizes of the var axes; None for a Python scalar.

        Args:
            var_values: var axis → its size.
            var_axes_values: an alias of `var_values`.
        """
        return self._shapes(self.inputs, var_values or var_axes_values or {})

    def get_output_shapes(
        self, var_values: Mapping[str, int] | None = None, *, var_axes_values: Mapping[str, int] | None = None
    ) -> list[Shape]:
        """Return the shape of each output, in order; see `get_input_shapes`."""
        return self._shapes(self.outputs, var_values or var_axes_values or {})

    def merge_kwargs_to_args(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        """Put keyword arguments after positional arguments: inputs, then outputs, in order.

        Raises:
            TypeError: a name is repeated or unknown, there are too many arguments, an input is missing, or only some of
                the outputs are given.
        """
        names = [*self.inputs, *self.outputs]
        parameters = [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in names]
        given = Signature(parameters).bind_partial(*args, **kwargs).arguments
        wanted = names if any(name in given for name in self.outputs) else list(self.inputs)
        missing = [name for name in wanted if name not in given]
        if missing:
            raise TypeError(f"{self.name}: no value for argument {', '.join(missing)}")
        return tuple(given[name] for name in wanted)

    def _shapes(self, specs: Mapping[str, TensorSpec], var_values: Mapping[str, int]) -> list[Shape]:
        bound = self.bind_axes(var_values)
        return [
            None if spec.shape is None else Sizes(_size(axis, bound) for axis in spec.shape) for spec in specs.values()
        ]


def _size(axis: str, bound: Mapping[str, int]) -> int:
    return int(axis) if axis.isdigit() else bound[axis]


def _disagreements(definition: Definition) -> Iterable[tuple[tuple[str, ...], object, str]]:
    """Yield locations in a definition, with their values and the problems."""
    for side, specs in (("inputs", definition.inputs), ("outputs", definition.outputs)):
        for name, spec in specs.items():
            for axis in spec.shape or ():
                if axis not in definition.axes and not (axis.isascii() and axis.isdigit()):
                    hint = did_you_mean(axis, definition.axes)
                    yield (side, name, "shape"), spec.shape, f"there is no axis {axis!r}{hint}"
    for name in definition.outputs:
        if name in definition.inputs:
            yield ("outputs", name), name, f"{name!r} is an input as well; names of inputs and outputs are disjoint"
    axes = definition._expressions
    locations: dict[tuple[str, ...], str] = {("axes", name, "expression"): text for name, text in axes.items()}
    locations |= {("constraints", str(index)): text for index, text in enumerate(definition.constraints)}
    for location, text in locations.items():
        try:
            names = names_in(text)
        except ValueError as error:
            yield location, text, str(error)
            axes.pop(location[1], None)
            continue
        for unknown in sorted(names - definition.axes.keys()) if location[0] == "axes" else ():
            yield location, text, f"there is no axis {unknown!r}{did_you_mean(unknown, definition.axes)}"
    try:
        order_axes(axes)
    except ValueError as error:
        yield ("axes",), list(axes), str(error)


def normalise_op_type(op_type: str) -> str:
    """Return the normalised spelling of an op type, for comparisons: dsa-paged and dsa_paged are equal."""
    return op_type.replace("-", "_")
