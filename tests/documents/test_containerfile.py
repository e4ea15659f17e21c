"""The recipe of an image: what it copies, runs and takes is there under that name."""

import json
import re

from flashinfer_bench.cli.entry import parse_command_line
from tests.kit.documents import CHECKOUT, DOCS, PROGRAM, read_blocks, read_commands

RECIPE = (CHECKOUT / "Containerfile").read_text()
MAKEFILE = (CHECKOUT / "Makefile").read_text()


def test_the_image_runs_what_the_checkout_has():
    script = re.search(r"^RUN (scripts/\S+) .*touch \"\$VENV/(\S+)\"$", RECIPE, re.MULTILINE)
    assert (CHECKOUT / script[1]).is_file()
    assert f"demo: $(VENV)/{script[2]}\n" in MAKEFILE  # or else the demo would install again
    shell, _, line = json.loads(re.search(r"^CMD (.*)$", RECIPE, re.MULTILINE)[1])
    doctor, demo = line.split("; ")
    parse_command_line(doctor.removeprefix(f"{PROGRAM} ").split())
    assert (shell, demo) == ("sh", "exec make demo")


def test_the_page_builds_it_with_arguments_that_it_takes():
    words = [
        word
        for block in read_blocks(DOCS / "how-to" / "containers.md")
        for command in read_commands(block.text)
        for word in command
    ]
    given = {word.partition("=")[0] for word in words if re.match(r"[A-Z]+=", word)}
    assert given == set(re.findall(r"^ARG (\w+)", RECIPE, re.MULTILINE))
    assert {words[index + 1] for index, word in enumerate(words) if word == "-f"} == {"Containerfile"}
