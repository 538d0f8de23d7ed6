"""Who a process is in its job, and what all processes of the job must be given alike."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Ranks"]


@dataclass(frozen=True)
class Ranks:
    """Who this process is in its job.

    Attributes:
        rank: from 0 to `world` - 1.
        world: number of ranks of the job.
        job: a key that the ranks of one job share and that no other job on the node has.
        source: what told: gpucomm, torchrun, environment, openmpi, mpich, slurm, alone, store (a group of
            torch.distributed), or a word for what a communicator was split from.
        links: the links to emulate, in the canonical text of their description; "": none.
        transport: shm, mpi or c10d.
        nodes: the node of each rank where GPUCOMM_NODES says so, else empty: as they are found.
        deterministic: whether the communicator shall measure and learn nothing.
    """

    rank: int
    world: int
    job: str
    source: str
    links: str = ""
    transport: str = "shm"
    nodes: tuple[int, ...] = ()
    deterministic: bool = False

    @property
    def settings(self) -> list[str]:
        """What all ranks must be given alike, in words that stand behind "was given"."""
        return [
            f"the emulated links {self.links or 'none'}",
            f"the nodes {','.join(map(str, self.nodes)) or 'none'}",
            f"deterministic={self.deterministic}",
        ]
