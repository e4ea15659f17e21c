"""The files that docs/building.md prints."""

import re
from pathlib import Path

GUIDE = (Path(__file__).parents[2] / "docs" / "building.md").read_text()
LANGUAGES = {"C++": "cpp", "CUDA": "cuda"}


def read_forms() -> dict[tuple[str, str], dict[str, str]]:
    """Return (language, binding) → name of a file → its text; each block of the guide begins with its file's name."""
    forms = re.findall(r"^### (C\+\+|CUDA), (tvm-ffi|torch)\n(.*?)(?=^##)", GUIDE, re.DOTALL | re.MULTILINE)
    return {
        (LANGUAGES[language], binding): dict(
            re.findall(r"^```cpp\n// (\S+)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
        )
        for language, binding, text in forms
    }
