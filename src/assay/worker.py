"""The process that makes one step or measures one cell; both engines of the runner use it.

A worker takes a `Task`, a plain dictionary, and answers with another. It never raises: what goes wrong
in a study becomes the answer's status and reason, stripped of paths and secrets.
"""

from __future__ import annotations

import gc
import hashlib
import os
import platform
import re
import resource
import shutil
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from assay import catalogue, store
from assay.datasets import data_hash
from assay.errors import DataUnavailable, MissingExtra
from assay.fingerprint import code_hash
from assay.study import Cell, Skip, Step, Study, canonical

__all__ = ["ONE_THREAD", "execute", "machine", "start", "step_folder", "steps_of"]

ONE_THREAD = {
    name: "1"
    for name in (
        "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS", "LOKY_MAX_CPU_COUNT",
    )
}
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL", re.IGNORECASE)


def start(parent: int) -> None:
    """Set a fresh worker up: one thread, nothing printed, and an end when the parent ends."""
    os.environ.update(ONE_THREAD)
    if not os.environ.get("ASSAY_DEBUG"):
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    while Path(f"/proc/{parent}").exists() if Path("/proc/self").exists() else _alive(parent):
        time.sleep(0.5)
    os._exit(1)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True


def execute(task: Mapping[str, Any]) -> dict[str, Any]:
    """Make the task's step, or measure its cell (after any step of it that is not here yet).

    Parameters
    ----------
    task : dict
        `slug`, `data_file` (path or None), and either `step` or `cell` as their `to_dict`.

    Returns
    -------
    dict
        `status` (made, measured, skipped, failed, blocked), `reason`, `seconds`, `peak_mb`; for a
        measured cell `metrics`, `units` (packed bytes or None) and `files`.
    """
    begun = time.perf_counter()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            answer = _run(task)
    except BaseException as error:
        answer = {"status": _status(error), "reason": describe(error)}
    return {"reason": "", "peak_mb": _peak_mb(), "machine": machine(), **answer, "seconds": time.perf_counter() - begun}


def _run(task: Mapping[str, Any]) -> dict[str, Any]:
    what = Step.from_dict(task["step"]) if "step" in task else Cell.from_dict(task["cell"])
    method = catalogue.get(task["slug"])
    study = method.study(Path(task["data_file"]) if task["data_file"] else None)
    _use_threads(getattr(what, "threads", 1))
    _clear_memory()
    with _memory_limit(what.memory):
        if isinstance(what, Step):
            make_step(study, task["slug"], method.package, what)
            return {"status": "made"}
        try:
            have = {step: make_step(study, task["slug"], method.package, step) for step in study.needs(what)}
        except (Skip, DataUnavailable, MissingExtra):
            raise
        except Exception as error:
            return {"status": "blocked", "reason": f"a step that it needs failed: {describe(error)}"}
        measured = study.measure(what, have)
        return {
            "status": "measured",
            "metrics": {name: float(value) for name, value in measured.metrics.items()},
            "units": None if measured.units is None else store.pack_frame(measured.units),
            "files": dict(measured.files),
        }


def make_step(study: Study, slug: str, package: str, step: Step) -> Path:
    """The folder of a step, made now if it is not here: under a temporary name, then renamed."""
    folder = step_folder(study, slug, package, step)
    if folder.exists():
        return folder
    have = {needed: make_step(study, slug, package, needed) for needed in study.needs(step)}
    folder.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", suffix=".part", dir=folder.parent))
    try:
        study.prepare(step, have, part)
        part.rename(folder)
    except OSError:
        if not folder.exists():
            raise
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return folder


def step_folder(study: Study, slug: str, package: str, step: Step) -> Path:
    """Where a step is kept: a folder named by everything that its content depends on."""
    above = [step_folder(study, slug, package, needed).name for needed in study.needs(step)]
    identity = {name: value for name, value in step.to_dict().items() if name not in ("limit_s", "memory")}
    content = (data_hash(step.data), file_identity(study.data_file))
    parts = (slug, canonical(identity), code_hash(package), *above, *content)
    name = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:20]
    return store.home() / "steps" / slug / f"{step.name}-{name}"


def file_identity(path: Path | None) -> str:
    from assay.datasets import file_sha256

    return "" if path is None else file_sha256(path)


def steps_of(study: Study, what: Cell | Step) -> Iterator[Step]:
    """All steps below a cell or step, the deepest first."""
    for step in study.needs(what):
        yield from steps_of(study, step)
        yield step


def describe(error: BaseException) -> str:
    """An error as one line without paths of this machine and without secrets."""
    text = " ".join(str(error).split()) or type(error).__name__
    if not isinstance(error, Skip | DataUnavailable | MissingExtra):
        text = f"{type(error).__name__}: {text}" if text != type(error).__name__ else text
    for name, value in os.environ.items():
        if _SECRET.search(name) and len(value) > 5:
            text = text.replace(value, "***")
    return re.sub(r"(?<![:/\w])(?:/[\w.+@~-]+){2,}", lambda match: match.group().rpartition("/")[2], text)[:500]


def _status(error: BaseException) -> str:
    return "skipped" if isinstance(error, Skip | DataUnavailable | MissingExtra) else "failed"


def _use_threads(threads: int) -> None:
    """One thread is what `ONE_THREAD` gave the libraries; torch has a setting of its own."""
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(threads)
    if threads > 1:
        from threadpoolctl import threadpool_limits

        threadpool_limits(threads)


def _clear_memory() -> None:
    """Begin a cell with no garbage of the last one and with the peak memory reset."""
    gc.collect()
    gc.freeze()  # what survives is imported code: the next collection need not walk it again
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


class _memory_limit:
    """Bound the growth of this process's private memory: a hungry cell gets a MemoryError of its own."""

    def __init__(self, megabytes: int) -> None:
        self._megabytes = megabytes

    def __enter__(self) -> None:
        self._before = resource.getrlimit(resource.RLIMIT_DATA)
        used = _status_kb("VmData")
        if used is not None:
            limit = used * 1024 + self._megabytes * 2**20
            hard = self._before[1]
            soft = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
            resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))

    def __exit__(self, *error: object) -> None:
        resource.setrlimit(resource.RLIMIT_DATA, self._before)


def _status_kb(field: str) -> int | None:
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(field + ":"):
                return int(line.split()[1])
    except OSError:
        pass
    return None


def _peak_mb() -> float:
    kilobytes = _status_kb("VmHWM")
    if kilobytes is None:
        kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(kilobytes / 1024, 1)


@cache
def machine() -> dict[str, Any]:
    """The machine in words: processor, cores, memory, system, Python."""
    return {
        "cpu": _cpu(), "cores": os.cpu_count(), "memory_gb": _memory_gb(),
        "system": f"{platform.system()} {platform.machine()}", "python": platform.python_version(),
    }


def _cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"


def _memory_gb() -> int:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30)
    except (ValueError, OSError):
        return 0
