"""Joining a running Ray cluster. Its address is checked first: Ray itself would wait for minutes at a wrong one."""

import logging
import os
import socket
import warnings
from urllib.parse import urlsplit

import ray
from ray.job_config import JobConfig

from schemas.errors import GeofixError
from schemas.settings.endpoint import is_loopback_host
from tasks.runtime.ray_private import DriverJobConfig, cluster_id_error, listen_on_loopback, replaced_loopback

CONNECT_S = 10.0
ANSWER_S = 30.0
CLIENT = "ray://"


def join_cluster(address: str) -> None:
    """Make this process a driver of the cluster at host:port (a node must run here) or ray://host:port."""
    host, port = split_address(address)
    _reachable(address, host, port)
    if not address.startswith(CLIENT):
        if is_loopback_host(host) and not _listens(replaced_loopback(host), port):
            # Ray replaces a loopback address by that of an interface, where a cluster on loopback does not listen.
            listen_on_loopback()
        _is_head(address, host, port)
    try:
        with warnings.catch_warnings(action="ignore"):  # of a connection that times out: the error says it too
            # Behind ray:// the driver is a process of the cluster, with a working directory of its own.
            config = JobConfig() if address.startswith(CLIENT) else DriverJobConfig()
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, job_config=config)
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
    """GeofixError unless a head of a Ray cluster answers there within a deadline."""
    if os.environ.get("RAY_USE_TLS", "0") != "0":
        return  # only Ray itself knows which certificates to use
    code = cluster_id_error(host, port, ANSWER_S)
    if code is not None:
        raise GeofixError(
            f"spread.address: what listens at '{address}' is not the head of a Ray cluster ({code.name.lower()}): "
            "give the port that `ray start --head` names (6379), or for its client server ray://HOST:10001"
        )


def _listens(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), CONNECT_S).close()
    except OSError:
        return False
    return True
