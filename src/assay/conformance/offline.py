"""A region of code in which nothing reaches the network: IPv4 and IPv6 sockets, name look-ups and pip are refused."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["NetworkUse", "offline"]

_refusing = [False]
_hooked: list[bool] = []


class NetworkUse(AssertionError):
    """Something tried to reach the network."""


@contextmanager
def offline() -> Iterator[None]:
    """Refuse connections, look-ups of host names and `pip` for the length of the block."""
    if not _hooked:
        sys.addaudithook(_refuse)
        _hooked.append(True)
    before, _refusing[0] = _refusing[0], True
    try:
        yield
    finally:
        _refusing[0] = before


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    # An audit hook sees what C code does as well, and can't be taken out again: hence the switch.
    if not _refusing[0]:
        return
    if event in ("socket.connect", "socket.sendto", "socket.sendmsg", "socket.bind"):
        if arguments[0].family in (socket.AF_INET, socket.AF_INET6):
            raise NetworkUse(f"{event} to {arguments[1]}")
    elif event in ("socket.getaddrinfo", "socket.gethostbyname"):
        raise NetworkUse(f"{event} of {arguments[0]}")
    elif event == "subprocess.Popen" and "pip" in [str(word) for word in arguments[1] or ()]:
        raise NetworkUse("pip was started")
