"""200 streams at once for a while, some read slowly, some left: slow.py URL SECONDS PID.

A quarter reads a little a second and stops reading now and then, a quarter leaves in the middle of
its reply; the others read at once and measure the longest gap between two of their tokens. Before
and after, for a tenth of the time each, all of them read at once: what gaps are then is no other
client's doing. Once a second the memory of process PID and its children is taken, and how long
rounds are: nor is a gap of a round, or of this reader's own lateness on a busy machine, anyone's
stall."""

import asyncio
import json
import random
import sys
import time
import urllib.request
from pathlib import Path
from urllib.parse import urlparse

URL, SECONDS, PID = urlparse(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
STREAMS, TOKENS = 200, 100
WARM_S = min(60.0, SECONDS / 4)
STALL_S = 1.0
CONTROL_S = SECONDS / 10
gaps, counts, faults = [], {"good": 0, "slow": 0, "left": 0}, []


async def begin(rng, **more):
    """Sends a request for a stream; the reader after its head."""
    reader, writer = await asyncio.open_connection(URL.hostname, URL.port, limit=1 << 16)
    body = json.dumps({
        "messages": [{"role": "user", "content": f"Say {rng.random()}."}], "stream": True,
        "max_tokens": TOKENS, "ignore_eos": True, "seed": rng.randrange(1 << 30), **more})
    head = ("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            f"Connection: close\r\nContent-Length: {len(body)}\r\n\r\n")
    writer.write((head + body).encode())
    status = await reader.readline()
    if b" 200 " not in status:
        raise RuntimeError(f"status {status!r}")
    while (await reader.readline()).strip():
        pass
    return reader, writer


async def good(rng):
    reader, writer = await begin(rng)
    last, longest, ended = time.monotonic(), 0.0, False
    while line := await reader.readline():
        if line.startswith(b"data: "):
            now = time.monotonic()
            longest, last = max(longest, now - last), now
            ended = ended or line.startswith(b"data: [DONE]")
            if b'"error"' in line:
                raise RuntimeError(line.decode())
    if not ended:
        raise RuntimeError("a stream was cut")
    gaps.append(longest)
    writer.close()


async def slow(rng):
    reader, writer = await begin(rng, max_tokens=2 * TOKENS)
    end = time.monotonic() + rng.uniform(5, 20)
    while time.monotonic() < end and await reader.read(512):
        await asyncio.sleep(rng.choice([0.5, 1, 8]))
    writer.transport.abort()


async def left(rng):
    reader, writer = await begin(rng)
    for _ in range(rng.randrange(60)):
        await reader.readline()
    writer.transport.abort()


GOOD = [("good", good)]
MIXED = [("slow", slow), ("left", left), *GOOD, *GOOD]


async def seat(number, kinds, end):
    rng = random.Random(number)
    name, kind = kinds[number % len(kinds)]
    while time.monotonic() < end:
        try:
            await kind(rng)
            counts[name] += 1
        except (RuntimeError, OSError) as error:
            faults.append(f"{name}: {error!r}")
            await asyncio.sleep(0.2)


def status(process):
    """Fields of a process; none of one that has ended."""
    try:
        lines = (process / "status").read_text().splitlines()
    except OSError:
        return {}
    return dict(line.split(":", 1) for line in lines if ":" in line)


def memory():
    """MiB of PID and its children."""
    fields = map(status, Path("/proc").glob("[0-9]*"))
    mine = [f for f in fields if str(PID) in (f.get("Pid", "").strip(), f.get("PPid", "").strip())]
    return sum(int(f.get("VmRSS", "0 kB").split()[0]) for f in mine) / 1024


def rounds():
    """Rounds so far, and the seconds that they took in all."""
    with urllib.request.urlopen(f"http://{URL.netloc}/metrics") as reply:
        series = dict(line.rsplit(" ", 1) for line in reply.read().decode().splitlines())
    return tuple(float(series[f"baton_ring_{name}_total"]) for name in ("rounds", "round_seconds"))


class Phase:
    """Streams of some kinds for some seconds: gaps, lateness and rounds, and memory by time."""

    def __init__(self):
        self.samples, self.late, self.round_s, self.gaps = [], 0.0, 0.0, []

    async def run(self, kinds, seconds):
        gaps.clear()
        start, seen = time.monotonic(), await asyncio.to_thread(rounds)
        seats = [asyncio.create_task(seat(n, kinds, start + seconds)) for n in range(STREAMS)]
        while time.monotonic() < start + seconds:
            before = time.monotonic()
            await asyncio.sleep(1)
            self.late = max(self.late, time.monotonic() - before - 1)
            self.samples.append((before - start, memory()))
            now = await asyncio.to_thread(rounds)
            if now[0] > seen[0]:
                self.round_s = max(self.round_s, (now[1] - seen[1]) / (now[0] - seen[0]))
            seen = now
        await asyncio.wait(seats, timeout=60)
        self.gaps = sorted(gaps)
        return self

    def __str__(self):
        middle, worst = self.gaps[len(self.gaps) // 2], self.gaps[-1]
        return (f"median {middle * 1e3:.0f} ms, worst {worst * 1e3:.0f} ms of {len(self.gaps)}; "
                f"rounds up to {self.round_s * 1e3:.0f} ms in the mean of a second, this reader "
                f"up to {self.late * 1e3:.0f} ms late")


async def main():
    before = await Phase().run(GOOD, CONTROL_S)
    counts["good"] = 0
    mixed = await Phase().run(MIXED, SECONDS)
    whole = dict(counts)
    return before, mixed, whole, await Phase().run(GOOD, CONTROL_S)


before, mixed, whole, after = asyncio.run(main())
print("the longest gap between two tokens of each good stream:")
for name, phase in [("without slow clients", before), ("with them", mixed), ("without", after)]:
    print(f"  {name}: {phase}")
for fault in faults[:5]:
    print(fault)
warm = [mib for at, mib in mixed.samples if at >= WARM_S]
third = max(1, len(warm) // 3)
early, late = max(warm[:third]), max(warm[-third:])
worst, control = mixed.gaps[-1], max(before.gaps[-1], after.gaps[-1])
stall = max(worst - max(mixed.late + mixed.round_s, control), 0)
print(f"slow: {STREAMS} streams for {SECONDS:.0f} s, {whole['good']} whole, {whole['slow']} read "
      f"slowly, {whole['left']} left, {len(faults)} faults, longest gap {worst:.3f} s, without "
      f"slow clients {control:.3f} s, stall by them {stall:.3f} s of {STALL_S:.0f} allowed, memory "
      f"{early:.0f} to {late:.0f} MiB")
sys.exit(bool(faults) or stall > STALL_S or late > early * 1.02 + 8)
