"""A Ray cluster that cannot be used is distinguished from one that is not there: no token, another token, no raylet."""

import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

pytest.importorskip("ray", reason="needs ray: pip install 'proa[ray]'")
grpc = pytest.importorskip("grpc", reason="needs grpc, which some of Ray's extras bring along")

from ray.core.generated import gcs_service_pb2, gcs_service_pb2_grpc  # noqa: E402

from proa.runtime.ray import driver  # noqa: E402
from proa.runtime.ray.driver import RayRuntime  # noqa: E402
from proa.runtime.ray.probe import ClusterError, Node, check_cluster, explain_outage, token_error  # noqa: E402

ALIVE, DEAD = 0, 1


class Head(gcs_service_pb2_grpc.NodeInfoGcsServiceServicer):
    """Says what it was told of the nodes to whoever has the token."""

    def __init__(self, nodes, token):
        self.nodes, self.token = nodes, token

    def GetAllNodeInfo(self, request, context):  # noqa: N802
        given = dict(context.invocation_metadata()).get("authorization")
        if self.token is not None and given != f"Bearer {self.token}":
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "InvalidAuthToken")
        reply = gcs_service_pb2.GetAllNodeInfoReply()
        for port, state in self.nodes:
            reply.node_info_list.add(node_manager_address="127.0.0.1", node_manager_port=port, state=state)
        return reply


@contextmanager
def serving(nodes=(), token=None):
    server = grpc.server(ThreadPoolExecutor(2))
    gcs_service_pb2_grpc.add_NodeInfoGcsServiceServicer_to_server(Head(nodes, token), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield port
    finally:
        server.stop(None).wait()


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as held:
        return held.getsockname()[1]


@pytest.fixture(autouse=True)
def without_tokens(monkeypatch, tmp_path):
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


def test_a_cluster_with_a_raylet_that_answers_can_be_used():
    with serving() as raylet, serving([(free_port(), DEAD), (raylet, ALIVE)]) as head:
        check_cluster(f"127.0.0.1:{head}")


def test_a_dead_raylet_is_named_also_before_the_head_has_noticed():
    gone = free_port()
    for state, words in ((DEAD, "has ended"), (ALIVE, "does not answer")):
        with serving([(gone, state)]) as head, pytest.raises(ClusterError) as refused:
            check_cluster(f"127.0.0.1:{head}")
        assert f"cannot run anything: the raylet at 127.0.0.1:{gone} {words}" in str(refused.value)


def test_a_raylet_that_takes_connections_and_says_nothing_is_dead(monkeypatch):
    monkeypatch.setattr("proa.runtime.ray.probe.REPLY_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as stopped:
        said = explain_outage([Node("127.0.0.1", stopped.getsockname()[1], is_alive=True)])
    assert "has not answered for 0.2 s" in said


def test_a_token_that_is_not_the_clusters_is_reported_with_where_it_was_found(monkeypatch, tmp_path):
    (tmp_path / "token").write_text("from-a-file\n")
    with serving() as raylet, serving([(raylet, ALIVE)], token="the-clusters") as head:
        for environment, words in (
            ({}, "no token was found here"),
            ({"RAY_AUTH_TOKEN": "another"}, "the token in RAY_AUTH_TOKEN is not the cluster's"),
            ({"RAY_AUTH_TOKEN_PATH": str(tmp_path / "token")}, f"the token in {tmp_path / 'token'} is not"),
            ({"RAY_AUTH_MODE": "disabled", "RAY_AUTH_TOKEN": "the-clusters"}, "RAY_AUTH_MODE is disabled here"),
        ):
            with monkeypatch.context() as patch, pytest.raises(ClusterError) as refused:
                for name, value in environment.items():
                    patch.setenv(name, value)
                check_cluster(f"127.0.0.1:{head}")
            assert words in str(refused.value)
            assert "RAY_AUTH_TOKEN_PATH to a file" in str(refused.value)
            assert "another" not in str(refused.value)
        monkeypatch.setenv("RAY_AUTH_TOKEN", "the-clusters")
        check_cluster(f"127.0.0.1:{head}")


def test_where_nobody_listens_no_cluster_answers():
    with pytest.raises(ClusterError, match="no Ray cluster answers at ray.address=127.0.0.1:"):
        check_cluster(f"127.0.0.1:{free_port()}")
    check_cluster("auto")  # Ray's own to find
    assert "RAY_AUTH_TOKEN" in str(token_error("auto", {}))


def test_who_waits_for_actors_hears_of_a_dead_raylet_and_not_of_resources(monkeypatch):
    def dead():
        raise ClusterError("the raylet has ended")

    monkeypatch.setattr(driver, "RAYLET_SECONDS", 0.0)
    monkeypatch.setattr(driver, "check_connected_cluster", dead)
    waiting = SimpleNamespace(_raise_interrupt=lambda: None)
    with pytest.raises(ClusterError, match="the raylet has ended"):
        RayRuntime._wait_for(waiting, lambda: False, "trainer_0", 60.0)
