"""Replies by JSON schemas of many kinds, each checked: structured.py URL COUNT MAX_TOKENS."""

import json
import random
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

from jsonschema import Draft202012Validator

URL, COUNT, MAX_TOKENS = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
STREAMS = 4
WORDS = "name age city price tags items open since kind note size rate".split()


def schema(rng, depth):
    """A random schema; no deeper than `depth`."""
    leaves = [
        lambda: {"type": "string", "maxLength": rng.randint(1, 12)},
        lambda: {"type": "string",
                 "pattern": rng.choice(["^[A-Z]{2}-[0-9]{1,3}$", "^(ab|c){1,3}$"])},
        lambda: {"type": "string", "format": rng.choice(["date", "uuid", "ipv4"])},
        lambda: {"type": "integer", "minimum": -rng.randint(0, 99), "maximum": rng.randint(1, 999)},
        lambda: {"type": "number", "minimum": 0, "maximum": 10},
        lambda: {"type": "boolean"},
        lambda: {"type": "null"},
        lambda: {"enum": rng.sample(["red", "green", 3, None, True, "blau"], 3)},
        lambda: {"const": rng.choice(["x", 7, False])},
    ]
    if depth == 0 or rng.random() < 0.3:
        return rng.choice(leaves)()
    kind = rng.randrange(4)
    if kind == 0:
        low = rng.randint(0, 2)
        return {"type": "array", "items": schema(rng, depth - 1), "minItems": low,
                "maxItems": low + rng.randint(0, 3)}
    if kind == 1:
        return {"anyOf": [schema(rng, depth - 1) for _ in range(2)]}
    names = rng.sample(WORDS, rng.randint(1, 4))
    return {"type": "object", "properties": {name: schema(rng, depth - 1) for name in names},
            "required": names[:rng.randint(0, len(names))], "additionalProperties": False}


def ask(n):
    rng = random.Random(n)
    names = rng.sample(WORDS, rng.randint(1, 4))
    top = {"type": "object", "properties": {name: schema(rng, 2) for name in names},
           "required": names, "additionalProperties": False}
    body = {"messages": [{"role": "user", "content": f"Say something of {names[0]}."}],
            "max_tokens": MAX_TOKENS, "temperature": rng.choice([0, 0.7, 1.2]), "seed": n,
            "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": top}}}
    request = urllib.request.Request(
        f"{URL}/v1/chat/completions", json.dumps(body).encode(),
        {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as reply:
        reply = json.load(reply)
    choice = reply["choices"][0]
    tokens = reply["usage"]["completion_tokens"]
    if choice["finish_reason"] != "stop":
        return "unfinished", tokens
    text = choice["message"]["content"]
    try:
        Draft202012Validator(top).validate(json.loads(text))
    except Exception as error:
        print(f"schema {n}: {text!r}: {str(error).splitlines()[0]}")
        return "wrong", tokens
    return "valid", tokens


started = time.monotonic()
with ThreadPoolExecutor(STREAMS) as pool:
    results = list(pool.map(ask, range(COUNT)))
counts = {kind: sum(k == kind for k, _ in results) for kind in ("valid", "unfinished", "wrong")}
tokens = sum(tokens for _, tokens in results)
seconds = time.monotonic() - started
print(f"structured: {COUNT} schemas, {counts['valid']} valid, {counts['unfinished']} cut by "
      f"length, {counts['wrong']} wrong, {tokens} tokens in {seconds:.0f} s")
sys.exit(counts["wrong"] > 0)
