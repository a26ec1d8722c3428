"""Joining a Ray cluster that is there already: asked first whether it is one, for Ray itself would wait for minutes."""

import logging
import os
import socket
import warnings
from collections.abc import Callable
from urllib.parse import urlsplit

import grpc
import ray
from ray._private import services

from schemas.errors import GeofixError
from schemas.settings.endpoint import is_loopback_host

CONNECT_S = 10.0
ANSWER_S = 30.0
CLIENT = "ray://"


def join_cluster(address: str, stay_on_loopback: Callable[[], None]) -> None:
    """Make this process a driver of the cluster at host:port (a node must run here) or ray://host:port."""
    host, port = split_address(address)
    _reachable(address, host, port)
    if not address.startswith(CLIENT):
        if is_loopback_host(host) and not _listens(services.resolve_ip_for_localhost(host), port):
            # Ray replaces a loopback address by that of an interface; a cluster on loopback is not there.
            stay_on_loopback()
        _is_head(address, host, port)
    try:
        with warnings.catch_warnings(action="ignore"):  # of a connection that times out: the error says it too
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:  # of every kind, plain ones too
        how = (
            "the port must be that of its client server (10001), and the versions of Ray and Python the same"
            if address.startswith(CLIENT)
            else f"this machine must be one of its nodes (ray start --address={host}:{port}), "
            "with the same versions of Ray and Python; from outside it is ray://HOST:10001"
        )
        raise GeofixError(
            f"spread.address: cannot join the Ray cluster at '{address}': {' '.join(str(error).split())[:300]}; {how}"
        ) from error


def split_address(address: str) -> tuple[str, int]:
    """Host and port of an address that the settings have accepted."""
    parts = urlsplit(address if address.startswith(CLIENT) else f"{CLIENT}{address}")
    assert parts.hostname is not None and parts.port is not None, "the settings check that both are there"
    return parts.hostname, parts.port


def _reachable(address: str, host: str, port: int) -> None:
    try:
        socket.create_connection((host, port), CONNECT_S).close()
    except socket.gaierror as error:
        raise GeofixError(f"spread.address: no machine is known as '{host}' ({error.strerror})") from error
    except OSError as error:
        reason = error.strerror or "no answer in time"
        raise GeofixError(
            f"spread.address: nothing answers at '{address}' ({reason}): start the cluster there "
            "(ray start --head), give its right address, or set spread.address=null to use this machine"
        ) from error


def _is_head(address: str, host: str, port: int) -> None:
    """Ask what Ray's own client asks first, but with a deadline."""
    if os.environ.get("RAY_USE_TLS", "0") != "0":
        return  # only Ray itself knows which certificates to use
    with grpc.insecure_channel(f"{host}:{port}", [("grpc.enable_http_proxy", 0)]) as channel:
        ask = channel.unary_unary("/ray.rpc.NodeInfoGcsService/GetClusterId")
        try:
            ask(b"", timeout=ANSWER_S, wait_for_ready=True)
        except grpc.RpcError as error:
            if error.code() == grpc.StatusCode.UNAUTHENTICATED:
                return  # it is one, and wants the token that Ray sends by itself
            raise GeofixError(
                f"spread.address: what listens at '{address}' is not the head of a Ray cluster "
                f"({error.code().name.lower()}): give the port that `ray start --head` names (6379), or for "
                "its client server ray://HOST:10001"
            ) from error


def _listens(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), CONNECT_S).close()
    except OSError:
        return False
    return True
