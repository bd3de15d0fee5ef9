"""A Ray cluster for one run: the one at an address, or one that is started here and ends with the run."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import ray
from ray import cloudpickle

from .probe import ClusterError, check_cluster, check_connected_cluster, no_cluster_error, token_error

__all__ = ["ClusterError", "cluster", "pickled"]

pickled = cloudpickle.dumps
"""Pickles objects for actors; it accepts more than pickle does."""


@contextlib.contextmanager
def cluster(address: str | None, namespace: str) -> Iterator[None]:
    """Connect to a cluster, or start one that ends with the block. An existing connection is used as it is."""
    if ray.is_initialized():
        check_connected_cluster()
        yield
        return
    if address is not None:
        check_cluster(address)
    # Actors can import what the driver can, including rewards and tasks beside the configuration.
    paths = os.pathsep.join(dict.fromkeys([path or str(Path.cwd()) for path in sys.path]))
    try:
        with _hangup_blocked():
            ray.init(
                address=address or "local",  # not another cluster on this machine
                namespace=namespace,
                include_dashboard=None if address else False,
                log_to_driver=False,
                logging_level=logging.ERROR,
                # c10d would log every read of a store.
                runtime_env={"env_vars": {"PYTHONPATH": paths, "TORCH_CPP_LOG_LEVEL": "ERROR"}},
            )
    except ray.exceptions.AuthenticationError as error:
        raise token_error(address) from error
    except ConnectionError as error:
        raise no_cluster_error(address) from error
    except SystemExit as leaving:  # Ray's own handler of SIGTERM, which is in place from here on
        raise KeyboardInterrupt("SIGTERM") from leaving
    try:
        yield
    finally:
        ray.shutdown()


@contextlib.contextmanager
def _hangup_blocked() -> Iterator[None]:
    """Processes started inside ignore SIGHUP, as Ray has them ignore Ctrl-C: the kernel signals the whole group when a
    terminal closes, and the cluster is needed to save the run."""
    if not hasattr(signal, "SIGHUP"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
