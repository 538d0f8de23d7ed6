"""What the demo promises, checked: a sentence for every promise that does not hold."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from digits.training import Result

ACCURACY_POINTS = 1.0
WEIGHT_DIFFERENCE = 1e-4


def weight_difference(run: Result, reference: Result) -> float:
    """Returns the largest absolute difference between two runs' weights."""
    return float(np.abs(run.weights - reference.weights).max())


def check_ranks(ranks: Sequence[Result]) -> list[str]:
    """Compares the ranks of one run with each other.

    Args:
        ranks: every rank's result.

    Returns:
        What does not hold.
    """
    name = ranks[0].algorithm
    faults = [
        f"{name}: the ranks' weights were not bit-identical after step {run.unlike} (seen by rank {rank})"
        for rank, run in enumerate(ranks)
        if run.unlike >= 0
    ]
    last = [run.weights.tobytes() for run in ranks]
    faults += [
        f"{name}: rank {rank} ended with other weights than rank 0"
        for rank in range(1, len(ranks))
        if last[rank] != last[0]
    ]
    return faults


def check_reference(run: Result, reference: Result) -> list[str]:
    """Compares a run with the training of the same global batches by one process.

    Args:
        run: a rank's result.
        reference: the single process's.

    Returns:
        What does not hold.
    """
    faults = []
    if len(run.losses) != len(reference.losses):
        faults.append(f"{run.algorithm}: {len(run.losses)} steps, the reference has {len(reference.losses)}")
    points = 100 * abs(run.accuracy - reference.accuracy)
    if not points <= ACCURACY_POINTS:
        faults.append(
            f"{run.algorithm}: test accuracy {run.accuracy:.2%} is {points:.2f} points from the reference's "
            f"{reference.accuracy:.2%}, at most {ACCURACY_POINTS:g} are allowed"
        )
    difference = weight_difference(run, reference)
    if not difference <= WEIGHT_DIFFERENCE:
        faults.append(
            f"{run.algorithm}: a weight differs from the reference by {difference:.2e}, "
            f"at most {WEIGHT_DIFFERENCE:g} is allowed"
        )
    return faults
