"""A browser for pages on disk: it tells everything that a page asked for, and every error."""

import shutil
from pathlib import Path

import pytest

from tests.report.pages.sets import usual_set, write_pages

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking"]


@pytest.fixture(scope="module")
def browser():  # for one file: while it is open, this thread runs its event loop, which others could not start
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("there is no chromium")
    with sync_api.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield started
        started.close()


@pytest.fixture(scope="module")
def usual(tmp_path_factory):
    """Return the folder with the pages of the usual set."""
    return write_pages(tmp_path_factory.mktemp("usual"), usual_set())


class Visit:
    """A page, with what went wrong on it and what it asked the network for."""

    def __init__(self, browser, folder: Path, **context):
        self.context = browser.new_context(**context)
        self.page = self.context.new_page()
        self.page.set_default_timeout(20_000)
        self.errors, self.network, self.dialogs = [], [], []
        self.index = f"file://{folder.resolve()}/index.html"
        self.page.on("console", lambda said: self.errors.append(said.text) if said.type != "log" else None)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", self._note)
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

    def _note(self, request):
        if not request.url.startswith(("file:", "about:")):
            self.network.append(request.url)

    def _dismiss(self, dialog):
        self.dialogs.append(dialog.message)
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
    assert [(item.errors, item.network, item.dialogs) for item in visits] == [([], [], [])] * len(visits)
