"""docs/actors.md as it stands: its snippets, one after the other, on Ray."""

import re

import pytest


@pytest.mark.prove  # what it says is in test_by_hand_ray.py too
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_the_page_works_as_it_stands(ray_cluster, repository):
    snippets = re.findall(r"```python\n(.*?)```", (repository / "docs" / "actors.md").read_text(), re.DOTALL)
    assert len(snippets) == 4
    names = {"__name__": "the_page"}
    for snippet in snippets:
        exec(compile(snippet, "docs/actors.md", "exec"), names)
