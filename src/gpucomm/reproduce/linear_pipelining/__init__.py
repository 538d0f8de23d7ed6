"""Linear Pipelining, arXiv:1611.04255: a chain of ranks through which the message flows in segments."""

from __future__ import annotations

from gpucomm.reproduce.claims import Claim, Paper
from gpucomm.reproduce.linear_pipelining import exchange, fusing, invariance, segments, training

__all__ = ["PAPER"]

PAPER = Paper(
    name="linear-pipelining",
    title="Linear Pipelining",
    source="arXiv:1611.04255",
    claims=(
        Claim(
            "lp_invariant",
            "The time of a broadcast and of a reduce along a pipeline hardly depends on the number of ranks.",
            invariance.lp_invariant,
        ),
        Claim(
            "mst_log_p",
            "The time of the same over a minimum spanning tree grows as log p.",
            invariance.mst_log_p,
        ),
        Claim(
            "lp_vs_be_broadcast",
            "A pipeline broadcasts with up to twice the bandwidth of bidirectional exchange.",
            exchange.lp_vs_be_broadcast,
        ),
        Claim(
            "fused_vs_unfused_chain",
            "Ours: on a chain, an all-reduce whose broadcast starts with the first reduced segment takes "
            "little more than half of the time.",
            fusing.fused_vs_unfused_chain,
        ),
        Claim(
            "fused_vs_ring_chain",
            "Ours: on a chain it is faster than the ring.",
            fusing.fused_vs_ring_chain,
        ),
        Claim(
            "switch_auto_not_fused",
            'Ours: on a switch fusing does not pay, and "auto" does not choose it.',
            fusing.switch_auto_not_fused,
        ),
        Claim(
            "segment_optimum",
            "The time over the number of segments is a U, whose bottom the model finds.",
            segments.segment_optimum,
        ),
        Claim(
            "bsp_sgd_step",
            "Layer by layer under the forward and backward pass, pipelines train faster than trees and "
            "exchanges, to the same losses.",
            training.bsp_sgd_step,
        ),
    ),
)
