"""The run that these tests make, small enough to be over in a second, and what its folder says."""

import json

from tests.small import DETACHED as SMALL

from proa.recipes import grpo


def header(tmp_path, name="run"):
    return json.loads((tmp_path / name / "run.json").read_text())


def digest(tmp_path, name, recipe=grpo, **changes):
    """Of the weights after a run."""
    recipe(**{**SMALL, "output_dir": tmp_path, "name": name, **changes})
    return header(tmp_path, name)["weights_digest"]
