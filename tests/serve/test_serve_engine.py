"""Continuous batching: requests join and leave between network calls, fairly, and nobody holds up anybody else."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from support.helpers import random_lm
from support.serving import (
    Clock,
    HeldNetwork,
    Running,
    ar_lm,
    diffusion_lm,
    parse_events,
    post_head,
    running,
    wait_for,
)
from unmask.data.tokenization import bytes_tokenizer
from unmask.process.keys import Keys
from unmask.sampling import Batcher, FirstHitting, LeftToRight, Request, RevealPlan
from unmask.sampling.trace import Change
from unmask.serve.handles import Done, RequestHandle, Step
from unmask.serve.limits import Limits
from unmask.serve.threads import WORKER

LONG = {"length": 48, "sampler": "first-hitting", "seed": 1}  # 48 network calls


# -- the batcher ---------------------------------------------------------------------------------------------------


def make_requests(lm, lengths: list[int]) -> list[Request]:
    mask = lm.tokenizer.vocab.mask
    plans = [FirstHitting(), RevealPlan(7), LeftToRight(3)]
    return [Request(i, torch.full((n,), mask), plans[i % 3], Keys(i)) for i, n in enumerate(lengths)]


def write_out(batcher: Batcher, requests: list[Request]) -> tuple[dict[int, list[int]], list[list[int]]]:
    """(text of each row, rows of each step)."""
    for request in requests:
        batcher.add(request)
    texts, steps = {}, []
    with torch.no_grad():
        while batcher.busy:
            states = [state for state, _ in batcher.step()]
            steps.append([state.row for state in states])
            texts |= {state.row: state.canvas.tolist() for state in states if state.done}
    return texts, steps


def test_taking_turns_changes_no_text():
    lm = diffusion_lm()
    lm.model.eval()
    requests = make_requests(lm, [5, 40, 12, 33, 48, 1, 9, 20])
    expected = {}
    for request in requests:
        expected |= write_out(Batcher(lm.model, 1), [request])[0]
    for size, share in ((8, None), (3, None), (8, 1), (8, 16), (3, 4)):
        assert write_out(Batcher(lm.model, size, share), requests)[0] == expected


def test_a_long_sequence_goes_less_often_and_short_ones_every_time():
    lm = diffusion_lm()
    mask = lm.tokenizer.vocab.mask
    requests = [Request(0, torch.full((48,), mask), LeftToRight(), Keys(0))]
    requests += [Request(i, torch.full((6,), mask), LeftToRight(), Keys(i)) for i in range(1, 5)]
    batcher = Batcher(lm.model, 5, 6)
    _, steps = write_out(batcher, requests)
    assert all(set(rows) >= {1, 2, 3, 4} for rows in steps[:6])  # they need six steps, and take six
    assert [0 in rows for rows in steps[:6]].count(True) == 1  # 48 tokens are eight shares
    assert steps[7:] == [[0]] * len(steps[7:])  # alone it goes every time
    assert not batcher._saved and not batcher.active


def test_rows_of_like_lengths_go_together_and_padding_is_cut():
    lm, seen = diffusion_lm(), []
    lm.model.eval()
    hidden = lm.model.hidden

    def watched(z, *more):
        seen.append(tuple(z.shape))
        return hidden(z, *more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("unmask.sampling.token_step.TOKENS_AT_ONCE", 96)
        patch.setattr(lm.model, "hidden", watched)
        write_out(Batcher(lm.model, 8), make_requests(lm, [48, 4, 47, 5, 6, 4])[:6])
    assert seen[0] == (4, 6) and seen[1] == (2, 48)


def test_blocks_of_several_requests_go_together():
    lm = random_lm(bytes_tokenizer(), "data.length=24", "model.method=ssd-lm", "simplex.block=8", scale=1.0)
    with running({"blocks": lm}) as server, ThreadPoolExecutor(3) as pool:
        bodies = [{"prompt": "a", "length": 20, "seed": i, "steps": 3} for i in range(3)]
        answers = list(pool.map(lambda body: server.post("/v1/infill", body), bodies))
        for i, answer in enumerate(answers):
            (sample,) = lm.write([lm.prompt_canvas("a", 20)], seed=i, steps=3)
            assert answer.json["samples"][0]["text"] == sample.text


# -- a buffer for a slow reader --------------------------------------------------------------------------------------


def test_a_full_buffer_merges_steps_and_keeps_what_they_say():
    import asyncio

    async def go() -> None:
        handle = RequestHandle("tiny", [], timeout=1, buffer=4)
        canvases, truth = [{}, {}], [{}, {}]
        for i in range(200):
            index, position = i % 2, (i // 2) % 10
            change = Change(position, i, 0.5)
            truth[index][position] = i
            handle.put(Step(index, i, 0.5, i, (change,), torch.zeros(0), 0))
        events = await handle.take()
        assert len(events) <= 5
        for event in events:
            canvases[event.index] |= {change.position: change.token for change in event.changes}
        assert canvases == truth and [max(e.calls for e in events if e.index == i) for i in (0, 1)] == [198, 199]

    asyncio.run(go())


def test_a_reader_that_does_not_read_holds_up_nobody():
    lm, body = diffusion_lm(), {**LONG, "n": 16, "tops": 10}
    with running({"tiny": lm}, Limits(grace=1.0, buffer=8, batch=4), send_buffer=4096) as server:
        slow = socket.socket()
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        slow.connect(("127.0.0.1", server.port))
        slow.sendall(post_head(body))
        slow.settimeout(30)
        wait_for(lambda: server.metric('unmask_sequences_total{end="done"}') >= 16)  # and it has read nothing
        assert server.post("/v1/infill", {"prompt": "a", "length": 9}).status == 200
        data = b""
        while not data.endswith(b"\r\n0\r\n\r\n"):
            data += (got := slow.recv(65536))
            assert got
        slow.close()
    chunks = re.sub(rb"\r\n[0-9a-f]+\r\n", b"", b"\r\n" + data.partition(b"\r\n\r\n")[2])
    events = parse_events(chunks.removesuffix(b"\r\n").decode())
    assert sum(name == "step" for name, _ in events) < 16 * 48  # some of them were merged
    canvases = [[None] * 48 for _ in range(16)]
    for name, event in events:
        for position, token, *_ in event["changes"] if name == "step" else ():
            canvases[event["index"]][position] = token
    samples = lm.write_samples(16, length=48, sampler="first-hitting", seed=1)
    assert canvases == [sample.ids for sample in samples]
    assert [event["text"] for name, event in events if name == "done"] == [sample.text for sample in samples]


# -- places ----------------------------------------------------------------------------------------------------------


def requests_of(server: Running) -> list[RequestHandle]:
    return [handle for queue in server.engine._queues.values() for handle in queue.handles]


def test_a_client_that_goes_away_frees_its_places_at_once():
    network = HeldNetwork()
    with running({"tiny": network.lm}, Limits(batch=2, queue=2, grace=1.0)) as server:
        for path, body in (
            ("/v1/diffusion", {**LONG, "n": 4}),
            ("/v1/infill", {**LONG, "prompt": "a", "n": 4}),
            ("/v1/completions", {"prompt": "a", "max_tokens": 47, "n": 4, "stream": True, "sampler": "first-hitting"}),
        ):
            network.hold()
            before = server.metric('unmask_sequences_total{end="cancelled"}')
            sock = server.connect()
            sock.sendall(post_head(body, path))
            wait_for(lambda: server.engine.active == 2)
            assert server.post("/v1/infill", {"prompt": "a", "length": 4}).status == 429
            sock.close()
            wait_for(lambda: all(handle.cancelled for handle in requests_of(server)))
            calls = network.calls
            network.release()
            wait_for(lambda: server.engine.rows == 0)
            assert network.calls - calls <= 1  # the call that was under way; 48 of them, twice, were to come
            assert server.metric('unmask_sequences_total{end="cancelled"}') - before == 4
            assert server.post("/v1/infill", {"prompt": "a", "length": 4}).status == 200


def test_what_can_never_fit_is_not_told_to_come_again():
    with running({"tiny": diffusion_lm()}, Limits(batch=1, queue=4, grace=1.0)) as server:
        answer = server.post("/v1/infill", {"prompt": "a", "length": 9, "n": 8})
        assert answer.status == 400 and answer.error["param"] == "n"


def test_a_full_queue_says_when_to_come_again():
    network = HeldNetwork()
    limits = Limits(batch=2, queue=1, grace=1.0)
    with running({"tiny": network.lm}, limits) as server, ThreadPoolExecutor(1) as pool:
        first = pool.submit(server.post, "/v1/infill", {**LONG, "prompt": "a", "n": 3})
        wait_for(lambda: server.engine.rows == 3)
        answer = server.post("/v1/infill", {"prompt": "a", "length": 4})
        assert answer.status == 429 and answer.error["code"] == "queue_full"
        assert 1 <= int(answer.headers["retry-after"]) <= 60
        network.release()
        assert len(first.result().json["samples"]) == 3
        assert server.post("/v1/infill", {"prompt": "a", "length": 4}).status == 200


def test_tokens_in_flight_are_limited():
    network = HeldNetwork()
    with running({"tiny": network.lm}, Limits(tokens=100, grace=1.0)) as server, ThreadPoolExecutor(2) as pool:
        first = pool.submit(server.post, "/v1/infill", {**LONG, "prompt": "a", "n": 2})
        wait_for(lambda: server.engine.rows == 2)
        assert server.post("/v1/infill", {"prompt": "a", "length": 5}).status == 429
        assert server.post("/v1/infill", {"prompt": "a", "length": 48, "n": 3}).status == 400  # would never fit
        second = pool.submit(server.post, "/v1/infill", {"prompt": "a", "length": 4})
        wait_for(lambda: server.engine.rows == 3)
        network.release()
        assert first.result().status == second.result().status == 200


def test_a_request_of_many_samples_does_not_keep_others_waiting(monkeypatch):
    network, ends, put = HeldNetwork(), [], RequestHandle.put

    def watched(handle: RequestHandle, event) -> None:
        if isinstance(event, Done):
            ends.append((len(handle.requests), network.calls))
        put(handle, event)

    monkeypatch.setattr(RequestHandle, "put", watched)
    with running({"tiny": network.lm}, Limits(batch=4, grace=1.0)) as server, ThreadPoolExecutor(2) as pool:
        many = pool.submit(server.post, "/v1/infill", {**LONG, "prompt": "a", "n": 16})
        wait_for(lambda: server.engine.active == 4)
        short = pool.submit(server.post, "/v1/infill", {"prompt": "a", "length": 4, "steps": 2})
        wait_for(lambda: server.engine.rows == 17)
        network.release()
        assert short.result().status == many.result().status == 200
    (calls,) = (calls for works, calls in ends if works == 1)
    assert calls < ends[-1][1] / 2  # 16 samples in four places take four times as long as one


def test_what_takes_too_long_is_ended():
    network, clock = HeldNetwork(), Clock()
    with running({"tiny": network.lm}, clock=clock) as server, ThreadPoolExecutor(2) as pool:
        waiting = [
            pool.submit(server.post, *what)
            for what in (("/v1/infill", {**LONG, "prompt": "a"}), ("/v1/diffusion", LONG))
        ]
        wait_for(lambda: server.engine.rows == 2)
        clock.now += server.engine.limits.timeout + 1
        network.release()
        plain, streamed = (one.result() for one in waiting)
        assert plain.status == 408 and plain.error["type"] == "timeout_error"
        name, data = streamed.events[-1]
        assert name == "error" and data["error"]["code"] == "timeout"
        assert server.engine.rows == 0
        assert server.post("/v1/infill", {"prompt": "a", "length": 5, "steps": 1}).status == 200


def test_a_network_that_fails_ends_its_requests_only(caplog):
    lm = diffusion_lm()
    broken = HeldNetwork().lm
    calls = []

    def fails(*given, **more):
        calls.append(1)
        raise RuntimeError("out of memory at /secret/path")

    object.__setattr__(broken.model, "hidden", fails)
    with running({"good": lm, "bad": broken}) as server:
        for _ in range(2):
            answer = server.post("/v1/infill", {"model": "bad", "prompt": "a", "length": 9})
            assert answer.status == 500 and "secret" not in answer.body.decode() and answer.error
        assert server.post("/v1/infill", {"model": "good", "prompt": "a", "length": 9}).status == 200
    assert len(calls) == 2 and "out of memory" in caplog.text


def test_a_text_that_cannot_be_read_ends_its_request_only(monkeypatch, caplog):
    from unmask.lm import LM

    finished = LM.finished

    def fails(self, request, state):
        if request.params.seed == 13:
            raise RuntimeError("the secret")
        return finished(self, request, state)

    monkeypatch.setattr(LM, "finished", fails)
    with running({"tiny": diffusion_lm()}) as server, ThreadPoolExecutor(4) as pool:
        bodies = [{"prompt": "a", "length": 20, "seed": seed, "n": 2} for seed in (1, 12, 5, 13)]
        answers = list(pool.map(lambda body: server.post("/v1/infill", body), bodies))
        assert [answer.status for answer in answers] == [200, 500, 200, 500]
        assert "secret" not in answers[1].body.decode() and answers[1].error
        assert server.engine.alive and server.engine.rows == 0


def test_autoregressive_requests_join_and_leave():
    lm = ar_lm()
    bodies = [{"prompt": "abc"[: i % 4], "length": 12 + 3 * i, "seed": i, "temperature": 0.9} for i in range(8)]
    with running({"ar": lm}, Limits(batch=3, grace=1.0)) as server, ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda body: server.post("/v1/infill", {"prompt": "", **body}), bodies))
    for body, answer in zip(bodies, answers, strict=True):
        canvas = lm.prompt_canvas(body["prompt"], body["length"])
        (sample,) = lm.write([canvas], seed=body["seed"], temperature=0.9)
        assert answer.json["samples"][0]["text"] == sample.text


def test_a_row_that_joins_with_a_long_prompt_reads_alone():
    """Others that are under way do not read as much again; the texts are those of each alone."""
    lm, seen = ar_lm(), []
    lm.model.eval()
    mask = lm.tokenizer.vocab.mask
    given = torch.cat([torch.arange(40), torch.full((8,), mask)])
    requests = [Request(i, torch.full((20,), mask), LeftToRight(), Keys(i)) for i in range(3)]
    late = Request(3, given, LeftToRight(), Keys(3))
    expected = {}
    for request in (*requests, late):
        expected |= write_out(lm.model.batcher(1), [request])[0]
    hook = lm.model.backbone.register_forward_pre_hook(lambda _, given: seen.append(tuple(given[0].tokens.shape)))
    try:
        batcher, texts = lm.model.batcher(4), {}
        for request in requests:
            batcher.add(request)
        for turn in range(40):
            if turn == 5:
                seen.clear()
                batcher.add(late)
            texts |= {state.row: state.canvas.tolist() for state, _ in batcher.step() if state.done}
            if turn == 5:
                assert sorted(seen) == [(1, 41), (3, 1)]  # the start symbol and its prompt
    finally:
        hook.remove()
    assert texts == expected


# -- what asks a network beside the engine ---------------------------------------------------------------------------


def test_scores_wait_in_a_queue_of_their_own(monkeypatch):
    from unmask.serve import api

    free = threading.Event()
    score = api._score
    monkeypatch.setattr(api, "_score", lambda *given: free.wait(20) and score(*given))
    monkeypatch.setattr(api, "QUEUED", 2)
    with running({"tiny": diffusion_lm()}) as server, ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(server.post, "/v1/score", {"text": "ab"}) for _ in range(2)]
        service = server.server.config.loaded_app.state.service
        wait_for(lambda: service._reading == 2)
        gaps = {"text": "a{{1-3}}"}
        for path, body in (("/v1/score", {"text": "ab"}), ("/v1/infill", gaps), ("/v1/marginals", gaps)):
            answer = server.post(path, body)
            assert answer.status == 429 and answer.error["code"] == "queue_full"
        assert server.post("/v1/infill", {"text": "a{{2}}"}).status == 200  # which needs no network to be laid out
        free.set()
        assert [one.result().status for one in waiting] == [200, 200]


def test_a_text_whose_gaps_have_ranges_is_that_of_the_library():
    lm = diffusion_lm()
    with running({"tiny": lm}) as server:
        found = server.post("/v1/infill", {"text": "ab {{1-4}} cd", "seed": 3}).json["samples"][0]
        (sample,) = lm.write([lm.gap_canvas("ab {{1-4}} cd")], seed=3)
        assert found["text"] == sample.text and found["gaps"] == sample.gaps


LONG_WORK = [  # more than a hundred network calls each
    ("/v1/infill", {"text": "a{{1-12}}b{{1-12}}"}),  # 144 lengths
    ("/v1/infill", {"text": "a{{" + " " * 60 + "1-12}}b{{" + "0" * 60 + "1-12}}"}),
    ("/v1/score", {"text": "ab" * 24, "method": "strata", "draws": 256, "calls": 64}),
    ("/v1/score", {"text": "ab" * 24, "method": "bound", "draws": 256}),
    ("/v1/score", {"text": "ab" * 24, "method": "orders", "orders": 256}),
    ("/v1/score", {"text": "ab" * 2400, "method": "pll"}),
    ("/v1/marginals", {"text": "a{{1-12}}b{{1-12}}"}),
]


def at_work() -> bool:
    return any(thread.name == WORKER for thread in threading.enumerate())


@pytest.mark.parametrize(
    ("path", "body"), LONG_WORK, ids=["gaps", "padded", "strata", "bound", "orders", "pll", "marginals"]
)
def test_work_beside_the_engine_ends_with_its_client(path, body):
    network = HeldNetwork()
    with running({"tiny": network.lm}) as server:
        service = server.server.config.loaded_app.state.service
        with server.connect() as client:
            client.sendall(post_head(body, path))
            wait_for(lambda: network.calls)
        wait_for(lambda: service._reading == 0)
        network.release()
        wait_for(lambda: not at_work())
        assert network.calls <= 2


def test_work_beside_the_engine_and_what_waits_for_it_have_a_deadline():
    network = HeldNetwork()
    with running({"tiny": network.lm}, Limits(timeout=0.2, grace=1.0)) as server, ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(server.post, *one) for one in (LONG_WORK[2], LONG_WORK[3], LONG_WORK[0])]
        for one in waiting:
            answer = one.result()
            assert answer.status == 408 and answer.error["type"] == "timeout_error"
        network.release()


# -- the end ---------------------------------------------------------------------------------------------------------


def test_a_stopping_server_finishes_what_runs():
    network = HeldNetwork()
    with running({"tiny": network.lm}, Limits(grace=20.0)) as server, ThreadPoolExecutor(1) as pool:
        running_one = pool.submit(server.post, "/v1/diffusion", LONG)
        wait_for(lambda: server.engine.active == 1)
        server.server.should_exit = True
        wait_for(lambda: server.engine.draining)
        network.release()
        answer = running_one.result()
        assert answer.status == 200 and answer.events[-1][0] == "end"
        with pytest.raises(OSError):  # noqa: PT011
            server.connect(1)


def test_a_stopping_server_reports_what_it_cannot_finish():
    network = HeldNetwork()
    with running({"tiny": network.lm}, Limits(grace=0.1)) as server, ThreadPoolExecutor(2) as pool:
        streamed, plain = (
            pool.submit(server.post, *what)
            for what in (("/v1/diffusion", LONG), ("/v1/infill", {**LONG, "prompt": "a"}))
        )
        wait_for(lambda: server.engine.rows == 2)
        server.server.should_exit = True
        wait_for(lambda: server.engine.ended)
        network.release()
        name, data = streamed.result().events[-1]
        assert name == "error" and data["error"]["code"] == "shutdown"
        assert plain.result().status == 503 and plain.result().error


def test_the_command_prints_its_address_and_ends_at_a_signal():
    words = [sys.executable, "-m", "unmask", "serve", "tiny-en", "--port", "0", "--grace", "60"]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    try:
        line = process.stderr.readline()
        port = int(line.rpartition(":")[2].split()[0])
        assert line.startswith("serving tiny-en (block, 1 token a block) at http://127.0.0.1:")
        server = Running(None, None, threading.current_thread(), port)  # type: ignore[arg-type]
        wait_for(lambda: server.get("/health").status == 200)
        text = server.post("/v1/completions", {"prompt": "Once", "max_tokens": 4, "seed": 0}).json["choices"][0]["text"]
        assert text
        with ThreadPoolExecutor(1) as pool:
            last = pool.submit(server.post, "/v1/diffusion", {"length": 128, "sampler": "first-hitting"})
            wait_for(lambda: server.metric("unmask_rows_active") >= 1)
            process.send_signal(signal.SIGTERM)
            assert parse_events(last.result().body.decode())[-1][0] == "end"
        assert process.wait(60) in (0, -signal.SIGTERM)
        assert "Traceback" not in process.stderr.read()
    finally:
        process.kill()
        process.wait()


@pytest.mark.slow
@pytest.mark.parametrize("method", ["mdlm", "block", "ar"])
def test_the_benchmark_runs(tmp_path, method):
    root = Path(__file__).parents[2]
    words = [
        "--network",
        "toy",
        "--method",
        method,
        "--block",
        "8",
        "--length",
        "32",
        "--requests",
        "8",
        "--repeats",
        "2",
        "--tiny",
        "20",
        "--threads",
        "1",
        "--clients",
        "1",
        "4",
        "--batch",
        "4",
        "--json",
        str(tmp_path / "figures.json"),
    ]
    ran = subprocess.run(
        [sys.executable, str(root / "benchmarks" / "serve.py"), *words], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert set(figures["throughput"]) == {"offline", "1", "4", "one at a time"} and len(figures["memory_mb"]) == 10


def test_a_network_that_fails_on_one_text_fails_that_request_only():
    """NaN where a text holds "x": its request ends with the step; the other, in the same calls, is as it is alone."""
    lm = random_lm(bytes_tokenizer(), "data.length=48", "model.hidden_dim=32", scale=2.0)
    lm.model.load_state_dict(diffusion_lm().model.state_dict())
    hidden = lm.model.hidden

    def failing(z, *more):
        bad = (z == ord("x")).any(1)
        return torch.where(bad[:, None, None], float("nan"), hidden(z, *more))

    object.__setattr__(lm.model, "hidden", failing)
    body = {"sampler": "left-to-right", "seed": 3}
    with running({"tiny": lm}) as server, ThreadPoolExecutor(2) as pool:
        bad, good = pool.map(lambda text: server.post("/v1/infill", {**body, "text": text}), ["x{{6}}", "a{{6}}"])
        assert bad.status == 500 and "step 0 cannot be written: for 1 of 1 positions" in bad.json["error"]["message"]
        (alone,) = diffusion_lm().infill("a{{6}}", **body)
        assert good.status == 200 and good.json["samples"][0]["text"] == alone


def test_an_idle_engine_gives_memory_back_once(monkeypatch):
    calls = []
    monkeypatch.setattr("unmask.serve.engine.give_back", lambda: calls.append(1))
    monkeypatch.setattr("unmask.serve.engine.IDLE", 0.01)
    with running({"tiny": diffusion_lm()}, Limits(grace=1.0)) as server:
        assert not calls  # nothing was used yet
        for expected in (1, 2):
            assert server.post("/v1/diffusion", {"length": 4, "steps": 2}).status == 200
            wait_for(lambda expected=expected: len(calls) >= expected)
            threading.Event().wait(0.1)
            assert len(calls) == expected
