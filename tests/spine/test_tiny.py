"""The small byte-level decoder: its forward pass against one in NumPy, and what training promises."""

from __future__ import annotations

import math
import pydoc_data.topics
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="torch is not installed: the small decoder needs it")

from assay.errors import InputError  # noqa: E402
from assay.language import tiny  # noqa: E402
from assay.language.tiny import PRESETS, TinyCausal, TinyConfig, TrainConfig, heldout_loss, sample_bytes, train  # noqa: E402

SMALL = TinyConfig(width=24, layers=2, context=16)


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def stream() -> np.ndarray:
    """Real text: Python's own help topics."""
    return np.frombuffer(Path(pydoc_data.topics.__file__).read_bytes()[:200_000], dtype=np.uint8)


def ids(count: int, length: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(256, (count, length), generator=torch.Generator().manual_seed(seed))


def weights(model: TinyCausal) -> np.ndarray:
    return torch.cat([p.detach().flatten() for p in model.parameters()]).numpy()


def reference_logits(model: TinyCausal, row: np.ndarray) -> np.ndarray:
    """The forward pass of one sequence, position by position, in float64."""
    state = {name: value.double().numpy() for name, value in model.state_dict().items()}
    width, heads, time = model.config.width, model.config.heads, len(row)
    size = width // heads

    def normed(x, gain):
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * gain

    def turned(vector, position):
        """Pairs (i, i + size/2) turned by position * 10000^(-2i/size): a complex product."""
        turns = np.exp(1j * position * 10000.0 ** (-np.arange(0, size, 2) / size))
        pairs = (vector[: size // 2] + 1j * vector[size // 2 :]) * turns
        return np.concatenate([pairs.real, pairs.imag])

    x = state["embedding.weight"][row]
    for layer in range(model.config.layers):
        block = {k.removeprefix(f"blocks.{layer}."): v for k, v in state.items() if k.startswith(f"blocks.{layer}.")}
        q, k, v = np.split(normed(x, block["attention_norm.weight"]) @ block["qkv.weight"].T, 3, axis=1)
        mixed = np.zeros_like(x)
        for head in range(heads):
            part = slice(head * size, (head + 1) * size)
            keys = np.stack([turned(k[j, part], j) for j in range(time)])
            for i in range(time):
                scores = keys[: i + 1] @ turned(q[i, part], i) / math.sqrt(size)
                share = np.exp(scores - scores.max())
                mixed[i, part] = share / share.sum() @ v[: i + 1, part]
        x = x + mixed @ block["out.weight"].T
        gate, up = np.split(normed(x, block["feed_norm.weight"]) @ block["gate_up.weight"].T, 2, axis=1)
        x = x + (gate / (1 + np.exp(-gate)) * up) @ block["down.weight"].T
    return normed(x, state["norm.weight"]) @ state["embedding.weight"].T


@pytest.mark.parametrize("config", [SMALL, TinyConfig(width=96, layers=1, context=12)])
def test_oracle_logits_agree_with_numpy(config):
    model, row = TinyCausal(config, seed=3), ids(1, config.context)
    with torch.no_grad():
        logits = model(row)[0].numpy()
    assert logits == pytest.approx(reference_logits(model, row[0].numpy()), abs=2e-5)


@pytest.mark.parametrize("width", [24, 48, 68, 96, 136])
def test_the_first_loss_is_near_that_of_a_guess(width):
    """ln 256 for uniform guesses; random logits of variance s² add about s²/2, kept below 0.1."""
    model = TinyCausal(TinyConfig(width=width, context=32), seed=1)
    assert heldout_loss(model, ids(32, 33)) == pytest.approx(math.log(256), abs=0.1)


def test_a_later_byte_changes_no_earlier_logit():
    model, first = TinyCausal(SMALL), ids(4, 16)
    for place in (1, 7, 15):
        second = first.clone()
        second[:, place] = (second[:, place] + 1) % 256
        with torch.no_grad():
            before, after = model(first), model(second)
        assert torch.equal(before[:, :place], after[:, :place])
        assert not torch.equal(before[:, place], after[:, place])


@pytest.mark.parametrize("config", [SMALL, *PRESETS.values()], ids=["small", *PRESETS])
def test_n_counts_the_parameters_of_the_blocks(config):
    blocks = TinyCausal(config).blocks
    assert sum(p.numel() for p in blocks.parameters()) == config.n_params
    assert config.hidden % 4 == 0 and 0 <= 8 * config.width / 3 - config.hidden < 4


@given(st.integers(8, 160).map(lambda w: 4 * w))
def test_a_head_chosen_from_the_width_is_even_and_small(width):
    config = TinyConfig(width=width)
    size = width // config.heads
    assert config.heads * size == width and size % 2 == 0
    assert size <= 48 or config.heads == 1


def test_no_parameter_is_an_alias_of_another(tmp_path):
    """The head is the embedding itself, used twice and kept once: safetensors refuses shared tensors."""
    save = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")
    model = TinyCausal(SMALL, seed=5)
    storages = [p.data_ptr() for p in model.parameters()]
    assert len(set(storages)) == len(storages) == len(model.state_dict())
    save.save_file(model.state_dict(), tmp_path / "tiny.safetensors")
    other = TinyCausal.from_config(model.to_config(), seed=6)
    assert not np.array_equal(weights(other), weights(model))
    other.load_state_dict(save.load_file(tmp_path / "tiny.safetensors"))
    with torch.no_grad():
        assert torch.equal(other(ids(2, 16)), model(ids(2, 16)))


def test_the_same_seed_gives_the_same_run_bit_for_bit(stream):
    def run(seed: int) -> tuple[np.ndarray, list]:
        model = TinyCausal(SMALL, seed=0)
        curve = train(
            model, stream, TrainConfig(batch=8, steps=6, rate=3e-3, seed=seed), measure_at=[2, 6],
            measure=lambda m: heldout_loss(m, ids(4, 17)),
        )
        return weights(model), curve

    (first, curve), (again, same_curve), (other, _) = run(0), run(0), run(1)
    assert np.array_equal(first, again) and curve == same_curve and [step for step, _ in curve] == [2, 6]
    assert not np.array_equal(first, other)


def test_the_parts_of_a_batch_add_up_to_the_whole(stream, monkeypatch):
    """150 rows in parts of 64, 64 and 22, against one part: the same mean gradient up to rounding."""
    results = []
    for rows in (64, 1000):
        monkeypatch.setattr(tiny, "_CACHE_ROWS", rows)
        model = TinyCausal(SMALL, seed=0)
        train(model, stream, TrainConfig(batch=150, steps=1, rate=1e-3, weight_decay=0.0))
        results.append(torch.cat([p.grad.flatten() for p in model.parameters()]).numpy())
    assert results[0] == pytest.approx(results[1], rel=1e-3, abs=1e-6)


@given(steps=st.integers(1, 5000), rate=st.floats(1e-5, 1.0))
def test_the_rate_climbs_to_its_peak_and_falls_to_a_tenth(steps, rate):
    config = TrainConfig(batch=1, steps=steps, rate=rate)
    warm = max(1, min(100, steps // 10))
    rates = [config.rate_at(step) for step in range(steps + 1)]
    assert rates[0] == pytest.approx(rate / warm) and rates[warm - 1] == pytest.approx(rate)
    assert (np.diff(rates[:warm]) >= 0).all() and (np.diff(rates[warm:]) <= 0).all()
    assert rates[steps] == pytest.approx(0.1 * rate if steps > warm else rate)


def test_training_on_real_text_learns_more_than_its_letters(stream):
    """The held-out loss falls below the entropy of single bytes: the best that no context allows."""
    model, cut = TinyCausal(TinyConfig(width=48, layers=2, context=32), seed=0), 180_000
    windows = sample_bytes(stream[cut:], 64, 33, np.random.default_rng(0))
    before = heldout_loss(model, windows)
    train(model, stream[:cut], TrainConfig(batch=32, steps=150, rate=5e-3))
    shares = np.bincount(stream[cut:], minlength=256) / len(stream[cut:])
    entropy = -float((shares[shares > 0] * np.log(shares[shares > 0])).sum())
    assert heldout_loss(model, windows) < entropy < before


def test_heldout_loss_is_the_mean_over_all_bytes(stream):
    model, windows = TinyCausal(SMALL), sample_bytes(stream, 10, 17, np.random.default_rng(0))
    logits = np.stack([reference_logits(model, row) for row in windows[:, :-1].numpy()])
    chosen = np.take_along_axis(logits, windows[:, 1:, None].numpy(), axis=-1)[..., 0]
    expected = float((np.log(np.exp(logits).sum(-1)) - chosen).mean())
    assert heldout_loss(model, windows) == pytest.approx(expected, abs=1e-5)
    assert heldout_loss(model, windows, batch=3) == pytest.approx(expected, abs=1e-5)


def test_windows_are_pieces_of_the_stream():
    line = np.arange(40, dtype=np.uint8)
    windows = sample_bytes(line, 200, 8, np.random.default_rng(0)).numpy()
    assert (np.diff(windows, axis=1) == 1).all() and windows[:, 0].min() == 0 and windows[:, 0].max() == 32
    assert sample_bytes(line, 2, 40, np.random.default_rng(0)).tolist() == [line.tolist()] * 2


def test_wrong_shapes_are_refused():
    with pytest.raises(InputError, match="17 tokens do not fit a context of 16"):
        TinyCausal(SMALL)(ids(1, 17))
    with pytest.raises(InputError, match="width 30 is not an even multiple of 4 heads"):
        TinyConfig(width=30, heads=4)
    with pytest.raises(InputError, match="5 bytes is too short for windows of 17"):
        train(TinyCausal(SMALL), np.zeros(5, dtype=np.uint8), TrainConfig(batch=1, steps=1, rate=1e-3))


def test_a_run_that_diverges_says_at_which_step(stream):
    with pytest.raises(FloatingPointError, match="not finite at step"):
        train(TinyCausal(SMALL), stream, TrainConfig(batch=2, steps=20, rate=1e37))
