"""gpucomm as a backend of torch.distributed: `init_process_group("gpucomm")` after this import."""

from gpucomm.optim.process_group.group import ProcessGroup, register
from gpucomm.optim.process_group.options import Options

__all__ = ["Options", "ProcessGroup"]

register()
