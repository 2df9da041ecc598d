"""The runner: every way that a cell can end, resuming, two runs at once, Dask, and the cost a cell."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from assay.store import Store
from tests_support import toy_environment


def rows_of(home, slug="toy"):
    with Store(home / "store.sqlite") as store:
        return {(row.cell.arm, row.cell.seed): row for row in store.rows(slug)}


def record_of(home):
    return json.loads((home / "records" / "toy.json").read_text())


def test_a_bad_cell_costs_itself_only(assay, home):
    done = assay("check", "toy", "--jobs", 2)
    assert done.returncode == 0, done.stderr
    rows = rows_of(home)
    status = {arm: row.status for (arm, _), row in rows.items()}
    assert status == {
        "good": "measured", "bad": "measured", "clock": "measured", "raises": "failed", "hangs": "failed",
        "killed": "failed", "hungry": "failed", "secret": "failed", "skipped": "skipped",
        "broken-step": "blocked", "absent-step": "skipped",
    }
    reason = {arm: row.reason for (arm, _), row in rows.items()}
    assert reason["raises"] == "ZeroDivisionError: one over nothing"
    assert "limit of 1 s" in reason["hangs"]
    assert "exit code -9" in reason["killed"]
    assert reason["hungry"].startswith("MemoryError")
    assert reason["skipped"] == "not here"
    assert reason["broken-step"] == "the step broken failed: ValueError: no such luck in file.txt"
    assert reason["absent-step"] == "data absent: the moon"
    assert "not-to-be-seen" not in reason["secret"] and "***" in reason["secret"]
    assert record_of(home)["verdicts"][0]["outcome"] == "holds"
    assert record_of(home)["controls"] == [{"claim": "T1", "control": "bad", "outcome": "fails"}]


def test_steps_are_made_once_and_measured_cells_are_final(assay, home):
    for _ in range(2):
        assert assay("check", "toy", "--tier", "smoke", "--jobs", 2).returncode == 0
    assert (home / "made.log").read_text() == "base\n"
    again = assay("check", "toy", "--tier", "smoke")
    assert "8 cells are kept" in again.stderr


def test_units_and_files_come_back_to_the_bit(assay, home):
    import numpy as np

    assay("check", "toy", "--tier", "smoke")
    row = rows_of(home)["good", 3]
    expected = np.random.default_rng(3).normal(scale=0.01, size=5)
    assert row.units["value"].tolist() == expected.tolist()
    assert row.units["name"].tolist() == list("abcde")
    assert row.files == {"note.txt": b"kept"}


def test_two_measurements_are_equal_to_the_last_bit(assay, home, tmp_path):
    assay("check", "toy", "--tier", "smoke", "--jobs", 2)
    first = {key: row.metrics for key, row in rows_of(home).items()}
    (home / "store.sqlite").unlink()
    assay("check", "toy", "--tier", "smoke", "--jobs", 1)
    assert {key: row.metrics for key, row in rows_of(home).items()} == first


def test_a_killed_run_loses_no_finished_cell(home):
    environment = toy_environment(home, TOY_PAUSE="0.4")
    command = [sys.executable, "-m", "assay.cli", "check", "toy", "--tier", "smoke", "--jobs", "1"]
    running = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for(lambda: (home / "store.sqlite").exists() and len(rows_of(home)) >= 2)
    workers = children_of(running.pid)
    running.send_signal(signal.SIGKILL)
    running.wait()
    kept = {key: row.extra["made"] for key, row in rows_of(home).items()}
    assert 2 <= len(kept) < 8
    subprocess.run(command, env=environment, check=True, capture_output=True)
    after = rows_of(home)
    assert len(after) == 8
    assert {key: after[key].extra["made"] for key in kept} == kept
    wait_for(lambda: not any(alive(pid) for pid in workers))


def test_two_runs_at_once_share_one_store(home):
    environment = toy_environment(home, TOY_PAUSE="0.1")
    command = [sys.executable, "-m", "assay.cli", "check", "toy", "--tier", "smoke", "--jobs", "1"]
    running = [subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    for process in running:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
    assert len(rows_of(home)) == 8
    assert {row.status for row in rows_of(home).values()} == {"measured"}


def test_ctrl_c_keeps_finished_cells_and_says_one_line(home):
    environment = toy_environment(home, TOY_PAUSE="0.4")
    command = [sys.executable, "-m", "assay.cli", "check", "toy", "--tier", "smoke", "--jobs", "1"]
    running = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: (home / "store.sqlite").exists() and len(rows_of(home)) >= 1)
    running.send_signal(signal.SIGINT)
    _, errors = running.communicate(timeout=60)
    assert running.returncode == 130
    assert errors.strip().splitlines()[-1] == "assay: stopped; finished cells are kept"
    assert "Traceback" not in errors
    assert rows_of(home)


def test_a_thousand_cells_cost_under_twenty_milliseconds_each(assay, home):
    begun = time.perf_counter()
    done = assay("check", "toy", "--tier", "full", "--jobs", 2)
    seconds = time.perf_counter() - begun
    assert done.returncode == 0, done.stderr
    assert len(rows_of(home)) == 1000
    assert seconds < 20, f"{seconds:.1f} s for 1000 cells"


def test_dry_run_measures_nothing(assay, home):
    done = assay("check", "toy", "--tier", "smoke", "--dry-run")
    assert done.stdout.count("to do") == 8
    assert "cells never measured here" in done.stdout
    assert not rows_of(home)


def test_a_file_of_ones_own(assay, home, tmp_path):
    own = tmp_path / "own.csv"
    own.write_text("x\n1\n")
    done = assay("check", "toy", "--data", own)
    assert done.returncode == 0, done.stderr
    kept = json.loads((home / "records" / "toy-own-data.json").read_text())
    assert kept["command"] == "assay check toy --tier quick --data own.csv"
    assert [row["dataset"] for row in kept["rows"]] == ["file"] * 3
    own.write_text("x\n2\n")
    assert "kept" not in assay("check", "toy", "--data", own).stderr


def test_dask_with_a_worker_killed_gives_the_same_numbers(assay, home):
    pytest.importorskip("distributed")
    assay("check", "toy", "--tier", "smoke", "--jobs", 2)
    local = {key: row.metrics for key, row in rows_of(home).items()}
    (home / "store.sqlite").unlink()
    environment = toy_environment(home, TOY_PAUSE="0.3")
    python = [sys.executable, "-m"]
    file = home / "scheduler.json"
    scheduler = subprocess.Popen(
        [*python, "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard",
         "--scheduler-file", str(file)], env=environment, stderr=subprocess.DEVNULL,
    )
    wait_for(file.exists, 60)
    address = json.loads(wait_for(file.read_text))["address"]
    workers = [
        subprocess.Popen(
            [*python, "distributed.cli.dask_worker", address, "--nthreads", "1", "--host", "127.0.0.1",
             "--no-dashboard", "--local-directory", str(home / f"w{i}")], env=environment, stderr=subprocess.DEVNULL,
        )
        for i in range(2)
    ]
    run = None
    try:
        time.sleep(3)
        run = subprocess.Popen(
            [*python, "assay.cli", "check", "toy", "--tier", "smoke", "--dask", address],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        wait_for(lambda: (home / "store.sqlite").exists() and len(rows_of(home)) >= 2, 90)
        for pid in children_of(workers[0].pid):
            os.kill(pid, signal.SIGKILL)
        workers[0].kill()
        _, errors = run.communicate(timeout=120)
        assert run.returncode == 0, errors
    finally:
        for process in (run, *workers, scheduler):
            if process is not None:
                process.kill()
                process.wait()
    assert {key: row.metrics for key, row in rows_of(home).items()} == local


def test_an_unreachable_cluster_is_one_line(assay):
    done = assay("check", "toy", "--dask", "tcp://127.0.0.1:9")
    assert done.returncode == 2
    assert done.stderr.strip().splitlines()[-1].startswith("assay: no Dask scheduler answers at tcp://127.0.0.1:9")
    assert "Traceback" not in done.stderr


def children_of(pid):
    found = []
    for folder in os.listdir("/proc"):
        if folder.isdigit():
            try:
                with open(f"/proc/{folder}/stat") as stat:
                    parent = int(stat.read().rpartition(")")[2].split()[1])
            except OSError:
                continue
            if parent == pid:
                found += [int(folder), *children_of(int(folder))]
    return found


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for(test, seconds=60):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if value := test():
            return value
        time.sleep(0.05)
    raise TimeoutError("the awaited state did not come")


def test_public_sets_change_no_verdict_of_the_home_sets(tmp_path, monkeypatch):
    from types import SimpleNamespace

    from assay import datasets, runner
    from assay.catalogue import read_card
    from assay.study import Cell, Results, Row, Tier
    from tests_support import TOY

    folder = TOY / "toy_method"
    method = read_card(folder, "toy_method")
    monkeypatch.syspath_prepend(str(TOY))
    study = method.study()
    entry = datasets.Dataset("public", "far away", "MIT", "public", tmp_path)
    monkeypatch.setattr(runner, "datasets", SimpleNamespace(entry=lambda name: entry, data_hash=datasets.data_hash))
    near = [Row(Cell("made", "good", seed, data=()), "measured", {"value": 0.7 + seed / 100}) for seed in range(4)]
    far = [Row(Cell("public", "good", seed), "measured", {"value": 0.1 + seed / 100}) for seed in range(4)]
    record = runner.make_record(runner.Plan(method, study, Tier.smoke, []), Results(near + far))
    assert record["verdicts"][0]["outcome"] == "holds"
    assert record["further"]["data"] == ["public"]
    assert record["further"]["verdicts"][0]["outcome"] != "holds"
    alone = runner.make_record(runner.Plan(method, study, Tier.smoke, []), Results(near))
    assert alone["further"] is None and alone["verdicts"] == record["verdicts"]
