"""`assay run sos-prover`: prove the inequalities of a table, or check certificates again."""

from __future__ import annotations

import csv
import json
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from assay.errors import InputError
from assay.outputs import write_folder

CHECK_SECONDS = 300.0
SHOWN = 80
"""Characters of a polynomial on the screen."""


def run(
    data: Annotated[
        Path | None,
        typer.Option(help="CSV with the columns name, poly and, where wanted, constraints (g >= 0, split by ;)."),
    ] = None,
    verify: Annotated[
        Path | None, typer.Option(help="A folder of certificates (.json) to check again instead.")
    ] = None,
    timeout: Annotated[float, typer.Option(help="Seconds for each inequality.")] = 60.0,
    degree: Annotated[int | None, typer.Option(help="Largest degree of the terms of an identity.")] = None,
    solver: Annotated[str, typer.Option(help="CLARABEL or SCS.")] = "CLARABEL",
    out: Annotated[Path, typer.Option(help="Folder for the certificates (.json, .lean, .v) and report.json.")] = Path(
        "certs"
    ),
) -> None:
    """Prove that polynomials are nonnegative, with certificates; or check certificates with the independent checker."""
    if (data is None) == (verify is None):
        raise InputError("give either --data, a table of inequalities, or --verify, a folder of certificates")
    if verify is not None:
        _verify(verify)
    elif data is not None:
        if out.exists() and not out.is_dir():
            raise InputError(f"--out: {out} is a file, a folder is needed")
        _prove(data, out, {"timeout": timeout, "degree": degree, "solver": solver})


def example(folder: Path) -> list[str]:
    """Write four classic inequalities, one of them on an interval, into the folder; the arguments that prove them."""
    from assay.science.sos_prover.classics import classic

    path = folder / "ineqs.csv"
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(["name", "poly", "constraints"])
        for name in ("parrilo", "motzkin", "vasc", "chebyshev-cubic"):
            inequality = classic(name)
            writer.writerow([name, inequality.text, "; ".join(inequality.constraints)])
    return ["--data", str(path), "--out", str(folder / "certs")]


def _prove(data: Path, out: Path, options: dict[str, Any]) -> None:
    """Everything is read and proved first, and written last."""
    files: dict[str, str] = {}
    report = []
    for name, p, constraints in _read_table(data):
        try:
            entry, certificate = _answer(name, p, constraints, options)
        except InputError as error:
            raise InputError(f"{data.name}, {name}: {error}") from None
        report.append(entry)
        typer.echo(f"{name:<24} {_summary(entry)}")
        if certificate is not None:
            theorem = _theorem(name)
            files |= {
                f"{name}.json": certificate.to_json(), f"{name}.lean": certificate.to_lean(theorem),
                f"{name}.v": certificate.to_coq(theorem),
            }
    files["report.json"] = json.dumps(report, indent=1) + "\n"
    write_folder(out, files)
    proved = sum(entry["status"] == "proved" for entry in report)
    typer.echo(f"{proved} of {len(report)} proved; certificates and report.json in {out}")


def _theorem(name: str) -> str:
    return "t_" + re.sub(r"\W", "_", name, flags=re.ASCII)


def _answer(name: str, p: Any, constraints: list[Any], options: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    from assay.science.sos_prover.outcomes import NotNonnegative, Undecided
    from assay.science.sos_prover.prove import prove_nonneg

    start = time.perf_counter()
    entry: dict[str, Any] = {"name": name, "poly": str(p), "constraints": [str(g) for g in constraints]}
    certificate = None
    try:
        certificate = prove_nonneg(p, constraints=constraints, **options)
        entry |= {
            "status": "proved", "kind": certificate.kind, "N": certificate.basis_size, "rank": certificate.rank,
            "bits": certificate.bits,
        }
    except NotNonnegative as answer:
        entry |= {"status": "negative", "point": [str(x) for x in answer.point], "value": str(answer.value)}
    except Undecided as answer:
        entry |= {"status": "undecided", "reason": answer.reason, "degree": answer.degree}
    return {**entry, "seconds": round(time.perf_counter() - start, 3)}, certificate


def _summary(entry: dict[str, Any]) -> str:
    if entry["status"] == "proved":
        return f"proved ({entry['kind']}): {entry['rank']} squares over {entry['N']} monomials, {entry['bits']} bits"
    if entry["status"] == "negative":
        return f"negative: {entry['value']} at ({', '.join(entry['point'])})"
    return f"undecided at degree {entry['degree']}: {entry['reason']}"


def _read_table(path: Path) -> list[tuple[str, Any, list[Any]]]:
    """Name, polynomial and constraints of each row; every row is read before any is proved."""
    rows = _rows(path)
    read: list[tuple[str, Any, list[Any]]] = []
    seen: set[str] = set()
    for line, row in rows:
        where = f"{path.name}, line {line}"
        name, text = (row.get("name") or "").strip(), (row.get("poly") or "").strip()
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
            raise InputError(f"{where}: the name {name!r} can't be a file name: letters, digits, dots and dashes")
        if name.lower() in seen | {"report"}:
            raise InputError(f"{where}: the name {name!r} is taken")
        if not text:
            raise InputError(f"{where}: the column poly is empty")
        seen.add(name.lower())
        parts = [part.strip() for part in (row.get("constraints") or "").split(";") if part.strip()]
        read.append((name, *_polynomials(where, text, parts)))
    return read


def _rows(path: Path) -> list[tuple[int, dict[str, Any]]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            reader = csv.DictReader(stream, strict=True)
            rows = [(reader.line_num, row) for row in reader]
            columns = reader.fieldnames or []
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"{path.name or path}: can't be read as a CSV table ({reason})") from None
    missing = [name for name in ("name", "poly") if name not in columns]
    if missing:
        raise InputError(f"{path.name}: the column {missing[0]} is missing; name, poly and constraints are expected")
    if not rows:
        raise InputError(f"{path.name}: no rows below the header")
    long = next((line for line, row in rows if None in row), None)
    if long is not None:
        raise InputError(f"{path.name}, line {long}: more fields than columns; quote a field that holds a comma")
    return rows


def _polynomials(where: str, text: str, constraints: list[str]) -> tuple[Any, list[Any]]:
    """Over the variables of all of them."""
    from assay.science.sos_prover.polynomials import as_polynomial

    polynomials = [as_polynomial(text, what=f"{where}: poly")]
    polynomials += [as_polynomial(g, what=f"{where}: constraint {k}") for k, g in enumerate(constraints, 1)]
    gens = tuple(dict.fromkeys(name for q in polynomials for name in q.gens))
    p, *sides = (as_polynomial(q, gens) for q in polynomials)
    return p, sides


def _verify(folder: Path) -> None:
    """Every certificate by the independent checker; its Coq and Lean forms where the tools are installed."""
    from assay.science.sos_prover.certificates import Certificate
    from assay.science.sos_prover.checker import check_certificate

    paths = sorted(path for path in folder.glob("*.json") if path.name != "report.json")
    if not paths:
        raise InputError(f"--verify: {folder} holds no certificate (.json)")
    wrong = []
    for path in paths:
        try:
            text = path.read_text(encoding="utf-8")
            report = check_certificate(text)
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{path.name}: can't be read ({error})") from None
        answers = [f"exact, {report.squares} squares: {report.claim}" if report.ok else f"WRONG: {report.reason}"]
        if report.ok:
            answers += _statement(Certificate.from_json(text))
        refused = not report.ok
        theorem = _theorem(path.stem)
        for tool, suffix in (("coqc", ".v"), ("lean", ".lean")) if report.ok else ():
            source = path.with_suffix(suffix)
            if not source.exists():
                continue
            certificate = Certificate.from_json(text)
            expected = certificate.to_coq(theorem) if suffix == ".v" else certificate.to_lean(theorem)
            if source.read_text(encoding="utf-8", errors="replace") != expected:
                answers.append(f"{source.name} is NOT what this certificate gives")
                refused = True
                continue
            accepted = _assistant(tool, source)
            if accepted is not None:
                answers.append(f"{tool} {'accepts' if accepted else 'REFUSES'} it")
                refused = refused or not accepted
        typer.echo(f"{path.stem:<24} {'; '.join(answers)}")
        wrong += [path.name] if refused else []
    if wrong:
        raise InputError(f"{len(wrong)} of {len(paths)} certificates are wrong: {', '.join(wrong[:5])}")
    typer.echo(f"{len(paths)} certificates, all exact")


def _statement(certificate: Any) -> list[str]:
    """What p and the constraints are: an exact proof of something else would not help."""
    statements = [f"p = {certificate.p}", *(f"{part.constraint} >= 0" for part in certificate.constraint_squares)]
    return [text if len(text) <= SHOWN else f"{text[:SHOWN]} ..." for text in statements]


def _assistant(tool: str, source: Path) -> bool | None:
    """Whether a proof assistant accepts a file; None where it is not installed, the file absent, or time is up."""
    program = shutil.which(tool)
    if program is None or not source.exists():
        return None
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        copy = Path(folder) / f"certificate{source.suffix}"
        copy.write_bytes(source.read_bytes())
        try:
            done = subprocess.run(
                [program, copy.name], cwd=folder, capture_output=True, timeout=CHECK_SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            return None
    return done.returncode == 0
