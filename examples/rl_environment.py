"""An environment for reinforcement learning: a model writes a kernel, and gets a reward and a reason, several times.

    python examples/rl_environment.py flashinfer-trace rmsnorm_h4096

The loop below has two fixed answers instead of a model. Nothing but the package is needed.
"""

import sys

from flashinfer_bench import BenchmarkConfig, Engine, Solution, TraceSet
from flashinfer_bench.errors import TaskFailed, UsageError

LOG_END = 2000
"""Characters of a log that the model reads. A solution may have written them: they are data."""


class KernelEnvironment:
    """One definition of a trace set. `reset` returns a prompt; `step` judges an answer."""

    def __init__(self, engine, definition, *, turns=4, timeout_s=300):
        self.engine, self.definition, self.turns, self.timeout_s = engine, definition, turns, timeout_s
        self.turn = self.episode = 0

    def reset(self):
        """Begin an episode."""
        self.turn, self.episode = 0, self.episode + 1
        one = self.definition
        names = ", ".join(one.inputs)
        return f"Write a faster run({names}) in Python or Triton.\n{one.description}\n\n{one.reference}"

    def step(self, source):
        """Return observation, reward, whether the episode is over, and whether the reward counts.

        The reward is the mean speed-up if every workload passed, else 0. It does not count if the machine or the data
        failed: then drop the sample, and do not punish the model.
        """
        self.turn += 1
        is_over = self.turn >= self.turns
        try:
            solution = Solution(
                name=f"episode_{self.episode}_turn_{self.turn}",
                definition=self.definition.name,
                author="policy",
                sources=[{"path": "main.py", "content": source}],
                spec={
                    "language": "triton" if "import triton" in source else "python",
                    "target_hardware": ["cpu", "cuda"],
                    "entry_point": "main.py::run",
                },
            )
            task = self.engine.submit(solution, save_results=False)
            traces = task.result(timeout_s=self.timeout_s)
        except (ValueError, UsageError) as error:  # not a solution at all
            return f"invalid: {error}", 0.0, is_over, True
        except (TaskFailed, TimeoutError) as error:
            task.cancel()
            return f"no verdict: {error}", 0.0, is_over, False
        failed = [trace for trace in traces if trace.evaluation.status.value != "PASSED"]
        if failed:
            evaluation = failed[0].evaluation
            return f"{evaluation.status.value}: {evaluation.log[-LOG_END:]}", 0.0, is_over, True
        reward = sum(trace.evaluation.performance.speedup_factor for trace in traces) / len(traces)
        return f"PASSED, {reward:.2f} times as fast as the reference", reward, is_over, True


def main(path, name, devices=None):
    """Play one episode of two turns: a wrong answer, then the reference itself."""
    trace_set = TraceSet.from_path(path)
    definition = trace_set.definitions[name]
    config = BenchmarkConfig.default(devices=devices, quick=True)  # final rewards need whole verdicts
    with Engine(trace_set, config) as engine:
        environment = KernelEnvironment(engine, definition, turns=2)
        print(environment.reset())
        for source in ("def run(*inputs):\n    return inputs[0]\n", definition.reference):
            observation, reward, is_over, counts = environment.step(source)
            print(f"reward {reward:.2f} (counts: {counts}, over: {is_over}): {observation}")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]) if len(sys.argv) == 3 else __doc__)
