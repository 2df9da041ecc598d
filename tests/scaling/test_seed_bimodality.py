"""Seeds as a distribution: trend scores, dip, mixtures, populations of seeds, traps, bad input, the command."""

import json
import math

import numpy as np
import pandas as pd
import pytest

from assay.datasets import load_dataset
from assay.errors import InputError
from assay.scaling import seed_bimodality as sb
from assay.scaling.seed_bimodality import command
from assay.scaling.seed_bimodality.dip import TAILS, _null, simulate_null
from assay.scaling.seed_bimodality.distribution import holm
from assay.scaling.seed_bimodality.judging import judged
from assay.scaling.seed_bimodality.measuring import TASKS, Group, groups_of, measure_population, sarle, transformed
from assay.scaling.seed_bimodality.mixtures import accuracy_modes
from assay.scaling.seed_bimodality.scaling_curves import first_bimodal, majority_scale, success_p, weight_curve
from assay.scaling.seed_bimodality.twins import bell_of
from assay.study import Cell, Outcome, Results, Row

# What assay.conformance makes of the method, asserted by tests/test_every_method.py.
CHECKS = {"passed": 139, "excused": 9, "oracles": 21, "oracles_without_data": 21}

SCALES = (2.0, 3.0, 4.0, 5.0, 6.0, 8.0)


def smoke(steps=4800):
    table = load_dataset("seed-populations-smoke")
    return table[table["steps"] == steps]


def mixture_table(shares, n=100, seed=0, scales=None):
    """Seeds that fail around 0.1 and succeed around 0.9, with the given shares of success."""
    rng = np.random.default_rng(seed)
    rows = []
    for scale, share in zip(scales or SCALES, shares, strict=True):
        score = np.where(rng.random(n) < share, rng.beta(60, 5, n), rng.beta(4, 40, n))
        rows += [(scale, s, x, 3 * (1 - x) + 0.05 * rng.standard_normal()) for s, x in enumerate(score)]
    return pd.DataFrame(rows, columns=["scale", "seed", "score", "loss"])


# Oracles: trend scores


def test_oracle_trend_scores_of_simple_curves():
    step, line = [0, 0, 0, 0, 1], [0, 0.25, 0.5, 0.75, 1]
    assert sb.linearity(step) == 2 and sb.breakthroughness(step) == math.inf
    assert sb.linearity(line) == sb.breakthroughness(line) == 4
    assert sb.linearity(line[::-1]) == sb.breakthroughness(line[::-1]) == -4
    assert sb.linearity([0.3] * 5) == sb.breakthroughness([0.3] * 5) == 0
    assert sb.breakthroughness(step[::-1]) == -math.inf


def test_oracle_trend_scores_do_not_change_with_unit_or_origin():
    y = np.random.default_rng(0).random((50, 7))
    for trend in (sb.breakthroughness, sb.linearity):
        np.testing.assert_allclose(trend(3.7 * y + 11), trend(y), rtol=1e-9)
        np.testing.assert_allclose(trend(y), [trend(curve) for curve in y])


def test_oracle_linearity_is_at_most_the_number_of_steps():
    y = np.random.default_rng(1).random((2000, 6))
    assert np.abs(sb.linearity(y)).max() <= 5


# Oracles: the dip


@pytest.mark.parametrize("n", [4, 10, 51, 400])
def test_oracle_dip_of_equally_spaced_points_is_the_smallest(n):
    assert sb.dip_statistic(np.arange(n) * 0.3 - 2) == pytest.approx(1 / (2 * n), abs=1e-12)


@pytest.mark.parametrize("spread", [0.0, 1e-4])
def test_oracle_dip_of_two_point_masses_is_a_quarter(spread):
    rng = np.random.default_rng(0)
    x = np.repeat([0.0, 1.0], 2000) + spread * rng.random(4000)
    assert sb.dip_statistic(x) == pytest.approx(0.25, abs=2e-3)


def unimodal_distance(x, mode):
    """The largest distance to the best unimodal distribution with this mode, by linear programming."""
    from scipy.optimize import linprog

    # Heights g of a piecewise linear G at the sorted points, and the bound d: |F - G| <= d on both sides of each jump.
    n = len(x)
    rows, limits = [], []

    def ask(terms, limit):
        row = np.zeros(n + 1)
        for k, c in terms:
            row[k] += c
        rows.append(row)
        limits.append(limit)

    for i in range(n):
        ask([(i, -1.0), (n, -1.0)], -(i + 1) / n)  # F(x_i) - g_i <= d
        ask([(i, 1.0), (n, -1.0)], i / n)  # g_i - F(x_i -) <= d
        if i:
            ask([(i - 1, 1.0), (i, -1.0)], 0.0)
    for i in range(1, n - 1):
        first, second = 1 / (x[i] - x[i - 1]), 1 / (x[i + 1] - x[i])
        # The slope rises up to the modal interval (mode, mode + 1) and falls after it.
        sign = 1.0 if i <= mode else -1.0
        ask([(i - 1, -sign * first), (i, sign * (first + second)), (i + 1, -sign * second)], 0.0)
    found = linprog(np.eye(n + 1)[n], A_ub=np.array(rows), b_ub=limits, bounds=[(None, None)] * n + [(0, None)])
    return found.fun


@pytest.mark.parametrize("seed", range(6))
def test_oracle_dip_is_the_distance_to_the_nearest_unimodal_distribution(seed):
    rng = np.random.default_rng(seed)
    n = 14
    x = np.sort(np.concatenate([rng.random(n // 2), 0.7 * seed + rng.random(n - n // 2)]))
    # A modal interval between any two neighbours, or the ends: the least favourable of all is the dip.
    best = min(unimodal_distance(x, mode) for mode in range(n))
    assert sb.dip_statistic(x) == pytest.approx(best, abs=1e-9)


def test_oracle_dip_agrees_with_diptest():
    diptest = pytest.importorskip("diptest", reason="the peer diptest is not installed")
    rng = np.random.default_rng(0)
    for k in range(400):
        n = int(rng.integers(4, 200))
        x = [
            rng.random(n), rng.standard_normal(n), np.round(rng.random(n), 1), rng.integers(0, 4, n).astype(float),
            np.concatenate([rng.standard_normal(n // 2), rng.normal(4, 1, n - n // 2)]),
        ][k % 5]
        if np.ptp(x) > 0:
            assert sb.dip_statistic(x) == pytest.approx(diptest.dipstat(x), abs=1e-12)
    for n in (10, 40, 128, 400):
        x = np.concatenate([rng.standard_normal(n // 2), rng.normal(2.5, 1, n - n // 2)])
        dip, p = diptest.diptest(x)
        assert sb.dip_pvalue(dip, n) == pytest.approx(p, abs=0.02)


def test_oracle_dip_does_not_change_with_unit_or_direction():
    x = np.random.default_rng(2).gamma(2, size=60)
    for other in (5 * x - 3, -x):
        assert sb.dip_statistic(other) == pytest.approx(sb.dip_statistic(x), abs=1e-12)


def test_oracle_dip_test_has_its_level_on_the_uniform_distribution():
    rng = np.random.default_rng(3)
    for n in (20, 77):
        rejected = sum(sb.dip_pvalue(sb.dip_statistic(rng.random(n)), n) < 0.05 for _ in range(1000))
        assert 0.05 - 4 * 0.0069 < rejected / 1000 < 0.05 + 4 * 0.0069


def test_oracle_dip_test_rejects_few_unimodal_beta_samples():
    rng = np.random.default_rng(4)
    rejected = sum(sb.dip_pvalue(sb.dip_statistic(rng.beta(4, 2, 128)), 128) < 0.05 for _ in range(500))
    assert rejected / 500 <= 0.05


def test_committed_null_quantiles_are_those_of_a_fresh_simulation():
    sizes, quantiles = _null()
    fresh = simulate_null(20, 3000)
    at = [TAILS.index(tail) for tail in (0.5, 0.2, 0.1, 0.05)]
    # Standard error of a quantile of 3,000 values at these tails: below 0.004 in units of n^1/2 dip.
    np.testing.assert_allclose(fresh[at], quantiles[list(sizes).index(20), at], atol=4 * 0.004)
    assert (np.diff(quantiles, axis=1) > 0).all()


# Oracles: mixtures, Holm, seeds


def test_oracle_mixture_weight_is_recovered():
    rng = np.random.default_rng(5)
    off = []
    for _ in range(40):
        good = rng.random(200) < 0.3
        found = sb.SeedDistribution().fit(np.where(good, rng.beta(30, 3, 200), rng.beta(2, 20, 200)))
        off.append(abs(found.weight_ - 0.3) < 0.07)
    # 95 % are owed; of 40 runs fewer than 34 would then be seen once in 300 times.
    assert sum(off) >= 34


def test_oracle_mixture_likelihood_beats_the_truth_and_stays_finite_at_the_bounds():
    rng = np.random.default_rng(6)
    items = 100
    good = rng.random(300) < 0.4
    counts = rng.binomial(items, np.where(good, rng.beta(40, 4, 300), rng.beta(3, 20, 300)))
    from scipy.stats import betabinom

    truth = np.log(0.4 * betabinom.pmf(counts, items, 40, 4) + 0.6 * betabinom.pmf(counts, items, 3, 20)).sum()
    grid = np.geomspace(0.1, 5, 25)
    one = max(betabinom.logpmf(counts, items, a, b).sum() for a in grid for b in grid)
    found = accuracy_modes(counts / items, items)
    # bic_delta = 2 (two - one) - 3 ln n, with `two` at least the truth and `one` at least any on the grid (or near it).
    assert found.bic_delta >= 2 * (truth - one) - 3 * math.log(300) - 2
    assert found.means[0] == pytest.approx(3 / 23, abs=0.03) and found.means[1] == pytest.approx(40 / 44, abs=0.03)
    piled = sb.SeedDistribution(items=50).fit(np.repeat([0.0, 1.0], 40))
    assert np.isfinite(piled.bic_delta_) and piled.weight_ == pytest.approx(0.5, abs=0.02)


def test_oracle_holm_against_the_definition():
    p = np.array([0.01, 0.04, 0.03, 0.005, np.nan])
    np.testing.assert_allclose(holm(p)[:4], [0.03, 0.06, 0.06, 0.02])
    assert math.isnan(holm(p)[4])


@pytest.mark.parametrize(("weight", "half_width"), [(0.5, 0.1), (0.2, 0.05), (0.0, 0.1), (1.0, 0.02)])
def test_oracle_seeds_needed_is_the_first_number_that_is_enough(weight, half_width):
    def reach(n):
        z = 1.959963984540054
        return z / (1 + z * z / n) * math.sqrt(weight * (1 - weight) / n + z * z / (4 * n * n))

    n = sb.seeds_needed(weight, half_width)
    assert reach(n) <= half_width < reach(n - 1)


def test_oracle_logistic_curve_is_recovered_and_preferred_to_a_step():
    logs, n = np.log([1.0, 2, 3, 4, 6, 8, 12]), np.full(7, 100_000)
    p = 1 / (1 + np.exp(-3 * (logs - math.log(4))))
    found = weight_curve(logs, np.round(n * p), n)
    assert found.slope == pytest.approx(3, abs=0.02) and found.midpoint == pytest.approx(4, abs=0.02)
    assert found.aic_gain > 2 and found.misfit_p > 0.9


@pytest.mark.parametrize("shares", [
    [0, 0, 0, 1, 1, 1, 1, 1], [0.03] * 3 + [1] * 5, [0, 0.1, 0.6, 0.9, 1, 1, 1, 1], [1, 1, 0.5, 0, 0, 0, 0, 0],
])
def test_oracle_logistic_curve_has_the_largest_likelihood(shares):
    from scipy.optimize import minimize

    logs, n = np.log([2.0, 3, 4, 5, 6, 8, 12, 16]), np.full(8, 128)
    successes = np.round(n * np.array(shares))

    def miss(beta):
        z = beta[0] + beta[1] * (logs - logs.mean())
        return float(np.sum(n * np.logaddexp(0, z) - successes * z))

    best = min(minimize(miss, [0, slope], method="BFGS").fun for slope in (-20, 0, 20))
    found = weight_curve(logs, successes, n)
    assert miss([found.offset + found.slope * logs.mean(), found.slope]) == pytest.approx(best, abs=0.01)
    # A step from none to all is the limit of logistic curves: two parameters against three, and no more.
    assert found.aic_gain == pytest.approx(2, abs=0.01) if shares[2:4] == [0, 1] else True


# Training


def test_oracle_seeds_side_by_side_end_where_each_ends_alone():
    for task, steps in ((sb.SubsetParity(), 100), (sb.ScarceDigits(), 50), (sb.CountTask(4, 8, numbers=24), 20)):
        together = sb.train_population(task, [6], seeds=5, steps=steps)
        alone = sb.train_population(task, [6], seeds=[3], steps=steps)
        own = together[together["seed"] == 3]
        np.testing.assert_allclose(own["loss"], alone["loss"], rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(own["score"], alone["score"], atol=1e-5)


def test_oracle_written_out_gradients_are_those_of_autograd():
    torch = pytest.importorskip("torch")
    from assay.scaling.seed_bimodality import batched

    for task in (sb.SubsetParity(), sb.ScarceDigits()):
        rngs = batched.generators(task, 5, 2, range(3))
        weights = batched.first_weights(task, 5, 2, rngs, "cpu")
        _, inputs, targets = next(batched.batches([task.stream(rng) for rng in rngs], [1], "cpu"))
        ours = batched.backward(weights, inputs, targets, task.loss)
        leaves = [w.clone().requires_grad_() for w in weights]
        hidden = inputs
        for k in range(0, len(leaves) - 2, 2):
            hidden = torch.relu(hidden @ leaves[k] + leaves[k + 1])
        outputs = hidden @ leaves[-2] + leaves[-1]
        if task.loss == "hinge":
            loss = torch.relu(1 - targets * outputs).mean(dim=(1, 2)).sum()
        else:
            loss = torch.nn.functional.cross_entropy(outputs.flatten(0, 1), targets.flatten(), reduction="sum") / 32
        for one, two in zip(ours, torch.autograd.grad(loss, leaves), strict=True):
            torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-6)


def test_oracle_one_optimiser_step_of_a_seed_is_torch_adamw_with_its_own_clipping():
    torch = pytest.importorskip("torch")
    from assay.scaling.seed_bimodality import batched

    task = sb.CountTask(4, 6, numbers=12)
    rngs = batched.generators(task, 8, 1, range(2))
    weights = batched.first_decoder(task.vocabulary, 8, 1, rngs, "cpu")
    _, tokens, targets = next(batched.batches([task.stream(rng) for rng in rngs], [1], "cpu"))
    leaves = [w.clone().requires_grad_() for w in weights]
    losses = batched.token_losses(leaves, tokens, targets, 1)
    (losses.sum(dim=(1, 2)) / (targets >= 0).sum(dim=(1, 2))).sum().backward()
    batched.clip_each_seed(leaves)
    for seed in range(2):
        own = [w[seed: seed + 1].clone().requires_grad_() for w in weights]
        loss = batched.token_losses(own, tokens[seed: seed + 1], targets[seed: seed + 1], 1)
        (loss.sum() / (targets[seed] >= 0).sum()).backward()
        torch.nn.utils.clip_grad_norm_(own, batched.CLIP)
        for one, two in zip(leaves, own, strict=True):
            torch.testing.assert_close(one.grad[seed], two.grad[0], rtol=1e-4, atol=1e-7)


def test_oracle_number_of_parameters_of_the_counting_decoders():
    pytest.importorskip("torch")
    from assay.scaling.seed_bimodality import batched

    task = sb.CountTask(numbers=32, max_test=32)
    for width, expected in ((8, 2136), (12, 4356), (16, 7344)):
        weights = batched.first_decoder(task.vocabulary, width, 2, [np.random.default_rng(0)], "cpu")
        assert sum(w.numel() for w in weights) == expected


def test_oracle_exact_match_equals_greedy_generation():
    torch = pytest.importorskip("torch")
    from assay.scaling.seed_bimodality import batched

    task = sb.CountTask(3, 4, numbers=10)
    rngs = batched.generators(task, 12, 1, range(1))
    weights = [w.requires_grad_() for w in batched.first_decoder(task.vocabulary, 12, 1, rngs, "cpu")]
    optimiser = torch.optim.AdamW(weights, lr=0.01)
    for _, tokens, targets in batched.batches([task.stream(rng) for rng in rngs], [250], "cpu"):
        optimiser.zero_grad()
        batched.token_losses(weights, tokens, targets, 1).sum().backward()
        optimiser.step()
    tokens, targets = (torch.from_numpy(part) for part in task.prompts("3"))
    right = []
    with torch.no_grad():
        for prompt, answer in zip(tokens, targets, strict=True):
            line = prompt[:3]
            for _ in range(4):
                line = torch.cat([line, batched.decode(weights, line[None, None], 1)[0, 0, -1].argmax()[None]])
            right.append(bool((line[3:] == answer[2:]).all()))
    score, _ = batched.score_decoders(weights, tokens, targets, 1)
    assert score[0] == pytest.approx(np.mean(right)) and score[0] > 0


def test_parity_reproduces_the_reference_table_at_its_rate():
    """Reference at rate 0.1, 4,800 steps, 128 seeds, width 5: mean .937, and .62 of the seeds above .9."""
    pytest.importorskip("torch")
    scores = sb.train_population(sb.SubsetParity(rate=0.1), [5], seeds=48)["score"]
    size = math.sqrt(1 / 48 + 1 / 128)
    assert scores.mean() == pytest.approx(0.937, abs=3 * scores.std() * size)
    assert (scores > 0.9).mean() == pytest.approx(0.62, abs=3 * math.sqrt(0.62 * 0.38) * size)


def test_labels_of_the_tasks_are_what_they_say():
    inputs, labels = sb.SubsetParity(bits=8, relevant=2).held_out()
    np.testing.assert_array_equal(labels, inputs[:, 0] * inputs[:, 1])
    task = sb.CountTask(4, 6, numbers=10)
    tokens, targets = task.prompts("5-6")
    assert len(tokens) == 6 + 5
    assert targets[-1].tolist() == [-1, -1, 4, 5, 6, 7, 8, 9, 11]
    tokens, targets = task.stream(np.random.default_rng(0))(50)
    for line, asked in zip(tokens.reshape(-1, tokens.shape[-1]), targets.reshape(-1, targets.shape[-1]), strict=True):
        a, b = line[0], line[1]
        answer = [*range(a, b + 1), 11]
        assert asked[asked >= 0].tolist() == answer and line[2] == 10 and 1 <= b - a + 1 <= 4


def test_reverse_addition_adds():
    task = sb.ReverseAdditionIndexHints(3, 5)
    for test in task.tests:
        tokens, targets = task.prompts(test)
        for line, asked in zip(tokens, targets, strict=True):
            words = line.tolist()
            first, rest = words[: words.index(18)], words[words.index(18) + 1: words.index(19)]
            answer = asked[asked >= 0].tolist()
            assert answer[-1] == 20 and first[0::2] == rest[0::2] == answer[: len(first): 2]
            value = [sum(d * 10**k for k, d in enumerate(part[1::2])) for part in (first, rest, answer[:-1])]
            assert value[0] + value[1] == value[2]
            assert answer[:-1][0::2] == list(range(answer[0], answer[0] + len(answer) // 2))


def test_reverse_addition_trains():
    pytest.importorskip("torch")
    table = sb.train_population("addition", [16], seeds=2, steps=5)
    assert set(table["test"]) == {"3", "4", "5"} and np.isfinite(table["loss"]).all()


def test_seeds_of_two_widths_are_independent_and_a_run_repeats():
    pytest.importorskip("torch")
    once, again = (sb.train_population("parity", [3, 4], seeds=2, steps=30, checkpoints=[10]) for _ in range(2))
    pd.testing.assert_frame_equal(once, again)
    alone = sb.train_population("parity", [4], seeds=2, steps=10)
    np.testing.assert_allclose(once.query("scale == 4 and steps == 10")["loss"], alone["loss"], rtol=1e-6)


# The description of a table


def test_table_of_two_modes_is_seed_luck():
    found = sb.RandomScaling().fit(mixture_table([0.0, 0.1, 0.3, 0.6, 0.9, 1.0]), loss="loss")
    summary = found.summary()
    assert summary["answer"] == "seed luck" and summary["loss_bimodal_at"]
    assert found.threshold_scale_ < found.majority_scale_ == 5
    per_scale = found.per_scale_
    w, high, low = per_scale["weight"], per_scale["mu_hi"].fillna(0), per_scale["mu_lo"].fillna(0)
    np.testing.assert_allclose(w * high + (1 - w) * low, per_scale["mean"])
    assert found.weight_curve_["aic_gain"] > 2


def test_step_of_the_share_is_a_real_jump():
    found = sb.RandomScaling(success=0.5).fit(mixture_table([0.05, 0.05, 0.05, 0.95, 0.95, 0.95], n=200))
    assert found.weight_curve_["aic_gain"] < 0
    gradual = sb.RandomScaling().fit(mixture_table([1.0] * 6))
    assert gradual.summary()["answer"] == "gradual"


def test_bimodal_score_over_a_unimodal_loss_is_a_metric_effect():
    rng = np.random.default_rng(8)
    rows = []
    for scale, centre in zip(SCALES, np.linspace(-2, 2, 6), strict=True):
        ability = centre + 0.7 * rng.standard_normal(100)
        score = 1 / (1 + np.exp(-12 * ability))  # a steep metric of a bell-shaped ability: piles at both bounds
        rows += [(scale, s, float(x), float(3 - a)) for s, (x, a) in enumerate(zip(score, ability, strict=True))]
    found = sb.RandomScaling().fit(pd.DataFrame(rows, columns=["scale", "seed", "score", "loss"]), loss="loss")
    assert found.summary()["answer"] == "metric effect"


def test_all_seeds_jumping_together_is_a_real_jump():
    rng = np.random.default_rng(9)
    rows = [
        (scale, s, float(np.clip(centre + 0.03 * rng.standard_normal(), 0, 1)))
        for scale, centre in zip(SCALES, (0.1, 0.11, 0.12, 0.85, 0.87, 0.88), strict=True) for s in range(60)
    ]
    found = sb.RandomScaling().fit(pd.DataFrame(rows, columns=["scale", "seed", "score"]))
    assert found.summary()["answer"] == "real jump" and math.isnan(found.threshold_scale_)


def test_paths_take_one_seed_a_scale_and_repeat():
    found = sb.RandomScaling().fit(smoke())
    paths = found.sample_paths(500, random_state=3)
    assert paths.shape == (500, 6)
    assert all(np.isin(paths[:, k], found.scores_[k]).all() for k in range(6))
    np.testing.assert_array_equal(paths, found.sample_paths(500, random_state=3))
    assert len(found.trend_scores(50)) == 50


def test_table_is_read_under_other_names_and_in_any_order():
    table = smoke()
    other = table.rename(columns={"scale": "width", "score": "acc", "seed": "run"}).sample(frac=1, random_state=0)
    one = sb.RandomScaling(success=0.9).fit(table).per_scale_
    two = sb.RandomScaling(success=0.9).fit(other, scale="width", seed="run", score="acc").per_scale_
    pd.testing.assert_frame_equal(one, two)


# Traps


def test_ties_of_few_items_do_not_pass_for_modes():
    rng = np.random.default_rng(10)
    plain, undone = 0, 0
    for _ in range(40):
        scores = rng.binomial(9, rng.beta(3, 3, 60)) / 9
        plain += sb.dip_pvalue(sb.dip_statistic(scores), 60) < 0.05
        undone += sb.SeedDistribution(items=9).fit(scores).dip_p_ < 0.05
    assert plain > 20 and undone <= 3


def test_pile_at_a_bound_is_not_a_second_mode_by_itself():
    rng = np.random.default_rng(11)
    called = 0
    for _ in range(25):
        found = sb.SeedDistribution(items=2000).fit(np.clip(rng.normal(0.98, 0.1, 128), 0, 1))
        assert found.atoms_[1] > 0.2
        called += found.n_modes_ == 2
    assert called <= 2
    both = sb.SeedDistribution(items=2000).fit(np.clip(rng.normal(0.5, 1.0, 128), 0, 1))
    assert "both bounds" in both.note_ and not both.dip_inside_p_ < 0.05


def test_skew_alone_is_not_bimodal_though_sarle_says_so():
    x = np.random.default_rng(12).exponential(size=200)
    assert sarle(x) > 5 / 9
    assert sb.SeedDistribution("loss").fit(x).n_modes_ == 1


def test_small_dip_p_without_successes_is_no_threshold():
    p, n = np.array([0.001, 0.001, 0.001, 0.9]), np.full(4, 128)
    scales = np.array([2.0, 3, 4, 5])
    assert first_bimodal(scales, p, np.array([0, 2, 17, 120]), n) == 4
    assert math.isnan(first_bimodal(scales, np.full(4, 0.2), np.array([0, 9, 17, 120]), n))
    assert majority_scale(scales, np.array([0.0, 0.4, 0.6, 0.9])) == 4
    assert math.isnan(majority_scale(scales, np.zeros(4)))


def test_scores_of_too_few_prompts_are_not_looked_at():
    rows = [
        ("count-64", 16.0, 2, test, seed, 10_000, 0.5, 1.0, items)
        for test, items in (("16", 49), ("24", 41), ("50", 15), ("17-24", 356)) for seed in range(12)
    ]
    table = pd.DataFrame(
        rows, columns=["task", "scale", "depth", "test", "seed", "steps", "score", "loss", "items"]
    )
    assert [g.test for g in groups_of(table, {"tasks": ["count-64", "count-32"]})] == ["count-64 length 24"]


def test_few_seeds_get_a_tip_and_no_test():
    rng = np.random.default_rng(13)
    few = sb.SeedDistribution().fit(rng.random(9))
    assert few.n_modes_ == 0 and math.isnan(few.dip_p_) and "too few" in few.note_
    assert "sees little" in sb.SeedDistribution().fit(rng.random(30)).note_
    table = smoke()
    nine = sb.RandomScaling().fit(table[table["seed"] < 9]).summary()
    assert nine["answer"] == "too few seeds" and "nothing is tested" in nine["tip"]
    assert "misses most" in sb.RandomScaling().fit(table[table["seed"] < 30]).summary()["tip"]
    assert sb.RandomScaling().fit(table).summary()["tip"] == ""


def test_missing_scores_are_counted_and_dropped():
    table = smoke().copy()
    table.iloc[3, table.columns.get_loc("score")] = np.nan
    assert sb.RandomScaling().fit(table).n_missing_ == 1
    found = sb.SeedDistribution().fit([np.nan, *np.linspace(0, 1, 20)])
    assert found.n_missing_ == 1 and found.n_ == 20


def test_identical_scores_are_one_mode():
    for kind in ("accuracy", "loss"):
        found = sb.SeedDistribution(kind).fit(np.ones(30))
        assert found.n_modes_ == 1 and found.bic_delta_ < 0 and found.means_.tolist() == [1, 1]


def test_rates_were_tuned_for_each_width_on_other_seeds():
    from assay.datasets import local_file

    about = json.loads(local_file("seed-populations").with_suffix(".json").read_text())
    table = load_dataset("seed-populations")
    assert table["seed"].max() < about["first_trial_seed"]
    trained = table[["task", "scale"]].drop_duplicates().itertuples(index=False)
    assert {f"{task}, width {width}" for task, width in trained} == set(about["trials"]) == set(about["seconds"])
    assert set(about["tasks"]) == set(table["task"])
    for trial in about["trials"].values():
        assert str(trial["chosen"]) in trial["mean_score"] and len(trial["mean_score"]) >= 3


# Controls and verdicts


def parity_groups():
    return groups_of(smoke(), {"tasks": ["parity"], "steps": 4800})


def test_unimodal_twin_has_the_mean_and_variance_and_one_mode():
    rng = np.random.default_rng(14)
    for sample in (rng.beta(3, 4, 500), np.clip(rng.normal(0.95, 0.1, 500), 0, 1)):
        drawn = bell_of(sample, 0.0, 1.0).draw(rng, 100_000)
        assert drawn.mean() == pytest.approx(sample.mean(), abs=0.005)
        assert drawn.std() == pytest.approx(sample.std(), rel=0.05)
    both_ends = bell_of(np.repeat([0.0, 1.0], 50), 0.0, 1.0).draw(rng, 20_000)
    assert sb.dip_pvalue(sb.dip_statistic(both_ends[:500]), 500) > 0.05


def test_controls_are_what_they_say():
    groups = parity_groups()
    first = next(k for k, g in enumerate(groups) if (g.scores >= 0.9).mean() > 0.5)
    for arm, few in (("stepped", 6), ("lucky", 3)):  # of 64 seeds: a tenth, and the least that is a mode
        made = transformed(groups, arm, 0)
        assert [(g.scores >= 0.9).sum() for g in made] == [few if k < first else 64 - few for k in range(len(groups))]
        for one, own in zip(made[:first], groups, strict=False):
            assert set(one.scores[one.scores < 0.9]) <= set(own.scores)
    assert transformed(groups, "seeds", 0) is groups


@pytest.mark.parametrize("shares", [
    [0, 0, 0, 1, 1, 1], [0.5] * 6, [0.05, 0.05, 0.05, 0.95, 0.95, 0.95], [0, 0, 0.5, 1, 1, 1], [0, 0, 0.3, 1, 1, 1],
])
def test_curve_claim_does_not_hold_on_null_data(claims, shares):
    table = mixture_table(shares, n=128, seed=1)
    groups = [
        Group(s, "all", 2000, g["score"].to_numpy() / g["score"].max(), g["loss"].to_numpy())
        for s, g in table.groupby("scale")
    ]
    for k, group in enumerate(groups):  # scores around 0.9 are made clear successes
        groups[k] = group._replace(scores=np.where(group.scores > 0.5, 1.0, group.scores))
    assert judged(claims["b3"], results_on(groups)).outcome is not Outcome.holds


@pytest.mark.parametrize("luck", [0.03, 0.05])
def test_two_kinds_of_failure_beside_rare_luck_are_no_early_split(claims, luck):
    """Few succeed at every scale by the same luck, then all at once; what the dip sees before are the failures."""
    rng = np.random.default_rng(15)
    groups = []
    for k, scale in enumerate(SCALES):
        plateaus = rng.choice([0.5, 0.75], 128) + 0.01 * rng.standard_normal(128)
        good = np.arange(128) < (128 if k >= 3 else round(luck * 128))
        scores = np.where(good, 1.0, plateaus)
        groups.append(Group(scale, "all", 2000, scores, 1 - scores))
    assert sb.dip_pvalue(sb.dip_statistic(groups[0].scores), 128) < 0.001
    assert judged(claims["b4"], results_on(groups)).outcome is not Outcome.holds
    rows = [(g.scale, s, score) for g in groups for s, score in enumerate(g.scores)]
    found = sb.RandomScaling(success=0.9).fit(pd.DataFrame(rows, columns=["scale", "seed", "score"]))
    assert math.isnan(found.threshold_scale_) and found.majority_scale_ == SCALES[3]
    assert found.summary()["answer"] == "real jump"


def test_split_from_success_needs_failures_and_successes():
    rng = np.random.default_rng(16)
    scores = np.concatenate([rng.normal(0.4, 0.1, 60), np.ones(60)])
    assert success_p(scores, scores >= 0.9) < 0.001
    assert success_p(scores, np.zeros(120, bool)) == success_p(scores, np.ones(120, bool)) == 1
    assert math.isnan(success_p(scores[:9], scores[:9] > 0.4))


@pytest.fixture(scope="module")
def claims():
    from assay.catalogue import get

    return get("seed-bimodality").claims


def results_on(groups):
    options = {"task": "population", "tasks": ["parity"], "resamples": 100, "paths": 200, "measure": ["curve", "paths"],
               "steps": 4800}
    cell = Cell("seed-populations-smoke", "seeds", options=options, data=())
    found = measure_population(cell, groups)
    return Results([Row(cell, "measured", found.metrics, found.units)])


@pytest.mark.parametrize(("arm", "claim_ids"), [
    ("unimodal", ["b1", "b2", "b3", "b4", "b5"]), ("stepped", ["b3"]), ("lucky", ["b3", "b4"]),
])
def test_no_claim_holds_on_a_sabotaged_population(claims, arm, claim_ids):
    for seed in range(2):
        results = results_on(transformed(parity_groups(), arm, seed))
        for claim in claim_ids:
            assert judged(claims[claim], results).outcome is not Outcome.holds, (arm, claim, seed)


def test_claims_hold_on_populations_made_to_satisfy_them(claims):
    table = mixture_table([0.02, 0.1, 0.3, 0.55, 0.8, 0.97], n=256, seed=2)
    groups = [
        Group(s, "all", 2000, np.where(x > 0.5, 0.91 + 0.08 * x, x).round(4), g["loss"].to_numpy())
        for s, g in table.groupby("scale") for x in [g["score"].to_numpy()]
    ]
    results = results_on(groups)
    for claim in ("b1", "b3", "b4", "b5"):
        assert judged(claims[claim], results).outcome is Outcome.holds, claim


@pytest.mark.parametrize(("task", "options"), [
    ("false-alarms", {"populations": 5}), ("power", {"sizes": [8, 32], "draws": 20}), ("left-out", {}),
])
def test_cells_that_stand_beside(task, options):
    cell = Cell("seed-populations-smoke", task, options={"task": task, **options}, data=())
    metrics = TASKS[task](cell, parity_groups()).metrics
    if task == "false-alarms":
        assert metrics["score_alarms"] <= 0.2 and metrics["loss_alarms"] <= 0.2
    elif task == "power":
        assert metrics["dip_power_8"] == 0 and metrics["dip_power_32"] > metrics["dip_alarms_32"]
    else:
        # Both interpolate between neighbours: worse than the whole range of the means would be a mistake.
        assert 0 <= metrics["modes_error"] < 0.2 and 0 <= metrics["iqm_error"] < 0.2


# Bad input


@pytest.mark.parametrize(("change", "words"), [
    (lambda t: t.drop(columns="score"), "no column 'score'"),
    (lambda t: t.assign(score=t["score"] * 100), "from 0 to 1"),
    (lambda t: pd.concat([t, t.iloc[[4]]]), "is there twice"),
    (lambda t: t[t["scale"] < 4], "3 or more"),
    (lambda t: t.assign(scale=0), "positive"),
    (lambda t: t.assign(score=np.inf), "infinite"),
    (lambda t: t.assign(score="high"), "must be a number"),
    (lambda t: t.assign(items=np.nan), "items must be whole numbers"),
    (lambda t: t.assign(items=2.5), "items must be whole numbers"),
    (lambda t: t.assign(seed=t["seed"].where(t.index != 3)), "seed is missing in row 3"),
])
def test_bad_tables_are_refused(change, words):
    with pytest.raises(InputError, match=words):
        sb.RandomScaling().fit(change(smoke().reset_index(drop=True)))


def test_scale_without_a_loss_is_named():
    table = smoke()
    table = table.assign(loss=table["loss"].where(table["scale"] != 3))
    with pytest.raises(InputError, match="loss holds no number at scale 3"):
        sb.RandomScaling().fit(table, loss="loss")


def test_accuracy_outside_its_range_is_refused():
    with pytest.raises(InputError, match="between 0 and 1"):
        sb.SeedDistribution("accuracy").fit([0.2, 37.0])
    assert sb.SeedDistribution("auto").fit(np.linspace(0, 3, 20)).kind_ == "loss"


# The command


def run(tmp_path, *words):
    import typer

    app = typer.Typer()
    app.command()(command.run)
    out = tmp_path / "out"
    typer.main.get_command(app).main([*map(str, words), "--out", str(out)], standalone_mode=False)
    return out


def test_command_judges_a_table_under_the_users_names(tmp_path):
    table = smoke().rename(columns={"scale": "hidden", "seed": "rng_id", "score": "top1", "loss": "hinge"})
    table.drop(columns=["items"]).to_csv(tmp_path / "seeds.csv", index=False)
    out = run(
        tmp_path, "--scores", tmp_path / "seeds.csv", "--columns", "scale=hidden,seed=rng_id,score=top1,loss=hinge",
        "--items", 2000, "--success", 0.9,
    )
    summary = json.loads((out / "summary.json").read_text())
    direct = sb.RandomScaling(success=0.9, items=2000).fit(smoke(), loss="loss")
    assert summary["answer"] == direct.summary()["answer"] == "seed luck"
    assert summary["threshold_scale"] == direct.threshold_scale_
    assert {"per_scale.csv", "per_scale_loss.csv", "paths.csv"} <= {path.name for path in out.iterdir()}


def test_command_reads_a_column_of_items():
    table = pd.DataFrame({"width": [1.0], "run": [0], "acc": [0.5], "items": [40], "other": ["x"]})
    assert command._named(table, "", "t.csv").to_dict("records") == [
        {"scale": 1.0, "seed": 0, "score": 0.5, "items": 40}
    ]


def test_command_trains_a_population(tmp_path):
    pytest.importorskip("torch")
    out = run(tmp_path, "--task", "parity", "--widths", "2,3,4", "--seeds", 12, "--steps", 50)
    assert len(pd.read_csv(out / "population.csv")) == 36
    assert "misses most" in json.loads((out / "summary.json").read_text())["tip"]


def test_command_on_count_judges_the_longest_answers_that_a_score_can_rest_on():
    rows = [
        (width, test, items) for width in (8, 12, 16)
        for test, items in (("16", 49), ("40", 25), ("48", 17), ("17-24", 356))
    ]
    table = pd.DataFrame(rows, columns=["scale", "test", "items"])
    assert set(command._hardest(table)["test"]) == {"40"}


@pytest.mark.parametrize(("words", "message"), [
    ([], "either --scores or --task"),
    (["--task", "sorting"], "no task 'sorting'"),
    (["--task", "parity", "--widths", "2,x"], "whole numbers"),
    (["--task", "parity", "--seeds", "0"], "1 or more"),
])
def test_command_refuses(tmp_path, words, message):
    with pytest.raises(InputError, match=message):
        run(tmp_path, *words)


@pytest.mark.parametrize(("text", "message"), [
    ("scale", "scale=COLUMN"), ("size=a", "there is no 'size'"), ("scale=q", "has no column 'q'"), ("", "which column"),
])
def test_command_asks_which_column_is_which(tmp_path, text, message):
    pd.DataFrame({"a": [1, 2], "b": [1, 2], "c": [0.1, 0.2]}).to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(InputError, match=message):
        run(tmp_path, "--scores", tmp_path / "t.csv", "--columns", text)
