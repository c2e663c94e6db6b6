"""PyPI's openai, anthropic and langchain-openai against a ring: ring.py URL.

Ends with a hash of all that was said."""

import hashlib
import json
import sys
from typing import Literal

from anthropic import Anthropic
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI as LangChainOpenAI
from openai import OpenAI
from pydantic import BaseModel

URL = sys.argv[1]
client = OpenAI(base_url=f"{URL}/v1", api_key="unused", max_retries=0)
talker = Anthropic(base_url=URL, api_key="unused", max_retries=0)
MODEL = client.models.list().data[0].id
ASK = [{"role": "user", "content": "Name a sea and say how deep it is."}]
PARAMETERS = {"type": "object", "properties": {"name": {"enum": ["North", "Red"]}},
              "required": ["name"], "additionalProperties": False}
said = []


class Sea(BaseModel):
    deep: bool
    kind: Literal["salt", "fresh"]  # A tiny model writes integers without end.


def chat(**more):
    return client.chat.completions.create(model=MODEL, messages=ASK, seed=3, max_tokens=40, **more)


def test_chat_is_its_stream():
    whole = chat(temperature=1).choices[0].message.content
    chunks = chat(temperature=1, stream=True)
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == whole
    said.append(whole)


def test_choices_are_seeds():
    two = chat(temperature=1.5, n=2, logprobs=True, top_logprobs=2).choices
    said.extend(c.message.content for c in two)
    assert len(two[0].logprobs.content[0].top_logprobs) == 2
    one = client.chat.completions.create(
        model=MODEL, messages=ASK, seed=4, max_tokens=40, temperature=1.5).choices[0]
    assert two[1].message.content == one.message.content


TOOL = {"type": "function", "function": {"name": "dive", "parameters": PARAMETERS}}


def test_required_tools():
    for choice in ("required", {"type": "function", "function": {"name": "dive"}}):
        call = client.chat.completions.create(
            model=MODEL, messages=ASK, tools=[TOOL], tool_choice=choice, max_tokens=200,
            parallel_tool_calls=False).choices[0].message.tool_calls[0]
        assert json.loads(call.function.arguments)["name"] in ("North", "Red")
        said.append(call.function.arguments)


def test_streamed_tools_are_the_whole_replys():
    ask = dict(model=MODEL, messages=ASK, tools=[TOOL], tool_choice="required", max_tokens=200,
               parallel_tool_calls=False, seed=6, temperature=1)
    whole = client.chat.completions.create(**ask).choices[0]
    with client.chat.completions.stream(**ask) as stream:
        pieces = [e for e in stream if e.type == "tool_calls.function.arguments.delta"]
        final = stream.get_final_completion().choices[0]
    call = whole.message.tool_calls[0].function
    assert "".join(piece.arguments_delta for piece in pieces) == call.arguments
    assert final.message.tool_calls[0].function.arguments == call.arguments
    assert final.finish_reason == whole.finish_reason == "tool_calls"
    said.append(call.arguments)


def test_structured_output():
    reply = client.chat.completions.parse(
        model=MODEL, messages=ASK, response_format=Sea, max_tokens=300, temperature=0)
    said.append(reply.choices[0].message.parsed.model_dump_json())


def test_scores():
    reply = client.completions.create(model=MODEL, prompt="The sea is", echo=True, logprobs=1,
                                      max_tokens=4, temperature=0).choices[0]
    said.append(json.dumps(reply.logprobs.token_logprobs))


def test_responses():
    first = client.responses.create(model=MODEL, input="Hello", max_output_tokens=20)
    with client.responses.stream(model=MODEL, input="And then?", previous_response_id=first.id,
                                 max_output_tokens=20) as stream:
        text = "".join(e.delta for e in stream if e.type == "response.output_text.delta")
    said.extend([first.output_text, text])
    client.responses.delete(first.id)


def test_messages():
    ask = dict(model=MODEL, max_tokens=30, messages=ASK)
    whole = talker.messages.create(**ask).content[0].text
    with talker.messages.stream(**ask) as stream:
        assert "".join(stream.text_stream) == whole
    tool = {"name": "dive", "input_schema": PARAMETERS}
    call = talker.messages.create(**ask | {"max_tokens": 200}, tools=[tool],
                                  tool_choice={"type": "any"}).content[0]
    assert call.input["name"] in ("North", "Red")
    said.extend([whole, call.input["name"]])


@tool
def dive(name: Literal["North", "Red"]) -> str:
    """Dives."""
    return name


def test_langchain():
    ask = dict(model=MODEL, base_url=f"{URL}/v1", api_key="unused", max_retries=0, seed=3,
               temperature=1)
    talker = ChatOpenAI(**ask, max_completion_tokens=40)
    whole = talker.invoke(ASK[0]["content"])
    assert "".join(chunk.text for chunk in talker.stream(ASK[0]["content"])) == whole.text
    assert whole.text == said[0] and whole.usage_metadata["output_tokens"] > 0
    talker = ChatOpenAI(**ask, max_completion_tokens=200)
    divers = talker.bind_tools([dive], tool_choice="required", parallel_tool_calls=False,
                               strict=True)  # Else a tiny model makes up arguments without end.
    call = divers.invoke("Dive.")
    assert dive.invoke(call.tool_calls[0]["args"]) in ("North", "Red")
    for method in ("json_schema", "function_calling"):
        sea = talker.with_structured_output(Sea, method=method, strict=True).invoke("Name a sea.")
        said.append(sea.model_dump_json())
    text = LangChainOpenAI(**ask, max_tokens=20).invoke("The sea is")
    said.extend([whole.text, call.tool_calls[0]["args"]["name"], text])


tests = [(name, test) for name, test in globals().items() if name.startswith("test_")]
for name, test in tests:
    test()
digest = hashlib.sha256(json.dumps(said).encode()).hexdigest()[:16]
print(f"ring: {len(tests)} passed, said {digest}")
