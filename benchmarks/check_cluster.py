"""Runs a set on a Ray cluster of three nodes on this machine, and disturbs it: verdicts stay, and no job is lost.

    python benchmarks/check_cluster.py                    the bundled set, in full
    python benchmarks/check_cluster.py --quick            six definitions, quick looks; about four minutes on two cores

Each node is a process of its own with one core, and runs one CPU place. It needs the extra `cluster`. What it checks:

    same        the verdicts are those of a run without a cluster
    lost node   a node is killed in the middle: every job has one verdict, and only jobs that it had open ran again
    late node   a node that comes in the middle gets work
    Ctrl-C      an interrupted run leaves no actor, no session and no worker

It prints one line for each, and ends with 1 where one does not hold. Times mean nothing here: three nodes share cores.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flashinfer_bench.bench import Benchmark, BenchmarkConfig
from flashinfer_bench.bench.events import JobFinished, JobStarted, Notice
from flashinfer_bench.data import TraceSet

os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_raylet_start_wait_time_s": "120"}  # a busy machine takes a while
ROOT = Path(__file__).resolve().parents[1]
STORE_BYTES = 100 << 20
SLICE = (
    *("gemm_n128_k4096", "rmsnorm_h4096", "gqa_paged_decode_h32_kv8_d128_ps16", "gemm_n1024_k4096"),
    *("mla_paged_decode_h16_ckv512_kpe64_ps16", "fused_add_rmsnorm_h1024"),
)
"""What `--quick` judges, so far as the set has it: enough for a late node to find work."""
MARK = "CHECK_CLUSTER_MARK"
"""Environment variable by which a process of this check is known."""


@contextmanager
def running_cluster(nodes: int) -> Iterator[Any]:
    """Start nodes on this machine; yields the cluster."""
    from ray.cluster_utils import Cluster

    size = {"num_cpus": 1, "object_store_memory": STORE_BYTES}
    # A short path: sockets lie in it.
    with tempfile.TemporaryDirectory(prefix="fib-ray-", ignore_cleanup_errors=True) as folder:
        os.environ["RAY_TMPDIR"] = folder  # Ray notes its address in a folder below, which has to be there
        Path(folder, "ray").mkdir()
        head = {**size, "include_dashboard": False, "temp_dir": f"{folder}/ray"}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        try:
            for _ in range(nodes - 1):
                cluster.add_node(**size)
            yield cluster
        finally:
            cluster.shutdown()


def make_config(args: argparse.Namespace, **settings: Any) -> BenchmarkConfig:
    """Return the settings of the runs that are compared."""
    chosen = {"definitions": args.definitions} if args.definitions else {}
    quick = {"quick": True} if args.quick else {}
    return BenchmarkConfig.default(devices=["cpu"], **chosen, **quick, **settings)


def judge(
    args: argparse.Namespace, cluster: Any, disturb: Callable[[JobFinished, int], None] | None = None
) -> tuple[list[Any], Benchmark]:
    """Run the set and return all events; `disturb` is called after each verdict, with their number."""
    place = {} if cluster is None else {"cluster": "ray", "cluster_address": cluster.address}
    with Benchmark(TraceSet.from_path(args.local), make_config(args, **place)) as benchmark:
        events = []
        done = 0
        for event in benchmark.run(benchmark.plan(), save_results=False):
            events.append(event)
            if isinstance(event, JobFinished):
                done += 1
                if disturb is not None:
                    disturb(event, done)
        return events, benchmark


def key_of(event: JobFinished | JobStarted) -> tuple[str, str, str]:
    """Return which job an event is of."""
    return event.job.definition.name, event.job.solution.name, event.job.workload.uuid


def verdicts(events: list[Any]) -> dict[tuple[str, str, str], str]:
    """Return each job's verdict."""
    return {key_of(one): one.trace.evaluation.status.value for one in events if isinstance(one, JobFinished)}


def check_same(args: argparse.Namespace) -> str | None:
    """Compare a run on three nodes with one without a cluster."""
    with running_cluster(3) as cluster:
        far, benchmark = judge(args, cluster)
    near, _ = judge(args, None)
    there, here = verdicts(far), verdicts(near)
    nodes = Counter(one.device.label for one in far if isinstance(one, JobFinished))
    print(f"  {len(here)} jobs, {dict(Counter(here.values()))}; by node: {dict(nodes)}")
    if benchmark.faults:
        return f"{len(benchmark.faults)} faults, the first: {benchmark.faults[0].message}"
    if there != here:
        wrong = [f"{job}: {here.get(job)} here, {there.get(job)} there" for job in here if here[job] != there.get(job)]
        return f"{len(wrong)} verdicts differ: {wrong[:3]}"
    if len(nodes) < 3:
        return f"only {len(nodes)} nodes had work"
    return None


def check_lost_node(args: argparse.Namespace) -> str | None:
    """Kill a node that has just answered, in the middle of a run."""
    killed: list[str] = []
    with running_cluster(3) as cluster:
        ids = {node.node_id[:6]: node for node in cluster.list_all_nodes()[1:]}  # not the head, which has the list

        def disturb(event: JobFinished, done: int) -> None:
            node = ids.get((event.device.node or "")[-6:])
            if done >= 3 and not killed and node is not None:
                killed.append(event.device.label)
                cluster.remove_node(node, allow_graceful=False)

        events, benchmark = judge(args, cluster, disturb)
    counts = Counter(key_of(one) for one in events if isinstance(one, JobFinished))
    started: dict[tuple[str, str, str], list[str]] = {}
    for one in events:
        if isinstance(one, JobStarted):
            started.setdefault(key_of(one), []).append(one.device.label)
    again = {job: places for job, places in started.items() if len(places) > 1}
    told = [one.message for one in events if isinstance(one, Notice)]
    print(f"  killed {killed}; {len(again)} of {len(counts)} jobs were begun again; told: {told}")
    if not killed:
        return "no node was killed: the run was over too soon"
    if benchmark.faults:
        return f"{len(benchmark.faults)} faults, the first: {benchmark.faults[0].message}"
    if set(counts.values()) != {1} or len(counts) != len(started):
        return f"verdicts of a job: {Counter(counts.values())}; {len(started)} jobs were begun"
    if any(places[0] != killed[0] for places in again.values()) or len(again) > 1:
        return f"other jobs were begun again than the one that the node was at: {again}"
    return None


def check_late_node(args: argparse.Namespace) -> str | None:
    """Start with one node, and add another after the first verdict."""
    with running_cluster(1) as cluster:

        def disturb(_event: JobFinished, done: int) -> None:
            if done == 1:
                cluster.add_node(num_cpus=1, object_store_memory=STORE_BYTES)

        events, benchmark = judge(args, cluster, disturb)
    nodes = Counter(one.device.label for one in events if isinstance(one, JobFinished))
    told = [one.message for one in events if isinstance(one, Notice)]
    print(f"  jobs by node: {dict(nodes)}; told: {told}")
    if benchmark.faults:
        return f"faults: {benchmark.faults[0].message}"
    return None if len(nodes) == 2 else "the late node had no work"


def check_interrupt(args: argparse.Namespace) -> str | None:
    """Interrupt the command as Ctrl-C does, and look for what it leaves."""
    with running_cluster(2) as cluster:
        command = [sys.executable, "-m", "flashinfer_bench", "run", "--local", args.local, "--no-save-results"]
        command += ["--cluster", "ray", "--address", cluster.address, "--devices", "cpu"]
        with tempfile.TemporaryFile("w+") as said:
            run = subprocess.Popen(command, stdout=said, stderr=said, start_new_session=True, cwd=ROOT)
            deadline = time.monotonic() + 120
            while time.monotonic() < deadline and "PASSED" not in read_all(said) and run.poll() is None:
                time.sleep(0.2)
            before = list_ours()
            run.send_signal(signal.SIGINT)
            run.wait(60)
            words = read_all(said)
        deadline = time.monotonic() + 15
        while list_ours() and time.monotonic() < deadline:
            time.sleep(0.2)
        left = list_ours()
    print(f"  {len(before)} processes of actors and sessions before, {len(left)} after; exit code {run.returncode}")
    if run.returncode != 130 or not before:
        return f"the run was not interrupted: {words[-500:]}"
    return f"left: {left}" if left else None


def read_all(file: Any) -> str:
    """Return what a program has written so far."""
    return os.pread(file.fileno(), 1 << 20, 0).decode()


def list_ours() -> list[str]:
    """Return the actors, sessions and workers on this machine that bear this check's mark."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            is_marked = folder.name.isdigit() and os.environ[MARK].encode() in (folder / "environ").read_bytes()
            if is_marked and ("PlaceActor" in line or "runner.launcher" in line):
                found.append(f"{folder.name} {line[:80]}")
        except OSError:
            continue
    return found


CHECKS = {
    "same": check_same,
    "lost node": check_lost_node,
    "late node": check_late_node,
    "Ctrl-C": check_interrupt,
}


def main() -> int:
    """Run the checks, and say what did not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--local", default=str(ROOT / "flashinfer-trace"), help="the set (default: the bundled one)")
    parser.add_argument("--definitions", nargs="+", help="only these definitions")
    parser.add_argument("--quick", action="store_true", help="quick looks, at a few definitions")
    parser.add_argument("--only", choices=CHECKS, nargs="+", default=list(CHECKS), help="only these checks")
    args = parser.parse_args()
    os.environ[MARK] = f"check-{os.getpid()}"
    if args.quick and not args.definitions:
        there = TraceSet.from_path(args.local).definitions
        args.definitions = [name for name in SLICE if name in there] or list(there)[:3]
    failed = 0
    for name in args.only:
        start = time.monotonic()
        print(name, flush=True)
        problem = CHECKS[name](args)
        failed += problem is not None
        print(f"  {'holds' if problem is None else 'FAILS: ' + problem} ({time.monotonic() - start:.0f} s)", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
