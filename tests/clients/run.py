"""Runs the tests of this folder, having made an environment of the clients' own, `.venv-clients`, if there is none.

python tests/clients/run.py
"""

import os
import subprocess
import sys
import venv
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
FOLDER = REPOSITORY / ".venv-clients"
WANTED = Path(__file__).with_name("requirements.txt")


def set_up() -> None:
    """All packages at their versions; again where these have changed."""
    ready = FOLDER / "ready"
    if ready.is_file() and ready.read_text() == WANTED.read_text():
        return
    print(f"setting up {FOLDER.name} ...", flush=True)
    venv.create(FOLDER, with_pip=True, clear=True)
    pip = [FOLDER / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run([*pip, "--requirement", WANTED], check=True, env=environment)
    ready.write_text(WANTED.read_text())


def main() -> int:
    set_up()
    tests = [sys.executable, "-m", "pytest", "-q", "-m", "prove", "-s", "tests/clients"]
    return subprocess.run(tests, cwd=REPOSITORY, check=False).returncode


if __name__ == "__main__":
    raise SystemExit(main())
