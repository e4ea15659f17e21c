"""Words and defaults of the engine that the help tells. Their own modules take long to import.

`tests/cli/test_command_flags.py` holds each against the engine's.
"""

from __future__ import annotations

from typing import Final

LANGUAGES: Final = ("python", "triton", "cpp", "cuda")
"""Languages of which `new solution` has a skeleton; the first one is the default."""
CHECKS: Final = ("layout", "definition", "workload", "solution", "trace", "baseline", "benchmark")
"""What `validate` can check; the last two run code of the set."""
EXPORT_FORMATS: Final = ("csv", "jsonl", "parquet")
GROUP_KEYS: Final = ("author", "op_type", "hardware")
"""What `report --by` can put together in one row."""
THRESHOLD: Final = 0.02
"""The smallest difference of interest of `compare`, `report diff` and `report history`, as a share."""
DEFAULT_URL: Final = "http://127.0.0.1:8000"
"""Where a server on this machine listens."""
