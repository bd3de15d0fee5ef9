"""The part `vllm` of `make prove`: sets vLLM's environment up, and runs its tests there, the long ones too."""

import os
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
REPOSITORY = FOLDER.parents[1]
VENV = REPOSITORY / ".venv-vllm"


def main() -> int:
    environment = {**os.environ, "PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}
    subprocess.run([FOLDER / "set_up", VENV], cwd=REPOSITORY, env=environment, check=True)
    tests = [VENV / "bin" / "python", "-m", "pytest", "-q", "tests/vllm", "-m", "prove or not prove"]
    return subprocess.run(tests, cwd=REPOSITORY, env=environment, check=False).returncode


if __name__ == "__main__":
    raise SystemExit(main())
