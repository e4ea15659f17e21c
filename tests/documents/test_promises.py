"""docs/trust.md and docs/threat-model.md: each row names tests or attacks that exist, and cells are short."""

import re

import pytest

from benchmarks.exploits.attack import load_attacks
from tests.kit.documents import CHECKOUT, DOCS

MOST_WORDS = 25
"""The words of a cell at the most."""
MOST_ROWS = 40
"""The rows of docs/threat-model.md at the most."""
TESTS = CHECKOUT / "tests"


def read_rows(page):
    """Return the cells of each row of a page's tables, without the heads."""
    rows = []
    for line in (DOCS / page).read_text().splitlines():
        if re.fullmatch(r"[|-]+", line):
            rows.pop()
        elif line.startswith("|"):
            rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def names_in(cell):
    return re.findall(r"`([^`]+)`", cell)


@pytest.mark.parametrize("page", ["trust.md", "threat-model.md"])
def test_a_cell_is_one_short_sentence(page):
    cells = [re.sub(r"\]\([^)]*\)", "]", cell) for row in read_rows(page) for cell in row]
    assert [cell for cell in cells if len(cell.split()) > MOST_WORDS or ". " in cell] == []


def test_each_promise_names_tests_that_exist():
    rows = read_rows("trust.md")
    assert len(rows) >= 15
    for *_, tested in rows:
        names = names_in(tested)
        assert names
        assert [name for name in names if not (TESTS / name).exists()] == []


def test_each_attack_has_evidence_that_exists():
    rows, suite = read_rows("threat-model.md"), load_attacks()
    known = {attack.name for attack in suite} | {attack.category for attack in suite}
    assert 20 <= len(rows) <= MOST_ROWS
    for _, _, evidence, _ in rows:
        names = names_in(evidence)
        assert names
        assert [name for name in names if name not in known and not (CHECKOUT / name).is_file()] == []
