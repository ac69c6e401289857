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
from apclab.figures.titles import bandwidth_title, roofline_title, time_title, told_place
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
    # nobody asked for a point: the median one, and over what it is the median
    assert time.layout.title.text == (
        "shared is 1.5× faster<br>than private at hit 0.5 (median of 1.0× to 2.0×)"
    )
    asked = figures.decode_time(table, asked=1.0)
    assert asked.layout.title.text == "shared is 2.0× faster<br>than private at hit 1"
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
    roof, cache = figure.data[:2]
    assert list(roof.x) == list(roof.y)  # DRAM delivers each distinct byte once
    assert list(cache.y) == pytest.approx([60 / 20] * 2)  # last-level cache over DRAM
    assert "plain read of L3: 3.0×" in cache.text
    known = results.published().dropna(subset=["x"])
    assert list(figure.data[2].x) == pytest.approx(known["x"].tolist())
    # issue 4860 does not state what was shared: a line, not a point
    issue = figure.data[3]
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


def title(records: list[Record], asked: float | None = None) -> str:
    found = figures.lines(results.frame(records), "cache_hit")
    return time_title(told_place(found, "cache_hit", asked))


def test_titles_state_what_was_found() -> None:
    assert title([]) == ""
    assert title(sweep()[:1]) == ""
    assert title(sweep(), 1.0) == "shared is 2.0× faster<br>than private at hit 1"
    assert title(sweep(), 0.5) == "shared is 1.5× faster<br>than private at hit 0.5"
    # not measured yet: what there is
    assert title(sweep(), 0.75) == title(sweep())
    slower = [
        record(Workload(batch=6), case, time_us=us) for case, us in zip(CASES, (1, 2), strict=True)
    ]
    assert title(slower, 1.0) == "shared is 2.0× slower<br>than private at hit 1"
    same = [
        record(Workload(batch=6), case, time_us=us)
        for case, us in zip(CASES, (9.9, 10), strict=True)
    ]
    assert title(same, 1.0) == "shared and private take the<br>same time at hit 1"


def test_one_step_measured_twice_is_never_faster() -> None:
    own = [record(OWN_HISTORY, case, time_us=1000) for case in CASES]
    assert title(own) == "no block is shared at hit 0.9:<br>shared is the same work"
    apart = [
        record(OWN_HISTORY, case, time_us=us) for case, us in zip(CASES, (140, 100), strict=True)
    ]
    assert title(apart).endswith("<br>shared is the same work, 1.4× is noise")


def test_a_gain_within_the_noise_is_none() -> None:
    records = [
        record(Workload(batch=6), case, time_us=us)
        for case, us in zip(CASES, (170, 100), strict=True)
    ]
    records[0] |= {"p20_us": 95.0}
    assert title(records) == (
        "1.7× between shared and private at hit 1<br>is noise: this machine was busy"
    )
    # no luckier place hides it
    noisy = [
        {**made, "p20_us": 1.0, "p80_us": 1e6}
        if (made["workload"]["cache_hit"], made["case"]) == (1, "shared")
        else made
        for made in sweep()
        if made["workload"]["cache_hit"] > 0
    ]
    assert title(noisy, 1.0).endswith("is noise: this machine was busy")
    assert title(noisy, 0.5).startswith("shared is 1.5× faster")


def test_private_is_one_line_over_what_it_does_not_know() -> None:
    records = sweep()
    burst = records[2]
    assert burst["case"] == "private"
    for name in ("p20_us", "p50_us", "p80_us"):
        burst[name] *= 3
    burst["gb_per_s"] /= 3
    quiet = records[0]["p50_us"]
    hits = figures.lines(results.frame(records), "cache_hit")[0]
    assert hits.middle == [quiet] * 3
    assert hits.high[0] > 1.5 * quiet  # the scatter is drawn
    assert hits.gb_per_s == pytest.approx([records[0]["gb_per_s"]] * 3)
    assert hits.relative == pytest.approx([records[0]["gb_per_s"] / 20] * 3)
    assert f"{burst['p50_us']:,.1f} us" in hits.hover[1]
    assert "all 3 points" in hits.hover[1]
    # in another axis it is another work at each place
    batches = [record(Workload(batch=batch), "private") for batch in (1, 2, 3)]
    (line,) = figures.lines(results.frame(batches), "batch")
    assert line.middle == [made["p50_us"] for made in batches]


@pytest.mark.parametrize(
    ("axis", "values", "same"),
    [
        ("cache_hit", (0.0, 0.4, 1.0), True),
        ("prefix_groups", (1, 2, 6), True),
        ("primed", (True, False), True),
        ("batch", (5, 6), False),
        ("input_len", (63, 64), False),
        ("output_len", (2, 20), False),
        ("block_size", (8, 16), False),
    ],
)
def test_which_axes_leave_the_work_of_private_alone(
    axis: str, values: tuple[Any, ...], same: bool
) -> None:
    asked: dict[str, Any] = {"batch": 6, "input_len": 63}
    steps = [
        decode_step(Workload(**asked), block_size=value)
        if axis == "block_size"
        else decode_step(Workload(**asked | {axis: value}))
        for value in values
    ]
    tables = [(step.private.block_tables, step.private.seq_lens) for step in steps]
    alike = all(
        np.array_equal(ours, theirs)
        for pair in tables[1:]
        for ours, theirs in zip(tables[0], pair, strict=True)
    )
    assert alike == same == (axis in results.SAME_PRIVATE)


def test_titles_and_sentence_speak_of_one_point_and_one_place_on_the_roofline() -> None:
    records = sweep()
    lines = figures.lines(results.frame(records), "cache_hit")
    for asked in (0.5, 1.0):
        told = told_place(lines, "cache_hit", asked)
        assert told is not None
        ratio = told.gain(0, 1).ratio
        assert f"shared is {ratio:.1f}× faster" in time_title(told)
        said = results.finding(records, {"cache_hit": asked})
        number = f"{ratio:.1f}x" if ratio >= 2 else f"{ratio:.2f}x"
        assert said.startswith(f"shared is {number} faster than private at cache hit {asked:g}: ")
        shared = next(r for r in records if r["case"] == "shared" and
                      r["workload"]["cache_hit"] == asked)  # fmt: skip
        y = shared["gb_per_s"] / 20
        assert f"{y:.1f}× what DRAM delivers" in bandwidth_title(told)
        assert f"{y:.1f}× the DRAM rate" in roofline_title(told)
        assert f"({shared['gb_per_s']:.0f} GB/s, {y:.2f}x" in said or y >= 2


def three(private: float, shared: float, cascade: float) -> list[Record]:
    times = {"private": private, "shared": shared, "cascade": cascade}
    return [record(Workload(batch=6), case, time_us=time) for case, time in times.items()]


def test_cascade_is_told_beside_shared_against_private() -> None:
    def told(*times: float) -> str:
        return title(three(*times), 1.0)

    assert told(300, 150, 100) == "shared is 2.0× faster, cascade 3.0×,<br>at hit 1"
    assert told(300, 150, 150) == "shared is 2.0× faster<br>than private at hit 1"
    assert told(300, 150, 290) == "shared is 2.0× faster, cascade 1.0×,<br>at hit 1"
    assert told(300, 300, 100) == "shared and private take the<br>same time at hit 1, cascade 3.0×"


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
