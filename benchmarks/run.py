"""Measure each method's speed against its peer, side by side in one process, and keep the ratios.

    python benchmarks/run.py            # all methods
    python benchmarks/run.py smart nqs

The next `assay check --record` takes the ratios into the method's record.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from datetime import UTC, datetime
from pathlib import Path

from assay.store import home


def main(slugs: list[str]) -> None:
    for path in sorted(Path(__file__).parent.glob("bench_*.py")):
        slug = path.stem.removeprefix("bench_").replace("_", "-")
        if slugs and slug not in slugs:
            continue
        print(f"\n{slug}")
        measured = {"measured": datetime.now(UTC).isoformat(timespec="seconds"), **load(path).main()}
        kept = home() / "speed" / f"{slug}.json"
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")


def load(path: Path):  # type: ignore[no-untyped-def]
    """The benchmark as a module, though its folder is no package."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main(sys.argv[1:])
