"""A flag beside a time is one record: its name, its text, and when it holds."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import flashinfer_bench

pytestmark = pytest.mark.cpu
RECORD = """\
    Flag("slow", "the call takes more than a second", lambda seen: seen.samples[0].span_ns > 10**9),
"""
ASK = """
from flashinfer_bench.report.timing import MEANINGS
from flashinfer_bench.timing.flags import find_flags
from flashinfer_bench.timing.measurement import Sample, Trial
trial = Trial((Sample(span_ns=2 * 10**9, enqueue_ns=1),), "count", {"method": "cuda_events", "launch": "stream"})
print("slow" in find_flags([trial], is_noisy=False, before=None, after=None), MEANINGS["slow"])
"""


def test_a_flag_is_added_by_one_record(tmp_path):
    package = Path(flashinfer_bench.__file__).parent
    copy = tmp_path / package.name
    shutil.copytree(package, copy, ignore=shutil.ignore_patterns("__pycache__"))
    file = copy / "timing" / "flags.py"
    text = file.read_text()
    at = text.index('    Flag("unconfirmed"')
    file.write_text(text[:at] + RECORD + text[at:])
    done = subprocess.run([sys.executable, "-c", ASK], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "True the call takes more than a second\n"
