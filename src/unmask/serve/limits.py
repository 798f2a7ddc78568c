"""Limits of one request and of all requests together, and how a request is refused."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path

import torch

from ..errors import UserError

SHARE = 4  # the caches of all models together get one part in so many of the memory


class Refusal(Exception):
    """An error answer: a status, one sentence, and the fields that OpenAI's clients expect of an error."""

    def __init__(
        self,
        status: int,
        message: str,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
        allow: str | None = None,
        linger: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.kind, self.param, self.code = status, message, kind, param, code
        self.retry_after, self.allow = retry_after, allow
        self.linger = linger  # seconds for which what the client still sends is read

    def body(self) -> dict[str, object]:
        """As JSON."""
        error = {"message": one_sentence(self.message), "type": self.kind, "param": self.param, "code": self.code}
        return {"error": error}


def one_sentence(text: str, most: int = 400) -> str:
    """A message on one line and not too long, since it may quote what a client sent."""
    line = " ".join(text.split()).encode("utf-8", "replace").decode()
    return line if len(line) <= most else line[: most - 1] + "…"


@dataclass(frozen=True)
class Limits:
    """All limits of a server."""

    batch: int = 32  # sequences per network call
    queue: int = 256  # sequences that wait, of all requests together
    tokens: int = 262_144  # in all sequences that wait or are under way
    cache: int | None = None  # bytes of keys and values that a model keeps; None: its part of a quarter of the memory
    alternatives: int = 1_048_576  # tokens times `tops`, in the same sequences
    length: int = 4096  # tokens of one sequence
    steps: int = 4096
    n: int = 64  # samples of one request
    texts: int = 64  # texts of one score
    body: int = 1_048_576  # bytes
    bodies: int = 67_108_864  # bytes of all bodies that are being read or prepared
    words: int = 8192  # in all rules of one request
    sums: int = 1 << 24  # in a step, for what the texts of a request must be: positions times transitions
    header: int = 32_768  # bytes of all header lines of a request
    timeout: float = 300.0  # seconds from a request to its last token
    read_timeout: float = 10.0  # seconds for the header lines, and again for the body
    linger: float = 1.0  # seconds for which a refused client may go on sending before the connection is closed
    grace: float = 20.0  # seconds that a stopping server gives to running requests
    connections: int = 1024  # at a time
    buffer: int = 256  # events that wait for a slow reader before they are merged

    def __post_init__(self) -> None:
        for field in fields(self):
            value, least = getattr(self, field.name), 0 if field.name in ("queue", "grace") else 1
            if value is None:
                continue
            if field.type == "float" and field.name != "grace":
                least = 0.01  # type: ignore[assignment]
            if not least <= value < 2**50:
                raise UserError(f"the limit {field.name}={value} must be a number, and at least {least}")


def cache_for(devices: Iterable[torch.device], models: int) -> int:
    """Bytes of keys and values that each of so many models may keep if nobody says."""
    return min(map(_memory, devices)) // SHARE // max(1, models)


def _memory(device: torch.device) -> int:
    """The memory of a device; on the CPU that of the machine, or of the container that this process is in."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    try:
        machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # not on Windows
        machine = 8 * 2**30
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        try:
            machine = min(machine, int((Path("/sys/fs/cgroup") / name).read_text()))
        except (OSError, ValueError):  # another system, or "max"
            continue
    return machine


def megabytes(count: int) -> str:
    """A number of bytes in words."""
    return f"{count / 1e6:,.1f} MB" if count < 1e8 else f"{count / 1e6:,.0f} MB"
