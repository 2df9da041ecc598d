"""The checks that every method must pass; third parties run them on theirs.

    from assay.catalogue import get
    from assay.conformance import assert_conforms, checks

    for check in checks(get("smart")):       # a Check has a name, `run()` and, where excused, a reason
        check.run()
    assert_conforms(get("smart"), passed=80, excused=3)

A check passes, fails or is excused; an excuse carries its reason, and the number of both is asserted, so that
nothing is skipped in silence. What can't be guessed a method supplies in the module `conformance.py` of its folder:
one dictionary `CHECKS`, public name to what the checks of its kind need. Builders take no argument unless said, and
give fresh, small objects; heavy packages are imported inside them.

| key | of kind | what it is |
|---|---|---|
| `bad` | every | at least three callables, each of which must raise `InputError` with one line |
| `excuse` | every | name of a check to the reason why it can't apply |
| `tolerance` | every | relative agreement of float32 with float64 results, 1e-3 |
| `make` | estimator, law | a fresh estimator, cheap to fit |
| `fit` | estimator, law | the positional arguments of `fit`, a tuple |
| `use` | estimator, law | (fitted, *fit arguments) to what a user reads off it; by default its predictions |
| `sklearn_checks` | estimator, law | how many of scikit-learn's checks run and pass |
| `expected_failed_checks` | estimator, law | those of scikit-learn's checks that fail, each with its reason |
| `monotone` | law | (fitted) to vectors, none of which may rise |
| `budgets`, `optimal` | law | rising budgets; (fitted, budget) to (cost spent, predicted loss) |
| `inputs` | function | keyword arguments of the function, or of the constructor |
| `system` | solver | `(A, b)` |
| `problem` | optimiser | (torch parameters, a callable that gives the loss) |
| `make`, `trajectory` | optimiser | (parameters) to optimiser; parameters after each step, by an independent source |
| `make`, `rate`, `rates` | schedule | (optimiser) to scheduler; the base rate; the first rates by closed form |
| `config`, `inputs` | module | arguments of `from_config`; a tuple of tensors |
| `make`, `draw`, `callback` | sampler | a sampler; (sampler, seed) to array; (sampler, seed, callback) |
| `model`, `inputs`, `attach` | hook | a torch module; a tuple of tensors; (model) to context manager |
| `make` | environment | a gymnasium environment |
| `make`, `observations`, `act`, `space` | policy | a policy; observations; (policy, observation) to action; the space |
| `run` | tool | what the tool answers |
"""

from assay.conformance.check import Check, Excused, Report, Result
from assay.conformance.suite import assert_conforms, checks, conform

__all__ = ["Check", "Excused", "Report", "Result", "assert_conforms", "checks", "conform"]
