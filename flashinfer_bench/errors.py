"""The exception tree. Imports nothing of ours; every stage raises from it, the command line makes exit codes of it.

    FlashInferBenchError            exit 1
    ├── Misuse                      exit 2   bad flags, configuration or data set: raised before the first job
    │   ├── ConfigError
    │   └── DataSetError
    ├── Fault                       exit 1   we, the data or the machine failed: never blamed on a solution
    │   ├── BuildFault                       this machine cannot build a solution (disk full, compiler broken or killed)
    │   ├── WorkloadFault                    the workload cannot be judged (missing blob, broken constraint)
    │   │   └── DefinitionFault              no workload of the definition may be (broken reference)
    │   └── DeviceFault                      a process or device of ours was lost: retried once on a fresh one
    ├── EngineRefusal               exit 1   the resident engine does not take, or does not finish, what it was given
    │   ├── QueueFull                        too much is open already: submit again when some of it has ended
    │   ├── EngineClosed                     the engine was closed
    │   ├── TaskFailed                       a job of the task has no verdict
    │   └── TaskCancelled                    somebody cancelled the task
    └── SolutionFailure             an OUTCOME on its way up to the judge; it becomes a trace and never reaches a user

Kinds are told apart by type, never by message text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

RanOut = Literal["first call", "call"]


class FlashInferBenchError(Exception):
    """Anything this package raises on purpose."""

    exit_code: int = 1


class Misuse(FlashInferBenchError):
    """The caller asked for something that cannot be: nothing was run."""

    exit_code = 2


class ConfigError(Misuse):
    """A configuration key, value or name is wrong."""


class DataSetError(Misuse):
    """A trace set, or a name looked up in it, is not there or cannot be read."""


class Fault(FlashInferBenchError):
    """We or the machine failed while judging; the job has no verdict."""


class BuildFault(Fault):
    """This machine could not build a solution: disk full, compiler killed or broken, another GPU needed."""


class WorkloadFault(Fault):
    """The definition, workload or its blobs are at fault; trying again would not help."""


class DefinitionFault(WorkloadFault):
    """The definition's reference fails, does not fit the definition, or disagrees with itself."""


class DeviceFault(Fault):
    """A process or a device of ours was lost; the job may be tried again on a fresh one."""


class EngineRefusal(FlashInferBenchError):
    """The resident engine did not take a task, or did not finish one."""


class QueueFull(EngineRefusal):
    """As much is open as `EngineLimits` allow; nothing was taken. Submit again when some of it has ended."""


class EngineClosed(EngineRefusal):
    """The engine was closed: it takes no task, and those that were open have ended."""


class TaskFailed(EngineRefusal):
    """A job of the task has no verdict: we, the data or the machine failed, not the solution."""


class TaskCancelled(EngineRefusal):
    """Somebody cancelled the task before it was complete."""


class SolutionFailure(FlashInferBenchError):
    """The solution failed in a way that decides its status.

    Attributes:
        status: the name of an EvaluationStatus member, for example "RUNTIME_ERROR".
        message: one or more lines for the trace's log.
        ran_out: of a TIMEOUT, in what it came: in a solution's first call, which may compile, or in a later one; None
            elsewhere.
        timeout: of a TIMEOUT, for its trace: the limit, the part that ran out, seconds of compiling, the stack.
        is_answer: the solution's process answered as it should, with an exception or with values that do not fit. It
            may be asked again.
    """

    def __init__(
        self,
        status: str,
        message: str,
        *,
        is_answer: bool = False,
        ran_out: RanOut | None = None,
        timeout: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(f"{status}: {message}")
        self.status: Final = status
        self.message: Final = message
        self.is_answer: Final = is_answer
        self.ran_out: Final = ran_out
        self.timeout: Final = timeout
