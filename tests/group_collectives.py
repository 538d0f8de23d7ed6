"""Checks of a process group's own collectives, for group_program.py: against the definition, and Gloo."""

from __future__ import annotations

import itertools

import torch
import torch.distributed as dist
from torch import nn

__all__ = ["all_reduces", "layouts", "many_sparse", "moves", "reduce_scatters"]

FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]
UNSIGNED = [torch.uint16, torch.uint32, torch.uint64]
COMPLEX = [torch.complex64, torch.complex128]
UNUSUAL = [*UNSIGNED, torch.float8_e4m3fn, torch.float8_e8m0fnu, torch.complex32]
OPS = {
    op: getattr(dist.ReduceOp, op) for op in ("SUM", "AVG", "MIN", "MAX", "PRODUCT", "BAND", "BOR", "BXOR")
}
SHAPES = {"plain": (7, 3), "scalar": (), "empty": (0, 4), "long": (20011,)}


def given(rank, dtype, shape):
    """The tensor that a rank has: small whole numbers, so that sums are exact in any order."""
    numbers = torch.randint(0, 5, shape, generator=torch.Generator().manual_seed(rank + 1))
    if dtype.is_complex:
        return torch.view_as_complex(torch.stack([numbers, -numbers], -1).to(dtype.to_real()))
    if dtype in UNUSUAL:
        return numbers.to(torch.float32).to(dtype)
    return numbers.to(dtype)


def same(a, b):
    if a.shape != b.shape:
        return False
    if a.dtype in UNUSUAL:
        a, b = (x.reshape(-1).view(torch.uint8) for x in (a, b))
    return torch.equal(a, b)


def folded(op, tensors):
    """What a reduction gives, by the definition."""
    all_of = torch.stack(
        [t.to(torch.float64) if not t.is_complex() else t.to(torch.complex128) for t in tensors]
    )
    if op in ("SUM", "AVG"):
        result = all_of.sum(0) / (len(tensors) if op == "AVG" else 1)
    elif op in ("MIN", "MAX"):
        result = all_of.amin(0) if op == "MIN" else all_of.amax(0)
    elif op == "PRODUCT":
        result = all_of.prod(0)
    else:
        bits = [t if t.dtype == torch.bool else t.to(torch.int64) for t in tensors]
        fold = {"BAND": torch.bitwise_and, "BOR": torch.bitwise_or, "BXOR": torch.bitwise_xor}[op]
        result = bits[0]
        for other in bits[1:]:
            result = fold(result, other)
    if op == "AVG" and not (tensors[0].is_floating_point() or tensors[0].is_complex()):
        result = result.trunc()
    return result.to(tensors[0].dtype)


def reductions():
    for dtype in [*FLOATS, *INTEGERS, *UNSIGNED, torch.bool, *COMPLEX]:
        for name in OPS:
            bitwise = name.startswith("B")
            if dtype.is_complex and name not in ("SUM", "AVG"):
                continue
            if bitwise and dtype not in [*INTEGERS, *UNSIGNED, torch.bool]:
                continue
            if dtype in UNSIGNED and name in ("AVG", "MIN", "MAX"):
                continue
            if dtype == torch.bool and name in ("AVG",):
                continue
            yield dtype, name


def all_reduces(rank, world):
    wrong, compared = [], 0
    gloo = dist.new_group(backend="gloo")
    for (dtype, name), shape in itertools.product(reductions(), SHAPES):
        inputs = [given(r, dtype, SHAPES[shape]) for r in range(world)]
        x = inputs[rank].clone()
        dist.all_reduce(x, OPS[name])
        wrong += (
            []
            if same(x, folded(name, inputs))
            else [f"{name} {dtype} {shape}: {x} not {folded(name, inputs)}"]
        )
        theirs = inputs[rank].clone()
        try:
            dist.all_reduce(theirs, OPS[name], group=gloo)
        except RuntimeError:
            continue
        compared += 1
        wrong += [] if same(x, theirs) else [f"{name} {dtype} {shape} is not Gloo's: {x} not {theirs}"]
    return wrong + ([] if compared > 60 else [f"only {compared} compared with Gloo"])


def layouts(rank, world):
    """Tensors that are not simply in memory, and what sums of them are made of."""
    wrong = []
    base = torch.arange(60.0).reshape(10, 6)
    makes = {
        "transposed": lambda r: (base + r).t(),
        "every second": lambda r: (base + r)[::2, 1::3],
        "a parameter": lambda r: nn.Parameter(base + r),
        "negative": lambda r: torch.complex(base, base + r).conj().imag,
        "channels last": lambda r: (base + r).reshape(1, 5, 4, 3).to(memory_format=torch.channels_last),
    }
    for name, make in makes.items():
        for async_op in (False, True):
            x = make(rank)
            work = dist.all_reduce(x, async_op=async_op)
            if async_op:
                work.wait()
            total = torch.stack([make(r).detach() for r in range(world)]).sum(0)
            wrong += [] if torch.equal(x, total) else [f"all_reduce of {name}"]
            strided = torch.empty(world * 2, *total.shape)[::2]
            dist.all_gather_into_tensor(strided, make(rank))
            expected = torch.stack([make(r).detach() for r in range(world)])
            wrong += [] if torch.equal(strided, expected) else [f"all_gather of {name}"]
            y = make(rank)
            dist.broadcast(y, world - 1)
            wrong += [] if torch.equal(y, expected[-1]) else [f"broadcast of {name}"]
    x = base + rank
    dist.all_reduce(x, dist._make_nccl_premul_sum(rank + 0.5))
    total = sum((base + r) * (r + 0.5) for r in range(world))
    wrong += [] if torch.equal(x, total) else ["premul_sum"]
    sparse = torch.sparse_coo_tensor([[rank]], [1.0], (world,))
    dist.all_reduce(sparse)
    return wrong + ([] if torch.equal(sparse.to_dense(), torch.ones(world)) else ["sparse"])


def moves(rank, world):
    wrong = []

    def check(what, dtype, result, expected):
        if len(result) != len(expected) or not all(map(same, result, expected)):
            wrong.append(f"{what} {dtype}: {result} not {expected}")

    for dtype, count in itertools.product(
        [*FLOATS, *INTEGERS, torch.bool, *COMPLEX, *UNUSUAL], (0, 1, 12, 5000)
    ):
        shape = (count, 2)
        mine = given(rank, dtype, shape)
        everyone = [given(r, dtype, shape) for r in range(world)]
        x = mine.clone()
        dist.broadcast(x, 1)
        check("broadcast", dtype, [x], [everyone[1]])
        outs = [torch.empty(shape, dtype=dtype) for _ in range(world)]
        dist.all_gather(outs, mine)
        check("all_gather", dtype, outs, everyone)
        flat = torch.empty(world * count, 2, dtype=dtype)
        work = dist.all_gather_into_tensor(flat, mine, async_op=True)
        work.wait()
        check("all_gather_into_tensor", dtype, flat.chunk(world) if count else [flat] * world, everyone)
        # part i of rank r goes to rank i and has i + r rows
        rows = [given(100 * rank + i, dtype, (i + rank, 3)) for i in range(world)]
        expected = [given(100 * r + rank, dtype, (rank + r, 3)) for r in range(world)]
        outs = [torch.empty(t.shape, dtype=dtype) for t in expected]
        dist.all_to_all(outs, rows)
        check("all_to_all", dtype, outs, expected)
        if dtype in UNUSUAL or dtype.is_complex:
            continue  # torch.cat lacks some of them
        sizes = [i + rank for i in range(world)]
        out = torch.empty(sum(sizes), 3, dtype=dtype)
        dist.all_to_all_single(out, torch.cat(rows), sizes, sizes)
        check("all_to_all_single", dtype, [out], [torch.cat(expected)])
    uneven = [torch.empty(r + 1) for r in range(world)]
    dist.all_gather(uneven, torch.full((rank + 1,), float(rank)))
    check("all_gather of different sizes", "", uneven, [torch.full((r + 1,), float(r)) for r in range(world)])
    even = torch.empty(world, 2)
    dist.all_to_all_single(even, torch.arange(2.0 * world).reshape(world, 2) + 100 * rank)
    check("even", "", [even], [torch.stack([torch.arange(2.0) + 2 * rank + 100 * r for r in range(world)])])
    return wrong


def reduce_scatters(rank, world):
    wrong = []
    for dtype, name in reductions():
        for count in (0, 1, 900):
            inputs = [[given(10 * r + i, dtype, (count, 2)) for i in range(world)] for r in range(world)]
            expected = folded(name, [of_rank[rank] for of_rank in inputs])
            out = torch.empty(count, 2, dtype=dtype)
            dist.reduce_scatter(out, inputs[rank], OPS[name])
            wrong += [] if same(out, expected) else [f"reduce_scatter {name} {dtype} {count}"]
            out.zero_()
            dist.reduce_scatter_tensor(out, torch.cat(inputs[rank]), OPS[name], async_op=True).wait()
            wrong += [] if same(out, expected) else [f"reduce_scatter_tensor {name} {dtype} {count}"]
    parts = [torch.full((i + 1,), 1.0 + rank) for i in range(world)]
    out = torch.empty(rank + 1)
    dist.reduce_scatter(out, parts)
    total = world * (world + 1) / 2
    return wrong + ([] if torch.equal(out, torch.full((rank + 1,), total)) else ["of different sizes"])


def many_sparse(rank, world):
    """Gloo's thread lets go of each, and of what Python keeps for this one, while the next is issued."""
    torch._C._stash_obj_in_tls("gpucomm's tests", {})
    for _ in range(200):
        dist.all_reduce(x := torch.ones(3).to_sparse())
    return [] if torch.equal(x.to_dense(), torch.full((3,), float(world))) else ["sums"]
