"""Folders of run-time compilers: stale locks of an ended worker, and an overlay over modules compiled ahead.

The locks of a live worker stay. The real ninja has no work for modules compiled ahead.
"""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from flashinfer_bench.worker.jit import folders
from flashinfer_bench.worker.jit.folders import enter_extensions, link_modules

pytestmark = pytest.mark.cpu
USER = """
import sys, time
from pathlib import Path
from flashinfer_bench.worker.jit.folders import enter_extensions
enter_extensions(Path(sys.argv[1]))
Path(sys.argv[1], "twice").mkdir()
Path(sys.argv[1], "twice", "lock").touch()
print("builds", flush=True)
time.sleep(600)
"""


@pytest.fixture
def builder(tmp_path):
    """A process that builds an extension, and has said so."""
    with subprocess.Popen([sys.executable, "-c", USER, str(tmp_path / "torch")], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"builds\n"
        yield process
        process.kill()


def test_the_lock_of_one_that_was_killed_is_removed_and_that_of_another_stays(tmp_path, monkeypatch, builder):
    monkeypatch.setattr(folders, "PATIENCE_S", 0.2)
    lock = tmp_path / "torch" / "twice" / "lock"
    enter_extensions(tmp_path / "torch")
    assert lock.exists()
    builder.kill()
    builder.wait()
    command = [sys.executable, "-c", USER.replace("mkdir()", "mkdir(exist_ok=True)").split("Path(sys.argv[1], ")[0]]
    subprocess.run([*command, str(tmp_path / "torch")], check=True)
    assert lock.exists()  # this process uses the folder, too


@pytest.mark.parametrize("kind", ["file", "dangling", "folder"])
def test_files_of_a_solution_in_place_of_locks_do_no_harm(tmp_path, kind):
    folder = tmp_path / "torch"
    if kind == "file":
        folder.write_text("x")
    else:
        (folder / "twice" / "lock").mkdir(parents=True)
    if kind == "dangling":
        (folder / folders.IN_USE).symlink_to(tmp_path / "elsewhere")
    enter_extensions(folder)
    assert not (tmp_path / "elsewhere").exists()


PLACE = Path(".cache/flashinfer/0.7.2/90a")
NINJA = shutil.which("ninja")


def write_build(base, name, *, flags="", built=None):
    """Write what FlashInfer writes of a module below a base; its names are resolved as the library resolves them."""
    module, source = base / PLACE / "cached_ops" / name, base / PLACE / "generated" / name
    for folder in (module, source):
        folder.mkdir(parents=True, exist_ok=True)
    if not (source / "a.cu").exists():
        (source / "a.cu").write_text("source")
    made = (module / f"{name}.so").resolve()
    rule = f"cuda_cflags = -O3 {flags}\nrule cuda_compile\n  command = cp $in $out\n"
    text = f"{rule}build {made}: cuda_compile {(source / 'a.cu').resolve()}\ndefault {made}\n"
    build = module / "build.ninja"
    if not build.exists() or build.read_text() != text:
        build.write_text(text)
    if built is not None:
        (module / f"{name}.so").write_text(built)
    return module


def names(folder):
    return sorted(entry.name for entry in folder.iterdir())


def run_ninja(module):
    command = [NINJA, "-v", "-C", str(module.resolve()), "-f", str((module / "build.ninja").resolve())]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


@pytest.fixture
def layers(tmp_path):
    return tmp_path / "shared", tmp_path / "own"


@pytest.mark.skipif(NINJA is None, reason="there is no ninja")
def test_ninja_has_no_work_for_modules_compiled_ahead_and_others_stay_in_the_overlay(layers):
    shared, own = layers
    assert "[1/1]" in run_ninja(write_build(shared, "norm"))
    link_modules(shared, own)
    assert "no work to do" in run_ninja(write_build(own, "norm"))
    assert (own / PLACE / "cached_ops/norm/norm.so").read_text() == "source"
    assert "[1/1]" in run_ninja(write_build(own, "rope"))
    (own / PLACE / "cached_ops" / "tmp").mkdir()  # the library's locks lie there
    assert names(shared / PLACE / "cached_ops") == ["norm"]


def test_what_is_finished_is_linked_when_it_comes_and_what_is_there_stays(layers):
    shared, own = layers
    link_modules(shared, own)  # nothing was compiled ahead
    write_build(own, "mine", built="own")
    write_build(shared, "unfinished")
    write_build(shared, "includes", flags=f"-I{shared / PLACE / 'generated/includes'}", built="names the shared folder")
    for name in ("mine", "theirs"):
        write_build(shared, name, built="shared")
    cubin = Path(".cache/flashinfer/cubins/a.cubin")
    (shared / cubin).parent.mkdir()
    (shared / cubin).write_text("downloaded")
    link_modules(shared, own)
    linked = own / PLACE / "cached_ops"
    found = {name: (linked / name / f"{name}.so").read_text() for name in names(linked)}
    assert found == {"mine": "own", "theirs": "shared"}
    assert (own / cubin).read_text() == "downloaded"
    write_build(shared, "more", built="shared")
    link_modules(shared, own)
    assert (linked / "more/more.so").exists()
