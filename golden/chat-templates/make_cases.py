#!/usr/bin/env python3
"""Chat templates rendered by Jinja2 as Hugging Face's `apply_chat_template` sets it up.

Needs jinja2 (3.1). `python make_cases.py` writes cases.json beside this file. The templates are our own, written to use what
published templates use.
"""
import json, os
from jinja2.exceptions import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

HERE = os.path.dirname(os.path.abspath(__file__))

TURNS = """{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system = "" %}
{%- endif %}
{%- if tools is not none %}
<|tools|>
{%- for tool in tools %}
{{ tool | tojson(indent=4) }}
{% endfor %}
{%- endif %}
{{- "<|head|>" + system + "<|end|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|' + message['role'] + '|>\\n\\n' + message['content'] | trim + '<|end|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls | length == 1 %}
            {{- raise_exception("one tool call at a time") }}
        {%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '{"name": "' + call.name + '", "parameters": ' }}
        {{- call.arguments | tojson }}
        {{- "}" }}
    {%- else %}
        {{- '<|' ~ message.role ~ '|>' }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|assistant|>\\n\\n' }}
{%- endif %}
"""

THINK = """{%- macro show(content, trim_it=true) %}
    {%- if content is string %}
        {{- content.strip() if trim_it else content }}
    {%- elif content is none or content is undefined %}
        {{- '' }}
    {%- else %}
        {{- raise_exception('unexpected content') }}
    {%- endif %}
{%- endmacro %}
{%- set ns = namespace(searching=true, last=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.searching and message.role == "user" and not(message.content.startswith('<tool>') and message.content.endswith('</tool>')) %}
        {%- set ns.searching = false %}
        {%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = show(message.content) %}
    {%- if message.role == "assistant" %}
        {%- set reasoning = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set reasoning = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last %}
            {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning + '\\n</think>\\n\\n' + content }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {%- if message.tool_calls is defined and message.tool_calls %}
            {%- for tool_call in message.tool_calls %}
                {%- if tool_call.function %}{%- set tool_call = tool_call.function %}{%- endif %}
                {{- '\\n<call=' ~ tool_call.name ~ '>' }}
                {%- for key, value in tool_call.arguments.items() %}
                    {{- '<' ~ key ~ '>' ~ (value if value is string else value | tojson | string) ~ '</' ~ key ~ '>' }}
                {%- endfor %}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool>\\n' + content + '\\n</tool>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}"""

ODDS = """{% for message in messages %}
    {% if loop.index > 2 %}
        {% break %}
    {% endif %}
    {% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{ raise_exception('Roles must alternate: ' + message['role']) }}
    {% endif %}
{{ loop.index }}/{{ loop.length }} {{ message.role | upper }}: {{ message['content'].replace('a', 'A').upper() }}{{ ',' if not loop.last }}
{% endfor %}
{{ {"b": [1, 2.5, 1e20, true, none], "a": "<é'&>"} | tojson }}
{{ [3, 1, 2] | sort | join('-') }} {{ messages | map(attribute='role') | list | tojson(separators=(',', ':')) }}
{{ (messages | selectattr('role', 'equalto', 'user') | list | last).content[:3] }} {{ missing }}{{ true }} {{ none }} {{ 7 // 2 }} {{ 7 / 2 }}
{{ "%s-%d" | format("x", 3) }} {{ 'a,b'.split(',') }} {{ messages[-1]['content'] | length }}
{{ eos_token }}
"""

TOOL = {"type": "function", "function": {"name": "weather", "description": "The <weather> of a \"place\" & more: é",
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": []}}}
HELLO = [{"role": "user", "content": "  hello world  "}]
TALK = [{"role": "system", "content": " be brief\n"}, {"role": "user", "content": "a cat's naïve <b>"},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nyes"}, {"role": "user", "content": "and?"}]
CALLS = [{"role": "user", "content": "weather?"},
         {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "weather",
          "arguments": {"place": "Köln", "days": 3, "deep": {"x": [1.0, None]}}}}]},
         {"role": "tool", "content": "rain"}, {"role": "tool", "content": "snow"}]
CASES = [("turns", TURNS, HELLO, True, {}), ("turns_system", TURNS, TALK, False, {}), ("turns_tools", TURNS, CALLS, True, {"tools": [TOOL]}),
         ("turns_refusal", TURNS, CALLS[:1] + [{"role": "assistant", "content": "", "tool_calls": []}], True, {}),
         ("think", THINK, HELLO, True, {}), ("think_talk", THINK, TALK, True, {"enable_thinking": False}), ("think_calls", THINK, CALLS, True, {}),
         ("odds", ODDS, HELLO, True, {}), ("odds_talk", ODDS, TALK[1:], True, {}), ("odds_refusal", ODDS, TALK, True, {})]


def environment():
    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message):
        raise TemplateError(message)
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    return env


def main():
    env, out = environment(), []
    for name, template, messages, generate, extra in CASES:
        case = dict(name=name, template=template, messages=messages, add_generation_prompt=generate, extra=extra)
        try:
            case["text"] = env.from_string(template).render(messages=messages, add_generation_prompt=generate, bos_token="<s>",
                                                            eos_token="</s>", **{"tools": None, "documents": None, **extra})
        except TemplateError as error:
            case["refusal"] = str(error)
        out.append(case)
        print(name, repr(case.get("text", case.get("refusal"))))
    json.dump(out, open(os.path.join(HERE, "cases.json"), "w"), indent=1, ensure_ascii=False)


if __name__ == "__main__":
    main()
