"""`gpucomm plan`: messages are matched right, pictures are made, the table and the JSON say the same."""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from conftest import pairs

from gpucomm import _core, cli, plan_command
from gpucomm.cost import plans_and_schedule
from gpucomm.draw import draw_plans, messages
from gpucomm.errors import InvalidArgumentError, UnavailableError
from gpucomm.links import parse_model
from gpucomm.units import format_seconds

LINKS = _core.Links("switch", lambda_=2e-6)


@pytest.mark.parametrize(("collective", "algorithm"), pairs())
def test_every_message_is_matched_with_its_receive(collective, algorithm):
    plans, schedule = plans_and_schedule(collective, algorithm, 1 << 16, LINKS, world=5, segments=3)
    found = messages(plans, schedule, LINKS)
    assert len(found) == _core.verify(plans).messages
    assert {(m.sender, m.sent_by) for m in found} == {
        (plan.rank, i) for plan in plans for i, step in enumerate(plan.steps) if step.kind == "send"
    }
    for m in found:
        sent, received = plans[m.sender].steps[m.sent_by], plans[m.receiver].steps[m.received_by]
        assert sent.peers == [m.receiver] and m.sender in received.peers
        assert (sent.pieces, sent.round) == (received.pieces, received.round)
        assert sent.piece == received.piece or collective == "all_to_all"
        assert m.reduces == (received.kind == "recv_reduce")
        assert m.begins_s - m.start_s == pytest.approx(2e-6) == m.arrived_s - m.left_s
        assert 0 <= m.start_s < m.left_s < m.arrived_s <= schedule.total_s * (1 + 1e-9)


class Counted:
    """A plan that counts how often its steps are listed, which takes as long as they are many."""

    listed = 0

    def __init__(self, plan):
        self.plan = plan

    @property
    def steps(self):
        Counted.listed += 1
        return self.plan.steps


def test_steps_are_listed_once_for_all_messages(monkeypatch):
    monkeypatch.setattr(Counted, "listed", 0)
    plans, schedule = plans_and_schedule("all_reduce", "ring", 1 << 16, LINKS, world=5)
    counted = [Counted(plan) for plan in plans]
    assert messages(counted, schedule, LINKS) == messages(plans, schedule, LINKS)
    assert Counted.listed == 5
    assert plan_command._rows(counted, schedule, LINKS) == plan_command._rows(plans, schedule, LINKS)
    assert Counted.listed == 5 + 2 * 5


def draw(folder: Path, name: str, *arguments: str) -> Path:
    path = folder / name
    call = ["plan", "all_reduce", "--algorithm", "linear_pipeline", *arguments, "--out", str(path)]
    assert cli.main(call) == 0
    return path


def test_svg(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    path = draw(
        tmp_path, "plan.svg", "--world", "4", "--segments", "8", "--links", "chain,alpha=5us,beta=1ns"
    )
    assert ElementTree.parse(path).getroot().tag == "{http://www.w3.org/2000/svg}svg"
    texts = re.findall(r"<!-- (.*?) -->", path.read_text())  # matplotlib writes every text as outlines
    assert "all_reduce by linear_pipeline: 4 ranks, 8 segments" in texts
    assert any(text.startswith("1 MiB on a chain") and "1.77 ms, 48 messages" in text for text in texts)
    assert {"rank 0", "rank 3", "segment", "receives and reduces", "time (ms)"} <= set(texts)
    assert texts.count("7") == 2 * 6 + 1  # at both ends of its six messages, and in the scale
    assert path.read_text().count("url(#h") == 24 + 1  # hatched: the reducing receives, and the legend's
    shown = capsys.readouterr().out
    assert "verified: every send meets its receive" in shown and f"drawn in {path}" in shown
    again = draw(tmp_path, "again.svg", "--world", "4", "--segments", "8", "--links", "chain")
    assert again.read_bytes() == path.read_bytes()


@pytest.mark.parametrize(("world", "segments"), [(1, 1), (2, 1), (8, 16)])
def test_png(tmp_path, world, segments):
    image = pytest.importorskip("PIL.Image")
    pytest.importorskip("matplotlib")
    path = draw(tmp_path, "plan.png", "--world", str(world), "--segments", str(segments))
    with image.open(path) as picture:
        width, height = picture.size
        assert width >= 1000 and height >= 300
        assert len(picture.convert("RGB").getcolors(1 << 24)) > 3 * segments  # a colour a segment


def test_bad_pictures_are_sentences(tmp_path, monkeypatch):
    plans, schedule = plans_and_schedule("all_reduce", "ring", 1 << 20, LINKS, world=4)

    def attempt(path):
        draw_plans(plans, schedule, LINKS, "", path)

    with pytest.raises(InvalidArgumentError, match=r"must end in \.png or \.svg, got .*plan\.gif"):
        attempt(tmp_path / "plan.gif")
    many, scheduled = plans_and_schedule("all_reduce", "ring", 1 << 20, LINKS, world=64)
    with pytest.raises(InvalidArgumentError, match="8064 messages is not readable, at most 5000"):
        draw_plans(many, scheduled, LINKS, "", tmp_path / "plan.png")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UnavailableError, match=r"pip install 'gpucomm\[bench\]'"):
        attempt(tmp_path / "plan.png")
    monkeypatch.undo()
    pytest.importorskip("matplotlib")
    with pytest.raises(InvalidArgumentError, match="cannot be written"):
        attempt(tmp_path / "nowhere" / "plan.png")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("option", ["--json", "--out"])
def test_where_nothing_can_be_written_nothing_is_done(option, capsys):
    assert cli.main(["plan", "all_reduce", "--algorithm", "ring", option, "/nowhere/plan.svg"]) == 2
    said = capsys.readouterr()
    assert f"{option} '/nowhere/plan.svg' cannot be written" in said.err and not said.out


def test_table_and_json(tmp_path, capsys):
    path = tmp_path / "plan.json"
    arguments = "reduce --algorithm linear_pipeline --world 3 --root 1 --segments 2 --bytes 2K"
    arguments += f" --links switch,latency=3us --json {path}"
    assert cli.main(["plan", *arguments.split()]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["rank", "round", "step", "kind", "peer", "piece", "start", "end"]
    written = json.loads(path.read_text())
    assert len(written["steps"]) == 8
    for line, row in zip(lines[1:], written["steps"], strict=False):
        peers, times = ",".join(map(str, row["peers"])), (row["start_s"], row["end_s"])
        words = [row["rank"], row["round"], row["step"], row["kind"], peers, row["piece"]]
        assert line.split() == [*map(str, words), *" ".join(map(format_seconds, times)).split()]
    assert (written["root"], written["world"], written["segments"], written["bytes"]) == (1, 3, 2, 2048)
    assert written["links"] == {"kind": "switch", "alpha": 5e-6, "beta": 1e-9, "latency": 3e-6, "gamma": 0.0}
    assert written["verified"]["messages"] == 4
    assert written["total_s"] == pytest.approx(3 * (5e-6 + 1024e-9) + 2 * 3e-6)
    assert max(row["end_s"] for row in written["steps"]) == written["total_s"]
    first = next(row for row in written["steps"] if row["rank"] == 0 and row["kind"] == "recv_reduce")
    assert (first["start_s"], first["end_s"]) == (pytest.approx(3e-6), pytest.approx(9.024e-6))


def test_what_a_codec_may_lose_is_said_where_one_is_taken(capsys):
    for algorithm, said in (("coded_ring", True), ("ring", False)):
        assert cli.main(["plan", "all_reduce", "--algorithm", algorithm, "--world", "8"]) == 0
        out = capsys.readouterr().out
        assert ("at most 8 times the codec's bound of the largest partial sum as it is sent" in out) == said
        assert ("the times are those without a codec" in out) == said


@pytest.mark.parametrize(("codec", "passes"), [("int8", 8), ("fixed:0.1", 1)])
def test_with_a_codec_the_times_are_those_of_its_messages(codec, passes, tmp_path, capsys):
    path = tmp_path / "plan.json"
    asked = f"all_reduce --algorithm coded_ring --world 8 --links switch:10Mbit --bytes 8M --json {path}"
    assert cli.main(["plan", *asked.split()]) == 0
    dense_s = json.loads(path.read_text())["total_s"]
    assert cli.main(["plan", *asked.split(), "--codec", codec]) == 0
    said, written = capsys.readouterr().out, json.loads(path.read_text())
    assert f"with {codec}, an element's error is at most 8 times" in said
    ratio, encode, decode = written["coding"].values()
    assert written["codec"] == codec and 0.25 <= ratio < 0.26 and encode > 0 < decode
    assert f"encode {format_seconds(encode)}/B" in said
    assert ratio * dense_s < written["total_s"] < dense_s
    assert written["verified"]["lossy_passes"] == passes


def test_links():
    links = parse_model("chain, alpha=20us,beta=0.5ns,latency=0,gamma=1e2ps")
    assert (links.kind, links.lambda_) == ("chain", 0.0)
    assert (links.alpha, links.beta, links.gamma) == pytest.approx((20e-6, 0.5e-9, 1e-10))
    for text, sentence in (
        ("ring", "unknown link model 'ring'"),
        ("chain,speed=1us", "unknown setting 'speed=1us'; known: alpha=TIME"),
        ("chain,alpha=5", "time '5' must be a number with a unit"),
        ("chain,alpha=-5us", "time '-5us' must be"),
    ):
        with pytest.raises(InvalidArgumentError, match=sentence):
            parse_model(text)


def test_wrong_arguments_end_with_two(capsys):
    assert cli.main(["plan", "all_gather", "--algorithm", "linear_pipeline"]) == 2
    assert "those that do: direct, ring" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("ring --world -3", "--world -3 must be from 1 to 1024"),
        ("ring --world 1025", "--world 1025 must be from 1 to 1024"),
        ("ring --segments 0", "--segments 0 must be from 1 to 4096"),
        ("ring --segments 4097", "--segments 4097 must be from 1 to 4096"),
        ("ring --world 512", "makes about 1046528 steps, at most 262144 are listed or drawn"),
        ("linear_pipeline --world 1024 --segments 4096", "take fewer ranks or segments"),
        ("ring --bytes 99999999999999999999G", "and at most 2^50 bytes"),
        (
            "ring --root 2",
            "--root 2: all_reduce has no root; those that have: reduce, broadcast, gather, scatter",
        ),
        ("ring --root 0", "--root 0: all_reduce has no root"),
        ("ring --codec int8", "ring sends elements as they are; those that code: coded_ring"),
        ("coded_ring --codec int3", "unknown codec 'int3'"),
    ],
)
def test_plans_beyond_what_is_listed_in_seconds_are_sentences(arguments, sentence, capsys):
    assert cli.main(["plan", "all_reduce", "--algorithm", *arguments.split()]) == 2
    assert sentence in capsys.readouterr().err


def test_the_largest_plans_are_not_refused():
    parser = argparse.ArgumentParser()
    plan_command.add_arguments(parser)
    for arguments in (
        "all_reduce --algorithm linear_pipeline --world 1024",
        "all_reduce --algorithm linear_pipeline --world 16 --segments 4096",
        "gather --algorithm direct --world 1024 --root 1023",
    ):
        plan_command._require_few(parser.parse_args(arguments.split()))
