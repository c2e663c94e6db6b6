"""The PyPI anthropic client, unmodified, against the scripted server: anthropic_client.py URL."""

import sys

import anthropic
from anthropic import Anthropic

client = Anthropic(base_url=sys.argv[1], api_key="unused", max_retries=0)
ASK = dict(model="org/fake", max_tokens=200)
TOOL = {"name": "weather", "input_schema": {
    "type": "object", "properties": {"city": {"type": "string"}}}}
CALL = '[[say:<tool_call>{"name": "weather", "arguments": {"city": "Ulm"}}</tool_call>]]'


def user(content):
    return [{"role": "user", "content": content}]


def raises(kind, call):
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"{kind} was not raised")


def test_message():
    reply = client.messages.create(messages=user("[[say:grüß]]"), system="be brief", **ASK)
    assert reply.content[0].text == "grüß" and reply.stop_reason == "end_turn"
    assert reply.usage.output_tokens == len("grüß".encode())
    reply = client.messages.create(messages=user("[[say:aENDb]]"), stop_sequences=["END"], **ASK)
    assert (reply.stop_reason, reply.stop_sequence) == ("stop_sequence", "END")


def test_stream():
    with client.messages.stream(messages=user("[[say:abc]]"), **ASK) as stream:
        assert "".join(stream.text_stream) == "abc"
        final = stream.get_final_message()
    assert final.content[0].text == "abc" and final.stop_reason == "end_turn"
    assert final.usage.output_tokens == 3


def test_tools():
    reply = client.messages.create(messages=user(CALL), tools=[TOOL], **ASK)
    call = reply.content[0]
    assert (reply.stop_reason, call.name, call.input) == ("tool_use", "weather", {"city": "Ulm"})
    with client.messages.stream(messages=user(CALL), tools=[TOOL], **ASK) as stream:
        assert stream.get_final_message().content[0].input == {"city": "Ulm"}
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "[[say:sunny]]"}
    turns = user("hi") + [{"role": "assistant", "content": reply.content}] + user([result])
    reply = client.messages.create(messages=turns, tools=[TOOL], **ASK)
    assert reply.content[0].text == "sunny"


def test_count():
    one, two = (client.messages.count_tokens(model="m", messages=user(t)) for t in ("a", "ab"))
    assert two.input_tokens == one.input_tokens + 1


def test_errors():
    image = {"type": "image", "source": {"type": "url", "url": "http://localhost/"}}
    error = raises(anthropic.BadRequestError,
                   lambda: client.messages.create(messages=user([image]), **ASK))
    assert error.body["error"]["type"] == "invalid_request_error", error.body
    raises(anthropic.RateLimitError,
           lambda: client.messages.create(messages=user("[[queue]]"), **ASK))


tests = [(name, test) for name, test in globals().items() if name.startswith("test_")]
for name, test in tests:
    test()
    print(f"ok {name}")
print(f"anthropic {anthropic.__version__}: {len(tests)} passed")
