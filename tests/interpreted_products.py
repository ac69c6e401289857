"""Runs the kernels of prefill and cascade in Triton's interpreter; one JSON line a case.

A process of its own, `TRITON_INTERPRET=1 python -m tests.interpreted_products FOLDER all|some`,
started by test_triton_products.py. The folder takes altered copies of the kernels. It also looks
at how far NaN and infinity in the cache reach, in these kernels and in the decode kernel.
"""

import itertools
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from apclab_kernels.reference import Attended, output_bound, paged_attention_decode
from apclab_kernels.runs import Runs, find_runs
from apclab_kernels.triton.worker import ARRAYS, Tensor

from tests.interpreted import LAYOUTS, ORDERS, ROUNDED_WEIGHTS, planted, report
from tests.kernel_cases import DTYPES, Case, assert_exact


@dataclass(frozen=True)
class Prefill(Case):
    """A prefill: `seq_lens` are cached and new tokens, `new` those of them that are new."""

    new: tuple[int, ...] = ()
    splits: int = 1
    order: str = "request"

    def arrays(self) -> dict[str, Any]:
        arrays = super().arrays()
        rng = np.random.default_rng(self.seed + 1)
        shape = (sum(self.new), self.num_heads, self.head_size)
        arrays["query"] = rng.standard_normal(shape, np.float32).astype(DTYPES[self.dtype])
        starts = np.concatenate([[0], np.cumsum(self.new)])
        return arrays | {"query_start_loc": starts.astype(np.int32)}

    def truth(self, arrays: dict[str, Any]) -> Attended:
        """Each new token is a decode step over the tokens up to itself."""
        of = np.repeat(np.arange(len(self.new)), self.new)
        seen = np.concatenate(
            [np.arange(n - new, n) + 1 for n, new in zip(self.seq_lens, self.new, strict=True)]
        )
        step = {name: arrays[name] for name in ("query", "key_cache", "value_cache")}
        return paged_attention_decode(
            **step, block_tables=arrays["block_tables"][of], seq_lens=seen.astype(np.int32),
            layout=self.layout,
        )  # fmt: skip

    def run(self, arrays: dict[str, Any], kernels: Any) -> tuple[Any, Any]:
        return launch(
            kernels.prefill, arrays, scale=self.head_size**-0.5, layout=self.layout,
            order=self.order, splits=self.splits,
        )  # fmt: skip


@dataclass(frozen=True)
class Cascade(Case):
    """A decode step; of each group of rows the first blocks are those of its first row."""

    groups: tuple[tuple[tuple[int, ...], int], ...] = ()
    splits: int = 1
    piece: int = 64
    order: str = "request"

    def arrays(self) -> dict[str, Any]:
        arrays = super().arrays()
        for rows, blocks in self.groups:
            arrays["block_tables"][list(rows), :blocks] = arrays["block_tables"][rows[0], :blocks]
        return arrays

    def runs(self, arrays: dict[str, Any]) -> Runs:
        return find_runs(arrays["block_tables"], arrays["seq_lens"], self.block_size)

    def truth(self, arrays: dict[str, Any]) -> Attended:
        return paged_attention_decode(**arrays, layout=self.layout)

    def run(self, arrays: dict[str, Any], kernels: Any) -> tuple[Any, Any]:
        return launch(
            kernels.cascade, arrays, scale=self.head_size**-0.5, layout=self.layout,
            order=self.order, splits=self.splits, piece_tokens=self.piece, runs=self.runs(arrays),
        )  # fmt: skip


@dataclass(frozen=True)
class Decode(Cascade):
    """The same step, left to the decode kernel."""

    def run(self, arrays: dict[str, Any], kernels: Any) -> tuple[Any, Any]:
        return launch(
            kernels.decode, arrays, scale=self.head_size**-0.5, layout=self.layout,
            order=self.order, splits=self.splits,
        )  # fmt: skip


Step = Prefill | Cascade


class Kernels(NamedTuple):
    """Modules that a step calls: the kernels' or altered ones."""

    decode: Any = None
    prefill: Any = None
    cascade: Any = None


def real() -> Kernels:
    """The kernels; imported late, so that pytest can list the names without triton."""
    from apclab_kernels.triton import cascade, decode, prefill

    return Kernels(decode, prefill, cascade)


def launch(module: Any, arrays: dict[str, Any], **how: Any) -> tuple[Any, Any]:
    """Bind and run; outputs start as NaN."""
    query = arrays["query"]
    out = np.full(query.shape, np.nan, query.dtype)
    lse = np.full(query.shape[:2], np.nan, np.float32)
    names = [*ARRAYS, *(["query_start_loc"] if "query_start_loc" in arrays else [])]
    tensors = [Tensor(arrays[name]) for name in names]
    with np.errstate(all="ignore"):
        module.run(module.bind(*tensors, Tensor(out), Tensor(lse), **how))
    return out, lse


# --- steps, each in turn with other dtypes, layouts and orders

PREFILLS = (
    Prefill(num_heads=4, num_kv_heads=2, seq_lens=(90, 5, 33, 64), new=(10, 5, 1, 0)),
    Prefill(num_heads=3, num_kv_heads=3, seq_lens=(150, 40), new=(70, 40), block_size=7),
    Prefill(num_heads=6, num_kv_heads=1, head_size=96, seq_lens=(64, 129), new=(16, 2), splits=3),
    Prefill(num_heads=5, num_kv_heads=1, head_size=128, seq_lens=(1, 0, 48), new=(1, 0, 47)),
    Prefill(num_heads=2, num_kv_heads=2, head_size=256, seq_lens=(65, 31), new=(33, 3), splits=2),
    Prefill(num_heads=40, num_kv_heads=2, seq_lens=(70, 9), new=(4, 1), block_size=256),
    Prefill(num_heads=2, num_kv_heads=1, seq_lens=(40,), new=(40,), block_size=1, splits=4),
)
ALL = tuple(range(6))
CASCADES = (
    # a prompt of all, a document of some; tails of one token, none, many
    Cascade(
        num_heads=4, num_kv_heads=2, seq_lens=(97, 96, 130, 33, 70, 200),
        groups=((ALL, 2), ((0, 1, 2, 5), 5)), piece=32,
    ),
    # two groups and a request of its own, ragged splits
    Cascade(
        num_heads=3, num_kv_heads=3, block_size=7, seq_lens=(60, 64, 50, 57, 20), splits=3,
        groups=(((0, 1), 8), ((2, 3), 6)), piece=48,
    ),
    # more requests than rows of a tile, pieces of less than a tile
    Cascade(
        num_heads=8, num_kv_heads=1, head_size=96, seq_lens=(49, 48, 50, 60, 48, 48, 51, 55, 53),
        groups=((tuple(range(9)), 3),), piece=16, splits=2,
    ),
    Cascade(
        num_heads=5, num_kv_heads=1, head_size=128, seq_lens=(0, 40, 33, 1), block_size=32,
        groups=(((1, 2), 1),),
    ),
    # nothing is shared
    Cascade(num_heads=2, num_kv_heads=2, head_size=256, seq_lens=(20, 0, 33), block_size=1),
    # all tails are empty
    Cascade(
        num_heads=2, num_kv_heads=1, head_size=256, seq_lens=(64, 64), block_size=32,
        groups=(((0, 1), 2),), piece=48, splits=2,
    ),
    Cascade(
        num_heads=40, num_kv_heads=2, seq_lens=(40, 50, 64), groups=(((0, 1, 2), 2),), piece=16
    ),
)  # fmt: skip


def steps(*, some: bool) -> list[tuple[str, Step]]:
    """Every step in every dtype and layout by name; `some` takes one layout and order in turn."""
    found: list[tuple[str, Step]] = []
    turns = itertools.cycle(itertools.product(LAYOUTS, ORDERS))
    both: tuple[Step, ...] = (*PREFILLS, *CASCADES)
    for seed, step in enumerate(both):
        for i, dtype in enumerate(DTYPES):
            ways = [next(turns)] if some else list(itertools.product(LAYOUTS, ORDERS))
            if some and (seed + i) % 3 == 2:
                continue
            for layout, order in ways:
                kind = type(step).__name__.lower()
                name = f"{kind} {seed} {dtype} {layout} {order}"
                changed = replace(step, dtype=dtype, layout=layout, order=order, seed=seed)
                found.append((name, changed))
    return found


def checked(step: Step, kernels: Kernels) -> None:
    """Hold a step against float64; what no request has in the cache is NaN."""
    arrays = emptied(step, step.arrays())
    out, lse = step.run(arrays, kernels)
    truth = step.truth(arrays)
    assert_exact(out, lse, truth, step.dtype, rounded_weights=ROUNDED_WEIGHTS[step.dtype])


def filled(step: Step, kernels: Kernels) -> None:
    """As `checked`, with numbers wherever no request has a token."""
    arrays = step.arrays()
    out, lse = step.run(arrays, kernels)
    truth = step.truth(arrays)
    assert_exact(out, lse, truth, step.dtype, rounded_weights=ROUNDED_WEIGHTS[step.dtype])


def by_token(step: Step, cache: Any) -> Any:
    """A cache as a view [num_blocks, block_size, num_kv_heads, head_size]."""
    return cache if step.layout == "NHD" else cache.swapaxes(1, 2)


def emptied(step: Step, arrays: dict[str, Any]) -> dict[str, Any]:
    """NaN wherever no request has a token."""
    used = np.zeros((len(arrays["key_cache"]), step.block_size), bool)
    for table, n in zip(arrays["block_tables"], step.seq_lens, strict=True):
        used[np.repeat(table, step.block_size)[:n], np.arange(n) % step.block_size] = True
    for name in ("key_cache", "value_cache"):
        by_token(step, arrays[name])[~used] = np.nan
    return arrays


# --- how far NaN and infinity reach

SPOILT: dict[str, Step] = {
    "decode": Decode(
        num_heads=4, num_kv_heads=2, seq_lens=(97, 96, 33, 70), groups=(((0, 1), 4),), splits=2
    ),
    "cascade": Cascade(
        num_heads=4, num_kv_heads=2, seq_lens=(97, 96, 33, 70), groups=(((0, 1), 4),), piece=32
    ),
    "prefill": Prefill(
        num_heads=4, num_kv_heads=2, seq_lens=(50, 20, 9), new=(10, 20, 1)
    ),
}  # fmt: skip


def spoilt(step: Step, kernels: Kernels) -> None:
    """NaN and infinities reach the outputs that attend to them, as in the reference, no others."""
    arrays = step.arrays()
    tables, size = arrays["block_tables"], step.block_size
    keys, values = (by_token(step, arrays[name]) for name in ("key_cache", "value_cache"))
    clean = [keys.copy(), values.copy()]
    # request, position, KV head: shared by two requests, of one alone, last of one
    for (request, position, kv_head), bad, value in (
        ((0, 20, 1), keys, np.nan),
        ((0, step.seq_lens[0] - 4, 0), values, np.nan),
        ((0, 20, 1), values, -np.inf),
        ((1, step.seq_lens[1] - 1, 0), values, np.inf),
    ):
        keys[...], values[...] = clean
        bad[tables[request, position // size], position % size, kv_head, 3] = value
        out, lse = step.run(arrays, kernels)
        with np.errstate(invalid="ignore"):
            truth = step.truth(arrays)
        assert not np.isfinite(truth.out).all()
        same_where_not_finite(out, lse, truth, step.dtype)


def same_where_not_finite(out: Any, lse: Any, truth: Attended, dtype: str) -> None:
    """NaN and infinity are where the reference has them; the rest is within its bound."""
    got = out.astype(np.float64)
    finite = np.isfinite(truth.out)
    assert np.array_equal(got[~finite], truth.out[~finite], equal_nan=True), "never written"
    with np.errstate(invalid="ignore"):  # 0 times infinity, where nothing is compared
        bound = output_bound(truth, dtype, rounded_weights=ROUNDED_WEIGHTS[dtype])[finite]
    assert (np.abs(got[finite] - truth.out[finite]) <= bound).all(), "out is outside its bound"
    assert np.array_equal(np.isnan(lse), np.isnan(truth.lse)), "lse errs by NaN"


# --- planted mistakes


class Fault(NamedTuple):
    """A mistake planted into a copy of the kernels; a step must notice it."""

    right: str
    wrong: str
    step: Step = PREFILLS[0]
    check: Callable[[Step, Kernels], None] = checked


SPOILT_AS = (("decode", "bfloat16"), ("cascade", "float32"), ("prefill", "bfloat16"))
OTHERS = (
    *(f"spoilt {kind} {dtype}" for kind, dtype in SPOILT_AS),
    *(f"once {i}" for i in (0, 2, 4)),
)
MANY, SPLIT = CASCADES[2], PREFILLS[2]
DOCUMENTS = Cascade(
    num_heads=4, num_kv_heads=2, seq_lens=(81, 80, 33, 40), groups=(((0, 1, 2, 3), 2), ((0, 1), 5)),
    piece=32,
)  # fmt: skip
FAULTS = {
    "a token does not see itself": Fault("position[None, :] <= own", "position[None, :] < own"),
    "a token sees the next one": Fault("position[None, :] <= own", "position[None, :] <= 1 + own"),
    "the mask begins too late": Fault(
        "(cached + token_first + 1) // TILE", "(cached + token_first + TILE) // TILE",
        PREFILLS[0], filled,
    ),
    "cached tokens are not counted": Fault("own = cached + token", "own = token"),
    "a tile takes the request before": Fault("+ middle <= query_tile", "+ middle < query_tile"),
    "new tokens of the request before": Fault("(start_loc + token).to", "(token).to"),
    "a prefill tile has one block": Fault(
        "position // BLOCK_SIZE", "start // BLOCK_SIZE + position * 0"
    ),
    "prefill heads are interleaved": Fault(
        "kv_head * GROUP + rows % GROUP", "kv_head + rows % GROUP * NUM_KV_HEADS"
    ),
    "earlier tiles are not scaled": Fault("acc * shrink[:, None], input", "acc, input"),
    "prefill lse is in base 2": Fault("lse2 * 0.6931471805599453", "lse2"),
    "splits of a prefill weigh the same": Fault("tl.exp2(parts - top))", "1.0)", SPLIT),
    "NaN reaches earlier tokens": Fault(
        "tl.max((acc != acc).to(tl.int32)) > 0", "tl.max((acc != acc).to(tl.int32)) > 1",
        SPOILT["prefill"], spoilt,
    ),
    "rows of a run have one request": Fault(
        "request_first + rows // GROUP, mask", "request_first + rows * 0, mask", DOCUMENTS
    ),
    "the last token of a piece is left out": Fault(
        "token < last", "token < last - 1", DOCUMENTS
    ),
    "tokens past a piece count": Fault("in_piece[None, :], top", "token[None, :] > -1, top", MANY),
    "a run's tile has one block": Fault(
        "run + token // BLOCK_SIZE", "run + start // BLOCK_SIZE + token * 0", DOCUMENTS
    ),
    "nested runs leave the same state": Fault(
        "part = int(parts[run.requests].max())", "part = 0", DOCUMENTS
    ),
    "tails overwrite the state of a run": Fault("part_first=work.parts", "part_first=0", DOCUMENTS),
    "a run counts again in the tails": Fault(
        "lens = seq_lens - runs.tail_starts", "lens = seq_lens * 1", DOCUMENTS
    ),
    "tails begin a block early": Fault(
        "// block_size + columns", "// block_size - 1 + columns", DOCUMENTS
    ),
    "cascade heads are interleaved": Fault(
        "kv_head * GROUP + rows % GROUP", "kv_head + rows % GROUP * NUM_KV_HEADS", DOCUMENTS
    ),
    "the state of a run has no weight": Fault(
        "lse2 = tl.where(empty, float(\"-inf\"), top + tl.log2(total))", "lse2 = top", DOCUMENTS
    ),
    "states of runs weigh the same": Fault("tl.exp2(parts - top))", "1.0)", DOCUMENTS),
    "no tokens in any state": Fault(
        'tl.where(parts == float("-inf"), 0.0, ', "(", replace(CASCADES[3], splits=2)
    ),
    "what was never written is read": Fault(
        '(there & (parts != float("-inf")))[:', "there[:", DOCUMENTS
    ),
}  # fmt: skip


def checks(folder: Path, *, some: bool) -> Iterator[tuple[str, Callable[[], None]]]:
    """Every check with its name; those that begin with "fault" have to fail."""
    for name, step in steps(some=some):
        yield name, partial(checked, step, real())
    if not some:
        return
    for kind, dtype in SPOILT_AS:
        step = replace(SPOILT[kind], dtype=dtype)
        yield f"spoilt {kind} {dtype}", partial(spoilt, step, real())
    # finite numbers are never gone over again, a token after the other
    right = "    return top, total, acc"
    once = planted(folder, "once", right, f"{right} + 1", "prefill")
    for i in (0, 2, 4):
        step = replace(PREFILLS[i], dtype="float16")
        yield f"once {i}", partial(checked, step, Kernels(prefill=once))
    for name, fault in FAULTS.items():
        kind = type(fault.step).__name__.lower()
        module = planted(folder, name, fault.right, fault.wrong, kind)
        step = replace(fault.step, dtype="float16")
        yield f"fault: {name}", partial(fault.check, step, Kernels(**{kind: module}))


if __name__ == "__main__":
    report(checks(Path(sys.argv[1]), some=sys.argv[2] == "some"))
