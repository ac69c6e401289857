"""What a decode lab is set to: checked values and the points of its sweep. No widgets in here."""

import math
from dataclasses import dataclass, field, fields, replace
from typing import Any

from apclab.figures import BLOCK_VIEWS, VIEWS, X_AXES
from apclab.specs import DTYPE_BYTES, ModelShape, model
from apclab.workload import ISSUE_4860, PRESETS, Workload

# where a slider ends until more is typed; what fits is for the bench to say
SLIDERS = {
    "batch": (1, 256),
    "input_len": (16, 1024),
    "output_len": (1, 256),
    "prefix_groups": (1, 256),
    "cache_hit": (0.0, 1.0),
}
# values of a menu
CHOICES: dict[str, tuple[Any, ...]] = {
    "dtype": tuple(DTYPE_BYTES),
    "block_size": (8, 16, 32, 64, 128, 256),
    "backend": ("auto", "cpu", "triton"),
    "order": ("auto", "request", "head"),
    "l2": ("cold", "warm"),
    "cascade": (True, False),
    "x": tuple(X_AXES),
    "view": tuple(VIEWS),
    "blocks": BLOCK_VIEWS,
}
WORKLOAD_FIELDS = tuple(SLIDERS)
# of a step whose block tables are made, and drawn, with each move of a control: some seconds
_MOST_TOKENS = 2**24
# to what a point measured: how it is shown, how often and how long it is timed, what else is
_DO_NOT_MATTER = ("view", "blocks", "points", "budget_s", "cascade")


@dataclass(frozen=True)
class Settings:
    """Everything that a sweep depends on.

    Args:
        workload: its fields are the sliders' values.
        model: short name or a shape of one's own.
        dtype: of the KV cache.
        block_size: tokens per block.
        backend: "auto" takes triton where CUDA is at hand, else cpu.
        order: program or loop order of the kernel; "auto" leaves it to the bench.
        l2: "cold" or "warm" last-level cache before a timed call.
        cascade: whether the prefix-aware kernel is measured, too.
        x: what the sweep varies: "cache_hit" over 0 to 1; "batch", "input_len" and
            "prefix_groups" from small to the slider's value (groups: to the batch);
            "block_size" over its menu.
        view: "layer", "token" or "output".
        blocks: the picture of the blocks: "logical" has a request a row, "physical" the pool.
        points: of the sweep, 2 to 33.
        budget_s: seconds of timing a point.

    Raises:
        TypeError: a value of the wrong kind.
        ValueError: a value out of range; the message lists what is allowed.
    """

    workload: Workload = ISSUE_4860
    model: str | ModelShape = "llama-13b"
    dtype: str = "bfloat16"
    block_size: int = 16
    backend: str = "auto"
    order: str = "auto"
    l2: str = "cold"
    cascade: bool = True
    x: str = "cache_hit"
    view: str = "layer"
    blocks: str = "logical"
    points: int = 9
    budget_s: float = 1.0
    shape: ModelShape = field(init=False)

    def __post_init__(self) -> None:
        asked = self.workload
        if (tokens := asked.batch * (asked.input_len + asked.output_len)) > _MOST_TOKENS:
            raise ValueError(
                f"batch x (input + output) must be at most {_MOST_TOKENS:,} tokens in a panel, got "
                f"{tokens:,}; the command line, apclab decode, takes what fits the memory"
            )
        for name, allowed in CHOICES.items():
            if (value := getattr(self, name)) not in allowed:
                known = ", ".join(map(str, allowed))
                raise ValueError(f"{name} must be one of {known}, got {value!r}")
        if type(self.points) is not int or not 2 <= self.points <= 33:
            raise ValueError(f"points must be an int between 2 and 33, got {self.points!r}")
        if not isinstance(self.budget_s, int | float) or not 0 < self.budget_s < math.inf:
            raise ValueError(f"budget_s must be a positive number, got {self.budget_s!r}")
        if not isinstance(self.model, str | ModelShape):
            raise TypeError(f"model must be a name or a ModelShape, got {self.model!r}")
        shape = self.model if isinstance(self.model, ModelShape) else model(self.model)
        object.__setattr__(self, "shape", shape)

    def changed(self, **values: Any) -> "Settings":
        """The same with other values; fields of the workload are meant as well.

        A smaller batch alone takes the prefix groups down with it.

        Raises:
            TypeError: an unknown name; the message lists the known ones.
        """
        own = [item.name for item in fields(self) if item.init and item.name != "workload"]
        known = (*WORKLOAD_FIELDS, *own, "workload")
        for name in values:
            if name not in known:
                raise TypeError(f"no setting {name!r}; there are {', '.join(known)}")
        workload = start(values.pop("workload", self.workload))
        sliders = {name: values.pop(name) for name in WORKLOAD_FIELDS if name in values}
        if isinstance(batch := sliders.get("batch"), int) and "prefix_groups" not in sliders:
            sliders["prefix_groups"] = max(1, min(workload.prefix_groups, batch))
        return replace(self, workload=replace(workload, **sliders), **values)

    def measures_like(self, other: "Settings") -> bool:
        """Whether points that were measured with the other settings belong to these, too.

        How they are shown, how many there are and how long each is timed does not matter, nor
        whether cascade is measured, nor where the control of the x axis stands.
        """
        return self._point() == other._point()

    def words(self) -> str:
        """What the workload does not say: "llama-13b, bfloat16, l2 cold"."""
        order = "" if self.order == "auto" else f", order {self.order}"
        return f"{self.shape.name}, {self.dtype}, l2 {self.l2}{order}"

    def xs(self) -> list[float]:
        """Values of the x axis that the sweep will measure, rising, without repeats."""
        match self.x:
            case "cache_hit":
                return [i / (self.points - 1) for i in range(self.points)]
            case "block_size":
                return list(CHOICES["block_size"])
            case "prefix_groups":
                return self._geometric(1, self.workload.batch)
            case name:
                last = getattr(self.workload, name)
                return self._geometric(min(SLIDERS[name][0], last), last)

    def at(self, x: float) -> "Settings":
        """The settings of one point of the sweep."""
        match self.x:
            case "cache_hit":
                return self.changed(cache_hit=x)
            case name:
                return self.changed(**{name: int(x)})

    def cases(self) -> tuple[str, ...]:
        """What is measured at each point."""
        return ("private", "shared", "cascade") if self.cascade else ("private", "shared")

    def token_bytes(self) -> int:
        """K and V of one token in one layer, bytes."""
        return self.shape.token_bytes(self.dtype)

    def steps(self) -> tuple[str, ...]:
        """The decode steps that the view needs."""
        return ("first", "mid", "last") if self.view == "output" else ("mid",)

    def _point(self) -> dict[str, Any]:
        everything = vars(self.workload) | vars(self)
        left_out = {self.x, "workload", "model", *_DO_NOT_MATTER}
        return {name: value for name, value in everything.items() if name not in left_out}

    def _geometric(self, low: float, high: float) -> list[float]:
        ratio = (high / low) ** (1 / (self.points - 1))
        return sorted({round(low * ratio**i) for i in range(self.points)})


def start(workload: Workload | str) -> Workload:
    """The workload, or the preset of that name; a ValueError lists the names."""
    if isinstance(workload, Workload):
        return workload
    if not isinstance(workload, str):
        raise TypeError(f"workload must be a Workload or the name of a preset, got {workload!r}")
    if workload not in PRESETS:
        raise ValueError(f"workload must be one of {', '.join(PRESETS)}, got {workload!r}")
    return PRESETS[workload]


def preset_name(workload: Workload) -> str:
    """Name of the preset with these values, "custom" when there is none."""
    return next((name for name, known in PRESETS.items() if known == workload), "custom")
