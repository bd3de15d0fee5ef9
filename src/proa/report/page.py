"""One file that works offline: style, script and data inside, a policy that lets nothing else in or out."""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files
from typing import Any

from .chart import LEFT, RIGHT, WIDTH
from .comparing import arms_compared
from .completions import predictions, samples
from .gradients import gradient_norms
from .html import Markup, as_json, join, raw, tag
from .learning import evals_over_steps, learning_curves
from .overview import overview
from .pipeline import ledger, performance, staleness_and_idle, timeline
from .reading import Subject
from .section import Section
from .settings import checkpoints, configuration
from .text import moment

SCRIPT, STYLE = (files(__package__).joinpath(name).read_text(encoding="utf-8") for name in ("page.js", "page.css"))


def page_of(subject: Subject) -> str:
    """The whole page. Sections that have nothing to show are left out."""
    sampled, tokens = samples(subject)
    predicted, rows = predictions(subject)
    parts = (
        overview(subject), arms_compared(subject), learning_curves(subject), gradient_norms(subject),
        evals_over_steps(subject), staleness_and_idle(subject), performance(subject), timeline(subject),
        ledger(subject), sampled, predicted,
        configuration(subject), checkpoints(subject),
    )  # fmt: skip
    sections = [part for part in parts if part is not None]
    charts: dict[str, Any] = {}
    for section in sections:
        charts |= section.charts
    data = {"charts": charts, "samples": tokens, "predictions": rows, "width": WIDTH, "left": LEFT, "right": RIGHT}
    kind = "run" if subject.experiment is None else "experiment"
    page = tag("html", _head(f"{subject.name} · {kind}"), _body(subject, kind, sections, data), lang="en")
    return f"<!doctype html>\n{page}\n"


def policy() -> str:
    """What the page may do: apply its own style and run its own script, by their digests. It fetches nothing."""
    return (
        f"default-src 'none'; script-src '{_digest(SCRIPT)}'; style-src '{_digest(STYLE)}'; base-uri 'none'; "
        "form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )


def _head(title: str) -> Markup:
    return tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy()),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("title", title),
        tag("style", raw(STYLE)),
    )


def _body(subject: Subject, kind: str, sections: list[Section], data: dict[str, Any]) -> Markup:
    links = [tag("a", section.title, href=f"#{section.name}") for section in sections]
    return tag(
        "body",
        tag("header", tag("p", kind, class_="kind"), tag("h1", subject.name)),
        tag("nav", tag("div", links), aria_label="sections"),
        tag("main", [_section(section) for section in sections]),
        tag("footer", f"Made by proa report on {moment(subject.read_at)}. What the model wrote is shown as text."),
        tag("script", as_json(data), type="application/json", id="data"),
        tag("script", raw(SCRIPT)),
    )


def _section(section: Section) -> Markup:
    return tag("section", tag("h2", section.title), join(section.body), id=section.name)


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
