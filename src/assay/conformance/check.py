"""One check, and what came of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from assay.errors import DataUnavailable, MissingExtra

__all__ = ["Check", "Excused", "Report", "Result"]


class Excused(Exception):
    """Raised by a check that can't apply: the message is the reason."""


@dataclass(frozen=True)
class Check:
    """Something that a method must satisfy: `run` returns, or raises what is wrong.

    Attributes
    ----------
    name : str
    run : callable
        Takes nothing; an exception is a failure, `Excused` apart.
    excused : str
        Why it is not run; empty for a check that is.
    """

    name: str
    run: Callable[[], None]
    excused: str = ""

    def result(self) -> Result:
        """What came of the check; a package or data set that is not here excuses it."""
        if self.excused:
            return Result(self.name, "excused", self.excused)
        try:
            self.run()
        except Excused as excuse:
            return Result(self.name, "excused", str(excuse))
        except DataUnavailable as error:
            return Result(self.name, "excused", f"data absent: {error}")
        except MissingExtra as error:
            return Result(self.name, "excused", f"package absent: {error}")
        except Exception as error:
            return Result(self.name, "failed", str(error) or type(error).__name__)
        return Result(self.name, "passed")


@dataclass(frozen=True)
class Result:
    """The outcome of a check: `status` is passed, failed or excused."""

    name: str
    status: str
    reason: str = ""


@dataclass(frozen=True)
class Report:
    """The outcomes of all checks of a method."""

    slug: str
    results: tuple[Result, ...]

    def of(self, status: str) -> list[Result]:
        return [result for result in self.results if result.status == status]

    def __str__(self) -> str:
        counts = ", ".join(f"{len(self.of(status))} {status}" for status in ("passed", "excused", "failed"))
        return "\n".join([f"{self.slug}: {counts}", *_lines(self.of("failed") + self.of("excused"))])


def _lines(results: Iterable[Result]) -> list[str]:
    return [f"  {result.status}  {result.name}: {result.reason}" for result in results]
