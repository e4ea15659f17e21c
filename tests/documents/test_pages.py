"""README and docs/: links lead somewhere, every page is in the site, and sentences are short."""

import re

import pytest
import yaml

from scripts.references import PAGES as PAGES_OF_THE_SITE
from tests.kit.documents import CHECKOUT, DOCS, PAGES, SKILL, list_anchors, read_links, read_sentences

MOST_WORDS = 25
"""The words that a plain sentence has at the most."""
PLAIN = 0.95
"""The share of sentences that have to be plain, on each of these pages."""
WRITTEN = [page for page in PAGES if page.name != "results.md"]
"""Pages that people write. The others are made of figures."""
CONTRIBUTING = CHECKOUT / "CONTRIBUTING.md"
OF_TESTS = ("trust.md", "threat-model.md")
"""Pages that name tests: as evidence."""


def name(page):
    return str(page.relative_to(CHECKOUT))


@pytest.mark.parametrize("page", [*PAGES, CONTRIBUTING], ids=name)
def test_every_link_leads_to_a_file_and_to_a_heading_in_it(page):
    for link in read_links(page.read_text()):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.is_file(), link
        assert page.parent == CHECKOUT or target.is_relative_to(DOCS), f"{link} leads out of the site"
        assert not anchor or anchor in list_anchors(target.read_text()), link


def test_the_skill_has_the_metadata_that_agents_search():
    _, head, _ = SKILL.read_text().split("---\n", 2)
    metadata = yaml.safe_load(head)
    assert metadata["name"] == SKILL.parent.name
    assert 0 < len(metadata["description"]) <= 1024
    assert len(metadata["compatibility"]) <= 500


def test_the_site_shows_every_page():
    text = (CHECKOUT / "mkdocs.yml").read_text()
    shown = set(re.findall(r"(\S+\.md)$", yaml.safe_dump(yaml.safe_load(text)["nav"]), re.MULTILINE))
    assert shown == {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")} | {*PAGES_OF_THE_SITE}


@pytest.mark.parametrize("page", [*WRITTEN, CONTRIBUTING], ids=name)
def test_sentences_are_short(page):
    sentences = read_sentences(page.read_text())
    long = [sentence for sentence in sentences if len(sentence.split()) > MOST_WORDS]
    assert len(long) <= (1 - PLAIN) * len(sentences), "\n".join(long)


@pytest.mark.parametrize("page", [page for page in WRITTEN if page.name not in OF_TESTS], ids=name)
def test_a_page_for_users_names_no_file_of_tests(page):
    assert re.findall(r"tests/\w+(?:/\w+)*\.py", page.read_text()) == []


def test_the_guide_for_contributors_names_tests_that_exist():
    named = re.findall(r"\b(?:tests|benchmarks|docs)/[\w/-]+(?:\.\w+)?", CONTRIBUTING.read_text())
    assert [path for path in named if not any(CHECKOUT.glob(path.rstrip("/").replace("CLASS", "*")))] == []


def test_sentences_are_told_apart():
    text = "# Head\n\nOne. Two `a. b`\ngoes on: three.\n\n* Four\n* [Five](x.md). Six!\n\n| no |\n\n```\nno\n```\n"
    assert read_sentences(text) == ["One.", "Two code goes on: three.", "Four", "Five.", "Six!"]
