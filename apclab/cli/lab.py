"""`apclab lab`: JupyterLab on copies of the notebooks, which their user may run, edit and save."""

import json
import os
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from apclab.cli.terminal import CommandError, stdout

FIRST = "00_the_question.ipynb"
COPIES = Path("apclab-notebooks")
_PACKAGE = Path(__file__).resolve().parents[1]


def lab(
    port: Annotated[int | None, typer.Option(help="Port of the server.", min=0, max=65535)] = None,
    ip: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    browser: Annotated[bool, typer.Option(help="Open a browser; off without a display.")] = True,
    copy_only: Annotated[
        bool, typer.Option("--copy-only", help="Copy the notebooks, start nothing.")
    ] = False,
) -> None:
    """Open JupyterLab on the first notebook, the question in 60 seconds."""
    copy_notebooks(notebooks(), COPIES)
    if copy_only:
        return
    if find_spec("jupyterlab") is None:
        install = f"{sys.executable} -m pip install jupyterlab"
        raise CommandError(3, f"jupyterlab is missing; to get it: {install}")
    command = server_command(
        COPIES / FIRST, port=port, ip=ip, browser=browser and has_display(), root=is_root()
    )
    # the server takes the place of this process, so that Ctrl-C and signals are its own
    sys.stdout.flush()
    os.execv(command[0], command)


def notebooks() -> Path:
    """Folder of the notebooks as they were made: of the checkout, else of the wheel."""
    checkout = _PACKAGE.parent
    folder = checkout / "notebooks"
    in_checkout = (checkout / "pyproject.toml").is_file() and folder.is_dir()
    return folder if in_checkout else _PACKAGE / "_notebooks"


def copy_notebooks(source: Path, target: Path) -> None:
    """Copy what is missing in `target` and say what was kept; a file that exists is never touched.

    Raises:
        OSError: `target` cannot be written.
    """
    target.mkdir(exist_ok=True)
    copied, kept, other = 0, 0, list[str]()
    for file in sorted(path for path in source.rglob("*") if path.is_file()):
        name = file.relative_to(source)
        if any(part.startswith(".") for part in name.parts):  # Jupyter's checkpoints
            continue
        copy = target / name
        if copy.exists():
            kept += 1
            if _cells(copy) != _cells(file):
                other.append(str(name))
            continue
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, copy)
        copied += 1
    stdout().print(f"{target}: {copied} files copied, {kept} already there and left as they were")
    if other:
        what = f"not as this version has them: {', '.join(other)}; remove them to get new copies"
        stdout().print(what, markup=False, soft_wrap=True)


def _cells(file: Path) -> object:
    """What is written in a notebook, whatever came out when it ran; of other files all."""
    content = file.read_bytes()
    try:
        return [(cell["cell_type"], cell["source"]) for cell in json.loads(content)["cells"]]
    except (ValueError, KeyError, TypeError):
        return content


def server_command(
    notebook: Path, *, port: int | None, ip: str | None, browser: bool, root: bool
) -> list[str]:
    """The command that serves JupyterLab with `notebook` open."""
    command = [sys.executable, "-m", "jupyterlab"]
    # the folder is the server's root and the notebook its first page, also in the URL it prints
    command.append(f"--ServerApp.root_dir={notebook.parent.resolve()}")
    command.append(f"--LabApp.default_url=/lab/tree/{notebook.name}")
    # our own settings folder turns the news pop-up off without a change to the user's settings
    if not (Path(sys.prefix) / "share/jupyter/lab/settings/overrides.json").exists():
        command.append(f"--LabApp.app_settings_dir={_PACKAGE / 'cli' / 'lab_settings'}")
    if port is not None:
        command.append(f"--ServerApp.port={port}")
    if ip is not None:
        command.append(f"--ServerApp.ip={ip}")
    if not browser:
        command.append("--no-browser")
    if root:
        command.append("--allow-root")
    return command


def is_root() -> bool:
    """Whether this is the superuser, whom Jupyter refuses to serve without being told to."""
    return hasattr(os, "geteuid") and os.geteuid() == 0


def has_display() -> bool:
    """Whether a browser could open a window here."""
    if not sys.platform.startswith("linux"):
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
