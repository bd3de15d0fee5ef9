"""One Ray cluster for all tests here: starting one takes longer than most of them."""

import logging
import os
import sys

import pytest


@pytest.fixture(scope="session")
def ray_cluster(repository):
    ray = pytest.importorskip("ray", reason="needs ray: pip install 'proa[ray]'")
    paths = os.pathsep.join([str(repository / "src"), str(repository), *sys.path])
    ray.init(
        num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR,
        object_store_memory=200 * 2**20, runtime_env={"env_vars": {"PYTHONPATH": paths}},
    )  # fmt: skip
    yield ray
    ray.shutdown()


@pytest.fixture(scope="session")
def watched(ray_cluster, tmp_path_factory):
    """A run that everybody listens to; tests look at it."""
    from tests.integration.watched_run import watch_a_run

    return watch_a_run(tmp_path_factory.mktemp("watched"))
