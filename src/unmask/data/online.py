"""The Hugging Face Hub without waiting: where there is no network, its libraries retry for half a minute.

Inside `hub()` they are switched to their local caches when the Hub does not answer, so what was downloaded before
still works and everything else fails at once.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

PATIENCE = 3.0  # seconds


def reachable() -> bool:
    """Whether something listens where the Hub should be (behind a proxy we cannot tell, and say yes)."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return False
    if any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")):
        return True
    address = urlsplit(constants.ENDPOINT)
    port = address.port or (80 if address.scheme == "http" else 443)
    try:
        socket.create_connection((address.hostname or "", port), timeout=PATIENCE).close()
    except OSError:
        return False
    return True


def reason(error: BaseException, most: int = 200) -> str:
    """The beginning of what a library says, in one line."""
    return " ".join(str(error).split())[:most]


@contextmanager
def hub() -> Iterator[bool]:
    """Yields whether the Hub can be reached; if not, its libraries use only their caches."""
    from huggingface_hub import constants

    online = reachable()
    loaded = sys.modules.get("datasets.config")  # has another switch, if it is imported at all
    modules: list[Any] = [] if online else [constants, *([loaded] if loaded else [])]
    before = [module.HF_HUB_OFFLINE for module in modules]
    for module in modules:
        module.HF_HUB_OFFLINE = True
    try:
        yield online
    finally:
        for module, value in zip(modules, before, strict=True):
            module.HF_HUB_OFFLINE = value
