"""Training with PyTorch; the only part of gpucomm, with the c10d transport, that imports torch."""

from gpucomm.optim.distributed import DistributedOptimizer
from gpucomm.optim.layerwise import LayerwiseBSP

__all__ = ["DistributedOptimizer", "LayerwiseBSP"]
