"""FSDP2 (`torch.distributed.fsdp.fully_shard`) over gpucomm: coded all-gathers and reduce-scatters."""

from gpucomm.optim.fsdp.handle import Handle
from gpucomm.optim.fsdp.wiring import use

__all__ = ["Handle", "use"]
