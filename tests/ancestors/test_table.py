"""The table of what the ancestors document is whole: every proof is there and run, every deviation has its reason."""

import ast
import functools
import importlib
import re
from collections import Counter
from pathlib import Path

import pytest
from tests.ancestors.table import ITEMS

HERE = "tests/ancestors/"


def test_it_has_every_documented_statement_once():
    assert len(ITEMS) >= 139
    twice = [item for item, count in Counter((item.ancestor, item.statement) for item in ITEMS).items() if count > 1]
    assert not twice


@functools.cache
def run_tests_of(file: str, repository: Path) -> dict[str, ast.FunctionDef]:
    """The tests of a file that `make test` runs, by name."""
    tree = ast.parse((repository / file).read_text(encoding="utf-8"))
    marks = [ast.unparse(node.value) for node in tree.body if isinstance(node, ast.Assign) and _is_pytestmark(node)]
    if any("mark.prove" in mark for mark in marks):
        return {}
    return {
        node.name: node
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
        and node.name.startswith("test_")
        and not any(ast.unparse(decorator) == "pytest.mark.prove" for decorator in node.decorator_list)
    }


def _is_pytestmark(node: ast.Assign) -> bool:
    return any(isinstance(target, ast.Name) and target.id == "pytestmark" for target in node.targets)


def cases_of(file: str, test: str) -> list[str]:
    """The parameters of a test here, which are texts."""
    function = getattr(importlib.import_module(file.removesuffix(".py").replace("/", ".")), test)
    (mark,) = (mark for mark in function.pytestmark if mark.name == "parametrize")
    return list(mark.args[1])


def parts(proof: str) -> tuple[str, str, str]:
    """File, name and parameter of a test's id."""
    file, _, test = proof.partition("::")
    name, _, case = test.removesuffix("]").partition("[")
    return file, name, case


@pytest.mark.parametrize("ancestor", ["ColossalChat", "EvSys", "xaytune"])
def test_every_proof_is_a_test_that_is_run(ancestor, repository):
    proofs = [item.proof for item in ITEMS if item.ancestor == ancestor]
    assert proofs
    missing = [proof for proof in proofs if parts(proof)[1] not in run_tests_of(parts(proof)[0], repository)]
    assert not missing


def test_a_case_that_is_named_is_one_of_its_test_and_the_others_are_named_too():
    named = {}
    for file, name, case in (parts(item.proof) for item in ITEMS):
        if case:
            assert file.startswith(HERE)
            named.setdefault((file, name), set()).add(case)
    assert {test: set(cases_of(*test)) for test in named} == named


def test_every_check_here_proves_a_statement(repository):
    proving = {parts(item.proof)[:2] for item in ITEMS}
    files = {f"{HERE}{path.name}" for path in (repository / HERE).glob("test_*.py")} - {f"{HERE}test_table.py"}
    here = {(file, name) for file in files for name in run_tests_of(file, repository)}
    assert here <= proving


def test_every_deviation_has_its_reason_in_the_docs_and_every_reason_is_needed(repository):
    page = (repository / "docs" / "ancestors.md").read_text(encoding="utf-8")
    reasons = re.findall(r"^- \*\*(.+?)\.\*\* ", page.partition("## Where Proa differs")[2], re.MULTILINE)
    assert len(reasons) == len(set(reasons))
    assert set(reasons) == {item.differs for item in ITEMS if item.differs}


def test_the_page_speaks_of_every_ancestor(repository):
    page = (repository / "docs" / "ancestors.md").read_text(encoding="utf-8")
    assert {item.ancestor for item in ITEMS} == set(re.findall(r"^## From (\w+)$", page, re.MULTILINE))
