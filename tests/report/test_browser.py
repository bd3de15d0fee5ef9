"""The page in a real browser: it opens without a complaint, fetches nothing, and hostile text is text there too."""

import functools
import html
import json
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
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
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


LOOK = """
addEventListener("load", () => {
  const seen = {};
  for (const frame of document.querySelectorAll("iframe")) {
    const page = frame.contentDocument, root = page.documentElement;
    const boxed = (element) => element.closest(".scroll, .text, nav, td div, svg") !== null;
    const wide = [...page.querySelectorAll("body *")].filter((element) => {
      const box = element.getBoundingClientRect();
      return box.width && (box.right > root.clientWidth + 1 || box.left < -1) && !boxed(element);
    });
    const cut = [...page.querySelectorAll("svg text")].filter((text) => {
      const box = text.getBoundingClientRect(), drawing = text.ownerSVGElement.getBoundingClientRect();
      return box.width && (box.left < drawing.left - 1 || box.right > drawing.right + 1);
    });
    const scrolled = [...page.querySelectorAll(".scroll")].filter((box) => box.scrollWidth > box.clientWidth + 1);
    const name = (element) => `${element.nodeName} ${element.className} ${element.textContent.slice(0, 60)}`;
    const of = (box) => [...box.children].filter((part) => part.matches("details")).map((part) => part.open);
    const steps = page.querySelector(".one-of[data-what=step].paged");
    const opened = [of(steps)];
    steps.querySelector("button").click();
    opened.push(of(steps));
    const found = { wide, cut, scrolled };
    for (const kind in found) found[kind] = found[kind].map(name);
    seen[frame.width] = { widest: root.scrollWidth, opened, ...found };
  }
  document.body.dataset.seen = JSON.stringify(seen);
});
"""
"""Asks each frame what reaches beyond the window, which text is cut, which steps are open before and after a click."""


def looked_at(path, browser, widths):
    """What the page is like in windows of these widths, and what the browser complained of."""
    shown = html.escape(path.read_text(encoding="utf-8"))
    frames = "".join(f'<iframe width="{width}" height="900" srcdoc="{shown}"></iframe>' for width in widths)
    harness = path.with_name("harness.html")
    harness.write_text(f"<!doctype html><meta charset=utf-8><body>{frames}<script>{LOOK}</script>", encoding="utf-8")
    page, complaints = browser(f"file://{harness}", width=1400)
    (seen,) = re.findall(r'data-seen="(.*?)"', page)
    return json.loads(html.unescape(seen)), complaints


def test_nothing_of_the_page_is_wider_than_a_desk_or_a_phone_and_one_step_is_shown_at_a_time(tmp_path, browser):
    arms = {"learning_rate-0.0003__group_size-8": 1.0, "learning_rate-0.0001__group_size-16": 2.0}
    path, _ = write_report(records.write_experiment(tmp_path / "sweep", arms, steps=40))
    seen, complaints = looked_at(path, browser, (1280, 390))
    assert complaints == []
    for width in ("1280", "390"):
        assert seen[width]["widest"] <= int(width)
        assert seen[width]["wide"] == []
        assert seen[width]["cut"] == []
        assert seen[width]["opened"] == [[False, False, True], [False, True, False]]
    assert seen["1280"]["scrolled"] == []


def test_an_experiment_opens_without_a_complaint(tmp_path, browser):
    path, _ = write_report(records.write_experiment(tmp_path / "sweep", {"a": 1.0, "b": 2.0}, steps=12))
    seen, complaints = browser(f"file://{path}", width=375)
    assert complaints == []
    assert 'aria-pressed="true"' in seen  # its script ran: arms can be hidden
