"""What a server that ends leaves, the next one goes on with; each verdict is in the set once."""

import asyncio
from collections import Counter

import pytest

from flashinfer_bench.errors import DataSetError
from flashinfer_bench.serve.ledger import Ledger
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
