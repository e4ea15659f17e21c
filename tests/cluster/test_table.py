"""The table of a cluster's places, on a cluster that is pretended: GPUs, nodes that come, go, or do not fit."""

import importlib
import sys

import pytest

from flashinfer_bench import __version__
from flashinfer_bench.bench.runner.protocol import Hello
from flashinfer_bench.bench.runner.sandbox import Sandbox
from flashinfer_bench.cluster.nodes import choose_kind, count_places, fit_hello
from flashinfer_bench.cluster.settings import ClusterSettings
from flashinfer_bench.cluster.words import PlaceFacts
from flashinfer_bench.errors import ConfigError
from tests.kit.fake_ray import FakeRay
from tests.kit.make import make_solution

WITH_RAY = [f"flashinfer_bench.cluster.{name}" for name in ("actor", "cluster", "joining", "ray_post")]


def make_facts(number=0, **changes):
    facts = {
        "kind": "cuda",
        "index": number,
        "hardware": "NVIDIA H100",
        "uuid": f"GPU-{number}",
        "capability": (9, 0),
        "pci_rank": number,
        "version": __version__,
        "cache_root": "/node/cache",
        "sandbox": {"level": "auto", "missing": {}, "user": "own", "notes": []},
        "languages": {"python": None, "cuda": None},
        "hidden": ["/node/cache/artifacts"],
    }
    return PlaceFacts(**{**facts, **changes})


class PretendedActor:
    """An actor that tells what its node was given to tell."""

    def __init__(self, node, number, changes):
        self.node, self.is_lost, self.last_words = node, False, "out of memory"
        self.facts = make_facts(number, **changes)
        self.lacks = None

    def describe(self, level, cache, hidden):
        return self.facts.model_dump()

    def why_not_built(self, solutions):
        return [self.lacks for _ in solutions]


@pytest.fixture
def ray(monkeypatch):
    """A pretended cluster; `differ` says what a node tells otherwise."""
    pretended = FakeRay(lambda node: PretendedActor(node, len(pretended.actors), pretended.differ.get(node, {})))
    pretended.differ = {}
    before = {name: sys.modules.pop(name, None) for name in WITH_RAY}
    for name, module in pretended.modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(importlib.import_module(WITH_RAY[1]), "LOOK_S", 0.0)
    yield pretended
    for name, module in before.items():
        sys.modules.pop(name, None)
        if module is not None:
            sys.modules[name] = module


@pytest.fixture
def join(ray):
    def go(**settings):
        return sys.modules[WITH_RAY[1]].Cluster(ClusterSettings(**settings))

    return go


def labels(cluster):
    return sorted(device.label for device in cluster.devices)


def test_each_gpu_of_each_node_is_a_place_and_nodes_without_one_are_not(ray, join):
    ray.add_node("aaaaaaaa", host="one", GPU=2.0)
    ray.add_node("bbbbbbbb", host="two", GPU=1.0)
    ray.add_node("cccccccc", host="three")
    cluster = join()
    assert labels(cluster) == ["one/cuda:0", "one/cuda:1", "two/cuda:2"]
    assert [one.options["num_gpus"] for one in ray.actors] == [1, 1, 1]
    assert cluster.machine.kind == "cuda"
    assert cluster.machine.sandbox == "walls"
    cluster.close()
    assert all(one.is_killed for one in ray.actors)
    assert not ray.is_joined


def test_on_cpus_a_node_is_one_place_and_its_actor_takes_all_of_them(ray, join):
    ray.differ = {"aaaaaaaa": {"kind": "cpu"}, "bbbbbbbb": {"kind": "cpu"}}
    ray.add_node("aaaaaaaa", host="same", GPU=8.0)
    ray.add_node("bbbbbbbb", host="same")
    cluster = join(kind="cpu")
    assert labels(cluster) == ["same-aaaaaa/cpu", "same-bbbbbb/cpu"]
    assert [one.options["num_cpus"] for one in ray.actors] == [8.0, 8.0]


def test_a_node_that_comes_is_told_once_and_one_that_goes_is_missed(ray, join):
    ray.add_node("aaaaaaaa", host="one", GPU=1.0)
    cluster = join()
    assert cluster.look().joined == ()
    ray.add_node("bbbbbbbb", host="two", GPU=1.0)
    (late,) = cluster.look().joined
    assert (late.label, cluster.look().joined) == ("two/cuda:1", ())
    ray.lose_node("bbbbbbbb")
    cluster._posts[late].is_lost = True  # as its session finds out
    assert not cluster.has(late)
    assert cluster.sandbox_of(late).has_walls  # a verdict of it may still be on its way into a trace
    assert cluster.look().joined == ()
    assert labels(cluster) == ["one/cuda:0"]


def test_a_lost_actor_is_replaced_until_its_node_has_lost_three(ray, join):
    ray.add_node("aaaaaaaa", host="one", GPU=1.0)
    cluster = join()
    for losses in (1, 2):
        (device,) = cluster.devices
        cluster._posts[device].is_lost = True
        assert cluster.expects_more
        assert len(cluster.look().joined) == 1
        assert len(ray.actors) == losses + 1
    (device,) = cluster.devices
    cluster._posts[device].is_lost = True
    assert cluster.look().notices == ("node one is not used any more: its actors are lost again and again",)
    assert cluster.devices == ()
    assert not cluster.expects_more
    assert ray.actors[0].is_killed


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"version": "0.0.1"}, "it has flashinfer_bench 0.0.1, and this run is of"),
        (
            {"sandbox": {"level": "auto", "missing": {"files": "old"}, "user": "unchanged", "notes": []}},
            "its workers would have no walls, unlike those of other nodes",
        ),
    ],
)
def test_a_node_that_does_not_fit_is_left_out_with_a_notice(ray, join, changes, why):
    ray.add_node("aaaaaaaa", host="one", GPU=1.0)
    cluster = join()
    ray.differ = {"bbbbbbbb": changes}
    ray.add_node("bbbbbbbb", host="two", GPU=1.0)
    news = cluster.look()
    assert news.joined == ()
    assert news.notices[0].startswith(f"node two is not used: {why}")
    assert cluster.look().notices == ()
    assert len(ray.actors) == 2


def test_what_one_place_lacks_is_missing_and_a_late_node_has_to_build_the_rest(ray, join):
    ray.differ = {"bbbbbbbb": {"languages": {"python": None, "cuda": "no nvcc"}}}
    ray.add_node("aaaaaaaa", host="one", GPU=1.0)
    ray.add_node("bbbbbbbb", host="two", GPU=1.0)
    cluster = join()
    second = ray.actors[1].actor
    second.lacks = "it needs cutlass"
    good, bad = make_solution("good", source="def run(x):\n    return 2 * x\n"), make_solution("bad")
    assert cluster.machine.languages == {"python": None, "cuda": "two: no nvcc"}
    assert cluster.machine.why_not_buildable(bad) == "two: it needs cutlass"
    second.lacks = None
    assert cluster.machine.why_not_buildable(good) is None
    assert cluster.machine.why_not_buildable(bad) == "two: it needs cutlass"  # asked once
    asked = ray.make_actor
    ray.make_actor = lambda node: [one := asked(node), setattr(one, "lacks", "no g++")][0]
    ray.add_node("cccccccc", host="three", GPU=1.0)
    assert cluster.look().notices == ("node three is not used: it cannot build what the others can: no g++",)


def test_without_a_place_the_reason_is_an_error(ray, join):
    ray.add_node("aaaaaaaa", host="one", GPU=1.0)
    ray.differ = {"aaaaaaaa": {"version": "0.0.1"}}
    with pytest.raises(
        ConfigError, match=r"no place for a cuda session: node one is not used: it has flashinfer_bench"
    ):
        join()
    assert not ray.is_joined


def test_an_actor_that_cannot_start_says_why(ray, join):
    ray.add_node("aaaaaaaa", host="one", GPU=1.0)
    asked = ray.make_actor
    ray.make_actor = lambda node: [one := asked(node), setattr(one, "is_lost", True)][0]
    with pytest.raises(ConfigError, match="node one is not used any more: the actor is dead: out of memory"):
        join()


def test_a_session_gets_the_settings_of_its_node():
    hello = Hello(
        device="cuda",
        hardware="NVIDIA H100",
        isolated=False,
        timeout_seconds=5.0,
        profile_baseline=True,
        time_budget_s=1.0,
        baseline_budget_s=1.0,
        baselines="use",
        worker_memory_bytes=None,
        needs_triton=False,
        cache_root="/host/cache",
        hidden=["/host/set"],
        has_walls=True,
    )
    fitted = fit_hello(hello, make_facts(), Sandbox("auto", {}, "own"))
    assert (fitted.cache_root, fitted.sandbox_user, fitted.baselines) == ("/node/cache", "own", "use")
    assert fitted.hidden == ["/host/set", "/node/cache/artifacts"]
    open_node = fit_hello(hello, make_facts(), Sandbox("off"))
    assert (open_node.has_walls, open_node.baselines) == (False, "off")


def test_gpus_are_used_where_there_are_any():
    nodes = [{"Alive": True, "Resources": {"CPU": 4.0}}, {"Alive": False, "Resources": {"GPU": 8.0}}]
    assert choose_kind(nodes) == "cpu"
    assert choose_kind([*nodes, {"Alive": True, "Resources": {"GPU": 1.0}}]) == "cuda"
    assert [count_places(one, "cpu") for one in ({"CPU": 64.0}, {"CPU": 0.5}, {})] == [1, 0, 0]
    assert [count_places(one, "cuda") for one in ({"GPU": 8.0}, {"CPU": 64.0})] == [8, 0]


def test_an_actor_sees_its_own_gpu_alone(monkeypatch):
    from flashinfer_bench.bench.machine import Device
    from flashinfer_bench.cluster.node import facts
    from flashinfer_bench.errors import DeviceFault

    seen = [Device("cuda", 0, "NVIDIA H100", "GPU-5")]
    monkeypatch.setattr(facts, "discover_devices", lambda requested: tuple(seen))
    assert facts.find_device("cuda", 5) == Device("cuda", 5, "NVIDIA H100", "GPU-5")
    seen.append(Device("cuda", 1, "NVIDIA H100", "GPU-6"))
    with pytest.raises(DeviceFault, match="was to see one GPU, and sees 2"):
        facts.find_device("cuda", 5)
