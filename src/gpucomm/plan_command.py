"""`gpucomm plan`: the plan of a collective, verified, as a picture or a table."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpucomm import _core
from gpucomm.cost import MOST_RANKS, MOST_SEGMENTS, Coding, measured_coding, plans_and_schedule
from gpucomm.draw import check_suffix, draw_plans, messages
from gpucomm.errors import InvalidArgumentError
from gpucomm.json_file import check_writable, write_json
from gpucomm.kinds import ROOTED
from gpucomm.links import parse_model
from gpucomm.units import format_seconds, format_size, parse_size

__all__ = ["add_arguments", "main"]

_MODEL = {"alpha": "alpha", "beta": "beta", "latency": "lambda_", "gamma": "gamma"}
_MOST_STEPS = 1 << 18  # of all ranks, listed in seconds
_EPILOG = """\
--links is a model: switch (each rank has one port in and one out), chain (each neighbour pair has its own
full-duplex link) or nodes (each node has one port in and one out; of=2x4 or of=3+1 are its ranks), then what
differs from alpha=5us (overhead a message), beta=1ns (a byte), latency=0us and gamma=0ns (a byte reduced), as
in chain,alpha=20us,beta=0.1ns or chain:400Mbit,overhead=20us. One rank, link or node may have a rate of its
own, as in switch:1Gbit,rank2=100Mbit, chain:1Gbit,link0=100Mbit or nodes:1Gbit,of=2x4,node1=100Mbit
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line of `gpucomm plan`."""
    parser.epilog = _EPILOG
    parser.add_argument("collective", help="all_reduce, broadcast, gather, ...: what the algorithm offers")
    parser.add_argument("--algorithm", required=True, help=", ".join(_core.algorithms()))
    parser.add_argument("--world", type=int, default=4, metavar="N", help="number of ranks (default: 4)")
    parser.add_argument(
        "--segments", type=int, default=1, metavar="M", help="pieces to cut into (default: 1)"
    )
    parser.add_argument("--root", type=int, metavar="RANK", help=f"of {', '.join(ROOTED)} (default: 0)")
    parser.add_argument("--bytes", default="1M", metavar="SIZE", help="of the whole message (default: 1M)")
    parser.add_argument("--links", default="switch", metavar="MODEL", help="see below (default: switch)")
    parser.add_argument("--codec", metavar="SPEC", help="of coded messages, as int8: timed here, on one core")
    parser.add_argument("--out", type=Path, metavar="FILE", help="draw it there (.svg, .png); no table then")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every step with its times there")


def main(args: argparse.Namespace) -> int:
    """Build the plan, verify it, and show it."""
    check_writable(args.json)
    check_writable(args.out, "--out")
    if args.out is not None:
        check_suffix(args.out)
    _require_root(args)
    _require_few(args)
    links, nbytes = parse_model(args.links, args.world), parse_size(args.bytes)
    coding = _coding(args)
    plans, schedule = plans_and_schedule(
        args.collective,
        args.algorithm,
        nbytes,
        links,
        world=args.world,
        root=args.root or 0,
        segments=args.segments,
        coding=coding,
        additive=coding is not None and _core.Codec(args.codec).traits["additive"],
    )
    findings = _core.verify(plans)
    rows = _rows(plans, schedule, links)
    summary = _summary(nbytes, links, schedule, findings, coding)
    if args.out is None:
        print(_table(rows))
    print(f"{args.collective} by {args.algorithm}: {summary}")
    print(_verdict(findings, args.codec))
    if args.out is not None:
        draw_plans(plans, schedule, links, summary, args.out)
        print(f"drawn in {args.out}")
    if args.json is not None:
        about = {} if coding is None else {"codec": args.codec, "coding": coding._asdict()}
        _write_steps(args.json, about, plans[0], rows, nbytes, links, schedule, findings)
    return 0


def _require_root(args: argparse.Namespace) -> None:
    known = {name for about in _core.algorithms().values() for name in about["collectives"]}
    if args.root is not None and args.collective in known - set(ROOTED):
        raise InvalidArgumentError(
            f"--root {args.root}: {args.collective} has no root; those that have: {', '.join(ROOTED)}"
        )


def _coding(args: argparse.Namespace) -> Coding | None:
    known = _core.algorithms().get(args.algorithm)  # what is unknown is said where plans are built
    if args.codec is None or known is None:
        return None
    if not known["coded"]:
        takers = ", ".join(name for name, about in _core.algorithms().items() if about["coded"])
        raise InvalidArgumentError(
            f"--codec {args.codec}: {args.algorithm} sends elements as they are; those that code: {takers}"
        )
    return measured_coding(args.codec)


def _require_few(args: argparse.Namespace) -> None:
    for name, value, most in (("world", args.world, MOST_RANKS), ("segments", args.segments, MOST_SEGMENTS)):
        if not 1 <= value <= most:
            raise InvalidArgumentError(f"--{name} {value} must be from 1 to {most}")
    ends = {0, args.world - 1}  # a root may have many more steps than the others
    plans = [_core.build_plan(args.collective, args.algorithm, args.world, r, args.root or 0) for r in ends]
    steps = min(len(plan.steps) for plan in plans) * args.segments * args.world
    if steps > _MOST_STEPS:
        raise InvalidArgumentError(
            f"--world {args.world} with --segments {args.segments} makes about {steps} steps, at most"
            f" {_MOST_STEPS} are listed or drawn: take fewer ranks or segments"
        )


def _summary(
    nbytes: int, links: _core.Links, schedule: _core.Schedule, findings: _core.Verified, coding: Coding | None
) -> str:
    betas = sorted({links.beta} if not links.betas else set(links.betas))
    rates = " to ".join(f"{format_seconds(beta)}/B" for beta in dict.fromkeys((betas[0], betas[-1])))
    model = [f"alpha {format_seconds(links.alpha)}", f"beta {rates}"]
    model += [f"latency {format_seconds(links.lambda_)}"] if links.lambda_ else []
    model += [f"gamma {format_seconds(links.gamma)}/B"] if links.gamma else []
    if coding is not None:
        model += [f"1/{1 / coding.ratio:.3g} of the bytes", f"encode {format_seconds(coding.encode)}/B"]
        model += [f"decode {format_seconds(coding.decode)}/B"]
    counts = f"{findings.messages} messages in {findings.rounds} rounds"
    shape = "nodes" if links.nodes else f"a {links.kind}"
    where = f"{format_size(nbytes)} on {shape} ({', '.join(model)})"
    return f"{where}: {format_seconds(schedule.total_s)}, {counts}, verified"


def _verdict(findings: _core.Verified, codec: str | None) -> str:
    sent, errors = ", ".join(str(pieces) for pieces in findings.sent), findings.encode_errors
    of = f"with {codec}" if codec else "with a codec that does not add coded pieces"
    bound = (
        f"\n{of}, an element's error is at most {errors} times the codec's bound of the largest partial sum"
        " as it is sent, with the errors that are in it"
        + ("" if codec else "; the times are those without a codec")
    )
    return (
        "verified: every send meets its receive, nothing can deadlock, every contribution is in the result"
        f" exactly once\npieces sent by rank: {sent}; scratch slots: {findings.scratch_slots};"
        f" lossy passes: {findings.lossy_passes}, encode errors: {errors}{bound if errors else ''}"
    )


def _rows(plans: Sequence[_core.Plan], schedule: _core.Schedule, links: _core.Links) -> list[dict[str, Any]]:
    """Every step that moves or computes, by rank and start; a receive starts when its first message does."""
    begins: dict[tuple[int, int], float] = {}
    for message in messages(plans, schedule, links):
        key = (message.receiver, message.received_by)
        begins[key] = min(message.begins_s, begins.get(key, message.begins_s))
    rows, steps = [], [plan.steps for plan in plans]  # each access makes the list anew
    for event in schedule.events:
        step = steps[event.rank][event.step]
        row = {"rank": event.rank, "round": step.round, "step": event.step, "kind": step.kind}
        row |= {"peers": list(step.peers), "piece": step.piece, "pieces": step.pieces}
        row |= {"start_s": begins.get((event.rank, event.step), event.start_s), "end_s": event.end_s}
        rows.append(row)
    return sorted(rows, key=lambda row: (row["rank"], row["start_s"], row["step"]))


def _table(rows: Sequence[dict[str, Any]]) -> str:
    lines = ["rank round  step kind         peer       piece         start        end"]
    for row in rows:
        last = row["piece"] + row["pieces"] - 1
        piece = str(row["piece"]) if row["pieces"] == 1 else f"{row['piece']}-{last}"
        peers = ",".join(str(peer) for peer in row["peers"])
        start, end = format_seconds(row["start_s"]), format_seconds(row["end_s"])
        lines.append(
            f"{row['rank']:>4} {row['round']:>5} {row['step']:>5} {row['kind']:<12} {peers:<10} {piece:<8}"
            f" {start:>10} {end:>10}"
        )
    return "\n".join([*lines, ""])


def _write_steps(
    path: Path,
    about: dict[str, Any],
    plan: _core.Plan,
    rows: Sequence[dict[str, Any]],
    nbytes: int,
    links: _core.Links,
    schedule: _core.Schedule,
    findings: _core.Verified,
) -> None:
    names = ("collective", "algorithm", "world", "root", "chunks", "segments")
    about = {name: getattr(plan, name) for name in names} | about | {"bytes": nbytes}
    about["links"] = {"kind": links.kind} | {key: getattr(links, name) for key, name in _MODEL.items()}
    about["links"] |= {name: value for name in ("nodes", "betas") if (value := getattr(links, name))}
    about["total_s"] = schedule.total_s
    counts = ("messages", "rounds", "scratch_slots", "lossy_passes", "encode_errors")
    about["verified"] = {name: getattr(findings, name) for name in counts}
    write_json(path, about | {"steps": rows})
