"""The open jobs of an engine: equal ones are one, and nothing is kept of what has ended."""

import pytest

from flashinfer_bench.bench import BenchmarkConfig
from flashinfer_bench.bench.planning.plan import Job
from flashinfer_bench.bench.resident.open_jobs import OpenJobs
from flashinfer_bench.bench.task import Task, TaskOrder
from tests.kit.make import make_definition, make_solution, make_workload

pytestmark = pytest.mark.cpu


@pytest.fixture
def open_jobs():
    return OpenJobs()


def submit(open_jobs, text, workloads=("w0",), **order):
    """Add a task with a job for each workload; return it with what `add` gives."""
    definition, solution = make_definition(), make_solution(source=f"# {text}\ndef run(x):\n    return x\n")
    config = BenchmarkConfig().resolve_eval_config(definition)
    jobs = [Job(0, definition, make_workload(one), solution, config, {"solution": text}) for one in workloads]
    task = Task(TaskOrder(solution, tuple(workloads), **order), lambda _task: None)
    return task, *open_jobs.add(task, jobs)


def test_numbers_never_come_twice_and_equal_jobs_have_one(open_jobs):
    _, first, _ = submit(open_jobs, "a", ("w0", "w1"))
    _, second, raised = submit(open_jobs, "a", ("w1", "w2"))
    assert ([job.index for job in first], [job.index for job in second], raised) == ([0, 1], [2], [])
    for index in range(3):
        open_jobs.close(index)
    assert [job.index for job in submit(open_jobs, "a")[1]] == [3]


def test_a_more_urgent_task_lifts_the_job_of_another(open_jobs):
    submit(open_jobs, "a")
    _, new, raised = submit(open_jobs, "a", priority=3, submitter="boss")
    assert (new, [job.index for job in raised]) == ([], [0])
    assert open_jobs.precedence_of(raised[0]) == (3, "boss")
    assert submit(open_jobs, "a", priority=1)[2] == []


def test_a_cancelled_job_waits_for_nobody_and_an_equal_new_one_begins_anew(open_jobs):
    task, _, _ = submit(open_jobs, "a")
    assert open_jobs.cancel(task) == [0]
    assert open_jobs.cancel(task) == []
    _, new, _ = submit(open_jobs, "a")
    assert [job.index for job in new] == [1]
    assert open_jobs.close(0).waiting == []
    assert open_jobs.count_new([new[0]]) == 0


def test_nothing_is_kept_of_what_has_ended(open_jobs):
    for text in "abc":
        submit(open_jobs, text, ("w0", "w1"), submitter=text)
    again = 0
    assert open_jobs.count_tasks() == {"a": 1, "b": 1, "c": 1}
    assert open_jobs.close(again)
    assert open_jobs.close(again) is None
    assert open_jobs.take_ended() == []
    assert len(open_jobs.close_all()) == 5
    submit(open_jobs, "b")
    assert [job.solution_key for job in open_jobs.take_ended()] == ["double_python@a", "double_python@c"]
    open_jobs.close_all()
    assert [job.solution_key for job in open_jobs.take_ended()] == ["double_python@b"]
    assert (len(open_jobs), open_jobs.tasks, open_jobs._by_mark, open_jobs._left) == (0, {}, {}, {})
