"""The part `vllm_server` of `make prove`: a real server, in the environment of the part `vllm`."""

import subprocess
import sys
from pathlib import Path

if __name__ == "__main__":
    vllm = Path(__file__).parents[1] / "vllm" / "run.py"
    raise SystemExit(subprocess.run([sys.executable, vllm, "tests/vllm_server"], check=False).returncode)
