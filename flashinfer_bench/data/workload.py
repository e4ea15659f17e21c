"""The workload: the sizes of the var axes and the source of each input. The judge makes the tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Literal, TypeVar

from pydantic import AliasChoices, Field, StrictBool, StrictInt, field_validator, model_validator

from flashinfer_bench.data.digest import digest_of
from flashinfer_bench.data.dtypes import Unit
from flashinfer_bench.data.expression import MAX_AXIS_VALUE
from flashinfer_bench.data.model import DataModel, NonEmpty, TaggedModel
from flashinfer_bench.data.names import KEY_CUTOFF, nearest_name


class RandomInput(TaggedModel):
    """An input made from the run's seed."""

    type: Literal["random"] = "random"


class ScalarInput(TaggedModel):
    """An input whose value is a number of the workload."""

    type: Literal["scalar"] = "scalar"
    value: StrictBool | StrictInt | float
    """The number, passed unchanged."""


class SafetensorsInput(TaggedModel):
    """An input stored in a blob."""

    type: Literal["safetensors"] = "safetensors"
    path: NonEmpty
    """Path relative to the root of the workload's set. Windows backslashes become slashes."""
    tensor_key: NonEmpty
    """Name of the tensor in the file."""

    @field_validator("path")
    @classmethod
    def _has_slashes(cls, path: str) -> str:
        return path.replace("\\", "/")


class CustomInput(DataModel):
    """An input from the definition's function `custom_inputs_entrypoint`."""

    type: Literal["custom"]


class GeneratedInput(DataModel):
    """An input from a generator of another engine. A trace may have this input, but a run refuses it."""

    type: Literal["generated"]

    def unknown_keys(self) -> Iterator[tuple[tuple[str, ...], DataModel]]:
        """Yield no key: the keys belong to another engine."""
        return iter(())


InputSpec = RandomInput | ScalarInput | SafetensorsInput | CustomInput | GeneratedInput
"""The source of one input; `isinstance` accepts it."""

Amount = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]
"""A finite number that is not negative."""

Weight = Annotated[float, Field(strict=True, gt=0, le=1e15)]
"""The weight of a workload in a mean. The limit keeps sums finite."""
MIN_PREFIX = 4
"""Minimum characters of a prefix that can stand for a uuid."""
T = TypeVar("T")
AxisSize = Annotated[int, Field(strict=True, ge=0, le=MAX_AXIS_VALUE)]
"""Number of elements along an axis."""


class WorkloadCost(DataModel):
    """Minimum cost of one call on a workload, as stated by the workload's author."""

    flops: Amount
    """Number of floating-point operations. 0: only the bytes count."""
    bytes: Amount
    """Bytes read and written."""
    unit: Unit
    """The arithmetic unit of the operations."""


Allowed = Annotated[float, Field(ge=0, allow_inf_nan=False)]
"""A bound on an error."""


class WorkloadTolerance(DataModel):
    """The tolerance of one workload. Missing values come from the definition."""

    max_atol: Allowed | None = Field(None, validation_alias=AliasChoices("max_atol", "atol"))
    """Absolute tolerance of an element."""
    max_rtol: Allowed | None = Field(None, validation_alias=AliasChoices("max_rtol", "rtol"))
    """Relative tolerance of an element."""
    required_matched_ratio: Annotated[float, Field(gt=0, le=1)] | None = None
    """Share of the elements that must match."""
    max_error_cap: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Largest absolute error of any element."""


class Workload(DataModel):
    """Sizes and inputs for one job of a definition."""

    always_written = ("inputs",)

    uuid: NonEmpty
    """Unique among the workloads of a definition."""
    axes: dict[NonEmpty, AxisSize]
    """Var axis to its size."""
    inputs: dict[NonEmpty, Annotated[InputSpec, Field(discriminator="type")]] = Field(default_factory=dict)
    """Input name to its source. Inputs that are not listed are random."""
    cost: WorkloadCost | None = None
    """The cost that the roofline uses instead of an estimate. Verdicts do not depend on the cost."""
    tolerance: WorkloadTolerance | None = None
    """Applies only if the workload is in the set of its definition."""
    weight: Weight = 1.0
    """Weight in means over workloads, for example the workload's share of the time in production. Verdicts do not
    depend on the weight."""
    timed: bool = True
    """Whether solutions are timed on the workload after the verdict."""

    @property
    def has_custom_inputs(self) -> bool:
        """Whether code of the definition makes some of the inputs."""
        return any(isinstance(source, CustomInput) for source in self.inputs.values())

    @property
    def stored_inputs(self) -> dict[str, SafetensorsInput]:
        """The inputs stored in a blob, by name."""
        return {name: source for name, source in self.inputs.items() if isinstance(source, SafetensorsInput)}

    @model_validator(mode="after")
    def _inputs_are_not_misspelt(self) -> Workload:
        # Without this error, a misspelt key would silently make all inputs random.
        nearest = None if self.inputs else nearest_name("inputs", self.__pydantic_extra__ or (), cutoff=KEY_CUTOFF)
        if nearest is not None:
            raise ValueError(f"inputs is missing; is {nearest!r} a misspelling of it?")
        return self

    def digest(self) -> str:
        """Return the digest of the parts that decide a verdict: axes, inputs, tolerance, and `timed`."""
        inputs = {name: source.to_dict() for name, source in self.inputs.items()}
        tolerance = {"tolerance": self.tolerance.to_dict()} if self.tolerance is not None else {}
        untimed = {} if self.timed else {"timed": False}
        return digest_of({"axes": self.axes, "inputs": inputs, **tolerance, **untimed})


def find_named(name: str, items: Iterable[T], workload_of: Callable[[T], Workload]) -> list[T]:
    """Return the items whose workload has this name: a uuid. If no uuid matches, each word of the name is a size
    (rows=64) or the beginning of a uuid.

    Args:
        name: the user's word or words.
        items: workloads, or objects that have a workload.
        workload_of: returns the workload of an item.
    """

    def is_called(workload: Workload) -> bool:
        sizes = {f"{axis}={size}" for axis, size in workload.axes.items()}
        starts = [word for word in words if word not in sizes]
        return bool(words) and all(len(word) >= MIN_PREFIX and workload.uuid.startswith(word) for word in starts)

    listed, words = list(items), name.split()
    exact = [item for item in listed if workload_of(item).uuid == name]
    return exact or [item for item in listed if is_called(workload_of(item))]
