"""The workload: the sizes of the var axes and where each input comes from. No tensors; the judge makes those."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import AliasChoices, Field, StrictBool, StrictInt, field_validator, model_validator

from flashinfer_bench.data.digest import digest_of
from flashinfer_bench.data.dtypes import Unit
from flashinfer_bench.data.expression import MAX_AXIS_VALUE
from flashinfer_bench.data.model import DataModel, NonEmpty
from flashinfer_bench.data.names import KEY_CUTOFF, nearest_name


class RandomInput(DataModel):
    """An input that is made from the run's seed."""

    always_written = ("type",)

    type: Literal["random"] = "random"


class ScalarInput(DataModel):
    """An input that is this number."""

    always_written = ("type",)

    type: Literal["scalar"] = "scalar"
    value: StrictBool | StrictInt | float
    """Passed as it stands."""


class SafetensorsInput(DataModel):
    """An input that is stored in a blob."""

    always_written = ("type",)

    type: Literal["safetensors"] = "safetensors"
    path: NonEmpty
    """Relative to the root of the set that holds the workload. Backslashes, as Windows writes them, become slashes."""
    tensor_key: NonEmpty
    """Name of the tensor in the file."""

    @field_validator("path")
    @classmethod
    def _has_slashes(cls, path: str) -> str:
        return path.replace("\\", "/")


class CustomInput(DataModel):
    """An input that a function of the definition makes: the one that its `custom_inputs_entrypoint` names."""

    type: Literal["custom"]


class GeneratedInput(DataModel):
    """An input that a generator of another engine made; kept in traces, refused in workloads to run."""

    type: Literal["generated"]

    def unknown_keys(self) -> Iterator[tuple[tuple[str, ...], DataModel]]:
        """Yield nothing: the keys are another engine's."""
        return iter(())


InputSpec = RandomInput | ScalarInput | SafetensorsInput | CustomInput | GeneratedInput
"""Where one input comes from; `isinstance` takes it."""

Amount = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]
"""A count."""

MIN_PREFIX = 4
"""A prefix of a uuid needs at least this many characters to stand for the uuid."""
AxisSize = Annotated[int, Field(strict=True, ge=0, le=MAX_AXIS_VALUE)]
"""Number of elements along an axis."""


class WorkloadCost(DataModel):
    """The least that one call on a workload costs, as the workload's author states it."""

    flops: Amount
    """Floating-point operations; 0: only bytes count."""
    bytes: Amount
    """Bytes read and written."""
    unit: Unit
    """What the operations run on."""


Allowed = Annotated[float, Field(ge=0, allow_inf_nan=False)]
"""A limit of an error."""


class WorkloadTolerance(DataModel):
    """How far off an output may be on one workload; what is not given is the definition's."""

    max_atol: Allowed | None = Field(None, validation_alias=AliasChoices("max_atol", "atol"))
    """Absolute tolerance of an element."""
    max_rtol: Allowed | None = Field(None, validation_alias=AliasChoices("max_rtol", "rtol"))
    """Relative tolerance of an element."""
    required_matched_ratio: Annotated[float, Field(gt=0, le=1)] | None = None
    """Share of the elements that must match."""
    max_error_cap: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Largest absolute error that any element may have."""


class Workload(DataModel):
    """One set of sizes and inputs that a definition is judged on."""

    always_written = ("inputs",)

    uuid: NonEmpty
    """Unique among the workloads of a definition."""
    axes: dict[NonEmpty, AxisSize]
    """Var axis to its size."""
    inputs: dict[NonEmpty, Annotated[InputSpec, Field(discriminator="type")]] = Field(default_factory=dict)
    """Input name to where it comes from; an input that is not named is random."""
    cost: WorkloadCost | None = None
    """The roofline uses it in place of a guess from the definition. It decides no verdict."""
    tolerance: WorkloadTolerance | None = None
    """Counts where the workload lies in the set of its definition."""

    @property
    def has_custom_inputs(self) -> bool:
        """Whether code of the definition makes some of the inputs."""
        return any(isinstance(source, CustomInput) for source in self.inputs.values())

    @property
    def stored_inputs(self) -> dict[str, SafetensorsInput]:
        """The inputs whose values are in a blob, by name."""
        return {name: source for name, source in self.inputs.items() if isinstance(source, SafetensorsInput)}

    @model_validator(mode="after")
    def _inputs_are_not_misspelt(self) -> Workload:
        # Without an error all inputs would be drawn at random, and nobody would know.
        nearest = None if self.inputs else nearest_name("inputs", self.__pydantic_extra__ or (), cutoff=KEY_CUTOFF)
        if nearest is not None:
            raise ValueError(f"inputs is missing; is {nearest!r} a misspelling of it?")
        return self

    def digest(self) -> str:
        """Digest what decides a verdict: axes, inputs and tolerance, neither the uuid nor the cost."""
        inputs = {name: source.to_dict() for name, source in self.inputs.items()}
        tolerance = {"tolerance": self.tolerance.to_dict()} if self.tolerance is not None else {}
        return digest_of({"axes": self.axes, "inputs": inputs, **tolerance})
