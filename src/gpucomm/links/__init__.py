"""Links as people write them: `switch:1Gbit,latency=0.5ms,overhead=50us`; to compute with, or to emulate."""

from gpucomm.links.host import host_bound, memory_bandwidth
from gpucomm.links.parse import parse_emulated, parse_model, parse_spec
from gpucomm.links.spec import LinkSpec, figures, restricted

__all__ = [
    "LinkSpec",
    "figures",
    "host_bound",
    "memory_bandwidth",
    "parse_emulated",
    "parse_model",
    "parse_spec",
    "restricted",
]
