"""What a server that ends leaves, the next one goes on with; each verdict is in the set once."""

import asyncio
import os
import sqlite3
from collections import Counter

import pytest

from flashinfer_bench import BenchmarkConfig, Engine
from flashinfer_bench.bench.events import JobFinished
from flashinfer_bench.data import TraceSet
from flashinfer_bench.errors import DataSetError, Fault
from flashinfer_bench.serve.ledger import Ledger
from tests.bench.played import PlayedSession, on_gpu, play
from tests.serve.conftest import submission
from tests.serve.test_tasks import run, submit


def verdicts(site):
    return Counter((line["evaluation"]["extra"]["run"]["task"], line["workload"]["uuid"]) for line in site.lines())


async def judge_the_first_workload(site):
    """Let a server record one of two verdicts, and kill it. Return the task."""
    async with site.serve(drains=False) as client:
        client.engine.stops_after_one = True
        task = (await submit(client))["task_id"]
        while not (await client.get(f"/tasks/{task}")).json().get("traces"):
            await asyncio.sleep(0.01)
    return task


def test_a_killed_server_loses_and_repeats_nothing(site):
    async def talk():
        task = await judge_the_first_workload(site)
        async with site.serve() as client:
            assert (await client.get(f"/tasks/{task}?timeout=10")).json()["status"] == "completed"
            assert client.engine.submitted[0].task.workloads == ["w1"]
        assert verdicts(site) == {(task, "w0"): 1, (task, "w1"): 1}

    run(talk())


def test_a_line_that_the_ledger_does_not_know_of_counts(site):
    async def talk():
        task = await judge_the_first_workload(site)
        ledger = Ledger(site.root / ".serve")
        ledger._database.execute("DELETE FROM verdicts")
        ledger.close()
        async with site.serve() as client:
            told = (await client.get(f"/tasks/{task}?timeout=10")).json()
            assert (told["status"], len(told["traces"])) == ("completed", 2)
        assert verdicts(site) == {(task, "w0"): 1, (task, "w1"): 1}

    run(talk())


def test_a_line_that_was_cut_off_is_written_again(site):
    async def talk():
        task = await judge_the_first_workload(site)
        (file,) = (site.root / "traces").rglob("*.jsonl")
        file.write_bytes(file.read_bytes()[:-40])
        ledger = Ledger(site.root / ".serve")
        ledger._database.execute("DELETE FROM verdicts")
        ledger.close()
        async with site.serve() as client:
            assert (await client.get(f"/tasks/{task}?timeout=10")).json()["status"] == "completed"
        assert verdicts(site) == {(task, "w0"): 1, (task, "w1"): 1}
        assert file.with_name(f"{file.name}.torn").exists()

    run(talk())


def test_a_task_whose_every_line_is_there_is_completed_without_the_engine(site):
    async def talk():
        async with site.serve() as client:
            task = (await submit(client))["task_id"]
            await client.get(f"/tasks/{task}?timeout=10")
        ledger = Ledger(site.root / ".serve")
        ledger._database.execute("UPDATE tasks SET state = 'open', ended_at = NULL")
        ledger.close()
        async with site.serve() as client:
            assert (await client.get(f"/tasks/{task}?timeout=10")).json()["status"] == "completed"
            assert client.engine.submitted == []

    run(talk())


def test_what_waits_for_its_confirmation_is_judged_again_and_recorded_once(site, monkeypatch, tmp_path):
    """The file has the verdict that counts: that of the confirmation."""
    by_level = {None: "standard", "full": "full"}

    def make_engine():
        play(
            monkeypatch,
            evaluate=staticmethod(lambda job, _: {"extra": {"measurement": {"assurance": by_level[job.assurance]}}}),
        )
        engine = Engine(TraceSet.from_path(site.root), BenchmarkConfig.default(devices=["cpu"]), cache=tmp_path / "c")
        on_gpu(engine.context)
        return engine

    async def talk():
        engine = make_engine()
        PlayedSession.gate.set()
        engine.subscribe(lambda event: PlayedSession.gate.clear() if isinstance(event, JobFinished) else None)
        async with site.serve(drains=False, engine=engine) as client:
            task = (await submit(client, workload_uuids=["w1"]))["task_id"]
            while len(PlayedSession.judged) < 2:
                await asyncio.sleep(0.01)
            assert (await client.get(f"/tasks/{task}")).json()["status"] == "running"
        assert site.lines() == []
        PlayedSession.gate.set()
        await asyncio.to_thread(engine.close)
        engine = make_engine()
        PlayedSession.gate.set()
        async with site.serve(engine=engine) as client:
            (trace,) = (await client.get(f"/tasks/{task}?timeout=10")).json()["traces"]
            assert trace["evaluation"]["extra"]["measurement"]["assurance"] == "full"
        await asyncio.to_thread(engine.close)
        assert verdicts(site) == {(task, "w1"): 1}

    run(talk())


def test_the_ledger_of_an_earlier_version_is_read(tmp_path):
    ledger = Ledger(tmp_path)
    ledger._database.execute("ALTER TABLE tasks DROP COLUMN confirm")
    ledger._database.execute("PRAGMA user_version = 1")
    values = ("t", "me", None, "r", "double", "k", "{}", "[]", 0, "open", None, 1.0, None)
    ledger._database.execute(f"INSERT INTO tasks VALUES ({', '.join('?' * len(values))})", values)
    ledger.close()
    assert [(row.id, row.confirm) for row in Ledger(tmp_path).open_tasks()] == [("t", "if_best")]


def test_a_drain_gives_back_what_waits(site):
    async def talk():
        async with site.serve(is_open=False) as client:
            task = (await submit(client))["task_id"]
            poll = asyncio.create_task(client.get(f"/tasks/{task}?timeout=15"))
            await asyncio.sleep(0)
            assert await client.service.drain(0.05) == 1
            assert (await poll).json()["status"] == "pending"
            refused = await client.post("/evaluate", json={})
            assert refused.status_code in (422, 503)
            assert (await client.get("/health")).json()["status"] == "draining"
        async with site.serve() as client:
            assert (await client.get(f"/tasks/{task}?timeout=10")).json()["status"] == "completed"

    run(talk())


def test_old_tasks_are_forgotten_and_their_traces_stay(site):
    async def talk():
        async with site.serve() as client:
            task = (await submit(client))["task_id"]
            ended = (await client.get(f"/tasks/{task}?timeout=10")).json()["ended_at"]
            assert await client.records.clean(ended) == 0
            assert await client.records.clean(ended + 1) == 1
            assert (await client.get(f"/tasks/{task}")).status_code == 404

    run(talk())
    assert len(site.lines()) == 2


def test_one_process_holds_a_ledger(tmp_path):
    ledger = Ledger(tmp_path)
    with pytest.raises(DataSetError, match="another server"):
        Ledger(tmp_path)
    ledger.close()
    Ledger(tmp_path).close()


def test_a_ledger_is_for_its_user_alone_and_of_a_known_version(tmp_path):
    ledger = Ledger(tmp_path / "new")
    assert (ledger.path.parent.stat().st_mode & 0o777, ledger.path.stat().st_mode & 0o777) == (0o700, 0o600)
    ledger._database.execute("PRAGMA user_version = 9")
    ledger.close()
    with pytest.raises(DataSetError, match="later version"):
        Ledger(tmp_path / "new")


def test_while_the_disk_fails_tasks_end_and_their_ends_are_kept_when_it_works_again(site):
    full = "CREATE TRIGGER full BEFORE {} ON {} BEGIN SELECT RAISE(ABORT, 'disk is full'); END"

    async def talk():
        async with site.serve(is_open=False) as client:
            task = (await submit(client))["task_id"]
            ledger = client.records._ledger._database
            ledger.execute(full.format("INSERT", "verdicts"))
            ledger.execute(full.format("UPDATE", "tasks").replace("full", "fuller", 1))
            client.engine.open()
            told = (await client.get(f"/tasks/{task}?timeout=10")).json()
            assert (told["status"], "disk is full" in told["error"]) == ("failed", True)
            assert (await client.get("/tasks")).json()["tasks"][0]["status"] == "failed"
            assert await client.service.drain(0.05) == 1
            ledger.execute("DROP TRIGGER fuller")
            assert await client.service.drain(0.05) == 0
            assert client.records._ledger.find(task).state == "failed"

    run(talk())


def link_file(root, home):
    (root / ".serve").mkdir()
    (root / ".serve/tasks.sqlite").symlink_to(home / "mine")


def link_wal(root, home):
    Ledger(root / ".serve").close()
    (root / ".serve/tasks.sqlite-wal").symlink_to(home / "mine")


def link_folder(root, home):
    (root / ".serve").symlink_to(home)


def hard_link(root, home):
    (root / ".serve").mkdir()
    (root / ".serve/tasks.sqlite").hardlink_to(home / "mine")


def pipe(root, home):
    (root / ".serve").mkdir()
    os.mkfifo(root / ".serve/tasks.sqlite")


def super_journal(root, home):
    """Make a journal that SQLite rolls back, and that names a file to be removed then."""
    Ledger(root / ".serve").close()
    database = sqlite3.connect(root / ".serve/tasks.sqlite", isolation_level=None)
    database.execute("PRAGMA journal_mode = DELETE")
    database.execute("PRAGMA journal_mode = PERSIST")
    database.execute("CREATE TABLE x (y)")
    database.close()
    name = str(home / "mine").encode()
    parts = [(1).to_bytes(4, "big"), name, len(name).to_bytes(4, "big"), (sum(name) & 0xFFFFFFFF).to_bytes(4, "big")]
    with (root / ".serve/tasks.sqlite-journal").open("r+b") as journal:
        journal.write(bytes.fromhex("d9d505f920a163d7"))
        journal.seek(0, os.SEEK_END)
        journal.write(b"".join(parts) + bytes.fromhex("d9d505f920a163d7"))


@pytest.mark.parametrize("trap", [link_file, link_wal, link_folder, hard_link, pipe, super_journal])
def test_a_strangers_ledger_leads_no_write_out_of_the_set(tmp_path, trap):
    root, home = tmp_path / "set", tmp_path / "home"
    root.mkdir()
    home.mkdir()
    (home / "mine").write_text("mine")
    trap(root, home)
    with pytest.raises((DataSetError, Fault), match="cannot be opened"):
        Ledger(root / ".serve")
    assert [(file.name, file.read_text()) for file in home.iterdir()] == [("mine", "mine")]


def test_a_task_whose_traces_would_leave_the_set_is_refused(site):
    async def talk():
        (site.root / "home").mkdir()
        (site.root / "traces").symlink_to(site.root / "home")
        async with site.serve() as client:
            answer = await client.post("/evaluate", json=submission())
            assert answer.status_code == 422
            assert "is a link to" in answer.text

    run(talk())
    assert list((site.root / "home").iterdir()) == []
