"""Writes rows to files: a CSV with the documented columns, and JSON lines with everything. Each row is written at once.

A file that cannot be begun is Misuse, and nothing is run. If a row cannot be written later, as on a full disk, that is
told once. The file then gets no more rows, the session goes on, and the command ends with 1.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections.abc import Iterable, Mapping
from itertools import combinations
from itertools import count as count_up
from pathlib import Path
from typing import Any, Final

from flashinfer_bench.base.files.writing import open_to_replace
from flashinfer_bench.cli.args import Output, find_output
from flashinfer_bench.cli.output import write_err, write_problems
from flashinfer_bench.cli.perf.results import Row
from flashinfer_bench.errors import Misuse
from flashinfer_bench.routines.case.support import LIBRARY

DOCUMENTED: Final = """
routine median_time std_time tflops tb_per_sec backend resolved_backend s_qo s_kv head_dim_qk head_dim_vo head_dim_ckv
head_dim_kpe causal q_dtype kv_dtype avg_actual_seq_len random_actual_seq_len n group_size tile_size scale_major_mode
mma_sm use_128x4_sf_layout use_nvfp4 num_tokens intermediate_size num_experts top_k n_group topk_group
routed_scaling_factor local_expert_offset local_num_experts routing_method use_shuffled_weight weight_layout
use_routing_bias use_routing_scales_on_input weight_dtype gated_act cutlass_variant quantized_input tp_size tp_rank
ep_size ep_rank max_num_tokens num_heads scale eps use_global_scale alignment global_scale sf_layout do_shuffle
sf_vec_size vocab_size top_p min_p temperature num_speculate_tokens filter_apply_order max_len num_rows seq_len
head_dim rotary_dim no_rope_dim rope_theta rope_scale interleave kv_layout batch_size hidden_size input_dtype
out_dtype quant_dtype m k num_qo_heads num_kv_heads page_size enable_pdl is_sf_swizzled_layout refcheck no_cuda_graph
use_cupti allow_output_mismatch random_seed case_tag generate_repro_command repro_command
"""
"""The columns of FlashInfer's documents. A flag that a routine does not have is an empty cell."""
OWN: Final = """
status reason method cache_state samples flops bytes roofline_share roofline_bound roofline_ms roofline_peak too_fast
max_absolute_error max_relative_error mat2_dtype autotune use_cuda_events num_iters dry_run_iters low_freq_factor
high_freq_factor old_context_len real_math validate per_phase_timing setup_ms assurance bound burst_ms
burst_resolution_ms relay_ms why_unconfirmed gpu_name compute_capability flashinfer_version torch_version testlist_line
"""
COLUMNS: Final = (*DOCUMENTED.split(), *OWN.split())
LOSS_HINT: Final = "make room or name another file, then run again what it lacks"


def check_paths(paths: Mapping[str, str | None]) -> None:
    """Refuse one file for two flags: one would overwrite the other. A device, such as /dev/null, is allowed.

    Args:
        paths: each flag with its file.

    Raises:
        Misuse: two flags name one file, maybe by different paths.
    """
    given = [(flag, Path(path).resolve()) for flag, path in paths.items() if path is not None]
    for (first, one), (second, other) in combinations(given, 2):
        if one == other and not one.is_char_device():
            raise Misuse(f"{first} and {second} name the same file: {paths[second]}")


class ResultFiles:
    """Appends rows to the named files. A file that holds something already is first moved aside, and that is told.

    Raises:
        Misuse: a file cannot be written.
    """

    def __init__(self, output_path: str | None, json_path: str | None) -> None:
        self._files: dict[Path, Output] = {}
        self._csv = Path(output_path) if output_path and not output_path.endswith(".jsonl") else None
        self.lost: set[Path] = set()
        """The files that lack rows."""
        for path in map(Path, filter(None, (output_path, json_path))):
            try:
                output = self._files[path] = find_output(path)
                path.parent.mkdir(parents=True, exist_ok=True)
                _move_aside(path)
                with os.fdopen(open_to_replace(output.path, root=output.root), "wb") as handle:
                    handle.write(_csv_line(COLUMNS) if path == self._csv else b"")
            except OSError as error:
                raise Misuse(f"{path}: cannot be written: {error}") from None

    def add(self, row: Row) -> None:
        """Write a row to every file that lacks no earlier row."""
        for path in self._files.keys() - self.lost:
            try:
                self._files[path].append(
                    to_csv(row) if path == self._csv else f"{json.dumps(_finite(row), allow_nan=False)}\n".encode()
                )
            except OSError as error:
                self.lost.add(path)
                said = f"a row cannot be written, and none after it will be: {error.strerror}"
                write_problems(f"{path}: {said}; {LOSS_HINT}")

    def drop_empty_columns(self) -> None:
        """Write the CSV once more, without the columns that no row fills."""
        if self._csv is None or self._csv in self.lost or not self._csv.is_file():
            return
        with self._csv.open(encoding="utf-8", newline="") as handle:
            head, *rows = csv.reader(handle)
        kept = [at for at in range(len(head)) if any(row[at] for row in rows) or not rows]
        text = b"".join(_csv_line(row[at] for at in kept) for row in (head, *rows))
        self._files[self._csv].write(text.decode())


def _move_aside(path: Path) -> None:
    """Give a file that is not empty another name, which is free."""
    if path.is_file() and path.stat().st_size:
        names = (path.with_name(f"{path.stem}.{number}{path.suffix}") for number in count_up(1))
        free = next(name for name in names if not name.exists())
        path.rename(free)
        write_err(f"note: {path} was there; it is {free} now")


def to_csv(row: Row) -> bytes:
    """Return a row as a line of the CSV."""
    named = {name: row[name] for name in COLUMNS if name in row}
    cells = {
        **row["measurement"],
        **row["flags"],
        **row["case"],
        **row["facts"],
        **named,
        "median_time": row["median_ms"],
        "std_time": row["std_ms"],
        "gpu_name": row["device"],
        "flashinfer_version": row["versions"].get(LIBRARY),
        "torch_version": row["versions"].get("torch"),
    }
    return _csv_line(_finite(cells.get(column)) for column in COLUMNS)


def _csv_line(cells: Iterable[Any]) -> bytes:
    line = io.StringIO(newline="")
    csv.writer(line).writerow(cells)
    return line.getvalue().encode(errors="backslashreplace")


def _finite(value: Any) -> Any:
    """Replace infinite values and nan by null, which JSON has, and which is an empty cell."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
