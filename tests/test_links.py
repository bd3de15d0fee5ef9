"""Every link of the pages for readers leads somewhere: to a file that is there, and to a heading that it has."""

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
PAGES = [REPOSITORY / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")]
PAGES += [REPOSITORY / "examples" / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))]
LINK = re.compile(r"\]\(([^()\s]+)\)")
FENCE = re.compile(r"^( *)(```|~~~).*?^\1\2", re.DOTALL | re.MULTILINE)
CODE = re.compile(r"`[^`\n]+`")


def prose(page):
    """Without code, in which brackets are something else."""
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def anchors(page):
    """The headings of a page as GitHub names them: lower case, without punctuation, hyphens for spaces, numbered where
    one is repeated."""
    found = []
    for heading in re.findall(r"^#+ +(.+?) *#*$", prose(page), re.MULTILINE):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
        repeated = sum(one == name or re.fullmatch(f"{re.escape(name)}-\\d+", one) is not None for one in found)
        found.append(f"{name}-{repeated}" if repeated else name)
    return found


def faults(page):
    for target in LINK.findall(CODE.sub("", prose(page))):
        path, _, anchor = target.partition("#")
        if path.startswith(("http://", "https://", "mailto:")):
            continue
        place = (page.parent / path).resolve() if path else page
        if not place.exists():
            yield f"{target}: there is no such file"
        elif anchor and anchor not in anchors(place):
            yield f"{target}: no heading of {place.name} is called so: {', '.join(anchors(place))}"


@pytest.mark.parametrize("page", PAGES, ids=[page.relative_to(REPOSITORY).as_posix() for page in PAGES])
def test_every_link_of_a_page_leads_somewhere(page):
    assert not list(faults(page))


def test_links_that_lead_nowhere_are_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "# What `is` here?\n## Twice\n## Twice\n"
        "[a](#what-is-here) [b](#twice-1) [c](#thrice) [d](other.md) [e](page.md#twice) [f](https://example.com)\n"
        "```\n[g](nothing.md)\n```\n`[h](nothing.md)`\n"
    )
    assert [fault.partition(":")[0] for fault in faults(page)] == ["#thrice", "other.md"]
