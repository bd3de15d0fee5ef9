"""Sets vLLM's environment up, and runs tests there, the long ones too. These are two parts of `make prove`.

python tests/vllm/run.py tests/vllm           vLLM in the process of a maker
python tests/vllm/run.py tests/vllm_server    a real vLLM server
"""

import os
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
REPOSITORY = FOLDER.parents[1]
VENV = REPOSITORY / ".venv-vllm"


def main(folders: list[str]) -> int:
    environment = {**os.environ, "PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}
    subprocess.run([FOLDER / "set_up", VENV], cwd=REPOSITORY, env=environment, check=True)
    tests = [VENV / "bin" / "python", "-m", "pytest", "-q", *folders, "-m", "prove or not prove"]
    return subprocess.run(tests, cwd=REPOSITORY, env=environment, check=False).returncode


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
