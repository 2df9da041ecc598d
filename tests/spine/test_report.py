"""The report, from records written here: what it says, that it is safe, and that it works in a real browser."""

from __future__ import annotations

import csv
import hashlib
import importlib.util
import json
import math
import re
import shutil
import tempfile
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from assay import catalogue, report, stats
from assay.errors import InputError
from assay.report import cells, charts, wording
from assay.report.forest import forest
from assay.report.view import view_of
from assay.study import Claim, Outcome, Verdict

HOSTILE = """<script>document.title="owned"</script><img src=x onerror='document.title="owned"'>"&'`</style></script>"""

CARD = """
slug = "{slug}"
title = "{title}"
summary = "{summary}"
area = "{area}"
tasks = ["{task}", "classification"]
public = ["Thing"]
gives = "A map from held-out scores to a temperature for each row. The ranking of the classes never changes."
not_for = "Fewer than fifty validation rows, or scores that are no logits."
usage = '''
from assay.trust import Thing
thing = Thing().fit(logits, labels)
thing.predict_proba(logits)
'''
arm = "ours"
extras = ["torch"]
departures = ["The solver is quasi-Newton; the paper's is Adam.", "Four restarts, where the paper has one."]
speed_target = 5.0
[kinds]
Thing = "estimator"
[paper]
title = "A paper on {title}"
authors = "A. Author, B. Writer"
year = 2026
venue = "ICML 2026"
arxiv = "2606.00001"
code = "an archive of the authors"
"""

CLAIM = """
[[claims]]
id = "{id}"
statement = "{statement}"
paper = "{paper}"
measured = "Mean of the paired differences over the test rows of each data set."
unit = "test row within data set"
home = "letter, satimage and digits decide it"
threshold = {threshold}
side = "{side}"
control = "{control}"
{more}
"""

CLAIMS = [
    ("A1", "Lower calibration error than temperature scaling", "0.6 points lower on eleven of twelve networks", 0.0,
     "below", "constant-confidence", "[claims.limits]\nbrier_margin = 0.002"),
    ("A2", "Works with very few validation rows", "no loss at a hundred rows", 0.001, "below",
     "constant-confidence", ""),
    ("A3", "The margin beats other measures of hardness", "best of four in the ablation", 0.0, "below",
     "constant-confidence", "after_pilot = true"),
    ("A4", "Robust when the test rows are shifted", "ten points better on rotated pictures", 0.0, "above",
     "shuffled-labels", ""),
    ("A5", "No accepted proof is wrong", "a theorem", 0.0, "below", "none: a proof checker has no sabotaged arm",
     "exact = true\nmin_cases = 20"),
    ("A6", "Better on most data sets", "on eight of ten", 0.0, "below", "constant-confidence", ""),
]


def verdict(claim: str, outcome: str, reason: str = "", **fields: Any) -> dict[str, Any]:
    blank = {"effect": None, "low": None, "high": None, "threshold": 0.0, "n": None, "parts": []}
    return {"claim": claim, "outcome": outcome, "reason": reason, **blank, **fields}


def record(slug: str = "alpha", n_rows: int = 120) -> dict[str, Any]:
    """All four verdicts, parts, null intervals, measured, failed, skipped and blocked rows."""
    parts = [
        verdict("A6", "holds", "letter", effect=-0.012, low=-0.019, high=-0.006, n=2000),
        verdict("A6", "unclear", "satimage", effect=-0.002, low=-0.008, high=0.003, n=1500),
        verdict("A6", "fails", "digits", effect=0.007, low=0.002, high=0.012, n=900),
    ]
    rows = [
        {
            "dataset": ["letter", "satimage", "digits"][i % 3], "arm": ["ours", "temperature", "constant"][i // 3 % 3],
            "seed": i // 9, "options": {"n_val": 100 if i % 2 else 3000}, "status": "measured", "reason": "",
            "metrics": {"ece": 0.01 + i / 1e4, "accuracy": 0.9}, "seconds": 0.1 + i / 100, "peak_mb": 200.0,
            "timing": False,
        }
        for i in range(n_rows)
    ]
    lost = [("failed", "LinAlgError: singular matrix"), ("skipped", "netcal is not installed"), ("blocked", "no model")]
    rows += [
        {"dataset": "letter", "arm": "netcal", "seed": i, "options": {}, "status": status, "reason": reason,
         "metrics": {}, "seconds": 0.0, "peak_mb": 0.0, "timing": False}
        for i, (status, reason) in enumerate(lost)
    ]
    return {
        "schema": 1, "slug": slug, "study_version": 1, "tier": "quick", "measured": "2026-12-01T09:12:00+00:00",
        "seconds": 55.2, "command": f"assay check {slug} --tier quick", "code": "0123456789abcdef",
        "machine": {"cpu": "Test CPU 3000", "cores": 2, "memory_gb": 23, "system": "Linux", "python": "3.11.7"},
        "versions": {"numpy": "2.4.6", "scipy": "1.17.0"},
        "data": [
            {"name": "letter", "title": "Letter recognition", "licence": "CC BY 4.0", "kind": "wheel",
             "sha256": "0" * 64, "status": "used", "reason": ""},
            {"name": "cifar10-vgg16", "title": "Outputs of VGG-16 on CIFAR-10", "licence": "MIT", "kind": "public",
             "sha256": "1" * 64, "status": "absent", "reason": "it could not be downloaded"},
        ],
        "verdicts": [
            verdict("A1", "holds", "Guards met on all sets.", effect=-0.0123, low=-0.0214, high=-0.0041, n=4400),
            verdict("A2", "fails", effect=0.0321, low=0.0123, high=0.0544, threshold=0.001, n=50),
            verdict("A3", "unclear", effect=-0.5, n=2),
            verdict("A4", "untested", "rotated pictures need the public outputs, which are absent"),
            verdict("A5", "holds", effect=0.0, n=120),
            verdict("A6", "unclear", "one of three holds", n=3, parts=parts),
        ],
        "further": None, "controls": [
            {"claim": name, "control": "constant-confidence", "outcome": "fails"} for name in ("A1", "A2", "A3", "A6")
        ],
        "rows": rows,
        "charts": [
            {
                "$schema": "https://vega.github.io/schema/vega-lite/v6.json", "title": "Calibration error by data set",
                "description": "Points with intervals: expected calibration error of three arms on three data sets.",
                "data": {"values": [
                    {"set": s, "arm": a, "ece": 0.01 * (1 + i) + 0.004 * j, "low": 0.01 * (1 + i) + 0.004 * j - 0.003,
                     "high": 0.01 * (1 + i) + 0.004 * j + 0.004}
                    for i, s in enumerate(("letter", "satimage", "digits"))
                    for j, a in enumerate(("ours", "temperature", "isotonic"))
                ]},
                "encoding": {"y": {"field": "set", "type": "nominal", "title": None},
                             "yOffset": {"field": "arm"}, "color": {"field": "arm", "title": None}},
                "layer": [
                    {"mark": "rule", "encoding": {"x": {"field": "low", "type": "quantitative",
                     "title": "expected calibration error"}, "x2": {"field": "high"}}},
                    {"mark": "point", "encoding": {"x": {"field": "ece", "type": "quantitative"}}},
                ],
            },
            {
                "title": "Error by size", "description": "Error against the number of validation rows.", "width": 400,
                "data": {"values": [{"n": n, "ece": 0.1 / math.sqrt(n), "arm": a} for n in (50, 100, 500, 3000)
                                    for a in ("ours", "temperature")]},
                "mark": {"type": "line", "point": True},
                "encoding": {"x": {"field": "n", "type": "quantitative", "scale": {"type": "log"}},
                             "y": {"field": "ece", "type": "quantitative"}, "color": {"field": "arm"}},
            },
        ],
        "speed": {"measured": "2026-12-01T09:14:00+00:00", "cases": [
            {"name": "fit, 1,000 rows", "ours_s": 0.32, "peer_s": 3.4, "ratio": 10.6, "target": 5.0,
             "peer": "the authors' Adam loop", "note": ""},
            {"name": "predict", "ours_s": 0.0021, "peer_s": 0.0013, "ratio": 0.62, "target": None,
             "peer": "temperature scaling", "note": "of the plain scaling's time"}]},
    }


def hostile(value: Any) -> Any:
    """The value with every text of a reader's choosing spoilt; the words of the contract stay."""
    if isinstance(value, dict):
        kept = ("claim", "outcome", "status", "tier", "measured", "mark", "encoding", "$schema")
        return {key: item if key in kept else hostile(item) for key, item in value.items()}
    if isinstance(value, list):
        return [hostile(item) for item in value]
    return f"{value}{HOSTILE}" if isinstance(value, str) else value


def write_card(folder: Path, slug: str, area: str, task: str, n_claims: int, spoil: str = "") -> catalogue.Method:
    quoted = json.dumps(spoil)[1:-1]
    text = CARD.format(slug=slug, area=area, task=task, title=f"Method {slug}{quoted}",
                       summary=f"what {slug} does for you{quoted}")
    for name, statement, paper, threshold, side, control, more in CLAIMS[:n_claims]:
        text += CLAIM.format(id=name, statement=statement + quoted, paper=paper + quoted, threshold=threshold,
                             side=side, control=control, more=more)
    folder.mkdir()
    (folder / "card.toml").write_text(text, encoding="utf-8")
    return catalogue.read_card(folder, f"assay.{area}.{slug}")


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, catalogue.Method]]:
    """A catalogue of four methods: recorded, partly recorded, not recorded, and with hostile text."""
    home = tmp_path_factory.mktemp("cards")
    cards = {
        "alpha": write_card(home / "alpha", "alpha", "trust", "calibration", 6),
        "beta": write_card(home / "beta", "beta", "scaling", "forecasting", 3),
        "gamma": write_card(home / "gamma", "gamma", "science", "proof", 2),
        "omega": write_card(home / "omega", "omega", "structure", "layout", 6, spoil=HOSTILE),
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(catalogue, "methods", lambda: cards)
        yield cards


@pytest.fixture(scope="module")
def records(known: dict[str, catalogue.Method]) -> dict[str, dict[str, Any] | None]:
    partly = {**record("beta"), "tier": "full", "measured": "2026-11-03T10:00:00+00:00"}
    partly["verdicts"] = partly["verdicts"][:2]
    return {"alpha": record(), "beta": partly, "gamma": None, "omega": hostile(record("omega"))}


@pytest.fixture(scope="module")
def site(records: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return report.build(records, tmp_path_factory.mktemp("out") / "report", stale={"beta"}).parent


class Page(HTMLParser):
    """The tags of a page, its visible text, and its scripts apart."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.inside: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.inside.append(tag)

    def handle_endtag(self, tag: str) -> None:
        while self.inside and self.inside.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if not {"script", "style"} & set(self.inside):
            self.words.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.words)).replace("\xa0", " ")


def page(site: Path, name: str) -> Page:
    return Page((site / name).read_text(encoding="utf-8"))


# What the pages say


def test_every_method_has_a_page_and_its_files(site: Path) -> None:
    made = {str(path.relative_to(site)) for path in site.rglob("*") if path.is_file()}
    own = {f"{slug}/{name}" for slug in ("alpha", "beta", "omega")
           for name in ("cells.csv", "record.json", "chart-1.svg", "chart-2.svg")}
    shared = {"index.html", "assay.js", "icon.svg"}
    assert made == shared | own | {f"{slug}.html" for slug in ("alpha", "beta", "gamma", "omega")}


def test_the_first_page_counts_verdicts_and_chance(site: Path, records: dict[str, Any]) -> None:
    text = page(site, "index.html").text
    counts = {"holds": 5, "fails": 3, "unclear": 4, "untested": 5}
    for outcome, n in counts.items():
        assert re.search(rf"\b{n} {outcome} ", text), outcome
    by_interval = 2 * 4 + 2
    assert f"{by_interval} claims were judged by a 95 % interval" in text
    assert f"{wording.number(stats.expected_false_holds(by_interval), 2)} would still read" in text
    assert "3 November 2026 to 1 December 2026" in text
    assert "Test CPU 3000, 2 cores, 23 GB, Linux, Python 3.11.7" in text and "numpy 2.4.6" in text


def test_each_claim_is_a_lettered_cell_that_links_to_its_section(site: Path) -> None:
    tiles = [a for tag, a in page(site, "index.html").tags if tag == "a" and a.get("class") == "tile"]
    assert len(tiles) == 6 + 3 + 2 + 6
    alpha = [tile for tile in tiles if (tile["href"] or "").startswith("alpha.html")]
    assert [tile["data-verdict"] for tile in alpha] == ["holds", "fails", "unclear", "untested", "holds", "unclear"]
    assert "A1 holds: Lower calibration error" in page(site, "index.html").text
    anchors = {a.get("id") for _, a in page(site, "alpha.html").tags}
    assert {(tile["href"] or "").partition("#")[2] for tile in alpha} <= anchors
    letters = re.findall(r'class="stamp \w+" aria-hidden="true">(.)<', (site / "index.html").read_text("utf-8"))
    assert letters[:4] == list("HFU–") and letters[4:10] == list("HFU–HU")


def test_a_methods_page_says_it_all(site: Path) -> None:
    text = page(site, "alpha.html").text
    for said in (
        "0.6 points lower on eleven of twelve networks",
        "−0.0123 (−0.0214 to −0.0041)",
        "The whole interval, −0.0214 to −0.0041, lies below the threshold 0. Guards met on all sets.",
        "The whole interval, 0.0123 to 0.0544, lies on the wrong side: it should be below the threshold 0.001.",
        "The effect is −0.5, from 2 independent units: too few for an interval.",
        "rotated pictures need the public outputs, which are absent",
        "No case among 120 contradicts it.",
        "Of 3 parts: 1 holds, 1 fails, 1 unclear.",
        "constant-confidence in the method's place reads “fails”: it does not satisfy the claim, as it must not.",
        "No negative control: a proof checker has no sabotaged arm.",
        "set after a pilot",
        "brier margin 0.002",
        "10.6 ×", "5 × met", "320 ms", "3.4 s",
        "Outputs of VGG-16 on CIFAR-10", "absent : it could not be downloaded", "CC BY 4.0",
        "The solver is quasi-Newton; the paper's is Adam.",
        "assay check alpha --tier quick", "assay run alpha --example", 'pip install "assay[torch]"',
        "arXiv:2606.00001", "120 measured, 1 failed, 1 skipped, 1 blocked",
    ):
        assert said in text, said


def test_a_control_that_satisfies_the_claim_is_called_out(known: dict[str, Any]) -> None:
    outcomes = {"A1": "holds", "A2": "untested"}
    spoilt = {**record(), "further": None, "controls": [
        {"claim": claim, "control": "constant-confidence", "outcome": outcome} for claim, outcome in outcomes.items()]}
    judged = view_of("alpha", spoilt, ()).judged
    assert "tells nothing" in judged[0].control_words
    assert "was not measured" in judged[1].control_words and "was not measured" in judged[2].control_words


def test_stale_superseded_and_missing_records_are_named(site: Path, known: dict[str, Any]) -> None:
    assert "The code has changed since these verdicts were measured" in page(site, "beta.html").text
    assert "Stale" not in page(site, "alpha.html").text
    assert "Nothing has been measured for this page yet" in page(site, "gamma.html").text
    assert "the record holds no verdict on this claim" in page(site, "beta.html").text
    older = view_of("alpha", {**record(), "study_version": 0}, ())
    assert older.out_of_date and "earlier version of the study" in older.stale_reason


def test_an_empty_report_and_a_sparse_record(known: dict[str, Any], tmp_path: Path) -> None:
    assert "No method was given" in report.build({}, tmp_path / "none").read_text()
    sparse = {"schema": 1, "slug": "alpha", "verdicts": [], "rows": []}
    assert "untested" in page(report.build({"alpha": sparse}, tmp_path / "sparse").parent, "alpha.html").text


# Files


def test_the_site_is_the_same_each_time(site: Path, records: dict[str, Any], tmp_path: Path) -> None:
    again = report.build(records, tmp_path / "again", stale={"beta"}).parent

    def digest(folder: Path) -> dict[str, str]:
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}

    assert digest(site) == digest(again)


def test_nothing_refers_outside_the_folder(site: Path) -> None:
    for path in site.glob("*.html"):
        for tag, attributes in Page(path.read_text(encoding="utf-8")).tags:
            for name in ("src", "href", "action", "data", "poster", "srcset"):
                target = (attributes.get(name) or "").partition("#")[0]
                assert not target or (site / target).exists(), (path.name, tag, target)
        assert "http" not in re.sub(r"[^\x20-\x7e]", "", path.read_text(encoding="utf-8")), path.name
        assert "@import" not in path.read_text() and "url(" not in path.read_text()


def test_a_page_stays_under_its_size(known: dict[str, Any], tmp_path: Path) -> None:
    big = record(n_rows=20_000)
    big["charts"] = [
        {**chart, "data": {"values": chart["data"]["values"] * 300}} for chart in big["charts"]
    ]
    folder = report.build({"alpha": big}, tmp_path / "big").parent
    assert (folder / "alpha.html").stat().st_size < 500_000
    assert len((folder / "alpha/cells.csv").read_text().splitlines()) == 20_000 + 3 + 1
    assert (folder / "alpha/chart-1.svg").exists() and 'src="alpha/chart-1.svg"' in (folder / "alpha.html").read_text()
    carried = json.loads(re.search(r'id="cell-data">(.*?)</script>', (folder / "alpha.html").read_text()).group(1))
    assert carried["total"] == 20_003 and 1_000 < len(carried["rows"]) < 20_000


def test_the_csv_holds_every_cell_with_its_reason(site: Path) -> None:
    rows = list(csv.DictReader((site / "alpha/cells.csv").open(encoding="utf-8")))
    assert len(rows) == 123
    assert list(rows[0]) == [
        "dataset", "arm", "seed", "n_val", "status", "reason", "ece", "accuracy", "seconds", "peak_mb"]
    assert float(rows[1]["ece"]) == 0.01 + 1 / 1e4
    assert [(row["status"], row["reason"]) for row in rows[-3:]] == [
        ("failed", "LinAlgError: singular matrix"), ("skipped", "netcal is not installed"), ("blocked", "no model")]


def test_a_formula_in_a_cell_reaches_no_spreadsheet() -> None:
    rows = [{"dataset": "=HYPERLINK(1)", "arm": "-x", "seed": -1, "status": "measured", "metrics": {"m": -2.5}}]
    assert cells.table(rows).csv().splitlines()[1] == "'=HYPERLINK(1),'-x,-1,measured,-2.5"


def test_columns_of_one_name_are_told_apart() -> None:
    rows = [{"dataset": "a", "arm": "b", "seed": 0, "status": "measured", "options": {"seed": 3, "size": 1},
             "metrics": {"size": 2.0, "bad": math.nan}}]
    assert cells.table(rows).columns == ("dataset", "arm", "seed", "seed (option)", "size", "status", "size (metric)")


def test_a_report_written_over_an_older_one_leaves_other_files(known: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    for _ in range(2):
        report.build({"gamma": None}, tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "mine" and not list(tmp_path.rglob("*.part"))


def test_bad_input_is_refused(known: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no method is called 'alhpa'.*alpha"):
        report.build({"alhpa": None}, tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="can't be written"):
        report.build({"gamma": None}, tmp_path / "file")
    known["Up/../per"] = known["gamma"]
    try:
        with pytest.raises(InputError, match="can't name a page"):
            report.build({"Up/../per": None}, tmp_path / "out")
    finally:
        del known["Up/../per"]
    assert not (tmp_path / "out").exists()


# Safety


def test_hostile_text_injects_nothing(site: Path) -> None:
    for name in ("omega.html", "index.html"):
        tags = page(site, name).tags
        scripts = [attributes for tag, attributes in tags if tag == "script"]
        assert all(s.get("src") == "assay.js" or s.get("type") == "application/json" for s in scripts)
        assert not [attributes for _, attributes in tags if any(key.startswith("on") for key in attributes)]
        assert not [attributes for tag, attributes in tags if tag == "img" and attributes.get("src") == "x"]
    assert HOSTILE[:40] in page(site, "omega.html").text
    assert "<script" not in (site / "omega/chart-1.svg").read_text()


def test_a_chart_that_reaches_outside_is_not_drawn() -> None:
    spec = {"title": "t", "data": {"url": "https://example.org/x.csv"}, "mark": "point", "encoding": {}}
    [chart] = charts.charts([spec])
    assert chart.spec is None and chart.svg is None and "outside" in chart.problem


def test_a_chart_that_is_wrong_says_so() -> None:
    [chart] = charts.charts([{"title": "t", "data": {"values": []}, "mark": "no such mark"}])
    assert chart.svg is None and chart.problem


def test_a_chart_loses_what_the_page_gives_and_keeps_the_rest() -> None:
    raw = record()["charts"][0]
    before = json.dumps(raw)
    [chart] = charts.charts([{**raw, "usermeta": {"embedOptions": {"actions": True}}}])
    assert chart.title == raw["title"] and chart.spec["layer"] == raw["layer"]
    assert not {"$schema", "title", "usermeta"} & set(chart.spec) and chart.spec["width"] == "container"
    assert json.dumps(raw) == before


# Words and places

CLAIM_BELOW = Claim("C", "s", "p", "m", "u", "h", "none: no", "ours", threshold=0.0, side="below")


def test_words_never_contradict_the_verdict() -> None:
    """A guard may turn a verdict whose interval is past the threshold: then only the numbers are said."""
    turned = Verdict("C", Outcome.fails, "Brier score is worse", effect=-1.0, low=-2.0, high=-0.5, threshold=0.0, n=50)
    assert wording.side_of(CLAIM_BELOW, turned) == "above"
    unclear = Verdict("C", Outcome.unclear, "", effect=-1.0, low=-2.0, high=-0.5, threshold=0.0, n=50)
    assert wording.side_of(CLAIM_BELOW, unclear) is None
    assert wording.sentence(CLAIM_BELOW, unclear) == "The effect is −1 (−2 to −0.5); the threshold is 0."


@pytest.mark.parametrize(("value", "text"), [
    (0.0, "0"), (-0.0, "0"), (None, "—"), (math.nan, "—"), (math.inf, "—"), (1.0, "1"), (0.99951, "1"),
    (-0.0213, "−0.0213"), (1234567.0, "1,234,567"), (12345678.0, "1.23 × 10⁷"), (-4e-7, "−4 × 10⁻⁷"), (99.96, "100"),
])
def test_numbers_are_short_and_true(value: float | None, text: str) -> None:
    assert wording.number(value) == text


def test_close_numbers_read_differently() -> None:
    assert wording.numbers([0.99999, 1.0, None]) == ["0.99999", "1", "—"]


@pytest.mark.parametrize("side", ["below", "above"])
def test_forest_turns_the_good_side_right(side: str) -> None:
    claim = Claim("C", "s", "p", "m", "u", "h", "none: no", "ours", threshold=1.0, side=side)
    sign = -1.0 if side == "below" else 1.0

    def line(outcome: Outcome, distance: float) -> Verdict:
        low, high = sorted((1 + sign * (distance - 0.5), 1 + sign * (distance + 0.5)))
        return Verdict("C", outcome, "", effect=1 + sign * distance, low=low, high=high, threshold=1.0, n=9)

    chart = forest([("good", claim, line(Outcome.holds, 2.0)), ("bad", claim, line(Outcome.fails, -1.0)),
                    ("open", claim, Verdict("C", Outcome.unclear, "", effect=1.0, threshold=1.0, n=1))])
    good, bad, unbounded = chart.drawn
    assert good.start > 50 and bad.stop < 50
    assert good.point == 50 + 44 * 2 / 2.5 and bad.point == 50 - 44 * 1 / 2.5
    assert unbounded.point == 50 and unbounded.open_start and unbounded.open_stop
    assert [text for _, text in chart.ticks] == [wording.number(1 - sign * 2.5), "1", wording.number(1 + sign * 2.5)]


def test_forest_leaves_out_what_has_no_place() -> None:
    counted = Verdict("C", Outcome.holds, "", n=9)
    assert forest([("a", CLAIM_BELOW, counted), ("b", CLAIM_BELOW, CLAIM_BELOW.untested("no data"))]).drawn == []


def test_parts_of_parts_are_shown_where_they_have_words(known: dict[str, Any]) -> None:
    inner = [verdict("A6", "holds", "Brier score", effect=-0.1, low=-0.2, high=-0.05, n=30), verdict("A6", "fails")]
    nested = [{**verdict("A6", "fails", "letter: two guards"), "parts": inner}, verdict("A6", "unclear", "digits")]
    changed = record()
    changed["verdicts"][5] = {**verdict("A6", "fails", "letter: two guards; digits"), "parts": nested}
    judged = view_of("alpha", changed, ()).judged[5]
    assert [(part.verdict.reason, part.depth) for part in judged.parts] == [
        ("letter: two guards", 0), ("Brier score", 1), ("digits", 0)]
    assert judged.reason == "" and [line is not None for line in judged.forest.lines] == [False, True, False]


# In a real browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Headless Chromium, with a profile of its own."""
    from selenium import webdriver

    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not chromium or not driver:
        pytest.skip("chromium and chromedriver are not installed")
    profile = tempfile.mkdtemp()
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (
        "headless", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-background-networking",
        "disable-component-update", "disable-sync", "disable-dev-shm-usage", "window-size=1280,1000",
        f"user-data-dir={profile}",
    ):
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    options.add_experimental_option("prefs", {"download.default_directory": profile})
    chrome = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    chrome.set_script_timeout(30)
    chrome.downloads = Path(profile)
    yield chrome
    chrome.quit()
    shutil.rmtree(profile, ignore_errors=True)


@pytest.fixture(autouse=True)
def calm(request: pytest.FixtureRequest) -> Iterator[None]:
    """After each test in the browser: the usual window, screen and scripts again."""
    yield
    if "browser" in request.fixturenames:
        chrome = request.getfixturevalue("browser")
        chrome.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})
        chrome.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def visit(browser: Any, path: Path, charts_expected: int = 0) -> None:
    from selenium.webdriver.support.wait import WebDriverWait

    browser.get("about:blank")
    browser.get(path.as_uri() if "#" not in str(path) else Path(str(path).partition("#")[0]).as_uri() + "#"
                + str(path).partition("#")[2])
    count = "return document.querySelectorAll('.drawing svg').length"
    WebDriverWait(browser, 30).until(lambda b: b.execute_script(count) == charts_expected)


def shown_methods(browser: Any) -> list[str]:
    return browser.execute_script(
        "return [...document.querySelectorAll('#methods tbody tr')].filter(r => r.checkVisibility())"
        ".map(r => r.cells[0].dataset.sort)")


def pick(browser: Any, name: str, value: str) -> None:
    browser.execute_script(
        "const f = document.getElementById('filters').elements[arguments[0]]; f.value = arguments[1];"
        "f.dispatchEvent(new Event('input', {bubbles: true}))", name, value)


def phone(browser: Any) -> None:
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride",
                            {"width": 375, "height": 800, "deviceScaleFactor": 2, "mobile": True})


def dark(browser: Any) -> None:
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia",
                            {"features": [{"name": "prefers-color-scheme", "value": "dark"}]})


def axe_source() -> str:
    """The accessibility checks, from whichever package brings them."""
    for package in ("axe_playwright_python", "axe_core_python"):
        spec = importlib.util.find_spec(package)
        if spec and spec.submodule_search_locations:
            return Path(next(iter(spec.submodule_search_locations)), "axe.min.js").read_text(encoding="utf-8")
    pytest.skip("no package that brings axe.min.js is installed: axe-core-python or axe-playwright-python")


@pytest.mark.parametrize("name", ["index.html", "alpha.html", "gamma.html", "omega.html"])
@pytest.mark.parametrize("look", ["light", "dark", "phone"])
def test_axe_finds_nothing(browser: Any, site: Path, name: str, look: str) -> None:
    if look != "light":
        {"dark": dark, "phone": phone}[look](browser)
    visit(browser, site / name, 2 if name in ("alpha.html", "omega.html") else 0)
    browser.execute_script(axe_source())
    found = browser.execute_async_script(
        "const done = arguments[0]; axe.run().then(r => done([r.passes.length, r.violations.map("
        "v => [v.id, v.help, v.nodes.slice(0, 3).map(n => n.html.slice(0, 200))])]))")
    assert found[0] > 15
    assert found[1] == []


def test_opens_from_disk_without_the_network(browser: Any, site: Path) -> None:
    browser.get_log("performance")
    for name in ("index.html", "alpha.html", "omega.html"):
        visit(browser, site / name, 0 if name == "index.html" else 2)
    asked = {
        message["params"]["request"]["url"]
        for entry in browser.get_log("performance")
        if (message := json.loads(entry["message"])["message"])["method"] == "Network.requestWillBeSent"
    }
    assert len(asked) >= 4
    assert {url for url in asked if not url.startswith((site.as_uri(), "about:", "data:", "blob:"))} == set()
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []


def test_hostile_text_runs_nothing(browser: Any, site: Path) -> None:
    for name in ("index.html", "omega.html"):
        visit(browser, site / name, 0 if name == "index.html" else 2)
        assert browser.title != "owned"
    assert browser.execute_script("return document.querySelectorAll('img[src=x]').length") == 0


def test_filters_and_search_narrow_the_table(browser: Any, site: Path) -> None:
    visit(browser, site / "index.html")
    everything = ["alpha", "beta", "gamma", "omega"]
    assert shown_methods(browser) == everything
    for name, value, left in (
        ("area", "science", ["gamma"]), ("task", "forecasting", ["beta"]), ("tier", "full", ["beta"]),
        ("verdict", "unclear", ["alpha", "omega"]), ("query", "robust SHIFTED", ["alpha", "omega"]),
        ("query", "no such thing", []),
    ):
        pick(browser, name, value)
        assert shown_methods(browser) == left, (name, value)
        assert browser.execute_script("return document.getElementById('nothing').hidden") is bool(left)
        pick(browser, name, "")
    assert shown_methods(browser) == everything
    pick(browser, "area", "trust")
    assert browser.current_url.endswith("#area=trust")
    assert "1 of 4 methods" in browser.execute_script("return document.getElementById('shown').value")


def test_a_filtered_page_can_be_linked_to(browser: Any, site: Path) -> None:
    visit(browser, Path(f"{site / 'index.html'}#task=proof"))
    assert shown_methods(browser) == ["gamma"]


def test_the_methods_sort_by_any_column(browser: Any, site: Path) -> None:
    from selenium.webdriver.common.by import By

    visit(browser, site / "index.html")
    heading = browser.find_element(By.XPATH, "//table[@id='methods']//th[.//button[text()='Measured']]")
    heading.find_element(By.TAG_NAME, "button").click()
    assert shown_methods(browser)[0] == "beta" and shown_methods(browser)[-1] == "gamma"
    assert heading.get_attribute("aria-sort") == "ascending"
    heading.find_element(By.TAG_NAME, "button").click()
    assert shown_methods(browser)[-2:] == ["beta", "gamma"] and heading.get_attribute("aria-sort") == "descending"


def test_the_keyboard_reaches_everything(browser: Any, site: Path) -> None:
    """Tab goes from the skip link through filters and headings to the first verdict, whose details open."""
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    visit(browser, site / "index.html")
    passed = []
    for _ in range(24):
        browser.switch_to.active_element.send_keys(Keys.TAB)
        active = browser.switch_to.active_element
        passed.append(active.get_attribute("class") or active.get_attribute("name") or active.text.strip())
        if "tile" in passed:
            break
    assert passed[0] == "skip" and passed[-1] == "tile"
    assert {"query", "area", "task", "verdict", "tier", "Method"} <= set(passed)
    tip = browser.switch_to.active_element.find_element(By.XPATH, "following-sibling::div")
    assert tip.is_displayed()
    browser.switch_to.active_element.send_keys(Keys.ESCAPE)
    assert not tip.is_displayed()
    browser.switch_to.active_element.send_keys(Keys.ENTER)
    assert browser.current_url.endswith("alpha.html#A1")


def cell_rows(browser: Any) -> list[list[str]]:
    return browser.execute_script(
        "return [...document.querySelectorAll('.cells tbody tr')].map(r => [...r.cells].map(c => c.textContent))")


def test_the_cells_sort_filter_and_turn_pages(browser: Any, site: Path) -> None:
    from selenium.webdriver.common.by import By

    visit(browser, site / "alpha.html", 2)
    place = browser.find_element(By.ID, "cell-table")

    def press(text: str) -> None:
        browser.execute_script("arguments[0].click()", place.find_element(By.XPATH, f".//button[text()='{text}']"))

    assert len(cell_rows(browser)) == 50 and "1 to 50 of 123 cells" in place.text
    press("Next")
    press("Next")
    assert len(cell_rows(browser)) == 23
    assert [row[4] for row in cell_rows(browser)[-3:]] == ["failed", "skipped", "blocked"]
    press("ece")
    press("ece")
    assert cell_rows(browser)[0][6] == "0.0219"
    status = place.find_element(By.XPATH, ".//label[contains(., 'Status')]/select")
    status.find_element(By.XPATH, "./option[.='failed']").click()
    assert [row[5] for row in cell_rows(browser)] == ["LinAlgError: singular matrix"]
    place.find_element(By.CSS_SELECTOR, "input[type=search]").send_keys("satimage")
    assert cell_rows(browser) == [] and "No cell fits" in place.text


def test_shown_rows_are_saved_as_csv(browser: Any, site: Path) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.wait import WebDriverWait

    browser.execute_cdp_cmd("Browser.setDownloadBehavior",
                            {"behavior": "allow", "downloadPath": str(browser.downloads)})
    visit(browser, site / "alpha.html", 2)
    browser.find_element(By.CSS_SELECTOR, "#cell-table input[type=search]").send_keys("singular")
    save = browser.find_element(By.XPATH, "//button[text()='Save these rows (CSV)']")
    browser.execute_script("arguments[0].click()", save)
    saved = browser.downloads / "alpha-cells.csv"
    WebDriverWait(browser, 10).until(lambda _: saved.exists() and saved.stat().st_size)
    rows = list(csv.DictReader(saved.open(encoding="utf-8")))
    assert [row["reason"] for row in rows] == ["LinAlgError: singular matrix"]


def test_charts_show_the_record_without_a_menu(browser: Any, site: Path) -> None:
    visit(browser, site / "alpha.html", 2)
    points = "return document.querySelectorAll('.drawing')[0].querySelectorAll('.role-mark.mark-symbol path').length"
    assert browser.execute_script(points) == 9
    assert browser.execute_script("return document.querySelectorAll('.vega-actions, details').length") == 0
    assert browser.execute_script("return typeof window.vegaEmbed") == "function"


@pytest.mark.parametrize("name", ["index.html", "alpha.html", "omega.html"])
def test_a_phone_needs_no_sideways_scrolling(browser: Any, site: Path, name: str) -> None:
    phone(browser)
    visit(browser, site / name, 0 if name == "index.html" else 2)
    width = browser.execute_script("return [document.documentElement.scrollWidth, innerWidth]")
    assert width[0] <= 375 and width[1] == 375


def test_the_dark_page_is_dark(browser: Any, site: Path) -> None:
    visit(browser, site / "index.html")
    shade = "return getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)"
    assert min(browser.execute_script(shade)) > 230
    dark(browser)
    assert max(browser.execute_script(shade)) < 40


def test_without_scripts_the_verdicts_and_drawings_are_there(browser: Any, site: Path) -> None:
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    browser.get((site / "alpha.html").as_uri())
    from selenium.webdriver.common.by import By

    text = browser.find_element(By.TAG_NAME, "main").text
    assert "−0.0123 (−0.0214 to −0.0041)" in text and "the table needs JavaScript" in text
    images = browser.find_elements(By.CSS_SELECTOR, "figure.chart img")
    assert len(images) == 2 and all(image.is_displayed() for image in images)
    browser.get((site / "index.html").as_uri())
    assert len(browser.find_elements(By.CSS_SELECTOR, ".tile")) == 17
    assert not browser.find_element(By.ID, "filters").is_displayed()


def test_prints_in_ink_on_paper(browser: Any, site: Path) -> None:
    dark(browser)
    visit(browser, site / "alpha.html", 2)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia",
                            {"media": "print", "features": [{"name": "prefers-color-scheme", "value": "dark"}]})
    assert browser.execute_script("return getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert browser.execute_script("return document.querySelector('.inpage').checkVisibility()") is False
    assert len(browser.execute_cdp_cmd("Page.printToPDF", {})["data"]) > 50_000
