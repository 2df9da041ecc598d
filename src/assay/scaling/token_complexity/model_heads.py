"""What is measured on trained models: every head's numbers, and what sampling its context does downstream.

Downstream, a head's own context is exchanged for the pool, as an infinitely long exchangeable context would be:
once for the whole pool, which is the reference, then for nothing at all (the head is removed: its output is zero),
and then for n random tokens of the pool. Everything after the head runs as it is. For the encoder the damage is half
the squared distance between the two pooled embeddings of length one (1 - cosine); for the decoder the divergence of the
next-token distribution from that of the reference, which is the expected increase of next-token loss under the
reference's own predictions. The loss on the text's real next tokens is kept beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from assay.scaling.token_complexity.convergence import ConvergenceResult, extrapolated
from assay.scaling.token_complexity.heads import head_row, split_tokens, token_batches

__all__ = ["head_table", "help_texts", "load_model"]


def help_texts() -> dict[str, str]:
    """Python's own help topics by name: what the models read."""
    from pydoc_data.topics import topics

    return {name: topics[name] for name in sorted(topics)}


def head_table(which: str, texts: Mapping[str, str], options: Mapping[str, Any]) -> pd.DataFrame:
    """One row a head: what `head_report` gives, and `damage_n` for each n of `options["damage_ns"]`.

    Topics alternate between the pool and the passages that are read downstream, so that no passage sees itself.
    """
    import torch

    from assay.language.hooks import attention_layers, record_attention

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        model, tokenizer = load_model(which)
        body = model if which == "minilm" else model.model  # the head on the vocabulary is not needed for the pool
        pool_texts, passages = _texts(texts, tokenizer, options)
        states = record_attention(body, token_batches(tokenizer, pool_texts, options["window"]))
        reader = (_Encoder if which == "minilm" else _Decoder)(model, passages)
        rows = []
        for layer in attention_layers(body):
            seen = states.pop(layer.index)
            first = seen.position.numpy() == 0
            _, pool = split_tokens(first, options["queries"], 0)
            for head in range(0, layer.n_heads):
                own = layer.kv_head(head)
                q, k, v = seen.q[:, head], seen.k[:, own], seen.v[:, own]
                row, found = head_row(
                    q.double().numpy(), k.double().numpy(), v.double().numpy(), first, layer.scale,
                    options["queries"], options["ns"], options["reps"], 0,
                )
                damage = {}
                if head % options["stride"] == 0:
                    damage = _damage(body, layer, head, k[pool], v[pool], reader, options)
                rows.append({"layer": layer.index, "head": head, **row, **_extrapolations(found), **damage})
        return pd.DataFrame(rows)
    finally:
        torch.set_num_threads(threads)


def _extrapolations(found: ConvergenceResult) -> dict[str, float]:
    """What a fit and 1/sqrt(n) make of the smaller n: expected tokens over the real ones at the largest n."""
    table = found.table
    corrected = table["err"] / np.sqrt(1 - table["n"] / found.n_tokens)
    return {
        "tokens_fitted": extrapolated(table["n"], corrected), "tokens_root": extrapolated(table["n"], corrected, 0.5)
    }


def load_model(which: str) -> tuple[Any, Any]:
    """The pretrained model of that name and its tokenizer."""
    if which == "minilm":
        from assay.language.minilm import load_minilm

        return load_minilm()
    from assay.language.smollm2 import load_smollm2

    return load_smollm2()


def _texts(texts: Mapping[str, str], tokenizer: Any, options: Mapping[str, Any]) -> tuple[list[str], Any]:
    """Topics for the pool until it is large enough, and passages of equal length from the others."""
    import torch

    names = list(texts)
    pool: list[str] = []
    tokens = 0
    for name in names[::2]:
        if tokens >= options["pool"]:
            break
        words = texts[name]
        count = len(tokenizer(words)["input_ids"])
        pool.append(words)
        tokens += count
    length = options["passage"]
    passages: list[list[int]] = []
    for name in names[1::2]:
        ids = tokenizer(texts[name])["input_ids"]
        if len(ids) >= length and len(passages) < options["passages"]:
            passages.append(ids[:length])
    return pool, torch.tensor(passages)


def _damage(
    body: Any, layer: Any, head: int, k: Any, v: Any, reader: Any, options: Mapping[str, Any]
) -> dict[str, float]:
    """Mean damage over passages and draws at each n, and that of the head's removal."""
    import torch

    from assay.language.hooks import replaced_head

    rng = np.random.default_rng([layer.index, head, 3])
    order = [torch.from_numpy(rng.permutation(len(k))[: max(options["damage_ns"])]) for _ in range(options["draws"])]
    subsets: list[Any] = [slice(None)] + [drawn[:n] for n in options["damage_ns"] for drawn in order]

    def over_pool(queries: Any) -> Any:
        removed, *copies = queries.unflatten(0, (1 + len(subsets), -1))
        reference, *sampled = [
            torch.softmax(layer.scale * copy @ k[chosen].T, dim=-1) @ v[chosen]
            for copy, chosen in zip(copies, subsets, strict=True)
        ]
        return torch.stack([reference, torch.zeros_like(removed), *sampled]).flatten(0, 1)

    with torch.no_grad(), replaced_head(body, layer.index, head, over_pool):
        kinds = reader.compare(layer.index, 1 + len(subsets))
    found = {}
    for kind, (removal, *values) in kinds.items():
        found[f"{kind}_removed"] = removal
        for i, n in enumerate(options["damage_ns"]):
            found[f"{kind}_{n}"] = float(np.mean(values[i * len(order):(i + 1) * len(order)]))
    return found


class _Encoder:
    """Runs an encoder's layers from any layer on, from states that are kept."""

    def __init__(self, model: Any, passages: Any) -> None:
        import torch

        self.layers = model.encoder.layer
        with torch.no_grad():
            self.entering = _entering(self.layers, model.embeddings(input_ids=passages), lambda layer, x: layer(x))

    def compare(self, start: int, copies: int) -> dict[str, list[float]]:
        """Damage of each copy but the first, which is the reference."""
        import torch

        states = self.entering[start].repeat(copies, 1, 1)
        for layer in self.layers[start:]:
            states = layer(states)
        pooled = torch.nn.functional.normalize(states.double().mean(dim=1), dim=-1).unflatten(0, (copies, -1))
        return {"damage": [float(((copy - pooled[0]) ** 2).sum(-1).mean() / 2) for copy in pooled[1:]]}


class _Decoder:
    """Runs a decoder's layers from any layer on, from states that are kept."""

    def __init__(self, model: Any, passages: Any) -> None:
        import torch

        self.model, self.passages = model, passages
        self.layers = model.model.layers
        with torch.no_grad():
            entering = model.model.embed_tokens(passages)
            positions = torch.arange(passages.shape[1])[None]
            self.rotation = model.model.rotary_emb(entering, positions)
            self.entering = _entering(self.layers, entering, self._run)

    def compare(self, start: int, copies: int) -> dict[str, list[float]]:
        """Divergence from the first copy, the reference, and increase of the loss over it."""
        import torch

        states = self.entering[start].repeat(copies, 1, 1)
        for layer in self.layers[start:]:
            states = self._run(layer, states)
        logits = self.model.lm_head(self.model.model.norm(states))[:, :-1]
        # In double precision: most heads change the distribution by less than the rounding of a float32 softmax.
        logs = torch.log_softmax(logits.double(), dim=-1).unflatten(0, (copies, -1))
        target = self.passages[:, 1:, None]
        losses = [float(-copy.gather(-1, target).mean()) for copy in logs]
        own = logs[0].exp()
        apart = [float((own * (logs[0] - copy)).sum(-1).mean()) for copy in logs[1:]]
        return {"damage": apart, "loss": [loss - losses[0] for loss in losses[1:]]}

    def _run(self, layer: Any, states: Any) -> Any:
        return layer(states, attention_mask=None, position_embeddings=self.rotation)


def _entering(layers: Any, states: Any, run: Callable[[Any, Any], Any]) -> list[Any]:
    """The states that enter each layer."""
    kept = []
    for layer in layers:
        kept.append(states)
        states = run(layer, states)
    return kept
