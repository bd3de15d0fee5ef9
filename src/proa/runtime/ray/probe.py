"""Checks a Ray cluster before it is used: whether it accepts our token, and whether any of its raylets is alive.

Ray itself tries for a minute or two and then reports that it could not connect, whatever the reason.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import ray

from ...errors import ProaError

REPLY_SECONDS = 10.0
"""How long a head or a raylet may take to answer at all."""


class ClusterError(ProaError):
    """The named cluster cannot be used."""


@dataclass(frozen=True, slots=True)
class Node:
    """A machine of a cluster, according to its head, and the address of its raylet."""

    host: str
    port: int
    is_alive: bool
    """According to the head, which notices a death after half a minute."""


def check_cluster(address: str) -> None:
    """Raise `ClusterError` if the cluster at `host:port` cannot be used. Other forms of an address are left to Ray."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or "://" in host:
        return
    try:
        socket.create_connection((host, int(port)), timeout=REPLY_SECONDS).close()
    except (OSError, OverflowError, UnicodeError):
        raise no_cluster_error(address) from None
    nodes = _fetch_nodes(address)
    if nodes is not None and (why := explain_outage(nodes)):
        raise ClusterError(f"the Ray cluster at ray.address={address} cannot run anything: {why}")


def check_connected_cluster() -> None:
    """Raise `ClusterError` if the cluster that this process is connected to cannot be used."""
    known: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    nodes = [Node(node["NodeManagerAddress"], node["NodeManagerPort"], node["Alive"]) for node in known]
    if why := explain_outage(nodes):
        raise ClusterError(f"the Ray cluster that this process is connected to cannot run anything: {why}")


def explain_outage(nodes: Sequence[Node]) -> str | None:
    """Why no node can run anything; None if one can."""
    if not nodes:
        return "it has no nodes"
    reasons = []
    for node in nodes:
        why = _raylet_fault(node.host, node.port) if node.is_alive else "has ended"
        if why is None:
            return None
        reasons.append(f"the raylet at {node.host}:{node.port} {why}")
    return f"{'; '.join(reasons[-3:])}. Start the cluster again with ray stop and ray start"


def no_cluster_error(address: str | None) -> ClusterError:
    return ClusterError(
        f"no Ray cluster answers at ray.address={address}: is it running, and can this machine reach it?"
    )


def token_error(address: str | None, environment: Mapping[str, str] = os.environ) -> ClusterError:
    """The error for a wrong or missing token."""
    if environment.get("RAY_AUTH_MODE", "token").lower() == "disabled":
        what = "RAY_AUTH_MODE is disabled here, and the cluster asks for a token"
    elif (given := _find_token(environment)) is None:
        what = "no token was found here"
    else:
        what = f"the token in {given[0]} is not the cluster's"
    return ClusterError(
        f"the Ray cluster at ray.address={address} refuses this process: {what}. Set "
        "RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN to the cluster's token or RAY_AUTH_TOKEN_PATH to a file that holds it"
    )


def _find_token(environment: Mapping[str, str]) -> tuple[str, str] | None:
    """The token that Ray uses, after the place where it was found."""
    if token := environment.get("RAY_AUTH_TOKEN"):
        return "RAY_AUTH_TOKEN", token.strip()
    path = Path(environment.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")
    try:
        return str(path), path.read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return None


_RAY_MODULES = ("grpc", "ray.core.generated.gcs_service_pb2", "ray.core.generated.gcs_service_pb2_grpc")


def _fetch_nodes(address: str) -> list[Node] | None:
    """The nodes that the head of a cluster lists; None if it cannot be queried. Raises for a refused token."""
    try:  # internals of Ray, which may differ in another version: then Ray is left to try
        grpc, messages, services = map(import_module, _RAY_MODULES)
    except ImportError:
        return None
    if os.environ.get("RAY_USE_TLS", "0").lower() not in ("", "0", "false"):
        return None
    given, mode = _find_token(os.environ), os.environ.get("RAY_AUTH_MODE", "token").lower()
    header = [("authorization", f"Bearer {given[1]}")] if given is not None and mode == "token" else []
    try:
        with grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
            stub: Any = services.NodeInfoGcsServiceStub(channel)
            request = messages.GetAllNodeInfoRequest()
            reply = stub.GetAllNodeInfo(request, timeout=REPLY_SECONDS, metadata=header)
    except grpc.RpcError as error:
        code = error.code() if hasattr(error, "code") else None
        if code == grpc.StatusCode.UNAUTHENTICATED:
            raise token_error(address) from None
        if code in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE):
            raise no_cluster_error(address) from None
        return None
    return [Node(node.node_manager_address, node.node_manager_port, node.state == 0) for node in reply.node_info_list]


def _raylet_fault(host: str, port: int) -> str | None:
    """Why a raylet does not answer; None if it does. One that was stopped still accepts connections, silently."""
    try:
        socket.create_connection((host, port), timeout=REPLY_SECONDS).close()
    except ConnectionRefusedError:
        return "does not answer"
    except (OSError, OverflowError, UnicodeError):
        return None  # it may just be unreachable from here
    try:
        grpc = import_module("grpc")
    except ImportError:
        return None
    with grpc.insecure_channel(f"{host}:{port}", options=[("grpc.enable_http_proxy", 0)]) as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=REPLY_SECONDS)
        except grpc.FutureTimeoutError:
            return f"has not answered for {REPLY_SECONDS:g} s"
    return None
