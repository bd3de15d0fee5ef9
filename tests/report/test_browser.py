"""The page in a real browser: it opens without a complaint, fetches nothing, and hostile text is text there too."""

import functools
import html
import re
import shutil
import subprocess

import pytest
from tests.report import report_records as records

from proa.report import write_report
from proa.report.text import visible

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)


@functools.cache
def browser_works():
    """A browser may be there and not start, in a sandbox say: then there is nothing to see either."""
    return CHROMIUM is not None and "<body" in opened("about:blank")[0]


def opened(address, width=1280):
    """What the page is after its script has run, and what the browser logged."""
    command = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", f"--window-size={width},900"]
    command += ["--virtual-time-budget=3000", "--enable-logging=stderr", "--dump-dom", address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90)
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


@pytest.fixture
def browser():
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed: the page is not opened in a browser")
    if not browser_works():
        pytest.skip("Chromium does not start here: the page is not opened in a browser")
    return opened


def test_hostile_completions_are_text_in_a_browser_and_nothing_is_complained_of(tmp_path, browser):
    folder = records.write_run(tmp_path / "run", text=records.HOSTILE)
    path, _ = write_report(folder)
    seen, complaints = browser(f"file://{path}")
    assert complaints == []
    assert "<title>run · run</title>" in seen  # not owned
    assert len(re.findall(r"<script[ >]", seen)) == 2
    assert "<img" not in seen
    first = re.findall(r'<div class="text tokens".*?</div>', seen, flags=re.DOTALL)[0]
    assert html.unescape(re.sub(r"<[^>]*>", "", first)).startswith(visible(records.HOSTILE))
    assert "rows 1 to 25 of 60" in seen  # its script ran
    cells = re.findall(r'<td class="long"><div dir="auto">(.*?)</div>', seen, flags=re.DOTALL)
    assert html.unescape(cells[0]) == f"sort {visible(records.HOSTILE)}"


def test_an_experiment_opens_without_a_complaint(tmp_path, browser):
    path, _ = write_report(records.write_experiment(tmp_path / "sweep", {"a": 1.0, "b": 2.0}, steps=12))
    seen, complaints = browser(f"file://{path}", width=375)
    assert complaints == []
    assert 'aria-pressed="true"' in seen  # its script ran: arms can be hidden
