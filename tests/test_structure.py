"""The shape of the code: layers, sizes, public names. Both languages in one place."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import gpucomm

ROOT = Path(__file__).parent.parent
CPP = ROOT / "src" / "cpp"
PACKAGE = ROOT / "src" / "gpucomm"

CPP_LAYERS = {
    "base": set(),
    "reduce": {"base"},
    "plans": {"base"},
    "codecs": {"base"},
    "transports": {"base"},
    "devices": {"base", "reduce", "codecs"},
    "cuda": {"base", "reduce", "codecs", "devices"},
    "engine": {"base", "reduce", "plans", "codecs", "transports", "devices"},
    "limit": {"base", "reduce", "transports"},
    "bindings": {"base", "reduce", "plans", "codecs", "transports", "engine", "devices", "limit"},
}
# What a Python part may import of gpucomm, besides itself.
LOWEST = {"_core", "errors"}
BASE = LOWEST | {"arrays", "comm", "links", "non_member", "units"}
MIDDLE = BASE | {"cost", "probe"}
PYTHON_LAYERS = {
    "errors": set(),
    "units": {"errors"},
    "threads": {"errors"},
    "kinds": set(),
    "json_file": {"errors"},
    "files": {"errors"},
    "links": LOWEST | {"units"},
    "arrays": LOWEST,
    "codecs": LOWEST | {"arrays"},
    "cuda": LOWEST | {"_cuda"},
    "nccl": LOWEST,
    "memory": LOWEST | {"comm", "launch"},  # late, for the communicator of init()
    "non_member": {"errors"},
    "comm": LOWEST | {"non_member", "launch", "object_collectives", "object_work"},  # late
    "turns": {"comm"},
    "packs": LOWEST | {"arrays", "comm"},
    "coalesce": LOWEST | {"comm", "packs", "turns"},
    "error_bounds": LOWEST,
    "bounded": LOWEST | {"comm", "error_bounds", "turns"},
    "objects": LOWEST,
    "ending": LOWEST | {"comm"},
    "waiter": LOWEST | {"comm", "ending", "threads"},
    "object_work": LOWEST | {"comm", "turns", "waiter"},
    "object_collectives": LOWEST | {"comm", "object_work", "objects", "turns"},
    "closed_forms": BASE,
    "cost": BASE | {"closed_forms", "kinds"},
    "probe": BASE | {"files", "launch"},
    "launch": BASE | {"ending", "threads", "turns"},
    "merge": MIDDLE,
    "exchange": MIDDLE,
    "optim": MIDDLE | {"merge", "exchange", "memory", "launch", "ending", "threads", "waiter"},
}
HEAVY = {
    "torch": {"optim", "bench", "memory", "reproduce"},
    "mpi4py": {"launch", "bench"},
    "matplotlib": {"picture"},
    "rich": {"bench"},
}


def layer_of(path: Path) -> str:
    """The layer of a file: its folder, but for the one file of bindings that the second module has."""
    parts = path.relative_to(CPP).parts
    return "bindings" if parts == ("cuda", "module.cpp") else parts[0]


def test_cpp_layers():
    for path in CPP.rglob("*.[hci]*"):
        layer, text = layer_of(path), path.read_text()
        included = {m.split("/")[0] for m in re.findall(r'#include "([^"]+/[^"]+)"', text)}
        assert included <= CPP_LAYERS[layer] | {layer, path.relative_to(CPP).parts[0]}, path
        assert ("pybind11" in "".join(re.findall(r"#include <(.*)>", text))) <= (layer == "bindings"), path


def imports(path: Path) -> tuple[set[str], set[str]]:
    """(parts of gpucomm imported, other packages imported at module level)."""
    own, other = set(), set()
    tree = ast.parse(path.read_text())
    top = set(ast.walk(ast.Module([n for n in tree.body if not is_type_checking(n)], [])))
    functions = {
        n
        for f in ast.walk(tree)
        if isinstance(f, (ast.FunctionDef, ast.AsyncFunctionDef))
        for n in ast.walk(f)
    }
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [a.name for a in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [
                f"{node.module}.{a.name}" if node.module == "gpucomm" else node.module for a in node.names
            ]
        for name in names:
            if name.startswith("gpucomm."):
                own.add(name.split(".")[1])
            elif node in top and node not in functions:
                other.add(name.split(".")[0])
    return own, other


def is_type_checking(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)


PYTHON = sorted(p for p in PACKAGE.rglob("*.py"))


def test_python_layers():
    for path in PYTHON:
        part = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        own, other = imports(path)
        if part in PYTHON_LAYERS:
            assert own <= PYTHON_LAYERS[part] | {part}, path
        for heavy, allowed in HEAVY.items():
            assert heavy not in other or part in allowed, f"{heavy} must be imported late in {path}"


def test_type_checkers_know_what_is_imported_late():
    assert (Path(gpucomm.__file__).parent / "py.typed").exists()
    for node in filter(is_type_checking, ast.parse((PACKAGE / "__init__.py").read_text()).body):
        typed = {a.asname: f"{i.module}.{a.name}" for i in node.body for a in i.names}
    late = {name: part if part == name else f"{part}.{name}" for name, part in gpucomm._LATE.items()}
    assert typed == {name: f"gpucomm.{place}" for name, place in late.items()}


def test_import_is_light():
    code = (
        "import sys, threading, gpucomm\n"
        "heavy = {'torch', 'mpi4py', 'matplotlib', 'rich', 'cloudpickle', 'asyncio'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "assert threading.active_count() == 1\n"
        "import os; assert len(os.listdir('/proc/self/task')) == 1, 'a thread was started'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={"OPENBLAS_NUM_THREADS": "1", "PATH": ""})


def test_public_names():
    # Not of `import *`: not all are there everywhere.
    parts = ["cost", "cuda", "draw", "exchange", "links", "merge", "nccl", "optim", "probe"]
    assert sorted([*gpucomm.__all__, *parts]) == dir(gpucomm)
    assert len(gpucomm.__all__) <= 15
    for name in gpucomm.__all__:
        assert getattr(gpucomm, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = gpucomm.nonsense


def test_parts_are_there_without_an_import_of_their_own():
    code = (
        "import gpucomm\n"
        "assert callable(gpucomm.cost.cost) and callable(gpucomm.merge.plan)\n"
        "assert gpucomm.cuda.__name__ == 'gpucomm.cuda' and callable(gpucomm.optim.DistributedOptimizer)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_files_stay_short():
    longest = {p: len(p.read_text().splitlines()) for p in [*PYTHON, *CPP.rglob("*.[hc]*")]}
    assert {str(p): n for p, n in longest.items() if n > 400} == {}


def test_functions_stay_short():
    long = []
    for path in PYTHON:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                body = node.body[1:] if ast.get_docstring(node) else node.body
                lines = body[-1].end_lineno - body[0].lineno + 1 if body else 0
                if lines > 60:
                    long.append((path.name, node.name, lines))
    assert long == []


def docstrings_missing() -> list[str]:
    missing = []
    for name in gpucomm.__all__:
        value = getattr(gpucomm, name)
        if callable(value) and not (value.__doc__ or "").strip():
            missing.append(name)
        if isinstance(value, type):
            missing += [
                f"{name}.{method}"
                for method in dir(value)
                if not method.startswith("_") and not (getattr(value, method).__doc__ or "").strip()
            ]
    return missing


def test_public_names_have_docstrings():
    assert docstrings_missing() == []


def test_numbers_are_read_alike_whatever_the_locale():
    """A comma for a point would give one rank, or its device, another codec than the others have."""
    read = re.compile(r"\b(strto[dfl]d?|ato[fil]|sto[dfl]d?|sscanf)\(")
    found = {
        (path.name, match[1])
        for path in CPP.rglob("*")
        if path.is_file()
        for match in read.finditer(path.read_text())
    }
    assert found == {("env.cpp", "strtol"), ("mpc.cu", "atoi"), ("remote.cpp", "sscanf")}  # of whole numbers


def test_what_goes_around_a_transport_hands_everything_on():
    """A virtual function that a decorator forgets falls back to the base's default in silence."""
    declared = (CPP / "transports" / "transport.h").read_text()
    body = declared.split("\nclass Transport {")[1].split("\n};")[0]
    names = set(re.findall(r"virtual [^~(]*?[ *&](\w+)\(", body))
    assert {"send", "fetch", "flush"} <= names
    around = (CPP / "transports" / "emulated.cpp").read_text()
    assert [name for name in sorted(names) if not re.search(rf"\b{name}\([^;{{]*override", around)] == []
