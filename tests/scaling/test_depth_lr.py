"""Learning rates across depth: closed forms of the energy, counting, groups, the study, a user's own net, bad input."""

import json
import math
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from assay.errors import InputError  # noqa: E402
from assay.scaling import depth_lr as dl  # noqa: E402
from assay.scaling.depth_lr import command, conformance, nets, sweep, tasks  # noqa: E402
from assay.scaling.depth_lr.counting import Diverged, Untraceable, trace  # noqa: E402
from assay.scaling.depth_lr.energy import stack, unit_energies, unit_residual  # noqa: E402
from assay.scaling.depth_lr.judging import slope_of_energies  # noqa: E402
from assay.scaling.depth_lr.user import load_user_net  # noqa: E402

# What assay.conformance makes of the method, asserted by tests/test_every_method.py.
CHECKS = {"passed": 96, "excused": 8, "oracles": 8, "oracles_without_data": 8}

UNIT = "unit-residual"


def mlp(depth, width=16, inputs=8, outputs=4, activation=nn.ReLU, bias=False):
    sizes = [inputs] + [width] * (depth - 1) + [outputs]
    layers = []
    for a, b in pairwise(sizes):
        layers += [nn.Linear(a, b, bias=bias), activation()]
    return nn.Sequential(*layers[:-1])


class Block(nn.Module):
    def __init__(self, *branch):
        super().__init__()
        self.branch = nn.Sequential(*branch)

    def forward(self, x):
        return x + self.branch(x)


def real_step_change(net, loss, x, eta):
    """Mean squares of the changes of the hidden pre-activations by one true SGD step, over eta squared."""

    def units(model):
        found = []
        hooks = [
            m.register_forward_hook(lambda _m, _i, out: found.append(out.detach().clone()))
            for m in model
            if isinstance(m, nn.Linear)
        ]
        model(x)
        for hook in hooks:
            hook.remove()
        return found

    before = units(net)
    loss(net, x).backward()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter -= eta * parameter.grad
            parameter.grad = None
    return [float(((b - a) / eta).pow(2).mean()) for a, b in zip(before, units(net), strict=True)]


# Oracles


def test_oracle_one_layer_linear_net_moves_by_the_squared_norm_of_its_input():
    """Delta z = -eta |x|^2 dloss/dz for a batch of one and squared loss."""
    torch.manual_seed(0)
    net, x, y = nn.Sequential(nn.Linear(5, 3, bias=False)), torch.randn(1, 5), torch.randn(1, 3)
    g = (net(x) - y).detach()
    expected = float((x.square().sum() * g).square().mean())
    found = dl.update_energy(net, lambda m, b: 0.5 * (m(b) - y).square().sum(), x, n_init=1, per_layer=True)
    assert found["energy"] == pytest.approx(expected, rel=1e-5)


def test_oracle_the_energy_is_that_of_small_true_steps_and_quadratic_in_the_rate():
    torch.manual_seed(1)
    net, x = mlp(5).double(), torch.randn(6, 8, dtype=torch.float64)
    target = torch.randn(6, 4, dtype=torch.float64)

    def loss(m, b):
        return (m(b) - target).square().mean()

    exact = dl.update_energy(net, loss, x, n_init=1, readout=True, per_layer=True)
    fine, coarse = (real_step_change(net, loss, x, eta) for eta in (1e-6, 1e-4))
    np.testing.assert_allclose(exact["per_layer"], fine, rtol=1e-3)
    np.testing.assert_allclose(fine, coarse, rtol=1e-2)
    assert exact["energy"] == pytest.approx(np.mean(fine), rel=1e-3)


def test_oracle_deep_linear_net_with_orthogonal_weights_has_energies_of_the_square_of_the_layer():
    """Each of the first l layers adds the same vector to z_l: |Delta z_l|^2 = l^2 |g|^2 |x|^4."""
    torch.manual_seed(2)
    n, depth = 12, 7
    net = nn.Sequential(*(nn.Linear(n, n, bias=False) for _ in range(depth))).double()
    for layer in net:
        nn.init.orthogonal_(layer.weight)
    x, r = torch.randn(1, n, dtype=torch.float64), torch.randn(n, dtype=torch.float64)
    found = dl.update_energy(net, lambda m, b: (m(b) @ r).sum(), x, n_init=1, readout=True, per_layer=True)
    expected = np.arange(1, depth + 1) ** 2 * float(r.square().sum() * x.square().sum() ** 2) / n
    np.testing.assert_allclose(found["per_layer"], expected, rtol=1e-9)
    assert found["energy"] == pytest.approx(expected.mean(), rel=1e-9)
    hidden = dl.update_energy(net, lambda m, b: (m(b) @ r).sum(), x, n_init=1)
    assert hidden == pytest.approx(expected[:-1].mean(), rel=1e-9)


@pytest.mark.parametrize("depth", [1, 2, 5, 12])
def test_oracle_depth_of_a_stack_is_its_layers_whatever_else_stands_between(depth):
    plain = nn.Sequential(*(nn.Linear(6, 6) for _ in range(depth)))
    dressed = nn.Sequential(
        *(m for _ in range(depth) for m in (nn.Linear(6, 6), nn.LayerNorm(6), nn.ReLU(), nn.Dropout(0.5)))
    )
    assert dl.effective_depth(plain) == dl.effective_depth(dressed) == depth
    assert dl.effective_depth(dressed, count="layers") == depth


def test_oracle_a_residual_block_around_two_layers_counts_one():
    two = [nn.Linear(6, 6), nn.Linear(6, 6)]
    assert dl.effective_depth(nn.Sequential(*two)) == 2
    assert dl.effective_depth(nn.Sequential(Block(*two))) == 1
    assert dl.effective_depth(nn.Sequential(Block(*two)), count="layers") == 2


def test_oracle_scaling_by_two_to_the_minus_three_halves():
    assert dl.scale_lr(1.0, 10, 5) == pytest.approx(0.3535533905932738, rel=1e-15)
    assert dl.scale_lr(0.3, 7, 7) == 0.3
    assert dl.scale_lr(dl.scale_lr(0.3, 8, 4), 20, 8) == pytest.approx(dl.scale_lr(0.3, 20, 4), rel=1e-14)
    assert dl.scale_lr(0.3, 8, 4, exponent=-1) == pytest.approx(0.15)


def test_oracle_maximal_rate_brings_a_linear_change_to_the_budget():
    torch.manual_seed(3)
    net, x = mlp(2, activation=nn.Identity).double(), torch.randn(4, 8, dtype=torch.float64)

    def loss(m, b):
        return m(b).sum()

    rate = dl.maximal_lr(net, loss, x, budget=2.5, n_init=1)
    # The hidden layer's change is exactly linear in the rate: its input does not change.
    assert real_step_change(net, loss, x, rate)[0] * rate**2 == pytest.approx(2.5, rel=1e-6)


def test_oracle_law_recovers_an_exact_power():
    depths = np.repeat([4, 8, 16, 32], 3)
    law = dl.DepthLRTransfer().fit(depths, 0.7 * depths**-1.25)
    assert law.exponent_ == pytest.approx(-1.25) and law.kappa_ == pytest.approx(0.7)
    np.testing.assert_allclose(law.predict([[64], [128]]), 0.7 * np.array([64.0, 128.0]) ** -1.25)
    fixed = dl.DepthLRTransfer(exponent=-1.5).fit([4], [0.4])
    assert fixed.predict([16])[0] == pytest.approx(dl.scale_lr(0.4, 16, 4)) and fixed.ci_ == (-1.5, -1.5)


def test_interval_of_the_exponent_covers_the_truth():
    rng = np.random.default_rng(0)
    depths = np.repeat([4, 8, 16, 32], 5)
    inside = 0
    for _ in range(60):
        law = dl.DepthLRTransfer().fit(depths, depths**-1.5 * np.exp(0.2 * rng.standard_normal(20)))
        inside += law.ci_[0] <= -1.5 <= law.ci_[1]
    assert inside >= 50  # 57 of 60 expected


# Counting


class Functional(nn.Module):
    """Layers as bare parameters, control flow on data, an activation in place, positions, a mask, a constant."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Parameter(torch.randn(6, 6)), nn.Parameter(torch.randn(6, 6))
        self.shift = nn.Parameter(torch.zeros(6))
        self.table = nn.Embedding(20, 6)

    def forward(self, ids):
        assert ids.shape[1] < 20
        x = self.table(ids) + self.table.weight[: ids.shape[1]].detach() * 0 + self.shift
        mask = (ids == 0).float().mul(-1e9)
        y = F.relu_(x @ self.a.T) + 1.0
        scores = (y @ y.transpose(1, 2)) + mask[:, None]
        x = x + scores.softmax(-1) @ F.linear(y, self.b)
        return {"loss": None, "logits": x if float(x.sum()) > -1e30 else -x}


def test_counting_follows_functions_control_flow_and_masks():
    found = trace(Functional(), torch.ones(2, 5, dtype=torch.long))
    assert [unit.kind for unit in found.sequential] == ["layer", "addition"] and found.layers == 3
    assert found.additions[0].branch == ("a", "b")


@pytest.mark.parametrize(
    ("arch", "depth", "layers"),
    [("mlp", 5, 5), ("cnn", 5, 5), ("resnet", 6, 10), ("resmlp", 6, 10), ("transformer", 8, 14)],
)
def test_counts_of_the_studys_nets(arch, depth, layers):
    """K + 2 for K blocks, 2 K + 2 for a Transformer; layers: 2 K + 2, and 4 K + 2."""
    net = nets.build(arch, depth, 16)
    x = torch.ones(2, 32, dtype=torch.long) if arch == "transformer" else torch.ones(2, 64)
    assert dl.effective_depth(net, x) == depth and dl.effective_depth(net, x, count="layers") == layers


def test_counting_guesses_an_input_for_plain_stacks():
    conv = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)
    )
    mean = conv[1].running_mean.clone()
    assert dl.effective_depth(conv) == 2
    assert dl.effective_depth(nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 9))) == 2
    assert dl.effective_depth(nn.Sequential(nn.Conv1d(3, 3, 3), nn.Conv1d(3, 3, 3))) == 2
    assert torch.equal(conv[1].running_mean, mean)  # left as it was


def test_counting_torch_transformers_and_projection_shortcuts():
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 3, enable_nested_tensor=False
    )
    x = torch.randn(2, 5, 16)
    assert dl.effective_depth(encoder, x) == 6 and dl.effective_depth(encoder, x, count="layers") == 12
    assert dl.effective_depth(encoder.eval(), {"src": x}) == 6

    class Projected(nn.Module):
        def __init__(self):
            super().__init__()
            self.short, self.one, self.two = nn.Linear(4, 6), nn.Linear(4, 6), nn.Linear(6, 6)

        def forward(self, x):
            return self.short(x) + self.two(self.one(x).relu())

    assert dl.effective_depth(Projected()) == 2  # the shortcut's layer, then the addition


def test_counting_allows_an_embedding_tied_to_the_readout_and_no_other_sharing():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.middle = nn.Embedding(10, 4), nn.Linear(4, 4)

        def forward(self, ids):
            return F.linear(self.middle(self.table(ids)), self.table.weight)

    assert dl.effective_depth(Tied()) == 3
    assert np.isfinite(dl.update_energy(Tied(), UNIT, torch.ones(2, 3, dtype=torch.long), n_init=2))
    with pytest.raises(InputError, match="used 2 times"):
        dl.effective_depth(conformance._shared())


# Energy


def test_energy_of_vectorised_inits_is_that_of_one_after_the_other():
    torch.manual_seed(0)
    models = [mlp(4) for _ in range(3)]
    x = torch.randn(5, 8)
    loss = unit_residual(models[0], x)
    together = unit_energies(models[0], *stack(models), loss, x).values
    for model, row in zip(models, together, strict=True):
        alone = dl.update_energy(model, loss, x, n_init=1, readout=True, per_layer=True)
        np.testing.assert_allclose(alone["per_layer"], row, rtol=1e-4)


def test_energy_falls_back_to_one_by_one_where_an_operation_is_not_vectorised():
    class Item(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = mlp(3)

        def forward(self, x):
            y = self.layers(x)
            return y if y.detach().sum().item() > -1e30 else -y

    found = dl.update_energy(Item(), UNIT, torch.randn(4, 8), n_init=3, per_layer=True)
    assert found["per_init"].shape == (3,) and (found["per_init"] > 0).all()


def test_energy_leaves_model_and_generator_alone():
    net, x = conformance._net(), conformance._batch()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    state = torch.get_rng_state()
    dl.update_energy(net, UNIT, x, n_init=3)
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())
    assert torch.equal(state, torch.get_rng_state())
    assert not net._forward_hooks and not net._forward_pre_hooks and all(p.grad is None for p in net.parameters())


def test_energy_takes_a_reinit_and_names_the_layer_that_overflows():
    net, x = mlp(4), torch.randn(4, 8)

    def double(model):
        for parameter in model.parameters():
            nn.init.constant_(parameter, 0.1)

    found = dl.update_energy(net, UNIT, x, n_init=3, reinit=double, per_layer=True)
    assert np.ptp(found["per_init"]) < 1e-6 * found["energy"] and found["layers"] == ("0", "2", "4", "6")
    with pytest.raises(RuntimeError, match=r"update energy of .* is not finite") as error:
        dl.update_energy(conformance._overflowing(), conformance._square, conformance._batch(), n_init=1)
    assert isinstance(error.value, Diverged)


def test_reading_out_dominates_the_energy_of_a_shallow_net():
    """The trap behind counting hidden units alone."""
    net = nets.build("mlp", 4, 128)
    x = torch.from_numpy(tasks.load_dataset("depth-lr-digits")["images"][:16])
    found = unit_energies(net, nets.draw(net, 8, 0), {}, unit_residual(net, x), x)
    share = found.values[:, -1].sum() / found.values.sum()
    assert share > 0.5


def test_residual_branches_without_their_share_make_the_energy_explode():
    x = torch.from_numpy(tasks.load_dataset("depth-lr-digits")["images"][:8])
    energies = {}
    for scale in (False, True):
        net = nets.build("resmlp", 18, 32)
        params = nets.draw(net, 8, 0)
        if not scale:
            params = {n: v * math.sqrt(16) if "last" in n else v for n, v in params.items()}
        energies[scale] = unit_energies(net, params, {}, unit_residual(net, x), x).summary()["energy"]
    assert energies[False] > 100 * energies[True]


def test_heavy_tails_put_the_arithmetic_mean_above_the_geometric():
    net = nets.build("mlp", 16, 32)
    x = torch.from_numpy(tasks.load_dataset("depth-lr-digits")["images"][:8])
    found = unit_energies(net, nets.draw(net, 32, 0), {}, unit_residual(net, x), x).summary()
    assert found["arithmetic"] > 1.5 * found["energy"] and np.log(found["per_init"]).std() > 0.8


def test_float32_and_float64_agree():
    net, x = conformance._net(), conformance._batch()
    single = dl.update_energy(net, UNIT, x, n_init=1)
    assert dl.update_energy(net.double(), conformance_loss(net, x), x.double(), n_init=1) == pytest.approx(
        single, rel=1e-4
    )


def conformance_loss(net, x):
    loss = unit_residual(conformance._net(), x)
    r = torch.autograd.functional.jacobian(lambda out: loss(lambda _: out, x), net(x.double()).detach().float())
    return lambda model, batch: (model(batch) * r.double()).sum()


# Groups and initialisation


OPTIMIZERS = [
    name
    for name in dir(torch.optim)
    if isinstance(getattr(torch.optim, name), type)
    and issubclass(getattr(torch.optim, name), torch.optim.Optimizer)
    # No groups, sparse gradients alone, matrices alone; the base class.
    and name not in ("Optimizer", "LBFGS", "SparseAdam", "Muon")
]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_groups_work_with_every_optimizer_of_torch(name):
    net, x = mlp(8, bias=True), torch.randn(4, 8)
    optimizer = getattr(torch.optim, name)(dl.depth_param_groups(net, 0.1, mlp(4, bias=True)))
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(list(net.parameters()))
    assert all(group["lr"] == pytest.approx(0.1 * 2**-1.5) for group in optimizer.param_groups)
    before = net[0].weight.detach().clone()
    net(x).square().mean().backward()
    optimizer.step()
    assert not torch.equal(before, net[0].weight)
    again = getattr(torch.optim, name)(dl.depth_param_groups(net, 0.1, mlp(4, bias=True)))
    again.load_state_dict(optimizer.state_dict())


SCHEDULES = {
    "StepLR": {"step_size": 2},
    "MultiStepLR": {"milestones": [2]},
    "ConstantLR": {},
    "LinearLR": {},
    "ExponentialLR": {"gamma": 0.9},
    "PolynomialLR": {},
    "CosineAnnealingLR": {"T_max": 5},
    "CosineAnnealingWarmRestarts": {"T_0": 3},
    "LambdaLR": {"lr_lambda": lambda step: 1 / (1 + step)},
    "MultiplicativeLR": {"lr_lambda": lambda step: 0.9},
    "ReduceLROnPlateau": {},
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_groups_work_with_every_schedule_that_multiplies(name):
    net = mlp(8, width=32)
    groups = dl.depth_param_groups(net, 0.1, mlp(4, width=16), width_rule="sgd", example_input=torch.ones(2, 8))
    start = [group["lr"] for group in groups]
    optimizer = torch.optim.SGD(groups)
    schedule = getattr(torch.optim.lr_scheduler, name)(optimizer, **SCHEDULES[name])
    first = [group["lr"] for group in optimizer.param_groups]
    for _ in range(4):
        optimizer.step()
        schedule.step(1.0) if name == "ReduceLROnPlateau" else schedule.step()
    last = [group["lr"] for group in optimizer.param_groups]
    # The ratios between the groups stay.
    np.testing.assert_allclose(np.array(last) / last[0], np.array(start) / start[0], rtol=1e-9)
    np.testing.assert_allclose(np.array(first) / first[0], np.array(start) / start[0], rtol=1e-9)


def test_groups_work_with_a_schedule_of_absolute_rates():
    groups = dl.depth_param_groups(mlp(8), 0.1, 4)
    optimizer = torch.optim.SGD(groups, momentum=0.9)
    rates = [group["lr"] for group in groups]
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=rates, total_steps=10)
    peak = 0.0
    for _ in range(9):
        peak = max(peak, optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert peak == pytest.approx(rates[0], rel=0.05)
    assert optimizer.param_groups[0]["lr"] < 0.01 * peak


def test_width_rules_are_the_table():
    x = torch.ones(2, 8)
    wide, base = mlp(4, width=64, bias=True), mlp(4, width=16, bias=True)
    for rule, expected in {
        "none": {"input": 1, "hidden": 1, "readout": 1, "vector": 1},
        "sgd": {"input": 4, "hidden": 1, "readout": 0.25},
        "adam": {"input": 1, "hidden": 0.25, "readout": 0.25, "vector": 1},
    }.items():
        groups = dl.depth_param_groups(wide, 0.1, base, width_rule=rule, example_input=x)
        rates = {}
        for group in groups:
            rates.setdefault(group["role"], set()).add(round(group["lr"] / 0.1, 9))
        for role, factor in expected.items():
            assert rates[role] == {factor}, rule
    # The read-out has as many biases as before: their rate stays, that of hidden ones grows.
    rates = {
        g["lr"]
        for g in dl.depth_param_groups(wide, 0.1, base, width_rule="sgd", example_input=x)
        if g["role"] == "vector"
    }
    assert {round(rate, 9) for rate in rates} == {0.4}


def test_width_rules_match_layers_by_name_at_another_depth():
    x = torch.ones(2, 64)
    groups = dl.depth_param_groups(nets.build("resmlp", 10, 32), 0.1, nets.build("resmlp", 4, 16), "adam", x)
    rates = {group["role"]: group["lr"] for group in groups}
    assert rates["hidden"] == pytest.approx(0.05 * 2.5**-1.5) and rates["input"] == pytest.approx(0.1 * 2.5**-1.5)
    odd = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 32), nn.Linear(32, 16), nn.Linear(16, 4))
    with pytest.raises(InputError, match="can't be matched"):
        dl.depth_param_groups(mlp(9, activation=nn.Identity), 0.1, odd, "adam", torch.ones(2, 8))
    ids = torch.ones(2, 32, dtype=torch.long)
    groups = dl.depth_param_groups(nets.build("transformer", 8, 64), 0.1, nets.build("transformer", 4, 32), "sgd", ids)
    assert {round(g["lr"] / (0.1 * 2**-1.5), 9) for g in groups if g["role"] == "input"} == {2.0}


def test_groups_take_a_depth_counted_by_hand_and_leave_frozen_weights_out():
    net = mlp(6)
    net[0].weight.requires_grad_(False)
    (group,) = dl.depth_param_groups(net, 0.1, 4, depth=16)
    assert group["lr"] == pytest.approx(0.0125) and len(group["params"]) == 5


@pytest.mark.parametrize("arch", ["mlp", "cnn", "resnet", "resmlp"])
def test_stabilize_gives_the_variances_of_the_studys_nets(arch):
    net = nets.build(arch, 6, 48)
    dl.stabilize_(net, example_input=torch.ones(2, 64))
    for name, parameter in net.named_parameters():
        assert float(parameter.std()) == pytest.approx(net.stds[name], rel=0.15), name


def test_stabilize_keeps_the_forward_variance_at_any_depth():
    x = torch.randn(64, 64, generator=torch.Generator().manual_seed(0))
    for depth in (4, 34):
        net = dl.stabilize_(nets.build("resmlp", depth, 64), example_input=x)
        assert 0.3 < float(net(x).square().mean()) < 12
    with_bias = dl.stabilize_(mlp(3, bias=True), "tanh", base_model=mlp(3, width=4, bias=True))
    assert float(with_bias[2].bias.abs().max()) == 0
    narrow = dl.stabilize_(mlp(3, width=512), base_model=mlp(3, width=128), random_state=1)
    assert float(narrow[4].weight.var() * 512) == pytest.approx(0.25, rel=0.15)


# Sweeps


def test_best_rate_is_the_vertex_of_a_parabola_and_says_when_it_lies_at_the_edge():
    rates = sweep.rate_grid(-4, 2, 1)
    losses = (np.log2(rates) - (-1.3)) ** 2 + 0.5
    rate, inside = sweep.best_rate(rates, losses)
    assert math.log2(rate) == pytest.approx(-1.3) and inside
    assert sweep.best_rate(rates, -np.log(rates)) == (pytest.approx(4.0), False)
    cliff = np.array([3.0, 2.0, 1.0, np.inf, np.inf, np.inf, np.inf])
    assert sweep.best_rate(rates, cliff) == (pytest.approx(0.25), True)  # beside divergence the grid point itself
    assert math.isnan(sweep.best_rate(rates, np.full(7, np.inf))[0])


def test_grid_training_is_that_of_torchs_sgd_run_by_run():
    net = mlp(3)
    x, y = torch.randn(40, 8), torch.randint(0, 4, (40,))
    rates = [0.05, 0.2, 1e9]

    def loss(m, b):
        return F.cross_entropy(m(b[0]), b[1])

    def batches(step):
        return x[step * 8 : step * 8 + 8], y[step * 8 : step * 8 + 8]

    models = [mlp(3), mlp(3)]
    grid = sweep.train_grid(net, stack(models)[0], rates, batches, loss, 5, (x, y))
    loop = sweep.train_one_by_one(models, rates, batches, loss, 5, (x, y))
    np.testing.assert_allclose(grid[:, :2], loop[:, :2], rtol=1e-4)
    assert grid.shape == (2, 3) and (grid[:, 2] > 4).all()


@pytest.mark.parametrize(
    ("name", "reference"),
    [
        ("momentum", lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9)),
        ("adam", lambda p, lr: torch.optim.Adam(p, lr=lr)),
    ],
)
def test_grid_optimizers_are_torchs(name, reference):
    torch.manual_seed(0)
    model, x, y = mlp(3), torch.randn(16, 8), torch.randn(16, 4)

    def loss(m, b):
        return F.mse_loss(m(b[0]), b[1])

    found = sweep.train_grid(model, stack([model])[0], [0.01], lambda step: (x, y), loss, 6, (x, y), optimizer=name)
    optimizer = reference(model.parameters(), 0.01)
    for _ in range(6):
        optimizer.zero_grad()
        loss(model, (x, y)).backward()
        optimizer.step()
    assert found[0, 0] == pytest.approx(float(loss(model, (x, y))), rel=1e-4)


def test_depth_mup_factors_are_those_of_a_branch_multiplier():
    """One step of x + K^-1/2 B' relu(A x) at rate eta, against one of x + B relu(A x) with the factor on B."""
    net = nets.build("resmlp", 6, 16)
    params = nets.draw(net, 1, 0)
    x, y = torch.randn(8, 64), torch.randint(0, 10, (8,))
    K = len(net.blocks)

    def forward(weights, scale):
        h = F.linear(x, weights["stem.weight"])
        for k in range(K):
            inner = F.relu(F.linear(h, weights[f"blocks.{k}.inner.0.weight"]))
            h = h + scale * F.linear(inner, weights[f"blocks.{k}.last.weight"])
        return F.cross_entropy(F.linear(h, weights["head.weight"]), y)

    raw = {n: (v[0] * math.sqrt(K) if "last" in n else v[0]).clone().requires_grad_() for n, v in params.items()}
    forward(raw, K**-0.5).backward()
    stepped = {n: (v - 0.1 * v.grad).detach() for n, v in raw.items()}
    found = sweep.train_grid(
        net,
        params,
        [0.1],
        lambda step: (x, y),
        lambda m, b: F.cross_entropy(m(b[0]), b[1]),
        1,
        (x, y),
        nets.multipliers(net),
    )
    assert found[0, 0] == pytest.approx(float(forward(stepped, K**-0.5)), rel=1e-5)


# The study


def claim_verdict(identifier, rows):
    import assay.catalogue as catalogue
    from assay.study import Results

    return next(v for v in catalogue.get("depth-lr").study().verdicts(Results(rows)) if v.claim == identifier)


def energy_rows(slopes, noise=0.3, inits=32):
    from assay.study import Cell, Row

    rng = np.random.default_rng(0)
    rows = []
    for arch, slope in slopes.items():
        depth = np.repeat([4, 8, 16, 32], inits)
        log = -2 * slope * np.log(depth) + noise * rng.standard_normal(len(depth))
        units = pd.DataFrame({"depth": depth, "hidden": log, "all": log})
        cell = Cell("d", "depth-rule", options={"task": "energy", "arch": arch}, data=())
        rows.append(Row(cell, "measured", {"slope_hidden_arithmetic": slope}, units))
    return rows


def test_verdict_on_energies_needs_three_of_four_narrow_intervals_around_three_halves():
    right = {"mlp": -1.5, "cnn": -1.5, "resnet": -1.5, "transformer": -1.5}
    assert claim_verdict("d1", energy_rows(right)).outcome == "holds"
    assert claim_verdict("d1", energy_rows({**right, "cnn": -1.1})).outcome == "holds"
    assert claim_verdict("d1", energy_rows({**right, "cnn": -1.1, "transformer": -1.2})).outcome == "fails"
    wide = energy_rows({**right}, noise=6.0)
    assert claim_verdict("d1", wide).outcome == "unclear"
    assert claim_verdict("d1", energy_rows({"mlp": -1.5})).outcome == "untested"


def test_slope_of_energies_resamples_within_each_depth():
    found = slope_of_energies(energy_rows({"mlp": -1.5})[0].units)
    assert found.n == 128 and found.low < -1.5 < found.high and found.high - found.low < 0.1


def sweep_rows(slopes, seeds=4, inside=True):
    from assay.study import Cell, Row

    rng = np.random.default_rng(1)
    rows = []
    for arch, slope in slopes.items():
        units = pd.DataFrame(
            [
                {
                    "depth": d,
                    "seed": s,
                    "rate": d**slope * np.exp(0.02 * rng.standard_normal()),
                    "inside": inside,
                    "loss": 0.1,
                    "stable": d**slope,
                }
                for d in (4, 8, 16, 32)
                for s in range(seeds)
            ]
        )
        cell = Cell("d", "depth-rule", options={"task": "rates", "arch": arch}, data=())
        rows.append(Row(cell, "measured", {}, units))
    return rows


def test_verdict_on_trained_rates_counts_architectures_and_refuses_edges():
    right = {"mlp": -1.5, "resmlp": -1.45, "cnn": -1.55, "transformer": -0.4}
    assert claim_verdict("d2", sweep_rows(right)).outcome == "holds"
    assert claim_verdict("d2", sweep_rows({**right, "resmlp": -1.0})).outcome == "fails"
    assert claim_verdict("d2", sweep_rows({"mlp": -1.5, "resmlp": -1.07})).outcome == "untested"
    assert claim_verdict("d2", sweep_rows(right, inside=False)).outcome == "unclear"


def transfer_rows(losses):
    from assay.study import Cell, Row

    return [
        Row(
            Cell("d", arm, options={"task": "transfer", "arch": arch}, data=()),
            "measured",
            {},
            pd.DataFrame({"seed": range(4), "loss": value * (1 + 0.0002 * np.roll([1, -1, 2, -2], number))}),
        )
        for arch, arms in losses.items()
        for number, (arm, value) in enumerate(arms.items())
    ]


def test_verdict_on_transfer_asks_for_a_near_optimum_and_for_half_the_regret():
    good = {"own-optimum": 1.0, "depth-rule": 1.01, "inverse": 1.5, "constant": 20.0}
    assert claim_verdict("d3", transfer_rows({"mlp": good, "resmlp": good})).outcome == "holds"
    worse = {**good, "depth-rule": 1.3, "inverse": 1.0}
    assert claim_verdict("d3", transfer_rows({"mlp": good, "resmlp": worse})).outcome == "fails"
    close = {**good, "inverse": 1.012}
    assert claim_verdict("d3", transfer_rows({"mlp": good, "resmlp": close})).outcome == "fails"
    assert claim_verdict("d3", transfer_rows({"mlp": {"own-optimum": 1.0}})).outcome == "untested"


def test_full_tier_contains_the_quick_one():
    import assay.catalogue as catalogue
    from assay.study import Tier

    study = catalogue.get("depth-lr").study()
    assert set(study.cells(Tier.quick)) <= set(study.cells(Tier.full))


# The command, and a user's own net


def run_command(*arguments):
    import typer

    app = typer.Typer()
    app.command()(command.run)
    app(list(arguments), standalone_mode=False)


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(folder, text, name="net_of_mine.py"):
    (folder / name).write_text("import torch\nfrom torch import nn\n" + text, encoding="utf-8")


PLAIN = """
def build(depth, seed):
    hidden = [m for _ in range(depth - 2) for m in (nn.Linear(12, 12), nn.ReLU())]
    return nn.Sequential(nn.Linear(6, 12), nn.ReLU(), *hidden, nn.Linear(12, 3))
"""
BATCH = """
def batch():
    g = torch.Generator().manual_seed(0)
    x = torch.randn(16, 6, generator=g)
    return x, (x[:, 0] > 0).long()
"""


def test_command_runs_its_example(here):
    run_command(*command.example(here))
    out = here / "depth-lr-out"
    assert {"rates.csv", "summary.json", "rates.vl.json"} <= {path.name for path in out.iterdir()}
    summary = json.loads((out / "summary.json").read_text())
    runs = next(row for row in summary["exponents"] if row["kind"] == "your runs")
    assert runs["exponent"] == pytest.approx(-1.37, abs=0.02)
    table = pd.read_csv(out / "rates.csv")
    rule = table[table["kind"] == "lr by L^-3/2"]
    assert (
        pytest.approx(rule.loc[(rule["net"] == "my_module:build") & (rule["depth"] == 6), "rate"].item(), rel=1e-5)
        == 0.2 * 2**-1.5
    )
    assert not (here / "__pycache__").exists()


def test_command_measures_a_net_without_hooks_and_trains_one_with_a_batch(here):
    write(here, PLAIN)
    run_command("--model", "net_of_mine:build", "--depths", "2,4,8", "--inits", "5")
    assert len(pd.read_csv(here / "depth-lr-out" / "rates.csv")) == 3
    assert "fixed random residuals" in (here / "depth-lr-out" / "summary.json").read_text()
    write(here, PLAIN + BATCH, "trained.py")
    run_command(
        "--model", "trained:build", "--depths", "2,4", "--inits", "4", "--steps", "20", "--seeds", "2", "--out", "o"
    )
    table = pd.read_csv(here / "o" / "rates.csv")
    assert (
        set(table["kind"]) == {"maximal update", "best trained"}
        and len(pd.read_csv(here / "o" / "sweep.csv")) == 2 * 2 * 9
    )


def test_command_trains_what_has_batch_norm_one_by_one(here):
    write(here, PLAIN.replace("nn.ReLU())]", "nn.BatchNorm1d(12), nn.ReLU())]") + BATCH)
    run_command(
        "--model",
        "net_of_mine:build",
        "--depths",
        "3,5",
        "--inits",
        "4",
        "--steps",
        "4",
        "--seeds",
        "2",
        "--rates",
        "0.01,0.03,0.1",
    )
    assert len(pd.read_csv(here / "depth-lr-out" / "sweep.csv")) == 12


def test_command_takes_an_import_from_the_users_folder_and_the_newest_of_a_name(here):
    write(here, PLAIN.replace("12", "WIDTH") + "\nfrom sizes_of_mine import WIDTH\n")
    (here / "sizes_of_mine.py").write_text("WIDTH = 10\n")
    assert load_user_net("net_of_mine:build", here).model(3, 0)[0].out_features == 10
    other = here / "other"
    other.mkdir()
    write(other, PLAIN)
    assert load_user_net("net_of_mine:build", other).model(3, 0)[0].out_features == 12


def test_build_may_take_the_depth_alone_and_then_draws_with_torchs_seed(here):
    write(here, PLAIN.replace("(depth, seed)", "(depth, width=7)"))
    net = load_user_net("net_of_mine:build", here)
    a, b, again = net.model(3, 0), net.model(3, 1), net.model(3, 0)
    assert (
        not net.takes_seed and torch.equal(a[0].weight, again[0].weight) and not torch.equal(a[0].weight, b[0].weight)
    )


def test_command_runs_our_nets(here):
    run_command("--arch", "mlp,resmlp", "--depths", "4,6", "--inits", "4")
    assert set(pd.read_csv(here / "depth-lr-out" / "rates.csv")["net"]) == {"mlp", "resmlp"}
    run_command(
        "--arch", "transformer", "--depths", "4,6", "--inits", "3", "--steps", "2", "--seeds", "1", "--out", "o"
    )
    assert (here / "o" / "sweep.csv").exists()


def test_command_fits_tuned_rates_alone_and_chooses_the_best_of_a_sweep(here):
    rows = [
        {"depth": d, "seed": s, "lr": lr, "loss": (math.log(lr) - math.log(0.8 * d**-1.0)) ** 2 + 0.1}
        for d in (4, 8, 16)
        for s in (0, 1, 2)
        for lr in (0.01, 0.03, 0.1, 0.3, 1.0, 10.0)
    ]
    frame = pd.DataFrame(rows)
    frame.loc[frame["lr"] == 10.0, "loss"] = np.nan  # diverged
    frame.to_csv(here / "sweep.csv", index=False)
    run_command("--runs", "sweep.csv")
    summary = json.loads((here / "depth-lr-out" / "summary.json").read_text())
    assert summary["exponents"][0]["exponent"] == pytest.approx(-1.0, abs=0.15)
    assert any(note.startswith("Held out, depth 16") for note in summary["notes"])


RAISING = "\ndef build(depth, seed):\n    {}\n"
USER_TROUBLE = {
    "can't be built": (
        RAISING.format("if depth > 3:\n        raise ValueError('only 3 layers here')\n    return nn.Linear(6, 3)"),
        r"build\(4, 0\) raised ValueError: only 3 layers here",
    ),
    "no module": (RAISING.format("return 'net'"), "must give a torch module, got str"),
    "no parameters": (RAISING.format("return nn.ReLU()"), r"build\(2, 0\): ReLU has no parameters"),
    "shared": (
        RAISING.format("a = nn.Linear(6, 6)\n    return nn.Sequential(*[a] * depth)"),
        "at depth 2: .*is used 2 times",
    ),
    "cuda": (RAISING.format("return nn.Linear(6, 3).to('cuda')"), r"build\(2, 0\) raised .*without a GPU"),
    "recurrent": (RAISING.format("return nn.LSTM(6, 3, depth)"), "non-recurrent only: the model is a LSTM"),
    "untraceable": (
        PLAIN.replace("return nn", "net = nn") + "    return torch.jit.script(net)\n",
        "the model is scripted.*--count given and --steps",
    ),
    "through numpy": (
        "\nclass N(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.a = nn.Linear(6, 6)\n"
        "    def forward(self, x):\n        return self.a(torch.zeros_like(self.a.weight))\n"
        + RAISING.format("return N()"),
        "no layer with weights was seen",
    ),
    "same depth": (
        RAISING.format("return nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 3))"),
        "same effective depth at all",
    ),
    "same weights": (
        PLAIN.replace("return", "torch.manual_seed(0)\n    return"),
        "the same weights with seeds 0 and 1",
    ),
    "other shapes": (
        RAISING.format("return nn.Sequential(*[nn.Linear(6, 6)] if seed else [nn.Linear(6, 3)])"),
        "other parameters with seed 1",
    ),
    "arguments": (
        "\ndef build(depth, seed, width):\n    return nn.Linear(6, 3)\n",
        r"build\(depth, seed\) is expected",
    ),
    "no name": (PLAIN.replace("build", "biuld"), r"has no build \(did you mean biuld\?\)"),
    "not callable": ("\nbuild = 3\n", "build must be a function"),
    "own exception": (
        "\nclass Mine(Exception):\n    pass\n" + RAISING.format("raise Mine('first line\\nsecond line')"),
        r"raised Mine: first line$",
    ),
    "raises on import": ("\nraise KeyError('here')\n", "importing net_of_mine raised KeyError"),
    "leaves on import": ("\nraise SystemExit(3)\n", "importing net_of_mine raised SystemExit"),
    "wants a package": (
        "\nimport no_such_package_of_anyone\n",
        "wants no_such_package_of_anyone, which is not installed",
    ),
    "batch of its own": (PLAIN + "\ndef batch():\n    raise OSError('disk gone')\n", "raised OSError: disk gone"),
    "wrong batch": (
        PLAIN + "\ndef batch():\n    return torch.randn(4, 5)\n",
        "at depth 2: .*does not run on an input of shape",
    ),
    "loss of its own": (
        PLAIN + BATCH + "\ndef loss(model, batch):\n    raise RuntimeError('no labels')\n",
        "no labels",
    ),
    "loss no scalar": (
        PLAIN + BATCH + "\ndef loss(model, batch):\n    return model(batch[0])\n",
        "must be a single number",
    ),
    "loss constant": (
        PLAIN + BATCH + "\ndef loss(model, batch):\n    return 0 * model(batch[0]).sum()\n",
        "does not move any hidden",
    ),
    "loss infinite": (
        PLAIN + BATCH + "\ndef loss(model, batch):\n    return model(batch[0]).mean() * float('inf')\n",
        "is not finite",
    ),
}


@pytest.mark.parametrize("what", USER_TROUBLE)
def test_users_module_in_trouble_gets_one_line(here, what):
    text, message = USER_TROUBLE[what]
    write(here, text)
    with pytest.raises(InputError, match=message) as error:
        run_command("--model", "net_of_mine:build", "--depths", "2,4", "--inits", "3")
    assert len(str(error.value).strip().splitlines()) == 1
    assert sorted(path.name for path in here.iterdir()) == ["net_of_mine.py"]


def test_users_training_in_trouble_gets_one_line(here):
    write(here, PLAIN + BATCH)
    words = ["--model", "net_of_mine:build", "--depths", "2,4", "--inits", "3", "--steps", "30", "--seeds", "2"]
    with pytest.raises(
        InputError, match=r"at depth 2 diverges at every rate from 1e\+10 to 1e\+12: give smaller --rates"
    ):
        run_command(*words, "--rates", "1e10,1e11,1e12")
    write(here, PLAIN, "no_batch.py")
    with pytest.raises(InputError, match="training needs a loss"):
        run_command("--model", "no_batch:build", *words[2:])
    assert not (here / "depth-lr-out").exists()


def test_untraceable_net_is_trained_with_depths_counted_by_hand(here):
    write(here, PLAIN.replace("return nn", "net = nn") + "    return torch.jit.script(net)\n" + BATCH)
    words = ["--model", "net_of_mine:build", "--depths", "2,4", "--inits", "3", "--count", "given"]
    with pytest.raises(InputError, match="give --steps to train it instead"):
        run_command(*words)
    run_command(*words, "--steps", "3", "--seeds", "1")
    assert set(pd.read_csv(here / "depth-lr-out" / "rates.csv")["kind"]) == {"best trained"}


def test_command_refuses_bad_options_and_leaves_nothing(here):
    write(here, PLAIN)
    (here / "runs.csv").write_text("depth,lr\n4,0.1\n8,oops\n")
    (here / "short.csv").write_text("depth,lr\n4,0.1\n")
    (here / "lacks.csv").write_text("depth,rate\n4,0.1\n8,0.1\n")
    (here / "lost.csv").write_text("depth,lr,loss\n4,0.1,\n8,0.1,1.0\n")
    (here / "words.csv").write_text("depth,lr,loss\n4,0.1,high\n8,0.1,1.0\n")
    before = sorted(path.name for path in here.iterdir())
    good = ["--model", "net_of_mine:build"]
    for words, message in [
        ([], "either --model or --arch"),
        ([*good, "--arch", "mlp"], "either --model or --arch"),
        (["--arch", "mpl"], r"did you mean mlp\?"),
        (["--arch", "transformer", "--depths", "4,5"], "must be even"),
        (["--arch", "resnet", "--depths", "2,4"], "3 or more"),
        (["--model", "net_of_mine"], "must read module:function"),
        (["--model", "no.such:build"], "there is no module no.such"),
        (["--model", "../net:build"], "must read module:function"),
        ([*good, "--depths", "4,x"], "--depths must be whole numbers"),
        ([*good, "--depths", "4"], "two or more different depths"),
        ([*good, "--depths", "0,4"], "two or more different depths of 1"),
        ([*good, "--inits", "2"], "--inits must be 3"),
        ([*good, "--count", "all"], "--count must be one of"),
        ([*good, "--steps", "-1"], "--steps must be 0"),
        ([*good, "--rates", "0.1,0.2,0.3"], "give --steps as well"),
        ([*good, "--steps", "2", "--rates", "0.1,0.2"], "three or more different rates"),
        ([*good, "--steps", "2", "--rates", "0.1,-1,2"], "--rates must be positive"),
        ([*good, "--steps", "2", "--rates", "a,b,c"], "--rates must be numbers"),
        ([*good, "--lr", "0"], "--lr must be positive"),
        (["--runs", "none.csv"], "none.csv"),
        (["--runs", "runs.csv"], "runs.csv"),
        (["--runs", "short.csv"], "two different depths"),
        (["--runs", "lacks.csv"], "lacks the column lr"),
        (["--runs", "lost.csv"], "every run at depth 4 diverged"),
        (["--runs", "words.csv"], "loss must hold numbers"),
        ([*good, "--out", "runs.csv"], "is a file"),
    ]:
        with pytest.raises(InputError, match=message) as error:
            run_command(*words)
        assert len(str(error.value).splitlines()) == 1
    assert sorted(path.name for path in here.iterdir()) == before


def test_modules_in_data_parallel_count_as_what_they_hold():
    net, x = mlp(4), torch.randn(3, 8)
    wrapped = nn.DataParallel(net)
    assert dl.effective_depth(wrapped, x) == 4
    assert dl.update_energy(wrapped, UNIT, x, 2) == dl.update_energy(net, UNIT, x, 2)
    groups = dl.depth_param_groups(wrapped, 0.1, net, "sgd", x)
    assert {id(p) for group in groups for p in group["params"]} == {id(p) for p in wrapped.parameters()}
    assert dl.stabilize_(wrapped, example_input=x) is wrapped


def test_numbers_that_overflow_and_settings_of_the_wrong_type_are_refused():
    net, x = mlp(4), torch.randn(3, 8)
    for call in (
        lambda: dl.scale_lr(1e308, 1, 1e300),
        lambda: dl.DepthLRTransfer().fit([4, 8, 16], [1e-300, 1e300, 1.0]),
        lambda: dl.update_energy(net, UNIT, x, random_state="a"),
        lambda: dl.update_energy(net, UNIT, x, reinit=3),
    ):
        with pytest.raises(InputError):
            call()
    assert dl.update_energy(net, lambda model, batch: model(batch).sum().detach() * 0, x) == 0.0


@pytest.mark.parametrize(("step", "outcome"), [(1.0, "holds"), (0.5, "unclear")])
def test_verdict_on_width_is_counted_in_the_grids_own_steps(step, outcome):
    from assay.study import Cell, Row

    octaves = np.array([-0.4, 0.4, -0.5, 0.5])
    units = pd.DataFrame(
        {
            "width": [32] * 4 + [64] * 4,
            "seed": [0, 1, 2, 3] * 2,
            "rate": np.concatenate([np.ones(4), 2**octaves]),
            "inside": True,
        }
    )
    options = {"task": "width", "step": step}
    cells = [Cell("d", "depth-rule", options={**options, "arch": arch}, data=()) for arch in ("mlp", "resmlp")]
    rows = [Row(cell, "measured", {}, units) for cell in cells]
    assert claim_verdict("d5", rows).outcome == outcome


def test_transfer_table_trains_each_rule_at_its_own_rate():
    options = {
        "arch": "resmlp", "width": 16, "depths": [4, 8], "steps": 3, "batch": 8, "seeds": 2, "from_depth": 4,
        "top": -2.0, "fall": 1.0, "octaves": 2, "step": 1.0,
    }  # fmt: skip
    sweep_of = tasks.sweep_table("depth-lr-digits", options)
    table = tasks.transfer_table(options, "depth-lr-digits", sweep_of)
    rates = table.groupby("arm")["rate"].first()
    assert set(rates.index) == {*tasks.RULES, "own-optimum", "depth-mup"}
    assert rates["depth-rule"] == pytest.approx(rates["constant"] * 2**-1.5)
    losses = table.pivot(index="seed", columns="arm", values="loss")
    net = nets.build("resmlp", 8, 16)
    alone = tasks._trained("depth-lr-digits", net, nets.draw(net, 2, 8), [rates["depth-rule"]], options, {})[:, 0]
    np.testing.assert_allclose(losses["depth-rule"], alone, rtol=1e-5)


def test_bad_input_of_the_functions():
    for function, message in [
        (lambda: dl.effective_depth(torch.jit.script(mlp(3)), torch.ones(2, 8)), "scripted"),
        (lambda: dl.effective_depth(nn.Sequential(nn.Bilinear(2, 2, 2))), "no example can be guessed"),
        (
            lambda: dl.effective_depth(nn.Sequential(nn.Linear(3, 3), nn.Unflatten(1, (7, 7)))),
            "on a guessed example: .*does not run",
        ),
    ]:
        with pytest.raises(TypeError, match=message) as error:
            function()
        assert isinstance(error.value, Untraceable) and isinstance(error.value, InputError)
    with pytest.raises(InputError, match="no shape yet"):
        dl.effective_depth(nn.LazyLinear(3))
    with pytest.raises(InputError, match="must return a tensor"):
        dl.update_energy(Texts(), UNIT, torch.ones(1, 2))


class Texts(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x):
        return "words"
