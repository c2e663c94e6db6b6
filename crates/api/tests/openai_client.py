"""The PyPI openai client, unmodified, against the scripted server: openai_client.py BASE_URL."""

import sys

import openai
from openai import OpenAI

client = OpenAI(base_url=sys.argv[1], api_key="unused", max_retries=0)
MODEL = "org/fake"


def user(text):
    return [{"role": "user", "content": text}]


def raises(kind, call):
    try:
        call()
    except kind as error:
        assert type(error) is kind, f"{type(error)} is not {kind}"
        return error
    raise AssertionError(f"{kind} was not raised")


def chat(text, **more):
    return client.chat.completions.create(model=MODEL, messages=user(text), **more)


def test_models():
    models = client.models.list()
    assert [m.id for m in models] == [MODEL], models
    assert client.models.retrieve(MODEL).object == "model"
    raises(openai.NotFoundError, lambda: client.models.retrieve("other"))


def test_chat():
    reply = chat("[[say:grüß dich 🦀]]", temperature=0, seed=1, max_completion_tokens=50)
    choice = reply.choices[0]
    assert choice.message.content == "grüß dich 🦀" and choice.message.role == "assistant"
    assert choice.finish_reason == "stop"
    usage = reply.usage
    assert usage.completion_tokens == len("grüß dich 🦀".encode())
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert reply.object == "chat.completion" and reply.model == MODEL


def test_chat_stream():
    stream = chat("[[say:aé🦀 STOP b]]", stream=True, stop=["STOP"],
                  stream_options={"include_usage": True})
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == "aé🦀 ", text
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == 12
    assert all(c.usage is None for c in chunks[:-1])


def test_stream_helper():
    with client.chat.completions.stream(model=MODEL, messages=user("[[say:abc]]")) as stream:
        text = "".join(e.delta for e in stream if e.type == "content.delta")
        final = stream.get_final_completion()
    assert text == "abc" == final.choices[0].message.content
    assert final.choices[0].finish_reason == "stop"


def test_completions():
    ids = list("[[say:xyz]]".encode())
    ask = dict(model=MODEL, prompt=ids, extra_body={"return_token_ids": True})
    reply = client.completions.create(**ask)
    assert reply.choices[0].text == "xyz"
    assert reply.choices[0].token_ids == list(b"xyz")
    assert reply.usage.prompt_tokens == len(ids)
    pieces = [c.choices[0] for c in client.completions.create(stream=True, **ask)]
    assert "".join(p.text for p in pieces) == "xyz"
    assert sum((p.token_ids for p in pieces), []) == list(b"xyz")
    assert client.completions.create(model=MODEL, prompt="[[say:q]]").choices[0].text == "q"


def test_token_ids_of_chats():
    reply = chat("[[say:é]]", extra_body={"return_token_ids": True, "ignore_eos": True, "top_k": 4})
    assert reply.choices[0].token_ids == list("é".encode())


CALL = '[[say:<tool_call>{"name": "weather", "arguments": {"city": "Ulm"}}</tool_call>]]'
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"],
    "additionalProperties": False}, "strict": True}}


def test_tools():
    reply = chat(CALL, tools=[TOOL], tool_choice="auto")
    assert reply.choices[0].finish_reason == "tool_calls"
    call = reply.choices[0].message.tool_calls[0]
    assert (call.function.name, call.function.arguments) == ("weather", '{"city":"Ulm"}')
    answer = {"role": "tool", "tool_call_id": call.id, "content": "[[say:sunny]]"}
    asked = user("hi") + [reply.choices[0].message, answer]
    again = client.chat.completions.create(model=MODEL, messages=asked, tools=[TOOL])
    assert again.choices[0].message.content == "sunny"


def test_tool_stream():
    with client.chat.completions.stream(model=MODEL, messages=user(CALL), tools=[TOOL]) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert "tool_calls.function.arguments.done" in kinds, kinds
    call = final.choices[0].message.tool_calls[0]
    assert call.function.parsed_arguments == {"city": "Ulm"}, call


def test_structured_output():
    from pydantic import BaseModel

    class Place(BaseModel):
        city: str

    reply = client.chat.completions.parse(
        model=MODEL, messages=user('[[say:{"city": "Ulm"}]]'), response_format=Place)
    assert reply.choices[0].message.parsed == Place(city="Ulm")


def test_logprobs_and_choices():
    reply = chat("[[say:hi]]", logprobs=True, top_logprobs=2, n=2, frequency_penalty=0.5,
                 logit_bias={"97": 1})
    assert [c.index for c in reply.choices] == [0, 1]
    scores = reply.choices[1].logprobs.content
    assert [s.token for s in scores] == ["h", "i"] and len(scores[0].top_logprobs) == 2
    ask = dict(model=MODEL, prompt="[[say:hi]]", echo=True, logprobs=1, max_tokens=5)
    reply = client.completions.create(**ask)
    scores = reply.choices[0].logprobs
    assert reply.choices[0].text == "[[say:hi]]hi" and len(scores.tokens) == 12
    assert scores.token_logprobs[0] is None


def test_responses():
    ask = dict(model=MODEL, input="[[say:hi]]", instructions="be brief")
    first = client.responses.create(**ask)
    assert first.output_text == "hi" and first.status == "completed"
    again = client.responses.create(model=MODEL, input="x", previous_response_id=first.id)
    assert again.output_text == "hi"
    assert client.responses.retrieve(first.id).output_text == "hi"
    client.responses.delete(first.id)
    raises(openai.NotFoundError, lambda: client.responses.retrieve(first.id))
    with client.responses.stream(model=MODEL, input="[[say:abc]]") as stream:
        text = "".join(e.delta for e in stream if e.type == "response.output_text.delta")
        assert text == "abc" == stream.get_final_response().output_text
    tool = {**TOOL["function"], "type": "function", "strict": True}
    call = client.responses.create(model=MODEL, input=CALL, tools=[tool]).output[0]
    assert (call.type, call.name, call.arguments) == ("function_call", "weather", '{"city":"Ulm"}')
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "[[say:sunny]]"}
    reply = client.responses.create(model=MODEL, input=[call, output], tools=[tool])
    assert reply.output_text == "sunny"


def test_bad_requests():
    error = raises(openai.BadRequestError, lambda: chat("hi", temperature=3))
    assert (error.param, error.code) == ("temperature", "invalid_value"), error
    error = raises(openai.BadRequestError, lambda: chat("hi", n=99))
    assert (error.param, error.code) == ("n", "invalid_value"), error
    image = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}]
    error = raises(openai.BadRequestError, lambda: chat(image))
    assert error.param == "messages[0].content[0]", error
    error = raises(openai.BadRequestError, lambda: chat("x" * 200_000))
    assert (error.param, error.code) == ("messages", "context_length_exceeded"), error


def test_refusals():
    error = raises(openai.RateLimitError, lambda: chat("[[queue]]"))
    assert error.response.headers["retry-after"] == "5"
    for order in ("[[away]]", "[[break:0]]"):
        for stream in (False, True):
            error = raises(openai.InternalServerError, lambda: chat(order, stream=stream))
            assert error.status_code == 503 and "rank 1" in error.message
            assert "retry-after" in error.response.headers


def test_failure_after_tokens():
    seen = []

    def read():
        for chunk in chat("[[break:3]]", stream=True):
            seen.append(chunk.choices[0])

    error = raises(openai.APIError, read)
    assert "rank 1 closed its link" in error.message, error
    assert "".join(c.delta.content for c in seen) == "xxx"
    assert all(c.finish_reason is None for c in seen)


def test_retries():
    patient = client.with_options(max_retries=1)
    raises(openai.RateLimitError,
           lambda: patient.chat.completions.create(model=MODEL, messages=user("[[queue]]")))


def test_leaving_a_stream():
    stream = chat("[[endless]]", stream=True)
    for _ in zip(range(5), stream):
        pass
    stream.close()


tests = [(name, test) for name, test in globals().items() if name.startswith("test_")]
for name, test in tests:
    test()
    print(f"ok {name}")
print(f"openai {openai.__version__}: {len(tests)} passed")
