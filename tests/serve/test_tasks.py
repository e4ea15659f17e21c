"""Tasks over the routes: from the submission to their end, and over the end of the server."""

import asyncio
import sqlite3
from collections import Counter

import pytest

from flashinfer_bench.bench.events import JobFinished
from flashinfer_bench.serve.limits import ServeLimits
from tests.bench.played import PlayedSession
from tests.serve.conftest import submission, submit, wait_for


def verdicts(site):
    return Counter((line["evaluation"]["extra"]["run"]["task"], line["workload"]["uuid"]) for line in site.lines())


def execute(site, statement):
    """Change the database of a server that has ended."""
    database = sqlite3.connect(site.root / ".serve/tasks.sqlite", isolation_level=None)
    database.execute(statement)
    database.close()


async def test_long_polls_and_batches_end_with_their_tasks_or_their_time(site):
    async with site.serve(is_open=False) as client:
        tasks = [await submit(client), await submit(client, "other", workload_uuids=["w1"])]
        assert "traces" not in await wait_for(client, tasks[0], 0.01)
        assert (await wait_for(client, tasks[1], 0))["tasks_ahead"] == 1
        poll = asyncio.create_task(wait_for(client, tasks[0]))
        batch = asyncio.create_task(client.post("/tasks/batch", json={"task_ids": tasks, "timeout": 60}))
        await asyncio.sleep(0)
        PlayedSession.gate.set()
        assert (await poll)["status"] == "completed"
        assert [len(task["traces"]) for task in (await batch).json()["tasks"]] == [2, 1]
    assert verdicts(site) == {(tasks[0], "w0"): 1, (tasks[0], "w1"): 1, (tasks[1], "w1"): 1}


async def test_a_key_that_comes_again_is_the_same_task(site):
    async with site.serve() as client:
        headers = {"Idempotency-Key": "k1"}
        first = await submit(client, submitter="a", headers=headers)
        assert await submit(client, submitter="a", headers=headers) == first
        assert await submit(client, submitter="b", headers=headers) != first
        other = await client.post("/evaluate", json=submission("new", submitter="a"), headers=headers)
        assert (other.status_code, len(client.engine.asked)) == (422, 2)


async def test_submitter_priority_and_confirm_reach_the_engine(site):
    async with site.serve() as client:
        await submit(client, submitter="a", priority=3, confirm="always")
        await submit(client)
        found = [(asked["submitter"], asked["priority"], asked["confirm"]) for asked in client.engine.asked]
        assert found == [("a", 3, "always"), ("127.0.0.1", 0, "if_best")]
        listed = (await client.get("/tasks", params={"submitter": "a"})).json()["tasks"]
        assert [(task["submitter"], task["priority"], "traces" in task) for task in listed] == [("a", 3, False)]


async def test_a_cancelled_task_stays_cancelled(site):
    async with site.serve(is_open=False) as client:
        task = await submit(client)
        poll = asyncio.create_task(wait_for(client, task))
        await asyncio.sleep(0)
        assert (await client.delete(f"/tasks/{task}")).json()["status"] == "cancelled"
        assert (await poll)["status"] == "cancelled"
    async with site.serve() as client:
        assert ((await wait_for(client, task))["status"], client.engine.asked) == ("cancelled", [])
    assert site.lines() == []


async def test_a_fault_is_reported_as_the_error_of_its_task(site):
    async with site.serve(loss=1.0) as client:
        reported = await wait_for(client, await submit(client))
        assert (reported["status"], reported["error"]) == ("failed", "the session ended")


async def test_what_finds_no_room_is_asked_to_come_again_and_was_never_accepted(site):
    async with site.serve(is_open=False, limits=ServeLimits(open_tasks=3, open_tasks_each=2), room=4) as client:
        for name in "ab":
            await submit(client, name, submitter="flood")
        for submitter, status in ("flood", 429), ("quiet", 503):  # the engine holds four jobs
            answer = await client.post("/evaluate", json=submission("c", submitter=submitter))
            assert (answer.status_code, answer.headers["retry-after"]) == (status, "5")
        client.service.limits = ServeLimits(open_tasks=2)
        assert "2 tasks are open" in (await client.post("/evaluate", json=submission(submitter="third"))).text
        assert len((await client.get("/tasks")).json()["tasks"]) == 2


async def test_too_many_waiting_requests_are_refused_and_stop_nobody(site):
    async with site.serve(is_open=False, limits=ServeLimits(polls=50)) as client:
        task = await submit(client)
        polls = [asyncio.create_task(client.get(f"/tasks/{task}?timeout=60")) for _ in range(60)]
        while sum(poll.done() for poll in polls) < 10:
            await asyncio.sleep(0.01)
        assert (await client.get(f"/tasks/{task}/events")).status_code == 429
        assert (await client.get("/health")).json()["queue_size"] > 0
        PlayedSession.gate.set()
        assert Counter([(await poll).status_code for poll in polls]) == {200: 50, 429: 10}


@pytest.mark.parametrize("lost", ["nothing", "the row", "half a line", "the end"])
async def test_a_killed_server_loses_and_repeats_nothing(site, lost):
    def judge_one(job, _name):
        if lost != "the end" and job.workload["uuid"] == "w0":
            PlayedSession.gate.clear()
        return {}

    async with site.serve(drains=False, evaluate=staticmethod(judge_one)) as client:
        task = await submit(client)
        while len((await wait_for(client, task, 0)).get("traces", ())) < 1 + (lost == "the end"):
            await asyncio.sleep(0.01)
    (file,) = (site.root / "traces").rglob("*.jsonl")
    if lost == "half a line":
        file.write_bytes(file.read_bytes()[:-40])
    if lost != "nothing":
        execute(site, "DELETE FROM verdicts")
    execute(site, "UPDATE tasks SET state = 'open', ended_at = NULL")
    async with site.serve(evaluate=staticmethod(lambda *_: {})) as client:
        reported = await wait_for(client, task)
        assert (reported["status"], len(reported["traces"])) == ("completed", 2)
        left = {"half a line": [["w0", "w1"]], "the end": []}.get(lost, [["w1"]])
        assert [asked["workloads"] for asked in client.engine.asked] == left
    assert verdicts(site) == {(task, "w0"): 1, (task, "w1"): 1}


async def test_what_waits_for_its_confirmation_is_judged_again_and_recorded_once(site):
    """The file has the verdict that counts: the verdict of the confirmation."""

    def judge(job, _name):
        return {"extra": {"measurement": {"assurance": job.assurance or "standard"}}}

    async with site.serve(drains=False, gpu=True, evaluate=staticmethod(judge)) as client:
        client.engine.subscribe(lambda event: PlayedSession.gate.clear() if isinstance(event, JobFinished) else None)
        task = await submit(client, workload_uuids=["w1"])
        while len(PlayedSession.judged) < 2:
            await asyncio.sleep(0.01)
        assert ((await wait_for(client, task, 0))["status"], site.lines()) == ("running", [])
    async with site.serve(gpu=True, evaluate=staticmethod(judge)) as client:
        (trace,) = (await wait_for(client, task))["traces"]
        assert trace["evaluation"]["extra"]["measurement"]["assurance"] == "full"
    assert verdicts(site) == {(task, "w1"): 1}


async def test_a_drain_requeues_waiting_jobs(site):
    async with site.serve(is_open=False) as client:
        task = await submit(client)
        poll = asyncio.create_task(wait_for(client, task))
        await asyncio.sleep(0.05)
        assert await client.service.drain(0.05) == 1
        assert (await poll)["status"] == "pending"
        assert (await client.post("/evaluate", json=submission())).status_code == 503
        assert (await client.get("/health")).json()["status"] == "draining"
    async with site.serve() as client:
        assert (await wait_for(client, task))["status"] == "completed"


async def test_old_tasks_are_forgotten_and_their_traces_stay(site):
    async with site.serve() as client:
        task = await submit(client)
        ended = (await wait_for(client, task))["ended_at"]
    async with site.serve(limits=ServeLimits(keep_days=1)) as client:
        assert (await client.get(f"/tasks/{task}")).status_code == 200
    execute(site, f"UPDATE tasks SET ended_at = {ended - 86400}")
    async with site.serve(limits=ServeLimits(keep_days=1)) as client:
        while (await client.get(f"/tasks/{task}")).status_code != 404:
            await asyncio.sleep(0.01)
    assert len(site.lines()) == 2


async def test_while_the_disk_fails_tasks_end_and_their_ends_are_kept_when_it_works_again(site):
    full = "CREATE TEMP TRIGGER full_{0} BEFORE {0} ON {1} BEGIN SELECT RAISE(ABORT, 'disk is full'); END"
    async with site.serve(is_open=False) as client:
        task, database = await submit(client), client.store._database
        database.execute(full.format("INSERT", "verdicts"))
        database.execute(full.format("UPDATE", "tasks"))
        PlayedSession.gate.set()
        reported = await wait_for(client, task)
        assert (reported["status"], "disk is full" in reported["error"]) == ("failed", True)
        assert (await client.get("/tasks")).json()["tasks"][0]["status"] == "failed"
        database.execute("DROP TRIGGER full_UPDATE")
        while client.store.read(task)[0].state != "failed":
            await asyncio.sleep(0.05)
        assert await client.service.drain(0.05) == 0


async def test_a_task_whose_traces_would_leave_the_set_is_refused(site):
    (site.root / "home").mkdir()
    (site.root / "traces").symlink_to(site.root / "home")
    async with site.serve() as client:
        answer = await client.post("/evaluate", json=submission())
        assert (answer.status_code, "is a link to" in answer.text) == (422, True)
        assert (await client.get("/tasks")).json()["tasks"] == []
    assert list((site.root / "home").iterdir()) == []
