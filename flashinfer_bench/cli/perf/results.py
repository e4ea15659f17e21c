"""The results of cases. The row of a backend is printed in the format of FlashInfer's documents. The row is also a line
of the CSV, and a line of JSON with all fields.

Times come from the trace's measurement, which the row contains. Each row is written immediately. A file that cannot be
opened raises UsageError, and no case runs. A failed write of a row, for example on a full disk, is reported once. The
file gets no more rows, the session continues, and the exit code is 1.
"""

from __future__ import annotations

import csv
import errno
import io
import json
import math
import os
from argparse import Namespace
from collections.abc import Iterable, Iterator, Sequence
from itertools import count as count_up
from pathlib import Path
from typing import Any, Final

from flashinfer_bench.base.files.writing import open_to_replace
from flashinfer_bench.cli.args import find_output
from flashinfer_bench.cli.output import FAILED, RAN, write_err, write_out, write_problems
from flashinfer_bench.cli.perf.cases import Request
from flashinfer_bench.data import Evaluation, EvaluationStatus
from flashinfer_bench.data.measurement import Measurement, read_measurement
from flashinfer_bench.errors import UsageError
from flashinfer_bench.report.verdict import caveat_in, reason_of, to_one_line
from flashinfer_bench.roofline.peaks import describe_time
from flashinfer_bench.routines.case.generated_entry import describe_case
from flashinfer_bench.routines.case.spec import TORCH
from flashinfer_bench.routines.case.support import LIBRARY, resolve_backend
from flashinfer_bench.timing.flags import FLAGS, LATE_SHARE
from flashinfer_bench.timing.measurement import FALLING_BACK

FORMAT_VERSION: Final = 1
"""Version of the JSON lines. 1: the first."""
CUPTI_DEPRECATED: Final = (
    "[WARNING] --use_cupti is deprecated and will be removed in a future release. CUPTI is now enabled by default."
)
CACHE_IGNORED: Final = (
    "[WARNING] --autotune_cache has no effect: a backend tunes in a process of its own, which keeps no file."
)
PDL_IGNORED: Final = "[WARNING] --enable_pdl provided but routine {} does not support PDL; flag is ignored."
TORCH_RUNS: Final = f"[INFO] The backend torch needs neither a GPU nor FlashInfer: --backends {TORCH} runs here."
OF_THE_SESSION: Final = "what holds for the whole session goes on the command line"
NAME_WIDTH: Final = 15
ROOFLINE: Final = {"floor_ms": "roofline_ms", **{name: f"roofline_{name}" for name in ("share", "bound", "peak")}}
"""Key of the metadata → name of the key in a row."""
Row = dict[str, Any]
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
"""The columns of FlashInfer's documents. A flag that the routine lacks has an empty cell."""
LATER: Final = """
is_var_seq cute_dsl_impl bias activation_type fp4_mode cold_l2_cache ar_backend pattern layout_code local_bs op_name
mode_name local_tp_size local_dp_size inter_tp_size inter_dp_size dit_mode ppf pph ppw max_seq_len nheads dim dstate
ngroups cache_steps state_dtype has_z dt_softplus num_q_heads num_k_heads num_v_heads head_size state_layout pool_mode
update_state use_qk_l2norm kda_variant kda_variant_policy sm_count packed has_initial_state topk max_k_tiles total_q
total_kv
"""
"""Columns that FlashInfer's benchmark added later. They come after the documented columns, so that the documented
columns keep their numbers."""
OWN: Final = """
status reason method cache_state samples flops bytes roofline_share roofline_bound roofline_ms roofline_peak too_fast
max_absolute_error max_relative_error mat2_dtype autotune use_cuda_events num_iters dry_run_iters low_freq_factor
high_freq_factor old_context_len real_math validate per_phase_timing setup_ms assurance bound burst_ms
burst_resolution_ms relay_ms why_unconfirmed gpu_name compute_capability flashinfer_version torch_version testlist_line
flags output_both_sf_layouts per_token_activation rank num_loras num_slices use_functional_api
b12x_quant_mode use_lora algorithm varlen cache_intermediate_states offsets_dtype lower_bound
"""
COLUMNS: Final = (*DOCUMENTED.split(), *LATER.split(), *OWN.split())
LOSS_HINT: Final = "free disk space or name another file, then run the missing cases again"


def make_row(request: Request, backend: str, status: str, reason: str = "", **measured: Any) -> Row:
    """Return the row of a backend, or of a whole case. A skipped or failed row has no measured values."""
    case, platform, resolved = request.case, request.platform, backend
    if case is not None and status != "skipped":
        resolved = resolve_backend(request.named, backend, case, platform.capability)
    return {
        "version": FORMAT_VERSION,
        "routine": request.named,
        "backend": backend,
        "resolved_backend": resolved,
        "status": status,
        "reason": to_one_line(reason),
        "median_ms": None,
        "std_ms": None,
        "flags": {name: value for name, value in vars(request.args).items() if name != "routine"},
        "case": dict(case.columns) if case is not None else {},
        "facts": {},
        "measurement": {},
        "definition": request.definition if case is not None else None,
        "device": platform.device,
        "compute_capability": platform.capability,
        "versions": dict(platform.versions),
        "testlist_line": request.line,
        "caveat": "",
        **measured,
    }


def make_judged(request: Request, backend: str, evaluation: Evaluation, device: str | None = None) -> Row:
    """Return the row of a verdict. None as the device means the trace's device."""
    measured, performance, facts = read_measurement(evaluation), evaluation.performance, dict[str, Any]()
    median = measured.kernel_ms if measured.kernel_ms is not None else measured.median_ms
    if median is None and performance is not None:
        median = performance.latency_ms
    status, reason = "passed", ""
    if evaluation.status is EvaluationStatus.INCORRECT_NUMERICAL:
        status, reason = "mismatch", reason_of(evaluation)
    elif evaluation.status is not EvaluationStatus.PASSED:
        status, reason = "failed", f"{evaluation.status.value}: {reason_of(evaluation)}"
    elif median is None:
        status, reason = "failed", "the trace holds no measurement"
    if evaluation.correctness is not None:
        facts |= {name: getattr(evaluation.correctness, name) for name in ("max_absolute_error", "max_relative_error")}
    if median is not None:
        found = describe_time(request.case.cost, evaluation.environment.hardware, median) or {}
        facts |= {ROOFLINE.get(name, name): value for name, value in found.items()}
    record = (evaluation.extra or {}).get("measurement")
    return make_row(
        request,
        backend,
        status,
        reason,
        median_ms=median,
        std_ms=math.nan if measured.std_ms is None and median is not None else measured.std_ms,
        facts=facts,
        measurement=dict(record) if isinstance(record, dict) else {},
        device=device or evaluation.environment.hardware,
        caveat=_caveat(measured),
    )


def _caveat(measured: Measurement) -> str:
    """Return why the time is meaningless or doubtful.

    The flag `host_bound` is listed only if more than LATE_SHARE of the samples were launched late.
    """
    late = (measured.late or 0) > LATE_SHARE * (measured.samples or math.inf)
    return caveat_in(measured) or "; ".join(
        f"{flag}: {FLAGS.get(flag, 'unknown flag')}" for flag in measured.flags if flag != "host_bound" or late
    )


def is_failure(row: Row) -> bool:
    """Return whether a row makes the session fail. The flags decide whether a mismatch is a failure."""
    flags = row["flags"]
    is_error = row["status"] == "mismatch" and flags["refcheck"] and not flags["allow_output_mismatch"]
    return row["status"] == "failed" or bool(is_error)


def introduce(request: Request) -> Iterator[str]:
    """Yield the lines about a case. They come before the lines about backends."""
    if request.text:
        yield f"[INFO] Line {request.line}: {request.text}"
    if request.swept:
        yield f"[INFO] Case: {request.swept}"
    if request.problem is not None:
        yield f"[ERROR] Error running test: {request.text}"
        yield from (f"[ERROR] Error: {line}" for line in request.problem.splitlines())
        return
    if request.ignored:
        yield f"[WARNING] Line {request.line}: without effect: {', '.join(request.ignored)}; {OF_THE_SESSION}"
    case, args, platform = request.case, request.args, request.platform
    if args.verbose >= 1:
        yield f"[INFO] args = {args}"
        yield f"[INFO] Running test{''.join(part[:1].upper() + part[1:] for part in request.named.split('_'))}"
        yield f"[INFO] FlashInfer version: {platform.versions.get(LIBRARY, 'not installed')}"
    if args.verbose >= 2:
        yield f"[VVERBOSE] gpu_name = '{platform.device.replace(' ', '_')}'"
    if args.use_cupti:
        yield CUPTI_DEPRECATED
    if args.autotune_cache:
        yield CACHE_IGNORED
    calls = [one.sources[0].content.lower() for name, one in request.entry.solutions.items() if name != TORCH]
    if args.enable_pdl and calls and not any("pdl" in call for call in calls):
        yield PDL_IGNORED.format(request.named)
    if args.generate_repro_command:
        yield f"[INFO] To reproduce this test case, run the following command: {args.repro_command}"
    yield from (f"[WARNING] {reason}" for reason in request.skipped.values())
    if not request.backends:
        yield "[ERROR] No backends to test. Exiting."
        if TORCH not in args.backends:
            yield TORCH_RUNS
        return
    if args.verbose >= 1:
        yield from (f"[VERBOSE] {line}" for line in case.notes)
    if args.verbose >= 2:
        yield from (f"[VVERBOSE] {line}" for line in describe_case(case, request.entry.definition.reference))


def report(row: Row) -> Iterator[str]:
    """Yield the lines about a backend. A line about a wrong output has a time unless the flags forbid times."""
    name, flags, facts, record = row["backend"], row["flags"], row["facts"], row["measurement"]
    if row["status"] == "mismatch":
        label = "ERROR" if flags["refcheck"] else "WARNING"
        yield f"[{label}] Output tensor mismatch between backends {TORCH} and {name}: {row['reason']}"
    elif row["status"] == "failed":
        yield f"[ERROR] {name} for routine {row['routine']} failed"
        yield f"[ERROR] Error: {row['reason']}"
    if row["status"] == "skipped" or row["median_ms"] is None or is_failure(row):
        return
    yield perf_line(row)
    if record.get("setup_ms") is not None:
        yield f"[INFO] {name}: setup takes {record['setup_ms']:.3f} ms before a call; it is not in the time"
    if record.get("fallback") and not flags["use_cuda_events"]:
        yield f"[WARNING] {str(record['fallback']).removesuffix(f'. {FALLING_BACK}')}. {FALLING_BACK}"
    yield from (f"[WARNING] {name}: {what}" for what in (row["caveat"], facts.get("too_fast")) if what)
    if flags["verbose"] >= 2:
        method = ", ".join(str(record[key]) for key in ("method", "cache_state") if key in record)
        yield f"[VVERBOSE] {name}: {row['median_ms'] * 1e3:.3f} us by {method or 'an unknown method'}"
        if "roofline_share" in facts:
            share, bound = facts["roofline_share"], facts["roofline_bound"]
            yield f"[VVERBOSE] {name}: {share:.1%} of the roofline of {facts['roofline_peak']}, {bound} bound"


def perf_line(row: Row) -> str:
    """Return the [PERF] line of a row with a time. Programs of users parse this line."""
    facts = row["facts"]
    return (
        f"[PERF] {row['backend'].ljust(NAME_WIDTH)}:: median time {row['median_ms']:.3f} ms; "
        f"std {row['std_ms']:.3f} ms; achieved tflops {facts.get('tflops', 0.0):.3f} TFLOPs/sec; "
        f"achieved tb_per_sec {facts.get('tb_per_sec', 0.0):.3f} TB/sec"
    )


class Results:
    """Prints each case of a session when all backends of the case are done, and appends rows to the named files.

    A file with content is renamed first, with a note. No file is written if no case can run with any backend.

    Raises:
        UsageError: a file cannot be written.
    """

    def __init__(self, requests: Sequence[Request], session: Namespace) -> None:
        self.requests, self.has_failed = requests, False
        self.lost: set[Path] = set()
        """Files to which a row could not be written."""
        is_idle = all(request.skipped and not request.backends for request in requests)
        csv_path, json_path = (None, None) if is_idle else (session.output_path, session.json_path)
        self._csv = Path(csv_path) if csv_path and not csv_path.endswith(".jsonl") else None
        self._open: dict[Path, int] = {}
        for path in map(Path, filter(None, (csv_path, json_path))):
            try:
                output = find_output(path)
                _move_aside(path)
                self._open[path] = open_to_replace(output.path, root=output.root)
                _append(self._open[path], _csv_line(COLUMNS) if path == self._csv else b"")
            except OSError as error:
                raise UsageError(f"{path}: cannot be written: {error}") from None

    @property
    def exit_code(self) -> int:
        """Code of the session: 0 if all cases ran and all rows were written."""
        return FAILED if self.has_failed or self.lost else RAN

    def add(self, row: Row) -> None:
        """Write a row to every file without a failed write. Infinite values and nan become null, or an empty cell."""
        row = json.loads(json.dumps(row), parse_constant=lambda _: None)
        line = f"{json.dumps(row)}\n".encode()
        for path in self._open.keys() - self.lost:
            try:
                _append(self._open[path], to_csv(row) if path == self._csv else line)
            except OSError as error:
                self.lost.add(path)
                why = f"a row cannot be written, and none after it will be: {error.strerror}"
                write_problems(f"{path}: {why}; {LOSS_HINT}")

    def drop_empty_columns(self) -> None:
        """Write the CSV once more, without empty columns."""
        if self._csv is None or self._csv in self.lost or not self._csv.is_file():
            return
        with self._csv.open(encoding="utf-8", newline="") as handle:
            head, *rows = csv.reader(handle)
        kept = [at for at in range(len(head)) if any(row[at] for row in rows) or not rows]
        text = b"".join(_csv_line(row[at] for at in kept) for row in (head, *rows))
        find_output(self._csv).write(text.decode())

    def put(self, request: Request, row: Row) -> None:
        """Store a row; report the case after its last row."""
        request.rows[row["backend"]] = row
        if len(request.rows) == len(request.backends):
            self.print_case(request)

    def finish(self, reason: str) -> None:
        """Add a failed row with this reason for each backend without a result, and report the cases."""
        for request in self.requests:
            for backend in [name for name in request.backends if name not in request.rows]:
                self.put(request, make_row(request, backend, "failed", reason))

    def print_case(self, request: Request) -> None:
        """Print and write a case."""
        rows = [make_row(request, name, "skipped", why) for name, why in request.skipped.items()]
        rows += [request.rows[name] for name in request.backends]
        lines = [*introduce(request), *(line for row in rows for line in report(row))]
        if request.problem is not None:
            rows = [make_row(request, "", "failed", request.problem)]
        for row in rows:
            self.add(row)
        self.has_failed |= not request.backends or any(map(is_failure, rows))
        write_out("".join(f"{line}\n" for line in lines))


def _append(file: int, data: bytes) -> None:
    size = os.fstat(file).st_size
    if os.write(file, data) != len(data):
        os.ftruncate(file, size)
        raise OSError(errno.ENOSPC, "the disk took only part of it")


def _move_aside(path: Path) -> None:
    """Rename a file with content to a free name."""
    if path.is_file() and path.stat().st_size:
        names = (path.with_name(f"{path.stem}.{number}{path.suffix}") for number in count_up(1))
        free = next(name for name in names if not name.exists())
        path.rename(free)
        write_err(f"note: {path} was there; it is {free} now")


def to_csv(row: Row) -> bytes:
    """Return a row as a line of the CSV."""
    named, cache = {name: row[name] for name in COLUMNS if name in row}, row["measurement"].get("cache_state")
    cells = {
        **row["measurement"],
        **row["flags"],
        **row["case"],
        **row["facts"],
        **named,
        "median_time": row["median_ms"],
        "std_time": row["std_ms"],
        "cold_l2_cache": cache and cache == "cold",
        "gpu_name": row["device"],
        "flags": " ".join(row["measurement"].get("flags", ())),
        "flashinfer_version": row["versions"].get(LIBRARY),
        "torch_version": row["versions"].get("torch"),
    }
    return _csv_line(cells.get(column) for column in COLUMNS)


def _csv_line(cells: Iterable[Any]) -> bytes:
    line = io.StringIO(newline="")
    csv.writer(line).writerow(cells)
    return line.getvalue().encode(errors="backslashreplace")
