"""A process in which some packages can't be imported; asks a method for its metadata, or uses its public names.

Started by `assay.conformance.extras` with one JSON argument; prints one JSON line.
"""

from __future__ import annotations

import importlib
import json
import sys
import traceback
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from assay.catalogue import Method, read_card

if TYPE_CHECKING:
    from assay.conformance.subject import Subject

WORKS = "works"
OUT_OF_REACH = "out of reach"


class Blocker(MetaPathFinder):
    """Refuses to find the named packages, as if they were not installed."""

    def __init__(self, packages: Sequence[str]) -> None:
        self.packages = frozenset(packages)

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        package = name.partition(".")[0]
        if package in self.packages:
            raise ModuleNotFoundError(f"No module named {package!r}", name=package)
        return None


def main(request: dict[str, Any]) -> dict[str, str]:
    """Block, find the method, and do what `mode` says: `metadata` or `use`."""
    sys.meta_path.insert(0, Blocker(request["blocked"]))
    folder = Path(request["folder"])
    reach(folder, request["package"])
    method = read_card(folder, request["package"])
    return metadata(method) if request["mode"] == "metadata" else use(method)


def reach(folder: Path, package: str) -> None:
    """Put a folder that lies outside the installed package on the path of its parent package."""
    parent = package.rpartition(".")[0]
    places = importlib.import_module(parent).__path__ if parent else sys.path
    if str(folder.parent) not in places:
        places.append(str(folder.parent))


def metadata(method: Method) -> dict[str, str]:
    """Everything that `assay list` and `assay show` read, and the package without its modules."""
    package = importlib.import_module(method.package)
    return {
        "import": method.import_line, "cite": method.paper.bibtex(method.slug), "page": method.readme,
        "outcomes": str(method.outcomes()), "names": ", ".join(dir(package)),
    }


def use(method: Method) -> dict[str, str]:
    """What using each public name gives: that it works, the error, or that the checks' own inputs need the package."""
    from assay.conformance.subject import Subject

    subject = Subject(method)
    return {name: _answer(subject, name, kind) for name, kind in method.kinds.items()}


def _answer(subject: Subject, name: str, kind: str) -> str:
    from assay.conformance.kinds import exercise

    try:
        getattr(subject.package, name)
        exercise(subject, name, kind)
    except ImportError as error:
        if _raised_in_method(error, subject.method.folder):
            return f"{type(error).__name__}: {error}"
        return _first_complaint(subject, name) or f"{OUT_OF_REACH}: {error}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return WORKS


def _raised_in_method(error: ImportError, folder: Path) -> bool:
    """Whether the method wanted what is missing, and not the checks or the inputs that they were given."""
    frames = [Path(frame.filename) for frame in traceback.extract_tb(error.__traceback__)]
    where = [path for path in frames if path.is_absolute() and path.name not in ("blocked.py", "errors.py")][-1:]
    return bool(where) and where[0] != folder / "conformance.py" and not where[0].is_relative_to(Path(__file__).parent)


def _first_complaint(subject: Subject, name: str) -> str:
    """What a bad input meets where the good ones can't be made: the need for a package comes first."""
    for attempt in subject.entry(name).get("bad", ()):
        try:
            attempt()
        except ImportError as error:
            if _raised_in_method(error, subject.method.folder):
                return f"{type(error).__name__}: {error}"
        except Exception:
            continue
    return ""


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
