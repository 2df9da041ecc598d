"""A table of a model's attention heads: spectral number, measured and predicted exponent, tokens that are needed.

Queries, keys and values are recorded before any rotary position is applied: with it keys are not exchangeable.
The first token of each window, a sink for attention in most trained models, is kept out of pool and queries; its
effect is shown in a column of its own (arXiv 2512.10656 for the question; the table is reconstructed).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from assay.errors import InputError, require
from assay.scaling.token_complexity.convergence import ConvergenceResult, attention_convergence, pool_lambda
from assay.scaling.token_complexity.theory import predicted_exponent, whole_number

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["head_report"]

Array = NDArray[np.float64]
WINDOW = 256
MIN_POOL = 64
_BATCH = 8


def head_report(
    model: Any, tokenizer: Any, texts: Sequence[str], layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None, *, n_queries: int = 128, ns: Sequence[int] | None = None, n_rep: int = 16,
    window: int = WINDOW, rotary: str = "before", random_state: int = 0,
) -> pd.DataFrame:
    """Measure every head of a model on a pool of tokens from texts.

    Parameters
    ----------
    model : torch.nn.Module
        Of the BERT, Llama, GPT-2 or GPT-NeoX family; left bit for bit as it was.
    tokenizer : callable
        `tokenizer(text)["input_ids"]` is a list of token ids.
    texts : sequence of str
        Cut into windows, all of whose tokens make the pool and the queries.
    layers, heads : sequence of int, optional
        All by default. `heads` are query heads of each layer.
    n_queries : int
        Tokens, drawn at random, that serve as queries and are taken out of the pool.
    ns : sequence of int, optional
        Numbers of tokens; by default powers of two from 32 to a quarter of the pool.
    n_rep : int
        Random orders of the pool.
    window : int
        Tokens that the model reads at a time.
    rotary : {"before", "after"}
        Queries and keys before rotary positions (exchangeable), or after them.
    random_state : int

    Returns
    -------
    DataFrame
        One row a head: `layer`, `head`, `kv_head`, `lam` (spectral number, first tokens left out), `lam_all` (with
        them), `kurtosis` (excess, of the keys along the direction that makes `lam`; 0 for Gaussian keys), `beta`,
        `beta_low`, `beta_high`, `beta_pred`, `n_eff` (at the largest n), `regime`, `tokens_5` (tokens for a relative
        error of 5 %).

    Raises
    ------
    TypeError
        The model has no projections that can be read; the message names the supported classes.
    InputError
        No texts, a layer or head that the model has not, too few tokens, and what `attention_convergence` refuses.
    MissingExtra
        torch is not installed.

    Notes
    -----
    Reconstructed. `lam` comes from covariances whose largest 1 % of rows are drawn in (winsorised by norm).

    Examples
    --------
    With `model, tokenizer = assay.language.smollm2.load_smollm2()`, `head_report(model, tokenizer, texts)` has 270
    rows. A model without attention is refused:

    >>> head_report(object(), str.split, ["some text"])
    Traceback (most recent call last):
    TypeError: a torch.nn.Module is needed, got object; supported are BERT and its family ...
    """
    require("torch", extra="language", wanted_by="token-complexity")
    from assay.language.hooks import attention_layers, record_attention

    found = attention_layers(model)
    texts = list(texts) if isinstance(texts, Iterable) and not isinstance(texts, str) else []
    if not texts or not all(isinstance(text, str) for text in texts):
        raise InputError("texts must be a sequence of at least one str")
    chosen = range(len(found)) if layers is None else layers
    states = record_attention(model, token_batches(tokenizer, texts, window), layers=list(chosen), rotary=rotary)
    rows = []
    for index in chosen:
        layer, seen = found[index], states[index]
        wanted = range(layer.n_heads) if heads is None else heads
        for head in wanted:
            if not isinstance(head, (int, np.integer)) or not 0 <= head < layer.n_heads:
                raise InputError(f"head must be 0 to {layer.n_heads - 1}, got {head!r}")
            arrays = (seen.q[:, head], seen.k[:, layer.kv_head(head)], seen.v[:, layer.kv_head(head)])
            q, k, v = (each.double().cpu().numpy() for each in arrays)
            first = seen.position.cpu().numpy() == 0
            measured, _ = head_row(q, k, v, first, layer.scale, n_queries, ns, n_rep, random_state)
            rows.append({"layer": index, "head": head, "kv_head": layer.kv_head(head), **measured})
    import pandas as pd

    return pd.DataFrame(rows)


def token_batches(tokenizer: Any, texts: Sequence[str], window: int) -> Iterator[dict[str, Any]]:
    """Windows of the texts' tokens, those of one length together, as the model is called with."""
    import torch

    window = whole_number(window, "window", 2)
    by_length: dict[int, list[list[int]]] = {}
    for text in texts:
        ids = list(tokenizer(text)["input_ids"])
        for start in range(0, len(ids), window):
            piece = ids[start:start + window]
            by_length.setdefault(len(piece), []).append(piece)
    for length in sorted(by_length, reverse=True):
        pieces = by_length[length]
        for start in range(0, len(pieces), _BATCH):
            ids_tensor = torch.tensor(pieces[start:start + _BATCH])
            yield {"input_ids": ids_tensor, "attention_mask": torch.ones_like(ids_tensor)}


def head_row(
    q: Array, k: Array, v: Array, first: NDArray[np.bool_], scale: float, n_queries: int, ns: Sequence[int] | None,
    n_rep: int, random_state: int,
) -> tuple[dict[str, Any], ConvergenceResult]:
    """One head's numbers and its curve, from what it saw at every token."""
    queries, pool = split_tokens(first, n_queries, random_state)
    counts = default_ns(len(pool)) if ns is None else ns
    found = attention_convergence(
        q[queries], k[pool], v[pool], counts, scale=scale, n_rep=n_rep, random_state=random_state
    )
    lam, direction = robust_lambda(q[~first], k[~first], scale)
    along = k[~first] @ direction
    row = {
        "lam": lam, "lam_all": pool_lambda(q, k, scale), "kurtosis": _excess_kurtosis(along), "beta": found.beta,
        "beta_low": found.beta_ci[0], "beta_high": found.beta_ci[1], "beta_pred": float(predicted_exponent(lam)),
        "n_eff": float(found.table["n_eff"].iloc[-1]), "regime": found.regime, "tokens_5": found.tokens_for(0.05),
    }
    return row, found


def split_tokens(
    first: NDArray[np.bool_], n_queries: int, random_state: int
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Queries and pool: disjoint, at random, without the windows' first tokens."""
    inner = np.flatnonzero(~first)
    n_queries = whole_number(n_queries, "n_queries", 2)
    random_state = whole_number(random_state, "random_state", 0)
    if len(inner) < n_queries + MIN_POOL:
        raise InputError(
            f"the texts have {len(inner)} tokens, {n_queries} queries and a pool of at least {MIN_POOL} are needed"
        )
    order = np.random.default_rng([random_state, len(inner)]).permutation(inner)
    return order[:n_queries], order[n_queries:]


def default_ns(pool: int) -> list[int]:
    """Powers of two up to a quarter of the pool, at least three of them."""
    top = max(4, int(np.log2(pool)) - 2)
    return [2**power for power in range(min(5, top - 2), top + 1)]


def robust_lambda(q: Array, k: Array, scale: float) -> tuple[float, Array]:
    """`spectral_lambda` from winsorised covariances, and the direction in key space that makes it."""
    queries, keys = _winsorised_cov(q), _winsorised_cov(k)
    values, vectors = np.linalg.eigh(queries)
    root = (vectors * np.sqrt(values.clip(0.0))) @ vectors.T
    strengths, directions = np.linalg.eigh(scale**2 * root @ keys @ root)
    return float(max(0.0, strengths[-1])), root @ directions[:, -1]


def _winsorised_cov(rows: Array) -> Array:
    """Covariance of rows whose distance from the median is bounded by its 99 % quantile."""
    centred = rows - np.median(rows, axis=0)
    distance = np.linalg.norm(centred, axis=1)
    limit = np.quantile(distance, 0.99)
    drawn = centred * np.minimum(1.0, limit / np.maximum(distance, 1e-300))[:, None]
    return np.atleast_2d(np.cov(drawn.T))


def _excess_kurtosis(values: Array) -> float:
    centred = values - values.mean()
    variance = float((centred**2).mean())
    return float((centred**4).mean() / variance**2 - 3) if variance else 0.0
