"""The runner: makes the steps, measures the cells, keeps every finished one, and gives the verdicts.

Two engines run the same worker: a pool of local processes (pebble: a killed, hung or raising cell costs
itself only) and a Dask cluster, whose workers each keep such a pool, since Dask has no limit a task.
The parent alone writes the store, one transaction a cell, so that a run that is killed at any moment
loses no finished cell and the next one picks up. Cells marked `timing` run last, one at a time.
"""

from __future__ import annotations

import json
import math
import os
import queue
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from assay import datasets, worker
from assay.catalogue import Method
from assay.errors import AssayError, InputError
from assay.fingerprint import code_hash, library_versions
from assay.store import Store, home, unpack_frame
from assay.study import Cell, Outcome, Results, Row, Step, Study, Tier, Verdict, canonical

__all__ = ["DaskEngine", "Engine", "LocalEngine", "Plan", "Report", "check", "make_record", "plan"]

RECORD_SCHEMA = 1
IN_FLIGHT = 8  # tasks handed to the engine at a time, for each of its workers


@dataclass
class Plan:
    """One method's part of a run: what is kept already and what is left to do."""

    method: Method
    study: Study
    tier: Tier
    cells: list[Cell]
    kept: dict[Cell, Row] = field(default_factory=dict)

    @property
    def pending(self) -> list[Cell]:
        return [cell for cell in self.cells if cell not in self.kept]

    def fingerprint(self, cell: Cell) -> str:
        """Everything that a measurement of the cell depends on, beside the cell itself."""
        from hashlib import sha256

        versions = canonical(library_versions(self.method.package))
        parts = (
            code_hash(self.method.package), _data_identity(cell.data or ()), _file_hash(self.study.data_file),
            cell.device, versions,
        )
        return sha256("\n".join(parts).encode()).hexdigest()[:32]

    def task(self, what: Cell | Step) -> dict[str, Any]:
        file = self.study.data_file
        return {
            "slug": self.method.slug, "data_file": None if file is None else str(file.resolve()),
            ("cell" if isinstance(what, Cell) else "step"): what.to_dict(),
        }


@dataclass
class Report:
    """What a run gives for one method."""

    method: Method
    results: Results
    record: dict[str, Any]


class Engine(Protocol):
    """Runs worker tasks; every future's result is a worker's answer."""

    def submit(self, task: Mapping[str, Any], limit_s: float) -> Future: ...
    def stop(self) -> None: ...
    @property
    def width(self) -> int: ...


Watch = Callable[[str, str, int], None]
"""Called with an event (`start`, `done`), the label of what was done, and how many tasks there are."""


def plan(
    method: Method, tier: Tier, store: Store, *, data_file: Path | None = None, device: str | None = None
) -> Plan:
    """List a method's cells and look up which of them are kept."""
    study = method.study(data_file)
    if data_file is not None and not study.accepts_file:
        raise InputError(
            f"{method.slug}: no claim can be decided from a file of your own; try `assay run {method.slug}`"
        )
    cells = list(dict.fromkeys(study.cells(tier)))
    if device is not None:
        cells = [replace(cell, device=device) for cell in cells]
    made = Plan(method, study, tier, cells)
    for cell in cells:
        row = store.get(method.slug, cell, made.fingerprint(cell))
        if row is not None and row.status == "measured":
            made.kept[cell] = replace(row, cell=cell)
    return made


def check(
    plans: Sequence[Plan], store: Store, engine: Callable[[int], Engine], *, watch: Watch = lambda *_: None
) -> Iterator[Report]:
    """Run what is pending in all plans and yield each method's report, in order.

    Parameters
    ----------
    engine : callable
        Given the number of tasks, starts an engine; called only when something is pending, a second
        time (one task wide) for the timing cells.
    """
    for timing in (False, True):
        pending = [(p, cell) for p in plans for cell in p.pending if cell.timing is timing]
        if not pending:
            continue
        running = engine(1 if timing else len(pending))
        try:
            _Run(running, store, watch, width=1 if timing else running.width).run(pending)
        finally:
            running.stop()
    for made in plans:
        yield _report(made)


class _Run:
    """One pass over pending cells: steps first, cells as soon as their steps are there."""

    def __init__(self, engine: Engine, store: Store, watch: Watch, width: int) -> None:
        self._engine = engine
        self._store = store
        self._watch = watch
        self._width = width
        self._done: queue.SimpleQueue = queue.SimpleQueue()
        self._in_flight = 0

    def run(self, pending: list[tuple[Plan, Cell]]) -> None:
        waiting: dict[tuple, set[tuple]] = {}
        work: dict[tuple, tuple[Plan, Cell | Step]] = {}
        for made, cell in pending:
            wanted: list[Cell | Step] = [*worker.steps_of(made.study, cell), cell]
            for what in wanted:
                key = (made.method.slug, type(what).__name__, what)
                if key in work or (isinstance(what, Step) and _is_made(made, what)):
                    continue
                work[key] = (made, what)
                needs = {(made.method.slug, "Step", step) for step in made.study.needs(what)}
                waiting[key] = {need for need in needs if need in work}
        users = defaultdict(list)
        for key, needs in waiting.items():
            for need in needs:
                users[need].append(key)
        ready = [key for key in work if not waiting[key]]
        ready.reverse()
        while ready or self._in_flight:
            while ready and self._in_flight < IN_FLIGHT * self._width:
                self._submit(ready.pop(), work)
            finished = [self._done.get()]
            while not self._done.empty():
                finished.append(self._done.get())
            self._in_flight -= len(finished)
            with self._store.together():
                for key, answer in finished:
                    self._finish(key, answer, work, waiting, users, ready)

    def _submit(self, key: tuple, work: Mapping[tuple, tuple[Plan, Cell | Step]]) -> None:
        made, what = work[key]
        future = self._engine.submit(made.task(what), what.limit_s)
        self._in_flight += 1
        future.add_done_callback(lambda done: self._done.put((key, _answer(done, what.limit_s))))
        self._watch("start", _label(made, what), len(work))

    def _finish(
        self, key: tuple, answer: dict[str, Any], work: Mapping, waiting: Mapping, users: Mapping, ready: list
    ) -> None:
        made, what = work[key]
        if isinstance(what, Cell):
            row = _row(what, answer)
            self._store.put(made.method.slug, made.fingerprint(what), row)
            made.kept[what] = row
        self._watch("done", _label(made, what), len(work))
        for user in users[key]:
            if isinstance(what, Step) and answer["status"] != "made":
                if user[2] not in made.kept:
                    self._give_up(user, what, answer, work, users)
                waiting[user].clear()
                waiting[user].add("given up")
                continue
            waiting[user].discard(key)
            if not waiting[user]:
                ready.insert(0, user)

    def _give_up(self, key: tuple, step: Step, answer: Mapping[str, Any], work: Mapping, users: Mapping) -> None:
        """Mark everything above a step that could not be made."""
        made, what = work[key]
        status = "skipped" if answer["status"] == "skipped" else "blocked"
        reason = answer["reason"] if status == "skipped" else f"the step {step.name} failed: {answer['reason']}"
        if isinstance(what, Cell):
            row = Row(what, status, reason=reason)
            self._store.put(made.method.slug, made.fingerprint(what), row)
            made.kept[what] = row
        self._watch("done", _label(made, what), len(work))
        for user in users[key]:
            if user[2] not in made.kept:
                self._give_up(user, step, answer, work, users)


def _answer(future: Future, limit_s: float) -> dict[str, Any]:
    """A worker's answer, or what became of the worker."""
    try:
        return future.result()
    except TimeoutError:
        return {"status": "failed", "reason": f"stopped at its limit of {limit_s:g} s"}
    except CancelledError:
        return {"status": "failed", "reason": "cancelled"}
    except Exception as error:
        code = getattr(error, "exitcode", None)
        how = f" (exit code {code})" if code is not None else ""
        return {"status": "failed", "reason": f"its process died{how}: {worker.describe(error)}"}


def _row(cell: Cell, answer: Mapping[str, Any]) -> Row:
    units = answer.get("units")
    return Row(
        cell, answer["status"], dict(answer.get("metrics", {})), None if units is None else unpack_frame(units),
        dict(answer.get("files", {})), answer.get("reason", ""), round(answer.get("seconds", 0.0), 4),
        answer.get("peak_mb", 0.0), {"machine": answer.get("machine")},
    )


def _is_made(made: Plan, step: Step) -> bool:
    return worker.step_folder(made.study, made.method.slug, made.method.package, step).exists()


def _label(made: Plan, what: Cell | Step) -> str:
    return f"{made.method.slug}: {what.label() if isinstance(what, Cell) else what.name}"


class LocalEngine:
    """A pool of local processes, each ended when the parent ends."""

    def __init__(self, jobs: int) -> None:
        import multiprocessing

        from pebble import ProcessPool

        os.environ.update(worker.ONE_THREAD)
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["assay.worker", "numpy", "pandas", "scipy.optimize", "sklearn.base"])
        self.width = max(1, jobs)
        self._pool = ProcessPool(
            max_workers=self.width, context=context, initializer=worker.start, initargs=[os.getpid()]
        )

    def submit(self, task: Mapping[str, Any], limit_s: float) -> Future:
        return self._pool.schedule(worker.execute, args=[dict(task)], timeout=limit_s)

    def stop(self) -> None:
        self._pool.stop()
        self._pool.join()


class DaskEngine:
    """A Dask cluster by its scheduler's address. Tasks are pickled between its own trusted workers."""

    def __init__(self, address: str) -> None:
        from assay.errors import require

        distributed = require("distributed", extra="cluster", wanted_by="assay check --dask")
        try:
            self._client = distributed.Client(address, timeout=10, set_as_default=False)
        except (OSError, ValueError, TimeoutError) as error:
            raise InputError(f"no Dask scheduler answers at {address} ({type(error).__name__})") from None
        self._waiting: list = []

    @property
    def width(self) -> int:
        return max(1, sum(self._client.nthreads().values()))

    def submit(self, task: Mapping[str, Any], limit_s: float) -> Future:
        answer: Future = Future()
        remote = self._client.submit(_on_dask_worker, dict(task), limit_s, pure=False, retries=3)
        remote.add_done_callback(lambda done: _pass_on(done, answer))
        self._waiting.append(remote)
        return answer

    def stop(self) -> None:
        self._client.cancel([remote for remote in self._waiting if not remote.done()])
        self._client.close()


def _pass_on(remote: Any, answer: Future) -> None:
    try:
        answer.set_result(remote.result())
    except Exception as error:
        answer.set_exception(error)


@cache
def _pool_of_dask_worker() -> LocalEngine:
    import multiprocessing

    # A nanny starts its worker as a daemonic process, and multiprocessing forbids those any children.
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]
    return LocalEngine(1)


def _on_dask_worker(task: dict[str, Any], limit_s: float) -> dict[str, Any]:
    return _answer(_pool_of_dask_worker().submit(task, limit_s), limit_s)


def _report(made: Plan) -> Report:
    results = Results([made.kept[cell] for cell in made.cells])
    return Report(made.method, results, make_record(made, results))


def _at_home(results: Results) -> Results:
    """The results as a machine without the public sets has them: the home sets decide the verdicts everywhere."""
    return Results(
        row if _is_home(row.cell) or row.status != "measured"
        else replace(row, status="skipped", metrics={}, units=None, files={}, reason="no home set")
        for row in results
    )


def _is_home(cell: Cell) -> bool:
    return all(datasets.entry(name).is_home for name in cell.data or ())


def judge(method: Method, study: Study, results: Results) -> list[Verdict]:
    """The study's verdicts, one a claim in the card's order."""
    verdicts = study.verdicts(results)
    if (judged := [v.claim for v in verdicts]) != list(method.claims):
        raise AssayError(f"{method.slug}: the study's verdicts are on {judged}, not on the card's claims")
    return verdicts


def control_outcomes(method: Method, study: Study, results: Results) -> list[dict[str, str]]:
    """What each claim reads with its negative control in the judged arm's place."""
    outcomes = []
    for claim in method.claims.values():
        if claim.control.startswith("none"):
            continue
        swapped = study.verdicts(results.with_control(claim.arm, claim.control))
        outcome = next(v.outcome for v in swapped if v.claim == claim.id)
        outcomes.append({"claim": claim.id, "control": claim.control, "outcome": str(outcome)})
    return outcomes


def make_record(made: Plan, results: Results) -> dict[str, Any]:
    """The outcome as `record.json` keeps it.

    `verdicts` are those of the home sets, which any machine can repeat; where public sets were measured
    as well, `further` holds what all sets together say.
    """
    file = made.study.data_file
    home = _at_home(results)
    public = [name for name in _names(row.cell for row in results.measured) if not datasets.entry(name).is_home]
    with_file = "" if file is None else f" --data {file.name}"
    return _finite({
        "schema": RECORD_SCHEMA, "slug": made.method.slug, "study_version": made.method.study_version,
        "tier": str(made.tier), "measured": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(sum(row.seconds for row in results), 1),
        "command": f"assay check {made.method.slug} --tier {made.tier}{with_file}",
        "code": code_hash(made.method.package), "machine": _machine(results),
        "versions": library_versions(made.method.package),
        "data": [_data_fact(name, results) for name in _names(made.cells)],
        **_judged(made, home),
        "further": {"data": public, **_judged(made, results)} if public else None,
        "rows": [_row_fact(row) for row in results],
        "charts": made.study.charts(results),
        "speed": _speed(made.method),
    })


def _judged(made: Plan, results: Results) -> dict[str, Any]:
    return {
        "verdicts": [verdict.to_dict() for verdict in judge(made.method, made.study, results)],
        "controls": control_outcomes(made.method, made.study, results),
    }


def _speed(method: Method) -> dict[str, Any] | None:
    """The ratios that `benchmarks/run.py` measured last, else those of the record that there is."""
    path = home() / "speed" / f"{method.slug}.json"
    if path.exists():
        return json.loads(path.read_text(encoding="utf-8"))
    return (method.record or {}).get("speed")


def _machine(results: Results) -> dict[str, Any]:
    """The machine that measured most of the cells, and how many others helped."""
    kept = [canonical(row.extra["machine"]) for row in results if row.extra.get("machine")]
    if not kept:
        return worker.machine()
    most = max(set(kept), key=lambda text: (kept.count(text), text))
    others = len(set(kept)) - 1
    return json.loads(most) | ({"others": others} if others else {})


def _names(cells: Iterable[Cell]) -> list[str]:
    return list(dict.fromkeys(name for cell in cells for name in cell.data or ()))


def _data_fact(name: str, results: Results) -> dict[str, Any]:
    entry = datasets.entry(name)
    using = results.where(lambda cell: name in (cell.data or ()))
    used = bool(using.measured)
    return {
        "name": name, "title": entry.title, "licence": entry.licence, "kind": entry.kind,
        "sha256": entry.mirror_sha256 or entry.sha256, "status": "used" if used else "absent",
        "reason": "" if used else next((row.reason for row in using), ""),
    }


def _row_fact(row: Row) -> dict[str, Any]:
    cell = row.cell
    return {
        "dataset": cell.dataset, "arm": cell.arm, "seed": cell.seed, "options": dict(cell.options),
        "status": row.status, "reason": row.reason,
        "metrics": {name: _round(value) for name, value in row.metrics.items()},
        "seconds": round(row.seconds, 2), "peak_mb": round(row.peak_mb), "timing": cell.timing,
    }


def _round(value: float, digits: int = 5) -> float:
    return float(f"{value:.{digits}g}") if math.isfinite(value) else value


def _finite(value: Any) -> Any:
    """The same with NaN and infinities as null, which JSON does not know."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return str(value) if isinstance(value, Outcome | Tier) else value


def _data_identity(names: tuple[str, ...]) -> str:
    return datasets.data_hash(names) if names else ""


@cache
def _file_hash(path: Path | None) -> str:
    return worker.file_identity(path)
