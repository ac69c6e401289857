"""Figures from tables that a formula made up: what is drawn is what the records say."""

import json
import math
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest

from apclab import figures, results
from apclab.bench import decode_step
from apclab.blocks import BlockTable
from apclab.figures.titles import best_points, time_title
from apclab.results import Record
from apclab.workload import OWN_HISTORY, Workload
from tests.fakes import LADDER, record

CASES = ("private", "shared")
HITS = (0.0, 0.5, 1.0)


def sweep(*, steps: tuple[str, ...] = ("mid",), **changes: Any) -> list[Record]:
    workloads = [Workload(batch=6, input_len=63, cache_hit=hit) for hit in HITS]
    return [
        record(workload, case, step=step, **changes)
        for workload in workloads
        for step in steps
        for case in CASES
    ]


def traces(figure: go.Figure, name: str) -> list[Any]:
    return [trace for trace in figure.data if trace.name == name]


def test_time_shows_the_records() -> None:
    records = sweep()
    figure = figures.decode_time(results.frame(records), "cache_hit")
    for case in CASES:
        (trace,) = traces(figure, case)
        mine = [record for record in records if record["case"] == case]
        assert list(trace.x) == list(HITS)
        assert list(trace.y) == [record["p50_us"] for record in mine]
        assert trace.text[-1] == f"<b>{case}</b>"
        assert trace.line.color == figures.COLOURS[case]
        assert f"{mine[0]['p50_us']:,.1f} us" in trace.customdata[0]
    band = figure.data[0]
    assert max(band.y) == max(r["p80_us"] for r in records if r["case"] == "private")
    assert min(band.y) == min(r["p20_us"] for r in records if r["case"] == "private")
    assert figure.layout.yaxis.title.text.endswith("µs")


@pytest.mark.parametrize(("view", "factor"), [("token", 40 / 1e3), ("output", 40 * 20 / 1e3)])
def test_views_scale_a_layer(view: str, factor: float) -> None:
    # equal times in all steps, so the output is tokens times layers times a step
    records = sweep(steps=("first", "mid", "last"), time_us=1000.0)
    figure = figures.decode_time(results.frame(records), view=view, num_layers=40)
    (trace,) = traces(figure, "shared")
    assert list(trace.y) == pytest.approx([1000.0 * factor] * 3)
    assert figure.layout.yaxis.title.text.endswith("ms")


def test_the_output_view_needs_three_steps() -> None:
    assert figures.lines(results.frame(sweep()), "cache_hit", "output", 40) == []


def test_bandwidth_has_the_ladder() -> None:
    figure = figures.bandwidth(results.frame(sweep()), LADDER)
    words = [trace.text[0] for trace in figure.data if trace.text and not trace.name]
    assert words == ["L2 150", "L3 60", "DRAM 20"]
    level = [LADDER[0], {**LADDER[1], "gb_per_s": 21.0}, LADDER[2]]
    rungs = [t for t in figures.bandwidth(results.frame(sweep()), level).data if t.text][-3:]
    assert [t.textposition for t in rungs] == ["top right", "top right", "bottom right"]
    (trace,) = traces(figure, "shared")
    assert list(trace.y) == [r["gb_per_s"] for r in sweep() if r["case"] == "shared"]


def test_a_figure_alone_states_its_finding() -> None:
    table = results.frame(sweep())
    time, rates = figures.decode_time(table), figures.bandwidth(table, LADDER)
    roofline = figures.reuse_roofline(table)
    assert "faster<br>than private at hit 1" in time.layout.title.text
    assert "what DRAM delivers" in rates.layout.title.text
    assert "the DRAM rate" in roofline.layout.title.text


def test_roofline_has_measured_and_published_points() -> None:
    records = sweep()
    figure = figures.reuse_roofline(results.frame(records), results.published(), ladder=LADDER)
    (private,) = traces(figure, "private")
    (shared,) = traces(figure, "shared")
    assert list(private.x) == [1.0] * 3
    last = records[-1]
    assert shared.x[-1] == last["logical_bytes"] / last["distinct_bytes"]
    assert shared.y[-1] == last["gb_per_s"] / 20
    roof = figure.data[0]
    assert max(roof.y) == pytest.approx(60 / 20)  # last-level cache over DRAM
    assert "cache 3.0× DRAM" in roof.text
    known = results.published().dropna(subset=["x"])
    assert list(figure.data[1].x) == pytest.approx(known["x"].tolist())
    # issue 4860 does not state what was shared: a line, not a point
    issue = figure.data[2]
    assert "issue 4860" in issue.customdata[0]
    assert issue.y[0] == issue.y[1] == pytest.approx(635_904_000 / 252.511 / 1e3 / 2039)


def test_block_picture_counts_readers() -> None:
    tables = np.array([[1, 2, 3], [1, 2, 4], [1, 5, 0]], dtype=np.int32)
    table = BlockTable(tables, np.array([40, 48, 17], dtype=np.int32), 16)
    (trace,) = figures.block_picture(table).data
    assert [list(row) for row in trace.z] == [[3, 2, 1], [3, 2, 1], [3, 1, None]]
    assert [list(row) for row in trace.text] == tables.tolist()
    words = [[cell.rpartition("<br>")[2] for cell in row] for row in trace.customdata]
    assert words[0] == ["tokens 16", "tokens 16", "tokens 8"]
    assert words[2] == ["tokens 16", "tokens 1", ""]
    assert trace.customdata[1][2] == "request 1, its block 2<br>tokens 16"
    assert list(trace.y) == [0, 1, 2]


def test_block_picture_sets_prefix_groups_apart() -> None:
    step = decode_step(Workload(batch=16, input_len=64, prefix_groups=4, cache_hit=0.5))
    figure = figures.block_picture(step.shared)
    (trace,) = figure.data
    # requests i, i + 4, ... share 2 blocks of 16 tokens; then comes an empty row
    rows = [list(row) for row in trace.z]
    assert rows[:5] == [[4, 4, 1, 1, 1]] * 4 + [[None] * 5]
    assert len(rows) == 4 * 4 + 3
    asked = [row[0].partition(",")[0] for row in trace.customdata[:6]]
    assert asked[:4] == [f"request {i} of group 0" for i in (0, 4, 8, 12)]
    assert asked[5] == "request 1 of group 1"
    assert list(figure.layout.yaxis.ticktext) == [f"group {i}" for i in range(4)]
    assert list(figure.layout.yaxis.tickvals) == [1.5, 6.5, 11.5, 16.5]
    # own histories: each on its own, so nobody stands apart
    alone = decode_step(Workload(batch=4, prefix_groups=4, cache_hit=0.5))
    assert len(figures.block_picture(alone.shared).data[0].z) == 4


def test_the_physical_picture_has_each_block_once() -> None:
    tables = np.array([[7, 2, 3], [7, 2, 4], [7, 5, 0]], dtype=np.int32)
    table = BlockTable(tables, np.array([40, 48, 17], dtype=np.int32), 16)
    figure = figures.block_picture(table, "physical")
    (trace,) = figure.data
    assert [list(row) for row in trace.z] == [[None, 2, 1, 1, 1, None, 3, None]]
    assert list(trace.text[0]) == [1, 2, 3, 4, 5, 6, 7, 0]
    assert trace.customdata[0][6] == "read by request 0, 1, 2<br>tokens 16"
    assert trace.customdata[0][4] == "read by request 2<br>tokens 1"
    assert figure.layout.title.text == "2 of 5 blocks in use<br>have several readers"


@pytest.mark.parametrize("batch", [1, 100, 256])
@pytest.mark.parametrize("groups", [1, 8])
def test_both_pictures_hold_every_reader(batch: int, groups: int) -> None:
    groups = min(batch, groups)
    step = decode_step(Workload(batch=batch, prefix_groups=groups, cache_hit=0.8))
    sharing = step.shared.sharing()
    for view, total in (
        ("logical", int(sharing.readers.sum())),
        ("physical", sharing.table_entries),
    ):
        (trace,) = figures.block_picture(step.shared, view).data
        assert sum(cell for row in trace.z for cell in row if cell) == total
        assert {len(row) for row in trace.z} == {len(trace.x)}
        assert len(trace.z) == len(trace.text) == len(trace.customdata) == len(trace.y)


def test_ids_far_apart_are_drawn_side_by_side() -> None:
    tables = np.array([[900_000, 5]], dtype=np.int32)
    table = BlockTable(tables, np.array([32], dtype=np.int32), 16)
    (trace,) = figures.block_picture(table, "physical").data
    assert list(trace.text[0][:2]) == [5, 900_000]
    with pytest.raises(ValueError, match="view must be one of logical, physical, got 'pool'"):
        figures.block_picture(table, "pool")


def test_records_without_a_place_are_left_out() -> None:
    """Given tables have no hit, and a device may not know its DRAM rate: no NaN gets out."""
    (made,) = [record(Workload(batch=6, input_len=63), "shared")]
    lengths = ("input_len", "output_len", "cache_hit", "realised_hit", "prefix_groups")
    asked = {**made["workload"], **dict.fromkeys(lengths)}
    unknown: dict[str, Any] = {"dram_gb_per_s": None, "dram_basis": None, "ladder": []}
    for odd in ({**made, "workload": asked}, {**made, "device": {**made["device"], **unknown}}):
        for records, overlay in (([], [odd]), ([odd], [])):
            page = figures.lab_page(panels(records, overlay))
            assert "NaN" not in json.dumps(page.to_dict())
            assert "nan" not in str(page.layout.annotations)


def test_a_large_table_is_thinned_and_says_so() -> None:
    step = decode_step(Workload(batch=256, input_len=1024, cache_hit=0.5), block_size=8)
    figure = figures.block_picture(step.shared)
    rows, columns = len(figure.data[0].z), len(figure.data[0].z[0])
    assert rows * columns <= 12_000
    asked = [row[0].partition(",")[0] for row in figure.data[0].customdata[:2]]
    assert asked == ["request 0", "request 3"]
    assert "1 row of 3 is drawn" in figure.layout.yaxis.title.text
    figure = figures.block_picture(step.private, "physical")
    rows, columns = len(figure.data[0].z), len(figure.data[0].z[0])
    assert rows * columns <= 12_000 + columns
    assert "1 row of 3 is drawn" in figure.layout.yaxis.title.text


def test_titles_state_what_was_found() -> None:
    def title(records: list[Record]) -> str:
        found = figures.lines(results.frame(records), "cache_hit")
        return time_title(best_points(found), "cache_hit")

    assert title([]) == ""
    assert title(sweep()[:1]) == ""
    assert title(sweep()).startswith("shared is ")
    assert title(sweep()).endswith("at hit 1")
    own = [record(OWN_HISTORY, case, time_us=1000) for case in CASES]
    assert "same time" in title(own)
    # a larger ratio within noise does not hide a smaller one that is clear
    noisy = [
        {**made, "p20_us": 1.0} if made["workload"]["cache_hit"] == 1 else made
        for made in sweep()
        if made["workload"]["cache_hit"] > 0
    ]
    assert title(noisy).endswith("at hit 0.5")
    slower = [record(OWN_HISTORY, case, time_us=t) for case, t in zip(CASES, (1, 2), strict=True)]
    assert "nowhere faster" in title(slower)


def three(private: float, shared: float, cascade: float) -> list[Record]:
    times = {"private": private, "shared": shared, "cascade": cascade}
    return [record(Workload(batch=6), case, time_us=time) for case, time in times.items()]


def test_cascade_is_told_beside_shared_against_private() -> None:
    def told(*times: float) -> str:
        found = figures.lines(results.frame(three(*times)), "cache_hit")
        return time_title(best_points(found), "cache_hit")

    assert told(300, 150, 100) == "shared is 2.0× faster, cascade<br>3.0×, at hit 1"
    assert told(300, 150, 150) == "shared is 2.0× faster<br>than private at hit 1"
    assert told(300, 300, 100) == "shared and private take the<br>same time, cascade 3.0×"


@pytest.mark.parametrize(
    ("times", "positions"),
    [
        ((300, 290, 280), ("top right", "middle right", "bottom right")),
        ((300, 150, 140), ("middle right", "top right", "bottom right")),
        ((300, 200, 100), ("middle right", "middle right", "middle right")),
    ],
)
def test_names_of_lines_that_end_close_together_stand_apart(
    times: tuple[float, float, float], positions: tuple[str, ...]
) -> None:
    figure = figures.decode_time(results.frame(three(*times)), "cache_hit")
    named = {trace.name: trace.textposition for trace in figure.data if trace.name}
    assert tuple(named[case] for case in ("private", "shared", "cascade")) == positions


def panels(records: list[Record], overlay: list[Record], view: str = "layer") -> Any:
    step = decode_step(Workload(batch=6, input_len=63))
    return {"blocks": figures.block_panel(step.shared)} | figures.sweep_panels(
        results.frame(records),
        "cache_hit",
        view,
        overlay=results.frame(overlay),
        published=results.published(),
        ladder=LADDER,
        xs=HITS,
        num_layers=40,
        settings={"batch": 6, "input_len": 63, "output_len": 20, "cache_hit": 1.0}
        | {"prefix_groups": 1, "block_size": 16},
    )


def test_a_page_redrawn_equals_a_page_drawn() -> None:
    old, new = panels([], []), panels(sweep(), sweep(time_us=500.0))
    page = figures.lab_page(old)
    figures.redraw(page, new, old)
    assert page.to_dict() == figures.lab_page(new).to_dict()
    figures.redraw(page, old, new)
    assert page.to_dict() == figures.lab_page(old).to_dict()


def test_two_saved_sweeps_do_not_touch() -> None:
    other = [record(Workload(batch=7, input_len=63, cache_hit=hit), "shared") for hit in (0.0, 1.0)]
    page = figures.lab_page(panels([], [*sweep(), *other]))
    saved = [trace for trace in page.data if trace.yaxis == "y2" and trace.line.dash == "dot"]
    private, shared = ([*trace.x] for trace in saved if trace.x)
    assert private == [*HITS]
    assert shared == [*HITS, None, 0.0, 1.0]


def test_no_record_is_left_out() -> None:
    # two sweeps in one table, and groups that follow a small batch
    both = [*sweep(), *sweep(block_size=32)]
    (trace,) = traces(figures.decode_time(results.frame(both)), "shared")
    assert list(trace.x) == [*HITS, None, *HITS]
    batches = [
        record(Workload(batch=batch, input_len=63, prefix_groups=min(batch, 4)), "shared")
        for batch in (1, 3, 8)
    ]
    (trace,) = traces(figures.decode_time(results.frame(batches), "batch"), "shared")
    assert list(trace.x) == [1, 3, 8]


def test_nothing_that_a_browser_gets_is_an_array() -> None:
    # some front ends cannot unpack NumPy's typed arrays
    page = figures.lab_page(panels(sweep(), sweep()))
    text = json.dumps(page.to_dict())  # would raise on an array
    assert "bdata" not in text
    assert "NaN" not in text


@pytest.mark.parametrize("theme", figures.THEMES)
def test_themes(theme: str) -> None:
    page = figures.lab_page(panels(sweep(), []), theme=theme)
    clear = page.layout.paper_bgcolor == "rgba(0,0,0,0)"
    assert clear == (theme == "auto")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"x": "hit"}, "x must be one of cache_hit, batch, .*, got 'hit'"),
        ({"view": "year"}, "view must be one of layer, token, output, got 'year'"),
        ({"view": "token"}, "num_layers must be given for view 'token'"),
        ({"theme": "neon"}, "theme must be one of auto, light, dark, got 'neon'"),
    ],
)
def test_misuse_is_named(arguments: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        figures.decode_time(results.frame(sweep()), **arguments)  # type: ignore[arg-type]


def test_a_log_axis_has_the_points_as_ticks() -> None:
    records = [
        record(Workload(batch=batch, input_len=63), case) for batch in (1, 8) for case in CASES
    ]
    axis = figures.decode_time(results.frame(records), "batch").layout.xaxis
    assert axis.type == "log"
    assert list(axis.tickvals) == [1, 8]
    assert axis.range[0] < 0 < math.log10(8) < axis.range[1]


@pytest.mark.parametrize(("tokens", "step"), [(40, 1), (130, 2), (300, 5), (4000, 50)])
def test_block_picture_has_whole_ticks(tokens: int, step: int) -> None:
    # blocks of 16 tokens: 3, 9, 19 and 251 columns
    table = decode_step(Workload(batch=2, input_len=tokens, output_len=2)).shared
    assert figures.block_picture(table).layout.xaxis.dtick == step
