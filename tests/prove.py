"""`make prove`: the long forms of all proofs, in parts, with one summary at the end.

    python tests/prove.py                 every part
    python tests/prove.py kills ray       these parts
    python tests/prove.py --list          what parts there are

A part that fails does not keep the others from running. What each printed is in runs/prove/<part>.log.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
LOGS = REPOSITORY / "runs" / "prove"
NUMERIC = [f"tests/{folder}" for folder in ("maths", "algorithms", "policy", "engines", "learning", "roles", "runtime")]

LEARNING = ["--dist=worksteal"]  # one file has the longest of them, which two processes share so
LEARNING += ["tests/recipes", "tests/run/", "tests/supervised", "tests/evals", "tests/resume", "tests/test_examples.py"]
OTHERS = [f"tests/{folder}" for folder in ("lifecycle", "statistics", "report", "callbacks", "loop", "tasks", "config")]
OTHERS += [f"tests/{folder}" for folder in ("roles", "leases", "actors", "ancestors", "data")]
OTHERS += [f"tests/{folder}" for folder in ("environments", "rollouts", "serving", "doctor")]


@dataclass(frozen=True)
class Part:
    """One command, and what it proves."""

    what: str
    command: list[str]
    environment: dict[str, str] = field(default_factory=dict)


def pytest_part(what: str, *paths: str, marked: str = "prove", processes: int = 2, **environment: str) -> Part:
    alone = ["-s"] if processes == 1 else ["--numprocesses", str(processes), "--no-loadscope-reorder"]
    return Part(what, ["-m", "pytest", "-q", "-m", marked, *alone, *paths], environment)


def script_part(what: str, path: str) -> Part:
    return Part(what, [path])


PARTS = {
    "tests": pytest_part("what `make test` runs", marked="not prove"),
    "properties": pytest_part("properties, on ten times as many examples", marked="hypothesis", PROA_EXAMPLES="prove"),
    "default": pytest_part(
        "numbers without vector instructions", *NUMERIC, marked="not prove", ATEN_CPU_CAPABILITY="default"
    ),
    "avx2": pytest_part("numbers with AVX2 only", *NUMERIC, marked="not prove", ATEN_CPU_CAPABILITY="avx2"),
    "kills": pytest_part("real kills and signals, by the hundred", "tests/chaos", "tests/runtime", "tests/rewards"),
    "experiments": pytest_part(
        "experiments that are killed and go on", "tests/experiments", "tests/cli", "tests/record"
    ),
    "ray": pytest_part("Ray: faults, lost calls, topologies, kills", "tests/integration", processes=1),
    "learning": pytest_part("every seed learns, and controls do not", *LEARNING),
    "models": pytest_part("every architecture", "tests/policy", "tests/engines", "tests/learning", "tests/algorithms"),
    "others": pytest_part("what is long elsewhere", *OTHERS),
    "gpu": pytest_part("what is long on a GPU, where there is one", "tests/gpu", processes=1),
    "gpu_figures": script_part("the figures for a GPU, where there is one", "benchmarks/gpu.py"),
    "vllm": script_part("vLLM as an engine, in an environment of its own", "tests/vllm/run.py"),
    "vllm_server": script_part("a real vLLM server as the engine, there too", "tests/vllm_server/run.py"),
    "kernels": script_part("the GPU's kernels, interpreted on a CPU", "tests/kernels/run.py"),
    "clients": script_part("openai, lm-eval and inspect-ai at a served model", "tests/clients/run.py"),
    "adapters": script_part("environments of other libraries, those themselves", "tests/adapters/run.py"),
    "tools": script_part("whether the engine stays busy while tools take their time", "benchmarks/tool_latency.py"),
    "lifecycle_demo": script_part("the lifecycle example", "examples/lifecycle_demo.py"),
    "callbacks": script_part("what an event costs", "benchmarks/callbacks.py"),
    "rollout": script_part("tokens per second", "benchmarks/rollout.py"),
    "step": Part("a whole step beside TRL's", ["-m", "proa", "bench", "step", "--at-least", "1.2"]),
    "quality": Part("time to quality beside TRL's", ["-m", "proa", "bench", "quality", "--at-most", "0.8"]),
    "weights": script_part("what a push costs", "benchmarks/weights.py"),
    "checkpoint": script_part("what saving costs", "benchmarks/checkpoint.py"),
    "record": script_part("what the record costs", "benchmarks/record.py"),
    "pipeline": script_part("whether trainer and makers keep each other busy", "benchmarks/pipeline.py"),
}


@dataclass(frozen=True)
class Outcome:
    """How a part ended."""

    name: str
    code: int
    seconds: float
    said: str

    @property
    def passed(self) -> bool:
        return self.code in (0, 5)  # 5: pytest found no test, which is no failure


def run(name: str, part: Part) -> Outcome:
    log = LOGS / f"{name}.log"
    print(f"{name}: {part.what} ...", flush=True)
    begun = time.monotonic()
    with log.open("w") as file:
        code = subprocess.run(
            [sys.executable, *part.command], cwd=REPOSITORY, env={**os.environ, **part.environment},
            stdout=file, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, check=False,
        ).returncode  # fmt: skip
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    said = re.sub(r"^=+ | =+$", "", lines[-1]) if lines else "said nothing"
    outcome = Outcome(name, code, time.monotonic() - begun, said[:100])
    if not outcome.passed:
        failures = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
        print("\n".join(failures or lines[-20:]), flush=True)
    return outcome


def main(names: list[str]) -> int:
    if names == ["--list"]:
        for name, part in PARTS.items():
            print(f"{name:15} {part.what}")
        return 0
    if unknown := set(names) - set(PARTS):
        print(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}", file=sys.stderr)
        return 2
    LOGS.mkdir(parents=True, exist_ok=True)
    outcomes = [run(name, PARTS[name]) for name in names or PARTS]
    print("\nsummary")
    for outcome in outcomes:
        word = "passed" if outcome.passed else f"FAILED ({outcome.code})"
        print(f"{outcome.name:15} {word:11} {outcome.seconds:6.0f} s  {outcome.said}")
    failed = sum(not outcome.passed for outcome in outcomes)
    print(f"{len(outcomes) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
