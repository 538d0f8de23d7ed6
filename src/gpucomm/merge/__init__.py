"""Which gradients travel together; one file per policy, one import line here."""

from gpucomm.merge.base import MergePolicy, forms, parse, plan, register
from gpucomm.merge.fixed_size import FixedSize
from gpucomm.merge.one import One
from gpucomm.merge.per_tensor import PerTensor

__all__ = ["FixedSize", "MergePolicy", "One", "PerTensor", "forms", "parse", "plan", "register"]
