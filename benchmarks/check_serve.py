"""Put a real server (`flashinfer-bench serve`, CPU) under what it promises to stand: a crowd, kills, abuse.

    python benchmarks/check_serve.py                     # all; about five minutes on two cores
    python benchmarks/check_serve.py --only kills --seed 7

crowd   200 tasks of 20 clients, one of which floods: all verdicts right, none lost or twice; how the others' wait grows
kills   kill -9 at ten random moments, then a restart: every accepted task is recorded exactly once
abuse   bodies of 100 MB, broken JSON, unknown names, wrong tokens, slow readers and writers, 1,000 open long polls:
        right status codes, bounded memory, no effect on others

Ends with 1 where something that is promised did not hold.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import random
import resource
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx

from flashinfer_bench.client import Client
from flashinfer_bench.data import Solution
from flashinfer_bench.errors import FlashInferBenchError

ROOT = Path(__file__).resolve().parents[1]
TOKEN = "a-token-for-this-check-alone"
WORKLOADS = ("w0", "w1")
FLAGS = ("--devices", "cpu", "--quick", "--iterations", "5", "--warmup-runs", "1", "--no-profile-baseline")
DEFINITION = {
    "name": "double",
    "op_type": "check",
    "axes": {"n": {"type": "var"}},
    "inputs": {"x": {"shape": ["n"], "dtype": "float32"}},
    "outputs": {"y": {"shape": ["n"], "dtype": "float32"}},
    "reference": "def run(x):\n    return x * 2\n",
}
FLOOD_TASKS, QUIET_CLIENTS, QUIET_TASKS = 105, 19, 5
KILLS = 10
POLLS = 1000
LARGE_BYTES = 1_000_000
"""An answer of this size does not fit in a connection whose client reads nothing."""
MIB = 1 << 20

problems: list[str] = []


def check(holds: bool, what: str) -> None:
    """Note what did not hold."""
    print(f"  {'ok  ' if holds else 'FAIL'} {what}", flush=True)
    if not holds:
        problems.append(what)


def write_set(root: Path) -> Path:
    """Write a set with one definition and two workloads."""
    large = {**DEFINITION, "name": "large", "description": "x" * LARGE_BYTES}
    files = {"definitions/check/double.json": json.dumps(DEFINITION), "definitions/check/large.json": json.dumps(large)}
    inputs = {"x": {"type": "random"}}
    lines = [
        {"definition": "double", "workload": {"uuid": uuid, "axes": {"n": 256}, "inputs": inputs}} for uuid in WORKLOADS
    ]
    files["workloads/check/double.jsonl"] = "".join(json.dumps(line) + "\n" for line in lines)
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def make_solution(name: str, *, is_right: bool = True) -> Solution:
    """Make a solution that no other equals."""
    source = f"def run(x):\n    return x * {2 if is_right else 3}  # {name}\n"
    spec = {"language": "python", "target_hardware": ["cpu"], "entry_point": "main.py::run"}
    spec["destination_passing_style"] = False
    parts = {"name": name, "definition": "double", "author": "check", "spec": spec}
    return Solution.model_validate({**parts, "sources": [{"path": "main.py", "content": source}]})


class Server:
    """A server process that can be killed and started again."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self.root = write_set(folder / "set")
        self.folder, self.flags = folder, flags
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Server:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(90)
            except subprocess.TimeoutExpired:
                self.kill()

    def start(self) -> None:
        """Start it, and wait until it says that it serves."""
        argv = [sys.executable, "-m", "flashinfer_bench", "serve", "--local", str(self.root), "--port", str(self.port)]
        environment = {**os.environ, "FIB_CACHE_PATH": str(self.folder / "cache"), "PYTHONPATH": str(ROOT)}
        log = self.folder / "log"
        before = log.stat().st_size if log.exists() else 0
        with log.open("ab") as out:
            self.process = subprocess.Popen([*argv, *FLAGS, *self.flags], stderr=out, stdout=out, env=environment)
        deadline = time.monotonic() + 120
        while b"serving on" not in log.read_bytes()[before:]:
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"the server did not start:\n{log.read_text()[-3000:]}")
            time.sleep(0.05)

    def kill(self) -> None:
        """End it as nothing can be prepared for."""
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()

    def memory_mib(self, key: str) -> float:
        """Return VmRSS or VmHWM of the process."""
        pid = self.process.pid if self.process is not None else 0
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(key))

    def recorded(self) -> Counter[tuple[str, str]]:
        """Count the recorded verdicts by task and workload."""
        lines = [line for file in (self.root / "traces").rglob("*.jsonl") for line in file.read_text().splitlines()]
        found = [json.loads(line) for line in lines]
        return Counter((one["evaluation"]["extra"]["run"]["task"], one["workload"]["uuid"]) for one in found)


def check_exactly_once(server: Server, tasks: list[str], workloads: tuple[str, ...]) -> None:
    """Check that the set has each verdict of these tasks once, and no other."""
    recorded = server.recorded()
    wanted = {(task, uuid) for task in tasks for uuid in workloads}
    lost, twice = wanted - recorded.keys(), [key for key, count in recorded.items() if count > 1]
    check(not lost, f"{len(wanted)} verdicts of {len(tasks)} accepted tasks are recorded, {len(lost)} lost")
    check(not twice, f"{len(twice)} are recorded twice")
    check(not recorded.keys() - wanted, f"{len(recorded.keys() - wanted)} are of no accepted task")


def run_quiet(server: Server, round_name: str, tasks: dict[str, str], waits: list[float]) -> None:
    """Let clients ask one thing after another; a third of what they submit is wrong."""

    def talk(number: int) -> None:
        with Client(server.url, submitter=f"quiet{number}") as client:
            for turn in range(QUIET_TASKS):
                is_right = (number + turn) % 3 > 0
                solution = make_solution(f"{round_name}_{number}_{turn}", is_right=is_right)
                started = time.monotonic()
                task = client.submit(solution, WORKLOADS[:1])
                tasks[task] = "PASSED" if is_right else "INCORRECT_NUMERICAL"
                report = client.wait(task)
                waits.append(time.monotonic() - started)
                got = [trace.evaluation.status.value for trace in report.traces if trace.evaluation]
                if report.status != "completed" or got != [tasks[task]]:
                    problems.append(f"task {task}: {report.status} {got}, {tasks[task]} is right: {report.error}")

    with ThreadPoolExecutor(QUIET_CLIENTS) as pool:
        list(pool.map(talk, range(QUIET_CLIENTS)))


def crowd(folder: Path, _seed: int) -> None:
    """200 tasks of 20 clients, one of which floods."""
    with Server(folder) as server, Client(server.url, submitter="flood") as flood:
        flood.evaluate(make_solution("first"), WORKLOADS[:1])
        alone, beside = [], []
        tasks: dict[str, str] = {}
        first = set(server.recorded())
        run_quiet(server, "alone", tasks, alone)
        print(f"  without a flood: median wait {statistics.median(alone):.2f} s, longest {max(alone):.2f} s")
        tasks_before = len(tasks)
        started = time.monotonic()
        flooded = [flood.submit(make_solution(f"flood_{index}"), WORKLOADS[:1]) for index in range(FLOOD_TASKS)]
        tasks.update(dict.fromkeys(flooded, "PASSED"))
        run_quiet(server, "beside", tasks, beside)
        reports = [flood.wait(task) for task in flooded]
        seconds = time.monotonic() - started
        statuses = Counter(trace.evaluation.status.value for one in reports for trace in one.traces if trace.evaluation)
        check(statuses == {"PASSED": FLOOD_TASKS}, f"the flood's verdicts are right: {dict(statuses)}")
        count = len(tasks) - tasks_before
        print(f"  with a flood: {count} tasks in {seconds:.1f} s; median wait {statistics.median(beside):.2f} s")
        growth = statistics.median(beside) / statistics.median(alone) - 1
        check(growth < 0.5, f"the others' median wait grew by {growth:.0%}")
        check_exactly_once(server, [*tasks, *{task for task, _ in first}], WORKLOADS[:1])


def kills(folder: Path, seed: int) -> None:
    """Kill the server at ten random moments while a client submits."""
    moments = random.Random(seed)
    accepted: list[str] = []
    is_over = threading.Event()
    refused: list[str] = []

    def submit(server: Server, number: int) -> None:
        with Client(server.url, submitter=f"client{number}", retry_s=120) as client:
            turn = 0
            while not is_over.is_set():
                turn += 1
                try:
                    accepted.append(client.submit(make_solution(f"kill_{number}_{turn}")))
                except FlashInferBenchError as error:
                    refused.append(str(error))
                time.sleep(moments.uniform(0.2, 1.0))

    with Server(folder) as server:
        threads = [threading.Thread(target=submit, args=(server, number)) for number in range(3)]
        for thread in threads:
            thread.start()
        for _ in range(KILLS):
            time.sleep(moments.uniform(0.0, 6.0))
            server.kill()
            server.start()
        is_over.set()
        for thread in threads:
            thread.join()
        check(not refused, f"no submission was refused: {refused[:3]}")
        with Client(server.url) as client:
            started = time.monotonic()
            reports = [client.wait(task, 300) for task in accepted]
            print(f"  after {KILLS} kills the rest took {time.monotonic() - started:.1f} s")
        ended = Counter(report.status for report in reports)
        check(ended == {"completed": len(accepted)}, f"{len(accepted)} accepted tasks ended: {dict(ended)}")
        torn = list((server.root / "traces").rglob("*.torn"))
        print(f"  lines that were cut off and written again: {len(torn)} files")
        check_exactly_once(server, accepted, WORKLOADS)


def abuse(folder: Path, _seed: int) -> None:
    """Do what a careless or ill-meaning client does, and see how an honest one fares meanwhile."""
    token_file = folder / "token"
    token_file.touch(mode=0o600)
    token_file.write_text(TOKEN)
    with Server(folder, "--token-file", str(token_file)) as server, Client(server.url, TOKEN) as honest:
        honest.evaluate(make_solution("first"))
        before = server.memory_mib("VmRSS")
        ask_wrongly(server)
        asyncio.run(ask_much(server, honest))
        peak = server.memory_mib("VmHWM")
        check(peak - before < 400, f"memory of the server: {before:.0f} MiB before, {peak:.0f} MiB at the most")
        check(len(honest.evaluate(make_solution("last"))) == 2, "a submission afterwards is judged")


def ask_wrongly(server: Server) -> None:
    """Send single requests that have to be refused."""

    def large() -> object:
        for _ in range(100):
            yield bytes(MIB)

    headers = {"authorization": f"Bearer {TOKEN}"}
    solution = make_solution("unknown").to_dict()
    cases = [
        ("100 MB with their length", 413, {"content": bytes(100 * MIB), "headers": headers}),
        ("100 MB in chunks", 413, {"content": large(), "headers": headers}),
        ("100 MB without the token", 401, {"content": bytes(100 * MIB)}),
        ("broken JSON", 400, {"content": b'{"solution": {', "headers": headers}),
        ("JSON nested 100,000 deep", 400, {"content": b"[" * 100_000, "headers": headers}),
        ("an unknown definition", 404, {"json": {"solution": {**solution, "definition": "none"}}, "headers": headers}),
        ("no token", 401, {"json": {"solution": solution}}),
        ("a wrong token", 401, {"json": {"solution": solution}, "headers": {"authorization": "Bearer wrong"}}),
        (
            "a page's Origin",
            403,
            {"json": {"solution": solution}, "headers": {**headers, "origin": "http://a.example"}},
        ),
        ("another Host", 403, {"json": {"solution": solution}, "headers": {**headers, "host": "a.example"}}),
    ]
    with httpx.Client(base_url=server.url, timeout=60, trust_env=False) as client:
        for what, status, parts in cases:
            started = time.monotonic()
            try:
                got: object = client.post("/evaluate", **parts).status_code
            except httpx.TransportError as error:
                got = f"{type(error).__name__}"
            check(got == status, f"{what}: {got} in {time.monotonic() - started:.2f} s")


async def open_raw(
    server: Server, request: str, receives: int | None = None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open a connection, which takes few bytes before somebody reads, and send some text."""
    line = socket.socket()
    if receives is not None:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receives)
    line.setblocking(False)
    await asyncio.get_running_loop().sock_connect(line, ("127.0.0.1", server.port))
    reader, writer = await asyncio.open_connection(sock=line, limit=1024)
    writer.write(request.encode())
    await writer.drain()
    return reader, writer


async def ask_much(server: Server, honest: Client) -> None:
    """Hold a thousand long polls, slow readers and slow writers, and see what others notice."""
    known = f"Host: localhost\r\nAuthorization: Bearer {TOKEN}\r\n"
    usual = await probe(server)
    blocker = make_solution("blocker")
    sleeping = {"path": "main.py", "content": "import time\ntime.sleep(8)\n" + blocker.sources[0].content}
    slow = Solution.model_validate({**blocker.to_dict(), "sources": [sleeping]})
    task = await asyncio.to_thread(honest.submit, slow)
    started = time.monotonic()
    poll = f"GET /tasks/{task}?timeout=60 HTTP/1.1\r\n{known}\r\n"
    polls = [await open_raw(server, poll) for _ in range(POLLS)]
    readers = [await open_raw(server, f"GET /definitions/large HTTP/1.1\r\n{known}\r\n", 4096) for _ in range(50)]
    writers = [
        await open_raw(server, f"POST /evaluate HTTP/1.1\r\n{known}Content-Length: 4000000\r\n\r\n{{")
        for _ in range(50)
    ]
    opened = time.monotonic() - started
    busy = await probe(server)
    text = f"{POLLS} polls, 50 slow readers, 50 slow writers open after {opened:.1f} s"
    check(busy < max(0.25, 10 * usual), f"{text}; /health takes {usual * 1e3:.1f} ms alone, {busy * 1e3:.1f} ms beside")
    judged = asyncio.to_thread(honest.evaluate, make_solution("beside"), WORKLOADS[:1])
    check(len(await judged) == 1, "a submission beside them is judged")
    answers = Counter([await read_status(reader) for reader, _ in polls])
    check(answers == {200: POLLS}, f"the polls were answered: {dict(answers)}")
    for _, writer in [*polls, *readers, *writers]:
        writer.close()


async def read_status(reader: asyncio.StreamReader) -> int:
    """Return the status of an answer."""
    line = await asyncio.wait_for(reader.readline(), 120)
    return int(line.split()[1]) if line else 0


async def probe(server: Server) -> float:
    """Return the median time of /health."""
    times = []
    async with httpx.AsyncClient(base_url=server.url, timeout=60, trust_env=False) as client:
        for _ in range(30):
            started = time.monotonic()
            assert (await client.get("/health")).status_code == 200
            times.append(time.monotonic() - started)
    return statistics.median(times)


PARTS = {"crowd": crowd, "kills": kills, "abuse": abuse}


def main() -> int:
    """Run the chosen parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PARTS, nargs="+", default=list(PARTS))
    parser.add_argument("--seed", type=int, default=int(time.time()))
    args = parser.parse_args()
    logging.getLogger("flashinfer_bench.client").setLevel(logging.ERROR)  # it says that it tries again
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    print(f"seed {args.seed}")
    for name in args.only:
        folder = Path(tempfile.mkdtemp(prefix=f"check_serve_{name}_"))
        print(f"{name}: {' '.join((PARTS[name].__doc__ or '').split())}", flush=True)
        PARTS[name](folder, args.seed)
        shutil.rmtree(folder, ignore_errors=True)
    print("\n".join(["did not hold:", *problems]) if problems else "all of it held")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
