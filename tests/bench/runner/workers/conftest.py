"""Shared memory on a CPU, and kernels in real workers."""

from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

from flashinfer_bench.bench.runner.run_metadata import RunMetadata
from flashinfer_bench.bench.runner.workers.arena import SharedArena
from flashinfer_bench.bench.runner.workers.calling_style import choose_style
from flashinfer_bench.bench.runner.workers.claims import OutputSpec
from flashinfer_bench.bench.runner.workers.kernel import RemoteKernel
from flashinfer_bench.bench.runner.workers.kernel_task import KernelMetadata, KernelTask, MeasurePlan, SessionTools
from flashinfer_bench.bench.runner.workers.worker_handle import WorkerProcess
from flashinfer_bench.compile import Artifact
from tests.kit.trials import vary
from tests.kit.workers import running_template, wait_ready, worker_order

OUTPUTS = (OutputSpec("y", (4,), torch.float32),)
PLAN = MeasurePlan(2, 5, 30.0)
CALM_POOL = SimpleNamespace(await_quiet=lambda: None, is_starting=lambda: False, is_slowed=lambda *_: False)


@pytest.fixture
def arena():
    with SharedArena(torch.device("cpu")) as arena:
        yield arena


@pytest.fixture(scope="session")
def template(tmp_path_factory):
    with running_template(tmp_path_factory.mktemp("session") / "run") as socket:
        yield socket


@pytest.fixture
def open_kernel(template, tmp_path):
    """Return a context manager that gives a loaded kernel of some source, y = f(x) with float32 elements.

    Keywords are fields of the task; `declared` is the style that the solution declares. `calls_s` is the limit of all
    calls; the import is not a part of it.
    """

    @contextmanager
    def opened(source, *, outputs=OUTPUTS, declared=None, calls_s=None, **task):
        folder = tmp_path / "artifact"
        folder.mkdir()
        (folder / "main.py").write_text(source)
        order = worker_order()
        order["environment"]["OWN_FOLDER"] = str(tmp_path)
        with (
            WorkerProcess(template, order, tmp_path / "home") as worker,
            SharedArena(torch.device("cpu")) as arena,
        ):
            wait_ready(worker)
            tools = SessionTools(arena, RunMetadata(None), CALM_POOL)
            fields = {"timeout_seconds": 60.0, "plan": PLAN, "vary": vary(), **task}
            asked = KernelTask(["x"], list(outputs), **fields)
            kernel = RemoteKernel(worker, tools, asked, KernelMetadata("s", "d", True))
            signature = kernel.load(Artifact(folder, "main.py", "run"))
            names = [output.name for output in outputs]
            kernel.calling_style = choose_style(
                signature, inputs=["x"], outputs=names, declared=declared, is_python=True
            )
            kernel.left_s = calls_s or kernel.left_s
            yield kernel

    return opened
