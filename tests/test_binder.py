"""Binder's configuration as repo2docker reads it: no docker, nothing is built or downloaded."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).resolve().parents[1]
BINDER = ROOT / "binder"


@pytest.fixture(scope="module")
def dockerfile() -> str:
    """What repo2docker would build; it prints it among its messages."""
    command = [sys.executable, "-m", "repo2docker", "--no-build", "--debug", str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_repo2docker_reads_our_folder(dockerfile: str) -> None:
    assert 'pip install --no-cache-dir -r "binder/requirements.txt"' in dockerfile
    assert "RUN ./binder/postBuild" in dockerfile
    # Python 3.12, not the default of repo2docker
    assert "environment.py-3.12" in dockerfile.replace("-2d", "-").replace("-2e", ".")


def test_the_repository_is_there_before_pip_runs(dockerfile: str) -> None:
    assert dockerfile.index("COPY --chown=0:0 src/ ") < dockerfile.index("pip install --no-cache")


def test_torch_is_the_cpu_build_of_the_tested_version() -> None:
    lines = [line for line in _lines() if line.startswith("torch")]
    (torch,) = (Requirement(line) for line in lines)
    assert re.fullmatch(r"==[0-9.]+\+cpu", str(torch.specifier))
    pinned = re.search(r"(?m)^torch(==.+)$", (ROOT / "constraints.txt").read_text())
    assert pinned is not None
    # a constraint without a local part takes the build that has one
    assert SpecifierSet(pinned[1]).contains(str(torch.specifier).removeprefix("=="))
    index = "--extra-index-url https://download.pytorch.org/whl/cpu"
    assert [line for line in _lines() if "index" in line] == [index]


def test_the_pages_that_the_readme_links_are_there_and_served() -> None:
    links = re.findall(r"urlpath=([\w./]+)", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert [link.split("notebooks/")[0] for link in links] == ["lab/tree/", "voila/render/"]
    assert all((ROOT / link[link.index("notebooks/") :]).is_file() for link in links)
    assert "voila" in _lines()


def test_the_package_comes_last() -> None:
    assert _lines()[-1] == "."
    (constraints,) = (line.split()[1] for line in _lines() if line.startswith("-c "))
    assert (BINDER / constraints).resolve() == ROOT / "constraints.txt"


def test_post_build_fails_loudly_and_copies_what_exists() -> None:
    script = BINDER / "postBuild"
    assert script.stat().st_mode & 0o111
    commands = [line for line in script.read_text().splitlines() if line[:1] not in ("#", "")]
    assert commands[0] == "set -e"
    (source,) = re.findall(r"cp (\S+)", script.read_text())
    assert (ROOT / source).is_file()


def test_post_build_runs(tmp_path: Path) -> None:
    environment = {"NB_PYTHON_PREFIX": str(tmp_path), "PATH": "/usr/bin:/bin"}
    subprocess.run([BINDER / "postBuild"], cwd=ROOT, env=environment, check=True)
    assert (tmp_path / "share/jupyter/lab/settings/overrides.json").is_file()


def test_the_readme_links_a_notebook_that_exists() -> None:
    found = re.findall(r"mybinder\.org/v2/\S*urlpath=lab/tree/([\w/.]+)", _readme())
    assert found == ["notebooks/00_the_question.ipynb"]
    assert all((ROOT / path).is_file() for path in found)


def test_the_readme_shows_pictures_that_exist() -> None:
    pictures = re.findall(r"!\[[^\]]+\]\((docs/[^)]+)\)", _readme())
    assert pictures == ["docs/decode_lab.png", "docs/reuse_roofline.png"]
    assert all((ROOT / path).is_file() for path in pictures)


def _readme() -> str:
    return (ROOT / "README.md").read_text(encoding="utf-8")


def _lines() -> list[str]:
    text = (BINDER / "requirements.txt").read_text(encoding="utf-8")
    return [line for line in text.splitlines() if line and not line.startswith("#")]
