"""Runs the tests of this folder with Triton, which is installed into a folder of its own if it is not there.

python tests/kernels/run.py
"""

import os
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
FOLDER = REPOSITORY / ".venv-triton"
TRITON = "triton==3.9.0"
"""The CPU build of torch comes without it; a version whose interpreter knows the numpy of constraints.txt."""


def main() -> int:
    if not (FOLDER / "triton").is_dir():
        pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--target", str(FOLDER)]
        subprocess.run([sys.executable, *pip, TRITON], check=True)
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(FOLDER)}
    tests = [sys.executable, "-m", "pytest", "-q", "-m", "prove", "tests/kernels"]
    return subprocess.run(tests, cwd=REPOSITORY, env=environment, check=False).returncode


if __name__ == "__main__":
    raise SystemExit(main())
