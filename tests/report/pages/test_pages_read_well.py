"""What a reader finds on the pages: figures in sight at any width, what they hold for, and a page on paper."""

import pytest

from flashinfer_bench.report.pages.texts import id_of
from tests.report.pages.sets import HARDWARE, long_set, write_pages

NAME = next(iter(long_set().definitions))
CUDA, PLAIN, INTERPRETED = (id_of(NAME, f"{author}_{NAME}") for author in ("cuda", "plain", "interpreted"))
FAST, SLOW = id_of("double", "fast"), id_of("double", "slow")


@pytest.fixture(scope="module")
def long(tmp_path_factory):
    return write_pages(tmp_path_factory.mktemp("long"), long_set())


def texts(page, selector):
    return [text.replace("\u00a0", " ") for text in page.locator(selector).all_inner_texts()]


def ends_of(page, label):
    """Return the right edges of the cells below a heading, in all tables that have it."""
    return page.evaluate(
        """label => [...document.querySelectorAll("main table")].flatMap((table) => {
            const place = [...table.tHead.rows[0].cells].findIndex((head) => head.textContent.startsWith(label));
            const rows = place < 0 ? [] : [...table.tBodies[0].rows];
            return rows.map((row) => row.cells[place].getBoundingClientRect().right);
        })""",
        label,
    )


def test_no_table_of_the_overview_is_wider_than_a_screen_of_1440(long, visit):
    page = visit(long, viewport={"width": 1440, "height": 900}).open("#/")
    assert page.locator(".scroll").evaluate_all("all => all.every((part) => part.scrollWidth <= part.clientWidth)")


@pytest.mark.parametrize(
    ("place", "label"),
    [
        ("#/", "Latency"),
        (f"#/definition/{id_of(NAME)}", "Latency"),
        (f"#/solution/{CUDA}", "Latency"),
        (f"#/compare/{CUDA}/{PLAIN}", "B / A"),
    ],
)
def test_what_matters_is_in_sight_on_a_phone(long, visit, place, label):
    page = visit(long, viewport={"width": 390, "height": 844}).open(place)
    assert 0 < max(ends_of(page, label)) <= 390


def test_the_best_of_an_author_is_that_of_one_kind_of_hardware(usual, visit):
    page = visit(usual).open(f"#/?hw={HARDWARE[2].replace(' ', '%20')}")
    assert page.locator("caption >> nth=0").inner_text().endswith(f"on {HARDWARE[2]}")
    page = visit(usual).open("#/")
    assert page.locator("caption >> nth=0").inner_text().endswith(f"on {HARDWARE[0]}")  # most verdicts are of it
    page = visit(usual).open("#/leaderboard")
    assert page.locator("caption >> nth=0").inner_text() == f"Authors on {HARDWARE[2]}"


def test_times_that_do_not_count_are_told_as_such(long, visit):
    seen = visit(long)
    assert "3/3\nno time that counts" in texts(seen.open("#/"), "td.number")
    assert "3/3\nno time that counts" in texts(seen.open(f"#/definition/{id_of(NAME)}"), "td.number")
    page = seen.open("#/leaderboard")
    assert page.get_by_text("Nothing to compare: interpreted").count() == 1
    assert sorted(texts(page, ".legend li")) == ["cuda", "plain"]


def test_columns_without_a_value_are_left_out(long, usual, visit):
    assert "Roofline" not in texts(visit(long).open(f"#/solution/{INTERPRETED}"), "th")
    assert "Roofline" in texts(visit(usual).open(f"#/solution/{FAST}"), "th")


def test_a_failed_solution_shows_its_log_before_its_sources(long, visit):
    page = visit(long).open(f"#/solution/{PLAIN}")
    assert page.locator("main > details[open] pre").inner_text().strip() == "AssertionError: no"
    headings = texts(page, "h2")
    assert headings.index("Logs") < headings.index("Sources")


def test_each_kind_of_hardware_has_a_decision(usual, visit):
    told = texts(visit(usual).open(f"#/compare/{FAST}/{SLOW}"), ".decision")
    assert [line.split(":")[0] for line in told] == list(HARDWARE)
    assert all("B is slower: it takes 1.50\u00d7 the time of A" in line for line in told)


def test_a_solution_is_picked_once_however_many_rows_it_has(usual, visit):
    page = visit(usual).open("#/")
    boxes = page.get_by_label("Compare fast")
    boxes.nth(1).check()
    assert page.locator("input.compare:checked").count() == len(HARDWARE) + 1  # and on a warm device
    boxes.nth(0).uncheck()
    assert page.locator("input.compare:checked").count() == 0
    assert page.locator("#picked").inner_text() == ""


def test_what_was_measured_has_three_digits(usual, visit):
    page = visit(usual).open()
    told = page.evaluate("[1.2, 13, 0.0296, 1500].map((ms) => fibReport.time(ms))")
    assert told == ["1.20\u00a0ms", "13.0\u00a0ms", "29.6\u00a0µs", "1.50\u00a0s"]
    assert page.evaluate("[0, 0.48, 1].map(fibReport.percent)") == ["0\u00a0%", "48.0\u00a0%", "100\u00a0%"]
    assert page.evaluate("fibReport.tick(1)") == "1\u00a0ms"


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


def test_another_theme_leaves_open_what_was_opened(usual, visit):
    page = visit(usual).open(f"#/solution/{FAST}")
    page.get_by_text("details", exact=True).first.click()
    page.click("#theme")
    assert page.locator("td details[open]").count() == 1
