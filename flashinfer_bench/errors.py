"""The exception tree. Imports no other module of the package. Every stage raises from it; the command line maps it to
exit codes.

    FlashInferBenchError            exit 1
    ├── UsageError                      exit 2   bad flags, configuration or data set: raised before the first job
    │   ├── ConfigError
    │   └── DataSetError
    ├── Fault                       exit 1   infrastructure error: it never decides a verdict
    │   ├── BuildFault                       this machine cannot build a solution (disk full, compiler broken or killed)
    │   ├── WorkloadFault                    the workload cannot be judged (missing blob, broken constraint)
    │   │   └── DefinitionFault              no workload of the definition can be judged (broken reference)
    │   └── DeviceFault                      a process or device of the session was lost: retried once
    ├── EngineRefusal               exit 1   the resident engine did not accept, or did not finish, a task
    │   ├── QueueFull                        the open tasks reach the limit: submit again when some have ended
    │   ├── EngineClosed                     the engine was closed
    │   ├── TaskFailed                       a job of the task has no verdict
    │   └── TaskCancelled                    the task was cancelled
    └── SolutionFailure             an OUTCOME on its way up to the judge; it becomes a trace and never reaches a user

Callers distinguish errors by type, never by message text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

RanOut = Literal["first call", "call"]


class FlashInferBenchError(Exception):
    """Any exception that this package raises on purpose."""

    exit_code: int = 1


class UsageError(FlashInferBenchError):
    """The request is invalid. No job was run."""

    exit_code = 2


class ConfigError(UsageError):
    """A configuration key, value or name is wrong."""


class DataSetError(UsageError):
    """A trace set, or a name in it, is missing or cannot be read."""


class Fault(FlashInferBenchError):
    """The package, the data or the machine failed during judging; the job has no verdict."""


class BuildFault(Fault):
    """This machine could not build a solution: disk full, compiler killed or broken, another GPU needed."""


class WorkloadFault(Fault):
    """The definition, the workload or its blobs are invalid; a retry would fail, too."""


class DefinitionFault(WorkloadFault):
    """The definition's reference fails, does not fit the definition, or disagrees with itself."""


class DeviceFault(Fault):
    """A process or a device of the session was lost; the job may be retried on a fresh session."""


class EngineRefusal(FlashInferBenchError):
    """The resident engine did not accept a task, or did not finish it."""


class QueueFull(EngineRefusal):
    """The open tasks reach `EngineLimits`, and no job was accepted. Submit again when some of them have ended."""


class EngineClosed(EngineRefusal):
    """The engine was closed. It accepts no task, and its open tasks have ended."""


class TaskFailed(EngineRefusal):
    """A job of the task has no verdict: the package, the data or the machine failed, not the solution."""


class TaskCancelled(EngineRefusal):
    """The task was cancelled before it was complete."""


class SolutionFailure(FlashInferBenchError):
    """The solution failed in a way that decides its status.

    Attributes:
        status: the name of an EvaluationStatus member, for example "RUNTIME_ERROR".
        message: one or more lines for the trace's log.
        ran_out: "first call" if a call that may have compiled timed out, "call" for any other call. None if the
            failure has no effect on later jobs.
        timeout: for a TIMEOUT, the fields of its trace: the limit, the part that timed out, compile time in seconds,
            the stack.
        is_answer: the solution's process answered in the protocol, with an exception or with invalid values. The
            process may be called again.
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
