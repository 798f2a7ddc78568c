"""The second turn of a chat with a server: seconds to its first token, with the prefix cache and without.

python benchmarks/chat_turns.py MODEL [--template plain] [--words 400] [--tokens 16] [--rounds 3] [--threads 1]

The first message has so many words; the second turn asks on after the answer to it. Every round is a conversation of
its own. Seconds are those from the request to the first piece of text in a stream, as a client sees them, and the
processor seconds of the server until then, which do not depend on what else the machine does.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from unmask.text_tables import markdown_table

WORDS = "Once upon a time there was a little girl who loved to play in the park with her dog ."
STORY = WORDS.split()
Message = dict[str, str]


@contextlib.contextmanager
def serving(model: str, threads: int, *options: str) -> Iterator[tuple[int, int]]:
    """The port and the process of a server."""
    command = [sys.executable, "-m", "unmask", "serve", model, "--port", "0", *options]
    env = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=env) as process:
        assert process.stderr is not None
        try:
            for line in process.stderr:
                if found := re.search(r"at http://[^:]+:(\d+)", line):
                    yield int(found[1]), process.pid
                    break
            else:
                raise SystemExit("the server did not start")
        finally:
            process.terminate()


def cpu_seconds(process: int) -> float:
    """Processor seconds of a process so far."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def turn(port: int, process: int, messages: list[Message], tokens: int, seed: int) -> tuple[float, float, str]:
    """The answer, the seconds to its first piece, and the processor seconds."""
    body = {"messages": messages, "max_tokens": tokens, "seed": seed, "stream": True}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    begun, cpu, first, pieces = time.monotonic(), cpu_seconds(process), None, []
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    for line in connection.getresponse():
        data = line.decode().removeprefix("data: ").strip()
        if not data.startswith("{"):
            continue
        piece = json.loads(data)["choices"][0]["delta"].get("content") or ""
        if piece and first is None:
            first = time.monotonic() - begun, cpu_seconds(process) - cpu
        pieces.append(piece)
    connection.close()
    assert first is not None, "the answer is empty"
    return *first, "".join(pieces)


def main() -> None:
    """Two servers one after the other, and a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--template")
    parser.add_argument("--words", type=int, default=400)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    lines, answers = [["prefix cache", "turn", "seconds to the first token", "processor seconds"]], {}
    for cache in ("--no-prefix-cache", "--prefix-cache"):
        options = [cache, *(["--template", args.template] if args.template else [])]
        seconds: dict[int, list[tuple[float, float]]] = {1: [], 2: []}
        with serving(args.model, args.threads, *options) as (port, process):
            turn(port, process, [{"role": "user", "content": "Hi"}], 4, 0)  # the first call of a server is slower
            for k in range(args.rounds):
                words = [f"{k}:", *(STORY * (args.words // len(STORY) + 1))[: args.words]]
                messages = [{"role": "user", "content": " ".join(words)}]
                for number in seconds:
                    *taken, text = turn(port, process, messages, args.tokens, k)
                    seconds[number].append((taken[0], taken[1]))
                    answers.setdefault((k, number), set()).add(text)
                    messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "And then?"}]
        for number, taken in seconds.items():
            wall, cpu = (statistics.median(values) for values in zip(*taken, strict=True))
            lines.append([cache.removeprefix("--"), str(number), f"{wall:.3f}", f"{cpu:.3f}"])
    print(markdown_table(lines))
    print("same answers:", all(len(texts) == 1 for texts in answers.values()))


if __name__ == "__main__":
    main()
