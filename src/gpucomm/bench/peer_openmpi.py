"""Open MPI through mpi4py: its default, and tuned as far as parameters alone do it."""

from __future__ import annotations

from gpucomm.bench.mpi import HUGE_PAGES, Variant, check

__all__ = ["MARK", "VARIANTS", "check"]

MARK = "Open MPI"
_SEGMENTED_RING = (
    *("--mca", "coll", "^sm,han"),
    *("--mca", "coll_tuned_use_dynamic_rules", "1"),
    *("--mca", "coll_tuned_allreduce_algorithm", "5"),
    *("--mca", "coll_tuned_allreduce_algorithm_segmentsize", "1048576"),
)
VARIANTS = {
    "default": Variant(),
    "huge_pages": Variant(environment=HUGE_PAGES),
    "segmented_ring": Variant(_SEGMENTED_RING, collectives=("all_reduce",)),
    "segmented_ring+huge_pages": Variant(_SEGMENTED_RING, HUGE_PAGES, ("all_reduce",)),
}
