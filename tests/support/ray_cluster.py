"""A real Ray on this machine: a head with its dashboard, and nodes that come and go."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tests.support.slurm.layout import free_port
from tests.support.waiting import wait_until

_START_SECONDS = 120.0
# Some ends of Ray wait for ever.
_STOP_SECONDS = 3.0
# On a machine that is busy Ray gives a node up whose agents do not start in time.
_STARTS = 3


def why_no_ray() -> str | None:
    """Why no Ray can be started here, None where it can."""
    if sys.platform != "linux":
        return "Ray is tried on Linux alone"
    spec = importlib.util.find_spec("ray")
    # A folder of that name, as that of the tests of a backend, has no origin.
    is_there = spec is not None and spec.origin is not None
    return None if is_there else "Ray is not installed: pip install 'ray[default]'"


@dataclass
class RayCluster:
    """A head of `cpus`; `start` and `stop` it.

    Each node is a `ray start --block` with its own process group.
    """

    cpus: int = 2
    # Of all nodes: variables, and a folder before the PATH.
    variables: dict[str, str] = field(default_factory=dict)
    path: str = ""
    folder: str = field(default_factory=lambda: tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
    gcs_port: int = field(default_factory=free_port)
    dashboard_port: int = field(default_factory=free_port)
    _nodes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.dashboard_port}"

    def start(self, **resources: float) -> None:
        for _ in range(_STARTS):
            self._start_head(resources)
            head = self._nodes[0]
            wait_until(
                "the dashboard", lambda head=head: self._answers() or head.poll() is not None
            )
            if head.poll() is None:
                return
            self._nodes.clear()
        raise AssertionError(f"the head ended {_STARTS} times while it started: see {self.folder}")

    def _answers(self) -> bool:
        """Its dashboard is up before the head is a node."""
        return (
            bool(self.get("/api/version"))
            and self.get("/api/jobs/") is not None
            and bool(self.alive_nodes())
        )

    def _start_head(self, resources: Mapping[str, float]) -> None:
        self._ray(
            "--head",
            f"--port={self.gcs_port}",
            f"--dashboard-port={self.dashboard_port}",
            "--dashboard-host=127.0.0.1",
            f"--num-cpus={self.cpus}",
            f"--ray-client-server-port={free_port()}",
            f"--resources={json.dumps(resources)}",
        )

    def add_slice(self, kind: str, name: str, workers: int = 2) -> list[int]:
        """The workers of one TPU slice, as Ray names their resources; returns their places, the
        first one's first.
        """
        heads = [{f"TPU-{kind}-head": 1}] + [{}] * (workers - 1)
        return self._add([{name: 1, "TPU": 4, **head} for head in heads])

    def add_node(
        self, variables: Mapping[str, str] = MappingProxyType({}), **resources: float
    ) -> int:
        """One more node, with variables of its own; returns its place, for `kill_node`."""
        [place] = self._add([resources], variables)
        return place

    def _add(
        self,
        nodes: Sequence[Mapping[str, float]],
        variables: Mapping[str, str] = MappingProxyType({}),
    ) -> list[int]:
        """Nodes with these resources, which start at the same time."""
        places: dict[int, int] = {}
        for _ in range(_STARTS):
            missing = [at for at in range(len(nodes)) if at not in places]
            for at in missing:
                words = (
                    f"--address=127.0.0.1:{self.gcs_port}",
                    "--num-cpus=0",
                    f"--resources={json.dumps(nodes[at])}",
                )
                places[at] = self._ray(*words, variables=variables)
            wait_until("the nodes", self._is_whole)
            places = {
                at: place for at, place in places.items() if self._nodes[place].poll() is None
            }
            if len(places) == len(nodes):
                return [places[at] for at in range(len(nodes))]
        raise AssertionError(f"a node ended {_STARTS} times while it started: see {self.folder}")

    def kill_node(self, place: int) -> None:
        """End a node at once, as a preemption does; returns when the head knows."""
        os.killpg(self._nodes[place].pid, signal.SIGKILL)
        self._nodes[place].wait()
        wait_until("the head to notice", self._is_whole)

    def alive_nodes(self) -> list[str]:
        found = self.get("/api/v0/nodes") or {"data": {"result": {"result": []}}}
        return [
            node["node_id"]
            for node in found["data"]["result"]["result"]
            if node["state"] == "ALIVE"
        ]

    def _is_whole(self) -> bool:
        """Whether the head counts exactly the nodes that run: its list is some seconds behind."""
        return len(self.alive_nodes()) == sum(node.poll() is None for node in self._nodes)

    def get(self, path: str) -> Any:
        """The JSON of a path; None where the dashboard does not answer."""
        try:
            with urllib.request.urlopen(f"{self.url}{path}", timeout=10) as answer:
                return json.load(answer)
        except (urllib.error.URLError, OSError, ValueError):
            return None

    def has_ended(self, job_id: str) -> bool:
        job = self.get(f"/api/jobs/{job_id}")
        return job is not None and job["status"] not in ("PENDING", "RUNNING")

    def log(self, job_id: str) -> str:
        """What a job's driver wrote so far, without colours: what is waited for costs no process of
        hpcdash's.
        """
        found = self.get(f"/api/jobs/{job_id}/logs") or {}
        return re.sub(r"\x1b\[[0-9;]*m", "", found.get("logs", ""))

    def stop(self, *, keep_folder: bool = False) -> None:
        """End all nodes, the head last, and remove what they wrote."""
        for nodes in (self._nodes[1:], self._nodes[:1]):
            for node in nodes:
                if node.poll() is None:
                    os.killpg(node.pid, signal.SIGTERM)
            deadline = time.monotonic() + _STOP_SECONDS
            for node in nodes:
                try:
                    node.wait(max(0.0, deadline - time.monotonic()))
                except subprocess.TimeoutExpired:
                    os.killpg(node.pid, signal.SIGKILL)
                    node.wait()
        self._nodes.clear()
        if not keep_folder:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _ray(self, *words: str, variables: Mapping[str, str] = MappingProxyType({})) -> int:
        folder = Path(sys.executable).parent
        program = folder / "ray"
        path = os.pathsep.join(
            filter(None, (self.path, str(folder), os.environ.get("PATH", os.defpath)))
        )
        with Path(self.folder, f"start-{len(self._nodes)}.log").open("wb") as log:
            node = subprocess.Popen(
                (
                    program,
                    "start",
                    "--block",
                    "--disable-usage-stats",
                    # By its address a driver finds the node that it is on.
                    f"--node-ip-address=127.0.0.{len(self._nodes) + 1}",
                    f"--dashboard-agent-listen-port={free_port()}",
                    f"--dashboard-agent-grpc-port={free_port()}",
                    f"--runtime-env-agent-port={free_port()}",
                    # A port that is not given is waited for, and the node ends where its agent
                    # takes long.
                    f"--metrics-export-port={free_port()}",
                    "--min-worker-port=0",
                    "--max-worker-port=0",
                    "--object-store-memory=100000000",
                    # As on machines of their own, where each unpacks what its jobs work in.
                    f"--temp-dir={self.folder}/{len(self._nodes)}",
                    *words,
                ),
                # Jobs run the python of the PATH.
                env={
                    **os.environ,
                    "PATH": path,
                    "PYTHONUNBUFFERED": "1",
                    # Workers that are started before they are needed have no job's environment, and
                    # cost a second each.
                    "RAY_prestart_worker_first_driver": "0",
                    # Ray would let its workers have what other tests leave of the processors.
                    "RAY_worker_niceness": "0",
                    "RAY_agent_register_timeout_ms": str(int(_START_SECONDS * 1000)),
                    **self.variables,
                    **variables,
                },
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._nodes.append(node)
        return len(self._nodes) - 1
