"""A run on a GPU, killed at every moment and gone on with: the same bits as if nothing had happened."""

import pytest
import torch
from tests.chaos.killed_runs import DETACHED, finish, killed_everywhere

from proa.recipes import grpo, ppo

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]

WIDE = {**DETACHED["model"]["config"], "hidden_size": 32, "head_dim": 16}  # the kernels' smallest heads
ON_GPU = {**DETACHED, "model": {"config": WIDE, "device": "cuda"}, "update_steps": 2, "train_epochs": 2}


@pytest.mark.parametrize("recipe", [grpo, ppo])
@pytest.mark.parametrize("background", [False, True])
def test_a_run_that_was_killed_goes_on_to_its_end(tmp_path, recipe, background):
    settings = {**ON_GPU, "checkpoint": {"save_every": 1, "keep": 2, "background": background}}
    whole, copies = killed_everywhere(recipe, tmp_path, **settings)
    for copy in copies[::5]:
        resumed = finish(recipe, copy, **settings)
        assert resumed["steps"] == whole["steps"]
        assert [row["step"] for row in resumed["metrics"]] == [row["step"] for row in whole["metrics"]]
        assert resumed["trained"] == whole["trained"]
        assert resumed["digest"] == whole["digest"]
