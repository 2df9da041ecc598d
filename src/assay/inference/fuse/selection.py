"""Best of N: one item a query, by its score (the use of fused scores in arXiv 2604.18547)."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from assay.errors import InputError, as_labels, as_vector

__all__ = ["best_of_n_hits", "group_codes", "select_per_query"]


def select_per_query(scores: ArrayLike, groups: ArrayLike) -> NDArray[np.intp]:
    """Row of the best-scored item of every query, queries in the order in which they first appear.

    Of tied items the first is taken; `best_of_n_hits` counts such a choice as the draw that it is.

    Parameters
    ----------
    scores : (n,) array
        Higher is better; finite.
    groups : (n,) array
        Query of each item: numbers or strings.

    Returns
    -------
    (queries,) int array
        Rows of `scores`; `groups[rows]` names the queries.

    Raises
    ------
    InputError
        Scores that are not finite, or groups of another length or with missing names.

    Examples
    --------
    >>> select_per_query([0.1, 0.7, 0.4, 0.2], ["b", "b", "a", "a"]).tolist()
    [1, 2]
    """
    values = as_vector(scores, "scores")
    codes = group_codes(groups, len(values))
    order = np.lexsort((np.arange(len(values)), -values, codes))
    return order[np.r_[True, np.diff(codes[order]) > 0]] if len(order) else order


def best_of_n_hits(scores: ArrayLike, labels: ArrayLike, groups: ArrayLike) -> NDArray[np.float64]:
    """For each query the share of right items among its best-scored ones: a tie among N counts as 1/N.

    The mean is the best-of-N accuracy, and the values are the units of its interval.

    Parameters
    ----------
    scores : (n,) array
        Higher is better; finite.
    labels : (n,) array
        1 for a right item, 0 for a wrong one.
    groups : (n,) array
        Query of each item.

    Returns
    -------
    (queries,) array
        Between 0 and 1, queries in the order in which they first appear.

    Raises
    ------
    InputError
        Scores that are not finite, other labels than 0 and 1, or groups of another length.

    Examples
    --------
    >>> best_of_n_hits([0.7, 0.7, 0.4, 0.2], [1, 0, 1, 0], [0, 0, 1, 1]).tolist()
    [0.5, 1.0]
    """
    values = as_vector(scores, "scores")
    right = as_labels(labels, "labels", length=len(values), n_classes=2)
    codes = group_codes(groups, len(values))
    if not len(values):
        raise InputError("there are no items: the share of right choices has no value")
    best = np.full(codes.max() + 1, -np.inf)
    np.maximum.at(best, codes, values)
    top = (values >= best[codes]).astype(float)
    return np.bincount(codes, top * right) / np.bincount(codes, top)


def group_codes(groups: ArrayLike | None, length: int, *, by_name: bool = False) -> NDArray[np.intp]:
    """Queries as 0, 1, 2 ... in the order in which they first appear, or in the order of their names."""
    if groups is None:
        raise InputError("groups is missing: the query of each item is needed")
    names = np.asarray(groups)
    if names.ndim != 1 or len(names) != length:
        raise InputError(f"groups must name one query for each of the {length} items, got shape {names.shape}")
    if names.dtype.kind in "fcmM" and (unknown := np.isnan(names)).any():
        unknown_name, row = "NaT" if names.dtype.kind in "mM" else "NaN", int(np.argmax(unknown))
        raise InputError(f"groups must name a query for every item, got {unknown_name} in row {row}")
    if names.dtype.kind == "O":
        missing = [row for row, name in enumerate(names) if name is None or name != name]
        if missing:
            raise InputError(f"groups must name a query for every item, got {names[missing[0]]} in row {missing[0]}")
        names = names.astype(str)
    _, first, codes = np.unique(names, return_index=True, return_inverse=True)
    if by_name:
        return codes.reshape(-1)
    place = np.empty(len(first), dtype=np.intp)
    place[np.argsort(first)] = np.arange(len(first))
    return place[codes.reshape(-1)]
