"""What two cards of one host show that one can't: one hash over layouts and ways between the cards,
rates and times to a first token of each, and what a rank does that is killed or stops. Written to
be carried: needs Python alone, and the binaries that `cargo xtask device-test` puts beside it.

    python3 two_cards.py [--devices 'cuda:0|cuda:1'] [--prompts 4096,8192,32768] [--runs 20]
        [--prompt-runs 3] [--chunk 2048] [--cases one,shards2,...]
        [--parts device,hashes,kills,hops,speeds] [--seconds 540]

Ways between cards: `cards`, each other's memory; `nccl`; `memory`, the host's; `tcp`.
"""

import argparse
import hashlib
import http.client
import json
import os
import signal
import statistics
import subprocess
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
START = time.time()


def tool(name):
    return os.path.join(HERE, name)


def left(args):
    return args.seconds - (time.time() - START)


def say(text):
    print(f"[{time.time() - START:5.0f} s] {text}", flush=True)


def shown(values, unit, scale=1.0):
    values = sorted(value * scale for value in values)
    if not values:
        return "none"
    middle = statistics.median(values)
    return f"{middle:.2f} {unit} ({values[0]:.2f} to {values[-1]:.2f}, {len(values)} runs)"


class Server:
    """A ring of processes of this machine, over HTTP."""

    def __init__(self, model, layout, devices, exchange, *more, wait_s=240):
        self.log = open(os.path.join(HERE, "server.log"), "ab")
        self.port = free_port()
        command = [tool("baton"), "serve", model, "--layout", layout, "--device", devices]
        command += ["--exchange", exchange, "--port", str(self.port), "--prompt-cache-gib", "0"]
        self.process = subprocess.Popen(command + list(more), stdout=self.log, stderr=self.log)
        self.wait_ready(wait_s)

    def wait_ready(self, wait_s):
        until = time.time() + wait_s
        while time.time() < until:
            if self.process.poll() is not None:
                raise RuntimeError(f"baton serve ended with {self.process.returncode}")
            try:
                if self.get("/ready")[0] == 200:
                    return
            except OSError:
                pass
            time.sleep(0.05)
        raise RuntimeError(f"not ready within {wait_s} s")

    def get(self, path):
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        link.request("GET", path)
        reply = link.getresponse()
        return reply.status, reply.read()

    def rounds(self):
        """Rounds that came back in this epoch."""
        return json.loads(self.get("/health")[1]).get("rounds", 0)

    def ask(self, prompt, tokens, seen=None, times=None, **more):
        """Streams a reply: its ids, the seconds to the first token, those of the others, an error.
        `seen` is set once a token is there; `times` takes when each came."""
        body = {"prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "temperature": 0,
                "stream": True, "return_token_ids": True, "cache_prompt": False, "draft": False}
        body.update(more)
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        began = time.time()
        link.request("POST", "/v1/completions", json.dumps(body),
                     {"content-type": "application/json"})
        reply = link.getresponse()
        ids, first, last, error = [], None, began, None
        if reply.status != 200:
            return ids, 0.0, 0.0, f"{reply.status} {reply.read()[:200]!r}"
        for line in reply:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            if "error" in event:
                error = event["error"]["message"]
                continue
            for choice in event.get("choices", []):
                came = choice.get("token_ids") or []
                ids += came
                if came or choice.get("text"):
                    last = time.time()
                    first = first or last
                    if times is not None:
                        times += [last] * len(came)
                    if seen:
                        seen.set()
        return ids, (first or last) - began, last - (first or last), error

    def end(self):
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(40)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def free_port():
    import socket
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def prompt_of(tokens, seed):
    """Ids that every vocabulary of a test has."""
    return [1 + (seed * 7919 + i * i * 31 + i * 17) % 250 for i in range(tokens)]


def together(server, streams, tokens, seed, prompt=64):
    """Tokens a second while all replies are under way, and a hash of all ids."""
    replies, times = [None] * streams, [[] for _ in range(streams)]

    def one(at):
        replies[at] = server.ask(prompt_of(prompt, seed + at), tokens, times=times[at])
    threads = [threading.Thread(target=one, args=(at,)) for at in range(streams)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    for ids, _, _, error in replies:
        if error or len(ids) != tokens:
            raise RuntimeError(f"{len(ids)} of {tokens} tokens: {error}")
    # Prompts come one after the other, and who was first ends first.
    since, until = max(seen[0] for seen in times), min(seen[-1] for seen in times)
    count = sum(since < time_s <= until for seen in times for time_s in seen)
    rate = count / max(until - since, 1e-9)
    digest = hashlib.sha256(json.dumps([reply[0] for reply in replies]).encode()).hexdigest()
    return rate, digest


def computed(server):
    """Seconds that rank 0's device was asked to work, so far."""
    for line in server.get("/metrics")[1].decode().splitlines():
        if line.startswith('baton_rank_compute_seconds_total{rank="0"'):
            return float(line.split()[-1])
    return 0.0


def a_token(server, tokens=200):
    """Milliseconds of a decoded token over HTTP, and of those in rank 0's engine."""
    before, (_, _, took, error) = computed(server), server.ask(prompt_of(1, 9), tokens)
    time.sleep(0.3)  # What ranks did is told now and then.
    inside = computed(server) - before
    if error:
        raise RuntimeError(error)
    each = 1e3 * took / (tokens - 1)
    return f"{each:.2f} ms a token, {1e3 * inside / tokens:.2f} in rank 0's engine"


def layers_of(model):
    out = subprocess.run([tool("baton"), "inspect", model], capture_output=True, text=True)
    line = next(line for line in out.stdout.splitlines() if line.startswith("layers"))
    return int(line.split()[1].rstrip(":"))


def hashes(args):
    """One hash a model over layouts, ways and companies."""
    tiny = os.path.join(HERE, "shard-tiny.gguf")
    if not os.path.exists(tiny):
        subprocess.run([tool("xtask"), "synthetic", "--shape", "shard-tiny", "--family", "qwen3_5",
                        tiny], check=True, cwd=HERE)
    for model in ["baton-tiny", tiny]:
        layers = layers_of(model)
        cut = layers // 2
        layouts = f"1;0:{cut},{cut}:{layers};0:{layers}@shards2;0:{layers}@rows2"
        one = []
        for exchange, devices in [("cards", f"cpu,{args.devices}"), ("tcp", args.devices),
                                  ("nccl", args.devices)]:
            command = [tool("baton"), "check", model, "--layouts", layouts, "--devices", devices]
            command += ["--exchange", exchange, "--threads", "2", "--chunks", "64", "--prompt",
                        "200", "--streams", "1,4", "--depths", "1,3", "--pairwise"]
            run = subprocess.run(command, capture_output=True, text=True)
            lines = run.stdout.splitlines()
            end = lines[-1] if lines else run.stderr[-400:]
            say(f"{os.path.basename(model)} over {exchange}: {end}")
            one.append(end.split()[2] if end.startswith("one hash") else None)
        say(f"{os.path.basename(model)}: " + ("one hash" if len(set(one)) == 1 and one[0] else
                                             f"DIFFERS: {one}"))


def cases(layers):
    half = layers // 2
    ring, shards, rows = f"0:{half},{half}:{layers}", f"0:{layers}@shards2", f"0:{layers}@rows2"
    alone = ["--prompt-pair", "off"]
    yield "one card", f"0:{layers}", "cards", []
    yield "shards2 cards", shards, "cards", []
    yield "shards2 cards, unpaired", shards, "cards", alone
    yield "rows2 cards", rows, "cards", []
    yield "ring2 depth 4", ring, "cards", ["--depth", "4"]
    yield "ring2 depth 1", ring, "cards", ["--depth", "1"]
    yield "ring2 depth 4 nccl", ring, "nccl", ["--depth", "4"]
    yield "ring2 depth 1 nccl", ring, "nccl", ["--depth", "1"]
    yield "ring2 depth 4 tcp", ring, "tcp", ["--depth", "4"]
    yield "ring2 depth 1 tcp", ring, "tcp", ["--depth", "1"]
    yield "shards2 nccl", shards, "nccl", []
    yield "shards2 nccl, unpaired", shards, "nccl", alone
    yield "rows2 nccl", rows, "nccl", []
    yield "shards2 tcp", shards, "tcp", []
    yield "rows2 tcp", rows, "tcp", []
    yield "shards2 memory", shards, "memory", []


def speeds(args, model):
    layers = layers_of(model)
    one = args.devices.split("|")[0]
    reference = None
    for name, layout, exchange, more in cases(layers):
        if args.cases and not any(name.startswith(case) for case in args.cases):
            continue
        devices = one if name == "one card" else args.devices
        # What leaves the cards takes too long for more.
        is_short = exchange != "cards" or "unpaired" in name or name.startswith("rows2")
        is_short = is_short and not name.startswith("ring2")
        prompts = args.prompts[:1] if is_short else args.prompts
        if left(args) < 60:
            say(f"{name}: no time left")
            continue
        try:
            most, loading = max(args.prompts) + 512, time.time()
            server = Server(model, layout, devices, exchange, "--context", str(most), "--chunk",
                            str(args.chunk), *more)
        except RuntimeError as error:
            say(f"{name}: {error}")
            continue
        try:
            say(f"{name}: ready after {time.time() - loading:.1f} s")
            seen = set()
            for streams in (1, 8):
                together(server, streams, 8, 1)
                runs = [together(server, streams, 48, 5) for _ in range(args.runs)]
                seen |= {(streams, digest) for _, digest in runs}
                say(f"{name}: decode of {streams}: {shown([run[0] for run in runs], 'tokens/s')}")
            say(f"{name}: {a_token(server)}")
            for tokens in prompts:
                runs, before = [], server.rounds()
                for at in range(max(1, args.prompt_runs * args.prompts[0] // tokens)):
                    if left(args) < 30:
                        break
                    runs.append(server.ask(prompt_of(tokens, at), 1)[1])
                each = (server.rounds() - before) / max(1, len(runs))
                say(f"{name}: prompt of {tokens}: {shown(runs, 'ms', 1e3)}, {each:.1f} rounds each")
            reference = reference or seen
            say(f"{name}: replies " + ("as of one card" if seen == reference else "DIFFER"))
        except RuntimeError as error:
            say(f"{name}: {error}")
        finally:
            server.end()


def children(pid):
    path = f"/proc/{pid}/task/{pid}/children"
    threads = os.listdir(f"/proc/{pid}/task")
    found = []
    for thread in threads:
        try:
            with open(path.replace(f"/task/{pid}/", f"/task/{thread}/")) as file:
                found += [int(one) for one in file.read().split()]
        except FileNotFoundError:
            pass  # A thread that has ended since.
    return found


def kills(args, model, kind="shards2"):
    """A rank that is killed, or stops: how long until rank 0 says so, and until the pair serves
    again."""
    layers = layers_of(model)
    half = layers // 2
    layout = {"shards2": f"0:{layers}@shards2", "ring2": f"0:{half},{half}:{layers}"}[kind]
    for exchange in ["cards", "nccl", "tcp"]:
        server = Server(model, layout, args.devices, exchange, "--continue-s", "0",
                        "--context", str(args.prompts[-1] + 1024))
        for what, phase, prompt, tokens in [("killed", "prompt", args.prompts[-1], 1),
                                            ("killed", "decode", 64, 900),
                                            ("stopped", "decode", 64, 900)]:
            seen, replied = threading.Event(), []
            ask = lambda: replied.append((server.ask(prompt_of(prompt, 3), tokens, seen),
                                          time.time()))
            thread = threading.Thread(target=ask)
            thread.start()
            if phase == "decode":
                seen.wait(60)
            time.sleep(0.05)
            [victim] = children(server.process.pid)
            os.kill(victim, signal.SIGKILL if what == "killed" else signal.SIGSTOP)
            killed = time.time()
            thread.join()
            reply, ended = replied[0]
            if what == "stopped":
                os.kill(victim, signal.SIGCONT)
            server.wait_ready(240)
            back = time.time() - killed
            ids, _, _, error = server.ask(prompt_of(64, 5), 4)
            took = 1e3 * (ended - killed)
            say(f"{kind}, {exchange}: {what} mid-{phase}: its reply ended after {took:.0f} ms"
                f" ({reply[3]}), serves again after {back:.1f} s, {len(ids)} tokens {error or ''}")
        server.end()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--devices", default="cuda:0|cuda:1")
    parser.add_argument("--model", help="instead of one that is made")
    parser.add_argument("--prompts", default="4096,8192,32768")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--prompt-runs", type=int, default=3)
    parser.add_argument("--chunk", type=int, default=2048)
    parser.add_argument("--cases", default="", help="names' beginnings, parted by commas")
    parser.add_argument("--seconds", type=int, default=540)
    parser.add_argument("--parts", default="device,hashes,kills,hops,speeds")
    args = parser.parse_args()
    args.prompts = [int(one) for one in args.prompts.split(",")]
    args.cases = [case for case in args.cases.split(",") if case]
    parts = args.parts.split(",")
    model = args.model or os.path.join(HERE, "27b.gguf")
    making = None
    if not os.path.exists(model) and "speeds" in parts:
        making = subprocess.Popen([tool("xtask"), "synthetic", "--shape", "27b", "--family",
                                   "qwen3_5", model], cwd=HERE)
    if "device" in parts:
        subprocess.run("nvidia-smi topo -m; nvidia-smi -L", shell=True)
        subprocess.run([tool("device"), "meet"], cwd=HERE)
    if "hashes" in parts:
        hashes(args)
    if "kills" in parts:
        kills(args, args.model or "baton-tiny")
    if "hops" in parts:
        kills(args, args.model or "baton-tiny", "ring2")
        with open(os.path.join(HERE, "server.log"), errors="replace") as log:
            ways = {line.split("INFO")[-1].strip() for line in log if "rows go " in line}
        say("ways of rows: " + "; ".join(sorted(ways)))
    if making and making.wait() != 0:
        sys.exit("no model was made")
    if "speeds" in parts:
        speeds(args, model)
    say("done")


if __name__ == "__main__":
    main()
