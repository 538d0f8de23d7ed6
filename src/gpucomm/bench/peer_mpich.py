"""MPICH through mpi4py: its default, and with a malloc that keeps its memory, on huge pages."""

from __future__ import annotations

from gpucomm.bench.mpi import HUGE_PAGES, Variant, check

__all__ = ["MARK", "VARIANTS", "check"]

MARK = "MPICH"
VARIANTS = {"default": Variant(), "huge_pages": Variant(environment=HUGE_PAGES)}
