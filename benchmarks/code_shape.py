"""How the package reads, in numbers: sizes, helpers that send a reader away, phrases as names, `Any`, import cycles.

python benchmarks/code_shape.py
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "src" / "proa"
FUNCTION_WORDS = {
    "a", "an", "the", "of", "for", "to", "with", "in", "on", "at", "by", "from", "as", "is", "are", "was",
    "were", "be", "been", "has", "have", "had", "its", "it", "this", "that", "these", "those", "what",
    "which", "who", "whom", "whose", "where", "when", "why", "how", "if", "or", "and", "not", "no",
    "nothing", "nobody", "but", "than", "then", "there", "here", "so", "such", "own", "other", "others",
    "another", "each", "every", "all", "any", "some", "more", "most",
}  # fmt: skip
IDIOMS = ("is", "has", "on", "as", "from", "to")
SHORT = 5
"""Lines of a helper that is not worth a name of its own where it is used once."""


def main() -> None:
    trees = {path: ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}
    functions = [node for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    classes = [node for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    source = "\n".join(path.read_text() for path in trees)
    lengths = [length(function) for function in functions]
    print(f"files                                 {len(trees)}")
    print(f"lines                                 {source.count(chr(10)) + 1}")
    print(f"function length, p90 and longest      {percentile(lengths, 90)}, {max(lengths)}")
    file_lengths = [len(path.read_text().splitlines()) for path in trees]
    print(f"file length, p90 and longest          {percentile(file_lengths, 90)}, {max(file_lengths)}")
    print(f"private helpers <= {SHORT} lines, used once  {sum(used_once(trees))}")
    names = [node.name for node in (*functions, *classes)]
    phrases = [name for name in names if is_phrase(name)]
    print(f"names with function words             {len(phrases)} of {len(names)}")
    anys = len(re.findall(r"\bAny\b", source))
    print(f"Any                                   {anys}")
    print(f"dict[str, Any]                        {source.count('dict[str, Any]')}")
    print(f"import cycles                         {cycles(trees)}")
    methods = Counter({node.name: sum(isinstance(m, ast.FunctionDef) for m in node.body) for node in classes})
    print(f"methods of the largest classes        {methods.most_common(6)}")


def length(node: ast.FunctionDef) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def percentile(values: list[int], share: int) -> int:
    return sorted(values)[len(values) * share // 100]


def is_phrase(name: str) -> bool:
    """Whether a name has function words, but for those that Python's own names begin with: `is_open`, `from_dict`."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower().strip("_").split("_")
    return bool(set(words[words[0] in IDIOMS :]) & FUNCTION_WORDS)


def used_once(trees: dict[Path, ast.Module]) -> list[int]:
    """Of each file, how many short private functions have one use there."""
    found = []
    for path, tree in trees.items():
        text = path.read_text()
        helpers = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and is_private(n.name)]
        short = [n for n in helpers if body_length(n) <= SHORT and not n.decorator_list]
        found.append(sum(len(re.findall(rf"\b{node.name}\b", text)) == 2 for node in short))
    return found


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def body_length(node: ast.FunctionDef) -> int:
    """Lines without signature and docstring."""
    body = node.body[1:] if ast.get_docstring(node) else node.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def cycles(trees: dict[Path, ast.Module]) -> list[list[str]]:
    """Groups of modules that import one another, imports inside functions and for types counted too."""
    names = {module_name(path): path for path in trees}
    graph = {name: imported(name, trees[path], names) for name, path in names.items()}
    return [group for group in components(graph) if len(group) > 1]


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(name: str, tree: ast.Module, names: dict[str, Path]) -> set[str]:
    package = name if names[name].name == "__init__.py" else name.rpartition(".")[0]
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            inner = {f"{base}.{alias.name}" for alias in node.names} & names.keys()
            found |= inner or ({base} & names.keys())
    return found - {name}


def components(graph: dict[str, set[str]]) -> list[list[str]]:
    """Strongly connected ones: modules that reach one another."""
    reach = {name: reachable(name, graph) for name in graph}
    groups = {tuple(sorted(other for other in reach[name] if name in reach[other])) or (name,) for name in graph}
    return [list(group) for group in sorted(groups)]


def reachable(start: str, graph: dict[str, set[str]]) -> set[str]:
    seen: set[str] = set()
    left = [start]
    while left:
        for other in graph[left.pop()] - seen:
            seen.add(other)
            left.append(other)
    return seen


if __name__ == "__main__":
    main()
