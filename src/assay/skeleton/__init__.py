"""`assay new AREA/SLUG --kind K`: a folder, a test file and a benchmark that pass every check from the first minute.

Each kind comes with a small real method of its own (ridge regression, conjugate gradients, Gibbs sampling ...),
measured on real data and documented as the thing to replace. The templates lie beside this module as text:
those of `common` serve every kind that has none of its own by the same name.
"""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from string import Template
from typing import Any

from assay.catalogue import AREAS, KINDS
from assay.errors import InputError, nearest

__all__ = ["write_skeleton"]

TEMPLATES = Path(__file__).parent / "templates"
SLICE_ROWS = 160
FILES = ("__init__.py", "card.toml", "data.toml", "study.py", "command.py", "conformance.py", "README.md")
# A function named as its folder would be hidden by it: the area holds the folder as a module of that name.
VERBS = {"function": "apply", "solver": "solve", "hook": "attach", "tool": "ask"}

_DEFAULTS = {
    "statement": "It predicts unseen rows better than their mean does",
    "measured": "difference of absolute errors, in standard deviations, paired by row",
    "unit": "row, its error averaged over the splits that hold it out",
    "home": "the diabetes patients decide it",
}


def write_skeleton(root: Path, area: str, slug: str, kind: str) -> list[Path]:
    """Write a method's folder, its test file and its benchmark.

    Parameters
    ----------
    root : Path
        The repository: the folder goes below `src/assay`, beside it lie `tests` and `benchmarks`.
    area : str
        One of `assay.catalogue.AREAS`.
    slug : str
        The method's name in small letters, with dashes.
    kind : str
        One of `assay.catalogue.KINDS`.

    Returns
    -------
    list of Path
        The files written.

    Raises
    ------
    InputError
        An area, slug or kind that can't be, or a folder that is there already. Then nothing is written.
    """
    _check(area, slug, kind)
    folder = root / "src" / "assay" / area / slug.replace("-", "_")
    if folder.exists():
        raise InputError(f"{folder} is there already")
    files = _files(root, folder, area, slug, kind)
    taken = [path for path in files if path.exists()]
    if taken:
        raise InputError(f"{taken[0]} is there already")
    try:
        for path, text in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"{root}: can't be written ({error.strerror})") from None
    return list(files)


def _check(area: str, slug: str, kind: str) -> None:
    for what, value, known in (("area", area, AREAS), ("kind", kind, KINDS)):
        if value not in known:
            raise InputError(f"no {what} is called {value!r}{nearest(value, list(known))}; one of {', '.join(known)}")
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", slug):
        raise InputError(f"a slug has small letters, digits and single dashes, and begins with a letter; got {slug!r}")


def _files(root: Path, folder: Path, area: str, slug: str, kind: str) -> dict[Path, str]:
    """Every file with its text."""
    facts = tomllib.loads((TEMPLATES / kind / "facts.toml").read_text(encoding="utf-8"))
    rows = _slice() if kind != "tool" else ""
    words = _words(facts, area, slug, kind, rows)

    def text(name: str) -> str:
        own = TEMPLATES / kind / f"{name}.txt"
        path = own if own.exists() else TEMPLATES / "common" / f"{name}.txt"
        return Template(path.read_text(encoding="utf-8")).substitute(words)

    files = {folder / name: text(name) for name in (*FILES, "arms.py")}
    files[folder / f"{facts['module']}.py"] = text("method.py")
    if rows:
        files |= {folder / name: text(name) for name in ("data.py", "baselines.py")}
        files[folder / "rows.csv"] = rows
    files[root / "tests" / area / f"test_{folder.name}.py"] = text("test.py")
    files[root / "benchmarks" / f"bench_{folder.name}.py"] = text("bench.py")
    return files


def _words(facts: Mapping[str, Any], area: str, slug: str, kind: str, rows: str) -> dict[str, str]:
    """What the templates' names stand for; the facts of a kind may use the other words."""
    snake = slug.replace("-", "_")
    camel = "".join(part.capitalize() for part in slug.split("-"))
    words = {
        "slug": slug, "area": area, "kind": kind, "package": f"assay.{area}.{snake}",
        "name": f"{VERBS[kind]}_{snake}" if kind in VERBS else camel, "study": f"{camel}Study",
        "sha256": hashlib.sha256(rows.encode()).hexdigest(), "extras": str(list(facts["extras"])).replace("'", '"'),
    }
    plain = {**_DEFAULTS, **{key: value for key, value in facts.items() if isinstance(value, str)}}
    words |= {key: Template(value).substitute(words) for key, value in plain.items()}
    for part in ("oracles", "readme"):
        path = TEMPLATES / kind / f"{part}.txt"
        content = path.read_text(encoding="utf-8") if path.exists() else ""
        words[part] = Template(content).substitute(words).removesuffix("\n")
    words["test_imports"] = _sorted_imports({f"assay.{area}": words["name"], "assay.errors": "InputError"})
    words["bench_imports"] = _sorted_imports(
        {"assay.datasets": "load_dataset", f"{words['package']}.arms": "ARMS", f"{words['package']}.data": "split"}
    )
    return words


def _sorted_imports(names: Mapping[str, str]) -> str:
    """Import lines in a linter's order, whichever the area."""
    return "\n".join(f"from {module} import {names[module]}" for module in sorted(names))


def _slice() -> str:
    """The first patients of the diabetes set, as CSV."""
    from sklearn.datasets import load_diabetes

    return load_diabetes(as_frame=True, scaled=False).frame.head(SLICE_ROWS).to_csv(index=False, lineterminator="\n")
