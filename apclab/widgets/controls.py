"""Sliders and menus of a decode lab, bound to its `Settings`. They measure nothing."""

from collections.abc import Callable
from typing import Any

import ipywidgets as ipw

from apclab.specs import ModelShape, models
from apclab.widgets.settings import CHOICES, SLIDERS, Settings, preset_name, start
from apclab.workload import PRESETS

CUSTOM = "custom"
_WORDS = {
    "batch": ("batch", "requests that decode together"),
    "input_len": ("input", "tokens of each prompt"),
    "output_len": ("output", "tokens that each request generates; the middle one is timed"),
    "cache_hit": ("cache hit", "part of each prompt that is a prefix already known to its group"),
    "prefix_groups": ("groups", "different prefixes; as many as requests: a hit without sharing"),
    "dtype": ("dtype", "of the KV cache"),
    "block_size": ("block size", "tokens of a KV block"),
    "backend": ("backend", "auto: triton where CUDA is at hand, else cpu"),
    "order": ("order", "which loop of the kernel is outer: requests or heads"),
    "l2": ("l2", "cold: the cache holds nothing of a timed call, as in an engine"),
    "cascade": ("cascade", "a kernel that reads a shared prefix once for all requests"),
    "x": ("x axis", "what Run varies"),
    "view": ("view", "time of a layer, of a token, or of all tokens (three steps are timed)"),
    "blocks": ("blocks", "picture of the blocks: a row a request, or the pool by block id"),
    "preset": ("preset", "workloads to start from"),
    "model": ("model", "shape of the attention: heads, KV heads, head size, layers"),
}
_MENU_WORDS: dict[str, dict[Any, str]] = {
    "x": {
        "cache_hit": "cache hit",
        "input_len": "input length",
        "prefix_groups": "prefix groups",
        "block_size": "block size",
    },
    "cascade": {True: "with", False: "without"},
    "view": {"layer": "per layer", "token": "per token", "output": "whole output"},
    "blocks": {"logical": "by request", "physical": "by block id"},
}


class Controls:
    """The widgets, and what they are set to.

    Args:
        settings: what they show first.
        on_change: called with the new settings after a user changed one.
        on_error: called with what is wrong with a value that cannot be; it is taken back.
    """

    def __init__(
        self,
        settings: Settings,
        on_change: Callable[[Settings], None],
        on_error: Callable[[Exception], None],
    ) -> None:
        self._settings = settings
        self._on_change, self._on_error = on_change, on_error
        self._writing = False
        shapes = [*models()]
        if isinstance(settings.model, ModelShape):
            shapes.insert(0, settings.model.name)
        self._shapes: dict[str, str | ModelShape] = {name: name for name in shapes}
        self._shapes[settings.shape.name] = settings.model
        self.by_name: dict[str, Any] = {
            "preset": _menu("preset", [*PRESETS, CUSTOM]),
            "model": _menu("model", shapes),
            **{name: _menu(name, CHOICES[name]) for name in CHOICES},
            **{name: _slider(name) for name in SLIDERS},
        }
        # a slider cuts what is typed at its end, so a count has a field of its own
        self.typed = {name: _field(name) for name in SLIDERS if name != "cache_hit"}
        self.write(settings)
        for name, widget in [*self.by_name.items(), *self.typed.items()]:
            widget.observe(lambda change, name=name: self._changed(name, change["new"]), "value")

    @property
    def settings(self) -> Settings:
        """What the controls are set to."""
        return self._settings

    def write(self, settings: Settings) -> None:
        """Show other settings; does not call `on_change`."""
        self._settings = settings
        workload = settings.workload
        self._writing = True
        try:
            for name, (low, high) in SLIDERS.items():
                slider, value = self.by_name[name], getattr(workload, name)
                end = max(workload.batch, 2) if name == "prefix_groups" else max(high, value)
                # an end cuts the value, so the ends move first
                slider.min, slider.max = min(low, value), end
                slider.value = value
                if name in self.typed:
                    self.typed[name].value = value
            for name in CHOICES:
                self.by_name[name].value = getattr(settings, name)
            self.by_name["model"].value = settings.shape.name
            self.by_name["preset"].value = preset_name(workload)
        finally:
            self._writing = False

    def rows(self) -> list[list[Any]]:
        """The controls in the order of the page: what and how, the workload, the kernel."""
        menus = ("preset", "model", "dtype", "backend", "x", "view")
        kernel = ("block_size", "order", "l2", "cascade")
        counts = [ipw.HBox([self.by_name[name], field]) for name, field in self.typed.items()]
        hit = self.by_name["cache_hit"]
        return [
            [self.by_name[name] for name in menus],
            [*counts[:3], hit, *counts[3:]],
            [self.by_name[name] for name in kernel],
        ]

    def _changed(self, name: str, value: Any) -> None:
        if self._writing:
            return
        try:
            match name:
                case "preset" if value == CUSTOM:
                    settings = self._settings
                case "preset":
                    settings = self._settings.changed(workload=start(value))
                case "model":
                    settings = self._settings.changed(model=self._shapes[value])
                case _:
                    settings = self._settings.changed(**{name: value})
        except (TypeError, ValueError) as error:
            self.write(self._settings)
            self._on_error(error)
            return
        self.write(settings)
        self._on_change(settings)


def flow(*widgets: Any) -> Any:
    """A row that wraps."""
    return ipw.Box(widgets, layout={"flex_flow": "row wrap", "align_items": "center"})


def _menu(name: str, options: Any) -> Any:
    label, tooltip = _WORDS[name]
    words = _MENU_WORDS.get(name, {})
    return ipw.Dropdown(
        options=[(words.get(option, str(option)), option) for option in options],
        description=label,
        tooltip=tooltip,
        layout={"width": "174px"},
        style={"description_width": "64px"},
    )


def _slider(name: str) -> Any:
    label, tooltip = _WORDS[name]
    low, high = SLIDERS[name]
    kind = ipw.FloatSlider if isinstance(high, float) else ipw.IntSlider
    step = {"step": 0.05, "readout_format": ".2f"} if isinstance(high, float) else {}
    return kind(
        readout=isinstance(high, float),
        min=low,
        max=high,
        description=label,
        tooltip=tooltip,
        continuous_update=False,
        layout={"width": "228px" if isinstance(high, float) else "158px"},
        style={"description_width": "66px"},
        **step,
    )


def _field(name: str) -> Any:
    label, tooltip = _WORDS[name]
    return ipw.IntText(tooltip=f"{label}: {tooltip}", layout={"width": "62px"})
