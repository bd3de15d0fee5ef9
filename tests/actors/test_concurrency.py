"""Concurrency groups of actors: seen by Ray, which looks behind decorators."""

import inspect

import pytest

from proa import DetachedTrainer, ExperienceMakerHolder

METHODS = [
    (DetachedTrainer, "fit", "compute"), (DetachedTrainer, "buffer_append", "buffer_append"),
    (DetachedTrainer, "buffer_extend", "buffer_append"), (DetachedTrainer, "buffer_get_length", "buffer_length"),
    (DetachedTrainer, "_buffer_sample", "buffer_sample"), (ExperienceMakerHolder, "workingloop", "compute"),
    (ExperienceMakerHolder, "update_experience_maker", "model_io"),
    (ExperienceMakerHolder, "get_policy_version", "model_io"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "name", "group"), METHODS)
def test_a_method_has_its_group_however_it_is_decorated(kind, name, group):
    method = getattr(kind, name)
    assert method.__ray_concurrency_group__ == inspect.unwrap(method).__ray_concurrency_group__ == group
    assert group in kind.CONCURRENCY_GROUPS
