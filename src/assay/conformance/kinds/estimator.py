"""Estimators in scikit-learn's manner: its own battery, parameters, clones, fitted state, save and load."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from assay.conformance.alike import same
from assay.conformance.kinds import common
from assay.conformance.subject import Entry, Subject

__all__ = ["CHECKS", "exercise", "fitted"]

ANSWERS = ("predict_proba", "predict", "transform", "score_samples", "decision_function")
TRUSTED = ("numpy.", "scipy.", "sklearn.", "builtins.", "collections.")


def exercise(subject: Subject, name: str) -> Any:
    """Fit on the declared data and read the answer off."""
    return _answer(subject.entry(name))(subject.entry(name)["fit"]())


def fitted(entry: Entry) -> tuple[Any, tuple[Any, ...]]:
    """A fresh estimator fitted on the declared data, and that data."""
    data = tuple(entry["fit"]())
    return _fit(entry["make"](), data), data


def _fit(estimator: Any, data: tuple[Any, ...]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return estimator.fit(*data)


def _read(entry: Entry, estimator: Any, data: tuple[Any, ...]) -> Any:
    if use := entry.get("use"):
        return use(estimator, *data)
    for method in ANSWERS:
        if hasattr(estimator, method):
            return getattr(estimator, method)(data[0])
    raise AssertionError(f"{entry.name} has none of {', '.join(ANSWERS)}: give the key `use`")


def _answer(entry: Entry) -> Callable[[Any], Any]:
    """(fit arguments) to what a user reads off a freshly fitted estimator."""

    def answer(data: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _read(entry, _fit(entry["make"](), tuple(data)), tuple(data))

    return answer


def _scikit_learn(subject: Subject, name: str) -> None:
    """Its battery: no surprise either way, and exactly the declared number passes."""
    from sklearn.utils.estimator_checks import check_estimator

    entry = subject.entry(name)
    reasons = dict(entry.get("expected_failed_checks", {}))
    assert all(str(reason).strip() for reason in reasons.values()), f"{name}: an expected failure has no reason"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = check_estimator(
            entry["make"](), expected_failed_checks=reasons, on_fail=None, on_skip=None
        )
    failed = {r["check_name"]: r["exception"] for r in results if r["status"] == "failed"}
    assert not failed, f"{name}: " + "; ".join(f"{check}: {_one_line(error)}" for check, error in failed.items())
    idle = set(reasons) - {r["check_name"] for r in results if r["status"] == "xfail"}
    assert not idle, f"{name}: expected_failed_checks names {', '.join(sorted(idle))}, which did not fail"
    passed = sum(r["status"] == "passed" for r in results)
    declared = entry["sklearn_checks"]
    assert passed == declared, f"{name}: {passed} of scikit-learn's checks passed, {declared} are declared"


def _one_line(error: BaseException) -> str:
    return f"{type(error).__name__} {str(error).strip().splitlines()[0] if str(error).strip() else ''}"[:200]


def _parameters(subject: Subject, name: str) -> None:
    """The constructor stores its arguments and does nothing else; `get_params` and `set_params` agree with it."""
    entry = subject.entry(name)
    estimator = entry["make"]()
    names = [p for p in inspect.signature(type(estimator).__init__).parameters if p != "self"]
    parameters = estimator.get_params(deep=False)
    assert sorted(parameters) == sorted(names), f"{name}: get_params gives {sorted(parameters)}, __init__ takes {names}"
    again = type(estimator)(**parameters).get_params(deep=False)
    for key, value in parameters.items():
        assert again[key] is value, f"{name}: the constructor changes {key}"
    extra = set(vars(estimator)) - set(names)
    assert not extra, f"{name}: the constructor sets {', '.join(sorted(extra))} as well"
    assert estimator.set_params(**parameters) is estimator, f"{name}: set_params does not return the estimator"


def _clone(subject: Subject, name: str) -> None:
    """A clone has the parameters and nothing that was learned; fitting changes no parameter and returns self."""
    from sklearn.base import clone

    entry = subject.entry(name)
    estimator = entry["make"]()
    before = {key: repr(value) for key, value in estimator.get_params(deep=False).items()}
    data = tuple(entry["fit"]())
    assert _fit(estimator, data) is estimator, f"{name}: fit does not return self"
    after = {key: repr(value) for key, value in estimator.get_params(deep=False).items()}
    assert after == before or _holds_estimator(estimator), f"{name}: fit changes a parameter"
    assert _learned(estimator), f"{name}: nothing learned ends in _"
    kept = _learned(clone(estimator))
    assert not kept, f"{name}: a clone keeps {', '.join(kept)}"


def _learned(estimator: Any) -> list[str]:
    return [key for key in vars(estimator) if key.endswith("_") and not key.startswith("_")]


def _holds_estimator(estimator: Any) -> bool:
    # The text of an estimator inside changes when it is fitted in place by its owner's contract.
    return any(hasattr(value, "fit") for value in estimator.get_params(deep=False).values())


def _save_load(subject: Subject, name: str) -> None:
    """Saved and loaded it answers the same, and the file asks to trust nothing but its own package's types."""
    entry = subject.entry(name)
    estimator, data = fitted(entry)
    expected = _read(entry, estimator, data)
    again = _through_file(estimator) if hasattr(estimator, "save") else _through_skops(subject, estimator)
    assert same(_read(entry, again, data), expected), f"{name}: saved and loaded, its answers differ"


def _through_file(estimator: Any) -> Any:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "estimator"
        estimator.save(path)
        return type(estimator).load(path)


def _through_skops(subject: Subject, estimator: Any) -> Any:
    from skops import io

    content = io.dumps(estimator)
    types = io.get_untrusted_types(data=content)
    own = (subject.method.package.partition(".")[0] + ".", *TRUSTED)
    strange = [kind for kind in types if not kind.startswith(own)]
    assert not strange, f"a saved estimator asks to trust {', '.join(strange)}"
    return io.loads(content, trusted=types)


def _pure(subject: Subject, name: str) -> None:
    common.twice(_answer(subject.entry(name)), subject.entry(name)["fit"])


def _inputs_unchanged(subject: Subject, name: str) -> None:
    common.inputs_unchanged(_answer(subject.entry(name)), subject.entry(name)["fit"])


def _read_only(subject: Subject, name: str) -> None:
    common.read_only(_answer(subject.entry(name)), subject.entry(name)["fit"])


def _float32(subject: Subject, name: str) -> None:
    common.both_floats(subject, name, _answer(subject.entry(name)), subject.entry(name)["fit"])


CHECKS = {
    "scikit-learn": _scikit_learn, "parameters": _parameters, "clone": _clone, "save and load": _save_load,
    "pure": _pure, "inputs unchanged": _inputs_unchanged, "read-only inputs": _read_only, "float32": _float32,
}
