"""Machines that Ray leads: a cluster of its own on this machine, or one that is there already.

Ray runs the code of anyone who can reach it: a cluster is inside the circle of those trusted with private records. A
cluster that is started here asks for a random token of 256 bits, serves no page, reports no usage and ends with the
block.
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, final

from dprecipe.faults import UsageFault
from dprecipe.libraries import check_libraries, importing_libraries

LOCAL = "local"
"""The address that stands for a cluster of its own."""
AUTO = "auto"
"""The address that stands for a cluster that runs on this machine already."""
REACH_SECONDS = 5.0
SHORT = "/tmp"
"""The folder of Ray's own files: its sockets have long names, and the path of a socket has at most 107 bytes."""
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "1",
    # What workers and Ray's own processes say, a lost worker among it, is printed nowhere: it tells of secret runs.
    "RAY_DEDUP_LOGS": "1",
    "RAY_DEDUP_LOGS_SKIP_REGEX": "(?s).*",
}
"""Settings that Ray reads from the environment when it is imported."""
REMEDY = "start one with `ray start --head`, or write --ray without an address: a cluster then starts by itself"
Task = Any
"""A task of Ray's, whose end is waited for."""


def check_address(address: str) -> None:
    """Checks that Ray is installed, and that there is something at the address.

    Raises:
        UsageFault: it is not; nothing was spent.
    """
    check_libraries("--ray", "ray")
    if address in (LOCAL, AUTO):
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or "://" in address:
        raise UsageFault(
            f"--ray {address}: expected HOST:PORT of a cluster's head", "write for example --ray 10.0.0.1:6379"
        )
    try:
        socket.create_connection((host, int(port)), REACH_SECONDS).close()
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageFault(f"nothing was spent: no cluster is reachable at {address} ({reason})", REMEDY) from None


@final
class Cluster:
    """Runs functions on other machines, each call as one task, which Ray itself never tries twice."""

    def __init__(self, ray: Any, gpus: int) -> None:
        """`gpus`: of each task. A task without one sees none, even on a machine that has some."""
        self._ray, self._gpus = ray, gpus
        self._options = {"num_cpus": 1, "num_gpus": gpus, "max_retries": 0, "retry_exceptions": False}

    @property
    def nodes(self) -> list[str]:
        """Returns the machines that take tasks."""
        needs = {"CPU": 1, "GPU": self._gpus}
        alive = [node for node in self._ray.nodes() if node["Alive"]]
        able = [node for node in alive if all(node["Resources"].get(key, 0) >= count for key, count in needs.items())]
        return [str(node["NodeID"]) for node in able]

    @property
    def cpus(self) -> int:
        """Returns the number of tasks that it can work on at once, going by its processors; at least one."""
        return max(1, int(self._ray.cluster_resources().get("CPU", 0)))

    def share(self, value: object) -> object:
        """Stores a value that many tasks take as an argument: it is sent to each machine once."""
        return self._ray.put(value)

    def submit(self, function: Callable[..., bytes], *arguments: object, node: str | None = None) -> Task:
        """Starts a task, on any machine or on this one."""
        options = dict(self._options)
        if node is not None:
            with importing_libraries("--ray"):
                from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

            options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(node, soft=False)
        return self._ray.remote(function).options(**options).remote(*arguments)

    def wait(self, tasks: Sequence[Task], seconds: float) -> list[Task]:
        """Returns the tasks that have ended: at least one, or after this many seconds any number."""
        done, _ = self._ray.wait(list(tasks), num_returns=1, timeout=seconds)
        return list(done)

    def fetch(self, task: Task) -> object | None:
        """Returns the result of an ended task; None if it was lost with its process or its machine."""
        try:
            result: object = self._ray.get(task)
        except (self._ray.exceptions.RayError, OSError):
            return None
        return result

    def cancel(self, tasks: Sequence[Task]) -> None:
        """Ends tasks at once; they return nothing."""
        for task in tasks:
            self._ray.cancel(task, force=True)


@cache
def _draw_token() -> str:
    """Returns a token for this process: Ray reads it once."""
    return secrets.token_hex(32)


@contextmanager
def open_cluster(address: str, cpus: int | None, gpus: int) -> Iterator[Cluster]:
    """A cluster for as long as the block lasts. `cpus`: of one that starts here; all where None. `gpus`: of each task.

    Raises:
        UsageFault: see `check_address`; or Ray can't start or join; or no machine could take a task, which would wait
            for ever.
    """
    check_address(address)
    local = address == LOCAL
    folder = tempfile.mkdtemp(prefix="dprecipe-ray-", dir=SHORT if os.path.isdir(SHORT) else None) if local else None
    if folder is not None:
        os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=_draw_token())
    os.environ.update(QUIET)
    terms: dict[str, Any] = {"configure_logging": False, "log_to_driver": False, "logging_level": logging.ERROR}
    if folder is not None:
        # Ray opens its own folder to everybody, so it is in one that is not.
        terms |= {"include_dashboard": False, "num_cpus": cpus or os.cpu_count() or 1, "_temp_dir": f"{folder}/r"}
    try:
        with importing_libraries("--ray"):
            import ray

        try:
            ray.init(address=address, **terms)
        except Exception as error:  # of whatever kind: nothing has begun
            what = "Ray can't start here" if local else f"no cluster is reachable at {address}"
            text = " ".join(str(error).split())[:300]
            raise UsageFault(f"nothing was spent: {what} ({text or type(error).__name__})", REMEDY) from None
        cluster = Cluster(ray, gpus)
        if not cluster.nodes:
            what = "GPU that a task needs" if gpus else "processor"
            raise UsageFault(
                f"nothing was spent: no machine of the cluster has a {what}",
                "start machines that have one, or set runtime.device to cpu",
            )
        yield cluster
    finally:
        if "ray" in locals():
            ray.shutdown()
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
