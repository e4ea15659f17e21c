"""The way of one solution stands in docs/architecture.md, as a table: it is the way that a run takes."""

import re

import pytest

from flashinfer_bench.bench import Benchmark, BenchmarkConfig
from flashinfer_bench.bench.runner.client import SessionClient
from flashinfer_bench.data import TraceSet
from flashinfer_bench.data.store.trace_writer import TraceWriter
from tests.kit import make_definition, make_solution, make_trace, write_trace_set
from tests.kit.documents import CHECKOUT, DOCS

pytestmark = pytest.mark.cpu
PAGE = (DOCS / "architecture.md").read_text()
STACK = '''
import traceback

def files_on_the_way():
    """Return the package's files that have called this one, the outermost first, each once."""
    found = [frame.filename.rpartition("flashinfer_bench/")[2] for frame in traceback.extract_stack()
             if "/flashinfer_bench/" in frame.filename]
    return list(dict.fromkeys(found))
'''
PLUG_IN = f"""{STACK}
from flashinfer_bench.bench.evaluators.default import DefaultEvaluator
from flashinfer_bench.bench.runner.workers.process import WorkerProcess

asked = []
ask, eval_performance = WorkerProcess.ask, DefaultEvaluator.eval_performance.__func__

def noting_ask(worker, verb, *given, **more):
    if verb == "calls":
        asked[:] = files_on_the_way()
    return ask(worker, verb, *given, **more)

def noting(cls, *given, context):
    context.notes["asked"] = [*asked, "bench/runner/workers/process.py"]
    return eval_performance(cls, *given, context=context)

WorkerProcess.ask, DefaultEvaluator.eval_performance = noting_ask, classmethod(noting)

class TakesNothing(DefaultEvaluator):
    @classmethod
    def can_evaluate(cls, definition):
        return False

EVALUATORS = [TakesNothing]
"""
SOLUTION = f"""{STACK}
def run(x):
    print("WAY", *files_on_the_way())
    return x * 2
"""


def read_table(title):
    """Return the rows of the table below a heading of the page, each as its cells."""
    text = PAGE.split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]
    return [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| `")
    ]


def starters_of(title):
    return [name for cells in read_table(title) for name in re.findall(r"`([^`]+)`", cells[0])]


def test_the_page_names_each_file_that_starts_a_process():
    starts = re.compile(r"subprocess\.(Popen|run)\(|\bfork\(\)")
    package = CHECKOUT / "flashinfer_bench"
    files = {file.relative_to(package).as_posix() for file in package.rglob("*.py") if starts.search(file.read_text())}
    files -= {"sandbox/process_tree.py"}  # it has the function `fork`
    assert files | {"bench/runner/session/opening.py", "base/isolated.py"} == {*starters_of("Processes of ours")}


def test_a_solution_takes_the_way_that_stands_in_the_page(tmp_path, monkeypatch):
    (tmp_path / "noting.py").write_text(PLUG_IN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{CHECKOUT}")
    space = {}
    exec(STACK, space)
    ways = {"send": [], "append": []}
    for name, owner in (("send", SessionClient), ("append", TraceWriter)):
        usual = getattr(owner, name)

        def noted(*given, usual=usual, name=name, **more):
            ways[name].extend(space["files_on_the_way"]())
            return usual(*given, **more)

        monkeypatch.setattr(owner, name, noted)
    root, solution = tmp_path / "set", make_solution(source=SOLUTION)
    workloads = [make_trace(solution=None)]
    write_trace_set(root, definitions=[make_definition()], solutions=[solution], workloads=workloads)
    config = BenchmarkConfig(evaluator_modules=["noting"])
    ((trace,),) = Benchmark(TraceSet.from_path(root), config).run_all().traces.values()
    called = re.search(r"WAY (.*)", trace.evaluation.log).group(1).split()
    host = [*ways["send"], "bench/runner/client.py"]
    written = [*ways["append"], "data/store/trace_writer.py"]
    taken = dict.fromkeys([*host, *trace.evaluation.extra["asked"], *called, *written])
    rows = read_table("The way of one solution")
    told = {cells[0].strip("`"): cells[1] for cells in rows}
    starters = {*starters_of("Processes of ours")}
    assert [file for file in taken if file not in starters and "/artifacts/" not in file] == list(told)
    assert len(told) <= 12
    assert len(set(told.values())) <= 4
