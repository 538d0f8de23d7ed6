"""Training with PyTorch; elsewhere torch is imported late, where an array or a group is its."""

from gpucomm.optim.distributed import DistributedOptimizer
from gpucomm.optim.layerwise import LayerwiseBSP

__all__ = ["DistributedOptimizer", "LayerwiseBSP"]
