"""How a comparison is measured: every knob, checked, with "auto" resolved."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from apclab.arguments import (
    function_or_none,
    instance,
    not_negative,
    one_of,
    some_of,
    whole_number,
)
from apclab.attention import BACKENDS, LAYOUTS, ORDERS, require, resolve, set_threads
from apclab.clock import Cancelled, event_time
from apclab.specs import DTYPE_BYTES

CASES = ("private", "shared", "cascade")
# Chosen by measurement (data/measured, commit ae0154c; issue 4860, bfloat16): whole tokens of a
# request lie in a row in NHD, so private blocks take 31 ms by request, where HND takes 40 and order
# head 46 or 49; bundles of requests find shared blocks in the L2 in either order, 14 to 17 ms.
_AUTO = {"layout": "NHD", "order": "request"}


@dataclass(frozen=True)
class How:
    """Settings of a measurement; the fields are described in `compare_decode`."""

    cases: tuple[str, ...] = ("private", "shared")
    backend: str = "auto"
    dtype: str = "bfloat16"
    layout: str = "auto"
    order: str = "auto"
    l2: str = "cold"
    budget_s: float = 1.0
    memory_limit: int | None = None
    threads: int | None = None
    pairs: int | None = 64
    cancelled: Callable[[], bool] | None = None
    progress: Callable[[float, str], None] | None = None

    @property
    def kind(self) -> str:
        """Where it runs: "cpu" or "cuda"."""
        return "cuda" if self.backend == "triton" else "cpu"

    @property
    def timer(self) -> Callable[[Callable[[], None]], float] | None:
        """What times a call: on a GPU its own events, else the clock's default."""
        return event_time if self.kind == "cuda" else None

    def resolved(self) -> "How":
        """The same with nothing left at "auto".

        Raises:
            TypeError: a field is of another type.
            ValueError: a name is unknown, or a number out of range.
            Unavailable: the backend cannot run here, or has no kernel of a case.
        """
        known = {
            "backend": ("auto", *BACKENDS),
            "dtype": tuple(DTYPE_BYTES),
            "layout": ("auto", *LAYOUTS),
            "order": ("auto", *ORDERS),
            "l2": ("cold", "warm"),
        }
        for name, names in known.items():
            one_of(name, getattr(self, name), names)
        cases = tuple(dict.fromkeys(some_of("cases", self.cases, CASES)))
        if not cases:
            raise ValueError(f"cases must be some of {', '.join(CASES)}, got none")
        not_negative("budget_s", self.budget_s)
        for name in ("memory_limit", "pairs"):
            if (value := getattr(self, name)) is not None:
                whole_number(name, value, 1)
        if self.threads is not None:
            instance("threads", self.threads, int, "an int or None")
        for name in ("cancelled", "progress"):
            function_or_none(name, getattr(self, name))
        backend = resolve(self.backend)
        require(backend)
        if backend == "cpu":
            set_threads(self.threads)
        elif self.threads is not None:
            raise ValueError(f"threads are for backend cpu, got {self.threads} with {backend}")
        auto: dict[str, Any] = {
            name: value for name, value in _AUTO.items() if getattr(self, name) == "auto"
        }
        return replace(self, cases=cases, backend=backend, **auto)

    def look(self) -> None:
        """Raise if the caller wants to stop.

        Raises:
            Cancelled: `cancelled` said so.
        """
        if self.cancelled is not None and self.cancelled():
            raise Cancelled("stopped before timing")

    def tell(self, part: float, what: str) -> None:
        """Report progress, 0 to 1, with a word on what is going on."""
        if self.progress is not None:
            self.progress(part, what)
