"""The pages in a browser, from disk. Each visit fails on an error of the console, a request to a network, a dialog."""

import os
import re
from math import log
from pathlib import Path

import pytest

from flashinfer_bench.report.pages.texts import id_of
from tests.conftest import CHECKOUT
from tests.report.pages.sets import ATTACKS, HARDWARE, hostile_set, write_pages
from tests.report.test_words import CASES

AXE = os.environ.get("AXE_CORE", str(CHECKOUT / "node_modules" / "axe-core" / "axe.min.js"))
DOUBLE, FAST, SLOW = id_of("double"), id_of("double", "fast"), id_of("double", "slow")
PLACES = {
    "overview": "#/",
    "leaderboard": "#/leaderboard",
    "definition": f"#/definition/{DOUBLE}",
    "untouched": f"#/definition/{id_of('untouched')}",
    "gone": f"#/definition/{id_of('gone')}",
    "solution": f"#/solution/{FAST}",
    "failed": f"#/solution/{id_of('double', 'broken')}",
    "unknown": f"#/solution/{id_of('double', 'ghost')}",
    "compare": f"#/compare/{FAST}/{SLOW}",
}


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    return write_pages(tmp_path_factory.mktemp("hostile"), hostile_set())


def column(page, place):
    """Return the texts of a column of the last table."""
    return page.locator(f"main table >> nth=-1 >> tbody td:nth-child({place})").all_inner_texts()


def test_every_page_loads_and_fits_its_width_in_both_themes(usual, visit):
    for scheme, width in (("light", 1440), ("dark", 390)):
        seen = visit(usual, color_scheme=scheme, viewport={"width": width, "height": 900})
        for name, place in PLACES.items():
            page = seen.open(place)
            assert page.locator("h1").inner_text() != "Not found", name
            assert page.evaluate("document.documentElement.scrollWidth") <= width, name
        assert page.evaluate("document.documentElement.dataset.theme") == scheme


def test_a_link_to_what_is_not_there_says_so(usual, visit):
    seen = visit(usual)
    assert seen.open("#/no/such").locator("h1").inner_text() == "Not found"
    assert seen.open("#/definition/../../x").locator("h1").inner_text() == "Not found"


def test_headings_sort_and_filters_are_in_the_address(usual, visit):
    page = visit(usual).open(f"#/?hw={HARDWARE[1].replace(' ', '%20')}")
    assert page.locator(".figures").inner_text().endswith(f"on {HARDWARE[1]}")
    assert len(column(page, 3)) == 3
    heading = page.locator("main table >> nth=-1 >> th button", has_text="Latency")
    heading.click()
    assert column(page, 3) == ["fast", "slow", "ghost"]
    heading.click()
    assert column(page, 3) == ["ghost", "slow", "fast"]
    page.get_by_label("Verdict").select_option("failed")
    page.wait_for_selector("text=No solution fits the filters")
    assert "state=failed" in page.url


def test_the_search_finds_by_keys_alone(usual, visit):
    page = visit(usual).open()
    page.keyboard.press("/")
    page.keyboard.type("slow")
    page.wait_for_selector("#found a")
    page.keyboard.press("Enter")
    page.wait_for_selector("h1:has-text('slow')")
    assert page.url.endswith(f"#/solution/{SLOW}")
    page.keyboard.press("/")
    page.keyboard.type("zzz")
    page.wait_for_selector("text=Nothing was found")
    page.keyboard.press("Escape")
    assert page.locator("#found").is_hidden()


def test_any_two_solutions_are_compared_by_clicking(usual, visit):
    page = visit(usual).open(f"#/definition/{DOUBLE}?hw=NVIDIA%20H200")
    page.get_by_label("Compare fast").check()
    page.get_by_label("Compare slow").check()
    page.locator("#picked a").click()
    page.wait_for_selector("h1:has-text('Compare')")
    assert column(page, 3) == ["slower"] * 12 + ["not comparable: other caches"]
    assert column(page, 4)[0].startswith("1.50\u00d7")


def test_a_solution_tells_where_it_ran_if_that_was_in_several_places(usual, visit):
    seen = visit(usual)
    assert HARDWARE[1] in column(seen.open(PLACES["solution"]), 2)
    assert column(seen.open(PLACES["failed"]), 2) == ["RUNTIME_ERROR\nboom"]


def test_the_pages_decide_as_the_reports_do(usual, visit):
    page = visit(usual).open()
    for ratio, half, wanted in CASES:
        assert page.evaluate("given => fibReport.compare.decide(...given)", [log(ratio), half]) == wanted, ratio


def test_charts_are_drawn_again_in_the_other_theme(usual, visit):
    page = visit(usual, color_scheme="light").open(PLACES["definition"])
    page.wait_for_selector("canvas")
    assert page.locator("canvas").count() == 1  # the op type has no counted cost
    before = page.evaluate("document.querySelector('canvas').toDataURL()")
    page.click("#theme")
    page.wait_for_function("before => document.querySelector('canvas')?.toDataURL() !== before", arg=before)
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 24, 29)"


def test_hostile_texts_are_text(hostile, visit):
    seen = visit(hostile)
    places = ["#/", "#/leaderboard"]
    for attack in ATTACKS:
        places += [f"#/definition/{id_of(attack)}", f"#/solution/{id_of(attack, attack)}"]
    for place in places:
        page = seen.open(place)
        assert page.locator("main script, main img, main svg, main iframe, main textarea, main [onerror]").count() == 0
        assert page.locator("h1").inner_text() != "Not found"
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), place
        assert page.evaluate("({}).alert === undefined && Object.keys(Object.prototype).length === 0")
    assert page.locator("script:not([src])").count() == 0
    sources = page.evaluate("[...document.scripts].map((script) => script.getAttribute('src'))")
    assert all(re.fullmatch(r"assets/\w[\w.]*\.js|data/(overview|[ds]_[0-9a-f]{16})\.js", source) for source in sources)
    assert page.evaluate("[...document.querySelectorAll('a')].every((a) => a.protocol === 'file:')")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_serious_fault(usual, visit, scheme):
    if not Path(AXE).exists():
        pytest.skip("there is no axe-core: `npm install axe-core`, or AXE_CORE=path of axe.min.js")
    seen = visit(usual, color_scheme=scheme, bypass_csp=True)
    for name, place in PLACES.items():
        page = seen.open(place)
        page.add_script_tag(path=AXE)
        found = page.evaluate(
            "axe.run({preload: false}).then((done) => done.violations.map((item) => [item.id, item.impact]))"
        )
        assert [item for item in found if item[1] in ("serious", "critical")] == [], name
