"""Two jobs of one key: the second is refused while the first runs, on all its ranks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid

import jobs
import pytest

import gpucomm
from gpucomm import Communicator, _core
from gpucomm.errors import MismatchError
from gpucomm.launch import claim, kept, rendezvous, start
from gpucomm.launch.ranks import Ranks

PROGRAM = """
import sys
import numpy as np
import gpucomm

try:
    comm = gpucomm.init(timeout=30)
    print("up", flush=True)
    sys.stdin.read()
    print(comm.all_reduce(np.ones(4))[0])
    comm.close()
except gpucomm.errors.Error as error:
    print(type(error).__name__, error)
"""


def launch(job, rank):
    env = jobs.environment(GPUCOMM_JOB=job, GPUCOMM_WORLD="2", GPUCOMM_RANK=str(rank))
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM], env=env, stdin=pipe, stdout=pipe, stderr=pipe, text=True
    )


def outputs(processes):
    """What they print once all are told to go on."""
    for process in processes:
        process.stdin.close()
        process.stdin = None
    return [process.communicate(timeout=60)[0] for process in processes]


@pytest.mark.processes
def test_a_second_job_of_one_key_is_refused_on_all_its_ranks_until_the_first_has_ended():
    job = uuid.uuid4().hex
    first = [launch(job, rank) for rank in range(2)]
    assert [one.stdout.readline() for one in first] == ["up\n"] * 2
    for out in outputs([launch(job, rank) for rank in range(2)]):
        assert out.startswith(f"MismatchError process {first[0].pid} is rank 0 of a job of the same key")
        assert job in out and "GPUCOMM_JOB" in out
    assert outputs(first) == ["2.0\n"] * 2
    assert outputs([launch(job, rank) for rank in range(2)]) == ["up\n2.0\n"] * 2


def test_what_a_fault_has_closed_holds_no_name_once_its_process_starts_anew(monkeypatch):
    ranks = Ranks(0, 2, uuid.uuid4().hex, "test")

    def meet(ranks, count, timeout, create, attach, look):
        os.close(create(ranks.world))
        return Communicator("local", 0, 1, region=_core.Region(1))

    monkeypatch.setattr(rendezvous, "meet", meet)
    monkeypatch.setattr(start, "detect", lambda environ: ranks)
    first = gpucomm.init()
    assert first._claim is claim.claim(ranks)
    first.abort()
    second = gpucomm.init()
    held = second._claim
    first.close()
    assert claim.claim(ranks) is held
    third = Communicator("local", 0, 1, region=_core.Region(1))
    kept.replace(second, third)  # as shrink() does
    second.close()
    assert claim.claim(ranks) is held
    third.close()
    assert claim.claim(ranks) is not held
    claim.claim(ranks).release()


def test_a_claim_is_this_process_s_and_not_its_children_s():
    ranks = Ranks(0, 2, uuid.uuid4().hex, "test")
    held = claim.claim(ranks)
    assert claim.claim(ranks) is held
    child = os.fork()
    if not child:
        signal.pause()
    try:
        held.release()
        held.release()
        claim.claim(ranks).release()  # the child does not hold it
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_who_holds_the_name_is_said_as_long_as_it_can_be_asked(monkeypatch):
    monkeypatch.setattr(claim, "_MOMENT", 0)
    ranks = Ranks(0, 2, uuid.uuid4().hex, "test")
    held = claim.claim(ranks)
    claim.Claim._of.clear()  # as another process would see it
    try:
        for _ in range(20):  # a queue of connections that nobody takes
            with pytest.raises(MismatchError, match="is rank 0 of a job of the same key") as caught:
                claim.claim(ranks)
        assert "another process" in str(caught.value)
    finally:
        held.release()
