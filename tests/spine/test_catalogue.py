"""The catalogue: what a card must hold, what it says when it does not, and that reading it imports nothing."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest

from assay import catalogue
from assay._lazy import attach, attach_area
from assay.catalogue import Paper, get, methods, read_card
from assay.errors import CardError, InputError, MissingExtra
from assay.study import Outcome
from tests_support import toy_environment

CARD = """
slug = "mine"
title = "A method"
summary = "do the thing"
area = "trust"
tasks = ["testing"]
public = ["Thing"]
gives = "The thing."
not_for = "Anything else."
usage = "Thing().fit(x)"
arm = "mine"

[kinds]
Thing = "estimator"

[paper]
title = "On things"
authors = "A. Uthor, B. Uthor"
year = 2026
venue = "ICML 2026"
arxiv = "2601.00001"

[[claims]]
id = "C1"
statement = "it is better"
paper = "by a lot"
measured = "difference"
unit = "row"
home = "decides it"
control = "noop"

[claims.limits]
margin = 0.1
"""

HEAVY = {"torch", "sklearn", "pandas", "pydantic", "scipy", "transformers"}


def card(folder: Path, text: str = CARD) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "card.toml").write_text(text, encoding="utf-8")
    return folder


def test_a_card_becomes_a_method(tmp_path):
    method = read_card(card(tmp_path), "assay.trust.mine")
    claim = method.claims["C1"]
    assert (method.slug, method.tasks, method.stability, method.extras) == ("mine", ("testing",), "preview", ())
    assert (claim.arm, claim.side, claim.limits["margin"]) == ("mine", "below", 0.1)
    assert method.import_line == "from assay.trust import Thing"
    assert read_card(tmp_path, "elsewhere.mine").import_line == "from elsewhere.mine import Thing"


FACTS = tomllib.loads(CARD)


@pytest.mark.parametrize("name", [n for n in FACTS if n not in ("claims", "paper")])
def test_a_missing_field_names_file_and_field(tmp_path, name):
    text = CARD.replace('[kinds]\nThing = "estimator"\n', "") if name == "kinds" else _without(name, CARD)
    with pytest.raises(CardError) as caught:
        read_card(card(tmp_path, text), "p")
    assert str(caught.value) == f"{tmp_path / 'card.toml'}: the field {name} is missing"


def _without(name: str, text: str) -> str:
    """The card without the first line that sets the field."""
    lines = text.splitlines()
    del lines[next(i for i, line in enumerate(lines) if line.startswith(f"{name} = "))]
    return "\n".join(lines)


@pytest.mark.parametrize("name", ["title", "authors", "year", "venue"])
def test_a_missing_field_of_the_paper_names_file_and_field(tmp_path, name):
    head, paper = CARD.split("[paper]")
    with pytest.raises(CardError) as caught:
        read_card(card(tmp_path, f"{head}[paper]{_without(name, paper)}"), "p")
    assert str(caught.value) == f"{tmp_path / 'card.toml'}: paper: the field {name} is missing"


@pytest.mark.parametrize("name", ["id", "statement", "paper", "measured", "unit", "home", "control"])
def test_a_missing_field_of_a_claim_names_file_claim_and_field(tmp_path, name):
    head, claim = CARD.split("[[claims]]")
    with pytest.raises(CardError) as caught:
        read_card(card(tmp_path, f"{head}[[claims]]{_without(name, claim)}"), "p")
    assert str(caught.value) == f"{tmp_path / 'card.toml'}: claim 1: the field {name} is missing"


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ('area = "trust"', 'area = "trusst"', "area must be one of scaling, "),
        ('Thing = "estimator"', 'Thing = "estimate"', "kinds: estimate is none of estimator, law"),
        ('Thing = "estimator"', 'Other = "estimator"', "kinds gives none for Thing"),
        ('arm = "mine"', 'arm = "mine"\nstability = "solid"', "stability must be one of stable, preview"),
        ('arm = "mine"', 'arm = "mine"\ntask = ["x"]', "there is no field task (did you mean tasks?)"),
        ('arm = "mine"', 'arm = "mine"\nspeed_target = "5"', "the field speed_target must be a number, got '5'"),
        ('tasks = ["testing"]', 'tasks = "testing"', "the field tasks must be a list of texts"),
        ("year = 2026", 'year = "2026"', "paper: the field year must be a whole number, got '2026'"),
        ('control = "noop"', 'control = "noop"\nside = "left"', "claim 1: the field side must be above or below"),
        ('control = "noop"', 'control = "noop"\nthreshold = "0"', "claim 1: the field threshold must be a number"),
        ('control = "noop"', 'control = "noop"\nthresold = 0', "claim 1: there is no field thresold"),
        ("margin = 0.1", 'margin = "0.1"', "claim 1: the field limits must be a table"),
        ("[[claims]]", "[claims]", "the field claims must be a list of tables"),
        ('slug = "mine"', "slug = mine", "Invalid value"),
    ],
)
def test_a_wrong_field_names_file_and_field(tmp_path, before, after, words):
    text = CARD.replace(before, after)
    with pytest.raises(CardError) as caught:
        read_card(card(tmp_path, text), "p")
    assert str(caught.value).startswith(f"{tmp_path / 'card.toml'}: ") and words in str(caught.value)


def test_two_claims_of_one_id_and_an_absent_card_are_refused(tmp_path):
    claim = CARD[CARD.index("[[claims]]"):]
    with pytest.raises(CardError, match="claim 2: the id C1 stands twice"):
        read_card(card(tmp_path, CARD + claim), "p")
    with pytest.raises(CardError, match=r"card\.toml"):
        read_card(tmp_path / "nowhere", "p")
    with pytest.raises(CardError, match=r"README\.md"):
        _ = read_card(card(tmp_path), "p").readme


def test_a_record_gives_the_outcomes(tmp_path):
    method = read_card(card(tmp_path), "p")
    assert method.record is None and method.outcomes() == {"C1": Outcome.untested}
    (tmp_path / "record.json").write_text(json.dumps({"verdicts": [{"claim": "C1", "outcome": "fails"}]}))
    assert read_card(tmp_path, "p").outcomes() == {"C1": Outcome.fails}
    (tmp_path / "record.json").write_text("{")
    with pytest.raises(CardError, match=r"record\.json: not valid JSON"):
        read_card(tmp_path, "p").outcomes()


def test_an_unknown_slug_suggests_the_nearest(tmp_path, monkeypatch):
    monkeypatch.setattr(catalogue, "_folders", lambda: [(card(tmp_path), "p")])
    monkeypatch.setattr(catalogue, "methods", methods.__wrapped__)
    with pytest.raises(InputError, match=r"no method is called 'mime' \(did you mean mine\?\); `assay list`"):
        get("mime")
    assert get("mine").title == "A method"


def test_a_slug_belongs_to_one_folder(tmp_path, monkeypatch):
    folders = [(card(tmp_path / "one"), "p"), (card(tmp_path / "two"), "q")]
    monkeypatch.setattr(catalogue, "_folders", lambda: folders)
    with pytest.raises(CardError, match="the slug mine belongs to"):
        methods.__wrapped__()


def test_a_missing_package_names_the_method_and_the_extra(tmp_path, monkeypatch):
    package = tmp_path / "third_party_mine"
    card(package, CARD.replace('arm = "mine"', 'arm = "mine"\nextras = ["science"]'))
    (package / "__init__.py").touch()
    (package / "study.py").write_text("import no_such_package.part\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    method = read_card(package, "third_party_mine")
    with pytest.raises(MissingExtra, match=r'mine needs the package no_such_package.*pip install "assay\[science\]"'):
        method.study()
    with pytest.raises(CardError, match=r"command\.py is missing"):
        method.command()
    (package / "command.py").write_text("import third_party_mine.gone\n")
    with pytest.raises(ModuleNotFoundError, match=r"third_party_mine\.gone"):
        method.command()


def test_the_citation_has_authors_year_and_eprint():
    text = Paper("On things", "A. Uthor, B. Uthor", 2026, "ICML 2026", "2601.00001").bibtex("mine")
    assert text.startswith("@inproceedings{mine,\n") and "{A. Uthor and B. Uthor}" in text and "{{On things}}" in text
    assert "{2601.00001}" in text and "eprint" not in Paper("T", "A", 2026, "V").bibtex("k")
    assert Paper("T", "A", 2026, "V", "2601.1").url == "https://arxiv.org/abs/2601.1"


def run(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False, timeout=120,
        env=toy_environment("", False) | environment,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "work",
    [
        "",
        "import assay.catalogue; assay.catalogue.methods()",
        "import assay.catalogue as c; [(m.outcomes(), m.readme, m.paper.url) for m in c.methods().values()]",
        "import assay.trust, assay.scaling, assay.inference, assay.science, assay.training; dir(assay.trust)",
        "import assay.datasets; assay.datasets.registry()",
    ],
    ids=["import assay", "methods", "records and pages", "areas", "data sets"],
)
def test_reading_the_catalogue_imports_no_heavy_library(work):
    loaded = set(run(f"import sys, assay\n{work}\nprint(*{{name.partition('.')[0] for name in sys.modules}})").split())
    assert not loaded & HEAVY


def test_reading_the_catalogue_imports_no_method():
    code = """
        import sys
        from assay.catalogue import methods
        packages = {m.package for m in methods().values()}
        print(*packages & set(sys.modules))
    """
    assert run(code).split() == []


def test_a_third_party_method_comes_through_an_entry_point(tmp_path):
    code = """
        from assay.catalogue import get, methods
        toy = get("toy")
        print(toy.package, toy.import_line.split()[1], type(toy.study()).__module__)
    """
    assert run(code, **toy_environment(tmp_path)).split() == ["toy_method", "toy_method", "toy_method.study"]


def test_an_entry_point_without_its_package_is_named(tmp_path):
    facts = tmp_path / "lost-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Name: lost\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text("[assay.methods]\nlost = lost.method\n")
    code = """
        from assay.catalogue import methods
        from assay.errors import CardError
        try:
            methods()
        except CardError as error:
            print(error)
    """
    environment = toy_environment(tmp_path, toy=False)
    paths = f"{tmp_path}:{environment.get('PYTHONPATH', '')}"
    assert "entry point lost of assay.methods: there is no package lost.method" in run(code, PYTHONPATH=paths)


def test_attached_names_import_their_module_when_used(tmp_path, monkeypatch):
    package = tmp_path / "lazy_package"
    package.mkdir()
    (package / "__init__.py").write_text(
        "from assay._lazy import attach\n"
        "__getattr__, __dir__, __all__ = attach(__name__, {'one': ['One', 'uno'], 'two': ['Two']})\n"
    )
    (package / "one.py").write_text("One, uno = 1, 'uno'\n")
    (package / "two.py").write_text("raise ImportError('two is broken')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import lazy_package

    assert dir(lazy_package) == lazy_package.__all__ == ["One", "Two", "uno"]
    assert "lazy_package.one" not in sys.modules
    assert lazy_package.One == 1 and "One" in vars(lazy_package)
    with pytest.raises(AttributeError, match="module 'lazy_package' has no attribute 'Three'"):
        _ = lazy_package.Three
    with pytest.raises(ImportError, match="two is broken"):
        _ = lazy_package.Two


def test_an_area_hands_on_what_its_cards_name(tmp_path):
    card(tmp_path / "mine")
    _, names, public = attach_area("assay.nowhere", str(tmp_path), {"fit": ["Law"]})
    assert names() == public == ["Law", "Thing"]
    card(tmp_path / "broken", "slug = ")
    with pytest.raises(CardError, match=r"broken.card\.toml"):
        attach_area("assay.nowhere", str(tmp_path))
    get_name, _, _ = attach("assay.nowhere", {})
    with pytest.raises(AttributeError):
        get_name("Thing")


def test_every_public_name_of_every_method_is_handed_on_by_its_area():
    import importlib

    for method in methods().values():
        area = importlib.import_module(f"assay.{method.area}")
        assert set(method.public) <= set(area.__all__), method.slug
