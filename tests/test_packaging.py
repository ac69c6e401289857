"""A wheel built through the sdist, installed into an empty environment, used in an empty folder."""

import json
import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
# an installed wheel must not find the checkout by way of the caller's environment


def clean() -> dict[str, str]:
    """The environment of a test without Python's own variables; TMPDIR is set when one begins."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the sdist without a download."""
    dist = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(dist), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, env=clean())
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = dist.glob("*.whl")
    assert built.name.endswith("-py3-none-any.whl")
    return built


@pytest.fixture(scope="module")
def apclab_of_wheel(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Runs `apclab` of the installed wheel in a given folder."""
    home = tmp_path_factory.mktemp("environment")
    venv.create(home, with_pip=False)
    folder = "Scripts" if os.name == "nt" else "bin"
    python = home / folder / Path(sys.executable).name
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    subprocess.run([*pip, "--no-deps", "--no-index", str(wheel)], check=True, env=clean())
    query = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = Path(subprocess.check_output([python, "-c", query], text=True, env=clean()).strip())
    # our dependencies without a download; .pth files in there, our checkout's too, are not followed
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")

    def run(*arguments: str, cwd: Path, module: bool = True) -> subprocess.CompletedProcess[str]:
        command = [home / folder / "apclab"] if module else [python]
        return subprocess.run(
            [*command, *arguments], cwd=cwd, capture_output=True, text=True, env=clean()
        )

    return run


def test_wheel_holds_what_it_should(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for wanted in (
        "apclab/py.typed",
        "apclab_kernels/py.typed",
        "apclab/_data/devices.csv",
        "apclab/_data/models.csv",
        "apclab/_notebooks/04_decode_lab.ipynb",
        "apclab/cli/lab_settings/overrides.json",
    ):
        assert wanted in names
    assert any(name.startswith("apclab/_data/published/") for name in names)
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert {name.split("/")[0] for name in names} == {
        "apclab",
        "apclab_kernels",
        next(name.split("/")[0] for name in names if "dist-info" in name),
    }
    unwanted = ("measured", "__pycache__", ".ipynb_checkpoints", "tests")
    assert [name for name in names if any(part in unwanted for part in name.split("/"))] == []


def test_doctor_in_an_empty_folder(apclab_of_wheel: Run, tmp_path: Path) -> None:
    done = apclab_of_wheel("doctor", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert checks["numpy"]["state"] == "ok"
    assert not list(tmp_path.iterdir())


def test_data_tables_come_from_the_wheel(apclab_of_wheel: Run, tmp_path: Path) -> None:
    code = "import apclab, apclab.specs as s; print(apclab.data_dir()); print(*s.models())"
    done = apclab_of_wheel("-c", code, cwd=tmp_path, module=False)
    folder, models = done.stdout.splitlines()
    assert Path(folder).parts[-2:] == ("apclab", "_data")
    assert not Path(folder).is_relative_to(ROOT)
    assert "llama-13b" in models.split()


def test_lab_copies_notebooks_and_never_overwrites(apclab_of_wheel: Run, tmp_path: Path) -> None:
    done = apclab_of_wheel("lab", "--copy-only", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    copy = tmp_path / "apclab-notebooks" / "04_decode_lab.ipynb"
    original = ROOT / "notebooks" / "04_decode_lab.ipynb"
    assert copy.read_bytes() == original.read_bytes()

    copy.write_text("mine", encoding="utf-8")
    done = apclab_of_wheel("lab", "--copy-only", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "0 files copied" in done.stdout
    assert copy.read_text(encoding="utf-8") == "mine"


@pytest.mark.slow  # compiles the kernels anew
def test_decode_measures_and_saves_outside_a_checkout(apclab_of_wheel: Run, tmp_path: Path) -> None:
    small = ("--batch", "2", "--input-len", "32", "--output-len", "2", "--budget", "0.05")
    done = apclab_of_wheel("decode", *small, "--backend", "cpu", "--json", "--save", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    records = [json.loads(line) for line in done.stdout.splitlines()]
    assert [record["case"] for record in records] == ["private", "shared", "cascade"]
    assert [record["commit"] for record in records] == [None, None, None]
    (saved,) = (tmp_path / "apclab-results").rglob("*.jsonl")
    assert [json.loads(line) for line in saved.read_text("utf-8").splitlines()] == records
