"""The documentation: what it shows runs, what it lists is complete, where it points is there."""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import jobs
import numpy as np
import pytest
from compiled import compiler

import gpucomm
from gpucomm import errors

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *DOCS.glob("*.md")])
RUNNABLE = re.compile(
    r"^<!-- run: (torchrun |forks )?(\d+), prints: ([^\n]*) -->\n```python\n(.*?)^```",
    re.MULTILINE | re.DOTALL,
)
# What torch imports at its first optimizer, in every rank.
LATER = ["torch._dynamo"]
BLOCKS = [
    pytest.param(launcher.strip(), int(ranks), printed, code, id=f"{page.stem}-{number}")
    for page in PAGES
    for number, (launcher, ranks, printed, code) in enumerate(RUNNABLE.findall(page.read_text()))
]


@pytest.fixture(scope="module")
def hooks():
    sys.path.insert(0, str(DOCS))
    try:
        import hooks

        yield hooks
    finally:
        sys.path.remove(str(DOCS))


@pytest.fixture(scope="module")
def filled(hooks):
    """Every page of the documentation by name, as mkdocs gets it."""
    return {page.stem: hooks.fill(page.read_text()) for page in DOCS.glob("*.md")}


@pytest.mark.processes
@pytest.mark.parametrize(("launcher", "ranks", "printed", "code"), BLOCKS)
def test_blocks_run_when_typed(launcher, ranks, printed, code, tmp_path, tmp_path_factory):
    (tmp_path / "file.py").write_text(code)
    env = os.environ | {"TMPDIR": str(tmp_path_factory.mktemp("tmp"))}  # torchrun leaves a folder there
    if launcher:
        imported = re.findall(r"^(?:import|from) ((?!gpucomm)[\w.]+)", code, re.MULTILINE)
        command = jobs.find(launcher).command(ranks, [])
        env = jobs.environment(**env, TORCH_RANKS_LOAD=" ".join([*imported, *LATER]))  # of forks
    else:
        command = [sys.executable, *(["-m", "gpucomm", "run", "-n", str(ranks)] if ranks > 1 else [])]
    command = [*command, "file.py"]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert printed in done.stdout
    assert os.listdir(tmp_path) == ["file.py"], "it cannot be run again where it has left something"


def test_every_kind_of_page_has_a_runnable_block():
    assert {block.id.rpartition("-")[0] for block in BLOCKS} >= {
        *("README", "index", "starting", "training", "torch_distributed")
    }


def test_readme_shows_the_example():
    *_, code = RUNNABLE.findall((ROOT / "README.md").read_text())[0]
    example = (ROOT / "examples" / "first_steps.py").read_text()
    assert example.endswith(code)
    assert len([line for line in code.splitlines() if line]) <= 10


@pytest.mark.processes
def test_the_example_runs_on_one_rank():
    example = str(ROOT / "examples" / "first_steps.py")
    done = subprocess.run([sys.executable, example], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "the mean over 1 ranks is 0.0\n", "")


def test_what_is_said_of_choosing_is_what_the_core_does():
    core, page = (ROOT / "src/cpp/engine/choose.cpp").read_text(), (DOCS / "choosing.md").read_text()
    most = 1 << int(re.search(r"kMostSteps = 1 << (\d+);", core)[1])
    assert f"more than {most:,} steps" in page


def summary(entry) -> str:
    """The first paragraph of a docstring, after the signature that C++ puts before it."""
    paragraphs = (inspect.getdoc(entry) or "").strip().split("\n\n")
    if re.match(r"^\w+\(.*\)( -> .*)?$", paragraphs[0]):
        paragraphs = paragraphs[1:]
    return paragraphs[0].strip() if paragraphs else ""


def public_entries():
    from gpucomm.exchange import reshard
    from gpucomm.launch import World
    from gpucomm.optim import DistributedOptimizer, LayerwiseBSP
    from gpucomm.optim.ddp import BucketHook, use
    from gpucomm.optim.process_group import Options

    entries = {name: getattr(gpucomm, name) for name in gpucomm.__all__ if name != "__version__"}
    module = entries.pop("codecs")
    entries |= {name: getattr(module, name) for name in module.__all__}
    entries |= {"reshard": reshard, "use": use}
    optimizers = (DistributedOptimizer, LayerwiseBSP, BucketHook, Options)
    for kind in (gpucomm.Communicator, gpucomm.Work, gpucomm.Plan, World, *optimizers):
        entries[kind.__name__] = kind
        own = {name for base in kind.__mro__ if base.__module__.startswith("gpucomm") for name in vars(base)}
        members = {name: inspect.getattr_static(kind, name) for name in own if not name.startswith("_")}
        forwarded = {"param_groups", "state", "defaults", "grad_scale", "found_inf"}  # of the inner optimizer
        entries |= {f"{kind.__name__}.{n}": m for n, m in members.items() if n not in forwarded}
    return entries


def test_public_names_have_a_sentence():
    assert [name for name, entry in public_entries().items() if not summary(entry).endswith(".")] == []


def test_reference_has_every_public_name(filled):
    entries = public_entries()
    assert len(entries) > 30
    assert [
        name for name in entries if name != "errors" and not re.search(rf"[`.]{name}`", filled["reference"])
    ] == []


def test_no_marker_is_left(filled):
    for name, text in filled.items():
        assert re.findall(r"<!-- (?:table|error|reference|claim).*", text) == [], name


def test_tables_list_what_is_registered(filled):
    from gpucomm import exchange, merge

    for name, about in gpucomm.algorithms().items():
        page, once = ("codecs", 0) if about["coded"] else ("algorithms", 1)
        assert filled[page].count(f"| `{name}` |") >= once + len(about["collectives"])
    for name in gpucomm.transports():
        assert f"| `{name}` |" in filled["transports"]
    for name in [*exchange.names(), *gpucomm.codecs.names()]:
        assert re.search(rf"\| `{name}[`:]", filled["training"])
    for form in merge.forms():
        assert form.replace('"', "`") in filled["training"]


def test_every_error_has_its_section_and_a_real_text(filled):
    from generators.error_examples import EXAMPLES
    from generators.errors import raised

    assert {"Error", *EXAMPLES} == set(errors.__all__)
    for name in errors.__all__:
        assert re.search(rf"^##+ {name}$", filled["errors"], re.MULTILINE)
        assert inspect.getdoc(getattr(errors, name)).splitlines()[0] in filled["errors"]
    for name in EXAMPLES:
        assert f"{name}: {raised(name)}" in filled["errors"]
        assert len(raised(name)) > 20


def test_environment_variables_are_described(filled):
    sources = [
        ROOT / "src/cpp/base/env.cpp",
        *(ROOT / "src/gpucomm/launch").glob("*.py"),
        ROOT / "pyproject.toml",
    ]
    read = {name for path in sources for name in re.findall(r"\"?(GPUCOMM_[A-Z_]*[A-Z])\b", path.read_text())}
    assert len(read) >= 7
    assert [name for name in sorted(read) if f"`{name}`" not in filled["starting"]] == []


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_resolve(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        found = page.parent / path if path else page
        assert found.is_file(), target
        assert not anchor or anchor in anchors(found), target


def test_commands_of_contributing_are_in_the_makefile():
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    named = re.findall(r"^\| `make (\w+)` \|", CONTRIBUTING, re.MULTILINE)
    assert len(named) >= 7
    assert set(named) <= set(targets)


def test_folders_of_contributing_exist():
    rows = re.findall(r"^\| ((?:`[\w/]+/`(?:, )?)+) \|", CONTRIBUTING, re.MULTILINE)
    folders = [folder for row in rows for folder in re.findall(r"`([\w/]+/)`", row)]
    assert len(folders) > 10
    assert [folder for folder in folders if not (ROOT / folder).is_dir()] == []


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler here")
def test_the_example_algorithm_compiles(tmp_path):
    (code,) = re.findall(r"^```cpp\n(.*?)^```", CONTRIBUTING, re.MULTILINE | re.DOTALL)
    (tmp_path / "star.cpp").write_text(code)
    flags = ["-std=c++20", "-Wall", "-Wextra", "-Werror", "-Wno-missing-field-initializers", "-fsyntax-only"]
    done = subprocess.run(
        [compiler(), *flags, "-I", str(ROOT / "src" / "cpp"), "star.cpp"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def example(kind: str) -> dict:
    pattern = rf"^<!-- example: {kind} -->\n```python\n(.*?)^```"
    (code,) = re.findall(pattern, CONTRIBUTING, re.MULTILINE | re.DOTALL)
    names: dict = {"__name__": f"example_{kind}"}
    exec(compile(code, f"CONTRIBUTING.md, {kind}", "exec"), names)
    return names


def test_the_example_merge_policy_works(monkeypatch):
    from gpucomm.merge import base

    monkeypatch.setattr(base, "_policies", list(base._policies))
    example("merge")
    assert base.plan("every 2", [4, 4, 4]) == [[0, 1], [2]]
    with pytest.raises(errors.InvalidArgumentError, match='"every 4"'):
        base.plan("every 0", [4])


def test_the_example_exchange_works(monkeypatch):
    import torch

    from gpucomm.exchange import base

    monkeypatch.setattr(base, "_exchanges", dict(base._exchanges))
    example("exchange")

    def half(comm):
        buffer = torch.tensor([1.0 + comm.rank, 48000.0])  # sums of float16 end at 65504
        base.create("half", comm).start(buffer, []).wait(timeout=20)
        return buffer.numpy()

    with gpucomm.local(3, threads=True) as world:  # a sum of two is divided before it is rounded
        for result in world.run(half):
            np.testing.assert_allclose(result, [2.0, 48000.0], rtol=1e-3)


def test_the_notebook_is_stripped():
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        for cell in json.loads(path.read_text())["cells"]:
            assert not cell.get("outputs") and cell.get("execution_count") is None, path.name
