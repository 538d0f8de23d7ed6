"""The digits demo: short runs of all of it, and its checks on results that break each promise."""

import importlib
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import gpucomm

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.fixture
def demo(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import train_digits

    return train_digits


@pytest.fixture
def short(demo):
    return demo.Settings(epochs=1)


def run(demo, ranks, settings):
    with gpucomm.local(ranks, threads=True, timeout=30) as world:
        return demo.train_locally(world, settings, lambda steps: None)


def test_four_ranks_learn_what_one_does(demo, short):
    (reference,) = run(demo, 1, short)
    ranks = run(demo, 4, replace(short, algorithm="linear_pipeline"))
    assert demo.check_ranks(ranks) == []
    assert demo.check_reference(ranks[0], reference) == []
    assert len(ranks[0].losses) == 22
    assert ranks[0].losses[-1] < 0.7 * ranks[0].losses[0]
    np.testing.assert_allclose(ranks[0].losses, reference.losses, rtol=1e-3)
    assert reference.bytes_per_step == 0
    # Every algorithm has to move each rank's gradients there and the result back: 2 (p - 1) n at the least.
    assert ranks[0].bytes_per_step >= 2 * 3 * ranks[0].weights.nbytes
    for times in ranks[0].parts_s.values():
        assert len(times) == 22
    np.testing.assert_allclose(np.sum([*ranks[0].parts_s.values()], axis=0), ranks[0].step_s, rtol=1e-6)


def test_a_batch_that_does_not_divide_is_refused(demo, short):
    with pytest.raises(gpucomm.errors.RankFailedError, match="64 images for 3 ranks"):
        run(demo, 3, short)


@pytest.mark.parametrize(
    ("example", "asked", "said"),
    [
        ("train_digits", "--epochs 0", "--epochs: '0' must be a whole number of at least 1"),
        ("train_digits", "--ranks -1", "--ranks: '-1' must be a whole number"),
        ("train_digits", "--ranks 3", "got 64 images for 3 ranks"),
        ("train_digits", "--algorithm ring --ranks 3", "got 64 images for 3 ranks"),
        ("train_digits", "--algorithm ring --picture /dev/null/x.png", "--picture '/dev/null/x.png' cannot"),
        ("train_digits", "--json /nowhere/x", "--json '/nowhere/x' cannot be written"),
        ("train_digits", "--picture /dev/null/x.png", "--picture '/dev/null/x.png' cannot be written"),
        ("train_digits", "--merge many", "--merge: [merge] merge must be "),
        (
            "train_digits",
            "--algorithm rign",
            "--algorithm: 'rign' must be one of auto, bidirectional_exchange",
        ),
        ("train_digits", "--algorithm ring --batch 2000", "must be of at most 1437 images, got 2000"),
        ("fsdp_transformer", "--steps 0", "--steps: '0' must be a whole number of at least 1"),
        ("fsdp_transformer", "--ranks two", "--ranks: 'two' must be a whole number"),
        ("fsdp_transformer", "--all-gather int9", "--all-gather: unknown codec 'int9'"),
        (
            "fsdp_transformer",
            "--algorithm one_shot",
            "--algorithm: 'one_shot' must be one of auto, coded_ring",
        ),
        ("fsdp_transformer", "--algorithm ring", "--algorithm ring takes no codec: "),
        ("fsdp_transformer", "--links swich:1Gbit", "swich"),
    ],
)
def test_bad_arguments_are_sentences(example, asked, said, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(example).main(asked.split())
    assert ended.value.code == 2 and said in capsys.readouterr().err


def test_ranks_cut_the_same_batches(demo):
    from digits.data import load, shares

    images, test = load()
    assert len(images.labels) + len(test.labels) == 1797
    whole = [batch.pixels.numpy() for batch in shares(images, 3, 64, 7, 0, 1)]
    parts = [[batch.pixels.numpy() for batch in shares(images, 3, 64, 7, rank, 4)] for rank in range(4)]
    for step, batch in enumerate(whole):
        np.testing.assert_array_equal(np.concatenate([part[step] for part in parts]), batch)


@pytest.fixture
def result(demo):
    return demo.Result("ring", 2, losses=[1.0, 0.5], weights=np.ones(4, np.float32), accuracy=0.98)


def test_broken_promises_are_told(demo, result):
    same = replace(result)
    assert demo.check_ranks([result, same]) == []
    assert demo.check_reference(result, same) == []
    (text,) = demo.check_ranks([result, replace(result, unlike=5)])
    assert text == "ring: the ranks' weights were not bit-identical after step 5 (seen by rank 1)"
    (text,) = demo.check_ranks([result, replace(result, weights=result.weights + np.float32(1e-7))])
    assert text == "ring: rank 1 ended with other weights than rank 0"
    (text,) = demo.check_reference(result, replace(result, weights=result.weights + np.float32(2e-4)))
    assert "differs from the reference by 2.00e-04" in text
    (text,) = demo.check_reference(result, replace(result, weights=result.weights * np.float32("nan")))
    assert "differs from the reference by nan" in text
    (text,) = demo.check_reference(result, replace(result, accuracy=0.969))
    assert "1.10 points" in text
    (text,) = demo.check_reference(result, replace(result, losses=[1.0]))
    assert "2 steps, the reference has 1" in text


def test_a_rank_that_goes_astray_is_seen_at_its_step(demo, short, monkeypatch):
    from digits.training import Training

    weights = Training._weights

    def astray(self):
        found = weights(self)
        return found + np.float32(1e-3) if self.comm.rank == 1 and len(self.result.losses) == 3 else found

    monkeypatch.setattr(Training, "_weights", astray)
    ranks = run(demo, 2, short)
    assert [result.unlike for result in ranks] == [3, 3]


@pytest.mark.processes
def test_the_whole_comparison(demo, tmp_path, capsys):
    picture, figures = tmp_path / "made" / "picture.png", tmp_path / "figures.json"
    chosen = ["--algorithm", "linear_pipeline", "--epochs", "1", "--ranks", "2"]
    status = demo.main([*chosen, "--picture", str(picture), "--json", str(figures)])
    shown = capsys.readouterr()
    assert (status, shown.err) == (0, "")
    assert picture.read_bytes().startswith(b"\x89PNG")
    rows = json.loads(figures.read_text())
    assert [(row["algorithm"], row["ranks"]) for row in rows] == [("one process", 1), ("linear_pipeline", 2)]
    for row in rows:
        assert row["algorithm"].split("_")[0] in shown.out
        assert row["identical_every_step"]
        assert row["step_ms"] > 0
        assert 0 <= row["communicating"] < 1
    for row in rows[1:]:
        assert row["weight_difference"] < 1e-4


@pytest.mark.processes
def test_under_the_launcher(tmp_path):
    figures = tmp_path / "figures.json"
    script = [str(EXAMPLES / "train_digits.py"), "--algorithm", "linear_pipeline", "--epochs", "1"]
    command = [sys.executable, "-m", "gpucomm", "run", "-n", "2", *script, "--json", str(figures)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "linear_pipeline" in done.stdout
    (row,) = json.loads(figures.read_text())
    assert (row["ranks"], row["steps"], row["identical_every_step"]) == (2, 22, True)
    assert list(tmp_path.iterdir()) == [figures]
