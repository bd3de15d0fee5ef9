"""docs/actors.md as it stands: its snippets, one after the other, on Ray."""

import re

import pytest

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


@pytest.fixture(scope="module")
def snippets(repository):
    found = re.findall(r"```python\n(.*?)```", (repository / "docs" / "actors.md").read_text(), re.DOTALL)
    assert len(found) == 4
    return found


def run(snippets):
    names = {"__name__": "the_page"}
    for snippet in snippets:
        exec(compile(snippet, "docs/actors.md", "exec"), names)


def test_the_beginning_of_the_page_works_as_it_stands(ray_cluster, snippets):
    run(snippets[:2])


@pytest.mark.prove
def test_the_whole_page_works_as_it_stands(ray_cluster, snippets):
    run(snippets)
