"""What a saved case needs beside definition, workload and solutions: how it is judged, in the set's own settings."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import yaml

from flashinfer_bench.bench.config import SET_FILE
from flashinfer_bench.bench.config_file import read_config_file
from flashinfer_bench.cli.perf_cases import Request
from flashinfer_bench.errors import ConfigError, DataSetError

SECTION: Final = "definition_config"
HEAD: Final = "# How the definitions of this set are judged; `flashinfer-bench run --local` reads it.\n"


def write_settings(root: Path, requests: Iterable[Request]) -> None:
    """Write the tolerances of cases beside what the file says of other definitions.

    Raises:
        ConfigError: the file that is there cannot be read.
        DataSetError: it cannot be written.
    """
    path = root / SET_FILE
    values: dict[Any, Any] = read_config_file(path).values if path.exists() else {}
    sections = values.setdefault(SECTION, {}) or {}
    if not isinstance(sections, dict):
        raise ConfigError(f"{path}: {SECTION}: a mapping of definitions to settings is needed")
    for request in requests:
        if request.material is not None and request.case is not None:
            settings = request.case.check.settings()
            sections[request.material.definition.name] = {
                name: value for name, value in settings.items() if value != {}
            }
    text = HEAD + yaml.safe_dump({**values, SECTION: sections}, sort_keys=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        root.mkdir(parents=True, exist_ok=True)
        fresh.write_text(text, encoding="utf-8")
        fresh.replace(path)
    except OSError as error:
        raise DataSetError(f"{path}: cannot be written: {error}") from error
