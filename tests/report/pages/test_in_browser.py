"""The pages in a browser, from disk: the content at any width, in both themes, by keyboard and on paper.

Each visit fails on an error of the console, a request to a network, a dialog.
"""

import os
import re
import shutil
from math import log
from pathlib import Path

import pytest

from flashinfer_bench.report.pages.texts import id_of
from tests.conftest import CHECKOUT
from tests.report.made import CPU, on, set_of
from tests.report.pages.sets import ATTACKS, HARDWARE, at, hostile_set, long_set, usual_set, write_pages
from tests.report.test_words import CASES

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking"]
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
NAME = next(iter(long_set().definitions))
CUDA, PLAIN, INTERPRETED = (id_of(NAME, f"{author}_{NAME}") for author in ("cuda", "plain", "interpreted"))


@pytest.fixture(scope="module")
def browser():  # for one file: while it is open, this thread runs its event loop, which others could not start
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("there is no chromium")
    with sync_api.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS, timeout=120_000)
        yield started
        started.close()


@pytest.fixture(scope="module")
def usual(tmp_path_factory):
    """Return the folder with the pages of the usual set."""
    return write_pages(tmp_path_factory.mktemp("usual"), usual_set())


class Visit:
    """A page, with its errors and its network requests."""

    def __init__(self, browser, folder: Path, **context):
        self.context = browser.new_context(**context)
        self.page = self.context.new_page()
        self.page.set_default_timeout(60_000)
        self.wrong = []
        self.index = f"file://{folder.resolve()}/index.html"
        self.page.on("console", lambda said: self._note(said.text, said.type != "log"))
        self.page.on("pageerror", lambda error: self._note(str(error)))
        self.page.on("request", lambda asked: self._note(asked.url, not asked.url.startswith(("file:", "about:"))))
        self.page.on("dialog", self._dismiss)

    def open(self, place="#/"):
        """Open a page of the report, and wait until it is drawn."""
        address = f"{self.index}{place}"
        if self.page.url.startswith(self.index) and self.page.url != address:
            self.page.evaluate("document.getElementById('main').dataset.page = ''")
            self.page.evaluate("place => { location.hash = place }", place)
        else:
            self.page.goto(address)
        self.page.wait_for_selector("#main[data-page^='/']")
        return self.page

    def _note(self, text, is_wrong=True):
        if is_wrong:
            self.wrong.append(text)

    def _dismiss(self, dialog):
        self._note(dialog.message)
        dialog.dismiss()


@pytest.fixture
def visit(browser):
    visits = []

    def start(folder, **context):
        visits.append(Visit(browser, folder, **context))
        return visits[-1]

    yield start
    for item in visits:
        item.context.close()
    assert [text for item in visits for text in item.wrong] == []


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
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")  # skips to the content, which has no ring
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "none"
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
    assert page.locator("#picked").is_hidden()
    assert sorted(column(page, 3)) == ["not comparable: other caches"] + ["slower"] * 12
    assert column(page, 4)[0].startswith("1.50\u00d7")


def test_the_overview_begins_with_the_fastest_and_repeated_verdicts_have_a_history(tmp_path, visit):
    trace_set = usual_set()
    trace_set.traces = {
        "double": [
            at(8, "slow", 4.0, speedup=0.5),
            at(64, "fast", 2.0, timestamp="2020-01-01T00:00:00"),
            at(64, "fast", 1.0, timestamp="2020-01-02T00:00:00"),
            at(8, "broken", status="RUNTIME_ERROR", hardware=HARDWARE[0]),
        ]
    }
    seen = visit(write_pages(tmp_path, trace_set))
    page = seen.open("#/")
    assert texts(page, ".lead") == [f"author of fast is fastest on 1 of 1 definitions on {HARDWARE[0]}."]
    assert texts(page, ".figures") == [
        f"1 of 2 definitions, 3 of 4 solutions, 3 verdicts, 66.7 % of them passed, on {HARDWARE[0]}"
    ]
    assert texts(page, "summary") == ["Definitions without a verdict: 1"]
    assert len(texts(page, ".mark")) == 2
    assert [text.split("\n")[0] for text in texts(page, "a.best.good")] == ["\u2605 1/1 2.00\u00d7"]
    assert [text.split("\n")[0] for text in texts(page, "a.cell:not(.good, .bad)")] == ["1/1 0.500\u00d7"]
    assert column(page, 3) == ["broken"]  # apart, since it has no time
    lead = texts(page, ".lead")
    assert texts(seen.open("#/?author=author%20of%20slow"), ".lead") == lead  # a filter changes no ranking
    page = seen.open(f"#/definition/{DOUBLE}")
    assert "Latency of n=64 from run to run, lower is better; bars are 95 % intervals" in texts(page, "figcaption")


def test_the_pages_decide_as_the_reports_do(usual, visit):
    page = visit(usual).open()
    for ratio, half, wanted in CASES:
        assert page.evaluate("given => fibReport.compare.decide(...given)", [log(ratio), half]) == wanted, ratio


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


@pytest.fixture(scope="module")
def long(tmp_path_factory):
    return write_pages(tmp_path_factory.mktemp("long"), long_set())


def texts(page, selector):
    return [text.replace("\u00a0", " ") for text in page.locator(selector).all_inner_texts()]


def ends_of(page, label):
    """Return the right edges of the cells below a heading, in all tables with the heading."""
    return page.evaluate(
        """label => [...document.querySelectorAll("main table")].flatMap((table) => {
            const place = [...table.tHead.rows[0].cells].findIndex((head) => head.textContent.startsWith(label));
            const rows = place < 0 ? [] : [...table.tBodies[0].rows];
            return rows.flatMap((row) => row.cells[place] ? [row.cells[place].getBoundingClientRect().right] : []);
        })""",
        label,
    )


@pytest.mark.parametrize(("width", "place"), [(1440, "#/"), (1280, f"#/solution/{CUDA}"), (390, f"#/solution/{CUDA}")])
def test_no_table_and_no_details_are_wider_than_a_screen(long, visit, width, place):
    page = visit(long, viewport={"width": width, "height": 900}).open(place)
    page.locator("details").evaluate_all("all => all.forEach((part) => { part.open = true; })")
    wide = (
        "all => all.filter((part) => part.getBoundingClientRect().right > innerWidth).map((part) => part.textContent)"
    )
    assert page.locator("dd bdi" if width == 390 else "table, dd bdi").evaluate_all(wide) == []


@pytest.mark.parametrize(
    ("place", "label"),
    [
        ("#/", "Speed-up"),
        (f"#/definition/{id_of(NAME)}", "Speed-up"),
        (f"#/solution/{CUDA}", "Speed-up"),
        (f"#/compare/{CUDA}/{PLAIN}", "B / A"),
    ],
)
def test_what_matters_is_in_sight_on_a_phone(long, visit, place, label):
    page = visit(long, viewport={"width": 390, "height": 844}).open(place)
    assert 0 < max(ends_of(page, label)) <= 390


def test_a_set_that_only_cpus_judged_is_named_so(tmp_path, visit):
    seen = visit(write_pages(tmp_path, set_of(on(record=CPU))))
    for place in ("#/", "#/leaderboard", f"#/definition/{DOUBLE}"):
        assert seen.open(place).locator("caption >> nth=0").inner_text().startswith("CPU: indicative. ")


def test_times_that_do_not_count_are_labelled(long, visit):
    seen = visit(long)
    for place in ("#/", f"#/definition/{id_of(NAME)}"):
        assert "3/3\nno time that counts" in texts(seen.open(place), "td.number")
    page = seen.open("#/leaderboard")
    assert page.get_by_text("Nothing to compare: interpreted").count() == 1
    assert sorted(texts(page, ".legend li")) == ["cuda", "plain"]
    assert "Roofline" not in texts(seen.open(f"#/solution/{INTERPRETED}"), "th")


def test_a_page_is_printed_light_and_whole(usual, visit):
    seen = visit(usual, color_scheme="dark", viewport={"width": 1440, "height": 900})
    page = seen.open(f"#/definition/{id_of('double')}")
    page.wait_for_selector("canvas")
    page.evaluate("addEventListener('beforeprint', () => { window.printed = document.documentElement.dataset.theme; })")
    assert page.pdf(format="A4").startswith(b"%PDF")
    assert page.evaluate("[window.printed, document.documentElement.dataset.theme]") == ["light", "dark"]
    page.emulate_media(media="print")
    page.set_viewport_size({"width": 700, "height": 900})
    assert page.locator("header nav, .control, .filters").evaluate_all("all => all.every((e) => !e.checkVisibility())")
    assert page.locator("canvas, table").evaluate_all("all => all.every((e) => e.getBoundingClientRect().right <= 700)")


def hardware_of(place):
    return f"#/?hw={place.replace(' ', '%20')}"


FACTS = [
    ("usual", "#/no/such", "h1", ["Not found"]),
    ("usual", "#/definition/../../x", "h1", ["Not found"]),
    ("usual", PLACES["failed"], "main table >> nth=-1 >> tbody td:nth-child(2)", ["RUNTIME_ERROR\nboom"]),
    # The best of an author is that of one kind of hardware: the chosen one, or the one of the most verdicts.
    *(("usual", hardware_of(name), "caption >> nth=0", [f" on {name}"]) for name in HARDWARE[2:]),
    ("usual", "#/", "caption >> nth=0", [f" on {HARDWARE[0]}"]),
    ("usual", PLACES["compare"], ".decision", [f"{name}: B is slower: it takes 1.50\u00d7" for name in HARDWARE]),
    ("long", f"#/solution/{PLAIN}", "main > details[open] pre", ["AssertionError: no"]),
    (
        "long",
        f"#/solution/{PLAIN}",
        "main > details[open] summary",
        ["4 \u00d7 INCORRECT_NUMERICAL: n=9; n=10; n=11; …"],
    ),
    ("long", f"#/solution/{PLAIN}", "h2", ["Verdicts", "Logs", "Sources"]),
]
"""Set, page, selector, and words in the texts of the elements, in their order."""


@pytest.mark.parametrize(("name", "place", "selector", "words"), FACTS)
def test_a_page_shows(request, visit, name, place, selector, words):
    reported = iter(texts(visit(request.getfixturevalue(name)).open(place), selector))
    assert [word for word in words if not any(word in text for text in reported)] == []


def test_what_is_opened_or_picked_stays_so_and_charts_follow_the_theme(usual, visit):
    seen = visit(usual, color_scheme="light")
    page = seen.open(PLACES["definition"])
    page.wait_for_selector("canvas")
    assert page.locator("canvas").count() == 1  # the op type has no counted cost
    before = page.evaluate("document.querySelector('canvas').toDataURL()")
    page.click("#theme")
    page.wait_for_function("before => document.querySelector('canvas')?.toDataURL() !== before", arg=before)
    page = seen.open(PLACES["solution"])
    assert "Roofline" in texts(page, "th")
    page.get_by_text("details", exact=True).first.click()
    page.click("#theme")
    assert page.locator("td details[open]").count() == 1
    boxes = seen.open("#/").get_by_label("Compare fast")
    boxes.nth(1).check()
    assert page.locator("input.compare:checked").count() == len(HARDWARE) + 1  # each of its rows, also on a warm device
    boxes.nth(0).uncheck()
    assert page.locator("input.compare:checked").count() == 0
    reported = page.evaluate("[1.2, 13, 0.0296, 1500].map((ms) => fibReport.time(ms))")
    assert page.evaluate("fibReport.name('a_b/c 0.79 main.py:13 -1.2').querySelectorAll('wbr').length") == 2
    assert reported == ["1.20\u00a0ms", "13.0\u00a0ms", "29.6\u00a0µs", "1.50\u00a0s"]
