"""Tables of runs as users have them: other names, other units, unfinished runs, and numbers in the wrong column."""

import numpy as np
import pandas as pd
import pytest

from assay.errors import InputError
from assay.scaling.tables import COLUMNS, parse_columns, read_dates, read_run_table, read_table


@pytest.fixture
def runs() -> pd.DataFrame:
    grid = [(n, b, k) for n in (1e6, 1e7, 1e8) for b in (16.0, 64.0) for k in (1000.0, 4000.0)]
    frame = pd.DataFrame(grid, columns=["N", "B", "K"])
    frame["D"] = frame.B * frame.K * 512
    frame["loss"] = 1.7 + 40 / frame.N**0.34 + 40 / frame.D**0.28
    return frame


def refusal(table, needs=("N", "D", "loss"), **how) -> str:
    with pytest.raises(InputError) as error:
        read_run_table(table, needs, **how)
    message = str(error.value)
    assert "\n" not in message
    return message


def test_names_of_its_own_and_usual_ones_and_stated_ones(runs):
    plain = read_run_table(runs, ["N", "B", "K", "loss"])
    assert plain.runs["C"].tolist() == pytest.approx((6 * runs.N * runs.D).tolist())
    usual = runs.rename(columns={"N": "Num Params", "D": "tokens", "B": "batch-size", "K": "steps", "loss": "val_loss"})
    stated = runs.rename(columns={"N": "qx", "D": "zz", "B": "b7", "K": "k k", "loss": "y"}).assign(qx=runs.N / 1e6)
    columns = parse_columns("N=qx*1e6, D=zz, B=b7, K=k k, loss=y")
    for table, given in ((usual, None), (stated, columns)):
        read = read_run_table(table, ["N", "D", "B", "K", "loss"], columns=given)
        pd.testing.assert_frame_equal(read.runs[["N", "D", "B", "K", "loss"]], plain.runs[["N", "D", "B", "K", "loss"]])


def test_a_group_that_all_runs_share_gives_way_to_one_that_tells_them_apart(runs):
    table = runs.assign(family="gpt", config_id=np.arange(12) // 2)
    assert read_run_table(table).named["group"] == "config_id"
    assert read_run_table(table, columns={"group": "family"}).named["group"] == "family"


def test_a_column_with_a_star_in_its_name_is_found_before_a_factor_is(runs):
    table = runs.rename(columns={"N": "N*2"})
    assert read_run_table(table, ["N"], columns={"N": "N*2"}).runs["N"].tolist() == runs.N.tolist()


def test_the_table_is_left_as_it_is(runs):
    before = runs.copy()
    runs.loc[3, "loss"] = np.nan
    before.loc[3, "loss"] = np.nan
    read_run_table(runs, ["N", "D", "loss"])
    pd.testing.assert_frame_equal(runs, before)


def test_missing_columns_are_named_with_what_is_left(runs):
    message = refusal(runs.drop(columns=["B", "K"]).rename(columns={"N": "foo", "loss": "bar"}))
    assert "lacks N (parameters) and loss (nats a token)" in message
    assert "N=COLUMN,loss=COLUMN" in message and "foo (1e+06 to 1e+08)" in message
    assert "no column of the file is left" in refusal(runs[["N"]], ["N", "D"])


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"N": "params"}, "no column 'params'"),
        ({"N": "N*many"}, "'many' is no number"),
    ],
)
def test_a_column_map_that_fits_nothing_is_refused(runs, given, words):
    assert words in refusal(runs, columns=given)


@pytest.mark.parametrize(
    ("text", "words"), [("N", "N=COLUMN"), ("M=x", "no column 'M'"), ("N=a,N=b", "named twice"), ("N=", "N=COLUMN")]
)
def test_a_column_map_that_can_not_be_read_is_refused(text, words):
    with pytest.raises(InputError, match=words):
        parse_columns(text)


def test_two_columns_of_one_name_are_refused(runs):
    table = pd.concat([runs, runs[["N"]]], axis=1)
    assert "more than one column N" in refusal(table)


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        ("N", "big", "N must be a number, got 'big' in row 3"), ("D", -1.0, "D must be positive"),
        ("B", 0.0, "B must be positive"), ("K", np.inf, "K must be positive and finite"),
        ("N", np.nan, "N must be positive and finite, got nan in row 3"), ("loss", -0.5, "loss must be positive"),
        ("loss", "low", "loss must be a number"),
    ],
)
def test_a_bad_value_is_named_with_its_row(runs, column, value, words):
    table = runs.astype(object)
    table.loc[3, column] = value
    assert words in refusal(table)


def test_diverged_runs_are_left_out_and_named(runs):
    runs.loc[[1, 4], "loss"] = [np.nan, np.inf]
    runs.loc[5, "loss"] = 6.0
    read = read_run_table(runs, ["N", "D", "loss"], vocab=256)
    assert read.runs.index.tolist() == [0, 2, 3, 6, 7, 8, 9, 10, 11]
    assert "2 runs without a finite loss: left out" in read.notes[0] and "1, 4" in read.notes[0]
    assert "1 run with a loss above 5.55 nats" in read.notes[1] and "(rows 5)" in read.notes[1]
    assert len(read_run_table(runs, ["loss"]).runs) == 10  # 6 nats are possible where the vocabulary is unknown
    assert "no run has a usable loss" in refusal(runs.assign(loss=np.nan))
    assert "at least 2 tokens" in refusal(runs, vocab=1)


def test_sizes_in_millions_are_asked_about(runs):
    assert "are these millions or billions?" in refusal(runs.assign(N=runs.N / 1e6))
    runs.loc[2, "N"] = 10.0
    assert "N is 10 in row 2 (1 of 12 rows" in refusal(runs)


def test_flop_in_the_place_of_tokens_are_asked_about(runs):
    message = refusal(runs.assign(D=6 * runs.N * runs.D * 1e3))
    assert "is it FLOP?" in message and "C=COLUMN" in message
    read = read_run_table(runs.assign(D=6 * runs.N * runs.D), ["N", "D", "loss"], columns={"C": "D"})
    np.testing.assert_allclose(read.runs["D"], runs.D)
    assert any("computed from FLOP" in note for note in read.notes)


def test_units_that_change_between_rows_are_asked_about(runs):
    table = runs.drop(columns=["B", "K"])
    table.loc[7, "D"] *= 1e-5
    assert "D is" in refusal(table) and "row 7" in refusal(table)
    table = runs.drop(columns=["B", "K"]).assign(C=6 * runs.N * runs.D)
    table.loc[7, "C"] *= 1e-12
    assert "C / (6 N D)" in refusal(table) and "row 7" in refusal(table)


def test_tokens_and_sequences_confused_are_noticed(runs):
    assert "D equals B * K" in refusal(runs.assign(D=runs.B * runs.K))
    assert "are tokens and sequences confused?" in refusal(runs, seq_len=2048)
    assert "at least one token" in refusal(runs, seq_len=0)
    read = read_run_table(runs, ["D"])
    assert read.runs["seq_len"].unique().tolist() == [512.0]
    runs.loc[6, "D"] *= 1.5
    assert any("differs in 1 (rows 6)" in note for note in read_run_table(runs, ["D"]).notes)


def test_what_follows_from_other_columns_is_computed(runs):
    tokens = read_run_table(runs.drop(columns="D"), ["N", "D", "loss"], seq_len=512).runs["D"]
    np.testing.assert_allclose(tokens, runs.D)
    updates = read_run_table(runs.drop(columns="K"), ["K"], seq_len=512).runs["K"]
    np.testing.assert_allclose(updates, runs.K)
    flop = runs.assign(C=6 * runs.N * runs.D).drop(columns=["N", "B", "K"])
    read = read_run_table(flop, ["N"]).runs  # without B and K some rows are the same
    np.testing.assert_allclose(read["N"], runs.N[read.index])
    assert "lacks D (tokens)" in refusal(runs.drop(columns="D"))


def test_a_run_that_stands_twice_counts_once_and_repeats_with_another_loss_stay(runs):
    again = pd.concat([runs, runs.iloc[[2]], runs.iloc[[3]].assign(loss=3.0)], ignore_index=True)
    read = read_run_table(again, ["N", "D", "loss"])
    assert len(read.runs) == 13 and read.notes[-1].startswith("1 run named twice, counted once (rows 12)")


def test_a_long_table_shows_all_its_columns(runs):
    wide = runs.rename(columns={"loss": "zz"}).assign(**{f"c{i}": 1.0 for i in range(25)}, **{"Unnamed: 0": 1})
    message = refusal(wide, ["loss"])
    assert "c24 (1 to 1)" in message and "zz (" in message and "Unnamed" not in message
    assert refusal(wide.drop(columns=["N", "D"]), ["N", "D", "loss"]).startswith(
        "the table lacks N (parameters), D (tokens) and loss (nats a token)"
    )


def test_an_optional_column_with_empty_cells_is_left_out_and_a_needed_one_refused(runs):
    runs["lr"] = [np.nan, *[0.01] * 11]
    read = read_run_table(runs, ["N", "D", "loss"])
    assert not read.has("lr") and any(note.startswith("lr is empty in 1 rows") for note in read.notes)
    assert "lr must be positive and finite" in refusal(runs, columns={"lr": "lr"})
    assert "lr must be positive and finite" in refusal(runs, ["lr"])


@pytest.mark.parametrize("how", [{"seq_len": "long"}, {"vocab": True}, {"columns": "N=params"}, {"seq_len": [128]}])
def test_settings_of_a_wrong_type_are_refused(runs, how):
    assert "must be a" in refusal(runs, **how)


def test_one_size_or_one_batch_is_noted(runs):
    notes = read_run_table(runs.assign(N=1e7), ["N", "B", "loss"]).notes
    assert any(note.startswith("N is 1e+07 in all runs") for note in notes)


def test_files_that_are_no_tables_are_refused(tmp_path):
    bad = {"empty.csv": b"", "bytes.csv": b"\xff\xfe\x00\x01", "ragged.csv": b"N,D\n1,2,3\n", "head.csv": b"N,D,loss\n"}
    for name, content in bad.items():
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(InputError, match=name):
            read_run_table(path, ["N"])
    with pytest.raises(InputError, match="no such file"):
        read_table(tmp_path / "absent.csv")


def test_dates_are_read_and_the_first_offenders_named():
    dates = read_dates(pd.Series(["2024-06-30", "2024-07-01T12:00:00+02:00", "1 March 2025"]), "t")
    assert dates.dt.month.tolist() == [6, 7, 3]
    with pytest.raises(InputError, match="2 of 3 dates can't be read: 'soon' in row 1"):
        read_dates(pd.Series(["2024-06-30", "soon", "later"]), "t")


def test_every_column_has_its_meaning():
    assert set(COLUMNS) >= {"N", "D", "B", "K", "C", "loss"}
    assert all(COLUMNS.values())
