"""Reaching a cluster, and what one of its own shows to others."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dprecipe import libraries
from dprecipe.faults import UsageFault
from dprecipe.training.processes import cluster


def test_without_ray_the_remedy_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, "find_spec", lambda name: None)
    with pytest.raises(UsageFault, match="not installed") as caught:
        cluster.check_address("local")
    assert caught.value.remedy == "pip install 'dprecipe[ray]'"
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("address", ["", "head", "recipe.yaml", "ray://head:10001", "head:", ":6379", "head:x"])
def test_an_address_is_a_host_and_a_port(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, "find_spec", lambda name: object())
    with pytest.raises(UsageFault, match="expected HOST:PORT"):
        cluster.check_address(address)


def test_an_address_where_nobody_listens_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, "find_spec", lambda name: object())
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        with pytest.raises(UsageFault, match="nothing was spent: no cluster is reachable"):
            cluster.check_address(f"127.0.0.1:{port}")
        listener.listen()
        cluster.check_address(f"127.0.0.1:{port}")
    with pytest.raises(UsageFault, match="no cluster is reachable"):
        cluster.check_address("127.0.0.1:99999")


class Ray:
    """A cluster of a machine with a GPU, one without, and one that is gone; notes what tasks are given."""

    def __init__(self) -> None:
        self.options: list[dict[str, Any]] = []

    def nodes(self) -> list[dict[str, Any]]:
        both, one = {"CPU": 4.0, "GPU": 1.0}, {"CPU": 4.0}
        return [
            {"NodeID": name, "Alive": name != "gone", "Resources": resources}
            for name, resources in (("gpu", both), ("plain", one), ("gone", both))
        ]

    def remote(self, function: object) -> Any:
        call = SimpleNamespace(remote=lambda *arguments: arguments)
        return SimpleNamespace(options=lambda **options: self.options.append(options) or call)


def test_a_machine_is_asked_what_it_is_with_the_gpu_that_its_tasks_will_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray hides all GPUs from a task that is given none, so it could not tell; and machines without are not asked."""
    strategies = SimpleNamespace(NodeAffinitySchedulingStrategy=lambda node, soft: (node, soft))
    monkeypatch.setitem(sys.modules, "ray.util.scheduling_strategies", cast(Any, strategies))
    for gpus, nodes in ((0, ["gpu", "plain"]), (1, ["gpu"]), (2, [])):
        ray = Ray()
        machines = cluster.Cluster(ray, gpus)
        assert machines.nodes == nodes
        machines.submit(lambda: b"", node="gpu")
        assert ray.options[0]["num_gpus"] == gpus
        assert ray.options[0]["scheduling_strategy"] == ("gpu", False)


LEAD = """
import os, stat, subprocess, sys
from dprecipe.training.processes.cluster import open_cluster

with open_cluster("local", 1, 0) as machines:
    import ray

    folder = os.path.dirname(ray._private.worker.global_worker.node.get_temp_dir_path())
    print(stat.S_IMODE(os.stat(folder).st_mode) == 0o700)
    task = machines.submit(lambda: bytes(3))
    print(machines.wait([task], 60) == [task] and machines.fetch(task) == bytes(3))
    lost = machines.submit(lambda: os._exit(1))
    print(machines.wait([lost], 60) == [lost] and machines.fetch(lost) is None)
    address = ray.get_runtime_context().gcs_address
    without = {key: value for key, value in os.environ.items() if not key.startswith("RAY_AUTH")}
    join = "import sys, ray; ray.init(address=sys.argv[1], log_to_driver=False); print('inside')"
    stranger = subprocess.run([sys.executable, "-c", join, address], capture_output=True, text=True, env=without)
    print(stranger.returncode != 0 and "inside" not in stranger.stdout)
print(not os.path.exists(folder))
"""


@pytest.mark.slow
def test_a_cluster_of_its_own_keeps_strangers_out_and_leaves_nothing() -> None:
    """Its folder is its owner's alone, who has no token gets nowhere, no page is served, and a task whose process dies
    is lost and not tried again."""
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'dprecipe[ray]'")
    with socket.socket() as other:  # so that a page of somebody else's is not taken for ours
        busy = other.connect_ex(("127.0.0.1", 8265)) == 0
    lead = subprocess.Popen([sys.executable, "-c", LEAD], stdout=subprocess.PIPE, text=True, env=dict(os.environ))
    assert lead.stdout is not None
    lines = [lead.stdout.readline().strip()]
    with socket.socket() as page:
        assert busy or page.connect_ex(("127.0.0.1", 8265)) != 0
    lines += lead.stdout.read().split()
    lead.stdout.close()
    assert lead.wait(60) == 0
    assert lines == ["True"] * 5
