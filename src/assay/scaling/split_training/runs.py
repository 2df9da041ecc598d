"""Small decoders trained in two phases: a shared trunk on a mixture, then a branch on one domain.

The trunk draws equal parts of every batch from each domain and keeps its learning rate constant after a
warm-up, so that every one of its checkpoints is a fair place to branch. A branch takes the trunk's weights and
optimiser moments and lets the rate fall along a line to zero over its own tokens, without warming up again. A
branch without a trunk starts from new weights with a warm-up. `decayed` is the opponent of all of them: one
model on the mixture whose rate falls to zero, as one would train it if nothing were to follow.

Tokens are bytes. A step has `BATCH` sequences of `CONTEXT` bytes.
"""

from __future__ import annotations

import copy
import hashlib
import math
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from assay.errors import InputError, require

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from assay.language.tiny import TinyCausal, TinyConfig

__all__ = ["BATCH", "CONTEXT", "STEP_TOKENS", "Corpus", "Trainer", "corpora_from_folders", "home_corpora", "n_params"]

BATCH = 16
CONTEXT = 128
STEP_TOKENS = BATCH * CONTEXT
WARM_UP = 40
HEAD_UNITS = {160: 16}
HELD_OUT_WINDOWS = 256


@dataclass(frozen=True)
class Corpus:
    """One domain as two byte streams, documents joined by byte 0."""

    name: str
    training: np.ndarray
    held_out: np.ndarray

    @classmethod
    def from_documents(cls, name: str, documents: Mapping[str, bytes]) -> Corpus:
        """Hold out a tenth of the documents, chosen by a hash of their names; equal texts count once."""
        parts: dict[bool, list[bytes]] = {True: [], False: []}
        seen: set[bytes] = set()
        for key in sorted(documents):
            text = documents[key]
            if text in seen or not text:
                continue
            seen.add(text)
            parts[int(hashlib.sha256(key.encode()).hexdigest(), 16) % 10 == 0].append(text)
        training, held_out = (np.frombuffer(b"\0".join(parts[flag]), dtype=np.uint8) for flag in (False, True))
        for stream, what in ((training, "training"), (held_out, "held-out")):
            if len(stream) <= CONTEXT:
                raise InputError(f"domain {name!r}: {len(stream)} {what} bytes, more than {CONTEXT} are needed")
        return cls(name, training, held_out)


def home_corpora() -> dict[str, Corpus]:
    """Four domains that a Python installation holds: library source, C headers, prose, licence texts."""
    from pydoc_data.topics import topics

    library = Path(sysconfig.get_paths()["stdlib"])
    packages = Path(np.__file__).parents[1]
    headers = {"python": Path(sysconfig.get_paths()["include"]), "numpy": Path(np.get_include())}
    source = {
        str(path.relative_to(library)): path.read_bytes()
        for path in library.rglob("*.py")
        if not {"test", "tests", "site-packages", "idle_test", "pydoc_data", "lib2to3"} & set(path.parts)
    }
    c = {
        f"{root}/{path.relative_to(folder)}": path.read_bytes()
        for root, folder in headers.items() for path in folder.rglob("*.h")
    }
    licences = {
        str(path.relative_to(packages)): path.read_bytes()
        for path in packages.rglob("*")
        if path.is_file() and path.suffix.lower() in ("", ".txt", ".md", ".rst")
        and any(word in path.name.upper() for word in ("LICEN", "COPYING", "NOTICE"))
    }
    prose = {name: text.encode() for name, text in topics.items()}
    named = {"python": source, "c": c, "prose": prose, "licence": licences}
    return {name: Corpus.from_documents(name, documents) for name, documents in named.items()}


def corpora_from_folders(folders: Sequence[Path]) -> dict[str, Corpus]:
    """One domain a folder, named after it; every file below it is a document."""
    found = {}
    for folder in folders:
        if not folder.is_dir():
            raise InputError(f"{folder}: no such folder")
        documents = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        found[folder.name] = Corpus.from_documents(folder.name, documents)
    if len(found) < 2:
        raise InputError(f"a mixture needs two domains or more, got {len(found)} folder(s)")
    return found


def n_params(width: int) -> int:
    """Parameters of the blocks of a two-layer decoder of this width."""
    return _config(width).n_params


def _config(width: int) -> TinyConfig:
    require("torch", extra="torch", wanted_by="split-training")
    from assay.language.tiny import TinyConfig

    return TinyConfig(width=width, layers=2, heads=width // HEAD_UNITS.get(width, 24), context=CONTEXT)


@dataclass
class State:
    """A model in training: weights, optimiser moments, steps taken."""

    model: TinyCausal
    optimiser: torch.optim.Optimizer
    steps: int

    def copy(self) -> State:
        """The same weights, moments and steps, apart from these."""
        model = copy.deepcopy(self.model)
        optimiser = _optimiser(model)
        optimiser.load_state_dict(copy.deepcopy(self.optimiser.state_dict()))
        return State(model, optimiser, self.steps)


def _optimiser(model: TinyCausal) -> torch.optim.Optimizer:
    import torch

    return torch.optim.AdamW(model.parameters(), lr=0.0, betas=(0.9, 0.95), weight_decay=0.1, fused=True)


class Trainer:
    """Train and measure the two phases for one width and seed.

    Parameters
    ----------
    corpora : dict of str to Corpus
        The domains of the mixture.
    width, seed : int
        The seed sets the weights and, with the phase, the batches: seeds differ in both.
    trunk_rate, decay_rate : float
        Learning rate of the trunk and the branches from it, and of models that decay from the start.
    """

    def __init__(
        self, corpora: Mapping[str, Corpus], width: int, seed: int, trunk_rate: float, decay_rate: float
    ) -> None:
        from assay.language.tiny import sample_bytes

        self.corpora, self.width, self.seed = dict(corpora), width, seed
        self.trunk_rate, self.decay_rate = trunk_rate, decay_rate
        draw = partial(sample_bytes, count=HELD_OUT_WINDOWS, length=CONTEXT + 1)
        self.windows: dict[str, Tensor] = {
            name: draw(corpus.held_out, rng=np.random.default_rng([20261, index]))
            for index, (name, corpus) in enumerate(sorted(self.corpora.items()))
        }

    def trunk(self, checkpoints: Sequence[int]) -> Iterator[tuple[int, State]]:
        """The trunk's state after each number of steps in `checkpoints`, in rising order."""
        state, rng = self._new(), np.random.default_rng([self.seed, 1])
        for target in sorted(set(checkpoints)):
            self._advance(state, list(self.corpora), target - state.steps, self._warm, rng)
            yield target, state.copy()

    def branch(self, trunk: State | None, domains: Sequence[str], steps: int) -> TinyCausal:
        """Continue a copy of the trunk (or new weights, where it is None) on equal parts of `domains`."""
        rng = np.random.default_rng([self.seed, 2, 0 if trunk is None else trunk.steps])
        if trunk is None:
            return self._decay(self._new(), domains, steps, rng)
        state = trunk.copy()
        self._advance(state, domains, steps, lambda step: self.trunk_rate * (1 - (step - trunk.steps) / steps), rng)
        return state.model

    def decayed(self, steps: int) -> TinyCausal:
        """One model on the whole mixture whose rate falls to zero over `steps`."""
        return self._decay(self._new(), list(self.corpora), steps, np.random.default_rng([self.seed, 1]))

    def losses(self, model: TinyCausal) -> dict[str, float]:
        """Held-out loss in nats a byte on each domain."""
        from assay.language.tiny import heldout_loss

        return {name: heldout_loss(model, windows) for name, windows in self.windows.items()}

    def _new(self) -> State:
        from assay.language.tiny import TinyCausal

        model = TinyCausal(_config(self.width), seed=self.seed)
        return State(model, _optimiser(model), 0)

    def _warm(self, step: int) -> float:
        return self.trunk_rate * min(1.0, (step + 1) / WARM_UP)

    def _decay(self, state: State, domains: Sequence[str], steps: int, rng: np.random.Generator) -> TinyCausal:
        warm = max(1, min(WARM_UP, steps // 4))

        def rate(step: int) -> float:
            return self.decay_rate * min((step + 1) / warm, (steps - step) / max(1, steps - warm))

        self._advance(state, domains, steps, rate, rng)
        return state.model

    def _advance(
        self, state: State, domains: Sequence[str], steps: int, rate: Callable[[int], float], rng: np.random.Generator
    ) -> None:
        import torch
        from torch import nn
        from torch.nn import functional as F

        from assay.language.tiny import sample_bytes

        parts = _parts(BATCH, len(domains))
        state.model.train()
        for step in range(state.steps, state.steps + steps):
            for group in state.optimiser.param_groups:
                group["lr"] = rate(step)
            ids = torch.cat([
                sample_bytes(self.corpora[name].training, count, CONTEXT + 1, rng)
                for name, count in zip(domains, parts, strict=True)
            ])
            state.optimiser.zero_grad(set_to_none=True)
            F.cross_entropy(state.model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()).backward()
            norm = float(nn.utils.clip_grad_norm_(state.model.parameters(), 1.0))
            if not math.isfinite(norm):
                raise FloatingPointError(f"width {self.width}: the gradient is not finite at step {step}")
            state.optimiser.step()
        state.steps += steps


def _parts(total: int, count: int) -> list[int]:
    """`total` in `count` parts that differ by one at most."""
    return [total * (i + 1) // count - total * i // count for i in range(count)]
