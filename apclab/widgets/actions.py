"""The buttons of a lab, its progress bar and its status line. They decide nothing."""

import base64
import html
from collections.abc import Callable
from typing import Any

import ipywidgets as ipw

from apclab.results import measured_dir
from apclab.widgets.runs import Runs

NO_OVERLAY, RUN_BEFORE = "no overlay", "overlay the run before"
# JupyterLab's own, so that they are legible in its themes
_ERROR = "var(--jp-error-color1, #d32f2f)"
_WARNING = "var(--jp-warn-color0, #c05a00)"
_BAR_STYLES = {"done": "success", "error": "danger", "cancelled": "warning"}


class Actions:
    """Run, Cancel, Save, the menu of overlays, progress and status.

    Args:
        run: what the button does; so are `cancel` and `save`.
        overlay: called with NO_OVERLAY, RUN_BEFORE or the path of a saved file.
    """

    def __init__(
        self,
        run: Callable[[], object],
        cancel: Callable[[], object],
        save: Callable[[], object],
        overlay: Callable[[str], object],
    ) -> None:
        self._run = _button("Run", "play", run, "measure the sweep on this machine")
        self._run.button_style = "primary"
        self._cancel = _button("Cancel", "stop", cancel, "stop; what was measured stays")
        self._save = _button("Save", "save", save, "append the records to a file")
        self._overlay = ipw.Dropdown(
            options=_overlay_options(),
            tooltip="show saved records behind the new ones",
            layout={"width": "228px"},
        )
        self._overlay.observe(lambda change: overlay(change["new"]), "value")
        self._bar = ipw.FloatProgress(max=1.0, layout={"width": "180px"})
        self._pace, self._status = ipw.HTML(), ipw.HTML()
        self.buttons = [self._run, self._cancel, self._save, self._overlay]
        self.lines = [self._bar, self._pace, self._status]
        self.notice = ipw.HTML(layout={"display": "none"})

    @property
    def status(self) -> str:
        """What the status line says, without mark-up."""
        return self._text

    def say(self, text: str, *, bad: bool = False) -> None:
        """Put a text on the status line, in the colour of errors when it is `bad`."""
        self._text = text
        colour = _ERROR if bad else "inherit"
        self._status.value = f'<span style="color: {colour}">{html.escape(text)}</span>'

    def warn(self, text: str) -> None:
        """Put a text above the status line, where no run overwrites it; "" takes it away."""
        self.notice.value = f'<span style="color: {_WARNING}">{html.escape(text)}</span>'
        self.notice.layout.display = None if text else "none"

    def offer(self, text: str, name: str, content: bytes) -> None:
        """Put a text on the status line that downloads a file of that name when it is clicked."""
        self.say(text)
        data = base64.b64encode(content).decode()
        self._status.value = (
            f'<a download="{html.escape(name)}" style="text-decoration: underline" '
            f'href="data:application/x-ndjson;base64,{data}">{html.escape(text)}</a>'
        )

    def follow(self, runs: Runs) -> None:
        """Show how far a run is."""
        job = runs.job
        running = job.status == "running"
        self._run.disabled, self._cancel.disabled = running, not running
        self._bar.value = job.progress
        self._bar.bar_style = _BAR_STYLES.get(job.status, "")
        self._pace.value = html.escape(runs.pace()) if running else ""

    def list_overlays(self) -> None:
        """Bring the menu of saved files up to date; the choice stays."""
        chosen = self._overlay.value
        options = _overlay_options()
        self._overlay.options = options
        known = [value for _, value in options]
        self._overlay.value = chosen if chosen in known else NO_OVERLAY


def _button(text: str, icon: str, act: Callable[[], object], tooltip: str) -> Any:
    made = ipw.Button(description=text, icon=icon, tooltip=tooltip, layout={"width": "90px"})
    made.on_click(lambda _: act())
    return made


def _overlay_options() -> list[tuple[str, str]]:
    folder = measured_dir()
    files = sorted(folder.rglob("*.jsonl"), reverse=True)
    saved = [(f"overlay {file.relative_to(folder)}", str(file)) for file in files]
    return [(NO_OVERLAY, NO_OVERLAY), (RUN_BEFORE, RUN_BEFORE), *saved]
