"""Workers in a sandbox, without a session: of the tests' user, of an ordinary one, or of a user of their own."""

import os
import shutil
import socket
import tempfile
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

from flashinfer_bench.bench.runner.workers.sandbox_policy import find_devices, find_readable
from flashinfer_bench.bench.runner.workers.worker_handle import WorkerProcess
from flashinfer_bench.sandbox.confine import Policy
from flashinfer_bench.sandbox.user import choose_user
from flashinfer_bench.worker.protocol import Loaded
from tests.kit.workers import running_template, wait_ready, worker_order

ORDINARY, OWN = 65534, choose_user("7" * 64)


class Cell:
    """A folder with places for workers, and a template that starts them.

    Args:
        root: an empty folder that every user can enter.
        template: the socket of the template.
        user: who the template is.
        own: the user that workers become.
    """

    def __init__(self, root: Path, template: socket.socket, user: int, own: int | None) -> None:
        self.root, self.template, self.user, self.own = root, template, user, own
        self.worker = own if own is not None else user
        self.artifact = self.make("artifact")
        self.jit = self.make("jit", owner=self.worker)
        self.readable = find_readable({"PATH": "/usr/bin:/bin"})

    def make(self, name: str, *, owner: int = 0) -> Path:
        """Make a folder of a user's (by default of who plays the rest of the machine: the template's)."""
        folder = self.root / name
        folder.mkdir(parents=True, exist_ok=True)
        if os.geteuid() == 0:
            os.chown(folder, owner or self.user, owner or self.user)
        return folder

    def policy(self) -> Policy:
        """Return the policy of a worker that has a home, an artifact and a folder for what it compiles."""
        home = str(self.root / "run" / "home")
        return Policy((*self.readable, str(self.artifact)), (home, str(self.jit)), tuple(find_devices()), self.own)

    @contextmanager
    def loaded(self, source: str, **changes):
        """Load a source in a worker in a sandbox; yields the worker."""
        (self.artifact / "main.py").write_text("def run(x): return x\n" + source)
        home = self.root / "run" / "home"
        shutil.rmtree(home, ignore_errors=True)
        environment = {"PATH": "/usr/bin:/bin", "HOME": str(home), "TMPDIR": str(home), "FIB_JIT": str(self.jit)}
        policy = replace(self.policy(), **changes).to_json()
        with WorkerProcess(self.template, worker_order(sandbox=policy, environment=environment), home) as worker:
            if os.geteuid() == 0:
                os.chown(home, self.worker, self.worker)
            wait_ready(worker)
            place = {"directory": str(self.artifact), "entry": "main.py", "symbol": "run", "kind": "python"}
            answer = worker.ask("load", Loaded, 50.0, **place)
            assert isinstance(answer, Loaded), answer
            yield worker

    def run(self, source: str, **changes) -> str:
        """Return what a source prints while it is loaded."""
        with self.loaded(source, **changes) as worker:
            worker.drain()
            return worker.log.take()


@contextmanager
def running_cell(template: socket.socket | None = None, *, user: int = 0, own: int | None = None):
    """Yield a cell; when the block ends no process of it is left.

    Args:
        template: the socket of a template that runs already; None starts one.
        user: the user of a template that is started; 0 is the user that runs the tests.
        own: the user that a worker becomes.
    """
    root = Path(tempfile.mkdtemp(prefix="fib-cell-"))
    root.chmod(0o755)
    run = root / "run"
    run.mkdir()
    run.chmod(0o711)
    if user:
        os.chown(run, user, user)
    try:
        with nullcontext(template) if template else running_template(run, user) as running:
            yield Cell(root, running, user, own)
    finally:
        shutil.rmtree(root, ignore_errors=True)
