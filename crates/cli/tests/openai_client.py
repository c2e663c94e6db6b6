"""The PyPI openai client, unmodified, against `baton serve`: openai_client.py BASE_URL.

Checks what a reply must be, whoever computes it, and prints the replies as one line of JSON, which
must be equal for every world."""

import json
import sys

import openai
from openai import OpenAI

client = OpenAI(base_url=sys.argv[1], api_key="unused", max_retries=0)
MODEL = client.models.list().data[0].id
MESSAGES = [{"role": "user", "content": "tell me of the sea"}]
DRAWN = dict(model=MODEL, temperature=2, top_p=0.97, seed=7, max_tokens=32,
             extra_body={"return_token_ids": True, "ignore_eos": True, "top_k": 60})


def raises(kind, call):
    try:
        call()
    except kind as error:
        assert type(error) is kind, f"{type(error)} is not {kind}"
        return error
    raise AssertionError(f"{kind} was not raised")


def chat():
    reply = client.chat.completions.create(messages=MESSAGES, **DRAWN)
    choice = reply.choices[0]
    assert choice.message.role == "assistant" and choice.finish_reason == "length", choice
    assert reply.object == "chat.completion" and reply.model == MODEL, reply
    usage = reply.usage
    assert usage.completion_tokens == 32 == len(choice.token_ids), usage
    assert usage.total_tokens == usage.prompt_tokens + 32, usage
    return choice.message.content, choice.token_ids


def chat_stream():
    chunks = list(client.chat.completions.create(
        messages=MESSAGES, stream=True, stream_options={"include_usage": True}, **DRAWN))
    assert chunks[0].choices[0].delta.role == "assistant", chunks[0]
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == 32, chunks[-1]
    choices = [c.choices[0] for c in chunks if c.choices]
    assert [c.finish_reason for c in choices if c.finish_reason] == ["length"], choices
    ids = sum((c.token_ids for c in choices), [])
    return "".join(c.delta.content or "" for c in choices), ids


def stream_helper(stop):
    with client.chat.completions.stream(messages=MESSAGES, stop=[stop], **DRAWN) as stream:
        text = "".join(e.delta for e in stream if e.type == "content.delta")
        assert stream.get_final_completion().choices[0].message.content == text
    return text


def completion(**more):
    reply = client.completions.create(prompt=list(b"the quick brown fox"), **DRAWN, **more)
    return reply.choices[0].text, reply.choices[0].token_ids, reply.choices[0].finish_reason


def completion_stream():
    chunks = list(client.completions.create(prompt="the quick brown fox", stream=True, **DRAWN))
    ids = sum((c.choices[0].token_ids for c in chunks), [])
    return "".join(c.choices[0].text for c in chunks), ids


def errors():
    image = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]
    ask = client.chat.completions.create
    bad = [dict(messages=[{"role": "user", "content": image}]),
           dict(messages=MESSAGES, temperature=3),
           dict(messages=MESSAGES, tools=[{"type": "function", "function": {}}]),
           dict(messages=[{"role": "user", "content": "x" * 100_000}])]
    said = [raises(openai.BadRequestError, lambda: ask(model=MODEL, **b)) for b in bad]
    raises(openai.NotFoundError, lambda: client.models.retrieve("other"))
    return [(error.param, error.code) for error in said]


whole, streamed = chat(), chat_stream()
assert whole == streamed, (whole, streamed)
middle = whole[0][len(whole[0]) // 2:][:2]
assert stream_helper(middle) == whole[0][:whole[0].index(middle)]
text, ids, finish = completion()
assert finish == "length" and (text, ids) == completion_stream()
middle = text[len(text) // 2:][:2]
stopped, _, finish = completion(stop=[middle])
assert finish == "stop" and stopped == text[:text.index(middle)], (text, middle, stopped)
print(json.dumps({"model": MODEL, "chat": whole, "completion": [text, ids], "errors": errors(),
                  "client": openai.__version__}))
