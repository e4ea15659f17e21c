"""`new workload`: appends workloads to a set, with the sizes, numbers and files that the flags give."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Iterable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, NamedTuple

from pydantic import TypeAdapter, ValidationError

from flashinfer_bench.cli.args import find_output, open_trace_set, refuse_unknown
from flashinfer_bench.cli.axes import read_sizes
from flashinfer_bench.data import Definition, Trace, Workload
from flashinfer_bench.data.check import SHOWN_KEYS, Tensors, read_tensors, why_unfit
from flashinfer_bench.data.generated import make_workloads
from flashinfer_bench.data.names import did_you_mean
from flashinfer_bench.data.store.jsonl import append_lines
from flashinfer_bench.data.store.layout import blob_path, workloads_path
from flashinfer_bench.data.workload import Weight
from flashinfer_bench.errors import DataSetError, UsageError

FORMS: Final = "write NAME=FILE.safetensors[:KEY], NAME=NUMBER, NAME=random or NAME=custom"


class StoredInput(NamedTuple):
    """An input that the user gives as a file."""

    file: Path
    key: str
    tensors: Tensors
    """The tensors of the file."""


def add_workloads(args: Namespace) -> tuple[list[str], list[str]]:
    """Append the workloads that the arguments describe to the set. Return the written files, and the uuids.

    Raises:
        UsageError: a flag does not fit the definition or a file.
        DataSetError: the set has the workloads already, or a file cannot be written.
    """
    root = Path(args.local)
    trace_set = open_trace_set(Namespace(local=[args.local], quiet=True))
    refuse_unknown(("definition", [args.name], trace_set.definitions))
    definition = trace_set.definitions[args.name]
    plain, stored = _read_inputs(definition, args.input)
    blobs = {one.file: _find_blob(root, definition, one.file) for one in stored.values()}
    files = {
        name: {"type": "safetensors", "path": str(blobs[one.file][0]), "tensor_key": one.key}
        for name, one in stored.items()
    }
    sizes = _sizes_of_files(definition, stored) | read_sizes(args.axis)
    made = make_workloads(definition, sizes, plain | files)
    if args.weight is not None:
        try:
            weight = TypeAdapter(Weight).validate_python(args.weight)
        except ValidationError as error:
            raise UsageError(f"--weight {args.weight:g}: {error.errors()[0]['msg']}") from None
        made = [one.model_copy(update={"weight": weight}) for one in made]
    for workload in made:
        shapes = dict(zip(definition.inputs, definition.get_input_shapes(workload.axes), strict=True))
        for name, one in stored.items():
            if why := why_unfit(one.tensors, one.key, definition.inputs[name], shapes[name]):
                raise UsageError(f"--input {name}: {one.file}, key {one.key!r}: {why}")
    there = [line.workload for line in trace_set.workloads.get(definition.name, [])]
    known, names = {one.digest() for one in there}, {one.uuid for one in there}
    fresh = [_named(one, names) for one in made if one.digest() not in known]
    if not fresh:
        raise DataSetError(f"{root} has such workloads of {definition.name} already; nothing was written")
    target = workloads_path(root, op_type=definition.op_type, definition=definition.name)
    written = {root / path: content for path, content in blobs.values() if not (root / path).exists()}
    for file, content in written.items():
        find_output(file, args).write(content)
    append_lines(target, [Trace(definition=definition.name, workload=one).to_json() for one in fresh], root=root)
    return [*map(str, written), str(target)], [one.uuid for one in fresh]


def _named(workload: Workload, taken: set[str]) -> Workload:
    """Return a workload whose uuid lists the sizes, such as rows64. Return the workload unchanged if this uuid is
    taken."""
    label = "_".join(f"{axis}{size}" for axis, size in workload.axes.items())
    return workload if label in ("", *taken) else workload.model_copy(update={"uuid": label})


def _read_inputs(definition: Definition, given: Iterable[str]) -> tuple[dict[str, Any], dict[str, StoredInput]]:
    """Return two mappings by input name: the inputs without a file (random, custom, scalar), and the stored inputs."""
    plain: dict[str, Any] = {}
    stored: dict[str, StoredInput] = {}
    for text in given:
        name, _, value = text.partition("=")
        if name not in definition.inputs or not value or name in plain or name in stored:
            near = did_you_mean(name, definition.inputs)
            known = f"the inputs of {definition.name} are {', '.join(definition.inputs)}"
            raise UsageError(f"--input {text}: {FORMS}, each input once; {known}{near}")
        if value in ("random", "custom"):
            plain[name] = {"type": value}
        elif (number := _number(value)) is not None:
            plain[name] = {"type": "scalar", "value": number}
        else:
            stored[name] = _find_stored(name, value)
    return plain, stored


def _number(text: str) -> float | bool | None:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, (int, float)) else None


def _find_stored(name: str, text: str) -> StoredInput:
    """Return the tensor that FILE or FILE:KEY names. FILE alone means the tensor with the input's name, else the only
    tensor."""
    path, _, key = text.rpartition(":")
    if not path or Path(text).exists():
        path, key = text, ""
    try:
        tensors = read_tensors(Path(path))
    except ValueError as error:
        raise UsageError(f"--input {name}={text}: {FORMS}; {path} {error}") from error
    usual = next(iter(tensors)) if len(tensors) == 1 and name not in tensors else name
    if (key := key or usual) not in tensors:
        known = ", ".join(list(tensors)[:SHOWN_KEYS])
        raise UsageError(f"--input {name}={text}: no tensor {key!r}; name one as {path}:KEY; it has {known}")
    return StoredInput(Path(path), key, tensors)


def _sizes_of_files(definition: Definition, stored: dict[str, StoredInput]) -> dict[str, Sequence[int]]:
    """Return the sizes of var axes that follow from the files of stored inputs."""
    sizes: dict[str, Sequence[int]] = {}
    for name, one in stored.items():
        shape = one.tensors[one.key][0]
        pairs = zip(definition.inputs[name].shape or (), shape, strict=False)
        sizes |= {axis: [size] for axis, size in pairs if axis in definition.var_axes}
    return sizes


def _find_blob(root: Path, definition: Definition, file: Path) -> tuple[Path, bytes]:
    """Return the blob path of a file, relative to the root, and the file's content. A file outside the root gets the
    path of a new copy."""
    content, whole, folder = file.read_bytes(), file.resolve(), root.resolve()
    if whole.is_relative_to(folder):
        return whole.relative_to(folder), content
    name = f"{file.stem}_{sha256(content).hexdigest()[:8]}"  # files in different folders may have the same stem
    return blob_path(Path(), op_type=definition.op_type, definition=definition.name, uuid=name), content
