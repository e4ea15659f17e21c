"""A solution's layer over modules that were compiled ahead: ninja, the real one, finds nothing to do."""

import shutil
import subprocess
from pathlib import Path

import pytest

from flashinfer_bench.worker.jit.module_layer import link_modules
from tests.kit.strange import STRANGE

PLACE = Path(".cache/flashinfer/0.7.2/90a")
NINJA = shutil.which("ninja")


def write_build(base, name, *, flags=""):
    """Write what FlashInfer writes of a module below a base; its names are resolved as the library resolves them."""
    module, source = base / PLACE / "cached_ops" / name, base / PLACE / "generated" / name
    for folder in (module, source):
        folder.mkdir(parents=True, exist_ok=True)
    if not (source / "a.cu").exists():
        (source / "a.cu").write_text("source")
    text = (
        f"cuda_cflags = -O3 {flags}\nrule cuda_compile\n  command = cp $in $out\n"
        f"build {(module / f'{name}.so').resolve()}: cuda_compile {(source / 'a.cu').resolve()}\n"
        f"default {(module / f'{name}.so').resolve()}\n"
    )
    build = module / "build.ninja"
    if not build.exists() or build.read_text() != text:
        build.write_text(text)
    return module


def names(folder):
    return sorted(entry.name for entry in folder.iterdir())


def run_ninja(module):
    command = [NINJA, "-v", "-C", str(module.resolve()), "-f", str((module / "build.ninja").resolve())]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


@pytest.mark.skipif(NINJA is None, reason="there is no ninja")
def test_ninja_has_nothing_to_do_for_a_module_that_was_compiled_ahead(tmp_path):
    shared, own = tmp_path / "shared", tmp_path / "own"
    assert "[1/1]" in run_ninja(write_build(shared, "norm"))
    link_modules(shared, own)
    assert "no work to do" in run_ninja(write_build(own, "norm"))
    assert (own / PLACE / "cached_ops/norm/norm.so").read_text() == "source"


@pytest.mark.skipif(NINJA is None, reason="there is no ninja")
def test_what_a_solution_compiles_itself_stays_in_its_layer(tmp_path):
    shared, own = tmp_path / "shared", tmp_path / "own"
    run_ninja(write_build(shared, "norm"))
    link_modules(shared, own)
    assert "[1/1]" in run_ninja(write_build(own, "rope"))
    assert not (shared / PLACE / "cached_ops/rope").exists()
    (own / PLACE / "cached_ops" / "tmp").mkdir()  # the library's locks lie there
    assert names(shared / PLACE / "cached_ops") == ["norm"]


def test_modules_that_are_unfinished_or_name_the_shared_folder_are_left_out(tmp_path):
    shared, own = tmp_path / "shared", tmp_path / "own"
    write_build(shared, "unfinished")
    for name, flags in (("whole", ""), ("includes", f"-I{shared / PLACE / 'generated/includes'}")):
        (write_build(shared, name, flags=flags) / f"{name}.so").write_text("")
    link_modules(shared, own)
    assert names(own / PLACE / "cached_ops") == ["whole"]
    assert names(own / PLACE / "generated") == ["whole"]


def test_what_came_later_is_linked_later_and_what_is_there_stays(tmp_path):
    shared, own = tmp_path / "shared", tmp_path / "own"
    link_modules(shared, own)  # nothing was compiled ahead
    (write_build(own, "mine") / "mine.so").write_text("own")
    for name in ("mine", "theirs"):
        (write_build(shared, name) / f"{name}.so").write_text("shared")
    link_modules(shared, own)
    assert (own / PLACE / "cached_ops/mine/mine.so").read_text() == "own"
    assert (own / PLACE / "cached_ops/theirs/theirs.so").read_text() == "shared"
    shutil.rmtree(shared / PLACE / "cached_ops" / "theirs")
    (write_build(shared, "more") / "more.so").write_text("shared")
    link_modules(shared, own)
    assert (own / PLACE / "cached_ops/more/more.so").exists()


def test_downloads_are_linked(tmp_path):
    downloads = tmp_path / "shared/.cache/flashinfer/cubins/some"
    downloads.mkdir(parents=True)
    (downloads / "a.cubin").write_text("x")
    link_modules(tmp_path / "shared", tmp_path / "own")
    assert (tmp_path / "own/.cache/flashinfer/cubins/some/a.cubin").read_text() == "x"


@pytest.mark.parametrize("words", STRANGE)
def test_what_a_solution_left_in_place_of_the_stamp_is_not_waited_for(tmp_path, words):
    shared, own = tmp_path / "shared", tmp_path / "own"
    (write_build(shared, "norm") / "norm.so").write_text("")
    own.mkdir()
    STRANGE[words](own / ".linked")
    if words == "a folder":
        with pytest.raises(OSError):
            link_modules(shared, own)
        return
    link_modules(shared, own)
    assert (own / ".linked").is_file()
    assert (own / PLACE / "cached_ops/norm").is_symlink()
