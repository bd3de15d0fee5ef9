"""Runs the tests of this folder with the libraries that they are about, in an environment of their own,
`.venv-adapters`, over the packages of this one.

python tests/adapters/run.py
"""

import os
import subprocess
import sysconfig
import venv
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
FOLDER = REPOSITORY / ".venv-adapters"
PYTHON = FOLDER / "bin" / "python"
WANTED = Path(__file__).with_name("requirements.txt")
TESTS = ["tests/adapters", "tests/environments/test_tool_calls.py"]
"""The second has a test with the package `renderers`."""


def set_up() -> None:
    """All packages at their versions; again where these have changed."""
    ready = FOLDER / "ready"
    if ready.is_file() and ready.read_text() == WANTED.read_text():
        return
    print(f"setting up {FOLDER.name} ...", flush=True)
    venv.create(FOLDER, with_pip=True, clear=True)
    [own] = FOLDER.glob("lib/python*/site-packages")
    (own / "base.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = [PYTHON, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*pip, "--requirement", WANTED], check=True)
    ready.write_text(WANTED.read_text())


def main() -> int:
    set_up()
    tests = [PYTHON, "-m", "pytest", "-q", "-m", "prove or not prove", *TESTS]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "src")}
    return subprocess.run(tests, cwd=REPOSITORY, env=environment, check=False).returncode


if __name__ == "__main__":
    raise SystemExit(main())
