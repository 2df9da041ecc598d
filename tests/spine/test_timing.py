"""Timing in turns and resumable tables: what benchmarks and the scripts of our own tables share."""

import importlib.util
from pathlib import Path

import pandas as pd
import pytest

from assay.timing import alternate, cpu_seconds, speed_case


def spin(number):
    return lambda: sum(i * i for i in range(number))


def test_cpu_seconds_count_work():
    assert cpu_seconds(spin(1_000_000)) > 10 * cpu_seconds(spin(1_000))


def test_both_run_in_turns_and_ours_once_more():
    calls = []
    ours_s, peer_s = alternate(lambda: calls.append("ours"), lambda: (calls.append("peer"), spin(300_000)()), 2)
    assert calls == ["ours", "ours", "peer", "ours", "peer"]
    assert peer_s > ours_s


def test_a_case_says_what_a_record_wants():
    case = speed_case("fit", 2.0, 3.0, 3.0, "a loop", "short")
    assert case == {
        "name": "fit", "ours_s": 2.0, "peer_s": 3.0, "ratio": 1.5, "target": 3.0, "peer": "a loop", "note": "short",
    }


@pytest.fixture
def resumable():
    path = Path(__file__).parents[2] / "scripts" / "resumable.py"
    spec = importlib.util.spec_from_file_location("resumable", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_rows_are_added_and_no_part_is_left(resumable, tmp_path):
    table = tmp_path / "new" / "runs.csv"
    for number in range(3):
        resumable.add_rows(table, [{"N": number, "loss": number / 2}])
    assert pd.read_csv(table)["N"].tolist() == [0, 1, 2]
    assert sorted(path.name for path in table.parent.iterdir()) == [".lock", "runs.csv"]


@pytest.mark.parametrize(("best", "tried"), [(0.008, 3), (0.016, 4), (0.064, 6), (0.001, 6)])
def test_the_ladder_ends_with_the_best_rate_inside(resumable, best, tried):
    losses = {}
    while (rate := resumable.next_rate(losses)) is not None:
        losses[rate] = abs(rate / best - best / rate)
    assert min(losses, key=losses.get) == best
    assert min(losses) < best < max(losses)
    assert len(losses) == tried
