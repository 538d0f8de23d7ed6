"""Several hosts: network namespaces of this machine, each with its own address, link and /dev/shm."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import jobs
import pytest

pytestmark = pytest.mark.processes

SCRIPT = str(Path(__file__).parent / "cluster.sh")
HOSTS = 4
NET = "10.78.0.0/24"


class Cluster:
    """The hosts, while they are up."""

    def __init__(self, folder: Path) -> None:
        self._env = {**os.environ, "CLUSTER": str(folder)}
        self.agent = str(folder / "agent")

    def call(self, *words: str) -> str:
        done = subprocess.run([SCRIPT, *words], env=self._env, capture_output=True, text=True, timeout=30)
        if done.returncode:
            raise RuntimeError(done.stderr)
        return done.stdout

    def on(self, host: int, *command: str) -> list[str]:
        return ["env", f"CLUSTER={self._env['CLUSTER']}", SCRIPT, "exec", str(host), *command]

    def mpiexec(self, launcher: jobs.Launcher, hosts: int, each: int) -> list[str]:
        """What starts ranks on the first hosts, so many on each."""
        names = ",".join(f"host{i + 1}:{each}" for i in range(hosts))
        command = [str(Path(launcher.python).parent / "mpiexec"), "-n", str(hosts * each)]
        if launcher.name == "mpich":
            told = ["MPIR_CVAR_CH4_NETMOD=ofi", "FI_PROVIDER=tcp", "FI_TCP_IFACE=eth0"]
            command += ["-launcher", "rsh", "-launcher-exec", self.agent, "-iface", "eth0", "-hosts", names]
            return self.on(1, "env", *told, *command, launcher.python)
        command += ["--host", names, "--map-by", "slot:OVERSUBSCRIBE", "--bind-to", "none"]
        command += ["--prtemca", "plm_ssh_agent", self.agent, "--prtemca", "prte_if_include", NET]
        command += ["--mca", "pml", "ob1", "--mca", "btl", "self,sm,tcp", "--mca", "btl_tcp_if_include", NET]
        return self.on(1, *command, launcher.python)


@pytest.fixture(scope="module")
def cluster():
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    if missing := [tool for tool in ("ip", "tc", "unshare", "nsenter") if not shutil.which(tool)]:
        pytest.skip(f"not installed: {', '.join(missing)}")
    # not below pytest's folder: its name is part of the namespaces' names
    folder = Path("/run") / f"gpucomm-test-{os.getpid()}"
    cluster = Cluster(folder)
    try:
        try:
            cluster.call("up", str(HOSTS), "1gbit")
        except RuntimeError as error:
            pytest.skip(f"no network namespaces here: {error}")
        yield cluster
    finally:
        cluster.call("down")
        folder.rmdir()


def run(cluster, name, hosts, each, folder, *checks):
    command = [*cluster.mpiexec(jobs.find(name), hosts, each), jobs.PROGRAM, str(folder), *checks]
    code, output, seconds = jobs.wait_for(command, jobs.environment(), 60)
    return jobs.Ended(code, output, jobs.reports(folder, hosts * each), seconds)


CHECKS = ["contract", "same_bits", "point_to_point", "groups", "lists_and_objects", "asynchronous"]


@pytest.mark.parametrize("name", ["mpich", "openmpi"])
@pytest.mark.parametrize(("hosts", "each"), [(4, 1), (2, 2)])
def test_all_is_found_and_right(cluster, name, hosts, each, tmp_path):
    """Nothing is told: the launcher says that there are several nodes, and the ranks find out which."""
    ended = run(cluster, name, hosts, each, tmp_path, "place", *CHECKS, "traffic")
    assert ended.code == 0, ended.output
    nodes = [rank // each for rank in range(hosts * each)]
    for report in ended.reports:
        transport, found, shm = report["place"]
        assert (transport, found) == ("mpi", nodes)
        assert not any("gpucomm" in file for file in shm)
        assert [report[check] for check in CHECKS] == [[]] * len(CHECKS)
        for algorithm, (sent, received) in report["traffic"].items():
            # Headers; the interface counts those of packets of up to 64 KiB, which are cut later.
            assert 1 < sent < 1.1 and 1 < received < 1.1, (algorithm, report["traffic"])
    for host in range(1, hosts + 1):
        assert cluster.call("exec", str(host), "ls", "/dev/shm") == ""


def test_torchrun(cluster, tmp_path):
    options = [
        "--nnodes",
        "2",
        "--nproc-per-node",
        "2",
        "--master-addr",
        "10.78.0.1",
        "--master-port",
        "29511",
    ]
    python = jobs.find("torchrun").python
    module = ["-m", "torch.distributed.run", *options]
    agents = [
        subprocess.Popen(
            cluster.on(
                host + 1,
                python,
                *module,
                "--node-rank",
                str(host),
                jobs.PROGRAM,
                str(tmp_path),
                "place",
                *CHECKS,
            ),
            env=jobs.environment(GLOO_SOCKET_IFNAME="eth0"),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for host in range(2)
    ]
    outputs = [agent.communicate(timeout=100)[0] for agent in agents]
    assert [agent.returncode for agent in agents] == [0, 0], outputs
    for report in jobs.reports(tmp_path, 4):
        assert report["place"][:2] == ["c10d", [0, 0, 1, 1]]
        assert [report[check] for check in CHECKS] == [[]] * len(CHECKS)


def test_a_host_that_drops_off_is_a_sentence_on_every_rank(cluster, tmp_path):
    launcher = jobs.find("mpich")
    command = [*cluster.mpiexec(launcher, 4, 1), jobs.PROGRAM, str(tmp_path), "cut_off"]
    job = subprocess.Popen(command, env=jobs.environment(), stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        for rank, report in enumerate(all_reports(tmp_path, 4, 30)):
            kind, text, _ = report["cut_off"]
            assert kind in ("CollectiveTimeoutError", "PeerLostError"), (rank, kind, text)
            assert re.search(r"rank \d of 4|rank \d reports", text), text
    finally:
        cluster.call("exec", "4", "ip", "link", "set", "eth0", "up")
        job.terminate()
        job.wait(20)


def all_reports(folder: Path, ranks: int, timeout: float) -> Sequence[dict[str, list[str]]]:
    """The ranks' reports once all have written them: MPI itself may not end any more."""
    deadline = time.monotonic() + timeout
    while not all(jobs.reports(folder, ranks)) and time.monotonic() < deadline:
        time.sleep(0.1)
    found = jobs.reports(folder, ranks)
    assert all(found), found
    return found
