"""An engine on a GPU judges what would be the best known again, at full assurance.

Run by hand where there are GPUs: python -m pytest -m gpu
"""

import pytest

from flashinfer_bench import BenchmarkConfig, Engine
from tests.bench.small_runs import write_set
from tests.kit.make import make_solution

pytestmark = [pytest.mark.gpu, pytest.mark.slow, pytest.mark.timeout(300)]
DOUBLE = "def run(x):\n    return x * 2\n"
WORDS = {"always": "full", "never": "standard"}
SLOW = "def run(x):\n    for _ in range(8):\n        x = x + 0\n    return x * 2\n"


def test_the_best_known_is_confirmed_and_the_file_has_both_lines(tmp_path):
    trace_set = write_set(tmp_path / "set", {}, sizes=(1 << 20,))
    asked = [("first", DOUBLE, {}, "full"), ("slow", SLOW, {}, "standard")]
    asked += [("slow", f"{SLOW}# {word}\n", {"confirm": word}, level) for word, level in WORDS.items()]
    config = BenchmarkConfig.default(devices=["0"], warmup_runs=2, iterations=20, num_trials=1)
    with Engine(trace_set, config, cache=tmp_path / "cache") as engine:
        for name, source, more, level in asked:
            solution = make_solution(name, source=source, target_hardware=["cuda"])
            (trace,) = engine.submit(solution, **more).result(120)
            evaluation = trace.evaluation
            assert (evaluation.status.value, evaluation.extra["measurement"]["assurance"]) == ("PASSED", level), name
    (file,) = (tmp_path / "set" / "traces").rglob("*.jsonl")
    assert len(file.read_text().splitlines()) == 1 + len(asked)
