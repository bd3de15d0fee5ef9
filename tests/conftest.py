"""Shared by all tests."""

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("proa", deadline=None)  # the machine may be busy: a slow example is no failure
settings.load_profile("proa")


@pytest.fixture(scope="session")
def repository() -> Path:
    return Path(__file__).parents[1]


@pytest.fixture(scope="session")
def bfloat16() -> str:
    """The dtype, where this processor multiplies matrices of it: some end the whole process instead."""
    product = "import torch; x = torch.ones(40, 40, dtype=torch.bfloat16, requires_grad=True); (x @ x).sum().backward()"
    probe = subprocess.run([sys.executable, "-c", product], capture_output=True, timeout=120, check=False)
    if probe.returncode:
        pytest.skip(f"this processor cannot multiply matrices in bfloat16 (exit code {probe.returncode})")
    return "bfloat16"
