"""Files of a set are fetched by git-lfs, and nothing that a set says of itself starts a program."""

import shutil
import subprocess

import pytest

from flashinfer_bench.data.store.git_lfs import fetch_with_git_lfs

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
PATH = "blob/x.safetensors"
ADDRESS = "https://huggingface.co/datasets/some/set"
CLONED = f"""
[remote "origin"]
    url = {ADDRESS}
    fetch = +refs/heads/*:refs/remotes/origin/*
[branch "main"]
    remote = origin
    merge = refs/heads/main
[lfs "{ADDRESS}.git/info/lfs"]
    access = basic
[filter "lfs"]
    clean = git-lfs clean -- %f
    smudge = git-lfs smudge -- %f
    process = git-lfs filter-process
    required = true
"""


@pytest.fixture
def fetch(tmp_path, monkeypatch):
    """Return a function that makes a set with a configuration and fetches one file; git-lfs is a script."""
    programs = tmp_path / "programs"
    programs.mkdir()
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.setenv("HOME", str(tmp_path))

    def fetch(config, *, code="exit 0", change=lambda place: None, inside="."):
        (programs / "git-lfs").write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\n{code}\n')
        (programs / "git-lfs").chmod(0o755)
        place = tmp_path / "set"
        (place / inside).mkdir(parents=True)
        subprocess.run(["git", "init", "-q"], cwd=place, check=True)
        with (place / ".git" / "config").open("a") as file:
            file.write(config.replace("OWN", f"{tmp_path}/own.sh"))
        (tmp_path / "own.sh").write_text(f"#!/bin/sh\ntouch {tmp_path}/started\n")
        (tmp_path / "own.sh").chmod(0o755)
        change(place)
        reason = fetch_with_git_lfs(place / inside, PATH)
        assert not (tmp_path / "started").exists()
        asked = tmp_path / "asked"
        return reason, asked.read_text() if asked.exists() else ""

    return fetch


@pytest.mark.parametrize(("code", "status"), [("exit 0", None), ("echo broken >&2; exit 3", "ended with 3: broken")])
@pytest.mark.parametrize("inside", [".", "sets/one"])
def test_git_lfs_is_asked_for_one_path_of_a_clone(fetch, code, status, inside):
    reason, asked = fetch(CLONED, code=code, inside=inside)
    assert asked == f"pull --include {PATH if inside == '.' else inside + '/' + PATH}\n"
    assert reason is None if status is None else status in reason


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ("[core]\nfsmonitor = OWN\n", "core.fsmonitor"),
        ("[core]\nsshCommand = OWN\n", "core.sshcommand"),
        ("[core]\nworktree = /\n", "core.worktree"),
        (
            '[lfs]\nstandalonetransferagent = own\n[lfs "customtransfer.own"]\npath = OWN\n',
            "lfs.standalonetransferagent",
        ),
        ('[lfs "customtransfer.own"]\npath = OWN\n', "lfs.customtransfer.own.path"),
        ('[lfs "extension.own"]\nsmudge = OWN\n', "lfs.extension.own.smudge"),
        ('[filter "lfs"]\nprocess = OWN\n', "filter.lfs.process"),
        ('[filter "own"]\nsmudge = OWN\n', "filter.own.smudge"),
        ("[credential]\nhelper = OWN\n", "credential.helper"),
        ("[include]\npath = OWN\n", "include.path"),
        ('[remote "origin"]\nurl = ext::OWN\n', "remote.origin.url"),
        ('[remote "origin"]\nurl = /etc\n', "remote.origin.url"),
        ('[remote "origin"]\nurl = ssh://-oProxyCommand=OWN/x\n', "remote.origin.url"),
        ('[remote "origin"]\nuploadpack = OWN\n', "remote.origin.uploadpack"),
        ('[branch "main"]\nremote = ext::OWN\n', "branch.main.remote"),
        ('[url "ext::OWN"]\ninsteadOf = https://\n', "url.ext"),
        ("[extensions]\nworktreeConfig = true\n", "extensions.worktreeconfig"),
        ("[alias]\nlfs = !OWN\n", "alias.lfs"),
        ("no configuration\n", "cannot be read"),
    ],
)
def test_a_configuration_that_could_start_a_program_is_refused(fetch, config, key):
    reason, asked = fetch(CLONED + config)
    assert key in reason
    assert asked == ""


def leave_for_another(place):
    (place / ".git").rename(place / "elsewhere")
    (place / ".git").write_text("gitdir: elsewhere\n")


def link_to_another(place):
    (place / ".git").rename(place / "elsewhere")
    (place / ".git").symlink_to("elsewhere")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (leave_for_another, "leads to another folder"),
        (link_to_another, "leads to another folder"),
        (lambda place: (place / ".git" / "commondir").write_text("../elsewhere\n"), "from another folder"),
        (lambda place: (place / ".lfsconfig").write_text("[lfs]\nurl = file:///etc\n"), "lfs.url"),
        (lambda place: (place / ".lfsconfig").symlink_to("/dev/zero"), "no usual file"),
    ],
    ids=["a file", "a link", "commondir", ".lfsconfig", "a device"],
)
def test_a_repository_that_is_not_all_in_its_folder_is_refused(fetch, change, words):
    reason, asked = fetch(CLONED, change=change)
    assert words in reason
    assert asked == ""


def test_a_set_that_poses_as_a_repository_itself_is_none(fetch):
    def pose(place):
        for entry in (place / ".git").iterdir():
            entry.rename(place / entry.name)
        (place / ".git").rmdir()

    reason, asked = fetch("[core]\nfsmonitor = OWN\n", change=pose)
    assert "no git clone" in reason
    assert asked == ""
