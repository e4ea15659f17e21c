"""A session on a node: blocks wait for their builds in order, and what cannot be built is told as it begins."""

from pathlib import Path

import pytest

from flashinfer_bench.bench.machine import Device
from flashinfer_bench.bench.runner.protocol import BlockJob, BlockOrder, BlockSolution
from flashinfer_bench.cluster.node.session import NodeSession
from flashinfer_bench.cluster.words import Parcel
from flashinfer_bench.compile import Artifact, Built
from flashinfer_bench.errors import BuildFault, WorkloadFault
from tests.kit.make import make_solution, make_workload

NODE = Path("/node")
CPU, GPU = Device("cpu", 0, "a CPU", "cpu"), Device("cuda", 0, "a GPU", "GPU-1")


class HeardClient:
    """A session that only notes what it is told."""

    left_s = float("inf")

    def __init__(self):
        self.told, self.answers = [], []

    def check_deadline(self):
        pass

    def wait_forever(self):
        self.told.append("wait")

    def send(self, block):
        self.told.append(block)

    def drop(self):
        self.told.append("drop")

    def begin(self):
        self.told.append("begin")

    def messages(self):
        answers, self.answers = self.answers, []
        yield from answers


class SlowFarm:
    """Builds what it is allowed to, one with each look."""

    def __init__(self, broken=()):
        self.waiting, self.ready, self.broken, self.is_held = [], [], broken, False

    @property
    def open_builds(self):
        return len(self.waiting)

    def hold(self):
        self.is_held = True

    def release(self):
        self.is_held = False

    def add(self, solutions):
        self.waiting += [one.name for one in solutions if one.name.startswith("slow")]

    def poll(self):
        self.ready += self.waiting[:1]
        del self.waiting[:1]

    def is_ready(self, solution):
        return solution.name not in self.waiting

    def built(self, solution):
        if solution.name in self.broken:
            return Built(solution, None, BuildFault("no disk"), 0.0, was_cached=False)
        artifact = Artifact(NODE / solution.name, "main.py", "run")
        return Built(solution, artifact, None, 0.0, was_cached=False)

    def processes(self):
        return []


class Shelf:
    """Has every blob but those of a broken root."""

    def lay_out(self, root, files):
        if root == "/broken":
            raise WorkloadFault("a blob arrived changed")
        return NODE / "roots" / root.strip("/")


def make_order(*names, blobs=None, faults=None, roots=None):
    solutions = {f"key-{name}": make_solution(name) for name in names}
    described = {
        key: BlockSolution(
            name=one.name,
            language="python",
            declared_style=None,
            digest=one.digest(),
            directory=None,
            entry="",
            symbol="",
            kind="python",
            build_error=None,
        )
        for key, one in solutions.items()
    }
    jobs = [
        BlockJob(
            index=at,
            solution=key,
            workload=make_workload().model_dump(mode="json"),
            blob_root=(roots or ["/set"] * 9)[at],
            seed=1,
        )
        for at, key in enumerate(solutions)
    ]
    told = {key: one.model_dump(mode="json", exclude_unset=True) for key, one in solutions.items()}
    parcel = Parcel(solutions=told, blobs=blobs or {}, faults=faults or {})
    block = BlockOrder(definition={}, config={}, solutions=described, jobs=jobs)
    return {"block": block.model_dump(), "parcel": parcel.model_dump()}


def open_session(device=GPU, broken=()):
    client = HeardClient()
    return client, NodeSession(client, device, SlowFarm(broken), Shelf())


def say(client, session, message):
    client.answers.append(message)
    assert list(session.hear()) == [message]


def test_a_block_comes_before_its_beginning_though_it_has_to_be_built():
    client, session = open_session()
    session.obey(make_order("slow", "slower"))
    session.obey({"begin": True})
    assert [list(one) for one in session.advance()] == [["patience"]]
    assert client.told == []
    assert list(session.advance()) == []
    block, begun = client.told
    assert [one.directory for one in block.solutions.values()] == ["/node/slow", "/node/slower"]
    assert begun == "begin"


def test_a_block_that_is_taken_back_before_it_was_built_is_never_heard_of():
    client, session = open_session()
    session.obey(make_order("slow", "slower"))
    list(session.advance())
    session.obey({"drop": True})
    session.obey(make_order("quick"))
    session.obey({"drop": True})
    session.obey(make_order("other"))
    list(session.advance())
    session.obey({"drop": True})
    list(session.advance())
    assert [one if isinstance(one, str) else list(one.solutions) for one in client.told] == [["key-other"], "drop"]


def test_nothing_is_compiled_on_a_cpu_while_a_block_runs_there_and_on_a_gpu_it_is():
    for device, ready in ((CPU, []), (GPU, ["slow"])):
        client, session = open_session(device)
        session.obey(make_order("quick"))
        session.obey({"begin": True})
        list(session.advance())
        session.obey(make_order("slow"))
        assert list(session.advance()) == []
        assert session._farm.ready == ready
        assert session._farm.is_held == (device is CPU)
        say(client, session, {"done": True})
        list(session.advance())
        assert session._farm.ready == ["slow"]
        assert not session._farm.is_held


def test_a_block_begins_when_the_one_before_is_done():
    client, session = open_session()
    for _ in range(2):
        session.obey(make_order("quick"))
        session.obey({"begin": True})
    list(session.advance())
    assert client.told[1:] == ["begin", client.told[2]]
    say(client, session, {"done": True})
    list(session.advance())
    assert client.told[3:] == ["wait", "begin"]


def test_jobs_that_cannot_be_judged_here_are_faults_of_their_block():
    client, session = open_session(broken=("broken",))
    roots = ["/set", "/set", "/set", "/broken"]
    blobs = {"/set": {"blob/x": "0"}, "/broken": {"blob/x": "1"}}
    session.obey(make_order("good", "broken", "blobless", "changed", blobs=blobs, faults={2: "no blob"}, roots=roots))
    assert list(session.advance()) == []
    session.obey({"begin": True})
    faults = [one["fault"] for one in session.advance()]
    assert [(one["job"], one["retry"]) for one in faults] == [(1, False), (2, False), (3, False)]
    assert [one["message"] for one in faults][:2] == ["no disk", "no blob"]
    assert "a blob arrived changed" in faults[2]["message"]
    block = client.told[0]
    assert [(job.index, job.blob_root) for job in block.jobs] == [(0, "/node/roots/set")]


def test_a_block_of_which_nothing_is_left_is_done_at_once():
    client, session = open_session(broken=("broken",))
    session.obey(make_order("broken"))
    session.obey({"begin": True})
    assert [list(one) for one in session.advance()] == [["fault"], ["done"]]
    assert client.told == []


@pytest.mark.parametrize("message", [{"ready": {}}, {"done": True}])
def test_a_session_without_a_block_has_no_deadline(message):
    client, session = open_session()
    say(client, session, message)
    assert client.told == ["wait"]
