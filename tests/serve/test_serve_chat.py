"""Conversations over HTTP: OpenAI's own client talks to it, and the answers are those of the library."""

from __future__ import annotations

import json

import pytest
from tokenizers import AddedToken

from support.families import byte_tokenizer
from support.helpers import random_lm
from support.serving import Running, chat_lm, diffusion_lm, running
from unmask.data.chat import ChatTemplate
from unmask.data.tokenization import adopt

HELLO = [{"role": "user", "content": "Hello"}]
TURNS = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Yes?"},
    {"role": "user", "content": "Who?"},
]
METHODS = ("mdlm", "ar", "block")


@pytest.fixture(scope="module")
def server():
    with running({**{method: chat_lm(method) for method in METHODS}, "mute": diffusion_lm()}) as one:
        yield one


@pytest.fixture(scope="module")
def client(server: Running):
    openai = pytest.importorskip("openai")
    with openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", max_retries=0) as one:
        yield one


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("messages", [HELLO, TURNS], ids=["one message", "several turns"])
def test_an_answer_is_that_of_the_library(client, method, messages):
    lm = chat_lm(method)
    found = client.chat.completions.create(model=method, messages=messages, max_tokens=20, n=2, seed=3, temperature=0.9)
    assert found.object == "chat.completion" and found.model == method and found.id.startswith("chatcmpl-")
    expected = lm.chat(messages, 2, max_tokens=20, seed=3, temperature=0.9)
    assert [choice.message.content for choice in found.choices] == expected
    assert [choice.index for choice in found.choices] == [0, 1]
    assert {choice.message.role for choice in found.choices} == {"assistant"}
    assert found.usage.prompt_tokens == len(lm.chat_template.prompt(messages))
    assert found.usage.total_tokens == found.usage.prompt_tokens + found.usage.completion_tokens
    again = client.chat.completions.create(model=method, messages=messages, max_tokens=20, n=2, seed=3, temperature=0.9)
    assert [choice.message for choice in again.choices] == [choice.message for choice in found.choices]


@pytest.mark.parametrize("method", METHODS)
def test_a_stream_begins_with_the_role_and_adds_up_to_the_answer(client, method):
    """With its end: where the model says so (`stop`), or where there is no more room (`length`)."""
    lm, texts, reasons = chat_lm(method), ["", "", ""], [None] * 3
    begun, usage, pieces = set(), None, 0
    how = {"model": method, "messages": HELLO, "max_completion_tokens": 60, "n": 3, "seed": 5}
    for chunk in client.chat.completions.create(**how, stream=True, stream_options={"include_usage": True}):
        assert chunk.object == "chat.completion.chunk"
        if chunk.usage is not None:
            assert not chunk.choices
            usage = chunk.usage
        for choice in chunk.choices:
            assert (choice.delta.role == "assistant") == (choice.index not in begun)  # once, and first
            begun.add(choice.index)
            assert reasons[choice.index] is None  # nothing comes after the end
            texts[choice.index] += choice.delta.content or ""
            reasons[choice.index] = choice.finish_reason
            pieces += bool(choice.delta.content)
    whole = client.chat.completions.create(**how)
    assert texts == [choice.message.content for choice in whole.choices] == lm.chat(HELLO, 3, max_tokens=60, seed=5)
    assert reasons == [choice.finish_reason for choice in whole.choices]
    assert usage == whole.usage
    assert method != "ar" or pieces > 20  # as it is written


def test_answers_end_at_the_end_of_the_turn(client):
    lm = chat_lm()
    only = [*"abcdefgh", lm.tokenizer.vocab.eos]  # so that some of them end soon
    samples = lm.write([lm.chat_canvas(HELLO, 8)] * 16, seed=0, only=only, temperature=50)
    how = {"model": "mdlm", "messages": HELLO, "max_tokens": 8, "n": 16, "seed": 0, "temperature": 50}
    found = client.chat.completions.create(**how, extra_body={"only": only})
    assert [choice.finish_reason for choice in found.choices] == [
        "stop" if sample.stopped == "eos" else "length" for sample in samples
    ]
    assert {"stop", "length"} == {choice.finish_reason for choice in found.choices}
    assert not any(token.id == only[-1] for sample in samples for token in sample.tokens if not token.given)
    assert [choice.message.content for choice in found.choices] == [sample.text for sample in samples]
    through = client.chat.completions.create(**how, extra_body={"ignore_eos": True, "only": only})
    assert {choice.finish_reason for choice in through.choices} == {"length"}
    assert through.usage.completion_tokens == 16 * 8


def test_the_end_of_a_turn_need_not_be_that_of_a_text(client):
    """A template has a token of its own for it; both end an answer."""
    backend = byte_tokenizer()
    backend.add_special_tokens([AddedToken("<|im_start|>", special=True, normalized=False)])
    tokenizer = adopt(backend, "bytes", {"eos_token": "<|endoftext|>", "mask_token": "<|mask|>"})
    lm = random_lm(tokenizer, "data.length=96", "model.hidden_dim=32")
    lm.chat_template = ChatTemplate.named("chatml", tokenizer)
    end, eos = backend.token_to_id("<|im_end|>"), backend.token_to_id("<|endoftext|>")
    canvas, only = lm.chat_canvas(HELLO, 8), [*"abcdefgh", end, eos]
    assert lm.chat_template.end == end and canvas.ends == {end, eos}
    free = lm.write([canvas] * 24, seed=0, only=only, temperature=50, stop_at_eos=False)
    first = [next((t.id for t in one.tokens if not t.given and t.id in (end, eos)), None) for one in free]
    assert {end, eos, None} == set(first)
    for one, cut, which in zip(free, lm.write([canvas] * 24, seed=0, only=only, temperature=50), first, strict=True):
        written = [token.id for token in one.tokens if not token.given]
        kept = written if which is None else written[: written.index(which)]
        assert cut.text == tokenizer.decode(kept) and cut.stopped == ("length" if which is None else "eos")


def test_a_text_can_end_a_turn_too(client):
    """Of a template without a special token for it."""
    turn, begin = (
        "[{{ m.role }}]{{ m.content }}[/{{ m.role }}]\n",
        "{% if add_generation_prompt %}[assistant]{% endif %}",
    )
    lm = chat_lm("ar")
    template = ChatTemplate(lm.tokenizer, f"{{% for m in messages %}}{turn}{{% endfor %}}{begin}")
    assert template.end is None and template.end_text == "[/assistant]"
    free = lm.write([lm.prompt_builder.answer([1, 2], 60)] * 4, seed=1, stop_at_eos=False)
    letter = free[0].text[30]
    samples = lm.write([lm.prompt_builder.answer([1, 2], 60, stop=(letter,))] * 4, seed=1)
    assert [sample.text for sample in samples] == [sample.text.partition(letter)[0] for sample in free]
    assert samples[0].stopped == "stop"


def test_stop_words_cut_the_answer(client):
    how = {"model": "ar", "messages": HELLO, "max_tokens": 40, "seed": 2}
    whole = client.chat.completions.create(**how).choices[0].message.content
    letter = whole[len(whole) // 2]
    for stream in (False, True):
        answer = client.chat.completions.create(**how, stop=[letter], stream=stream)
        if stream:
            parts = [chunk.choices[0] for chunk in answer]
            text, reason = "".join(part.delta.content or "" for part in parts), parts[-1].finish_reason
        else:
            text, reason = answer.choices[0].message.content, answer.choices[0].finish_reason
        assert text == whole.partition(letter)[0] and reason == "stop"


def test_parts_of_text_and_what_a_client_sends_back(client):
    """A message of an answer goes back as it came, with all its empty fields."""
    first = client.chat.completions.create(model="mdlm", messages=HELLO, max_tokens=8, seed=1).choices[0].message
    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
    how = {"model": "mdlm", "max_tokens": 8, "seed": 1}
    again = client.chat.completions.create(messages=[{"role": "user", "content": parts}], **how).choices[0].message
    assert again == first
    turns = [*HELLO, first.model_dump(), {"role": "user", "content": "And?"}]
    answer = client.chat.completions.create(model="mdlm", messages=turns, max_tokens=8, seed=1)
    plain = [*HELLO, {"role": "assistant", "content": first.content}, turns[-1]]
    assert answer.choices[0].message.content == chat_lm().chat(plain, max_tokens=8, seed=1)[0]
    developer = [{**TURNS[0], "role": "developer"}, *TURNS[1:]]
    how = {"model": "ar", "max_tokens": 9, "seed": 1}
    same = [client.chat.completions.create(messages=one, **how).choices[0].message for one in (TURNS, developer)]
    assert same[0] == same[1]


def test_settings_and_forms_go_beside_the_messages(client):
    more = {"sampler": "confidence", "steps": 4, "k": None}
    found = client.chat.completions.create(model="mdlm", messages=HELLO, max_tokens=12, seed=4, extra_body=more)
    assert (
        found.choices[0].message.content
        == chat_lm().chat(HELLO, max_tokens=12, seed=4, sampler="confidence", steps=4)[0]
    )
    for form in (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": ["yes", "no"]}}}},
        {"extra_body": {"guided_choice": ['"yes"', '"no"']}},
        {"extra_body": {"guided_regex": '"(yes|no)"'}},
        {"extra_body": {"choices": ['"yes"', '"no"']}},
    ):
        found = client.chat.completions.create(model="mdlm", messages=HELLO, max_tokens=12, seed=4, **form).choices[0]
        assert json.loads(found.message.content) in ("yes", "no") and found.finish_reason == "stop"


def test_log_probabilities(client):
    how = {"model": "ar", "messages": HELLO, "max_tokens": 12, "seed": 2}
    found = client.chat.completions.create(**how, logprobs=True, top_logprobs=3).choices[0]
    tokens = found.logprobs.content
    for token in tokens:
        best = [top.logprob for top in token.top_logprobs]
        assert len(best) == 3 and best == sorted(best, reverse=True) and token.logprob <= best[0] + 1e-3
        assert bytes(token.bytes).decode() == token.token
    assert client.chat.completions.create(**how).choices[0].logprobs is None
    (sample,) = chat_lm("ar").write([chat_lm("ar").chat_canvas(HELLO, 12)], seed=2)
    assert [token.token for token in tokens] == [token.piece for token in sample.tokens if not token.given]


def test_every_step_of_an_answer(server: Running):
    """What the page shows: the events of /v1/diffusion, for a conversation."""
    lm = chat_lm()
    answer = server.post("/v1/diffusion", {"model": "mdlm", "messages": TURNS, "max_tokens": 16, "seed": 7, "steps": 4})
    (_, start), *steps, _, _ = answer.events
    tokens = start["samples"][0]["tokens"]
    given = lm.chat_template.prompt(TURNS)
    assert [token["id"] for token in tokens] == [*given, *[None] * 16]
    done = next(data for name, data in answer.events if name == "done")
    assert done["text"] == lm.chat(TURNS, max_tokens=16, seed=7, steps=4)[0]
    assert min(change[0] for _, data in steps for change in data["changes"]) == len(given)


WRONG = [
    ({"messages": []}, "not empty"),
    ({}, "messages"),
    ({"messages": "Hi"}, "messages"),
    ({"messages": [{"role": "user"}]}, "no content"),
    ({"messages": [{"content": "Hi"}]}, "messages"),
    ({"messages": [*HELLO, *HELLO]}, "assistant is expected"),
    ({"messages": TURNS[2:]}, "user is expected"),
    ({"messages": TURNS[:3]}, "end with one of the role user"),
    ({"messages": TURNS[:1]}, "add one of the role user"),
    ({"messages": [*HELLO, TURNS[0]]}, "only the first"),
    ({"messages": [{"role": "robot", "content": "Hi"}]}, "robot"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, "'image_url'"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "text only"),
    ({"messages": [{"role": "assistant", "content": "x", "tool_calls": [{"id": "1"}]}]}, "'tool_calls'"),
    ({"messages": [{"role": "user", "content": "x" * 200}]}, "reads and writes 96 tokens"),
    ({"messages": HELLO, "max_tokens": 90}, "reduce max_tokens"),
    ({"messages": HELLO, "max_tokens": 2**30}, "max_tokens"),
    ({"messages": HELLO, "max_tokens": 0}, "max_tokens"),
    ({"messages": HELLO, "max_tokens": 5, "max_completion_tokens": 6}, "give one"),
    ({"messages": HELLO, "top_logprobs": 2}, "logprobs"),
    ({"messages": HELLO, "presence_penalty": 1}, "presence_penalty"),
    ({"messages": HELLO, "tools": []}, "unknown field 'tools'"),
    ({"messages": HELLO, "prompt": "x"}, "unknown field 'prompt'"),
    ({"messages": HELLO, "model": "mute"}, "--template plain"),
]


@pytest.mark.parametrize(("body", "words"), WRONG, ids=range(len(WRONG)))
def test_what_is_wrong_is_said_in_one_sentence(server: Running, body, words):
    for more in ({}, {"stream": True}):
        answer = server.post("/v1/chat/completions", body | more)
        assert answer.status == 400 and words in answer.error["message"], answer.error
        if list(body) == ["messages"]:
            assert answer.error["param"] == "messages"
    if "messages" in body and {"max_completion_tokens", "top_logprobs", "presence_penalty", "tools"}.isdisjoint(body):
        assert server.post("/v1/diffusion", body).status == 400


def test_a_conversation_that_is_too_long_has_openais_code(server: Running):
    answer = server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "x" * 200}]})
    assert answer.error["code"] == "context_length_exceeded" and answer.error["param"] == "messages"
    assert server.post("/v1/diffusion", {"prompt": "x", "max_tokens": 3}).error["param"] == "max_tokens"
    assert server.post("/v1/chat/completions", {"messages": HELLO, "model": "mute"}).error["code"] == "no_chat_template"


def test_models_say_whether_they_chat(server: Running):
    cards = {card["id"]: card["unmask"]["chat_template"] for card in server.get("/v1/models").json["data"]}
    assert cards == {"mdlm": "plain", "ar": "plain", "block": "plain", "mute": None}
    known = server.get("/openapi.json").json["paths"]["/v1/chat/completions"]["post"]
    assert known["operationId"] == "chat_completions"
    assert set(known["responses"]["200"]["content"]) == {"application/json", "text/event-stream"}


def test_an_answer_without_a_length_fits_into_the_model(server: Running):
    body = {"messages": HELLO, "ignore_eos": True, "seed": 1}
    answer = server.post("/v1/chat/completions", body).json
    assert answer["usage"]["total_tokens"] == 96 and answer["choices"][0]["finish_reason"] == "length"


def test_a_template_that_begins_answers_in_another_way_is_served(client):
    """As those that make a model think first: its earlier answers are without thoughts."""
    lm, begin = chat_lm("ar"), "{% if add_generation_prompt %}[assistant]<think>{% endif %}"
    turn = "[{{ m.role }}]{{ m.content }}{% if m.role == 'assistant' %}{{ eos_token }}{% endif %}"
    template = ChatTemplate(lm.tokenizer, f"{{% for m in messages %}}{turn}{{% endfor %}}{begin}")
    assert template.stops() == (lm.tokenizer.vocab.eos,) and template.end_text == ""
    assert lm.tokenizer.decode(template.prompt(HELLO)) == "[user]Hello[assistant]<think>"
