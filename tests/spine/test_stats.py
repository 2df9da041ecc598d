"""The verdict rules by simulation: coverage of every interval rule, and how often it reads a false `holds`.

The true effect lies exactly at the threshold. A rule then reads `holds` with a chance of 2.5 % on each side, and
its interval covers the truth in 95 % of samples. What a simulation of `trials` samples may show beside that is
four standard errors of a binomial share. Where a rule is known to err, the allowance is the theory's: Edgeworth's
first term for skewed samples, the steps of the binomial distribution for shares and medians. Shares need no
simulation: every possible table is enumerated.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from scipy.stats import binom, multinomial, norm, t

from assay.stats import (
    BOOTSTRAP_FROM,
    Interval,
    _tango_score,
    bootstrap,
    expected_false_holds,
    mean_interval,
    paired,
    paired_shares,
    proportion,
)
from assay.study import Claim, Outcome

UNITS = (3, 5, 10, 20, 100)
NOMINAL = 0.025
Z = float(norm.ppf(1 - NOMINAL))

# name: (sampler, mean, median, skewness)
POPULATIONS: dict[str, tuple[Callable, float, float, float]] = {
    "normal": (lambda rng, n: rng.normal(size=n), 0.0, 0.0, 0.0),
    "skewed": (lambda rng, n: rng.exponential(size=n), 1.0, math.log(2), 2.0),
    "bounded": (lambda rng, n: rng.uniform(size=n), 0.5, 0.5, 0.0),
    "discrete": (lambda rng, n: rng.binomial(4, 0.5, size=n).astype(float), 2.0, 2.0, 0.0),
}


def claim(side: str) -> Claim:
    return Claim(
        id="C", statement="s", paper="p", measured="m", unit="u", home="h", control="none: a test", arm="a", side=side
    )


def false_holds(rule: Callable[[np.random.Generator], Interval], truth: float, trials: int) -> dict[str, float]:
    """Share of samples whose verdict is `holds` on each side of a threshold at the truth; the rest is covered."""
    rng = np.random.default_rng(20)
    intervals = [rule(rng) for _ in range(trials)]
    return {
        side: float(np.mean([claim(side).judge(i, threshold=truth).outcome is Outcome.holds for i in intervals]))
        for side in ("below", "above")
    }


def allowed(share: float, trials: int) -> float:
    """The largest share that a simulation of a chance of `share` may show: four binomial standard errors."""
    return share + 4 * math.sqrt(share * (1 - share) / trials)


def assert_nominal(seen: dict[str, float], trials: int, allowance: float = 0.0) -> None:
    for side, share in seen.items():
        assert share <= allowed(NOMINAL + allowance, trials), (side, share)
    assert sum(seen.values()) <= allowed(2 * NOMINAL + allowance, trials), seen


def edgeworth(skewness: float, n: int) -> float:
    """First term of the error on the tail's side: Hall (1988) for Student's t, and for the percentile interval."""
    factor = Z**2 + 2 if n >= BOOTSTRAP_FROM else 2 * Z**2 + 1
    return skewness * factor * float(norm.pdf(Z)) / (6 * math.sqrt(n))


def trials_for(n: int) -> int:
    return 800 if n < 20 else 400 if n < 100 else 200


@pytest.mark.parametrize("n", UNITS)
@pytest.mark.parametrize("population", POPULATIONS)
def test_mean(population, n):
    sample, mean, _, skewness = POPULATIONS[population]
    trials = trials_for(n)
    seen = false_holds(lambda rng: mean_interval(sample(rng, n), n_resamples=1000), mean, trials)
    if skewness:
        assert seen["below"] <= allowed(NOMINAL + edgeworth(skewness, n), trials), seen
        assert seen["above"] <= allowed(NOMINAL, trials), seen
    else:
        # Three bounded values miss the tails of Student's t: 7.7 % for a uniform sample (see below).
        assert_nominal(seen, trials, allowance=0.014 if population == "bounded" and n < 10 else 0.0)


def test_oracle_three_uniform_values_miss_by_the_known_chance():
    """Student's t at three uniform values errs by 7.7 %: the allowance of `test_mean`, by quadrature."""
    grid = (np.arange(100) + 0.5) / 100 - 0.5
    a, b, c = np.meshgrid(grid, grid, grid, sparse=True)
    mean = (a + b + c) / 3
    error = np.sqrt(((a - mean) ** 2 + (b - mean) ** 2 + (c - mean) ** 2) / 6)
    chance = float(np.mean(np.abs(mean) > t.ppf(1 - NOMINAL, 2) * error))
    assert 2 * NOMINAL < chance < 2 * (NOMINAL + 0.014)


@pytest.mark.parametrize("n", UNITS)
@pytest.mark.parametrize("population", POPULATIONS)
def test_median(population, n):
    """A median of few values: the jackknife would cover 70 to 89 % between 5 and 19 units."""
    sample, _, median, _ = POPULATIONS[population]
    trials = trials_for(n) // 2

    def rule(rng: np.random.Generator) -> Interval:
        values = sample(rng, n)
        return bootstrap(lambda rows: np.median(values[rows], axis=-1), n, n_resamples=1000)

    # The ends are order statistics from 20 units up: a level of the binomial distribution, not 95 % itself.
    step = float(np.diff(binom.cdf(np.arange(n + 1), n, 0.5)[binom.cdf(np.arange(n + 1), n, 0.5) < 0.06])[-1:].sum())
    assert_nominal(false_holds(rule, median, trials), trials, allowance=min(step, 0.015))


@pytest.mark.parametrize("n", UNITS)
def test_ratio_of_sums(n):
    trials = trials_for(n) // 2

    def rule(rng: np.random.Generator) -> Interval:
        cost = rng.uniform(1, 2, size=n)
        gain = cost * (2 + 0.3 * rng.normal(size=n))
        return bootstrap(lambda rows: gain[rows].sum(-1) / cost[rows].sum(-1), n, n_resamples=1000)

    assert_nominal(false_holds(rule, 2.0, trials), trials)


@pytest.mark.parametrize("n_clusters", [3, 5, 10, 20])
def test_clusters(n_clusters):
    labels = np.repeat(np.arange(n_clusters), 4)

    def rule(rng: np.random.Generator, clusters: np.ndarray | None = labels) -> Interval:
        values = rng.normal(size=n_clusters)[labels] + 0.5 * rng.normal(size=len(labels))
        return bootstrap(lambda rows: values[rows].mean(axis=-1), len(labels), clusters=clusters, n_resamples=300)

    assert_nominal(false_holds(rule, 0.0, 200), 200)
    ignored = false_holds(lambda rng: rule(rng, None), 0.0, 200)
    assert sum(ignored.values()) > allowed(2 * NOMINAL, 200), "rows taken for independent must show"


@pytest.mark.parametrize("sizes", [[2, 2, 2], [2] * 10, [5] * 4, [10, 10], [2, 50], [20] * 5, [1] * 6 + [14]], ids=str)
def test_strata(sizes):
    labels = np.repeat(np.arange(len(sizes)), sizes)
    truth = float((10.0 * labels).mean())

    def rule(rng: np.random.Generator) -> Interval:
        values = 10 * labels + rng.normal(size=len(labels))
        return bootstrap(lambda rows: values[rows].mean(axis=-1), len(labels), strata=labels, n_resamples=600)

    assert_nominal(false_holds(rule, truth, 300), 300)


def test_strata_narrow_an_interval_that_units_alone_would_widen():
    labels = np.repeat([0, 1], 20)
    values = 10.0 * labels + np.random.default_rng(0).normal(size=40)
    within = bootstrap(lambda rows: values[rows].mean(axis=-1), 40, strata=labels)
    across = bootstrap(lambda rows: values[rows].mean(axis=-1), 40)
    assert within.high - within.low < (across.high - across.low) / 3


@pytest.mark.parametrize("n", UNITS)
def test_oracle_a_share_is_covered_at_every_chance(n):
    """Clopper and Pearson guarantee 97.5 % on each side; all outcomes are enumerated."""
    intervals = [proportion(k, n) for k in range(n + 1)]
    for chance in np.linspace(0.005, 0.995, 199):
        weights = binom.pmf(np.arange(n + 1), n, chance)
        assert sum(w for w, i in zip(weights, intervals, strict=True) if i.low > chance) <= NOMINAL + 1e-12
        assert sum(w for w, i in zip(weights, intervals, strict=True) if i.high < chance) <= NOMINAL + 1e-12


@pytest.mark.parametrize("n", [n for n in UNITS if n < 100] + [60])
def test_oracle_paired_shares_at_every_table(n):
    """False `holds` of the difference of shares, exactly, at each difference and each share of worse units.

    A score interval errs by the steps of its tables: it may double the nominal chance somewhere, and must
    not exceed it on average. A Wald-type interval exceeds 10 % here.
    """
    tables = np.array([(b, c, n - b - c) for b in range(n + 1) for c in range(n + 1 - b)])
    lows = np.array([_table_interval(b, c, n).low for b, c, _ in tables])
    for difference in (-0.5, -0.3, -0.2, -0.1, -0.05, -0.01, 0.0, 0.01, 0.05, 0.1, 0.2, 0.3, 0.5):
        against = lows > difference + 1e-12
        worse = np.linspace(max(0.0, -difference), (1 - difference) / 2, 40)
        chances = np.stack([worse + difference, worse, np.maximum(0, 1 - difference - 2 * worse)], axis=1)
        errors = [multinomial.pmf(tables[against], n, chance).sum() if against.any() else 0.0 for chance in chances]
        assert max(errors) <= 2 * NOMINAL, (difference, max(errors))
        assert np.mean(errors) <= NOMINAL, (difference, np.mean(errors))


def test_oracle_paired_shares_at_a_hundred_units():
    rng = np.random.default_rng(4)
    for chances in ([0.1, 0.0, 0.9], [0.2, 0.1, 0.7], [0.3, 0.3, 0.4]):
        tables, counts = np.unique(rng.multinomial(100, chances, size=4000), axis=0, return_counts=True)
        intervals = [_table_interval(b, c, 100) for b, c, _ in tables]
        truth = chances[0] - chances[1]
        for wrong in ([i.low > truth for i in intervals], [i.high < truth for i in intervals]):
            # 0.038 is what the steps of the binomial distribution leave at ten expected differences.
            assert counts[wrong].sum() / 4000 <= allowed(0.038, 4000)


def test_oracle_tango_score_maximises_the_likelihood():
    """The score's closed form against a search for the likeliest share of worse units."""
    for better, worse, n, difference in [(7, 2, 20, 0.1), (1, 4, 12, -0.4), (3, 3, 9, 0.2), (5, 1, 60, 0.3)]:

        def cost(share, better=better, worse=worse, n=n, difference=difference):
            chances = share + difference, share, 1 - difference - 2 * share
            return -sum(k * math.log(p) for k, p in zip((better, worse, n - better - worse), chances, strict=True))

        bounds = max(0.0, -difference) + 1e-12, (1 - difference) / 2 - 1e-12
        share = minimize_scalar(cost, bounds=bounds, method="bounded", options={"xatol": 1e-12}).x
        variance = n * (2 * share + difference - difference**2)
        expected = (better - worse - n * difference) / math.sqrt(variance)
        assert _tango_score(better, worse, n, difference) == pytest.approx(expected, rel=1e-5)


def _table_interval(better: int, worse: int, n: int) -> Interval:
    units = np.arange(n)
    return paired_shares(units < better, (units >= better) & (units < better + worse))


@pytest.mark.parametrize("n", UNITS)
def test_mean_of_successes_has_the_coverage_of_a_share(n):
    """Zeros and ones handed to `mean_interval`: three of four samples of three would mislead Student's t."""
    intervals = [mean_interval([1.0] * k + [0.0] * (n - k)) for k in range(n + 1)]
    for chance in (0.01, 0.05, 0.1, 0.3, 0.5, 0.7, 0.9, 0.95, 0.99):
        weights = binom.pmf(np.arange(n + 1), n, chance)
        for side in ("below", "above"):
            held = [claim(side).judge(i, threshold=chance).outcome is Outcome.holds for i in intervals]
            assert weights[held].sum() <= 2 * NOMINAL, (side, chance)


@pytest.mark.parametrize("n", [3, 10, 20, 200])
@pytest.mark.parametrize("value", [0.7, -3.0, 1 / 3, 1e-9])
def test_identical_values_leave_the_verdict_open(value, n):
    interval = mean_interval(np.full(n, value) + 0.0)
    assert (interval.low, interval.high) == (-math.inf, math.inf)
    for side in ("below", "above"):
        verdict = claim(side).judge(interval, threshold=0.0)
        assert verdict.outcome is Outcome.unclear and "no finite interval" in verdict.reason
    rounded = value * (1 + np.arange(n) % 2 * 2e-16)
    assert math.isinf(mean_interval(rounded).high)


def test_no_difference_anywhere_still_has_a_width():
    """No unit differs: at 20 units a difference of 0.1 would be missed in one such sample of eight."""
    interval = mean_interval(np.zeros(20))
    assert interval.estimate == 0 and interval.low < -0.1 and interval.high > 0.1
    assert mean_interval(np.zeros(3000)).high < 0.002


@pytest.mark.parametrize("size", [0.05, 1.0, 40.0])
def test_two_levels_are_successes_of_another_size(size):
    share = mean_interval([0.0] * 3 + [1.0] * 27)
    scaled, shifted = (mean_interval(origin + size * np.array([0.0] * 3 + [1.0] * 27)) for origin in (0.0, 5 * size))
    assert scaled.low == pytest.approx(size * share.low) and scaled.high == pytest.approx(size * share.high)
    assert shifted.low == pytest.approx(5 * size + size * share.low)


@pytest.mark.parametrize("n", [0, 1, 2])
def test_fewer_than_three_units_decide_nothing(n):
    values = np.arange(n, dtype=float)
    for interval in (
        mean_interval(values), bootstrap(lambda rows: values[rows].mean(), n), paired_shares([1] * n, [0] * n),
        bootstrap(lambda rows: 1.0, 6, clusters=np.arange(6) % n if n else np.zeros(6)), proportion(n, n),
    ):
        assert claim("above").judge(interval, threshold=-2.0).outcome is Outcome.unclear


def test_a_statistic_that_no_resample_changes_is_unbounded():
    for n in (5, 50):
        assert math.isinf(bootstrap(lambda rows, n=n: np.ones(n)[rows].mean(axis=-1), n).low)


def test_resamples_without_a_value_widen_the_interval():
    """A ratio whose denominator vanishes in some resamples can't be bounded on the side where it would lie."""
    values = np.random.default_rng(1).normal(5, 1, size=25)

    def ratio(rows: np.ndarray, standard_errors: float) -> float:
        mean = float(values[rows].mean())
        return math.nan if mean > values.mean() + standard_errors * values.std() / 5 else mean

    whole = bootstrap(lambda rows: ratio(rows, math.inf), 25)
    some, many = (bootstrap(lambda rows, s=s: ratio(rows, s), 25) for s in (2.5, 1.5))
    assert some.low <= whole.low and math.isinf(many.low) and math.isinf(many.high)
    assert math.isinf(bootstrap(lambda rows: math.nan, 25).high)


def test_a_statistic_of_rows_is_not_mistaken_for_one_of_all_resamples():
    """As many rows as resamples: a statistic that reduces the wrong axis gives the right shape by accident."""
    values = np.random.default_rng(2).normal(size=200)
    rows_only = bootstrap(lambda rows: float(np.mean(values[rows], axis=0)), 200, n_resamples=200)
    by_accident = bootstrap(lambda rows: np.mean(values[rows], axis=0), 200, n_resamples=200)
    assert by_accident == rows_only


@pytest.mark.parametrize(
    "call",
    [
        lambda: mean_interval([1.0, math.nan, 2.0]),
        lambda: mean_interval([[1.0, 2.0], [3.0, 4.0]]),
        lambda: paired([1.0, 2.0], [1.0]),
        lambda: paired_shares([1, 0], [1]),
        lambda: bootstrap(lambda rows: 0.0, 6, clusters=[0, 1]),
        lambda: bootstrap(lambda rows: 0.0, 6, strata=[0, 1]),
        lambda: bootstrap(lambda rows: 0.0, 6, clusters=[0, 0, 1, 1, 2, 2], strata=[0, 1, 1, 1, 1, 1]),
    ],
    ids=["nan", "matrix", "pairs", "shares", "clusters", "strata", "cluster in two strata"],
)
def test_wrong_input_is_refused(call):
    with pytest.raises(ValueError):
        call()


@settings(max_examples=40, deadline=None)
@given(
    values=st.lists(st.floats(-100, 100, width=32), min_size=4, max_size=30, unique=True),
    shift=st.floats(-10, 10), scale=st.floats(0.1, 10),
)
def test_the_mean_moves_and_stretches_with_its_values(values, shift, scale):
    array = np.array(values) + np.arange(len(values)) * 1e-3
    first, second = mean_interval(array, n_resamples=200), mean_interval(shift + scale * array, n_resamples=200)
    assert [second.low, second.high] == pytest.approx([shift + scale * first.low, shift + scale * first.high], abs=1e-6)
    assert first == mean_interval(array, n_resamples=200)
    assert first.low <= first.estimate <= first.high


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=3, max_size=60))
def test_paired_shares_turn_with_their_arms(pairs):
    method, baseline = np.array(pairs).T
    forth, back = paired_shares(method, baseline), paired_shares(baseline, method)
    assert (forth.estimate, forth.low, forth.high) == pytest.approx((-back.estimate, -back.high, -back.low), abs=1e-9)
    assert -1 <= forth.low <= forth.estimate <= forth.high <= 1


def test_oracle_a_normal_sample_of_a_hundred_agrees_with_students_t():
    values = np.random.default_rng(5).normal(size=100)
    reach = float(t.ppf(1 - NOMINAL, 99) * values.std(ddof=1) / 10)
    interval = mean_interval(values, n_resamples=4000)
    # The 1.9 % quantile of 4000 resamples is known to about 4 % of the reach.
    assert (interval.high - interval.low) / 2 == pytest.approx(reach, rel=0.08)


def test_expected_false_holds():
    assert expected_false_holds(40) == pytest.approx(1.0)
