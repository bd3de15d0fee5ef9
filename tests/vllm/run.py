"""The part `vllm` of `make prove`: sets vLLM's environment up, and runs its tests there, the long ones too."""

import os
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
REPOSITORY = FOLDER.parents[1]
VENV = REPOSITORY / ".venv-vllm"


def main(tests: str) -> int:
    environment = {**os.environ, "PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}
    subprocess.run([FOLDER / "set_up", VENV], cwd=REPOSITORY, env=environment, check=True)
    command = [VENV / "bin" / "python", "-m", "pytest", "-q", tests, "-m", "prove or not prove"]
    return subprocess.run(command, cwd=REPOSITORY, env=environment, check=False).returncode


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1] if len(sys.argv) > 1 else "tests/vllm"))
