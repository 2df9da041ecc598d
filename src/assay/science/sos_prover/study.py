"""The evidence for the prover: classic inequalities, generated polynomials to ten variables, spoilt proposals.

Data sets of the cells: `classics` and `generator` (one polynomial a cell), `negative` (classics that vanish at
(1, ..., 1), minus a positive multiple of Σ x_i²: negative there), `spoilt` (noisy true sums of squares, twenty a cell)
and `file`, a user's answers. Arms: `nspi` (the prover), `round-only` (the same proposals rounded and projected, no
refinement, no faces), `alkahest` and `sostactic-style` (peers), `text` (a file's answers, corrected), `empty-answer`
(the correction without any answer), and the sabotage `drop-square`, which leaves one square out of every certificate.

Limits are counted work (solver iterations, Gauss-Newton steps, denominators tried); seconds are a guard for peers
whose work can't be counted.
"""

from __future__ import annotations

import csv
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pandas as pd

from assay.errors import InputError
from assay.science.sos_prover.baselines import clock_guard, proves_within, round_only
from assay.science.sos_prover.certificates import Certificate
from assay.science.sos_prover.checker import check_certificate
from assay.science.sos_prover.classics import CLASSICS, QUICK, classic
from assay.science.sos_prover.generator import KINDS, generate
from assay.science.sos_prover.outcomes import NotNonnegative, Undecided
from assay.science.sos_prover.polynomials import Polynomial, as_polynomial
from assay.science.sos_prover.proposers import NoisyProposer, SDPProposer, TextProposer
from assay.science.sos_prover.prove import prove_nonneg, sos_problem
from assay.stats import Interval, paired_shares, proportion
from assay.study import Cell, Claim, Measurement, Results, Row, Skip, Step, Study, Tier, Verdict, all_of

OURS = ("nspi", "round-only", "drop-square")
PEERS = ("alkahest", "sostactic-style")
FILE_ARMS = ("text", "nspi", "empty-answer")
SOLVED_BY = {"nspi": "sdp", "empty-answer": "newton"}
FILE_COLUMNS = ("name", "poly", "answer")
SPOILT_EACH = 20
CLAIMED_NOISE = 1e-2
NOISE_CURVE = (1e-6, 1e-4, 1e-3, CLAIMED_NOISE, 3e-2, 1e-1, 3e-1)
NEGATIVE_SHARES = ("1/10", "1/1000", "1/1000000")
PEER_SECONDS = {Tier.quick: 8.0, Tier.full: 60.0}
COQ_SECONDS, COQ_SQUARES = 60.0, 40
CLAIMED_SECONDS, GUARD_SECONDS = 60.0, 240.0


class SOSStudy(Study):
    """Cells are (data set, arm, seed) with the polynomial in the options."""

    accepts_file = True

    def cells(self, tier: Tier) -> Iterable[Cell]:
        if self.data_file is not None:
            yield from (Cell("file", arm, data=()) for arm in FILE_ARMS)
        elif tier is Tier.smoke:
            yield from _smoke_cells()
        else:
            yield from _generator_cells(tier)
            yield from _spoilt_cells(tier)
            yield from _peer_cells(tier)
            yield from _classic_cells(tier)

    def measure(self, cell: Cell, have: Mapping[Step, Path]) -> Measurement:
        if cell.dataset == "file":
            return _measure_file(cell, read_answers(self.data_file))
        if cell.dataset == "spoilt":
            return _measure_spoilt(cell)
        p, constraints = _polynomial(cell)
        if cell.arm in PEERS:
            return _measure_peer(cell, p)
        if cell.arm == "round-only":
            return Measurement({"proved": float(_rounds(p))})
        return _measure_prover(cell, p, constraints)

    def verdicts(self, results: Results) -> list[Verdict]:
        judges = {"C1": _judge_repair, "C2": _judge_scale, "C3": _judge_exact, "C4": _judge_text, "C5": _judge_peers}
        return [judges[name](claim, results) for name, claim in self.claims.items()]

    def charts(self, results: Results) -> list[dict[str, Any]]:
        from assay.science.sos_prover.charts import noise_chart, share_chart

        return [chart for chart in (share_chart(results), noise_chart(results)) if chart is not None]


def _smoke_cells() -> Iterator[Cell]:
    for arm in OURS:
        for name in ("parrilo", "motzkin", "schur-2"):
            if not (arm == "round-only" and classic(name).kind != "sos"):
                yield _cell("classics", arm, name=name)
        yield _cell("generator", arm, n=3, kind="boundary")
        yield _cell("spoilt", arm, n=3, noise=CLAIMED_NOISE, instances=5)
    yield _cell("negative", "nspi", name="schur-2", share="1/1000")


def _classic_cells(tier: Tier) -> Iterator[Cell]:
    names = QUICK if tier is Tier.quick else tuple(inequality.name for inequality in CLASSICS)
    for name in names:
        for arm in OURS:
            if not (arm == "round-only" and classic(name).kind != "sos"):
                yield _cell("classics", arm, name=name, coq=tier is Tier.full)
    vanishing = [name for name in names if _vanishes_at_ones(name)]
    for share in NEGATIVE_SHARES:
        for name in vanishing if tier is Tier.full else vanishing[:5]:
            yield _cell("negative", "nspi", name=name, share=share)


def _generator_cells(tier: Tier) -> Iterator[Cell]:
    sizes = (3, 4, 6) if tier is Tier.quick else (3, 4, 5, 6, 8, 10)
    for n in sizes:
        seeds = 2 if tier is Tier.quick else 10 if n == 10 else 5
        for kind in KINDS:
            for seed in range(seeds):
                for arm in OURS:
                    yield _cell("generator", arm, seed, n=n, kind=kind, coq=tier is Tier.full and n <= 4)


def _spoilt_cells(tier: Tier) -> Iterator[Cell]:
    for n in (3, 4, 6):
        for noise in (CLAIMED_NOISE,) if tier is Tier.quick else NOISE_CURVE:
            for arm in OURS:
                yield _cell("spoilt", arm, n=n, noise=noise, instances=SPOILT_EACH)


def _peer_cells(tier: Tier) -> Iterator[Cell]:
    """Where the peers answer in time; the largest sizes and most seeds belong to the full tier."""
    for arm in PEERS:
        for n in (3, 4) if tier is Tier.quick else (3, 4, 6, 8):
            kinds = ("boundary",) if (arm, n, tier) == ("alkahest", 4, Tier.quick) else KINDS
            for kind in kinds:
                for seed in range(2 if tier is Tier.quick or n < 6 else 3):
                    seconds = PEER_SECONDS[tier]
                    limit_s = clock_guard(seconds) + 30.0
                    yield _cell("generator", arm, seed, n=n, kind=kind, limit_s=limit_s, seconds=seconds)


def _cell(dataset: str, arm: str, seed: int = 0, *, limit_s: float = 330.0, **options: Any) -> Cell:
    return Cell(dataset, arm, seed, options, data=(), limit_s=limit_s)


def _vanishes_at_ones(name: str) -> bool:
    inequality = classic(name)
    p = inequality.polynomial
    return not inequality.constraints and p.at((1,) * len(p.gens)) == 0


def _polynomial(cell: Cell) -> tuple[Polynomial, list[Polynomial]]:
    options = cell.options
    if cell.dataset == "generator":
        return generate(options["n"], options["kind"], cell.seed)[0], []
    inequality = classic(options["name"])
    p = inequality.polynomial
    if cell.dataset == "negative":
        for x in Polynomial.variables(p.gens):
            p = p - x * x * Fraction(options["share"])
    return p, [as_polynomial(g, p.gens) for g in inequality.constraints]


def _measure_prover(cell: Cell, p: Polynomial, constraints: Sequence[Polynomial]) -> Measurement:
    """What the prover says, and what the independent checker says of it."""
    refuted = certificate = None
    start = time.process_time()
    try:
        certificate = prove_nonneg(p, constraints=constraints, timeout=_seconds(cell))
    except NotNonnegative as answer:
        refuted = answer
    except Undecided:
        pass
    in_time = {"in_time": float(time.process_time() - start <= CLAIMED_SECONDS)}
    if certificate is None:
        right = refuted is not None and p.at(refuted.point) == refuted.value < 0
        return Measurement({"proved": 0.0, "returned": 0.0, "refuted": float(right), **in_time})
    if cell.arm == "drop-square":
        certificate = drop_square(certificate)
    metrics = _judged(certificate, p, constraints, negative=cell.dataset == "negative") | in_time
    if cell.options.get("coq") and cell.arm == "nspi":
        metrics |= _coq(certificate)
    return Measurement(metrics, files={"certificate.json": certificate.to_json().encode()})


def _seconds(cell: Cell) -> float:
    """A guard; at ten variables it is the claim's own limit."""
    return CLAIMED_SECONDS if cell.options.get("n") == 10 else GUARD_SECONDS


def _judged(
    certificate: Certificate, p: Polynomial, constraints: Sequence[Polynomial], *, negative: bool
) -> dict[str, float]:
    accepted = check_certificate(certificate.to_json()).ok
    exact = accepted and _is_about(certificate, p, constraints)
    return {
        "proved": float(exact), "returned": 1.0, "refuted": 0.0, "wrong": float(not exact or negative),
        "checkers_agree": float(accepted == certificate.verify()), "basis": float(certificate.basis_size),
        "squares": float(certificate.rank), "bits": float(certificate.bits),
    }


def _is_about(certificate: Certificate, p: Polynomial, constraints: Sequence[Polynomial] = ()) -> bool:
    """Whether what is written proves the polynomial that was asked about, on the set that was asked about."""
    written = Certificate.from_json(certificate.to_json())
    asked = [_content(g) for g in constraints]
    used = [_content(part.constraint) for part in written.constraint_squares]
    return _content(written.p) == _content(p) and all(g in asked for g in used)


def _content(p: Polynomial) -> tuple[tuple[str, ...], dict[tuple[int, ...], Fraction]]:
    return p.gens, dict(p.terms)


def drop_square(certificate: Certificate) -> Certificate:
    """The sabotage: the same certificate without its last square."""
    if certificate.squares:
        return replace(certificate, weights=certificate.weights[:-1], squares=certificate.squares[:-1])
    parts = list(certificate.constraint_squares)
    place = max(k for k, part in enumerate(parts) if part.squares)
    parts[place] = replace(parts[place], weights=parts[place].weights[:-1], squares=parts[place].squares[:-1])
    return replace(certificate, constraint_squares=tuple(parts))


def _coq(certificate: Certificate) -> dict[str, float]:
    """Whether Coq accepts the certificate; nothing without coqc, for a large one, or when time is up."""
    coqc = shutil.which("coqc")
    if coqc is None or certificate.rank > COQ_SQUARES:
        return {}
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "certificate.v"
        source.write_text(certificate.to_coq(), encoding="utf-8")
        try:
            done = subprocess.run(
                [coqc, source.name], cwd=folder, capture_output=True, timeout=COQ_SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            return {}
    return {"coq": float(done.returncode == 0)}


def _measure_peer(cell: Cell, p: Polynomial) -> Measurement:
    if cell.arm == "alkahest":
        from importlib.util import find_spec

        if find_spec("alkahest") is None:
            raise Skip("alkahest is not installed")
    answer = proves_within(cell.arm, p, cell.options["seconds"])
    return Measurement({"proved": float(answer is True), "in_time": float(answer is not None)})


def _rounds(p: Polynomial) -> bool:
    """The SDP proposal rounded and projected, without anything else."""
    problem = sos_problem(p)
    proposal = None if problem.unreachable else SDPProposer().propose(problem, 60.0)
    return proposal is not None and round_only(problem, proposal.grams) is not None


def _measure_spoilt(cell: Cell) -> Measurement:
    """One row a polynomial: whether the spoilt sum of squares became an exact one."""
    n, noise = cell.options["n"], cell.options["noise"]
    proved = []
    for seed in range(cell.options["instances"]):
        p, squares = generate(n, "boundary", seed)
        proposer = NoisyProposer(tuple(squares), noise, seed)
        if cell.arm == "round-only":
            problem = sos_problem(p)
            proved.append(round_only(problem, [f @ f.T for f in proposer.factors(problem)]) is not None)
        else:
            proved.append(_repaired(p, proposer, sabotage=cell.arm == "drop-square"))
    units = pd.DataFrame({"seed": range(len(proved)), "proved": pd.Series(proved, dtype="float32")})
    return Measurement({"proved": sum(proved) / len(proved)}, units)


def _repaired(p: Polynomial, proposer: str | NoisyProposer | TextProposer, *, sabotage: bool = False) -> bool:
    try:
        certificate = prove_nonneg(p, proposer=proposer, denominators=(0,))
    except (Undecided, NotNonnegative):
        return False
    if sabotage:
        certificate = drop_square(certificate)
    return check_certificate(certificate.to_json()).ok and _is_about(certificate, p)


def read_answers(path: Path | None) -> list[tuple[str, Polynomial, str]]:
    """Name, polynomial and a model's answer from a CSV file, each row checked."""
    if path is None:
        raise InputError("no file of answers was given")
    try:
        with path.open(encoding="utf-8", newline="") as stream:
            rows = list(csv.DictReader(stream))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path.name}: can't be read as a CSV table ({error})") from None
    if not rows:
        raise InputError(f"{path.name}: no rows; the columns {', '.join(FILE_COLUMNS)} are expected")
    answers = []
    for number, row in enumerate(rows, 2):
        missing = [name for name in FILE_COLUMNS if not row.get(name)]
        if missing:
            raise InputError(f"{path.name}, line {number}: {', '.join(missing)} missing or empty")
        p = as_polynomial(row["poly"], what=f"{path.name}, line {number}: poly")
        answers.append((row["name"], p, row["answer"]))
    return answers


def _measure_file(cell: Cell, answers: Sequence[tuple[str, Polynomial, str]]) -> Measurement:
    """The same correction of three proposals: a model's answer, an SDP's solution, and nothing (the identity matrix).

    An answer that does not parse, or names what the polynomial has not, proves nothing.
    """
    proved = []
    for _, p, answer in answers:
        try:
            proposer = TextProposer(answer) if cell.arm == "text" else SOLVED_BY[cell.arm]
            proved.append(_repaired(p, proposer))
        except InputError:
            proved.append(False)
    units = pd.DataFrame({"name": [name for name, _, _ in answers], "proved": pd.Series(proved, dtype="float32")})
    return Measurement({"proved": sum(proved) / len(proved)}, units)


def _judge_repair(claim: Claim, results: Results) -> Verdict:
    rows = results.where(dataset="spoilt", noise=CLAIMED_NOISE)
    lacking = rows.missing(arm=claim.arm) or rows.missing(arm="round-only")
    if lacking:
        return claim.untested(f"spoilt sums of squares: {lacking}")
    refined, rounded = _spoilt_share(rows, claim.arm), _spoilt_share(rows, "round-only")
    if refined is None or rounded is None:
        return claim.untested(f"no spoilt sums of squares: {results.missing(dataset='spoilt', noise=CLAIMED_NOISE)}")
    text = f"made exact with refinement {refined}; by rounding alone {rounded}"
    limit = claim.limits["rounding_alone"]
    parts = [
        claim.judge(refined, f"with refinement {refined.estimate:.0%} of {refined.n}"),
        replace(claim, side="below").judge(
            rounded, f"rounding alone {rounded.estimate:.0%} of {rounded.n}, at most {limit:.0%} allowed",
            threshold=limit,
        ),
    ]
    return all_of(claim, parts, text)


def _spoilt_share(rows: Results, arm: str) -> Interval | None:
    frames = [row.units for row in rows.where(arm=arm).measured if row.units is not None]
    if not frames:
        return None
    values = pd.concat(frames)["proved"]
    return proportion(int(values.sum()), len(values))


def _judge_scale(claim: Claim, results: Results) -> Verdict:
    rows = results.where(dataset="generator", n=10)
    lacking = rows.missing(arm=claim.arm)
    if lacking:
        return claim.untested(f"ten variables are measured in the full tier: {lacking}")
    proved = [_in_time(row) for row in rows.where(arm=claim.arm)]
    share = proportion(int(sum(proved)), len(proved))
    return claim.judge(share, f"{int(sum(proved))} of {len(proved)} polynomials in 10 variables proved")


def _in_time(row: Row) -> float:
    """Proved within the CPU seconds of the claim, which are those of the peers."""
    return row.metrics["proved"] * row.metrics["in_time"]


def _judge_exact(claim: Claim, results: Results) -> Verdict:
    rows = results.where(lambda cell: cell.dataset in ("classics", "generator", "negative"), arm=claim.arm).measured
    returned = [row for row in rows if row.metrics.get("returned")]
    if not returned:
        return claim.untested(f"no proof was returned: {results.missing(arm=claim.arm) or 'all were undecided'}")
    wrong = [row for row in returned if row.metrics["wrong"] or row.metrics.get("coq") == 0.0]
    by_coq = sum("coq" in row.metrics for row in returned)
    checked = f"{len(returned)} proofs returned, {by_coq} of them put to Coq, {len(wrong)} refused"
    return claim.count(len(wrong), len(returned), checked)


def _judge_text(claim: Claim, results: Results) -> Verdict:
    rows = results.where(dataset="file")
    answers, solved = (_file_units(rows, arm) for arm in (claim.arm, "nspi"))
    if answers is None or solved is None:
        return claim.untested("no language model for mathematics is available offline; answers in a file decide it")
    difference = paired_shares(answers, solved)
    return claim.judge(difference, f"proved from answers {sum(answers):g}, from the SDP's solution {sum(solved):g}")


def _file_units(rows: Results, arm: str) -> list[float] | None:
    measured = rows.where(arm=arm).measured
    return None if not len(measured) or measured[0].units is None else list(measured[0].units["proved"])


def _judge_peers(claim: Claim, results: Results) -> Verdict:
    rows = results.where(lambda cell: cell.options.get("n", 0) in (6, 8), dataset="generator")
    lacking = rows.missing(arm=claim.arm)
    if lacking:
        return claim.untested(f"6 and 8 variables are measured in the full tier: {lacking}")
    ours = {_instance(row.cell): _in_time(row) for row in rows.where(arm=claim.arm)}
    parts = []
    for peer in PEERS:
        theirs = {_instance(row.cell): row.metrics["proved"] for row in rows.where(arm=peer).measured}
        shared = sorted(set(ours) & set(theirs))
        if not shared:
            parts.append(claim.untested(f"{peer} is measured at 6 and 8 variables in the full tier only"))
            continue
        first, second = [ours[key] for key in shared], [theirs[key] for key in shared]
        text = f"{sum(first):g} of {len(shared)} proved, {peer} {sum(second):g}"
        parts.append(claim.judge(paired_shares(first, second), text))
    return all_of(claim, parts)


def _instance(cell: Cell) -> tuple[Any, ...]:
    return cell.options["n"], cell.options["kind"], cell.seed


STUDY = SOSStudy
