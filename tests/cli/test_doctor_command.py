"""`doctor` on the command line."""

import json
from functools import partial

import pytest

from flashinfer_bench.cli.entry import parse_command_line
from flashinfer_bench.cli.machine.doctor import execute, render_report
from flashinfer_bench.cli.main import cli as main
from flashinfer_bench.cli.render import UNLIMITED
from flashinfer_bench.examine.doctor.examination import Instruments, examine
from tests.doctor.visits import GPU, agreement, machine, readings

TABLE = """\
Machine
──────────────────────────────────────────────────────────────────────────────────────────────────────────────────
device         cuda:0, NVIDIA H200
chip           compute capability 9.0, 132 SMs, L2 60 MiB, memory 150.0 GiB, 1.0 in use
clocks         SM 345 to 1700 of 1980 MHz, memory 3201 to 3201 of 3201 MHz, power 76 to 690 of 700 W, temperature 31 \
to 52 °C (at rest to under load)
"""


def examined(device=GPU, *, twins=(1.0,), **parts):
    instruments = Instruments(
        look=lambda device: machine(device, **parts),
        measure=lambda _: readings(),
        check=lambda _: agreement(*twins),
        build=lambda _: {"Triton": None},
    )
    return examine(device, instruments=instruments)


@pytest.fixture(autouse=True)
def _own_locks(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def test_the_table_reads_like_this():
    text = render_report(examined(), UNLIMITED)
    lines = text.splitlines()
    assert lines[2:5] == TABLE.splitlines()[2:5]
    assert "ok     cold L2           reading 20 MB: 3.00 TB/s after a flush, 4.40 TB/s warm" in text
    assert text.endswith("\nThis machine can measure, by CUPTI with a cold or a warm L2.\n")


def test_what_is_broken_stands_out_and_comes_with_advice():
    text = render_report(examined(twins=(1.2,)), 100)
    assert "BROKEN" in text
    assert "  A/A: run it again on a quiet machine" in text
    assert text.splitlines()[-1] == "This machine cannot measure as it should: see A/A."
    assert max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize(("twins", "code"), [((1.0,), 0), ((1.2,), 1)], ids=["healthy", "broken"])
def test_the_exit_code_says_whether_this_machine_can_measure(twins, code, capsys):
    args = parse_command_line(["doctor", "--device", "cpu", "--format", "json"])
    instruments = Instruments(machine, lambda _: readings(), lambda _: agreement(*twins), lambda _: {})
    fake = partial(examine, instruments=instruments)
    assert execute(args, examination=lambda device, **asked: fake(GPU, **asked)) == code
    out, err = capsys.readouterr()
    assert json.loads(out)["exit_code"] == code
    assert "measuring cuda:0 …" in err


def test_a_device_that_is_not_there_is_misuse(capsys):
    assert main(["doctor", "--device", "99"]) == 2
    assert "there is no 99" in capsys.readouterr().err


@pytest.mark.cpu
@pytest.mark.timeout(180)
def test_on_a_cpu_it_says_what_works_and_succeeds(capsys):
    assert main(["doctor", "--quick", "--device", "cpu"]) == 0
    assert "This machine can judge kernels, and time them on its CPU." in capsys.readouterr().out
