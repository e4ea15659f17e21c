"""The node's side of a cluster: one actor for each slot, which judges batches as a run of one device does.

Ray starts an actor in a process of its own. The actor ends with the program that requested it, or with its node. The
kernel then ends the actor's sessions and their processes. The kernel also ends a session when the thread that started
the session ends. So the thread of `judge` starts all sessions.
"""

from __future__ import annotations

import hashlib
import os
import queue
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import ray

from flashinfer_bench import __version__
from flashinfer_bench.base.files.held_folders import sweep_folders, temporary_folder
from flashinfer_bench.bench.events import JobFaulted, JobStarted, Notice
from flashinfer_bench.bench.machine import Device, discover_devices
from flashinfer_bench.bench.planning.plan import Job
from flashinfer_bench.bench.runner.protocol import SessionConfig
from flashinfer_bench.bench.runner.requests import RequestMaker
from flashinfer_bench.bench.runner.sandbox import Sandbox, find_sandbox
from flashinfer_bench.bench.scheduler import Happening, Scheduler
from flashinfer_bench.cluster.settings import ClusterSettings
from flashinfer_bench.compile import (
    BuildPool,
    BuildTarget,
    default_jobs,
    find_toolchain,
    find_unavailable_languages,
    why_not_buildable,
)
from flashinfer_bench.data import Solution
from flashinfer_bench.env import cache_root
from flashinfer_bench.errors import ConfigError, DeviceFault

JUDGING: Final = "judging"
"""Concurrency group of `judge`. It has one thread; all other methods share another group."""


@dataclass(frozen=True)
class SlotMetadata:
    """A slot's description of itself."""

    device: Device
    sandbox: Sandbox
    languages: dict[str, str | None]
    """Language → why its solutions cannot be built there; None if they can."""


Blob = tuple[tuple[int, ...], Any]
"""A file's state, which changes with each write, and the reference to the file's bytes in Ray's object store."""


@dataclass(frozen=True)
class Batch:
    """Jobs for a slot."""

    jobs: Sequence[Job]
    seeds: dict[int, int]
    """Index of a job → seed of its inputs."""
    roots: dict[int, str]
    """Index of a job → folder of its stored inputs on the host."""
    blobs: Mapping[tuple[str, str], Blob] = field(default_factory=dict)
    """Root and path below it → a file of stored inputs. Empty if all nodes can read the host's files."""


class SlotActor:
    """One slot of a cluster.

    Args:
        node: the node's name.
        kind: "cpu" or "cuda". With "cuda", Ray has given this process one GPU.
        version: the package version of the host.
        settings: the host's settings for the cluster.
    """

    def __init__(self, node: str, kind: str, version: str, settings: ClusterSettings) -> None:
        self._node, self._kind, self._version, self._settings = node, kind, version, settings
        self._cache = Path(settings.cache or cache_root(os.environ)).resolve()
        self._toolchain = find_toolchain()
        self._owned = ExitStack()
        self._files = self._owned.enter_context(temporary_folder("slot"))
        self._written: dict[Path, tuple[int, ...]] = {}
        self._next_solutions: queue.SimpleQueue[Sequence[Solution]] = queue.SimpleQueue()
        """Solutions of the next batch, which are built while this batch runs."""
        self._judging = threading.Lock()
        self._ended = -1
        """Number of the latest session that the host has ended."""
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        self._session_config: SessionConfig | None = None
        self._opened: tuple[Scheduler, BuildPool] | None = None
        self._batch = Batch((), {}, {})

    def describe(self) -> SlotMetadata:
        """Return the slot's metadata.

        Raises:
            ConfigError: this node has another version, or cannot provide the strict sandbox.
            DeviceFault: this process does not see exactly one GPU.
        """
        return self._metadata

    @cached_property
    def _metadata(self) -> SlotMetadata:
        if self._version != __version__:
            raise ConfigError(f"it has flashinfer_bench {__version__}, and this run is of {self._version}")
        sandbox = find_sandbox(self._settings.sandbox, self._cache)
        return SlotMetadata(self._find_device(), sandbox, find_unavailable_languages(self._toolchain))

    @property
    def _capabilities(self) -> list[tuple[int, int]]:
        capability = self._metadata.device.capability
        return [] if capability is None else [capability]

    def _find_device(self) -> Device:
        if self._kind == "cpu":
            return replace(discover_devices(["cpu"])[0], node=self._node)
        os.environ.pop("OMP_NUM_THREADS", None)  # set by Ray; without it a GPU session computes as outside of Ray
        found = [device for device in discover_devices(None) if device.kind == "cuda"]
        if len(found) != 1:
            raise DeviceFault(f"an actor must see one GPU, and sees {len(found)}; is torch a CUDA build there?")
        numbers = [int(gpu) for gpu in ray.get_gpu_ids() if str(gpu).isdigit()] or [found[0].index]
        return replace(found[0], index=numbers[0], node=self._node)  # each slot of a node has its own index

    def why_not_built(self, solutions: Iterable[Solution]) -> list[str | None]:
        """Return why this node cannot build each solution; None if it can."""
        return [why_not_buildable(one, self._toolchain, self._capabilities) for one in solutions]

    def expect(self, solutions: Sequence[Solution]) -> None:
        """Build solutions of the next batch while this batch runs. Do nothing on a CPU slot, because builds would
        disturb its times."""
        if self._kind != "cpu":
            self._next_solutions.put(solutions)
            os.write(self._wake_write, b"\0")

    def end(self, number: int) -> None:
        """End a session; return when all of its processes have ended."""
        self._ended = number
        os.write(self._wake_write, b"\0")
        with self._judging:
            self._end_session()

    def close(self) -> None:
        """Remove the files of stored inputs; all sessions have ended."""
        self._owned.close()
        sweep_folders()

    def judge(self, number: int, session_config: SessionConfig, batch: Batch) -> Iterator[dict[str, Any]]:
        """Judge a batch; yield the frames that the host's loop receives from a session.

        Args:
            number: the number of the host's session; all batches of that session have the same number.

        Raises:
            DeviceFault: the slot cannot be used.
        """
        with self._judging:
            lacks = zip(batch.jobs, self.why_not_built(job.solution for job in batch.jobs), strict=True)
            if wrong := [f"it cannot build {job.solution.name}: {reason}" for job, reason in lacks if reason]:
                raise DeviceFault(wrong[0])
            for (root, path), blob in batch.blobs.items():
                self._write_blob(self._find_root(root) / path, blob)
            self._batch = batch
            scheduler, build_pool = self._open(session_config)
            scheduler.add(list(batch.jobs))
            try:
                while scheduler.has_open_jobs and self._ended < number and scheduler.slots[0].given_up_at is None:
                    while not self._next_solutions.empty():
                        build_pool.add(self._next_solutions.get())
                    for happening in scheduler.step(self._wake_read):  # no `yield from`: Ray sends values into it
                        yield _to_frame(happening)
                    with suppress(BlockingIOError):
                        os.read(self._wake_read, 1 << 12)
            except BaseException:
                self._end_session()
                raise
            for job in batch.jobs:
                scheduler.forget_solution(job)  # the host decides how long to skip a solution that hangs
            if scheduler.has_open_jobs and self._ended < number:
                self._end_session()
                raise DeviceFault("its session does not start")

    def _open(self, session_config: SessionConfig) -> tuple[Scheduler, BuildPool]:
        """Return the scheduler of this device with these settings, and its build pool."""
        if self._opened is not None and session_config == self._session_config:
            return self._opened
        self._end_session()
        self._session_config, sandbox = session_config, self._metadata.sandbox
        fitted = session_config.model_copy(
            update={
                "cache_root": str(self._cache),
                "is_sandboxed": sandbox.is_sandboxed,
                "sandbox_user": sandbox.user,
                "hidden": [*session_config.hidden, *(str(self._cache / name) for name in self._settings.hidden)],
                "baselines": session_config.baselines if sandbox.is_sandboxed else "off",
            }
        )
        build_pool = BuildPool(
            self._cache,
            jobs=self._settings.build_jobs or default_jobs(spared_cores=0 if self._kind == "cpu" else 1),
            target=BuildTarget.of(self._capabilities),
            toolchain=self._toolchain,
        )
        requests = RequestMaker(
            build_pool,
            blob_root_for=lambda job: self._find_root(self._batch.roots[job.index]),
            seed_of=lambda job: self._batch.seeds[job.index],
        )
        devices = [self._metadata.device]
        self._opened = Scheduler(devices, session_config_for=lambda _: fitted, requests=requests), build_pool
        return self._opened

    def _end_session(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            opened[0].close()

    def _find_root(self, root: str) -> Path:
        """Return the folder on this node for a folder of the host with stored inputs."""
        if self._settings.has_shared_blobs:
            return Path(root)
        return self._files / hashlib.sha256(root.encode()).hexdigest()[:16]

    def _write_blob(self, file: Path, blob: Blob) -> None:
        """Write a file of stored inputs, if it is new or has changed."""
        state, content = blob
        if self._written.get(file) != state:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.unlink(missing_ok=True)  # a session may still have the old file mapped
            file.write_bytes(ray.get(content))
            self._written[file] = state


def _to_frame(happening: Happening) -> dict[str, Any]:
    """Return the frame that reports a `Happening` to the host."""
    match happening:
        case JobStarted(job):
            return {"phase": {"job": job.index, "name": "solution"}}
        case Notice(message):
            return {"notice": message}
        case JobFaulted():
            details = {"message": happening.message, "is_left_out": happening.is_left_out}
            return {"fault": {"job": happening.job.index, "retry": False, **details}}
        case _:
            details = {"evaluation": happening.evaluation.model_dump(mode="json"), "ran_out": happening.ran_out}
            return {"verdict": {"job": happening.job.index, "seconds": happening.seconds, **details}}
