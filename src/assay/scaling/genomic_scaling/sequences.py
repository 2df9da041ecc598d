"""DNA as arrays of codes: reading FASTA, both strands, substitution errors, a split by region.

Codes: A 0, C 1, G 2, T 3, any other IUPAC letter (N) 4, separator between records 5.
"""

from __future__ import annotations

import gzip
import re
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from assay.errors import InputError

__all__ = ["LETTERS", "SEPARATOR", "corrupt", "encode", "join", "read_fasta", "regions", "reverse_complement"]

LETTERS = "ACGTN"
UNKNOWN, SEPARATOR = 4, 5
_AMBIGUOUS = "RYSWKMBDHVN"
_FOREIGN, _GAP = 255, 254
_CODES = np.full(256, _FOREIGN, dtype=np.uint8)
for _code, _letter in enumerate("ACGT"):
    _CODES[[ord(_letter), ord(_letter.lower())]] = _code
_CODES[[ord("U"), ord("u")]] = 3
for _letter in _AMBIGUOUS:
    _CODES[[ord(_letter), ord(_letter.lower())]] = UNKNOWN
_CODES[[ord(_letter) for _letter in "-.*"]] = _GAP
_COMPLEMENT = np.array([3, 2, 1, 0, 4, 5], dtype=np.uint8)
_FOREIGN_SHARE = 0.01


def encode(sequence: str | bytes, name: str = "sequence") -> np.ndarray:
    """Codes (uint8) of a DNA sequence; lower case counts as upper, U as T, gaps are left out.

    Letters outside the IUPAC alphabet become N, with a warning; more than 1 % of them is no DNA.

    Raises
    ------
    InputError
        For an empty sequence or one that is not DNA.

    Examples
    --------
    >>> encode("ACGTn-a").tolist()
    [0, 1, 2, 3, 4, 0]
    """
    raw = sequence.encode("ascii", "replace") if isinstance(sequence, str) else sequence
    raw = b"".join(raw.split())
    codes = _CODES[np.frombuffer(raw, dtype=np.uint8)]
    codes = codes[codes != _GAP]
    if not len(codes):
        raise InputError(f"{name}: the record is empty, expected DNA letters (ACGTN)")
    foreign = codes == _FOREIGN
    if foreign.mean() > _FOREIGN_SHARE:
        letters = "".join(sorted(set(re.findall(r"[^ACGTUN\-.*\s]", raw.decode("ascii", "replace").upper()))))[:12]
        raise InputError(f"{name}: {foreign.mean():.0%} of the letters are not DNA ({letters}), at most 1 % may be")
    if foreign.any():
        warnings.warn(f"{name}: {int(foreign.sum())} letters outside the DNA alphabet were read as N", stacklevel=2)
        codes[foreign] = UNKNOWN
    return codes


def read_fasta(path: str | Path) -> dict[str, np.ndarray]:
    """Records of a FASTA file (plain or gzip) as codes, by the first word of their headers.

    Raises
    ------
    InputError
        When the file is missing, is not FASTA, repeats a name, holds an empty record or no DNA.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    data = path.read_bytes()
    if data[:2] == b"\x1f\x8b":
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError) as error:
            raise InputError(f"{path}: the gzip file is damaged ({error})") from error
    if not data.lstrip().startswith(b">"):
        raise InputError(f"{path}: not a FASTA file, expected a line that starts with '>'")
    records: dict[str, np.ndarray] = {}
    for number, part in enumerate(re.split(rb"^>", data.lstrip(), flags=re.MULTILINE)[1:], start=1):
        header, _, body = part.partition(b"\n")
        name = header.decode("utf-8", "replace").split()[0] if header.strip() else f"record {number}"
        if name in records:
            raise InputError(f"{path}: two records are named {name!r}")
        records[name] = encode(body, f"{path.name}, {name}")
    return records


def reverse_complement(codes: np.ndarray) -> np.ndarray:
    """The other strand, read in its own direction.

    >>> reverse_complement(encode("AACG")).tolist()
    [1, 2, 3, 3]
    """
    return _COMPLEMENT[codes[::-1]]


def corrupt(codes: np.ndarray, rate: float, seed: int = 0) -> np.ndarray:
    """Replace each base with probability `rate` by one of the other three; N and separators stay."""
    if not 0 <= rate <= 1:
        raise InputError(f"corrupt: the rate must lie in [0, 1], got {rate}")
    rng = np.random.default_rng([seed, 77])
    hit = (rng.random(len(codes)) < rate) & (codes < UNKNOWN)
    shifted = (codes + rng.integers(1, 4, size=len(codes), dtype=np.uint8)) % 4
    return np.where(hit, shifted, codes).astype(np.uint8)


def join(sequences: Sequence[np.ndarray]) -> np.ndarray:
    """One stream with a separator between sequences."""
    parts = [part for codes in sequences for part in (codes, np.array([SEPARATOR], dtype=np.uint8))]
    return np.concatenate(parts[:-1])


def regions(codes: np.ndarray, count: int = 10, length: int = 50_000) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Split one sequence into (kept pieces, held-out regions): `count` regions evenly spaced, the rest is kept.

    A random split of windows would leak: repeats and overlapping windows stand on both sides.
    """
    if count * length > len(codes) // 2:
        raise InputError(f"{count} regions of {length} bases take over half of {len(codes)} bases")
    starts = [int((k + 0.5) / count * len(codes)) - length // 2 for k in range(count)]
    held_out = [codes[start : start + length] for start in starts]
    edges = [0, *(edge for start in starts for edge in (start, start + length)), len(codes)]
    kept = [codes[a:b] for a, b in zip(edges[::2], edges[1::2], strict=True) if b > a]
    return kept, held_out
