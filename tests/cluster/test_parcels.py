"""What travels with a block, and how it is laid out on a node."""

import hashlib

import pytest

from flashinfer_bench.bench.runner.protocol import BlockJob, BlockOrder, BlockSolution
from flashinfer_bench.cluster.node.shelf import BlobShelf
from flashinfer_bench.cluster.parcels import MOST_KEPT, Packer, TravellingSources
from flashinfer_bench.data import Solution
from flashinfer_bench.errors import WorkloadFault
from tests.kit.make import make_solution, make_workload

STORED = {"x": {"type": "safetensors", "path": "blob/x.safetensors", "tensor_key": "x"}}


def make_block(solution, *workloads, root="/sets/one"):
    described = BlockSolution(
        name=solution.name,
        language="python",
        declared_style=None,
        digest=solution.digest(),
        directory=None,
        entry="",
        symbol="",
        kind="python",
        build_error=None,
    )
    jobs = [
        BlockJob(index=at, solution="key", workload=one.model_dump(mode="json"), blob_root=str(root), seed=1)
        for at, one in enumerate(workloads)
    ]
    return BlockOrder(definition={}, config={}, solutions={"key": described}, jobs=jobs)


@pytest.fixture
def sources():
    return TravellingSources()


@pytest.mark.parametrize("style", [None, True, False])
def test_a_solution_arrives_as_it_was_sent(sources, style):
    solution = make_solution(destination_passing_style=style)
    sources.built(solution)
    parcel, _ = Packer(sources, lambda *_: None, has_shared_blobs=False).pack(make_block(solution, make_workload()))
    arrived = Solution.model_validate(parcel.solutions["key"])
    assert arrived.digest() == solution.digest()
    assert arrived.name == solution.name
    assert arrived.spec.declared_style == solution.spec.declared_style


def test_equal_sources_of_two_names_travel_under_the_name_of_the_block(sources):
    first, second = make_solution("first"), make_solution("second")
    for one in (first, second):
        sources.built(one)
    packer = Packer(sources, lambda *_: None, has_shared_blobs=False)
    for one in (first, second):
        assert packer.pack(make_block(one))[0].solutions["key"]["name"] == one.name


def test_what_was_sent_long_ago_is_forgotten(sources):
    solutions = [make_solution(source=f"def run(x):\n    return x * {number}\n") for number in range(3)]
    sources.built(solutions[0])
    sources._solutions.update({str(number): solutions[1] for number in range(MOST_KEPT)})
    sources.built(solutions[2])
    assert sources.find(solutions[2].digest()) is solutions[2]
    with pytest.raises(KeyError):
        sources.find(solutions[0].digest())


def test_blobs_travel_by_digest_and_a_missing_one_is_the_fault_of_its_job(sources, tmp_path):
    (tmp_path / "blob").mkdir()
    (tmp_path / "blob" / "x.safetensors").write_bytes(b"content")
    offered = {}
    packer = Packer(sources, lambda digest, file: offered.setdefault(digest, file), has_shared_blobs=False)
    solution = make_solution()
    sources.built(solution)
    there = make_workload("w0", inputs=STORED)
    absent = make_workload("w1", inputs={"x": {**STORED["x"], "path": "blob/y.safetensors"}})
    parcel, given = packer.pack(make_block(solution, there, absent, there, root=tmp_path))
    digest = hashlib.sha256(b"content").hexdigest()
    assert parcel.blobs == {str(tmp_path): {"blob/x.safetensors": digest}}
    assert list(given) == [digest]
    assert list(parcel.faults) == [1]
    assert "is not there" in parcel.faults[1]
    shared = Packer(sources, offered.__getitem__, has_shared_blobs=True)
    assert shared.pack(make_block(solution, there, absent, root=tmp_path))[0].blobs == {}


def test_a_shelf_fetches_a_blob_once_and_follows_a_file_that_was_replaced(tmp_path):
    contents = {hashlib.sha256(text).hexdigest(): text for text in (b"old", b"new")}
    old, new = contents
    asked = []
    shelf = BlobShelf(tmp_path, lambda digest: asked.append(digest) or contents[digest])
    root = shelf.lay_out("/sets/one", {"blob/a": old, "blob/deep/b": old})
    assert shelf.lay_out("/sets/two", {"blob/a": old}) != root
    assert shelf.lay_out("/sets/one", {"blob/a": new}) == root
    assert (root / "blob/a").read_bytes() == b"new"
    assert (root / "blob/deep/b").read_bytes() == b"old"
    assert asked == [old, new]


@pytest.mark.parametrize(("path", "content"), [("../out", b"x"), ("/etc/passwd", b"x"), ("blob/a", b"forged")])
def test_a_shelf_takes_nothing_outside_of_its_root_and_nothing_that_was_changed(tmp_path, path, content):
    shelf = BlobShelf(tmp_path / "shelf", lambda _: content)
    with pytest.raises(WorkloadFault):
        shelf.lay_out("/sets/one", {path: hashlib.sha256(b"x").hexdigest()})
    assert not (tmp_path / "out").exists()
