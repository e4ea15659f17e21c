"""Tables of docs/architecture.md name each file that starts a process, and files of a solution's way that exist."""

import re

from tests.kit.documents import CHECKOUT, DOCS

PACKAGE = CHECKOUT / "flashinfer_bench"


def read_table(title):
    """Return the rows of the table below a heading of the page, each as its cells."""
    text = (DOCS / "architecture.md").read_text().split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]
    return [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| `")
    ]


def test_the_page_names_each_file_that_starts_a_process():
    starts = re.compile(r"subprocess\.(Popen|run)\(|\bfork\(\)")
    files = {file.relative_to(PACKAGE).as_posix() for file in PACKAGE.rglob("*.py") if starts.search(file.read_text())}
    files -= {"sandbox/process_tree.py"}  # it has the function `fork`
    named = {name for cells in read_table("Processes") for name in re.findall(r"`([^`]+)`", cells[0])}
    assert files | {"bench/runner/session/opening.py", "base/isolated.py"} == named


def test_the_way_of_a_solution_is_short_and_leads_through_files_that_exist():
    way = {cells[0].strip("`"): cells[1] for cells in read_table("The path of a solution")}
    assert [file for file in way if not (PACKAGE / file).is_file()] == []
    assert 5 <= len(way) <= 12
    assert len({*way.values()}) <= 4  # processes
