"""The references that the site makes of the program: no flag and no public name is left out."""

import importlib
import re

import pytest
import yaml

from flashinfer_bench.cli.main import cli
from flashinfer_bench.cli.perf.flags import make_parser
from flashinfer_bench.report.timing import MEANINGS
from flashinfer_bench.routines.table import ROUTINES
from scripts.references import PACKAGES, render_commands, render_llms, render_python, render_values, replace_support
from scripts.references import PAGES as GENERATED
from tests.cli.helps import ALL_COMMANDS
from tests.kit.documents import CHECKOUT, DOCS, PAGES

USERS_PAGES = [page for page in PAGES if page.name not in ("building.md", "results.md")]
"""Pages that speak of our own flags alone; the others name those of compilers and tools."""


@pytest.fixture(scope="module")
def commands():
    """Return command → its section of the page."""
    parts = re.split(r"^## (.*)$", render_commands(), flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def test_every_command_has_a_section(commands):
    assert {*commands} == {*ALL_COMMANDS, "perf"}


@pytest.mark.parametrize("command", ALL_COMMANDS)
def test_every_flag_of_a_help_is_in_the_section_of_its_command(command, commands, capsys):
    with pytest.raises(SystemExit):
        cli([*command.split(), "--help"])
    printed = capsys.readouterr().out.partition("example:")[0].partition("options:")[2]
    flags = set(re.findall(r"^  (?:-\w[^,\n]*, )?(--[\w-]+)", printed, re.MULTILINE)) - {"--help"}
    assert flags
    assert {flag for flag in flags if f"`{flag}`" not in commands[command]} == set()


def test_every_flag_of_perf_is_in_its_section(commands):
    flags = {f"--{flag.name}" for routine in ROUTINES.values() for flag in routine.flags}
    flags |= {"--sweep", *make_parser(case=False).flags()}
    assert [name for name in (*flags, *(f"`{name}`" for name in ROUTINES)) if name not in commands["perf"]] == []


@pytest.mark.parametrize("page", USERS_PAGES, ids=lambda page: page.name)
def test_every_flag_that_a_page_speaks_of_exists(page, commands):
    scripts = [path.read_text() for path in (CHECKOUT / "benchmarks").rglob("*.py")]
    known = {*re.findall(r"--[a-z][\w-]*", " ".join([*commands.values(), *scripts]))}
    outside = re.sub(r"^ *```.*?^ *```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    spans = " ".join(re.findall(r"`([^`\n]*)`", outside))
    assert {*re.findall(r"(?<![\w-])--[a-z][\w-]*", spans)} - known == set()


def test_every_public_name_is_in_the_python_reference():
    shown = {line.rpartition(".")[2] for line in render_python().splitlines() if line.startswith("::: ")}
    public = {name for module in PACKAGES for name in getattr(importlib.import_module(module), "__all__", ())}
    assert {name for name in public if name[0] != "_"} <= shown
    assert {"Accepted", "Client", "ConfigError"} <= shown


@pytest.mark.cpu
def test_the_page_of_random_values_has_the_rules_of_both_tables():
    lines = render_values().splitlines()
    assert "| any | int | `.*last_page_lens?` | 1 to the page size |" in lines
    assert "| any | float | `(sm_\\|softmax_\\|attn_\\|attention_)?scal(e\\|ing)` | 1 / sqrt(head dimension) |" in lines


def test_the_page_of_numbers_tells_of_every_flag():
    section = (DOCS / "numbers.md").read_text().partition("## Flags")[2]
    assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == list(MEANINGS)


def test_llms_txt_links_to_every_page_once():
    nav = yaml.safe_load((CHECKOUT / "mkdocs.yml").read_text())["nav"]
    text = render_llms(nav, "what it is")
    assert text.startswith("# flashinfer-bench\n\n> what it is\n\n## Start\n\n- [Home](index.md)\n")
    pages = [str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")]
    assert sorted(re.findall(r"^- \[.+\]\((.+)\)$", text, re.MULTILINE)) == sorted([*pages, *GENERATED])


def test_the_support_matrix_of_the_page_is_the_one_of_the_declarations():
    page = (DOCS / "routines.md").read_text(encoding="utf-8")
    assert replace_support(page) == page
