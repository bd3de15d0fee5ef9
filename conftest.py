"""Runs every Python snippet of README.md and docs/ as a test; the snippets of one page share names.

Those of docs/actors.md need a Ray cluster: tests/integration/test_actors_page.py runs them.
"""

from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser

pytest_collect_file = Sybil(
    parsers=[PythonCodeBlockParser()], patterns=["README.md", "docs/*.md"], excludes=["docs/actors.md"]
).pytest()

collect_ignore = [  # they need vllm
    "src/proa/engines/vllm_server/worker.py", "tests/vllm_server/stale.py", "tests/vllm_server/dropped.py",
]  # fmt: skip
