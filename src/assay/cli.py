"""The `assay` command: thin commands over the catalogue, the runner, the store and the report."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from assay import __version__, catalogue
from assay.errors import AssayError, InputError
from assay.study import Outcome, Tier

if TYPE_CHECKING:
    from assay.runner import Engine, Plan, Report
    from assay.store import Store

__all__ = ["app", "main"]

app = typer.Typer(
    help="The methods of one reading list as working software, each measured beside strong baselines.",
    no_args_is_help=True, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False,
)
data_app = typer.Typer(help="Data sets: what there is, and bringing it here.", no_args_is_help=True)
store_app = typer.Typer(help="The store of measured cells.", no_args_is_help=True)
app.add_typer(data_app, name="data")
app.add_typer(store_app, name="store")

COLOURS = {"holds": "green", "fails": "red", "unclear": "yellow", "untested": "bright_black"}
STOPPED = "stopped; finished cells are kept"
PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; every foreseen error is one line on stderr and exit code 2."""
    try:
        code = app(list(arguments) if arguments is not None else None, standalone_mode=False)
        return _complain(STOPPED, 130) if code == 130 else int(code or 0)
    except (KeyboardInterrupt, typer.Abort):
        return _complain(STOPPED, 130)
    except typer.Exit as stop:  # typer turns an interrupt into Exit(130)
        return _complain(STOPPED, 130) if stop.exit_code == 130 else stop.exit_code
    except AssayError as error:
        return _complain(str(error))
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        return _complain(f"{error.strerror or error}{where}")
    except typer.exceptions.TyperException as error:
        text = error.format_message() if hasattr(error, "format_message") else str(error)
        return _complain(text) if text else 2


def _complain(message: str, code: int = 2) -> int:
    print(f"assay: {' '.join(message.split())}", file=sys.stderr)
    return code


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        print(__version__)
        raise typer.Exit


@app.command("list")
def list_methods(
    area: Annotated[str | None, typer.Option(help="Only this area.")] = None,
    task: Annotated[str | None, typer.Option(help="Only methods for this task.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, for programs.")] = False,
) -> None:
    """The methods: one line each, with the evidence at a glance."""
    found = [
        m for m in catalogue.methods().values()
        if (area is None or m.area == area) and (task is None or task in m.tasks)
    ]
    if not found:
        tasks = sorted({t for m in catalogue.methods().values() for t in m.tasks})
        raise InputError(f"no method matches; areas: {', '.join(catalogue.AREAS)}; tasks: {', '.join(tasks)}")
    if as_json:
        print(json.dumps([_facts(m) for m in found], indent=1))
        return
    from rich.markup import escape
    from rich.table import Table

    table = Table("method", "in your words", "area", "holds/fails/unclear/untested", "needs", box=None, pad_edge=False)
    for m in found:
        counts = _counts(m)
        table.add_row(
            m.slug, escape(m.summary), m.area, " / ".join(f"[{COLOURS[o]}]{n}[/]" for o, n in counts.items()),
            escape(", ".join(f"assay[{extra}]" for extra in m.extras)) or "nothing more",
        )
    _print(table)


def _facts(m: catalogue.Method) -> dict[str, Any]:
    return {
        "slug": m.slug, "title": m.title, "summary": m.summary, "area": m.area, "tasks": list(m.tasks),
        "import": m.import_line, "extras": list(m.extras), "evidence": _counts(m),
        "tier": (m.record or {}).get("tier"), "arxiv": m.paper.arxiv,
    }


def _counts(m: catalogue.Method) -> dict[str, int]:
    outcomes = [str(o) for o in m.outcomes().values()]
    return {str(o): outcomes.count(str(o)) for o in Outcome}


@app.command()
def show(slug: str) -> None:
    """What a method gives, when not to use it, its claims with the recorded verdicts, and how to call it."""
    from rich.markup import escape

    m = catalogue.get(slug)
    record = m.record or {}
    _print(f"[bold]{escape(m.title)}[/]  ({m.slug}, {m.area}, {m.stability})\n")
    _print(escape(m.gives) + "\n")
    _print(f"[bold]Not for:[/] {escape(m.not_for)}\n")
    if record:
        _print(f"[bold]Claims[/], measured {record['measured'][:10]} at the {record['tier']} tier:")
        _print(_claims_table(m, record))
    else:
        _print(f"[bold]Claims[/], not measured yet: assay check {m.slug}")
        for claim in m.claims.values():
            _print(f"  {claim.id}  {escape(claim.statement)}")
    _print("\n[bold]Use it[/]\n")
    _print(_indent(m.usage.strip()), markup=False)
    _print(f"\n  assay run {m.slug} --example", markup=False)
    _print("\n[bold]Paper[/]")
    _print(f"  {m.paper.authors}: {m.paper.title}. {m.paper.venue}. {m.paper.url}", markup=False)


def _indent(text: str) -> str:
    return "\n".join("  " + line for line in text.splitlines())


def _claims_table(m: catalogue.Method, record: dict[str, Any]) -> Any:
    from rich.markup import escape
    from rich.table import Table

    table = Table("", "claim", "the paper", "measured", "verdict", "why", box=None, pad_edge=False)
    further = record.get("further") or {"data": [], "verdicts": []}
    beyond = {verdict["claim"]: verdict["outcome"] for verdict in further["verdicts"]}
    for verdict in record["verdicts"]:
        claim = m.claims.get(verdict["claim"])
        if claim is None:
            continue
        outcome, why = verdict["outcome"], verdict["reason"]
        if beyond.get(claim.id, outcome) != outcome:
            why += f". With {', '.join(further['data'])} as well: {beyond[claim.id]}"
        table.add_row(
            claim.id, escape(claim.statement), escape(claim.paper), _effect(verdict),
            f"[{COLOURS[outcome]}]{outcome}[/]", escape(why),
        )
    return table


def _effect(verdict: dict[str, Any]) -> str:
    if verdict["effect"] is None:
        return ""
    text = f"{verdict['effect']:.3g}"
    if verdict["low"] is not None and verdict["high"] is not None:
        text += f" [{verdict['low']:.3g}, {verdict['high']:.3g}]".replace("[", "\\[")
    return text


@app.command(context_settings=PASS_ON)
def run(context: typer.Context) -> None:
    """Run a method on your data: `assay run SLUG --help` lists its options, `--example` tries it."""
    arguments = list(context.args)
    if not arguments or arguments[0].startswith("-"):
        print("usage: assay run SLUG [OPTIONS]\n\n  assay run SLUG --help      its options\n"
              "  assay run SLUG --example   write an example input and run on it\n\nmethods: "
              + ", ".join(catalogue.methods()))
        return
    slug, *rest = arguments
    command = catalogue.get(slug).command()
    if "--example" in rest:
        rest.remove("--example")
        folder = Path(f"{slug}-example")
        folder.mkdir(exist_ok=True)
        given = [str(word) for word in command.example(folder)]
        print(f"wrote the example into {folder}{os.sep}; running: assay run {slug} {' '.join(given)}\n")
        rest = given + rest
    own = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    own.command(name=slug)(command.run)
    typer.main.get_command(own).main(args=rest, prog_name=f"assay run {slug}", standalone_mode=False)


@app.command()
def check(
    slugs: Annotated[list[str] | None, typer.Argument(help="Methods to measure.")] = None,
    every: Annotated[bool, typer.Option("--all", help="All methods.")] = False,
    tier: Annotated[Tier, typer.Option(help="How much to measure.")] = Tier.quick,
    jobs: Annotated[int, typer.Option(min=1, help="Processes at once.")] = os.cpu_count() or 1,
    dask: Annotated[str | None, typer.Option(metavar="ADDRESS", help="A Dask scheduler to run on.")] = None,
    device: Annotated[str | None, typer.Option(metavar="cpu|cuda", help="Device of the cells.")] = None,
    data: Annotated[Path | None, typer.Option(metavar="FILE", help="Measure on a file of your own.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the cells and stop.")] = False,
    record: Annotated[bool, typer.Option("--record", help="Write record.json into the method's folder.")] = False,
) -> None:
    """Measure a method's claims beside strong baselines, and give a verdict on each."""
    from assay import runner
    from assay.store import Store

    methods = _chosen(slugs or [], every)
    if device not in (None, "cpu", "cuda"):
        raise InputError(f"--device must be cpu or cuda, got {device!r}")
    if data is not None and not data.is_file():
        raise InputError(f"{data}: no such file")
    if data is not None and record:
        raise InputError("--record keeps the study's own data; leave out --data")
    with Store() as store:
        if store.set_aside:
            print(f"the store was damaged: kept aside as {store.set_aside}, begun anew", file=sys.stderr)
        plans = [runner.plan(m, tier, store, data_file=data, device=device) for m in methods]
        if dry_run:
            _show_plan(plans, store, jobs)
            return
        for report in _measure(plans, store, jobs, dask):
            _show_report(report)
            _keep(report, record, own_data=data is not None)


def _chosen(slugs: list[str], every: bool) -> list[catalogue.Method]:
    if every == bool(slugs):
        raise InputError("name the methods to check, or pass --all")
    return list(catalogue.methods().values()) if every else [catalogue.get(slug) for slug in dict.fromkeys(slugs)]


def _measure(plans: list[Plan], store: Store, jobs: int, dask: str | None) -> list[Report]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    from assay import runner

    def engine(tasks: int) -> Engine:
        return runner.DaskEngine(dask) if dask else runner.LocalEngine(min(jobs, tasks))

    kept = sum(len(p.kept) for p in plans)
    if kept:
        print(f"{kept} cells are kept from earlier runs", file=sys.stderr)
    columns = (
        TextColumn("measuring"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("left"),
        TimeRemainingColumn(), TextColumn("{task.description}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("", total=None)

        def watch(event: str, label: str, total: int) -> None:
            progress.update(bar, total=total, description=label[:60], advance=float(event == "done"))
            if event == "done" and progress.tasks[0].completed >= total:
                progress.reset(bar)

        return list(runner.check(plans, store, engine, watch=watch))


def _show_plan(plans: list[Plan], store: Store, jobs: int) -> None:
    known, unknown = 0.0, 0
    for p in plans:
        for cell in p.cells:
            state = "kept" if cell in p.kept else "to do"
            before = store.seconds(p.method.slug, cell)
            if cell not in p.kept:
                known, unknown = known + (before or 0.0), unknown + (before is None)
            took = "" if before is None else f"  ({before:.1f} s last time)"
            print(f"{p.method.slug}  {state:5}  {cell.label()}{took}")
    more = f", and {unknown} cells never measured here" if unknown else ""
    print(f"about {known / jobs:.0f} s on {jobs} processes{more}")


def _show_report(report: Report) -> None:
    from rich.markup import escape

    _print(f"\n[bold]{report.method.slug}[/]  {escape(report.method.summary)}")
    _print(_claims_table(report.method, report.record))
    lost: dict[tuple[str, str, str], list[str]] = {}
    for row in report.results:
        if row.status != "measured":
            lost.setdefault((row.cell.dataset, row.status, row.reason), []).append(row.cell.arm)
    for (dataset, status, reason), arms in lost.items():
        names = ", ".join(dict.fromkeys(arms))
        _print(f"  [bright_black]{escape(f'{dataset} ({names}): {status}, {reason}')}[/]")


def _keep(report: Report, record: bool, own_data: bool) -> None:
    """Keep the record where the report looks; in the method's folder too when asked to."""
    from assay.store import home

    text = record_text(report.record)
    slug = report.method.slug
    _write(home() / "records" / (f"{slug}-own-data.json" if own_data else f"{slug}.json"), text)
    if record:
        before = (report.method.record or {}).get("tier")
        if before and Tier(before).rank > Tier(report.record["tier"]).rank:
            print(f"{slug}: the record of the {before} tier stays; a lower tier does not replace it", file=sys.stderr)
        else:
            _write(report.method.folder / "record.json", text)


def record_text(record: dict[str, Any]) -> str:
    """A record as JSON with one entry of a list a line: small, and a change shows as the lines it changes."""

    def compact(value: Any) -> str:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))

    def field(value: Any) -> str:
        if isinstance(value, list) and value:
            return "[\n  " + ",\n  ".join(compact(entry) for entry in value) + "\n ]"
        return compact(value)

    return "{\n " + ",\n ".join(f"{compact(name)}: {field(value)}" for name, value in record.items()) + "\n}\n"


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}.part")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


@app.command()
def report(
    out: Annotated[Path, typer.Option("-o", "--out", help="Folder of the site.")] = Path("report"),
    open_it: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
) -> None:
    """Write the static site: every method's claims, verdicts, charts and raw cells."""
    from assay import report as site
    from assay.fingerprint import code_hash

    records = {slug: _newest(m) for slug, m in catalogue.methods().items()}
    stale = {
        slug for slug, kept in records.items() if kept and kept["code"] != code_hash(catalogue.get(slug).package)
    }
    index = site.build(records, out, stale=stale)
    print(f"wrote {index}")
    if open_it:
        import webbrowser

        webbrowser.open(index.resolve().as_uri())


def _newest(m: catalogue.Method) -> dict[str, Any] | None:
    """The record to show: the last one measured here unless the shipped one is of a higher tier or newer."""
    from assay.store import home

    path = home() / "records" / f"{m.slug}.json"
    own = json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
    known = [kept for kept in (m.record, own) if kept]
    return max(known, key=lambda kept: (Tier(kept["tier"]).rank, kept["measured"]), default=None)


@app.command()
def compare(first: Path, second: Path) -> None:
    """Compare two records of a method, claim by claim."""
    from rich.table import Table

    a, b = _read_record(first), _read_record(second)
    if a["slug"] != b["slug"]:
        raise InputError(f"{first} is a record of {a['slug']}, {second} one of {b['slug']}")
    table = Table("claim", str(first), str(second), "", box=None, pad_edge=False)
    before = {v["claim"]: v for v in a["verdicts"]}
    after = {v["claim"]: v for v in b["verdicts"]}
    for claim in dict.fromkeys([*before, *after]):
        cells = [f"{v['outcome']} {_effect(v)}" if (v := side.get(claim)) else "absent" for side in (before, after)]
        outcomes = {side[claim]["outcome"] if claim in side else "absent" for side in (before, after)}
        table.add_row(claim, *cells, "" if len(outcomes) == 1 else "[bold]differs[/]")
    _print(table)


def _read_record(path: Path) -> dict[str, Any]:
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        kept["slug"], kept["verdicts"]
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (ValueError, KeyError, TypeError, OSError):
        raise InputError(f"{path}: not a record.json of assay") from None
    return kept


@app.command()
def cite(slug: str) -> None:
    """BibTeX of a method's paper."""
    m = catalogue.get(slug)
    print(m.paper.bibtex(m.slug))


@app.command()
def new(
    place: Annotated[str, typer.Argument(metavar="AREA/SLUG")],
    kind: Annotated[str, typer.Option(help=f"One of {', '.join(catalogue.KINDS)}.")] = "estimator",
    root: Annotated[Path, typer.Option(help="The repository.")] = Path("."),
) -> None:
    """Write the folder of a new method: a skeleton that already passes the conformance checks."""
    from assay.skeleton import write_skeleton

    area, slash, slug = place.partition("/")
    if not slash or area not in catalogue.AREAS:
        raise InputError(f"expected AREA/SLUG with an area of {', '.join(catalogue.AREAS)}, got {place!r}")
    for path in write_skeleton(root, area, slug, kind):
        print(path)


@data_app.command("list")
def data_list() -> None:
    """Every data set by name: where it comes from, its licence, and whether it is here."""
    from rich.table import Table

    from assay import datasets

    table = Table("data set", "what", "source", "licence", "here", box=None, pad_edge=False)
    for name, what in datasets.registry().items():
        table.add_row(name, what.title, what.wheel or what.kind, what.licence, _here(name, what.kind))
    _print(table)


def _here(name: str, kind: str) -> str:
    from assay import datasets
    from assay.errors import DataUnavailable

    if kind == "dependency":
        return "yes"
    try:
        return "yes" if datasets.local_file(name) else "no"
    except DataUnavailable:
        return "damaged"


@data_app.command("fetch")
def data_fetch(
    names: Annotated[list[str] | None, typer.Argument()] = None,
    home: Annotated[bool, typer.Option("--home", help="All sets that a fresh machine can have.")] = False,
) -> None:
    """Bring data sets here. With `--home`, one that can't be reached is named and passed over."""
    from assay import datasets
    from assay.errors import DataUnavailable

    if home == bool(names):
        raise InputError("name the data sets to fetch, or pass --home")
    wanted = [s.name for s in datasets.home_sets() if s.kind != "dependency"] if home else names or []
    for name in wanted:
        try:
            datasets.fetch(name)
            print(f"{name}: here")
        except DataUnavailable as error:
            if not home:
                raise
            print(f"{name}: not reached ({error})", file=sys.stderr)


@store_app.command("merge")
def store_merge(file: Path) -> None:
    """Take over the cells that another machine measured, from its store's file."""
    from assay.store import Store

    with Store() as store:
        print(f"{store.merge(file)} new cells")


def _print(what: Any, markup: bool = True) -> None:
    from rich.console import Console

    width = None if sys.stdout.isatty() else 160
    Console(width=width, highlight=False, soft_wrap=isinstance(what, str)).print(what, markup=markup)


if __name__ == "__main__":
    sys.exit(main())
