"""The tasks that a population of seeds is trained on: data and tests, in NumPy alone.

| task | network | scale | what a seed draws |
|---|---|---|---|
| `SubsetParity` | one hidden layer or more | units of a hidden layer | first weights, every batch |
| `ScarceDigits` | one hidden layer or more | units of a hidden layer | first weights, labelled pictures, order |
| `CountTask` | decoder without positions | width | first weights, every batch |
| `ReverseAdditionIndexHints` | decoder without positions | width | first weights, every batch |

A seed stands for the first weights and the data together (arXiv 2502.17356 varies both): `stream` gives
the data of one seed from its own generator, so that a seed learns from the same batches however many
others are trained beside it. Settings that the paper's text leaves open are reconstructed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from assay.errors import InputError, nearest

__all__ = ["CountTask", "ReverseAdditionIndexHints", "ScarceDigits", "SubsetParity", "task_named"]

Batches = tuple[NDArray, NDArray]  # inputs and targets, with leading axes (steps, batch)
Stream = Callable[[int], Batches]


@dataclass(frozen=True)
class SubsetParity:
    """The product of the first `relevant` of `bits` signs, learned from fresh batches (hinge loss, plain SGD).

    Parameters
    ----------
    bits, relevant
        Length of an input of ±1, and how many of its entries the label depends on.
    batch, rate
        Examples a step, and the step size of gradient descent: 0.3 was the best, or as good, of 0.1, 0.3, 1 and 3
        at every width from 2 to 32.
    test_items
        Fixed examples that measure accuracy and loss.

    Raises
    ------
    InputError
        Bits that are no multiple of 8, or relevant outside 1 to bits.

    Examples
    --------
    >>> inputs, labels = SubsetParity().held_out()
    >>> inputs.shape, bool((labels == inputs[:, 0] * inputs[:, 1] * inputs[:, 2]).all())
    ((2000, 16), True)
    """

    bits: int = 16
    relevant: int = 3
    batch: int = 32
    rate: float = 0.3
    test_items: int = 2000

    name = "parity"
    widths = (2, 3, 4, 5, 6, 8, 12, 16)
    steps = 4800
    loss = "hinge"
    weight_scale = 1.0  # the variance of a first weight is this over its fan-in

    def __post_init__(self) -> None:
        if not 1 <= self.relevant <= self.bits or self.bits % 8:
            raise InputError(
                f"bits must be a multiple of 8 and relevant 1 to bits, got bits={self.bits}, relevant={self.relevant}"
            )

    @property
    def sizes(self) -> tuple[int, int]:
        """Inputs and outputs of the network."""
        return self.bits, 1

    def stream(self, rng: np.random.Generator) -> Stream:
        """The batches of one seed: a function of the number of steps."""

        def draw(steps: int) -> Batches:
            raw = rng.integers(0, 256, size=(steps, self.batch, self.bits // 8), dtype=np.uint8)
            return self._labelled(np.unpackbits(raw, axis=-1))

        return draw

    def held_out(self) -> Batches:
        """Test inputs (items, bits) and labels ±1 (items,)."""
        raw = np.random.default_rng(2026).integers(0, 2, size=(self.test_items, self.bits), dtype=np.uint8)
        inputs, labels = self._labelled(raw)
        return inputs, labels[..., 0]

    def _labelled(self, raw: NDArray[np.uint8]) -> Batches:
        labels = 1 - 2 * (raw[..., : self.relevant].sum(axis=-1, keepdims=True, dtype=np.uint8) % 2).astype(np.int8)
        sign = -1 if self.relevant % 2 else 1  # the product of `relevant` signs 2 b - 1, by counting ones
        return raw.astype(np.float32) * 2 - 1, (labels * sign).astype(np.float32)


@dataclass(frozen=True)
class ScarceDigits:
    """scikit-learn's digits with few labels: each seed is given its own `labelled` pictures of the training half.

    Parameters
    ----------
    labelled
        Pictures of the training half (898) that have a label.
    batch, rate
        Pictures a step, drawn with replacement; step size of gradient descent.

    Raises
    ------
    InputError
        A number of labelled pictures outside 1 to 898.

    Examples
    --------
    >>> pictures, labels = ScarceDigits().held_out()
    >>> pictures.shape, labels.shape
    ((899, 64), (899,))
    """

    labelled: int = 40
    batch: int = 32
    rate: float = 0.1

    name = "digits"
    widths = (2, 4, 8, 16, 32)
    steps = 2000
    loss = "cross-entropy"
    weight_scale = 2.0
    sizes = (64, 10)

    def __post_init__(self) -> None:
        if not 1 <= self.labelled <= 898:
            raise InputError(f"labelled must be 1 to 898 pictures, got {self.labelled}")

    def stream(self, rng: np.random.Generator) -> Stream:
        """The batches of one seed: a function of the number of steps."""
        pictures, labels, _, _ = _digit_halves()
        chosen = rng.permutation(len(pictures))[: self.labelled]

        def draw(steps: int) -> Batches:
            rows = chosen[rng.integers(0, self.labelled, size=(steps, self.batch))]
            return pictures[rows], labels[rows]

        return draw

    def held_out(self) -> Batches:
        """Test pictures (899, 64), scaled by the training half, and their classes (899,)."""
        return _digit_halves()[2:]


@cache
def _digit_halves() -> tuple[NDArray, NDArray, NDArray, NDArray]:
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    digits = load_digits()
    train, test, train_labels, test_labels = train_test_split(
        digits.data, digits.target, test_size=0.5, random_state=2026, stratify=digits.target
    )
    mean, spread = train.mean(), train.std()
    scaled = [((half - mean) / spread).astype(np.float32) for half in (train, test)]
    return scaled[0], train_labels, scaled[1], test_labels


@dataclass(frozen=True)
class CountTask:
    """List the consecutive numbers between two given ones: `a b SEP a a+1 … b EOS`.

    Learned on answers of 1 to `max_train` numbers, tested on longer ones. A test is one answer length with
    all its `numbers - length + 1` prompts, or a range of lengths (`"17-24"`) with the prompts of all. The score
    is the share of prompts whose whole greedy answer is right, the loss the mean negative log-likelihood of a
    whole answer in nats.

    Parameters
    ----------
    max_train, max_test
        Longest answer in training, and in the tests.
    numbers
        Size K of the number line: the tokens are 0 to K-1, SEP, EOS, PAD.
    batch, rate
        Sequences a step and seed; the peak rate of AdamW.

    Raises
    ------
    InputError
        Lengths that do not satisfy 1 <= max_train <= max_test <= numbers.

    Examples
    --------
    >>> task = CountTask(max_train=3, max_test=5, numbers=8)
    >>> tokens, targets = task.prompts("2")
    >>> tokens[0].tolist(), targets[0].tolist()
    ([0, 1, 8, 0, 1], [-1, -1, 0, 1, 9])
    """

    max_train: int = 16
    max_test: int = 40
    numbers: int = 64
    batch: int = 8
    rate: float = 0.01

    widths = (8, 12, 16)
    steps = 2500

    def __post_init__(self) -> None:
        if not 1 <= self.max_train <= self.max_test <= self.numbers:
            raise InputError(
                "1 <= max_train <= max_test <= numbers is needed, "
                f"got {self.max_train}, {self.max_test}, {self.numbers}"
            )

    @property
    def name(self) -> str:
        """The task's name in tables, with the size of its number line."""
        return f"count-{self.numbers}"

    @property
    def vocabulary(self) -> int:
        """Number of tokens."""
        return self.numbers + 3

    @property
    def tests(self) -> tuple[str, ...]:
        """The longest length of training, then every fourth longer one, and the lengths up to half as long again."""
        pooled = f"{self.max_train + 1}-{min(self.max_train * 3 // 2, self.max_test)}"
        longer = range(self.max_train + 4, self.max_test + 1, 4)
        return (str(self.max_train), *map(str, longer), *([pooled] if self.max_test > self.max_train else []))

    def stream(self, rng: np.random.Generator) -> Stream:
        """The sequences of one seed: a function of the number of steps."""

        def draw(steps: int) -> Batches:
            length = rng.integers(1, self.max_train + 1, size=(steps, self.batch))
            start = np.floor(rng.random((steps, self.batch)) * (self.numbers - length + 1)).astype(np.int64)
            return self._sequences(start, length, self.max_train)

        return draw

    def prompts(self, test: str) -> Batches:
        """Every prompt of a test with its answer: tokens (prompts, positions) and targets, -1 where none is asked."""
        first, _, last = test.partition("-")
        lengths = range(int(first), int(last or first) + 1)
        start = np.concatenate([np.arange(self.numbers - length + 1) for length in lengths])
        length = np.concatenate([np.full(self.numbers - n + 1, n) for n in lengths])
        return self._sequences(start, length, lengths[-1])

    def _sequences(self, start: NDArray, length: NDArray, longest: int) -> Batches:
        separator, end, padding = self.numbers, self.numbers + 1, self.numbers + 2
        start, length = start[..., None], length[..., None]
        place = np.arange(longest + 1)
        answer = np.where(place < length, start + place, np.where(place == length, end, padding))
        tokens = np.concatenate([start, start + length - 1, np.full_like(start, separator), answer[..., :-1]], axis=-1)
        targets = np.where(place <= length, answer, -1)
        silent = np.full((*targets.shape[:-1], 2), -1)
        return tokens, np.concatenate([silent, targets], axis=-1)


@dataclass(frozen=True)
class ReverseAdditionIndexHints:
    """Add two numbers written from the lowest digit, every digit after a hint that names its place.

    `h1 a1 h2 a2 + h1 b1 h2 b2 = h1 s1 h2 s2 (h3 s3) EOS`: the hints are consecutive, from a random first
    one. Learned on 1 to `max_train` digits and tested on each number of digits up to `max_test`, on
    `test_items` fixed pairs.

    Parameters
    ----------
    max_train, max_test
        Most digits of an operand in training, and in the tests.
    hints
        Number of hint tokens; an answer may have one digit more than its operands.
    batch, rate
        Sequences a step and seed; the peak rate of AdamW.
    test_items
        Pairs a test.

    Raises
    ------
    InputError
        Digits that do not satisfy 1 <= max_train <= max_test < hints.

    Examples
    --------
    >>> task = ReverseAdditionIndexHints(max_train=2, max_test=3)
    >>> tokens, targets = task.prompts("1")
    >>> tokens.shape, task.vocabulary
    ((200, 10), 22)
    """

    max_train: int = 3
    max_test: int = 5
    hints: int = 8
    batch: int = 16
    rate: float = 0.01
    test_items: int = 200

    name = "addition"
    widths = (16, 32)
    steps = 5000

    def __post_init__(self) -> None:
        if not 1 <= self.max_train <= self.max_test < self.hints:
            raise InputError(
                "1 <= max_train <= max_test < hints is needed (an answer may have one digit more), "
                f"got {self.max_train}, {self.max_test}, {self.hints}"
            )

    @property
    def vocabulary(self) -> int:
        """Ten digits, the hints, `+`, `=`, EOS and PAD."""
        return 10 + self.hints + 4

    @property
    def tests(self) -> tuple[str, ...]:
        """Each number of digits from the longest of training on."""
        return tuple(map(str, range(self.max_train, self.max_test + 1)))

    def stream(self, rng: np.random.Generator) -> Stream:
        """The sequences of one seed: a function of the number of steps."""

        def draw(steps: int) -> Batches:
            digits = rng.integers(1, self.max_train + 1, size=(steps, self.batch))
            return self._sequences(rng, digits, self.max_train)

        return draw

    def prompts(self, test: str) -> Batches:
        """The fixed pairs of a test: tokens (prompts, positions) and targets, -1 where none is asked."""
        digits = int(test)
        rng = np.random.default_rng([2026, digits])
        return self._sequences(rng, np.full(self.test_items, digits), digits)

    def _sequences(self, rng: np.random.Generator, digits: NDArray, longest: int) -> Batches:
        """Every sequence of `digits` digits, written into rows of one length (4 + 6 positions a digit)."""
        plus, equals, end, padding = (10 + self.hints + k for k in range(4))
        flat = digits.reshape(-1)
        # An operand of n digits is below 10^n and has no leading zero, except the number 0 of one digit.
        low = np.where(flat == 1, 0, 10.0 ** (flat - 1))
        operands = np.floor(low + rng.random((2, len(flat))) * (10.0**flat - low)).astype(np.int64)
        first = np.floor(rng.random(len(flat)) * (self.hints - flat)).astype(np.int64)  # room for one digit more
        rows = np.full((len(flat), 6 * longest + 5), padding)
        targets = np.full_like(rows, -1)
        total = operands.sum(axis=0)
        answers = np.where(total >= 10**flat, flat + 1, flat)
        every = np.arange(len(flat))
        for k in range(longest + 1):
            hint = 10 + first + k
            for at, number, length in (
                (0, operands[0], flat), (2 * flat + 1, operands[1], flat), (4 * flat + 2, total, answers)
            ):
                written = every[k < length]
                column = (at + 2 * k + np.zeros_like(flat))[written]
                rows[written, column] = hint[written]
                rows[written, column + 1] = (number // 10**k % 10)[written]
        rows[every, 2 * flat] = plus
        rows[every, 4 * flat + 1] = equals
        rows[every, 4 * flat + 2 + 2 * answers] = end
        asked = np.arange(rows.shape[1])
        inside = (asked > (4 * flat + 1)[:, None]) & (asked <= (4 * flat + 2 + 2 * answers)[:, None])
        targets[inside] = rows[inside]
        shape = (*digits.shape, rows.shape[1] - 1)
        return rows[:, :-1].reshape(shape), targets[:, 1:].reshape(shape)


Task = SubsetParity | ScarceDigits | CountTask | ReverseAdditionIndexHints
TASKS: dict[str, type[Task]] = {
    "parity": SubsetParity, "digits": ScarceDigits, "count": CountTask, "addition": ReverseAdditionIndexHints,
}


def task_named(task: str | Task) -> Task:
    """The task itself, or the one of a name with its usual settings.

    >>> task_named("count").numbers
    64
    """
    if isinstance(task, str):
        if task not in TASKS:
            raise InputError(f"there is no task {task!r}{nearest(task, list(TASKS))}: one of {', '.join(TASKS)}")
        return TASKS[task]()
    if not isinstance(task, tuple(TASKS.values())):
        raise InputError(f"task must be one of {', '.join(TASKS)} or such a task, got {type(task).__name__}")
    return task
