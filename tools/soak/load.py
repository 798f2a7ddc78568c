"""A server under 128 clients: right and wrong requests, disconnects, slow readers and writers, bytes that are not HTTP.

It stays alive, keeps its memory, answers nothing with 5xx except the documented 503, and writes under load the texts
that it writes for a lone client with the same seed.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from bodies import ENDPOINTS, OPEN, WRONG, alike, answered, get, good, not_http, post
from ledger import Ledger, Lost, hold, say
from trainings import environment

CLIENTS = 128
POOL = 80  # different right requests
LONGEST, QUICK = 1500.0, 120.0  # seconds after which no request is begun
WARM = 2000  # requests after which memory is compared
PATIENCE = 300.0  # seconds for one answer
KINDS = {
    "right": "requests over all endpoints, with the answer of a lone client",
    "pages": "requests for the page, metrics, models and documents",
    "wrong": "malformed JSON, wrong types, huge numbers, deep nesting",
    "bytes": "malformed HTTP, wrong paths and methods",
    "gone": "clients that disconnect in the request or in the answer",
    "slow writer": "clients that write slowly",
    "slow reader": "clients that read slowly",
}
SHARES = {"right": 40, "pages": 10, "wrong": 18, "bytes": 14, "gone": 10, "slow writer": 4, "slow reader": 4}


def run(ledger: Ledger) -> None:
    """10,000 requests."""
    total = ledger.count or (600 if ledger.quick else 10_000)
    said = ledger.work / "said"
    with serving(said) as (process, port):
        asyncio.run(_all(ledger, port, process.pid, total))
        with ledger.case("the server ends after SIGTERM, without a traceback", 0):
            process.send_signal(signal.SIGTERM)
            code = process.wait(60)
            words = said.read_text(errors="replace")
            hold(code in (0, -signal.SIGTERM), f"exit code {code}")
            hold("Traceback" not in words and "Exception" not in words, words[-3000:])


@contextmanager
def serving(said: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """`unmask serve tiny-en` in a process."""
    command = [sys.executable, "-m", "unmask", "serve", "tiny-en", "--port", "0"]
    with said.open("wb") as file:
        process = subprocess.Popen(
            command, env=environment(OMP_NUM_THREADS="2", OMP_WAIT_POLICY="passive"), stdout=file, stderr=file
        )
    try:
        deadline = time.monotonic() + 120
        while not (match := re.search(r"http://127\.0\.0\.1:(\d+)", said.read_text(errors="replace"))):
            hold(process.poll() is None and time.monotonic() < deadline, f"no server: {said.read_text()}")
            time.sleep(0.1)
        yield process, int(match[1])
    finally:
        process.kill()
        process.wait()


async def _all(ledger: Ledger, port: int, server: int, total: int) -> None:
    rng = random.Random(f"{ledger.seed}/pool")
    client = Client(port)
    pool = []
    for _ in range(min(POOL, total // 8)):
        path, body = good(rng)
        status, answer = await client.talk(post(path, json.dumps(body).encode()))
        hold(status == 200, f"a lone request failed: {path} {body}: {status} {answer[:300]!r}")
        pool.append((path, body, answered(path, answer)))
    numbers = iter(range(total)) if ledger.only is None else iter([ledger.only])
    deadline = time.monotonic() + (QUICK if ledger.quick else LONGEST)
    sizes, overload = [], Counter[int]()

    async def work() -> None:
        for number in numbers:
            if time.monotonic() > deadline:
                return
            rng = random.Random(f"{ledger.seed}/load/{number}")
            kind = rng.choices(list(SHARES), list(SHARES.values()))[0]
            with ledger.case(KINDS[kind], number, kind):
                status = await asyncio.wait_for(_once(client, kind, rng, pool), PATIENCE)
                overload[status] += status in (429, 503)
            if number % max(1, total // 20) == 0:
                sizes.append(memory(server))
                say(f"  {number} of {total} requests, {sizes[-1]:.0f} MB")

    await asyncio.gather(*(work() for _ in range(CLIENTS)))
    await _after(ledger, client, server, sizes)
    if left := sum(1 for _ in numbers):
        ledger.notes.append(f"time was up with {left + CLIENTS:,} of {total:,} requests not sent")
    refused = ", ".join(f"{count} with {status}" for status, count in sorted(overload.items()) if count)
    ledger.notes.append(f"answers that said that the server is busy: {refused or 'none'}")


async def _after(ledger: Ledger, client: Client, server: int, sizes: list[float]) -> None:
    """Nothing is left in the server."""
    with ledger.case("the server afterwards: healthy, no sequence left, memory as after a third", 0):
        for _ in range(100):
            status, answer = await client.talk(get("/metrics"))
            rows = re.search(rb"^unmask_rows ([\d.]+)", answer, re.MULTILINE)
            if rows and float(rows[1]) == 0:
                break
            await asyncio.sleep(0.5)
        hold(rows and float(rows[1]) == 0, f"sequences are left: {rows and rows[0]!r}")
        await asyncio.sleep(4)  # an idle server gives freed memory back
        status, answer = await client.talk(get("/health"))
        hold(status == 200 and b'"ok"' in answer, f"health: {status} {answer!r}")
        early, late = max(sizes[: max(1, len(sizes) // 3)]), memory(server)
        if len(sizes) > 3:
            ledger.notes.append(f"memory of the server: {early:.0f} MB after a third, {late:.0f} MB at the end")
            tried = sum(row["tried"] for row in ledger.rows.values())
            hold(tried < WARM or late < 1.1 * early + 32, f"memory grew from {early:.0f} to {late:.0f} MB")


def memory(process: int) -> float:
    """Megabytes that a process occupies."""
    match = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{process}/status").read_text())
    assert match is not None
    return int(match[1]) / 1024


class Client:
    """Raw connections to the server."""

    def __init__(self, port: int) -> None:
        self.port = port

    async def talk(self, data: bytes, size: int | None = None, pause: float = 0.0, sip: int = 0) -> tuple[int, bytes]:
        """Send (in parts of `size`, with pauses), read all (in sips, with pauses): status and body; 0 if closed."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 26)
        try:
            with suppress(ConnectionError):
                for at in range(0, len(data), size or len(data)):
                    writer.write(data[at : at + (size or len(data))])
                    await writer.drain()
                    await asyncio.sleep(pause if size else 0)
            answer = b""
            with suppress(ConnectionError):
                while part := await reader.read(sip or 1 << 16):
                    answer += part
                    if sip:
                        await asyncio.sleep(pause)
            return _parsed(answer)
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    async def leave(self, data: bytes, sent: int, wait: float, read: int) -> None:
        """Send a part of a request, wait, read a little, and go."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        with suppress(ConnectionError):
            writer.write(data[:sent])
            await writer.drain()
            await asyncio.sleep(wait)
            if read:
                with suppress(TimeoutError):
                    await asyncio.wait_for(reader.read(read), 1.0)
        writer.transport.abort()


def _parsed(answer: bytes) -> tuple[int, bytes]:
    """Status and body of an answer; chunks are put together."""
    if not answer:
        return 0, b""
    head, _, body = answer.partition(b"\r\n\r\n")
    match = re.match(rb"HTTP/1\.1 (\d{3})", head)
    hold(match, f"the answer is not HTTP: {answer[:100]!r}")
    assert match is not None
    if b"transfer-encoding: chunked" in head.lower():
        whole = b""
        while body:
            size, _, body = body.partition(b"\r\n")
            whole, body = whole + body[: int(size, 16)], body[int(size, 16) + 2 :]
        body = whole
    return int(match[1]), body


async def _once(client: Client, kind: str, rng: random.Random, pool: list[tuple[str, dict, object]]) -> int:
    """One request of a kind; gives the status, 0 where there was no answer."""
    path, body, expected = rng.choice(pool)
    whole = post(path, json.dumps(body).encode())
    if kind == "gone":
        sent = rng.randrange(1, len(whole)) if rng.random() < 0.4 else len(whole)
        await client.leave(whole, sent, rng.uniform(0, 0.3), rng.choice([0, 1, 300]))
        return 0
    if kind == "pages":
        status, _ = await client.talk(get(rng.choice(OPEN)))
        hold(status in (200, 204, 429, 503), f"status {status}")
        return status
    if kind == "wrong":
        place, wrong = rng.choice(ENDPOINTS), rng.choice(WRONG)
        status, answer = await client.talk(post(place, wrong))
        harmless = status == 200 and place in ("/v1/score", "/v1/tokenize")  # a text with braces is a text
        hold(
            400 <= status < 500 or status == 503 or harmless,
            f"{place} {wrong[:80]!r}: status {status} {answer[:200]!r}",
        )
        if not harmless:
            _explained(answer)
        return status
    if kind == "bytes":
        data = not_http(rng)
        status, answer = await client.talk(data)
        hold(status < 500 or status == 503, f"{data[:80]!r}: status {status} {answer[:200]!r}")
        hold(b"root:" not in answer and b"Traceback" not in answer, f"{data[:80]!r}: {answer[:200]!r}")
        return status
    return await _right(client, kind, rng, whole, (path, body, expected))


async def _right(client: Client, kind: str, rng: random.Random, whole: bytes, asked: tuple[str, dict, object]) -> int:
    """A right request, whole, slowly written or slowly read: the answer is that of a lone client, or it is refused."""
    path, body, expected = asked
    for _ in range(20):
        if kind == "slow writer":
            late = rng.random() < 0.2
            parts, pause = (2, 14.0) if late else (rng.randrange(3, 12), rng.uniform(0.05, 0.5))
            status, answer = await client.talk(whole, size=max(1, len(whole) // parts), pause=pause)
            if late:
                hold(status in (0, 408), f"a client that stopped sending got {status} {answer[:200]!r}")
                return status
        elif kind == "slow reader":
            status, answer = await client.talk(whole, pause=0.05, sip=rng.choice([64, 512]))
        else:
            status, answer = await client.talk(whole)
        if status in (429, 503):
            _explained(answer)
            if path in ("/v1/score", "/v1/marginals"):
                return status
            await asyncio.sleep(rng.uniform(0.5, 2))
            continue
        hold(status == 200, f"{path} {body}: status {status} {answer[:300]!r}")
        seen = answered(path, answer)
        if not alike(seen, expected):
            raise Lost(
                f"{path} {body}: another answer than to a lone client: {str(seen)[:300]} not {str(expected)[:300]}"
            )
        return status
    return status


def _explained(answer: bytes) -> None:
    """An error is one sentence in JSON, and reveals nothing."""
    message = json.loads(answer)["error"]["message"]
    hold(message and "\n" not in message and "Traceback" not in message and "/work" not in message, f"{message!r}")
