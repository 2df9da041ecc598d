"""Verifiers and candidates from champ-dataset: 68 language-model systems on 79 integer-answer problems.

Each system's conversation ends in a one-sentence summary of its final answer. `read_answer` reads the answer
out of that sentence without ever seeing the reference answer. The distinct answers to a problem are its
candidate items, and a system's vote for one of them is its score; `champ_groups` gathers the votes by model and
kind of prompt into twelve graded verifiers.

Of the 72 recorded systems four repeat others: the prompts «0-Shot» and «No C w/o H» hold the same texts.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["MODELS", "champ_groups", "champ_models", "read_answer", "read_champ", "read_champ_votes"]

MODELS = ("GPT-3.5", "GPT-4", "GPT-4 Turbo", "PaLM 2 Medium")
REPEATED_PROMPT = "No C w/o H"

VERB = (
    r"\b(?:is|are|equals|be|has|have|gives|yields|leaves|requires|needs|total of|result in|at least|at most|contains"
    r"|evaluates to|simplifies to|congruent to|to be)"
)
ADVERB = (
    r"(?:(?:also|always|only|exactly|precisely|indeed|actually|just|simply|still|either|equal to|approximately"
    r"|a total of|at least|at most|the number) )*"
)
NAME = r"(?:[A-Za-z]\w*(?:\(\w+\))? ?= ?)?"
NOT_A_NUMBER = r"(?![\d.]*\d|\.\d|\w|√| ?[-+*/^√(]|,? and -?\d|, ?-?\d)"
AFTER_VERB = re.compile(rf"{VERB}:? {ADVERB}{NAME}(-?\d+){NOT_A_NUMBER}")
WORDS = (
    "no", "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"
)
WORD_AFTER_VERB = re.compile(rf"{VERB} {ADVERB}(none|no|{'|'.join(WORDS[1:])})\b(?: \w+)?")
AFTERTHOUGHT = re.compile(
    r"\b(?:achieved|attained|which occurs|obtained when|with equality|if and only if|since|because|where)\b"
)
RESIDUE = re.compile(r"[=≡] ?(-?\d+) ?\(?mod\b")
EQUATION = re.compile(r"= ?(-?\d+)(?:\.?$|(?= [a-z]{3,}s\b))")
FRACTION = re.compile(rf"{VERB} {ADVERB}{NAME}(-?\(?-?\d+\)?/\(?\d+\)?)(?![\w^*/(√)!]| ?[-+*(])")
LAST_INTEGER = re.compile(r"(?:^|(?<=[A-Za-z:]) )(-?\d+)\.?$")
BOXED = re.compile(r"\\boxed\{((?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*)\}")


def read_answer(sentence: str, problem: str) -> str | None:
    """The answer that a summary sentence states: an integer or a fraction as text, None where it states neither.

    The first of these rules that fires decides; none looks at the reference answer.

    1. the last `\\boxed{}`, if it holds an integer or a fraction; anything else in it abstains;
    2. the last integer between = or ≡ and "mod";
    then before the first afterthought ("achieved when ...", "since ..."), and if that says nothing, anywhere:
    3. integers after a verb ("is 12", "has exactly 12", "is n = 12"): the first that does not stand in the
       problem's text, else the last;
    4. a number word after a verb ("there are no ..." is 0), unless the problem's text says the same;
    5. "= 12" at the end or before what is counted ("= 12 ways");
    6. a fraction after a verb;
    and at last
    7. an integer at the end that does not stand in the problem's text.

    >>> read_answer("There are 2,001 ways to do it in 3 steps.", "In how many ways can it be done in 3 steps?")
    '2001'
    >>> read_answer("The minimum is $-3x^4$.", "Find the minimum.") is None
    True
    """
    boxes = BOXED.findall(sentence)
    if boxes:
        return _number(_plain(boxes[-1]))
    text, question = _plain(sentence), _plain(problem)
    asked = set(re.findall(r"\d+", question))
    if residues := RESIDUE.findall(text):
        return _integer(residues[-1])
    for part in (AFTERTHOUGHT.split(text)[0].strip(" ,"), text):
        if (answer := _stated(part, question, asked)) is not None:
            return answer
    closing = LAST_INTEGER.search(text)
    return _integer(closing[1]) if closing and closing[1].lstrip("-") not in asked else None


def _stated(part: str, question: str, asked: set[str]) -> str | None:
    """What rules 3 to 6 read in a part of a sentence."""
    if stated := AFTER_VERB.findall(part):
        return _integer(next((n for n in stated if n.lstrip("-") not in asked), stated[-1]))
    for word in WORD_AFTER_VERB.finditer(part):
        if word[0] not in question:
            return "0" if word[1] in ("no", "none") else str(WORDS.index(word[1]) - 1)
    if equation := EQUATION.search(part):
        return _integer(equation[1])
    if fraction := FRACTION.search(part):
        return _number(fraction[1])
    return None


def _plain(text: str) -> str:
    """The text without LaTeX marks, with plain minus signs and without thousands commas."""
    text = re.sub(r"\\d?frac\{([^{}]*)\}\{([^{}]*)\}", r"(\1)/(\2)", text)
    text = re.sub(r"\\sqrt|\bsqrt", "√", text)
    text = re.sub(r"\\(?:equiv)", "≡", text)
    text = re.sub(r"\\(?:times|cdot)|×|·", "*", text)
    text = re.sub(r"\\?p?\\?b?mod\b", "mod", re.sub(r"\\pmod ?\{", r" mod {", text))
    text = re.sub(r"\\(?:text|mathrm|left|right|displaystyle|,|;|!)|\\[()\[\]]|[$*]{2}|\$", "", text)
    text = text.replace("\\", "").replace("−", "-").replace("–", "-").replace("{", "").replace("}", "")
    text = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", text)
    return re.sub(r" ([.,])", r"\1", re.sub(r"\s+", " ", text)).strip()


def _number(text: str) -> str | None:
    """An integer or a fraction in lowest terms as text, None for anything else."""
    if re.fullmatch(r"-?\d+", text := text.strip(" .")):
        return _integer(text)
    if parts := re.fullmatch(r"(-?)\(?(-?\d+)\)?/\(?(\d+)\)?", text):
        from fractions import Fraction

        if int(parts[3]) == 0:
            return None
        value = Fraction(int(parts[2]), int(parts[3])) * (-1 if parts[1] else 1)
        return str(value)
    return None


def _integer(digits: str) -> str:
    return str(int(digits))


WHOLE = re.compile(r"-?[\d,]+")
OPENING = re.compile(r"(-?\d+(?:/\d+)?)(?: (?!and\b).*|(?<=/\d\d), .*|(?<=/\d), .*)?")


def read_champ(path: Path, *, wide: bool = False) -> dict[str, Any]:
    """The vote matrix of the integer-answer problems in champ-dataset's `v0.json`.

    Parameters
    ----------
    path : Path
    wide : bool, default=False
        Take the problems too whose answer is a fraction or opens with an integer ("100 (i.e., all values)"),
        which are graded less surely.

    Returns
    -------
    dict with
        votes : (items, 68) array
            1 where the system gave this answer, 0 where it gave another, NaN where it abstained on the problem.
        labels : (items,) int array
            1 for the right answer.
        problem, category, answer : (items,) str arrays
        systems : (68,) str array
            "model|prompt".
    """
    problems = json.loads(Path(path).read_text(encoding="utf-8"))["problems"]
    rows: list[dict[str, Any]] = []
    systems: list[str] = []
    for name, problem in problems.items():
        right = _reference(problem["_answer"] or "", wide)
        if right is None:
            continue
        readings = {
            system: read_answer(talk["messages"][-1]["text"] or "", problem["_text"])
            for system, talk in problem["conversations"].items()
            if not system.endswith("|" + REPEATED_PROMPT)
        }
        systems = systems or list(readings)
        rows += _candidates(name, problem["category"], right, [readings[system] for system in systems])
    return {
        "votes": np.array([row["votes"] for row in rows]),
        "labels": np.array([row["label"] for row in rows]),
        **{key: np.array([row[key] for row in rows]) for key in ("problem", "category", "answer")},
        "systems": np.array(systems),
    }


def read_champ_votes(path: Path) -> dict[str, Any]:
    """What `read_champ` gives, from a file that holds it already; there -1 stands for an abstention."""
    with np.load(path, allow_pickle=False) as arrays:
        data = dict(arrays)
    votes = data["votes"].astype(float)
    return data | {"votes": np.where(votes < 0, np.nan, votes)}


def _reference(answer: str, wide: bool) -> str | None:
    """The right answer as `read_answer` would write it, None for problems that are not taken."""
    if WHOLE.fullmatch(answer):
        return _integer(answer.replace(",", ""))
    opening = OPENING.fullmatch(answer) if wide else None
    return _number(opening[1]) if opening else None


def _candidates(name: str, category: str, right: str, readings: list[str | None]) -> list[dict[str, Any]]:
    """One row a distinct answer to a problem, in the order in which the systems first gave them."""
    return [
        {
            "problem": name, "category": category, "answer": answer, "label": int(answer == right),
            "votes": [np.nan if reading is None else float(reading == answer) for reading in readings],
        }
        for answer in dict.fromkeys(reading for reading in readings if reading is not None)
    ]


def champ_groups(votes: np.ndarray, systems: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """Twelve graded verifiers: for each model and kind of prompt the share of its prompts that vote for an item.

    The kinds are no hint (8 prompts), a hint (7) and a partial solution (2). An abstention is no vote.

    Returns
    -------
    (items, 12) array of shares in [0, 1], and the names of its columns.
    """
    cast = np.nan_to_num(votes)
    kinds = np.array([_prompt_kind(system.partition("|")[2]) for system in systems])
    models = np.array([system.partition("|")[0] for system in systems])
    pairs = [(model, kind) for model in MODELS for kind in ("no hint", "hint", "partial solution")]
    shares = [cast[:, (models == model) & (kinds == kind)].mean(axis=1) for model, kind in pairs]
    return np.column_stack(shares), [f"{model}, {kind}" for model, kind in pairs]


def champ_models(votes: np.ndarray, systems: np.ndarray) -> np.ndarray:
    """The share of each of the four models' prompts that vote for an item, (items, 4)."""
    cast = np.nan_to_num(votes)
    models = np.array([system.partition("|")[0] for system in systems])
    return np.column_stack([cast[:, models == model].mean(axis=1) for model in MODELS])


def _prompt_kind(prompt: str) -> str:
    if prompt.endswith("Soln"):
        return "partial solution"
    return "hint" if prompt.endswith("w/ H") else "no hint"
