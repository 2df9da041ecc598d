"""Each check of `assay.conformance` is itself tested: a method that was broken on purpose must fail it.

The methods are those that `assay new` writes; `BROKEN` lists one small change a row, and the check that must
notice. A last test sees to it that no check is without such a row.
"""

from __future__ import annotations

import json
import re
import socket
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from assay import catalogue, datasets
from assay.catalogue import KINDS
from assay.conformance import Check, Excused, assert_conforms, checks, conform
from assay.conformance import study as study_checks
from assay.conformance.alike import cast, frozen, has_floats, near, same
from assay.conformance.offline import NetworkUse, offline
from assay.conformance.repository import oracles
from assay.errors import DataUnavailable, MissingExtra
from assay.runner import Plan, make_record
from assay.skeleton import write_skeleton
from assay.study import Tier
from skeletons import folder_of, placed

DELETED = object()


@dataclass(frozen=True)
class Edit:
    """A change to one file: `old` becomes `new`; with no `new`, `old` is the whole text, or `DELETED`."""

    file: str
    old: Any
    new: str | None

    def apply(self, folder: Path) -> None:
        path = self._path(folder)
        if self.old is DELETED:
            path.unlink()
        elif self.new is None:
            path.write_text(self.old, encoding="utf-8")
        else:
            text = path.read_text(encoding="utf-8")
            assert self.old in text, f"{self.file} has no {self.old!r}"
            path.write_text(text.replace(self.old, self.new), encoding="utf-8")

    def _path(self, folder: Path) -> Path:
        root = folder.parents[3]
        outside = {
            "test": root / "tests" / folder.parent.name / f"test_{folder.name}.py",
            "bench": root / "benchmarks" / f"bench_{folder.name}.py",
        }
        return outside.get(self.file, folder / self.file)


def edit(file: str, old: Any, new: str | None = None) -> Edit:
    return Edit(file, old, new)


class Broken:
    """A skeleton of a kind, some edits, and the check that must fail with a message."""

    def __init__(self, check: str, kind: str, message: str, *edits: Edit, record: dict | None = None) -> None:
        self.check, self.kind, self.message, self.edits, self.record = check, kind, message, edits, record

    def apply(self, folder: Path) -> None:
        for each in self.edits:
            each.apply(folder)


READ_ERRORS = '''    except FileNotFoundError:
        raise InputError(f"{path.name}: no such file") from None
    except (UnicodeDecodeError, ValueError, OSError) as error:
        raise InputError(f"{path.name}: not a CSV table ({str(error).splitlines()[0]})") from None
'''
GUARD = "        if not ours or ours.keys() != theirs.keys():\n"
FIT = '        rows, answers = _checked(self, X=X, y=y, y_numeric=True)\n'
BEFORE_MEASURE = "        table = load_dataset(cell.dataset)\n"
CONNECT = "        import socket\n        socket.socket({}).connect(({!r}, 9))\n"

FORGETFUL = '''class Kept:
    def __init__(self, at):
        self.at = at

    def to_json(self):
        return str(self.at)

    @classmethod
    def from_json(cls, text):
        return cls(0)


'''

BROKEN = [
    # the card and the folder
    Broken("card: files", "estimator", "lacks conformance.py", edit("conformance.py", DELETED)),
    Broken("card: fields", "estimator", "summary", edit("card.toml", 'summary = "', 'summary = "' + 80 * "x")),
    Broken(
        "card: fields", "estimator", "unit",
        edit("card.toml", "row, its error averaged over the splits that hold it out", ""),
    ),
    Broken("card: fields", "estimator", "stability", edit("card.toml", 'stability = "preview"\n', "")),
    Broken(
        "card: kinds", "estimator", "does not export: Other",
        edit("card.toml", "[kinds]\n", '[kinds]\nOther = "law"\n'),
    ),
    Broken(
        "card: exported names", "estimator", "does not hold: Absent",
        edit("__init__.py", '["Odd', '["Absent", "Odd'),
    ),
    Broken(
        "card: handed on", "estimator", "Absent",
        edit("card.toml", 'public = ["', 'public = ["Absent", "'),
        edit("card.toml", "[kinds]", '[kinds]\nAbsent = "law"'),
    ),
    Broken(
        "card: usage", "estimator", "imports nothing from",
        edit("card.toml", "from assay.structure", "from sklearn"),
    ),
    Broken(
        "card: data sets", "estimator", "licence",
        edit("data.toml", "BSD-3-Clause (distributed with scikit-learn)", ""),
    ),
    Broken("card: data sets", "estimator", "wrong checksum", edit("rows.csv", "age\n1\n")),
    Broken("card: data sets", "estimator", "no data set is called", edit("data.toml", 'of = "odd', 'of = "add')),
    Broken("card: conformance entries", "estimator", "no check of kind", edit("conformance.py", '"make":', '"mkae":')),
    Broken("card: conformance entries", "estimator", "no entry for", edit("conformance.py", '    "Odd', '    "Even')),
    # the record
    Broken("record: fields", "estimator", "machine", record={"machine": None}),
    Broken("record: claims", "estimator", "the record has", record={"verdicts": []}),
    Broken("record: verdicts", "estimator", "its interval says unclear", record={"verdicts.0": {"high": 0.5}}),
    Broken(
        "record: controls", "estimator", "so the claim measures nothing",
        record={"controls.0": {"outcome": "holds"}},
    ),
    Broken("record: controls", "estimator", "was not judged", record={"controls": []}),
    Broken("record: size", "estimator", "at most 280000", record={"padding": 280_000 * "x"}),
    Broken("record: paths", "estimator", "absolute path", record={"command": "check /home/someone/rows.csv"}),
    Broken(
        "record: speed", "estimator", "no measured ratio",
        edit("card.toml", "[kinds]", "speed_target = 5.0\n[kinds]"),
        record={},
    ),
    # the study
    Broken(
        "study: cells", "estimator", "lists a cell twice",
        edit(
            "study.py",
            "for arm in ARMS:\n                yield",
            "for arm in [*ARMS, *ARMS]:\n                yield",
        ),
    ),
    Broken(
        "study: data sets", "estimator", "no data set is called",
        edit("study.py", 'FEW = "odd-estimator-diabetes", "', 'FEW = "odd-estimator-diabetes", "no-'),
    ),
    Broken(
        "study: arms", "estimator", "has the arm nobody",
        edit("card.toml", 'control = "shuffled"', 'control = "nobody"'),
    ),
    Broken(
        "study: smoke measures", "estimator", "ZeroDivisionError",
        edit("study.py", BEFORE_MEASURE, f"{BEFORE_MEASURE}        1 / 0\n"),
    ),
    Broken(
        "study: smoke measures", "estimator", "NetworkUse.*127.0.0.1",
        edit("study.py", BEFORE_MEASURE, CONNECT.format("socket.AF_INET", "127.0.0.1") + BEFORE_MEASURE),
    ),
    Broken(
        "study: smoke measures", "estimator", "NetworkUse.*::1",
        edit("study.py", BEFORE_MEASURE, CONNECT.format("socket.AF_INET6", "::1") + BEFORE_MEASURE),
    ),
    Broken(
        "study: smoke repeats", "estimator", "metrics differ",
        edit(
            "study.py",
            '{"error": float(errors.mean())}',
            '{"error": float(errors.mean()) + 1e-13 * np.random.rand()}',
        ),
    ),
    Broken(
        "study: smoke repeats", "estimator", "units differ",
        edit("study.py", '"error": errors}', '"error": errors + np.random.rand()}'),
    ),
    Broken(
        "study: verdicts", "estimator", "verdicts on",
        edit("study.py", "return [self._beats_the_mean(results)]", "return []"),
    ),
    Broken(
        "study: controls", "estimator", "its control ridge holds",
        edit("card.toml", 'control = "shuffled"', 'control = "ridge"'),
    ),
    Broken("study: failed cells", "estimator", "", edit("study.py", GUARD, "        if not results:\n")),
    Broken("study: no cells", "estimator", "", edit("study.py", GUARD, "        if results and not ours:\n")),
    Broken(
        "study: charts", "estimator", "title or description",
        edit("study.py", '            "description"', '            "name"'),
    ),
    Broken("study: charts", "estimator", "", edit("study.py", '"type": "nominal"', '"type": "normal"')),
    # the command
    Broken(
        "command: options", "estimator", "seed has no help text",
        edit("command.py", 'typer.Option(help="Seed of the split into halves.")', "typer.Option()"),
    ),
    Broken("command: options", "estimator", "relative path", edit("command.py", 'Path("odd', 'Path("/odd')),
    Broken(
        "command: example", "estimator", "no result was written",
        edit("command.py", "    _write(out, predictions", "    str(predictions"),
    ),
    Broken("command: example", "estimator", "nothing was printed", edit("command.py", "typer.echo(", "str(")),
    Broken(
        "command: refuses a missing file", "estimator", "a traceback.*FileNotFoundError",
        edit("data.py", READ_ERRORS, "    finally:\n        pass\n"),
    ),
    Broken(
        "command: refuses an empty file", "estimator", "a traceback.*EmptyDataError",
        edit("data.py", READ_ERRORS, "    finally:\n        pass\n"),
    ),
    Broken(
        "command: refuses binary garbage", "estimator", "a traceback.*Error",
        edit("data.py", READ_ERRORS, "    finally:\n        pass\n"),
    ),
    Broken(
        "command: refuses a truncated file", "estimator", "a traceback|expected 2",
        edit("data.py", ".astype(float)\n    bad", ".astype(float).fillna(0)\n    bad"),
    ),
    Broken(
        "command: refuses wrong columns", "estimator", "a traceback.*KeyError",
        edit("data.py", "    if missing:", "    if not COLUMNS:"),
    ),
    Broken(
        "command: refuses wrong columns", "estimator", "something was written",
        edit("command.py", "    halves = split", "    out.mkdir()\n    halves = split"),
    ),
    Broken(
        "command: refuses wrong columns", "estimator", "more than one line",
        edit("data.py", "the columns {', '.join(missing)} are missing", "missing:\\n{missing}"),
    ),
    Broken(
        "command: refuses an out that is a file", "estimator", "a traceback",
        edit("command.py", "except OSError", "except KeyError"),
    ),
    # docstrings and the page
    Broken(
        "docs: modules", "estimator", "baselines.py",
        edit("baselines.py", '"""What a practitioner would use instead, and the least that must be beaten."""', ""),
    ),
    Broken(
        "docs: docstring", "estimator", "the signature has \\['alpha'\\]",
        edit("ridge.py", "    alpha : float", "    beta : float"),
    ),
    Broken(
        "docs: docstring", "function", "no section Returns",
        edit("neighbours.py", "    Returns\n    -------\n    (m,) array\n\n", ""),
    ),
    Broken(
        "docs: docstring", "function", "no section Raises",
        edit("neighbours.py", "    Raises\n    ------\n", "    Notes\n    -----\n"),
    ),
    Broken(
        "docs: docstring", "estimator", "no docstring on predict",
        edit("ridge.py", '        """Predicted answers (n,) for rows X (n, k)."""\n', ""),
    ),
    Broken(
        "docs: documented source", "policy", "names neither arXiv",
        edit("linear_policy.py", "arXiv 1803.07055, ", ""),
    ),
    Broken("docs: doctest", "estimator", "Expected", edit("ridge.py", "    7.0\n", "    8.0\n")),
    Broken("docs: doctest", "estimator", "has no doctest", edit("ridge.py", ">>>", "...")),
    Broken("readme: sections", "estimator", "peers", edit("README.md", "## Peers", "## Others")),
    Broken("readme: python runs as printed", "estimator", "Expected", edit("README.md", "\nTrue\n", "\nFalse\n")),
    Broken(
        "readme: python runs as printed", "estimator", "no >>> lines",
        edit("README.md", ">>> ", ""),
        edit("README.md", "\nTrue\n", "\n"),
    ),
    Broken("readme: command", "estimator", "assay run", edit("README.md", "assay run", "assay do")),
    # optional packages
    Broken(
        "extras: metadata loads without heavy packages", "estimator", "sklearn",
        edit("__init__.py", "from assay._lazy", "import sklearn\nfrom assay._lazy"),
    ),
    Broken(
        "extras: a missing one is named", "hook", "No module named 'torch'",
        edit("shrinkage.py", 'torch = require("torch", extra="torch", wanted_by="odd-hook")', "import torch"),
    ),
    Broken(
        "extras: a missing one is named", "hook", "needs the package",
        edit("shrinkage.py", 'wanted_by="odd-hook"', 'wanted_by="another"'),
    ),
    Broken(
        "extras: a missing one is named", "function", "no public name says",
        edit("card.toml", "extras = []", 'extras = ["science"]'),
    ),
    # what stands outside the folder
    Broken("tests: oracles", "estimator", "no function test_oracle", edit("test", "test_oracle_", "test_")),
    Broken("tests: oracles", "estimator", "there is no", edit("test", DELETED)),
    Broken(
        "tests: an oracle needs no mirror", "law", "fresh machine",
        edit("test", "    x", '    pytest.skip("data absent: all of it")\n    x'),
    ),
    Broken("benchmark", "estimator", "no main", edit("bench", "def main", "def start")),
    Broken(
        "imports: own folder and below", "estimator", "assay.runner",
        edit("arms.py", "from . import", "from assay import runner\nfrom . import"),
    ),
    Broken(
        "imports: own folder and below", "estimator", "assay.trust.smart",
        edit("arms.py", "from . import", "from ...trust.smart import metrics\nfrom . import"),
    ),
    # every kind
    Broken(
        "function: bad input", "function", "bad input 1 was accepted",
        edit("neighbours.py", "not 1 <= k", "not 0 <= k"),
    ),
    Broken(
        "function: bad input", "function", "bad input 2: ValueError",
        edit("neighbours.py", '"y", length=len(rows)', '"y"'),
        edit(
            "neighbours.py",
            "return answers[nearest]",
            "if len(answers) < len(rows):\n        raise ValueError\n    return answers[nearest]",
        ),
    ),
    Broken(
        "function: bad input", "function", "at least 3",
        edit("conformance.py", '"bad": [', '"bad": [lambda: None], "excuse": {}} if True else {"x": ['),
    ),
    Broken(
        "function: pure", "function", "differ",
        edit("neighbours.py", ".mean(axis=1)", ".mean(axis=1) + 1e-12 * np.random.rand()"),
    ),
    Broken(
        "function: inputs unchanged", "function", "an input was changed",
        edit("neighbours.py", "    rows = as_matrix", "    y -= 1.0\n    rows = as_matrix"),
    ),
    Broken(
        "function: read-only inputs", "function", "read-only",
        edit("neighbours.py", "    rows = as_matrix", "    y[0] = y[0]\n    rows = as_matrix"),
    ),
    Broken(
        "function: float32", "function", "differ",
        edit("neighbours.py", ".mean(axis=1)", ".mean(axis=1) + (np.asarray(y).dtype == np.float32)"),
    ),
    Broken(
        "function: pure", "function", "another text",
        edit(
            "neighbours.py",
            "def apply",
            FORGETFUL + "def apply",
        ),
        edit("neighbours.py", "return answers[nearest].mean(axis=1)", "return Kept(k)"),
    ),
    Broken(
        "estimator: bad input", "estimator", "was accepted",
        edit("ridge.py", "self.alpha >= 0", "self.alpha >= -9"),
    ),
    Broken(
        "estimator: scikit-learn", "estimator", "51 of scikit-learn's checks passed, 50",
        edit("conformance.py", "51", "50"),
    ),
    Broken(
        "estimator: scikit-learn", "estimator", "which did not fail",
        edit(
            "conformance.py",
            '"sklearn_checks"',
            '"expected_failed_checks": {"check_fit1d": "why not"}, "sklearn_checks"',
        ),
    ),
    Broken("estimator: scikit-learn", "estimator", "check_", edit("ridge.py", "        check_is_fitted(self)\n", "")),
    Broken(
        "estimator: parameters", "estimator", "changes alpha",
        edit("ridge.py", "self.alpha = alpha", "self.alpha = alpha + 0.5"),
    ),
    Broken(
        "estimator: parameters", "estimator", "sets beta",
        edit("ridge.py", "self.alpha = alpha", "self.alpha = alpha\n        self.beta = 1"),
    ),
    Broken(
        "estimator: clone", "estimator", "does not return self",
        edit("ridge.py", "        return self\n", "        return None\n"),
    ),
    Broken(
        "estimator: clone", "estimator", "changes a parameter",
        edit("ridge.py", "        return self\n", "        self.alpha = 2.0\n        return self\n"),
    ),
    Broken(
        "estimator: save and load", "estimator", "differ",
        edit(
            "ridge.py",
            "    def predict",
            "    def __getstate__(self):\n        return {**vars(self), 'intercept_': 0.0}\n\n    def predict",
        ),
    ),
    Broken(
        "estimator: pure", "estimator", "differ",
        edit("ridge.py", FIT, f"{FIT}        rows = rows + 1e-9 * np.random.rand(*rows.shape)\n"),
    ),
    Broken(
        "estimator: inputs unchanged", "estimator", "an input was changed",
        edit("ridge.py", FIT, f"{FIT}        X -= 1.0\n"),
    ),
    Broken(
        "estimator: read-only inputs", "estimator", "read-only",
        edit("ridge.py", FIT, f"{FIT}        X[0] = X[0]\n"),
    ),
    Broken(
        "estimator: float32", "estimator", "differ",
        edit("ridge.py", FIT, f"{FIT}        answers = answers + (np.asarray(y).dtype == np.float32) * rows[:, 0]\n"),
    ),
    Broken("law: monotone", "law", "rises after entry 0", edit("conformance.py", "[-law.predict", "[law.predict")),
    Broken(
        "law: monotone", "law", "is constant",
        edit("conformance.py", "[-law.predict(np.linspace(18.0, 42.0, 9))]", "[np.ones(5)]"),
    ),
    Broken(
        "law: optimal", "law", "the optimum costs",
        edit("power_law.py", "return float((budget /", "return float((1.01 * budget /"),
    ),
    Broken(
        "law: optimal", "law", "rises with the budget",
        edit("conformance.py", "-law.optimal(budget))", "law.optimal(budget))"),
    ),
    Broken(
        "solver: signature", "solver", "lacks callback",
        edit(
            "conjugate_gradients.py",
            "    callback: Callable[[NDArray[np.float64]], object] | None = None,",
            "    tell: Callable[[NDArray[np.float64]], object] | None = None,",
        ),
        edit("conjugate_gradients.py", "callback is not None", "tell is not None"),
        edit("conjugate_gradients.py", "callback(x.copy())", "tell(x.copy())"),
    ),
    Broken(
        "solver: converges", "solver", "the residual is",
        edit(
            "conjugate_gradients.py",
            "rtol * float(np.linalg.norm(right))",
            "9 * rtol * float(np.linalg.norm(right))",
        ),
    ),
    Broken(
        "solver: stops", "solver", "info 0 after",
        edit("conjugate_gradients.py", "<= wanted else limit", "<= wanted else 0"),
    ),
    Broken(
        "solver: callback", "solver", "never called",
        edit("conjugate_gradients.py", "callback(x.copy())", "str(x)"),
    ),
    Broken(
        "solver: pure", "solver", "differ",
        edit("conjugate_gradients.py", "return x, 0 if", "return x + 1e-12 * np.random.rand(), 0 if"),
    ),
    Broken(
        "solver: inputs unchanged", "solver", "an input was changed",
        edit("conjugate_gradients.py", "    matrix, right = _checked", "    b -= 1.0\n    matrix, right = _checked"),
    ),
    Broken(
        "solver: float32", "solver", "differ",
        edit("conjugate_gradients.py", "return x, 0 if", "return x * (1 + (np.asarray(b).dtype == np.float32)), 0 if"),
    ),
    Broken(
        "optimiser: is an optimiser", "optimiser", "no torch.optim",
        edit("heavy_ball.py", "class OddOptimiser(torch.optim.Optimizer)", "class OddOptimiser"),
    ),
    Broken(
        "optimiser: trajectory", "optimiser", "step 2 is off",
        edit("heavy_ball.py", 'velocity.mul_(group["momentum"])', 'velocity.mul_(-group["momentum"])'),
    ),
    Broken(
        "optimiser: resumes", "optimiser", "goes another way",
        edit("heavy_ball.py", "self.state[parameter]", "vars(self).setdefault('own', {}).setdefault(parameter, {})"),
    ),
    Broken(
        "optimiser: no gradient", "optimiser", "moves a parameter",
        edit(
            "heavy_ball.py",
            "                if parameter.grad is not None:\n",
            "                parameter.mul_(0.99)\n                if parameter.grad is not None:\n",
        ),
    ),
    Broken(
        "schedule: is a schedule", "schedule", "no LRScheduler",
        edit("warmup.py", "(torch.optim.lr_scheduler.LRScheduler)", ""),
    ),
    Broken(
        "schedule: closed form", "schedule", "the rate of step 0",
        edit("warmup.py", "(self.last_epoch + 1)", "self.last_epoch"),
    ),
    Broken(
        "schedule: resumes", "schedule", "its rates differ",
        edit("warmup.py", "    def get_lr", "    def state_dict(self):\n        return {}\n\n    def get_lr"),
    ),
    Broken(
        "module: is a module", "module", "no torch.nn.Module",
        edit("linear_neuron.py", "class OddModule(torch.nn.Module)", "class OddModule"),
    ),
    Broken(
        "module: from_config", "module", "other parameters",
        edit("linear_neuron.py", '{"n_inputs": n_inputs, "n_outputs"', '{"n_inputs": n_inputs + 1, "n_outputs"'),
    ),
    Broken(
        "module: safetensors", "module", "another output",
        edit(
            "linear_neuron.py",
            "self.bias = torch.nn.Parameter(torch.zeros(n_outputs))",
            "self.bias = torch.nn.Parameter(torch.zeros(n_outputs))\n        self.hidden = torch.randn(n_outputs)",
        ),
        edit("linear_neuron.py", "+ self.bias", "+ self.bias + self.hidden"),
    ),
    Broken(
        "module: gradients", "module", "no gradient reaches bias",
        edit("linear_neuron.py", "+ self.bias", "+ self.bias.detach()"),
    ),
    Broken(
        "module: pure", "module", "differ",
        edit("linear_neuron.py", "+ self.bias", "+ self.bias + __import__('random').random()"),
    ),
    Broken(
        "module: inputs unchanged", "module", "an input was changed",
        edit("linear_neuron.py", "        return x @", "        x += 1\n        return x @"),
    ),
    Broken(
        "module: float32", "module", "",
        edit("linear_neuron.py", "        return x @", "        x = x.float()\n        return x @"),
    ),
    Broken("sampler: seeded", "sampler", "two samples", edit("gibbs.py", "default_rng(random_state)", "default_rng()")),
    Broken("sampler: varies", "sampler", "one sample", edit("gibbs.py", "default_rng(random_state)", "default_rng(0)")),
    Broken(
        "sampler: global state", "sampler", "global generator",
        edit("gibbs.py", "        rng = np", "        np.random.rand()\n        rng = np"),
    ),
    Broken(
        "sampler: finite", "sampler", "not finite",
        edit("gibbs.py", "        return draws\n", "        draws[0] = np.nan\n        return draws\n"),
    ),
    Broken(
        "sampler: callback", "sampler", "never called",
        edit("gibbs.py", "                callback(sweep", "                (lambda *_: None)(sweep"),
    ),
    Broken(
        "sampler: callback", "sampler", "changes the sample",
        edit(
            "gibbs.py",
            "                callback(sweep",
            "                rng.random()\n                callback(sweep",
        ),
    ),
    Broken("hook: acts", "hook", "changes nothing", edit("shrinkage.py", "output * factor", "output")),
    Broken(
        "hook: restores", "hook", "hooks stay behind",
        edit("shrinkage.py", "        handle.remove()", "        pass"),
    ),
    Broken(
        "hook: restores", "hook", "weights differ",
        edit(
            "shrinkage.py",
            "        handle.remove()",
            "        handle.remove()\n        next(layer.parameters()).data.mul_(1.5)",
        ),
    ),
    Broken(
        "hook: restores after an error", "hook", "hooks stay behind",
        edit(
            "shrinkage.py",
            "    try:\n        yield\n    finally:\n        handle.remove()",
            "    yield\n    handle.remove()",
        ),
    ),
    Broken(
        "hook: pure", "hook", "two uses differ",
        edit("shrinkage.py", "output * factor", "output * (factor + __import__('random').random())"),
    ),
    Broken(
        "environment: gymnasium", "environment", "",
        edit("guessing.py", "self._x[self._order[0]].copy(), {}", "100 * self._x[self._order[0]] + 100, {}"),
    ),
    Broken(
        "environment: seeded", "environment", "two episodes",
        edit("guessing.py", "self.np_random.permutation", "np.random.permutation"),
    ),
    Broken(
        "policy: in its space", "policy", "does not lie in",
        edit("linear_policy.py", "-1.0, 1.0).astype", "-9.0, 9.0).astype"),
        edit("linear_policy.py", "[seen @ self.weights]", "[9 * (seen @ self.weights)]"),
    ),
    Broken(
        "policy: depends", "policy", "the same action",
        edit("linear_policy.py", "[seen @ self.weights]", "[0.0 * len(seen)]"),
    ),
    Broken(
        "policy: pure", "policy", "two uses differ",
        edit("linear_policy.py", "[seen @ self.weights]", "[seen @ self.weights * np.random.rand()]"),
    ),
    Broken(
        "policy: inputs unchanged", "policy", "was changed",
        edit("linear_policy.py", "        seen = as", "        observation *= 2\n        seen = as"),
    ),
    Broken(
        "tool: answers", "tool", "gives no answer",
        edit("find.py", "    return sorted(", "    return None and sorted("),
    ),
    Broken(
        "tool: pure", "tool", "two uses differ",
        edit("find.py", "    return sorted(", "    return [__import__('random').random()] + sorted("),
    ),
]

# Bad input, purity and the like are one function for all kinds that have them: broken once, in the kind above.
SHARED = re.compile(r"^(law|solver|optimiser|schedule|module|sampler|hook|environment|policy|tool): bad input$")
INHERITED = re.compile(
    r"^law: (scikit-learn|parameters|clone|save and load|pure|inputs unchanged|read-only inputs|float32)$"
)


def label(check: Check, name: str, kind: str) -> str:
    """A check's name, with the kind in the place of the public name."""
    if not check.name.startswith(f"{name}: "):
        return check.name
    text = check.name.removeprefix(f"{name}: ")
    return f"docs: {text}" if text in ("docstring", "documented source", "doctest") else f"{kind}: {text}"


def find(method, root: Path, wanted: str) -> Check:
    name = method.public[-1]
    kind = method.kinds[name]
    return next(check for check in checks(method, root) if label(check, name, kind) == wanted)


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: f"{broken.check}-{broken.message[:24]}")
def test_a_broken_method_fails(tmp_path, home, broken):
    with placed(tmp_path, f"odd-{broken.kind}", broken.kind, broken.apply) as method:
        if broken.record is not None:
            write_record(method, broken.record)
        result = find(method, tmp_path, broken.check).result()
    assert result.status == "failed", result
    assert re.search(broken.message, result.reason, re.DOTALL), result.reason


def test_a_slow_smoke_tier_fails(tmp_path, monkeypatch):
    burn = (
        "        import time\n        end = time.process_time() + 0.1\n"
        "        while time.process_time() < end:\n            pass\n"
    )
    slow = Broken("study: smoke time", "law", "", edit("study.py", BEFORE_MEASURE, burn + BEFORE_MEASURE))
    monkeypatch.setattr(study_checks, "SMOKE_SECONDS", 0.3)
    monkeypatch.setattr(study_checks, "slowness", lambda: 1.0)
    with placed(tmp_path, "odd-law", "law", slow.apply) as method:
        result = find(method, tmp_path, slow.check).result()
    assert re.search(r"took 0\.\d s of CPU, 0\.3 s are allowed", result.reason), result


def test_the_limit_of_the_smoke_tier_follows_the_machine(monkeypatch):
    monkeypatch.setattr(study_checks, "_yardstick", lambda: 2 * study_checks.YARDSTICK_SECONDS)
    assert study_checks.slowness() == 2.0
    monkeypatch.setattr(study_checks, "_yardstick", lambda: 0.5 * study_checks.YARDSTICK_SECONDS)
    assert study_checks.slowness() == 1.0


def test_no_check_goes_without_a_broken_method(tmp_path):
    covered = {broken.check for broken in BROKEN} | {"study: smoke time"}
    for kind in KINDS:
        with placed(tmp_path / kind, f"whole-{kind}", kind) as method:
            labels = {label(check, method.public[0], kind) for check in checks(method, tmp_path / kind)}
        untested = {text for text in labels - covered if not SHARED.match(text) and not INHERITED.match(text)}
        assert not untested


def test_a_whole_record_passes(tmp_path, home):
    with placed(tmp_path, "whole-law", "law") as method:
        write_record(method, {})
        results = [check.result() for check in checks(method, tmp_path) if check.name.startswith("record: ")]
    assert [result.status for result in results] == ["passed"] * 6 + ["excused"], results


def write_record(method, changes: dict) -> None:
    """Record the smoke tier as the runner does, and change fields: `None` removes one, `name.0` goes inside a list."""
    study = method.study()
    results = study_checks.measure_tier(study, Tier.smoke).results
    plan = Plan(method, study, Tier.smoke, [row.cell for row in results])
    record = json.loads(json.dumps(make_record(plan, results)))
    for key, value in changes.items():
        name, _, index = key.partition(".")
        if index:
            record[name][int(index)].update(value)
        elif value is None:
            del record[name]
        else:
            record[name] = value
    (method.folder / "record.json").write_text(json.dumps(record), encoding="utf-8")
    vars(method).pop("record", None)  # it was looked for before there was one


# the parts that checks are made of


def failing(error: Exception) -> Check:
    def run() -> None:
        raise error

    return Check("it", run)


def test_a_check_passes_fails_or_is_excused_with_its_reason():
    assert Check("it", lambda: None).result().status == "passed"
    assert failing(AssertionError("off by 2")).result() == outcome("failed", "off by 2")
    assert failing(ZeroDivisionError()).result() == outcome("failed", "ZeroDivisionError")
    assert failing(Excused("takes none")).result() == outcome("excused", "takes none")
    assert failing(DataUnavailable("not here")).result() == outcome("excused", "data absent: not here")
    assert failing(MissingExtra("no torch")).result() == outcome("excused", "package absent: no torch")
    assert Check("it", lambda: 1 / 0, excused="why").result() == outcome("excused", "why")


def outcome(status: str, reason: str):
    from assay.conformance import Result

    return Result("it", status, reason)


def test_the_number_of_checks_is_asserted(tmp_path):
    with placed(tmp_path, "counted-law", "law") as method:
        report = conform(method, tmp_path)
        passed, excused = len(report.of("passed")), len(report.of("excused"))
        assert str(assert_conforms(method, passed, excused, tmp_path)).startswith(f"counted-law: {passed} passed")
        with pytest.raises(AssertionError, match=f"expected {passed + 1} passed"):
            assert_conforms(method, passed + 1, excused, tmp_path)
        (method.folder / "README.md").write_text("# nothing\n", encoding="utf-8")
        with pytest.raises(AssertionError, match="failed  readme: sections"):
            assert_conforms(method, passed, excused, tmp_path)


def test_an_excuse_needs_a_reason_and_is_counted(tmp_path):
    def excuse(reason, check="float32"):
        return edit("conformance.py", '"inputs": rows,', f'"inputs": rows, "excuse": {{{check!r}: {reason!r}}},')

    whole = Broken("", "function", "", excuse("integers only"))
    with placed(tmp_path / "a", "odd-function", "function", whole.apply) as method:
        result = find(method, tmp_path / "a", "function: float32").result()
    assert (result.status, result.reason) == ("excused", "integers only")
    empty = Broken("", "function", "", excuse(""))
    with placed(tmp_path / "b", "odd-function", "function", empty.apply) as method:
        assert "has no reason" in find(method, tmp_path / "b", "card: conformance entries").result().reason
    idle = Broken("", "function", "", excuse("why not", "flaot32"))
    with placed(tmp_path / "c", "odd-function", "function", idle.apply) as method:
        assert "is called 'flaot32'" in find(method, tmp_path / "c", "card: conformance entries").result().reason


def test_nothing_reaches_the_network_inside():
    with offline():
        for family, place in ((socket.AF_INET, ("127.0.0.1", 9)), (socket.AF_INET6, ("::1", 9))):
            with socket.socket(family) as plug, pytest.raises(NetworkUse):
                plug.connect(place)
        with pytest.raises(NetworkUse):
            socket.getaddrinfo("localhost", 9)
    socket.getaddrinfo("localhost", 9)


def test_same_is_to_the_last_bit_and_by_type():
    import pandas as pd

    assert same({"a": [1.0, float("nan")]}, {"a": [1.0, float("nan")]})
    assert same(pd.DataFrame({"a": [1.0, np.nan]}), pd.DataFrame({"a": [1.0, np.nan]}))
    for first, second in (
        (1.0, np.nextafter(1.0, 2)), (0.0, -0.0), (1, 1.0), (np.zeros(2), np.zeros((2, 1))),
        (np.zeros(2, np.float32), np.zeros(2)), ([1], (1,)), ({"a": 1}, {"b": 1}), ([1, 2], [1]),
        (pd.DataFrame({"a": [1.0]}), pd.DataFrame({"a": [1.0]}, index=[3])), (None, np.zeros(1)),
    ):
        assert not same(first, second), (first, second)


def test_near_casts_and_freezes():
    assert near([1.0, "a"], [1.0005, "a"], 1e-3) and not near([1.0], [1.01], 1e-3) and not near(["a"], ["b"], 1.0)
    given = {"x": np.ones(2), "n": np.arange(2), "s": "text"}
    single = cast(given, "float32")
    assert single["x"].dtype == np.float32 and single["n"].dtype == given["n"].dtype and given["x"].dtype == np.float64
    assert has_floats(given) and not has_floats({"n": np.arange(2)})
    with pytest.raises(ValueError, match="read-only"):
        frozen(given)["x"][0] = 5.0


def test_oracles_that_need_a_mirror_are_told_by_what_they_reach(tmp_path):
    path = tmp_path / "test_it.py"
    path.write_text(textwrap.dedent('''
        import pytest

        @pytest.fixture
        def outputs():
            return load()

        def load():
            pytest.skip("data absent: outputs")

        def test_oracle_closed_form(): pass
        def test_oracle_by_fixture(outputs): pass
        def test_oracle_by_call(): load()
        @pytest.mark.usefixtures("outputs")
        def test_oracle_by_mark(): pass
        def test_other(): load()
    '''), encoding="utf-8")
    assert oracles(path) == {
        "test_oracle_closed_form": False, "test_oracle_by_fixture": True, "test_oracle_by_call": True,
        "test_oracle_by_mark": True,
    }


def test_third_parties_have_their_own_package_checked(tmp_path, monkeypatch):
    """A folder outside of assay, registered under the entry-point group `assay.methods`."""
    write_skeleton(tmp_path, "structure", "far-law", "law")
    site = tmp_path / "site"
    site.mkdir()
    folder_of(tmp_path, "far-law").rename(site / "far_law")
    for path in [*site.rglob("*.*"), *(tmp_path / "tests").rglob("*.py")]:
        text = path.read_text(encoding="utf-8")
        for old, new in (("assay.structure.far_law", "far_law"), ("assay.structure import", "far_law import")):
            text = text.replace(old, new)
        path.write_text(text, encoding="utf-8")
    info = site / "far_law-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: far-law\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text("[assay.methods]\nfar-law = far_law\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(site))
    datasets.registry.cache_clear()
    catalogue.methods.cache_clear()
    try:
        report = conform(catalogue.get("far-law"), tmp_path)
    finally:
        monkeypatch.undo()
        datasets.registry.cache_clear()
        catalogue.methods.cache_clear()
    assert not report.of("failed"), str(report)
