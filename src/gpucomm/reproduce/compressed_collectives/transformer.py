"""A character transformer that learns Python's language reference, sharded by FSDP2 over gpucomm."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention

from gpucomm.comm import Communicator
from gpucomm.optim import fsdp

__all__ = ["Corpus", "Settings", "Training", "Transformer", "join_torch"]

_HELD_OUT = 0.1  # of the text, its end
_HELD_OUT_WINDOWS = 64


@dataclass(frozen=True)
class Settings:
    """What defines a training; equal settings on equal numbers of ranks give equal batches.

    Attributes:
        all_gather: codec of the parameters, "dense" for none.
        reduce_scatter: codec of the gradients, "dense" for none.
        algorithm: of both collectives.
        batch: windows a step, of each rank.
        context: characters a window.
        rate: of AdamW.
    """

    all_gather: str = "dense"
    reduce_scatter: str = "dense"
    algorithm: str = "auto"
    width: int = 64
    depth: int = 3
    heads: int = 4
    context: int = 64
    batch: int = 4
    rate: float = 3e-3
    seed: int = 0


class Corpus:
    """The text of `pydoc_data.topics`, which comes with Python: about 465 thousand characters.

    Args:
        context: characters a window.

    Attributes:
        symbols: how many different characters it has.
        train: numbers of characters, shape (n,), int64.
        held_out: the same of its end.
    """

    def __init__(self, context: int) -> None:
        from pydoc_data.topics import topics

        text = "\n".join(topics[name] for name in sorted(topics))
        alphabet = {character: number for number, character in enumerate(sorted(set(text)))}
        numbers = torch.tensor([alphabet[character] for character in text])
        border = int(len(numbers) * (1 - _HELD_OUT))
        self.symbols, self._context = len(alphabet), context
        self.train, self.held_out = numbers[:border], numbers[border:]

    def batch(self, count: int, seed: tuple[int, ...], part: torch.Tensor) -> tuple[Any, Any]:
        """Returns random windows and the characters that follow, each of shape (count, context)."""
        begins = np.random.default_rng(seed).integers(0, len(part) - self._context, count).tolist()
        windows = torch.stack([part[begin : begin + self._context + 1] for begin in begins])
        return windows[:, :-1], windows[:, 1:]


class _Block(nn.Module):  # type: ignore[misc]
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mixing = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attend, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Any) -> Any:
        batch, length, width = x.shape
        parts = self.attend(self.before_attention(x)).view(batch, length, 3, self.heads, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        seen = scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.project(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.narrow(gelu(self.widen(self.before_mixing(x))))


class Transformer(nn.Module):  # type: ignore[misc]
    """Numbers of characters and of those that follow, shape (batch, length), to the loss in nats."""

    def __init__(self, symbols: int, settings: Settings) -> None:
        super().__init__()
        width = settings.width
        self.embed, self.place = nn.Embedding(symbols, width), nn.Embedding(settings.context, width)
        self.blocks = nn.ModuleList(_Block(width, settings.heads) for _ in range(settings.depth))
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, symbols)

    def forward(self, inputs: Any, targets: Any) -> Any:
        """See the class."""
        x = self.embed(inputs) + self.place.weight[: inputs.shape[1]]
        for block in self.blocks:
            x = block(x)
        return cross_entropy(self.out(self.norm(x)).flatten(0, 1), targets.flatten())

    def shard(self, mesh: Any) -> None:
        """Shards every block, and the rest; while a block computes, the next one is gathered."""
        for block in self.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(self, mesh=mesh)
        chain: list[Any] = [self, *self.blocks]
        for module, following in itertools.pairwise(chain):
            module.set_modules_to_forward_prefetch([following])


class Training:
    """One rank's model, data and clock.

    Args:
        comm: the ranks.
        settings: the same on all ranks.
    """

    def __init__(self, comm: Communicator, settings: Settings) -> None:
        join_torch(comm)
        torch.set_num_threads(1)  # the ranks share the cores
        self.comm, self.settings = comm, settings
        self.corpus = Corpus(settings.context)
        with torch.random.fork_rng():
            torch.manual_seed(settings.seed)
            self.model = Transformer(self.corpus.symbols, settings)
        self.model.shard(init_device_mesh("cpu", (comm.world,)))
        ways = (settings.all_gather, settings.reduce_scatter)
        self.handle = fsdp.use(self.model, comm, *ways, algorithm=settings.algorithm)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), settings.rate)
        self.step_s: list[float] = []

    def step(self) -> float:
        """Trains on one batch; returns this rank's loss, in nats."""
        seed = (self.settings.seed, len(self.step_s), self.comm.rank)
        begin = perf_counter()
        loss = self.model(*self.corpus.batch(self.settings.batch, seed, self.corpus.train))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.step_s.append(perf_counter() - begin)
        return float(loss.item())

    def report(self) -> dict[str, float]:
        """Tells what the steps until now were like.

        Returns:
            step_s, the median; communicating, the share of all steps in which this rank waited for others;
            bytes_per_step, sent by this rank.
        """
        accounts = self.handle.stats().values()
        return {
            "step_s": median(self.step_s),
            "communicating": sum(account["exposed_s"] for account in accounts) / sum(self.step_s),
            "bytes_per_step": sum(account["bytes_sent"] for account in accounts) / len(self.step_s),
        }

    def held_out_loss(self) -> float:
        """Returns the loss on text that was not learnt, in nats; the same windows whatever the settings."""
        mine = self.corpus.batch(
            _HELD_OUT_WINDOWS // self.comm.world, (self.comm.rank,), self.corpus.held_out
        )
        with torch.no_grad():
            loss = self.model(*mine).item()
        return float(self.comm.all_reduce(np.array([loss]), op="mean")[0])


def join_torch(comm: Communicator) -> None:
    """Makes torch's default group of the ranks of a communicator on this machine, unless there is one."""
    if dist.is_initialized():
        return
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) if comm.rank == 0 else None
    port = comm.broadcast_object(store.port if store else None)
    store = store or dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group("gloo", store=store, rank=comm.rank, world_size=comm.world)
