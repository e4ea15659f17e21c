"""Evaluation settings, their sources, and the cascade over these sources. This module does not access the disk.

`EvalConfig` is partial: the fields of one section. `ResolvedEvalConfig` is complete: the settings of one definition,
each with its origin. A `Level` has the values of one source at its top level, or in one section. `cascade` alone
decides which value wins:

    package defaults < eval_config.yaml < tolerances.yaml of the set < workload's tolerance < user's file < overrides

Within one source a definition's section beats its op type's, which beats the top level.

Problems of settings are raised as pydantic's ValidationError. Each problem names its location (`my.yaml:
op_type_config.moe.rtol (line 4)`), and for an unknown key the nearest known key.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    ModelWrapValidatorHandler,
    PlainSerializer,
    SerializerFunctionWrapHandler,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_serializer,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from flashinfer_bench.base.plain_values import to_number
from flashinfer_bench.data.definition import normalise_op_type
from flashinfer_bench.data.digest import digest_of
from flashinfer_bench.data.names import did_you_mean

DEFAULT_ORIGIN: Final = "default"
OP_TYPES: Final = "op_type_config"
DEFINITIONS: Final = "definition_config"
SECTIONS: Final = (OP_TYPES, DEFINITIONS)
OWNERS: Final = ("bundled", "set", "user")
"""The author of a source: this package, a trace set (for its own definitions), or the user. A later owner wins."""
AUTO: Final = "auto"
"""Value of `iterations` that lets `precision` decide the number of samples, up to the default number."""
MOST_CALLS: Final = 10_000_000
LEAST_GB: Final = 0.25
"""Smallest limit on a worker's memory in GiB. A worker needs this much before it loads a solution."""
MOST_GB: Final = 1_000_000
LONGEST_S: Final = 1_000_000
"""Longest limit or budget in seconds. The system's waits take at most 2**31 ms."""

NEEDED: Final = dict.fromkeys(("model_type", "dict_type"), "a mapping of keys to values is needed")
"""Kind of a pydantic error → the words for it."""


def list_problems(
    error: ValidationError,
    *,
    known: Sequence[str] = (),
    source: str | None = None,
    lines: Mapping[tuple[str, ...], int] | None = None,
) -> list[InitErrorDetails]:
    """Return the problems of a validation error, in the form that `as_validation_error` takes.

    Args:
        error: the validation error.
        known: keys of the model, to suggest one for an unknown key.
        source: origin of the values, if problems get their location.
        lines: line of each key in the source.
    """
    problems = []
    for item in error.errors(include_url=False):
        kind, steps, context = item["type"], item["loc"], item.get("ctx", {})
        what = context.get("what", NEEDED.get(kind, item["msg"]))
        if kind == "extra_forbidden" and known:
            hint = did_you_mean(str(steps[-1]), known) or f"; known keys: {', '.join(known)}"
            kind, what = "unknown_key", f"unknown key{hint}"
        location = _locate(source, steps, lines or {}) if source is not None else context.get("location")
        reported = {"what": what} if location is None else {"location": location, "what": what}
        fault = PydanticCustomError(kind, ": ".join(f"{{{name}}}" for name in reported), reported)
        problems.append(InitErrorDetails(type=fault, loc=steps, input=item["input"]))
    return problems


def _locate(source: str, steps: tuple[int | str, ...], lines: Mapping[tuple[str, ...], int]) -> str:
    keys = tuple(str(part) for part in steps)
    line = next((lines[keys[:end]] for end in range(len(keys), 0, -1) if keys[:end] in lines), None)
    return ": ".join(filter(None, [source, ".".join(keys)])) + (f" (line {line})" if line else "")


def as_validation_error(title: str, problems: Sequence[InitErrorDetails]) -> ValidationError:
    """Return problems as the exception that pydantic itself would raise."""
    return ValidationError.from_exception_data(title, list(problems))


def describe_problems(error: ValidationError) -> list[str]:
    """Return one line for each problem of a configuration: the location, the reason, the nearest known name."""
    result = [(item, item.get("ctx", {})) for item in error.errors(include_url=False)]
    return [
        f"{context.get('location') or _locate(error.title, item['loc'], {})}: {context.get('what', item['msg'])}"
        for item, context in result
    ]


def _read_number(value: Any) -> Any:
    value = to_number(value)  # scripts take counts from numpy and torch
    if isinstance(value, bool):  # `iterations: yes` in YAML would become 1
        raise PydanticCustomError("bool_for_number", "a number is needed, not true or false")
    return value


def _refuse_zero(value: float) -> float:
    if value <= 0:
        raise PydanticCustomError(
            "not_positive", "a number above 0 is needed; only tolerances.yaml of a trace set may have 0"
        )
    return value


def _read_iterations(value: Any, count: ValidatorFunctionWrapHandler) -> Any:
    if value == AUTO and isinstance(value, str):
        return value
    if isinstance(value, str) and not value.strip().isdigit():
        raise PydanticCustomError("no_count", "a whole number or 'auto' is needed")
    return count(value)


def _read_extra(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _read_extra(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_read_extra(item) for item in value]
    return to_number(value)


NotBool = BeforeValidator(_read_number)
EmptyIfNone = BeforeValidator(lambda value: {} if value is None else value)
"""Reads an empty section, such as `extra:` with all its lines commented out."""
WarmupRuns = Annotated[int, NotBool, Field(ge=0, le=MOST_CALLS)]
Count = Annotated[int, NotBool, Field(ge=1, le=MOST_CALLS)]
if TYPE_CHECKING:
    Iterations = int | Literal["auto"]
else:  # with a union, pydantic would name both types in the location of each error
    Iterations = Annotated[Count, WrapValidator(_read_iterations), PlainSerializer(lambda value: value)]
Tolerance = Annotated[float, NotBool, Field(ge=0, allow_inf_nan=False)]
PositiveNumber = Annotated[float, NotBool, Field(allow_inf_nan=False), AfterValidator(_refuse_zero)]
Gigabytes = Annotated[float, NotBool, Field(ge=LEAST_GB, le=MOST_GB, allow_inf_nan=False)]
Seconds = Annotated[float, NotBool, Field(gt=0, le=LONGEST_S, allow_inf_nan=False)]
Precision = Annotated[float, NotBool, Field(gt=0, le=0.5, allow_inf_nan=False)]
Ratio = Annotated[float, NotBool, Field(gt=0, le=1)]
Extra = Annotated[dict[str, JsonValue], BeforeValidator(_read_extra), EmptyIfNone]
"""Parameters of one evaluator. Values are JSON values, since they are sent to the judge's process."""


class StrictModel(BaseModel):
    """A frozen model that refuses unknown keys and names the nearest known key."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    @model_validator(mode="wrap")
    @classmethod
    def _name_unknown_keys(cls, data: Any, handler: ModelWrapValidatorHandler[Any]) -> Any:
        try:
            return handler(data)
        except ValidationError as error:
            problems = list_problems(error, known=list(cls.model_fields))
            raise as_validation_error(cls.__name__, problems) from None


class EvalSettings(StrictModel):
    """Eval fields with their global defaults."""

    warmup_runs: WarmupRuns = 10
    """Calls before timing starts."""
    iterations: Iterations = 50
    """Timed calls per trial; "auto": enough for `precision`, from 20 to 50."""
    num_trials: Count = 3
    """Independent trials, each with inputs of its own."""
    precision: Precision = 0.015
    """Target relative confidence half-width of a latency. Noisy kernels get more samples, slow kernels fewer."""
    rtol: Tolerance = 1e-2
    """Relative tolerance of an element."""
    atol: Tolerance = 1e-2
    """Absolute tolerance of an element."""
    required_matched_ratio: Ratio | None = None
    """Share of elements that must match; None leaves it to the evaluator (1.0 in the Default evaluator)."""
    norm_rule: bool = True
    """Compare the error's norm with the output's norm, overall and per row, whatever `atol` is."""
    lost_rows_rule: bool = True
    """Reject any fully wrong row, except near ties, if the matched ratio is below 1."""
    regimes_rule: bool = True
    """Judge some untimed calls on inputs of unusual scales."""
    power_rule: bool = True
    """Make more calls of a sampler that returns few rows, to find a small mass that it omits."""
    extra: Extra = Field(default_factory=dict)
    """Parameters of one evaluator, by name."""


EVAL_FIELDS: Final = tuple(name for name in EvalSettings.model_fields if name != "extra")


class EvalConfig(StrictModel):
    """Eval settings of one section (an op type's, a definition's): only the given fields.

    None means "not given". A required_matched_ratio given as None requests the evaluator's own rule.
    """

    warmup_runs: WarmupRuns | None = None
    iterations: Iterations | None = None
    num_trials: Count | None = None
    precision: Precision | None = None
    rtol: PositiveNumber | None = None
    atol: PositiveNumber | None = None
    required_matched_ratio: Ratio | None = None
    norm_rule: bool | None = None
    lost_rows_rule: bool | None = None
    regimes_rule: bool | None = None
    power_rule: bool | None = None
    extra: Extra = Field(default_factory=dict)

    @classmethod
    def of_flat(cls, values: Mapping[str, Any]) -> EvalConfig:
        """Return a section of validated values in the form of `flat`. A set may give an `atol` of 0, a user may not."""
        nested = nest(values)
        return cls.model_construct({*nested}, **nested)

    def flat(self) -> dict[str, Any]:
        """Return all given values: fields by name, and `extra` by "extra.<key>"."""
        given = {name: getattr(self, name) for name in type(self).model_fields if name in self.model_fields_set}
        return flatten(drop_unsaid(given))

    @model_serializer(mode="wrap")
    def _dump_given(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # A dumped None would read back as a required_matched_ratio given as None.
        given = nest(self.flat())
        return {name: value for name, value in handler(self).items() if name in given}


class ResolvedEvalConfig(EvalSettings):
    """Complete settings of one definition. Equality and digest depend on the values alone; origins only explain
    them."""

    origins: dict[str, str] = Field(default_factory=dict, exclude=True, repr=False)
    """Origin of each value, by field or "extra.<key>": "default", "override", "my.yaml: op_type_config.moe"."""
    profile_baseline: bool = Field(default=True, exclude=True, repr=False)
    """Whether the run times references. It belongs to the run, so `values` omits it."""

    def values(self) -> dict[str, Any]:
        """Return the settings as JSON-able values, without origins."""
        return self.model_dump(mode="json")

    def to_order(self) -> dict[str, Any]:
        """Return everything that an evaluator may ask for, as JSON-able values."""
        return {**self.values(), "profile_baseline": self.profile_baseline}

    def beyond(self, other: ResolvedEvalConfig) -> dict[str, Any]:
        """Return the values of these settings that `other` does not share."""
        if self is other:
            return {}
        theirs = other.values()
        return {name: value for name, value in self.values().items() if value != theirs[name]}

    def digest(self) -> str:
        """Return the sha256 (hex) of the values."""
        return digest_of(self.values())

    def __eq__(self, other: object) -> bool:
        return self.values() == other.values() if isinstance(other, ResolvedEvalConfig) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.digest())


def drop_unsaid(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that are not None. A matched ratio of None is kept, since it requests the evaluator's own
    rule."""
    return {name: it for name, it in values.items() if it is not None or name == "required_matched_ratio"}


def flatten(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields, and the keys of `extra` as "extra.<key>"."""
    extra = {f"extra.{key}": value for key, value in values.get("extra", {}).items()}
    return {**{name: value for name, value in values.items() if name != "extra"}, **extra}


def nest(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Undo `flatten`: values with keys such as "extra.name" become one mapping under the key `extra`."""
    extra = {name.removeprefix("extra."): value for name, value in flat.items() if name.startswith("extra.")}
    values = {name: value for name, value in flat.items() if not name.startswith("extra.")}
    return {**values, "extra": extra} if extra else values


class Level(NamedTuple):
    """Flat values of one source at its top level, or in one section. The source may be the bundled file, a set, a
    user's file, the overrides, the constructor."""

    origin: str
    """The source."""
    values: Mapping[str, Any]
    owner: Literal["bundled", "set", "user"] = "user"
    """Only names in a user's sections must exist in the set."""
    section: str = ""
    """"op_type_config", "definition_config", or empty at the top level."""
    name: str = ""
    """Name of the section's op type or definition."""

    @property
    def location(self) -> str:
        """The location in the form that origins have. A set's file has only definitions, and no sections."""
        path = [] if self.owner == "set" else [self.section]
        return ": ".join(filter(None, [self.origin, ".".join(filter(None, [*path, self.name]))]))

    def is_of(self, definition: str, op_type: str) -> bool:
        """Return whether this level applies to a definition."""
        if self.section == OP_TYPES:
            return normalise_op_type(self.name) == normalise_op_type(op_type)
        return not self.section or self.name == definition


Levels = tuple[Level, ...]
"""From the lowest to the highest source. Levels of one source are in this order: top level, op types, definitions."""
Given = tuple[Any, str]
"""A value and its origin."""
QUICK: Final = Level("quick", {"warmup_runs": 3, "iterations": 10, "num_trials": 1, "precision": 0.05})
"""Values of a quick run. In the cascade they lie just below the source that requests the quick run."""


def by_owner(levels: Iterable[Level]) -> Levels:
    """Return levels from the lowest to the highest owner. Levels of the same owner keep their order."""
    return tuple(sorted(levels, key=lambda level: OWNERS.index(level.owner)))


def cascade(levels: Levels, definition: str = "", op_type: str = "") -> dict[str, Given]:
    """Return every value that is given for a definition, with its origin, by field or "extra.<key>"."""
    asking = [index for index, level in enumerate(levels) if "quick" in level.values]
    if asking and levels[asking[-1]].values["quick"]:
        levels = (*levels[: asking[-1]], QUICK, *levels[asking[-1] :])
    result: dict[str, Given] = {}
    for level in levels:
        if level.is_of(definition, op_type):
            result |= {name: (value, level.location) for name, value in level.values.items()}
    return result


def merge_sections(levels: Levels, section: str) -> dict[str, EvalConfig]:
    """Return the sections of all sources, merged as if one source had them.

    A value is omitted if a source of higher precedence sets the field for all definitions. An op type that is spelt in
    two ways has one section.
    """
    merged: dict[str, tuple[str, dict[str, Any]]] = {}
    for level in levels:
        if not level.section:
            for _, values in merged.values():
                for name in level.values.keys() & values.keys():
                    del values[name]
        elif level.section == section:
            identity = normalise_op_type(level.name) if section == OP_TYPES else level.name
            merged.setdefault(identity, (level.name, {}))[1].update(level.values)
    return {key: EvalConfig.of_flat(values) for key, values in merged.values()}
