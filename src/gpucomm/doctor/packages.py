"""What `gpucomm doctor` says of transports, algorithms and the packages that connect nodes."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import metadata

from gpucomm import _core
from gpucomm.doctor.finding import Finding, ask, find, last_line

__all__ = ["LOOKS"]


def _transports(name: str) -> Iterator[Finding]:
    modules = {"c10d": "torch", "mpi": "mpi4py"}
    for entry, about in sorted(_core.transports().items()):
        on = entry not in modules or find(modules[entry]) is not None
        yield Finding(f"{name} {entry}", on, about["summary"] + ("" if on else f"; needs {about['needs']}"))


def _algorithms(name: str) -> Iterator[Finding]:
    for entry, about in sorted(_core.algorithms().items()):
        yield Finding(f"{name} {entry}", True, str(about["summary"]))


# MPI is loaded but not initialised, and not in this process.
_ABOUT_MPI = """
import mpi4py
mpi4py.rc.initialize = mpi4py.rc.finalize = False
from mpi4py import MPI
print(mpi4py.__version__, MPI.Get_library_version().strip().split(chr(10))[0].split(",")[0], sep=chr(10))
print(mpi4py.rc.thread_level)
"""


def _mpi(name: str) -> Iterator[Finding]:
    if find("mpi4py") is None:
        yield Finding(
            name, False, "mpi4py is not installed: pip install 'gpucomm[mpi]', with an MPI on the machine"
        )
        return
    done = ask(_ABOUT_MPI)
    if done.returncode:
        why = last_line(done.stderr, done.returncode)
        yield Finding(name, False, f"mpi4py does not load an MPI: {why}")
        return
    version, library, level = done.stdout.splitlines()
    on = level == "multiple"
    needed = "" if on else ", but gpucomm needs multiple"
    what = f"mpi4py {version} with {' '.join(library.split())}, asks for thread level {level}{needed}"
    yield Finding(name, on, f"{what}; connects nodes under mpirun and srun")


def _torch_distributed(name: str) -> Iterator[Finding]:
    for finding in _package("torch"):
        use = "; its Gloo connects nodes under torchrun" if finding.on else ""
        yield Finding(name, finding.on, finding.why + use)


def _package(name: str) -> Iterator[Finding]:
    module, advice = _PACKAGES[name]
    if find(module) is None:
        yield Finding(name, False, f"{module} is not installed: {advice}")
        return
    try:
        yield Finding(name, True, f"{module} {metadata.version(module)}")
    except metadata.PackageNotFoundError:
        yield Finding(name, True, f"{module}, of unknown version")


_PACKAGES = {
    "torch": ("torch", "pip install 'gpucomm[torch]'; gpucomm.optim needs it"),
    "cloudpickle": ("cloudpickle", "pip install 'gpucomm[local]'; gpucomm.local needs it"),
    "matplotlib": ("matplotlib", "pip install 'gpucomm[bench]'; pictures need it"),
    "rich": ("rich", "pip install 'gpucomm[bench]'; `gpucomm bench`, `bench-auto` and `reproduce` need it"),
}

LOOKS = {
    "transport": _transports,
    "algorithm": _algorithms,
    "MPI": _mpi,
    "torch.distributed": _torch_distributed,
    "torch": _package,
    "cloudpickle": _package,
    "matplotlib": _package,
    "rich": _package,
}
