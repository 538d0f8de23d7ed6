"""Several hosts on this machine: network namespaces, each with its own address, link and /dev/shm."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpucomm.errors import UnavailableError

__all__ = ["Cluster", "Mpi", "cluster", "find_mpi"]

_SCRIPT = str(Path(__file__).parent / "cluster.sh")
_NET = "10.78.0.0/24"
_TOOLS = ("ip", "tc", "unshare", "nsenter")


class Mpi:
    """A launcher of MPI jobs.

    Attributes:
        name: mpich (and its kin) or openmpi.
        mpiexec: its path.
        python: the interpreter of the ranks, whose mpi4py belongs to it.
    """

    def __init__(self, name: str, mpiexec: str, python: str) -> None:
        self.name, self.mpiexec, self.python = name, mpiexec, python


def find_mpi() -> Mpi:
    """The MPI beside this interpreter, else in the PATH.

    Raises:
        UnavailableError: there is none, or no mpi4py.
    """
    beside = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")])
    mpiexec = shutil.which("mpiexec", path=beside)
    if mpiexec is None or importlib.util.find_spec("mpi4py") is None:
        raise UnavailableError("there is no mpiexec, or no mpi4py: pip install 'gpucomm[mpi]' and an MPI")
    said = subprocess.run([mpiexec, "--version"], capture_output=True, text=True, timeout=30).stdout
    name = "openmpi" if "open mpi" in said.lower() or "open-mpi" in said.lower() else "mpich"
    return Mpi(name, mpiexec, sys.executable)


class Cluster:
    """The hosts, while they are up: host 1, 2, ...

    Attributes:
        folder: their state.
        agent: what a launcher takes in place of ssh.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._env = {**os.environ, "CLUSTER": str(folder)}
        self.agent = str(folder / "agent")

    def call(self, *words: str) -> str:
        """Runs a command of the script; its output.

        Raises:
            UnavailableError: it failed; the text is what it said.
        """
        done = subprocess.run(
            ["bash", _SCRIPT, *words], env=self._env, capture_output=True, text=True, timeout=30
        )
        if done.returncode:
            raise UnavailableError(done.stderr.strip() or f"cluster.sh {' '.join(words)} failed")
        return done.stdout

    def on(self, host: int, *command: str) -> list[str]:
        """What runs a command on a host."""
        return ["env", f"CLUSTER={self._env['CLUSTER']}", "bash", _SCRIPT, "exec", str(host), *command]

    def mpiexec(self, mpi: Mpi, hosts: int, each: int) -> list[str]:
        """What starts ranks on the first hosts, so many on each; the program and its arguments follow."""
        names = ",".join(f"host{i + 1}:{each}" for i in range(hosts))
        command = [mpi.mpiexec, "-n", str(hosts * each)]
        if mpi.name == "mpich":
            told = ["MPIR_CVAR_CH4_NETMOD=ofi", "FI_PROVIDER=tcp", "FI_TCP_IFACE=eth0"]
            command += ["-launcher", "rsh", "-launcher-exec", self.agent, "-iface", "eth0", "-hosts", names]
            return self.on(1, "env", *told, *command, mpi.python)
        # As variables, for Open MPI 4 and 5 name them differently and each passes over the other's.
        told = [f"OMPI_MCA_plm_rsh_agent={self.agent}", f"PRTE_MCA_plm_ssh_agent={self.agent}"]
        told += [f"OMPI_MCA_oob_tcp_if_include={_NET}", f"PRTE_MCA_prte_if_include={_NET}"]
        command += ["--host", names, "--map-by", "slot:OVERSUBSCRIBE", "--bind-to", "none"]
        for name, value in (("pml", "ob1"), ("btl", "self,vader,tcp"), ("btl_tcp_if_include", _NET)):
            command += ["--mca", name, value]
        return self.on(1, "env", *told, *command, mpi.python)


@contextmanager
def cluster(hosts: int, rate: str) -> Iterator[Cluster]:
    """Brings hosts up, and takes them down again.

    Args:
        hosts: how many.
        rate: of every link, both ways, as tc takes it: 1gbit.

    Raises:
        UnavailableError: not root, a tool is missing, or the kernel has no such namespaces.
    """
    if os.geteuid() != 0:
        raise UnavailableError("network namespaces need root")
    if missing := [tool for tool in _TOOLS if not shutil.which(tool)]:
        raise UnavailableError(f"not installed: {', '.join(missing)}")
    try:
        folder = Path(tempfile.mkdtemp(prefix="gpucomm-", dir="/run"))  # names the namespaces, too
    except OSError as error:
        raise UnavailableError(f"no folder for the state of the hosts: {error}") from error
    made = Cluster(folder)
    try:
        try:
            made.call("up", str(hosts), rate)
        except (UnavailableError, subprocess.TimeoutExpired) as error:
            raise UnavailableError(f"no network namespaces here: {error}") from error
        yield made
    finally:
        made.call("down")
        folder.rmdir()
