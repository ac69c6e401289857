"""The items of a campaign, the most valuable first. What they measure is `bench`'s."""

from functools import partial
from typing import Any

from apclab import bench, specs
from apclab.bench import peers as others
from apclab.campaign.context import Context, Item, Settings, one
from apclab.campaign.ncu import count_bytes
from apclab.clock import environment
from apclab.results import Record, gain_of
from apclab.workload import Workload

# (batch, input tokens, hit, model): the grid spans these, one change from the first of each first
BATCHES = (100, 32, 8, 1, 256)
LENGTHS = (300, 1000, 4000)
HITS = (1.0, 0.5, 0.9)
MODELS = ("llama-13b", "llama-3.1-8b", "llama-3.1-70b")
# shares of the peers' tables that are measured: of 19 blocks, none, half, all but the last
_PEER_SHARES = (18, 0, 9)


def doctor(context: Context) -> None:
    """Versions, host, clocks, memory, read rates of the machine."""
    context.send("row", environment(context.kind))
    ladder = bench.measure_ladder(
        kind=context.kind, budget_s=0.5, cancelled=context.cancelled, progress=context.tell
    )
    context.done += 1
    context.send("row", {"ladder": ladder.rungs, "curve": ladder.curve, "why": ladder.why})


def correctness(context: Context) -> None:
    """Every kernel in every dtype, layout and order against float64, odd sizes, small steps."""
    for check in context.points(bench.checks(context.backend)):
        row = context.attempt(str(check), partial(bench.check_kernel, check))
        if row is not None:
            context.send("row", row)


def calibration(context: Context) -> None:
    """The rates of the kernel, the campaign's dtype first."""
    others = [dtype for dtype in specs.DTYPE_BYTES if dtype != context.settings.dtype]
    for dtype in context.points([context.settings.dtype, *others]):
        act = partial(
            bench.calibrate, context.settings.model, backend=context.backend, dtype=dtype,
            budget_s=_budget(context, 3), cancelled=context.cancelled, progress=context.tell,
        )  # fmt: skip
        context.attempt(f"calibrate {dtype}", act)


def issue(context: Context) -> None:
    """The workload of the issue in all cases."""
    compare(context, context.settings.workload, "issue 4860", budget_s=_budget(context, 2))


def grid(context: Context) -> None:
    """Batch x length x hit x model, one change at a time first."""
    points, large = _grid(context.settings)
    first = context.first == 0
    for batch, length, hit, model in context.points(points):
        work = Workload(batch=batch, input_len=length, cache_hit=hit)
        name = f"batch {batch}, input {length}, hit {hit:g}, {model}"
        compare(context, work, name, model=model, budget_s=_budget(context, 20))
    if large and first:
        context.send("row", {"left out": large, "why": "more than the settings' most_bytes"})


def orders(context: Context) -> None:
    """Loop order and layout, and on a GPU the programs that share a sequence."""
    work = context.settings.workload
    ways = [(layout, order) for layout in ("NHD", "HND") for order in ("request", "head")]
    splits = [1, 8] if context.kind == "cuda" else []
    points: list[Any] = [*ways, *splits]
    for point in context.points(points):
        if isinstance(point, tuple):
            layout, order = point
            name = f"layout {layout}, order {order}"
            compare(context, work, name, layout=layout, order=order, budget_s=_budget(context, 8))
            continue
        long = Workload(batch=point, input_len=8000)
        act = partial(
            bench.compare_splits, long, context.settings.model, dtype=context.settings.dtype,
            budget_s=_budget(context, 8), cancelled=context.cancelled,
        )  # fmt: skip
        for row in context.attempt(f"splits, batch {point}, input 8000", act) or []:
            context.send("row", row)


def cold_warm(context: Context) -> None:
    """The same step with nothing and with everything that fits in the caches."""
    work = context.settings.workload
    few = Workload(batch=min(8, work.batch), input_len=work.input_len)
    for at, asked in context.points([(l2, w) for w in (few, work) for l2 in ("cold", "warm")]):
        name = f"{at} {asked.batch}"
        compare(context, asked, name, l2=at, budget_s=_budget(context, 8))


def peers(context: Context) -> None:
    """The kernels of others that import here, beside ours."""
    settings = others.settings(dtypes=(context.settings.dtype,), shares=_PEER_SHARES)
    for setting in context.points(settings):
        act = partial(
            others.measure_peers, setting, kind=context.kind, budget_s=_budget(context, 6),
            cancelled=context.cancelled, progress=context.tell,
        )  # fmt: skip
        name = f"peers, {setting.shape.name}, {setting.shared}/{setting.entries} shared"
        _peer_rows(context, context.attempt(name, act) or [])


def _peer_rows(context: Context, records: list[Record]) -> None:
    for record in records:
        context.send("row", {
            "kernel": record["kernel"]["name"], "ours": record["kernel"]["ours"],
            "status": record["status"], "reason": record["reason"], "p50_us": record["p50_us"],
            "model": record["model"]["name"], "shared": record["share"]["shared"],
        })  # fmt: skip


def ncu(context: Context) -> None:
    """DRAM bytes and L2 hit rate of private and shared, as the GPU's counters have them."""
    bench.release()  # the process that is counted needs the memory
    for metric in context.points(["dram__bytes_read.sum", "lts__t_sector_hit_rate.pct"]):
        act = partial(count_bytes, metric, context.settings, timeout_s=max(20.0, context.left()))
        for row in context.attempt(metric, act) or []:
            context.send("row", row)


def compare(context: Context, work: Workload, name: str, **how: Any) -> list[Record] | None:
    """One step in all cases; a case that cannot run does not cost the others."""
    asked: dict[str, Any] = {
        "backend": context.backend, "dtype": context.settings.dtype, "cancelled": context.cancelled,
        "progress": context.tell, "cases": context.cases,
    }  # fmt: skip
    model = how.pop("model", context.settings.model)
    records: list[Record] | None = context.attempt(
        name, partial(bench.compare_decode, work, model, **{**asked, **how})
    )
    if records is None and "cascade" in context.cases and not context.cancelled():
        both = {**asked, **how, "cases": ("private", "shared")}
        name = f"{name}, without cascade"
        records = context.attempt(name, partial(bench.compare_decode, work, model, **both))
    private = one(records or [], "private")
    if records and private and one(records, "shared"):
        row: dict[str, Any] = {"point": name, "private_us": private["p50_us"], "noisy": []}
        for record in records:
            if record is not private:
                gain = gain_of(private, record)
                row |= {f"{record['case']}_us": record["p50_us"], record["case"]: gain.ratio}
                row["noisy"] += [record["case"]] * (gain.verdict == "unclear")
        context.send("row", row)
    return records


def _budget(context: Context, parts: int) -> float:
    """Seconds of timing for one of so many points: enough for a median, not all there is."""
    return max(0.0, min(2.0, context.left() / parts / 3))


def _grid(settings: Settings) -> tuple[list[tuple[int, int, float, str]], int]:
    """The points by the number of their changes, then by bytes; and how many are too large."""
    models = dict.fromkeys((settings.model, *MODELS))
    everything = [(b, n, h, m) for b in BATCHES for n in LENGTHS for h in HITS for m in models]
    center = (BATCHES[0], LENGTHS[0], HITS[0], settings.model)

    def size(point: tuple[int, int, float, str]) -> int:
        batch, length, _, model = point
        return batch * length * specs.model(model).token_bytes(settings.dtype)

    def order(point: tuple[int, int, float, str]) -> tuple[int, int]:
        return sum(a != b for a, b in zip(point, center, strict=True)), size(point)

    points = sorted((p for p in everything if size(p) <= settings.most_bytes), key=order)
    return points, len(everything) - len(points)


ITEMS = (
    Item("doctor", doctor, 0.5, 0.0),
    Item("correctness", correctness, 2.0, 1.0),
    Item("calibration", calibration, 2.0, 2.0),
    Item("issue 4860", issue, 2.0, 2.0),
    Item("grid", grid, 14.0, 4.0),
    Item("orders", orders, 2.0, 4.0),
    Item("cold and warm", cold_warm, 2.0, 4.0),
    Item("peers", peers, 3.0, 8.0),
    Item("ncu", ncu, 3.0, 20.0, ("cuda",)),
    # what time is left
    Item("more grid", grid, 1.0, 4.0),
)
