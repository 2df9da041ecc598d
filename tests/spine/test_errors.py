"""What is refused, and whether the message says what, where, and what was expected."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from assay import errors
from assay.errors import (
    AssayError,
    CardError,
    InputError,
    MissingExtra,
    as_labels,
    as_matrix,
    as_vector,
    from_toml,
    nearest,
    require,
)

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([1.0, 2.0], "must be two-dimensional (rows, columns), got shape (2,)"),
        (np.zeros((2, 0)), "has no columns"),
        (np.zeros((0, 3)), "has 0 rows, at least 1 needed"),
        ([[1.0, 2.0], [3.0, NAN]], "must be finite, got nan in row 1, column 1"),
        ([[1.0, -INF], [3.0, 2.0]], "must be finite, got -inf in row 0, column 1"),
        ([["1", "2"], ["3", "two"]], "must be numbers, got 'two' in row 1, column 1"),
        ([[1.0, None]], "must be numbers, got None in row 0, column 1"),
        ([[1.0, 2.0], [3.0]], "rows differ in length"),
        (np.array([[1 + 2j]]), "must be numbers, got complex128"),
        (np.array([["2020-01-01"]], dtype="datetime64[D]"), "must be numbers, got datetime64"),
        ("probabilities", "must be numbers, got 'probabilities'"),
        (None, "must be numbers, got None"),
    ],
)
def test_a_wrong_matrix_is_refused_with_its_place(values, words):
    with pytest.raises(InputError) as caught:
        as_matrix(values, "proba")
    assert str(caught.value).startswith("proba") and words in str(caught.value) and "\n" not in str(caught.value)


def test_a_matrix_of_the_wrong_width_or_height_is_refused():
    with pytest.raises(InputError, match=r"must have 3 columns, got shape \(2, 2\)"):
        as_matrix(np.eye(2), "proba", columns=3)
    with pytest.raises(InputError, match="has 2 rows, at least 5 needed"):
        as_matrix(np.eye(2), "proba", min_rows=5)
    assert np.isnan(as_matrix([[NAN, 1.0]], "x", allow_nan=True)[0, 0])
    with pytest.raises(InputError, match="inf"):
        as_matrix([[INF, 1.0]], "x", allow_nan=True)


@pytest.mark.parametrize(
    ("values", "options", "words"),
    [
        ([[1.0]], {}, "must be one-dimensional, got shape (1, 1)"),
        ([1.0, 2.0], {"length": 3}, "has 2 entries, expected 3"),
        ([1.0, 0.0, 2.0], {"positive": True}, "must be positive, got 0 in row 1"),
        ([1.0, NAN], {}, "must be finite, got nan in row 1"),
        (["1.5", "x"], {}, "must be numbers, got 'x' in row 1"),
    ],
)
def test_a_wrong_vector_is_refused_with_its_place(values, options, words):
    with pytest.raises(InputError) as caught:
        as_vector(values, "size", **options)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("values", "options", "words"),
    [
        ([[0, 1]], {}, "must be one-dimensional"),
        ([0, 1], {"length": 3}, "has 2 entries, expected 3"),
        (["a", "b"], {}, "must be integers, got <U1"),
        ([0.0, 0.5], {}, "must be integers, got 0.5 in row 1"),
        ([0.0, NAN], {}, "must be integers, got nan in row 1"),
        ([0, -1], {}, "must be 0 or more, and below 2^53, got -1 in row 1"),
        ([0.0, 1e300], {}, "got 1e+300 in row 1"),
        (np.array([0, 2**63], dtype=np.uint64), {}, f"got {2**63} in row 1"),
        ([0, 3], {"n_classes": 3}, "must be 0 to 2, got 3 in row 1"),
    ],
)
def test_wrong_labels_are_refused_with_their_place(values, options, words):
    with pytest.raises(InputError) as caught:
        as_labels(values, "y", **options)
    assert words in str(caught.value)


def test_labels_of_every_whole_type_are_read():
    for dtype in (int, float, np.uint8, np.float32):
        labels = as_labels(np.array([0, 1, 2], dtype=dtype), "y")
        assert labels.dtype == np.intp and labels.tolist() == [0, 1, 2]
    assert as_labels([True, False], "y").tolist() == [1, 0]


@given(arrays(st.sampled_from([np.float32, np.float64]), (3, 2), elements=st.floats(-1e6, 1e6, width=32)))
def test_good_input_comes_back_as_it_is(array):
    before = array.copy()
    matrix, vector = as_matrix(array, "x"), as_vector(array[:, 0], "x")
    assert matrix.dtype == array.dtype and (matrix == before).all() and (array == before).all()
    assert vector.dtype == array.dtype


@pytest.mark.parametrize("dtype", [np.float16, np.int8, np.uint64, bool, object, str])
def test_other_number_types_become_float64(dtype):
    assert as_matrix(np.array([[1, 0]]).astype(dtype if dtype is not str else "U1"), "x").dtype == np.float64


def test_every_error_is_an_assay_error_with_its_place_in_the_tree():
    for name, error in inspect.getmembers(errors, inspect.isclass):
        if issubclass(error, Exception):
            assert issubclass(error, AssayError) and name in (errors.__doc__ or "")
    assert issubclass(InputError, ValueError) and issubclass(MissingExtra, ImportError)


def test_a_missing_package_gives_the_method_and_the_pip_line():
    with pytest.raises(MissingExtra) as caught:
        require("no_such_package.part", extra="torch", wanted_by="smart")
    assert str(caught.value) == (
        'smart needs the package no_such_package, which is not installed: pip install "assay[torch]"'
    )


def test_nearest_stays_silent_when_nothing_is_near():
    assert nearest("smrat", ["smart", "nqs"]) == " (did you mean smart?)"
    assert nearest("zzz", ["smart"]) == "" and nearest("x", []) == ""


@dataclass(frozen=True)
class Facts:
    name: str
    size: float
    count: int = 1
    shown: bool = True
    limit: float | None = None
    tags: tuple[str, ...] = ()
    margins: Mapping[str, float] = field(default_factory=dict)


GOOD = {"name": "a", "size": 1}


def test_a_table_becomes_a_dataclass():
    facts = from_toml(Facts, {**GOOD, "tags": ["x"], "margins": {"m": 0.5}, "limit": 2}, "card.toml")
    assert facts == Facts("a", 1, tags=("x",), margins={"m": 0.5}, limit=2)
    assert from_toml(Facts, {"size": 2.0}, "card.toml", name="given").name == "given"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ("text", "card.toml: a table is expected, got 'text'"),
        ({"name": "a"}, "card.toml: the field size is missing"),
        ({**GOOD, "sise": 1}, "there is no field sise (did you mean size?)"),
        ({**GOOD, "name": 1}, "the field name must be a text, got 1"),
        ({**GOOD, "size": "1"}, "the field size must be a number, got '1'"),
        ({**GOOD, "size": True}, "the field size must be a number, got True"),
        ({**GOOD, "count": 1.5}, "the field count must be a whole number"),
        ({**GOOD, "shown": 1}, "the field shown must be true or false"),
        ({**GOOD, "limit": "x"}, "the field limit must be a number"),
        ({**GOOD, "tags": "x"}, "the field tags must be a list of texts"),
        ({**GOOD, "tags": [1]}, "the field tags must be a list of texts"),
        ({**GOOD, "margins": {"m": "x"}}, "the field margins must be a table"),
    ],
)
def test_a_wrong_table_names_file_and_field(fields, words):
    with pytest.raises(CardError) as caught:
        from_toml(Facts, fields, "card.toml")
    assert words in str(caught.value)
