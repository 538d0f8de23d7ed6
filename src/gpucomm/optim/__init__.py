"""Training with PyTorch; the only part of gpucomm, with the c10d transport, that imports torch."""

from gpucomm.optim.distributed import DistributedOptimizer

__all__ = ["DistributedOptimizer"]
