"""Observers: split and merge equals one shot, the grid, quantiles, clips, storage."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from qbcompiler.config import CompileConfig
from qbcompiler.errors import QuantizationError
from qbcompiler.quantization.observers import (
    CLIPS,
    OBSERVERS,
    CalibrationSettings,
    Extremes,
    Grid,
    LogHistogram,
    Span,
    Statistics,
    TensorStatistics,
)
from qbcompiler.quantization.observers.base import by_name
from qbcompiler.quantization.observers.clips import Observed, clip_for
from qbcompiler.quantization.observers.clips import by_name as clips_by_name
from qbcompiler.quantization.observers.clips.divergence import even_bins
from qbcompiler.quantization.observers.clips.percentile import upper_clip
from qbcompiler.quantization.observers.spans import bin_edges

FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)
ARRAYS = hnp.arrays(np.float32, st.integers(1, 40), elements=FINITE)


def observed(array: np.ndarray) -> Observed:
    return Observed(OBSERVERS["range"].reduce(array), LogHistogram.of(array))


def same(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if a is None or isinstance(a, str):
        return bool(a == b)
    return bool(np.array_equal(a, b, equal_nan=True))


@pytest.mark.parametrize("name", sorted(OBSERVERS))
@settings(max_examples=150, deadline=None)
@given(parts=st.lists(ARRAYS, min_size=1, max_size=6), order=st.randoms(use_true_random=False))
def test_split_and_merge_equals_one_shot(name: str, parts: list[np.ndarray], order: Any) -> None:
    observer = OBSERVERS[name]
    whole = observer.to_plain(observer.reduce(np.concatenate(parts)))
    assert same(observer.to_plain(observer.over(parts)), whole)
    shuffled = [observer.reduce(p) for p in parts]
    order.shuffle(shuffled)
    while len(shuffled) > 1:  # any bracketing
        at = order.randrange(len(shuffled) - 1)
        shuffled[at : at + 2] = [observer.merge(shuffled[at], shuffled[at + 1])]
    assert same(observer.to_plain(shuffled[0]), whole)
    assert same(observer.to_plain(observer.from_plain(whole)), whole)


def test_registries_refuse_duplicates_and_nothing_is_nothing() -> None:
    with pytest.raises(ValueError, match="'range' is registered twice"):
        by_name([OBSERVERS["range"], OBSERVERS["range"]])
    with pytest.raises(ValueError, match="'max' is registered twice"):
        clips_by_name([*CLIPS, CLIPS[0]])
    with pytest.raises(ValueError, match="nothing to observe"):
        OBSERVERS["range"].over([])


@settings(max_examples=200, deadline=None)
@given(array=ARRAYS)
def test_every_value_is_counted_in_the_bin_that_holds_it(array: np.ndarray) -> None:
    histogram = LogHistogram.of(array)
    assert histogram.total == array.size
    for span, values in (
        (histogram.positive, array[array > 0]),
        (histogram.negative, -array[array < 0]),
    ):
        values = values.astype(np.float64)
        values = values[values >= 2.0**-133]
        edges = span.edges
        bins = np.searchsorted(edges, values, side="right") - 1
        assert ((edges[bins] <= values) & (values < edges[bins + 1])).all()
        np.testing.assert_array_equal(np.bincount(bins, minlength=span.counts.size), span.counts)
        assert span.total == values.size
        if span.counts.size:
            assert span.counts[0] and span.counts[-1]


def test_bins_are_at_most_a_128th_of_the_value_wide() -> None:
    edges = bin_edges(128, 0x7F80)  # normal numbers, up to infinity
    edges = np.minimum(edges, 2.0**128)
    assert ((edges[1:] - edges[:-1]) / edges[:-1]).max() <= 1 / 128


def test_large_tensors_are_counted_in_parts() -> None:
    array = np.random.default_rng(0).normal(size=(1 << 20) + 12345).astype(np.float32)
    whole = LogHistogram.of(array)
    assert whole == LogHistogram.of(array[:99]) + LogHistogram.of(array[99:])
    assert whole.total == array.size


def test_other_float_types_are_counted_by_value() -> None:
    array = np.asarray([0.5, -1.25, 0, 3], np.float16)
    assert LogHistogram.of(array) == LogHistogram.of(array.astype(np.float64))
    assert LogHistogram.of(array.reshape(2, 2).T) == LogHistogram.of(array)
    assert LogHistogram.of(np.zeros(0, np.float32)) == LogHistogram.empty()


def test_nan_and_infinity_are_seen_by_the_range_and_not_counted() -> None:
    bad = np.asarray([1, np.nan, np.inf, -2], np.float32)
    assert OBSERVERS["histogram"].reduce(bad).total == 2
    found = OBSERVERS["range"].reduce(bad)
    assert math.isnan(found.low) and not found.finite
    merged = OBSERVERS["range"].merge(OBSERVERS["range"].reduce(np.ones(1)), found)
    assert math.isnan(merged.low) and math.isnan(merged.high)
    infinite = OBSERVERS["range"].reduce(np.asarray([1, np.inf]))
    assert OBSERVERS["range"].merge(infinite, Extremes(0, 1)) == Extremes(0, math.inf)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"positive": [[1]]}, "does not hold counts"),
        ({"positive": [0.5]}, "does not hold counts"),
        ({"positive_start": 32768}, "leaves the grid"),
        ({"positive_start": -1}, "leaves the grid"),
        ({"positive": [-1]}, "leaves the grid"),
    ],
)
def test_stored_counts_are_checked(change: dict[str, Any], said: str) -> None:
    data = LogHistogram.of(np.ones(3, np.float32)).to_dict()
    with pytest.raises(ValueError, match=said):
        LogHistogram.from_dict({**data, **change})


# -- mode 0 -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("low", "high", "symmetric", "asymmetric"),
    [
        (-1, 3, (-3, 3), (-1, 3)),
        (-4, 3, (-4, 4), (-4, 3)),
        (2, 3, (-3, 3), (0, 3)),
        (-5, -1, (-5, 5), (-5, 0)),
        (0, 0, (0, 0), (0, 0)),
    ],
)
def test_max_takes_what_was_seen_and_zero(
    low: float, high: float, symmetric: tuple[float, float], asymmetric: tuple[float, float]
) -> None:
    seen = Observed(Extremes(low, high), None)
    rule = clip_for(0, CalibrationSettings())
    assert rule(seen, Grid(8, True), CalibrationSettings()) == symmetric
    assert rule(seen, Grid(8, False), CalibrationSettings()) == asymmetric


# -- mode 1 -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("percentile", "topk", "size"),
    [(0.9999, 0.01, 3_000_000), (0.99, 0.01, 200_000), (0.9, 0.01, 100_000), (0.99, 1.0, 10_000)],
)
def test_max_percentile_clips_the_share_that_it_says(
    percentile: float, topk: float, size: int
) -> None:
    rng = np.random.default_rng(5)
    array = (rng.normal(size=size) ** 3).astype(np.float32)
    chosen = CalibrationSettings(mode=1, percentile=percentile, topk_ratio=topk)
    low, high = clip_for(1, chosen)(observed(array), Grid(), chosen)
    assert low == -high
    allowed = math.floor(size * topk * (1 - percentile) + 1e-6)
    magnitudes = np.sort(np.abs(array).astype(np.float64))
    # the exact order statistic, within the width of one bin
    exact = magnitudes[size - 1 - allowed]
    assert abs(high / exact - 1) <= 1 / 128
    # the largest topk share, and its quantile
    top = magnitudes[-round(size * topk) :]
    assert abs(high / np.quantile(top, percentile, method="higher") - 1) <= 1 / 60


def test_max_percentile_of_few_values_is_the_maximum() -> None:
    array = np.asarray([1, -7.3, 2], np.float32)
    chosen = CalibrationSettings(mode=1)
    rule = clip_for(1, chosen)
    top = float(np.float32(7.3))
    assert rule(observed(array), Grid(), chosen) == (-top, top)
    assert rule(observed(array), Grid(8, False), chosen) == (-top, 2)


def test_max_percentile_clips_each_end_of_an_asymmetric_range() -> None:
    array = np.concatenate(
        [np.full(9998, 1.0), [100.0], np.full(9998, -2.0), [-300.0], [0.0, 0.0]]
    ).astype(np.float32)
    chosen = CalibrationSettings(mode=1, percentile=0.9, topk_ratio=0.001)  # 2 values
    low, high = clip_for(1, chosen)(observed(array), Grid(8, False), chosen)
    assert 1 <= high <= 1.01 and -2.02 <= low <= -2


def test_max_percentile_of_mostly_zeros_keeps_a_range() -> None:
    array = np.zeros(100_000, np.float32)
    array[:3] = [0.5, 1, 2]
    chosen = CalibrationSettings(mode=1, percentile=0.5, topk_ratio=0.01)
    assert clip_for(1, chosen)(observed(array), Grid(), chosen) == (-2, 2)
    zeros = observed(np.zeros(10, np.float32))
    for mode in (0, 1, 2):
        for symmetric in (True, False):
            rule = clip_for(mode, chosen)
            assert rule(zeros, Grid(8, symmetric), chosen) == (0, 0)


@settings(max_examples=100, deadline=None)
@given(array=hnp.arrays(np.float32, st.integers(1, 60), elements=FINITE), share=st.floats(0, 1))
def test_no_more_values_lie_beyond_than_allowed(array: np.ndarray, share: float) -> None:
    magnitudes = np.abs(array).astype(np.float64)
    magnitudes = magnitudes[magnitudes >= 2.0**-133]
    beyond = int(share * array.size)
    peak = float(magnitudes.max(initial=0))
    clip = upper_clip(LogHistogram.of(array).magnitude, beyond, peak)
    assert 0 <= clip <= peak
    # exact but for values of one bin, which are taken as spread evenly
    edges = bin_edges(0, 0x7F80)
    at = min(int(np.searchsorted(edges, clip, side="right")), len(edges) - 1)
    assert (magnitudes >= edges[at]).sum() <= beyond


# -- mode 2 -------------------------------------------------------------------------------


def true_error(array: np.ndarray, low: float, high: float, grid: Grid) -> float:
    x = array.astype(np.float64)
    if grid.symmetric:
        step = high / grid.positive_steps
        q = np.clip(np.rint(x / step), -grid.positive_steps, grid.positive_steps)
        return float(((q * step - x) ** 2).mean())
    step = (high - low) / grid.steps
    zero = np.rint(-low / step)  # zero is on the grid
    q = np.clip(np.rint(x / step) + zero, 0, grid.steps) - zero
    return float(((q * step - x) ** 2).mean())


DISTRIBUTIONS = {
    "normal": lambda r: r.normal(size=200_000),
    "laplace": lambda r: r.laplace(size=200_000),
    "heavy": lambda r: r.standard_t(2.5, size=200_000),
    "relu": lambda r: np.maximum(r.normal(size=200_000), 0),
    "outlier": lambda r: np.concatenate([r.normal(size=200_000), [900.0]]),
    "uniform": lambda r: r.uniform(-3, 3, size=200_000),
    "shifted": lambda r: r.normal(4, 0.5, size=200_000),
    "swish": lambda r: (lambda x: x / (1 + np.exp(-x)))(r.normal(0, 3, size=200_000)),
    "few": lambda r: r.normal(size=20),
}


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_least_squares_finds_about_the_best_clip(name: str, bits: int, symmetric: bool) -> None:
    array = DISTRIBUTIONS[name](np.random.default_rng(2)).astype(np.float32)
    grid = Grid(bits, symmetric)
    chosen = CalibrationSettings(mode=2)
    low, high = clip_for(2, chosen)(observed(array), grid, chosen)
    error = true_error(array, low, high, grid)
    whole_low, whole_high = clip_for(0, chosen)(observed(array), grid, chosen)
    assert error <= true_error(array, whole_low, whole_high, grid) * 1.001
    shares = np.linspace(0.02, 1, 99) if name != "outlier" else np.geomspace(1e-3, 1, 200)
    best = min(true_error(array, whole_low * s, whole_high * s, grid) for s in shares)
    # single values are not spread evenly over their bin, as the estimate takes them to be
    assert error <= best * (1.03 if name not in ("few", "outlier") else 1.15)


def test_sixteen_bits_clip_almost_nothing() -> None:
    array = np.random.default_rng(2).normal(size=100_000).astype(np.float32)
    chosen = CalibrationSettings(mode=2)
    for criterion in ("mse", "kl"):
        chosen = CalibrationSettings(mode=2, criterion=criterion)
        _, high = clip_for(2, chosen)(observed(array), Grid(16), chosen)
        assert high > 0.95 * np.abs(array).max()


def test_divergence_clips_an_outlier_and_keeps_a_uniform_range() -> None:
    rng = np.random.default_rng(3)
    chosen = CalibrationSettings(mode=2, criterion="kl")
    rule = clip_for(2, chosen)
    array = np.concatenate([rng.normal(size=300_000), [40.0]]).astype(np.float32)
    low, high = rule(observed(array), Grid(), chosen)
    assert low == -high and 2.5 < high < 6
    array = rng.uniform(-1, 1, 300_000).astype(np.float32)
    _, high = rule(observed(array), Grid(), chosen)
    assert high > 0.98
    relu = np.maximum(rng.normal(size=300_000), 0).astype(np.float32)
    low, high = rule(observed(relu), Grid(8, False), chosen)
    assert low == 0 and 2.5 < high <= relu.max()


def test_counts_are_spread_evenly_over_equal_bins() -> None:
    array = np.random.default_rng(0).uniform(0, 2, 100_000).astype(np.float32)
    span = LogHistogram.of(array).magnitude
    counts = even_bins(span, float(array.max()), 64)
    assert counts.sum() == pytest.approx(100_000, rel=1e-3)
    assert np.abs(counts / counts.mean() - 1).max() < 0.1


@settings(max_examples=60, deadline=None)
@given(
    array=ARRAYS,
    mode=st.sampled_from([0, 1, 2]),
    criterion=st.sampled_from(["mse", "kl"]),
    symmetric=st.booleans(),
    bits=st.sampled_from([4, 8, 16]),
)
def test_every_rule_keeps_within_what_was_seen(
    array: np.ndarray, mode: int, criterion: str, symmetric: bool, bits: int
) -> None:
    chosen = CalibrationSettings(mode=mode, criterion=criterion)
    low, high = clip_for(mode, chosen)(observed(array), Grid(bits, symmetric), chosen)
    peak = float(np.abs(array.astype(np.float64)).max())
    assert math.isfinite(low) and math.isfinite(high) and low <= 0 <= high
    if symmetric:
        assert low == -high and high <= peak
        assert high > 0 or peak == 0
    else:
        beyond = 2.5 * (high - low) / ((1 << bits) - 1) if mode == 2 else 0
        assert low >= min(0, array.min()) - beyond and high <= max(0, array.max()) + beyond
        assert high > low or peak == 0


# -- statistics ---------------------------------------------------------------------------


def statistics(**tensors: np.ndarray) -> Statistics:
    found = {
        n: TensorStatistics(n, OBSERVERS["range"].reduce(a), LogHistogram.of(a), mode=1)
        for n, a in tensors.items()
    }
    return Statistics(CalibrationSettings(mode=1), found, samples=3, digest="ab")


def test_statistics_survive_a_cache() -> None:
    array = np.random.default_rng(0).normal(size=5000).astype(np.float32)
    before = statistics(a=array, b=-array * 2)
    after = Statistics.from_dict(before.to_dict())
    assert dict(after.ranges) == dict(before.ranges)
    assert (after.samples, after.digest, after.settings) == (3, "ab", before.settings)
    assert same(after.to_dict(), before.to_dict())
    for mode in (0, 1, 2):
        assert after.range("b", mode=mode, bits=16) == before.range("b", mode=mode, bits=16)
    for broken in ({"version": 0}, {"tensors": {"a": {}}}, {"settings": {"x": 1}}, {"tensors": 3}):
        with pytest.raises(ValueError):
            Statistics.from_dict({**before.to_dict(), **broken})


def test_a_value_that_is_not_finite_is_an_error_only_when_it_is_used() -> None:
    bad = TensorStatistics("t", Extremes(0, math.inf), None, layer="exp", bad_sample="7.npy")
    good = TensorStatistics("u", Extremes(0, 1))
    found = Statistics(CalibrationSettings(), {"t": bad, "u": good}, samples=1, digest="")
    assert found.ranges["u"] == (-1, 1) and "t" in found.ranges and len(found.ranges) == 2
    with pytest.raises(QuantizationError, match="layer 'exp' gives values that are not") as error:
        found.ranges["t"]
    assert error.value.details["sample"] == "7.npy"
    with pytest.raises(KeyError):
        found.ranges["other"]


def test_settings_are_read_from_the_configuration() -> None:
    config = CompileConfig.model_validate(
        {
            "calibration": {
                "mode": 1,
                "method": 2,
                "maxPercentile": {"percentile": 0.99, "topkRatio": 0.1},
                "histogram": {"criterion": "kl", "bins": 512},
                "layerOverrides": {"mode": {"conv*": 2}, "method": {"conv1": 0}},
            }
        }
    )
    found = CalibrationSettings.from_config(config)
    assert found == CalibrationSettings(1, 0.99, 0.1, "kl", 512, 2, {"conv*": 2}, {"conv1": 0})
    assert found.clipped_share == pytest.approx(0.001)
    assert CalibrationSettings(**found.to_dict()) == found


def test_spans_add_where_they_do_not_overlap() -> None:
    a, b = Span.of(np.asarray([0, 1, 2, 0])), Span.of(np.asarray([5]), 9)
    both = a + b
    assert both.start == 1 and both.counts.tolist() == [1, 2, 0, 0, 0, 0, 0, 0, 5]
    assert a + Span.of(np.zeros(4, np.int64)) == a == Span.of(np.zeros(0, np.int64)) + a
