"""What the routes beside tasks answer: the set, metrics, documentation."""

import re

from flashinfer_bench.data import Definition, Workload
from tests.serve.test_tasks import run, submit

SAMPLE = re.compile(r'[a-z_]+(\{[a-z]+="(\\.|[^"\\\n])*"(,[a-z]+="(\\.|[^"\\\n])*")*\})? [-+.0-9e]+')


def read_metrics(text):
    """Parse Prometheus' text format: sample with labels → value."""
    lines = text.splitlines()
    samples = [line for line in lines if not line.startswith("#")]
    assert all(SAMPLE.fullmatch(line.replace("+Inf", "inf")) for line in samples), samples
    typed = {line.split()[2] for line in lines if line.startswith("# TYPE")}
    assert {re.sub(r"_(bucket|sum|count)?$", "", re.split(r"[{ ]", line)[0]) for line in samples} <= typed
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in samples}


def test_the_set_is_told_as_its_files_have_it(site):
    async def talk():
        async with site.serve() as client:
            (listed,) = (await client.get("/definitions")).json()
            assert (listed["name"], listed["op_type"], listed["workloads"]) == ("double", "test", 2)
            definition = Definition.model_validate((await client.get("/definitions/double")).json())
            assert definition == client.engine.trace_set.definitions["double"]
            workloads = (await client.get("/definitions/double/workloads")).json()
            assert [Workload.model_validate(one).uuid for one in workloads] == ["w0", "w1"]
            found = (await client.get("/workloads/w1")).json()
            assert (found["definition"], found["workload"]) == ("double", workloads[1])

    run(talk())


def test_health_tells_devices_and_queue(site):
    async def talk():
        async with site.serve(is_open=False) as client:
            await submit(client)
            health = (await client.get("/health")).json()
            assert (health["status"], health["queue_size"]) == ("ok", 1)
            assert [(one["device"], one["healthy"]) for one in health["workers"]] == [("cpu", True)]

    run(talk())


def test_metrics_can_be_parsed_and_count(site):
    async def talk():
        async with site.serve() as client:
            task = (await submit(client))["task_id"]
            await client.get(f"/tasks/{task}?timeout=10")
            answer = await client.get("/metrics")
            assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
            found = {name.removeprefix("flashinfer_bench_"): value for name, value in read_metrics(answer.text).items()}
            assert found['tasks_total{status="completed"}'] == 1
            assert found['jobs_total{status="PASSED"}'] == 2
            assert found['device_up{device="cpu",hardware="test device"}'] == 1
            assert (found["job_seconds_count"], found["job_seconds_sum"]) == (2, 0.4)
            assert (found['job_seconds_bucket{le="0.1"}'], found['job_seconds_bucket{le="+Inf"}']) == (0, 2)

    run(talk())


def test_docs_tell_every_route_and_fetch_nothing(site):
    async def talk():
        async with site.serve() as client:
            endpoints = (await client.get("/")).json()["endpoints"]
            page = await client.get("/docs")
            assert page.headers["content-type"].startswith("text/html")
            assert not re.search(r"<script|src=|https?://", page.text)
            assert "default-src 'none'" in page.headers["content-security-policy"]
            for endpoint in endpoints:
                assert f"<code>{endpoint}</code>" in page.text
            paths = (await client.get("/openapi.json")).json()["paths"]
            assert paths["/evaluate"]["post"]["requestBody"]["content"]["application/json"]["schema"]
            wanted = ("GET /health", "POST /evaluate", "POST /tasks/batch", "GET /tasks/{task_id}", "POST /shutdown")
            assert set(wanted) <= set(endpoints)

    run(talk())


def test_every_answer_has_the_id_that_the_log_has(site, caplog):
    async def talk():
        async with site.serve() as client:
            with caplog.at_level("INFO", logger="flashinfer_bench.serve"):
                task = (await submit(client))["task_id"]
                answer = await client.get(f"/tasks/{task}")
            lines = [record.getMessage() for record in caplog.records if "GET /tasks" in record.getMessage()]
            assert answer.headers["x-request-id"] in lines[0]
            assert task in lines[0].rpartition("task")[2]

    run(talk())
