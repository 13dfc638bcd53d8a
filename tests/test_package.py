"""The built wheel, installed into a clean venv as `pipx install` would, does the main job there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PARTS = ("beyond", "pyproject.toml", "setup.cfg", "README.md", "LICENSE")

# One worker builds; the others needn't.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("package")]


def run(*argv: str | Path, cwd: Path, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        [str(arg) for arg in argv],
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, f"{argv}: exit {done.returncode}\n{done.stdout}"
    return done.stdout


def shipped(folder: Path) -> set[str]:
    """Every file under `folder` that belongs in the wheel, relative to its parent."""
    return {
        path.relative_to(folder.parent).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_wheel_in_a_clean_venv(tmp_path: Path) -> None:
    # A copy: building in the tree would leave a build/ folder, whose old files end up in the next wheel.
    source = tmp_path / "source"
    source.mkdir()
    for part in PARTS:
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, source / part, ignore=shutil.ignore_patterns("__pycache__", "*.py[co]"))
        else:
            shutil.copy2(ROOT / part, source / part)
    project = tomllib.loads((source / "pyproject.toml").read_text("utf-8"))["project"]

    pip = ("-m", "pip", "--disable-pip-version-check", "-q")
    expected = shipped(source / "beyond")
    run(sys.executable, *pip, "wheel", "--no-deps", "-w", tmp_path / "dist", source, cwd=tmp_path)
    [wheel] = (tmp_path / "dist").glob("*.whl")
    assert wheel.name == f"beyond_ai-{project['version']}-py3-none-any.whl"

    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        metadata = archive.read(f"beyond_ai-{project['version']}.dist-info/METADATA").decode()
    assert names == expected
    assert "License-Expression: MIT" in metadata
    assert "Requires-Python: >=3.11" in metadata

    clean = tmp_path / "venv"
    venv.create(clean, with_pip=True)
    run(clean / "bin" / "python", *pip, "install", wheel, cwd=tmp_path)

    bnd = clean / "bin" / "bnd"
    home = tmp_path / "elsewhere"
    home.mkdir()
    # Nothing of the tests' own venv: what the wheel forgot must be missing.
    env = {"HOME": str(home), "PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8"}

    assert re.search(rf"\b{re.escape(project['version'])}\b", run(bnd, "--version", cwd=home, env=env))
    demo = run(bnd, "demo", cwd=home, env=env)
    assert "traceback" not in demo.lower()
    assert len(demo.splitlines()) > 5
    assert not list(home.iterdir()), "the demo works in a scratch home of its own"
