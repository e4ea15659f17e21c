"""Tasks over the routes: the relative's sequence, and what goes beyond it."""

import asyncio
import json

from flashinfer_bench.serve.limits import ServeLimits
from tests.serve.conftest import submission


async def submit(client, name="kernel", *, headers=None, **others):
    answer = await client.post("/evaluate", json=submission(name, **others), headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.json()


def run(coroutine):
    asyncio.run(asyncio.wait_for(coroutine, 20))


def test_submit_poll_and_batch_as_agents_know_them(site):
    async def talk():
        async with site.serve() as client:
            first = await submit(client)
            assert first["normalized_solution_name"].startswith("kernel_")
            assert len(first["normalized_solution_name"]) == len("kernel_") + 8
            second = await submit(client, "other", workload_uuids=["w1"])
            told = (await client.get(f"/tasks/{first['task_id']}", params={"timeout": 10})).json()
            assert (told["status"], told["definition"]) == ("completed", "double")
            assert told["solution"] == first["normalized_solution_name"]
            assert [trace["workload"]["uuid"] for trace in told["traces"]] == ["w0", "w1"]
            assert {trace["evaluation"]["status"] for trace in told["traces"]} == {"PASSED"}
            ids = [first["task_id"], second["task_id"]]
            batch = (await client.post("/tasks/batch", json={"task_ids": ids, "timeout": 10})).json()["tasks"]
            assert [(task["task_id"], len(task["traces"])) for task in batch] == [(ids[0], 2), (ids[1], 1)]

    run(talk())
    assert [(line["workload"]["uuid"], line["solution"][:-9]) for line in site.lines()] == [
        ("w0", "kernel"),
        ("w1", "kernel"),
        ("w1", "other"),
    ]


def test_every_line_names_its_task(site):
    async def talk():
        async with site.serve() as client:
            site.task = (await submit(client))["task_id"]
            await client.get(f"/tasks/{site.task}?timeout=10")

    run(talk())
    assert {line["evaluation"]["extra"]["run"]["task"] for line in site.lines()} == {site.task}


def test_a_long_poll_ends_with_its_task_or_its_time(site):
    async def talk():
        async with site.serve(is_open=False) as client:
            task = (await submit(client))["task_id"]
            early = (await client.get(f"/tasks/{task}?timeout=0.01")).json()
            assert early["status"] == "pending"
            assert "traces" not in early
            polls = [asyncio.create_task(client.get(f"/tasks/{task}?timeout=15")) for _ in range(5)]
            await asyncio.sleep(0)
            client.engine.open()
            assert {(await poll).json()["status"] for poll in polls} == {"completed"}

    run(talk())


def test_a_key_that_comes_again_is_the_same_task(site):
    async def talk():
        async with site.serve() as client:
            headers = {"Idempotency-Key": "k1"}
            first = await submit(client, submitter="a", headers=headers)
            assert await submit(client, submitter="a", headers=headers) == first
            assert await submit(client, submitter="b", headers=headers) != first
            other = await client.post("/evaluate", json=submission("new", submitter="a"), headers=headers)
            assert other.status_code == 422
            assert len(client.engine.submitted) == 2

    run(talk())


def test_submitter_priority_and_confirm_reach_the_engine(site):
    async def talk():
        async with site.serve() as client:
            await submit(client, submitter="a", priority=3, confirm="always")
            await submit(client)
            found = [(item.submitter, item.priority, item.confirm) for item in client.engine.submitted]
            assert found == [("a", 3, "always"), ("127.0.0.1", 0, "if_best")]
            listed = (await client.get("/tasks", params={"submitter": "a"})).json()["tasks"]
            assert [(task["submitter"], task["priority"], "traces" in task) for task in listed] == [("a", 3, False)]
            assert len((await client.get("/tasks")).json()["tasks"]) == 2

    run(talk())


def test_a_cancelled_task_stays_cancelled(site):
    async def talk():
        async with site.serve(is_open=False) as client:
            task = (await submit(client))["task_id"]
            poll = asyncio.create_task(client.get(f"/tasks/{task}?timeout=15"))
            await asyncio.sleep(0)
            assert (await client.delete(f"/tasks/{task}")).json()["status"] == "cancelled"
            assert (await poll).json()["status"] == "cancelled"
            client.engine.open()
        async with site.serve() as client:
            assert client.engine.submitted == []
            assert (await client.get(f"/tasks/{task}")).json()["status"] == "cancelled"

    run(talk())
    assert site.lines() == []


def test_a_fault_is_told_as_the_error_of_its_task(site):
    async def talk():
        async with site.serve() as client:
            client.engine.fault = "the device was lost"
            task = (await submit(client))["task_id"]
            told = (await client.get(f"/tasks/{task}?timeout=10")).json()
            assert (told["status"], told["error"]) == ("failed", "the device was lost")

    run(talk())


def test_events_tell_each_verdict_and_the_end_also_afterwards(site):
    async def talk():
        async with site.serve(is_open=False) as client:
            task = (await submit(client))["task_id"]
            stream = asyncio.create_task(client.get(f"/tasks/{task}/events"))
            await asyncio.sleep(0)
            client.engine.open()
            live, later = await stream, await client.get(f"/tasks/{task}/events")
            for answer in (live, later):
                assert answer.headers["content-type"].startswith("text/event-stream")
                lines = answer.text.splitlines()
                told = [json.loads(line[6:]) for line in lines if line.startswith("data: ")]
                assert [event["event"] for event in told] == ["verdict", "verdict", "end"]
                assert (told[0]["status"], told[2]["status"]) == ("PASSED", "completed")

    run(talk())


def test_full_queues_ask_to_come_again(site):
    async def talk():
        limits = ServeLimits(open_tasks=3, open_tasks_each=2)
        async with site.serve(is_open=False, limits=limits) as client:
            for name in ("a", "b"):
                await submit(client, name, submitter="flood")
            answers = [
                await client.post("/evaluate", json=submission("c", submitter="flood")),
                await client.post("/evaluate", json=submission("c", submitter="quiet")),
                await client.post("/evaluate", json=submission("d", submitter="third")),
            ]
            assert [answer.status_code for answer in answers] == [429, 200, 503]
            assert all(int(answers[index].headers["retry-after"]) > 0 for index in (0, 2))

    run(talk())


def test_a_task_that_the_engine_has_no_room_for_was_never_accepted(site):
    async def talk():
        async with site.serve(room=1, is_open=False) as client:
            await submit(client)
            answer = await client.post("/evaluate", json=submission("more"))
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
            assert len((await client.get("/tasks")).json()["tasks"]) == 1

    run(talk())


def test_too_many_waiting_requests_are_refused_and_stop_nobody(site):
    async def talk():
        async with site.serve(is_open=False, limits=ServeLimits(polls=50)) as client:
            task = (await submit(client))["task_id"]
            polls = [asyncio.create_task(client.get(f"/tasks/{task}?timeout=15")) for _ in range(60)]
            while sum(poll.done() for poll in polls) < 10:
                await asyncio.sleep(0.01)
            assert {poll.result().status_code for poll in polls if poll.done()} == {429}
            assert (await client.get("/health")).json()["queue_size"] == 1
            client.engine.open()
            assert [(await poll).status_code for poll in polls].count(200) == 50

    run(talk())


def test_a_client_that_goes_makes_room_for_others(site):
    async def talk():
        async with site.serve(is_open=False, limits=ServeLimits(polls=1)) as client:
            task = (await submit(client))["task_id"]
            gone = asyncio.Event()
            heard = iter([{"type": "http.request", "body": b"", "more_body": False}])

            async def receive():
                for message in heard:
                    return message
                await gone.wait()
                return {"type": "http.disconnect"}

            async def send(message):
                pass

            scope = {"type": "http", "method": "GET", "path": f"/tasks/{task}", "query_string": b"timeout=15"}
            scope |= {"headers": [(b"host", b"localhost")], "http_version": "1.1", "scheme": "http"}
            poll = asyncio.create_task(client.app(scope, receive, send))
            while not client.service._waiting:
                await asyncio.sleep(0.01)
            assert (await client.get(f"/tasks/{task}?timeout=1")).status_code == 429
            assert (await client.get(f"/tasks/{task}/events")).status_code == 429
            gone.set()
            await poll
            assert (await client.get(f"/tasks/{task}?timeout=0.01")).status_code == 200

    run(talk())
