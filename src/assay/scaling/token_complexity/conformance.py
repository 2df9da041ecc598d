"""Small inputs for the conformance checks."""

from __future__ import annotations

from typing import Any

import numpy as np

from assay.scaling.token_complexity.convergence import attention_convergence
from assay.scaling.token_complexity.hardmax import hardmax_convergence
from assay.scaling.token_complexity.heads import head_report
from assay.scaling.token_complexity.theory import (
    asymptotic_cov,
    asymptotic_cov_empirical,
    effective_tokens,
    freezing_exponent,
    gaussian_attention,
    predicted_exponent,
    spectral_lambda,
)

NS = [10, 20, 40, 80]
NAN = float("nan")


class _Characters:
    """A tokenizer of a kind: one token a character."""

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": [ord(letter) % 60 for letter in text]}


def _arrays() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.standard_normal((6, 4)), rng.standard_normal((400, 4)), rng.standard_normal((400, 3)) + 1


def _head(**changes: Any) -> dict[str, Any]:
    q, k, v = _arrays()
    return {"q": q, "k": k, "v": v, "ns": NS, "n_rep": 8, **changes}


def _spoilt(array: np.ndarray) -> np.ndarray:
    array = array.copy()
    array[1, 0] = NAN
    return array


def _bad_heads(function: Any) -> list[Any]:
    q, k, v = _arrays()
    return [
        lambda: function(**_head(q=_spoilt(q))),
        lambda: function(**_head(k=_spoilt(k))),
        lambda: function(**_head(v=np.where(v > 3, np.inf, v) + np.inf)),
        lambda: function(**_head(q=q[:, :2])),
        lambda: function(**_head(v=v[:5])),
        lambda: function(**_head(ns=[10, 20])),
        lambda: function(**_head(ns=[10, 10, 20])),
        lambda: function(**_head(ns=[10, 20, 40, 401])),
        lambda: function(**_head(ns=[0, 20, 40])),
        lambda: function(**_head(ns=[10.5, 20, 40])),
        lambda: function(**_head(k=np.ones_like(k))),
        lambda: function(**_head(n_rep=1)),
    ]


def _gaussian() -> dict[str, Any]:
    rng = np.random.default_rng(1)
    root = rng.standard_normal((3, 3))
    return {
        "x": rng.standard_normal((5, 3)), "mean": rng.standard_normal(3), "cov": root @ root.T / 3,
        "M": rng.standard_normal((3, 3)) / 3, "V": rng.standard_normal((2, 3)),
    }


def _bad_gaussians(function: Any) -> list[Any]:
    given = _gaussian()
    return [
        lambda: function(**{**given, "x": _spoilt(given["x"])}),
        lambda: function(**{**given, "x": given["x"][:, :2]}),
        lambda: function(**{**given, "cov": -given["cov"]}),
        lambda: function(**{**given, "cov": given["cov"] + np.triu(np.ones((3, 3)), 1)}),
        lambda: function(**{**given, "M": given["M"][:2]}),
        lambda: function(**{**given, "mean": given["mean"][:2]}),
    ]


def tiny_bert() -> Any:
    """A randomly initialised encoder of two layers and two heads."""
    import torch
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=64, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=64,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return BertModel(config, add_pooling_layer=False).eval()


def _report(**changes: Any) -> dict[str, Any]:
    texts = ["".join(chr(97 + (i * j) % 26) for i in range(200)) for j in range(1, 4)]
    return {
        "model": tiny_bert(), "tokenizer": _Characters(), "texts": texts, "n_queries": 8, "n_rep": 3, "window": 32,
        "ns": [10, 20, 40], **changes,
    }


CHECKS = {
    "attention_convergence": {
        "inputs": _head,
        "bad": [
            *_bad_heads(attention_convergence),
            lambda: attention_convergence(**_head(v=np.ones((400, 1)))),
            lambda: attention_convergence(**_head(scale=-1.0)),
            lambda: attention_convergence(**_head(reference="half")),
        ],
    },
    "hardmax_convergence": {
        "inputs": _head,
        "bad": [*_bad_heads(hardmax_convergence), lambda: hardmax_convergence(**_head(ns=[2, 20, 40]))],
    },
    "head_report": {
        "inputs": _report,
        "bad": [
            lambda: head_report(**_report(texts=[])),
            lambda: head_report(**_report(texts="a text")),
            lambda: head_report(**_report(layers=[7])),
            lambda: head_report(**_report(heads=[2])),
            lambda: head_report(**_report(n_queries=0)),
            lambda: head_report(**_report(texts=["short"])),
            lambda: head_report(**_report(window=1)),
            lambda: head_report(**_report(rotary="sideways")),
        ],
    },
    "gaussian_attention": {"inputs": _gaussian, "bad": _bad_gaussians(gaussian_attention)},
    "asymptotic_cov": {
        "inputs": _gaussian,
        "bad": [*_bad_gaussians(asymptotic_cov), lambda: asymptotic_cov([99.0], [0.0], [[1.0]], [[1.0]])],
    },
    "asymptotic_cov_empirical": {
        "inputs": lambda: dict(zip("qKV", _arrays(), strict=True)),
        "bad": [
            lambda: asymptotic_cov_empirical([[NAN]], [[1.0]], [[1.0]]),
            lambda: asymptotic_cov_empirical([[1.0]], [[1.0, 2.0]], [[1.0]]),
            lambda: asymptotic_cov_empirical([[1.0]], [[1.0]], [[1.0], [2.0]]),
            lambda: asymptotic_cov_empirical([[1.0]], [[1.0]], [[1.0]], scale=0.0),
        ],
    },
    "effective_tokens": {
        "inputs": lambda: {"scores": np.random.default_rng(2).standard_normal((3, 9))},
        "bad": [
            lambda: effective_tokens([NAN, 1.0]),
            lambda: effective_tokens([]),
            lambda: effective_tokens([np.inf, 1.0]),
            lambda: effective_tokens([[-np.inf, -np.inf]]),
            lambda: effective_tokens([1.0, 2.0], axis=1),
            lambda: effective_tokens(["a", "b"]),
        ],
    },
    "freezing_exponent": {
        "inputs": lambda: {"t": np.linspace(0.0, 1.5, 7)},
        "bad": [lambda: freezing_exponent(-0.1), lambda: freezing_exponent([NAN]), lambda: freezing_exponent("t")],
    },
    "predicted_exponent": {
        "inputs": lambda: {"lam": np.array([0.0, 0.5, 1.0, 3.0]), "p": 2},
        "bad": [
            lambda: predicted_exponent(-1.0),
            lambda: predicted_exponent(NAN),
            lambda: predicted_exponent("much"),
            lambda: predicted_exponent(1.0, 3),
            lambda: predicted_exponent(1.0, 2, token_sets="all"),
        ],
    },
    "spectral_lambda": {
        "inputs": lambda: {"M": np.array([[1.0, 0.5], [0.0, 2.0]]), "cov": np.array([[2.0, 0.3], [0.3, 1.0]])},
        "bad": [
            lambda: spectral_lambda([[1.0]], [[-1.0]]),
            lambda: spectral_lambda([[1.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]]),
            lambda: spectral_lambda([[NAN]], [[1.0]]),
            lambda: spectral_lambda([[1.0, 2.0]], [[1.0]]),
            lambda: spectral_lambda([[1.0]], [[1.0]], [[1.0, 0.0], [0.0, 1.0]]),
        ],
    },
}
