"""Cells that succeed, raise, hang, die, eat memory, are skipped, and need steps that do the same."""

import os
import signal
import time
from pathlib import Path

import numpy as np
import pandas as pd

from assay.stats import mean_interval
from assay.study import Cell, Measurement, Skip, Step, Study, Tier

PAUSE = float(os.environ.get("TOY_PAUSE", "0"))


class Toy(Study):
    accepts_file = True

    def cells(self, tier):
        if self.data_file is not None:
            return [Cell("file", "good", seed, data=()) for seed in range(3)]
        if tier is Tier.smoke:
            return [Cell("made", arm, seed, data=()) for arm in ("good", "bad") for seed in range(4)]
        if tier is Tier.full:
            return [Cell("made", "good", seed, data=()) for seed in range(1000)]
        return [
            *(Cell("made", arm, seed, data=()) for arm in ("good", "bad") for seed in range(4)),
            Cell("made", "raises", data=()), Cell("made", "hangs", data=(), limit_s=1.0),
            Cell("made", "killed", data=()), Cell("made", "hungry", data=(), memory=100),
            Cell("made", "skipped", data=()), Cell("made", "broken-step", data=()),
            Cell("made", "absent-step", data=()), Cell("made", "secret", data=()),
            Cell("made", "clock", data=(), timing=True),
        ]

    def needs(self, what):
        if isinstance(what, Step):
            return (Step("base"),) if what.name == "middle" else ()
        return {"good": (Step("middle"),), "broken-step": (Step("broken"),), "absent-step": (Step("absent"),)}.get(
            what.arm, ()
        )

    def prepare(self, step, have, out):
        if step.name == "broken":
            raise ValueError("no such luck in /some/private/place/file.txt")
        if step.name == "absent":
            raise Skip("data absent: the moon")
        if step.name == "base":
            with open(Path(os.environ["ASSAY_HOME"]) / "made.log", "a") as log:
                log.write("base\n")
        (out / "value.txt").write_text("0.75")

    def measure(self, cell, have):
        time.sleep(PAUSE)
        if cell.arm == "raises":
            raise ZeroDivisionError("one over nothing")
        if cell.arm == "hangs":
            time.sleep(600)
        if cell.arm == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if cell.arm == "hungry":
            np.ones(10**9)
        if cell.arm == "skipped":
            raise Skip("not here")
        if cell.arm == "secret":
            raise RuntimeError(f"the key {os.environ['TOY_API_KEY']} was refused")
        base = 0.25 if cell.arm == "bad" else 1.0
        if have:
            base = float(have[Step("middle")].joinpath("value.txt").read_text())
        rng = np.random.default_rng(cell.seed)
        noise = rng.normal(scale=0.01, size=5)
        units = pd.DataFrame({"row": np.arange(5), "value": noise, "name": list("abcde")})
        return Measurement({"value": base + noise.mean()}, units, {"note.txt": b"kept"})

    def verdicts(self, results):
        claim = self.claims["T1"]
        values = results.metric("value", arm=claim.arm)
        return [claim.judge(mean_interval(values)) if values else claim.untested(results.missing(arm=claim.arm))]


STUDY = Toy
