"""What an engine's step costs, in formulas: weights, KV blocks and products against rates.

Rates come from `data/devices.csv` or from a calibration of this machine; nothing is measured here.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from apclab import specs
from apclab.arguments import instance, not_negative, truth, whole_number


class StepRates(NamedTuple):
    """What a device gives an engine's step.

    Attributes:
        dram_bytes_per_s: weights and distinct KV blocks come from DRAM at this rate.
        cache_bytes_per_s: every request's KV passes the cache at this rate; None: not known, then
            it is no limit.
        flop_per_s: rate of matrix products.
        fixed_s: of a step, whatever it does.
        basis: where the rates are from, in words.
    """

    dram_bytes_per_s: float
    cache_bytes_per_s: float | None
    flop_per_s: float
    fixed_s: float
    basis: str


# Of the data sheet's rates, what kernels reach. DRAM: vLLM's paged attention in issue 4860, 1664 of
# 2039 GB/s on an A100. Cache: the same kernel with shared blocks, 3235 of 5420 GB/s
# (arXiv 2402.15220, Table 3). Products: assumed, as no published prefill of 13B says it.
DRAM_EFFICIENCY = 0.82
CACHE_EFFICIENCY = 0.60
PRODUCT_EFFICIENCY = 0.60


def device_rates(device: specs.Device, *, fixed_s: float = 0.0) -> StepRates:
    """Rates of a device of `data/devices.csv` times what kernels reach of them.

    Args:
        device: a row.
        fixed_s: seconds of a step that nothing below explains (launches, sampling, scheduling).

    Raises:
        TypeError: device is no row, fixed_s no number.
        ValueError: the row has no rate of products, or fixed_s is no time.
    """
    instance("device", device, specs.Device, "a row of data/devices.csv")
    fixed_s = not_negative("fixed_s", fixed_s)
    if device.half_tflops is None:
        raise ValueError(f"{device.name}: data/devices.csv has no half_tflops of it")
    cache = device.llc_gb_per_s
    said = f"cache at {CACHE_EFFICIENCY:.0%} of {cache:g}" if cache else "cache rate not known"
    return StepRates(
        DRAM_EFFICIENCY * device.dram_gb_per_s * 1e9,
        CACHE_EFFICIENCY * cache * 1e9 if cache else None,
        PRODUCT_EFFICIENCY * device.half_tflops * 1e12,
        fixed_s,
        f"{device.name}: DRAM at {DRAM_EFFICIENCY:.0%} of {device.dram_gb_per_s:g} GB/s, {said}, "
        f"products at {PRODUCT_EFFICIENCY:.0%} of {device.half_tflops:g} TFLOP/s",
    )


def calibrated_rates(
    records: Iterable[Mapping[str, Any]], dtype: str, *, fixed_s: float = 0.0
) -> StepRates:
    """Rates that `apclab calibrate` measured, so as they are: no efficiency is assumed.

    Args:
        records: of kind "calibration"; the last of each probe and dtype counts.
        dtype: of the KV cache.
        fixed_s: seconds of a step besides its work.

    Raises:
        TypeError: fixed_s is no number.
        ValueError: a probe is missing for this dtype, or fixed_s is no time.
    """
    fixed_s = not_negative("fixed_s", fixed_s)
    found: dict[str, Mapping[str, Any]] = {}
    for record in records:
        if record["model"]["dtype"] == dtype:
            found[record["probe"]] = record
    if missing := [probe for probe in ("distinct", "shared", "product") if probe not in found]:
        raise ValueError(
            f"the calibration lacks {', '.join(missing)} for {dtype}; make one with: "
            f"apclab calibrate --dtype {dtype} --save FILE"
        )
    dram, cache, product = (found[probe]["value"] for probe in ("distinct", "shared", "product"))
    return StepRates(
        dram, cache, product, fixed_s,
        f"{found['distinct']['device']['name']}, calibrated {found['distinct']['created'][:10]}: "
        f"own blocks {dram / 1e9:.3g} GB/s, shared {cache / 1e9:.3g}, products "
        f"{product / 1e12:.3g} TFLOP/s",
    )  # fmt: skip


def roofline_step(
    model: specs.ModelShape,
    rates: StepRates,
    *,
    dtype: str = "float16",
    block_size: int = 16,
    reuse: bool = True,
) -> Callable[[Any], float]:
    """A cost of an engine's step: weights and attention one after the other, each at its roof.

    Weights: the longer of reading them all once and multiplying the step's tokens with them.
    Attention: the longest of reading distinct blocks from DRAM, every request's own KV through the
    cache, and the products of queries with keys and values. A first cost: it knows no wave tails,
    no overlap and no limit of one request.

    Args:
        model: whose weights and heads.
        rates: of the device.
        dtype: of weights and KV cache.
        block_size: tokens per block.
        reuse: False: as if each request had its own copy of what it shares (the case `private`).

    Returns:
        A function of `engine.StepWork` that returns seconds.

    Raises:
        TypeError: an argument is of another type.
        ValueError: only the attention's shape of the model is known, or another dtype.
    """
    instance("model", model, specs.ModelShape, "a ModelShape")
    instance("rates", rates, StepRates, "StepRates")
    whole_number("block_size", block_size, 1)
    truth("reuse", reuse)
    token_bytes = model.token_bytes(dtype) * model.num_layers
    head = model.hidden_size * model.vocab_size
    weights = model.num_weights
    weight_bytes = weights * specs.DTYPE_BYTES[dtype]
    pair_flop = 4 * model.num_heads * model.head_size * model.num_layers

    def cost(work: Any) -> float:
        tokens = work.prefill_tokens + work.decode_tokens
        products = 2 * ((weights - head) * tokens + head * work.sampled)
        linear = max(weight_bytes / rates.dram_bytes_per_s, products / rates.flop_per_s)
        logical = work.context_tokens * token_bytes
        distinct = min(logical, work.distinct_blocks * block_size * token_bytes)
        attention = (distinct if reuse else logical) / rates.dram_bytes_per_s
        if rates.cache_bytes_per_s is not None:
            attention = max(attention, logical / rates.cache_bytes_per_s)
        attention = max(attention, work.pairs * pair_flop / rates.flop_per_s)
        seconds: float = linear + attention + rates.fixed_s
        return seconds

    return cost
