"""gpucomm.empty asks first what the machine and the cgroups of a container leave, as the kernel tells."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_heap_faults import run

from gpucomm import _core

GIB = 1 << 30
ENOUGH = 100 * GIB
MEMINFO = (
    "MemTotal: 67108864 kB\nMemFree: 1024 kB\nMemAvailable: 50331648 kB\nSwapTotal: 0 kB\nSwapFree: {} kB\n"
)
V1_NAMES = {"most": "limit_in_bytes", "used": "usage_in_bytes"}
V2_NAMES = {"most": "max", "used": "current"}
V1_MOUNTS = """\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 {seen} /sys/fs/cgroup/cpu rw,relatime shared:7 master:2 - cgroup cgroup rw,cpu
35 31 0:32 {seen} /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory
38 31 0:35 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
"""
V2_MOUNTS = "31 23 0:28 {seen} /sys/fs/cgroup rw,nosuid,relatime - cgroup2 cgroup rw,nsdelegate\n"
V1_CGROUP, V2_CGROUP = "9:name=systemd:/\n4:memory:{path}\n3:cpu:/a\n0::/\n", "0::{path}\n"


class Machine:
    """A root folder with the kernel's files."""

    def __init__(self, root: Path, version: int) -> None:
        self.root, self.version = root, version
        self.folder = root / "sys/fs/cgroup" / ("memory" if version == 1 else "")
        self.write("proc/meminfo", MEMINFO.format(0))
        self.place()

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def place(self, path: str = "/job/rank", seen: str = "/") -> None:
        """Put the process into that cgroup, where the tree is seen from another."""
        mounts, cgroup = (V1_MOUNTS, V1_CGROUP) if self.version == 1 else (V2_MOUNTS, V2_CGROUP)
        self.write("proc/self/mountinfo", mounts.format(seen=seen))
        self.write("proc/self/cgroup", cgroup.format(path=path))

    def limit(self, cgroup: str = "", stat: str = "", **bytes_of: int | str) -> None:
        names = V1_NAMES if self.version == 1 else V2_NAMES
        for name, value in bytes_of.items():
            path = self.folder / cgroup / f"memory.{names.get(name, name.replace('__', '.'))}"
            self.write(str(path.relative_to(self.root)), f"{value}\n")
        self.write(str((self.folder / cgroup / "memory.stat").relative_to(self.root)), stat)

    def room(self, enough: int = ENOUGH) -> tuple[int, str]:
        return _core.memory_room(enough, str(self.root))


@pytest.fixture(params=[1, 2])
def machine(tmp_path: Path, request: pytest.FixtureRequest) -> Machine:
    return Machine(tmp_path, request.param)


def in_stat(version: int, active: int, inactive: int, shmem: int) -> str:
    """As the kernel has it: "cache" or "file" has shared memory too; version 1 has the cgroup's own first."""
    figures = {"cache" if version == 1 else "file": active + inactive + shmem, "shmem": shmem}
    figures |= {"inactive_file": inactive, "active_file": active}
    if version == 1:
        figures = dict.fromkeys(figures, 1) | {f"total_{name}": value for name, value in figures.items()}
    return "".join(f"{name} {value}\n" for name, value in figures.items())


def test_of_a_machine_without_limits(machine: Machine) -> None:
    assert machine.room() == (48 * GIB, "/proc/meminfo")
    machine.write("proc/meminfo", MEMINFO.format(1 << 20))
    assert machine.room() == (49 * GIB, "/proc/meminfo"), "swap space"
    arc = f"13 1 0x01 2 544 1 2\nname type data\nsize 4 {3 * GIB}\nc_min 4 {GIB}\nc_max 4 {4 * GIB}\n"
    machine.write("proc/spl/kstat/zfs/arcstats", arc)
    assert machine.room() == (51 * GIB, "/proc/meminfo"), "ZFS's cache"
    machine.write("proc/spl/kstat/zfs/arcstats", "")
    machine.limit("job/rank", most="max" if machine.version == 2 else (1 << 63) - 4096, used=GIB)
    assert machine.room() == (49 * GIB, "/proc/meminfo")
    assert _core.memory_limit(str(machine.root)) > 1 << 62


@pytest.mark.parametrize("limited", ["job/rank", "job", ""])
def test_of_a_cgroup_and_of_its_parents(machine: Machine, limited: str) -> None:
    folder = f"/sys/fs/cgroup/{'memory/' if machine.version == 1 else ''}{limited}".rstrip("/")
    machine.limit(limited, in_stat(machine.version, 0, 0, 2 * GIB), most=8 * GIB, used=3 * GIB)
    assert machine.room() == (5 * GIB, f"cgroup {folder}")
    assert _core.memory_limit(str(machine.root)) == 8 * GIB


def test_cached_files_count_as_free_and_shared_memory_does_not(machine: Machine) -> None:
    machine.limit("job", in_stat(machine.version, GIB, 2 * GIB, 4 * GIB), most=8 * GIB, used=8 * GIB)
    assert machine.room()[0] == 3 * GIB


def test_swap_space_counts_as_far_as_the_cgroup_may_have_it(machine: Machine) -> None:
    stat = in_stat(machine.version, 0, 0, 0)
    machine.write("proc/meminfo", MEMINFO.format(3 << 20))
    machine.limit("job", stat, most=8 * GIB, used=7 * GIB)
    assert machine.room()[0] == 4 * GIB
    if machine.version == 2:
        machine.limit("job", stat, swap__max=2 * GIB, swap__current=GIB)
    else:  # of memory and swap
        machine.limit("job", stat, memsw__limit_in_bytes=10 * GIB, memsw__usage_in_bytes=8 * GIB)
    assert machine.room()[0] == 2 * GIB


def test_of_a_container_that_sees_its_own_cgroup_only(machine: Machine) -> None:
    stat = in_stat(machine.version, 0, 0, 0)
    machine.limit("", stat, most=GIB, used=0)
    machine.place("/pods/it", "/pods/it")
    assert machine.room()[0] == GIB
    machine.place("/", "/")
    assert machine.room()[0] == GIB
    machine.place("/pods/it", "/pods/i")  # another one's
    assert machine.room()[1] == "/proc/meminfo"


def test_what_cannot_be_read_limits_nothing(machine: Machine) -> None:
    machine.limit("job", "", most=8 * GIB, used="?")
    assert machine.room()[0] == 48 * GIB
    machine.limit("job", "of another kind\n", most=8 * GIB, used=8 * GIB)
    assert machine.room()[0] == 48 * GIB
    for name in ("meminfo", "self/cgroup", "self/mountinfo"):
        (machine.root / "proc" / name).unlink()
        assert machine.room()[0] >= 48 * GIB
    assert machine.room()[0] == 2**64 - 1


FILL = """
    import gpucomm
    comm = gpucomm.init(timeout=20)
    kept = []
    try:
        while {nbytes} * len(kept) < {most}:
            kept.append(gpucomm.empty({nbytes}, "uint8"))
            kept[-1][::4096] = 1
    except gpucomm.errors.UnavailableError as error:
        print(error)
    comm.barrier()
"""


@pytest.mark.processes
def test_a_machine_without_room_refuses(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text(MEMINFO.format(0).replace("50331648", str(64 << 10)))
    said = f"mount --bind {tmp_path}/meminfo /proc/meminfo"
    out = run(FILL.format(nbytes=64 << 20, most=64 << 20), before=said)
    assert "the machine has no 67108864 bytes of shared memory more (/proc/meminfo leaves" in out
    assert run(FILL.format(nbytes=60 << 20, most=60 << 20), before=said) == "", "what there is was refused"


@pytest.fixture
def small_cgroup() -> Iterator[Path]:
    """A cgroup of at most 160 MiB, and no swap space."""
    mib = 160
    for parent, most, swap, swap_bytes in (
        ("/sys/fs/cgroup/memory", "limit_in_bytes", "memsw.limit_in_bytes", mib << 20),
        ("/sys/fs/cgroup", "max", "swap.max", 0),
    ):
        folder = Path(parent) / f"gpucomm_test_{os.getpid()}"
        with contextlib.suppress(OSError):
            folder.mkdir()
            try:
                (folder / f"memory.{most}").write_text(str(mib << 20))
                with contextlib.suppress(OSError):  # there may be none
                    (folder / f"memory.{swap}").write_text(str(swap_bytes))
                yield folder
                return
            finally:
                folder.rmdir()
    pytest.skip("no cgroup with a limit of memory may be made here")


@pytest.mark.processes
@pytest.mark.parametrize("nbytes", [100 << 10, 3 << 20, 100 << 20])
def test_a_full_container_refuses_and_nobody_is_killed(small_cgroup: Path, nbytes: int) -> None:
    program = [sys.executable, "-c", textwrap.dedent(FILL.format(nbytes=nbytes, most=100 << 20))]
    command = [sys.executable, "-m", "gpucomm", "run", "-n", "2", "--no-python", *program]
    enter = f'echo $$ > {small_cgroup}/cgroup.procs && exec "$@"'
    done = subprocess.run(
        ["sh", "-c", enter, "sh", *command], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    said = f"bytes of shared memory more (cgroup {small_cgroup} leaves"
    assert f"the machine has no {-(-nbytes // 4096) * 4096} {said}" in done.stdout
