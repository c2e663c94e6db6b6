"""What one card shows: bytes of every suite, one hash a model, rates against what is measured here
and now, and another engine's product beside ours. Written to be carried: needs Python alone, and
what `cargo xtask device-test` puts beside it; PyTorch, where it is there, for the rate of a matrix
product and its own 4-bit one.

    python3 one_card.py [--parts rate,bytes,models,figures,gaps,memcheck,peer,failure]
        [--bytes-on 1] [--rate TFLOPS] [--seconds 560]

`--bytes-on 1` has a second card do what is not timed, meanwhile. Its output goes to `bytes.log` and
comes at the end. The last line is a summary.
"""

import argparse
import os
import subprocess
import sys
import threading
import time

from two_cards import HERE, START, say, tool

PLACES = ["/usr/local", "/opt", "/usr/lib"]
PARTS = "rate,bytes,models,figures,gaps,memcheck,peer,failure"

# What is done to no clock, in order of worth, with the seconds that each may take.
BYTES = [(["device", "conformance", "quick"], 60), (["device", "conformance", "quick", "2"], 60),
         (["device", "plain"], 60), (["device", "unified"], 60), (["device", "defects"], 120),
         (["device", "replay"], 60), (["device", "berths"], 60),
         (["device", "conformance", "full"], 240)]
FIGURES = [(["device", "bench", "RATE", "all", "decode"], 60),
           (["device", "bench", "RATE", "all", "prompt"], 90),
           (["device", "bench", "RATE", "all", "steps"], 90),
           (["device", "bench", "RATE", "27B", "steps", "2"], 60)]
GAPS = [(["device", "gaps", "27B", format, rows], 60) for format in ("mlx", "q4_k")
        for rows in ("1", "8")]
MODELS = ["baton-tiny", "tiny-qwen3_5", "tiny-qwen3_5-bf16.gguf", "tiny-qwen3_5-mlx4"]
CHECK = ["--layouts", "1;0:3,3:8;0:2,2:5,5:8", "--devices", "cpu,cuda:0,cpu|cuda:0,cuda:0|cpu",
         "--threads", "2", "--chunks", "7,64", "--streams", "1,4", "--depths", "1,3", "--prompt",
         "200", "--pairwise"]

MATRIX = """
import torch, statistics
a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
def timed(work, runs=20):
    for _ in range(3): work()
    took = []
    for _ in range(runs):
        ends = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        ends[0].record(); work(); ends[1].record(); torch.cuda.synchronize()
        took.append(ends[0].elapsed_time(ends[1]))
    return sorted(took)
rates = [2 * 8192 ** 3 / ms / 1e9 for ms in timed(lambda: a @ b)]
print("matrix", f"{statistics.median(rates):.0f} TFLOP/s ({min(rates):.0f} to {max(rates):.0f})")
"""

# Linear layers alone of three recurrent layers and one of attention, three times over.
PEER = MATRIX + """
def layers(hidden, inner, query, kv, values):
    wide, ends = values * 128, query * 256
    recurrent = [(2 * 2048 + wide, hidden), (wide, hidden), (hidden, wide)]
    attention = [(2 * ends, hidden), (2 * kv * 256, hidden), (hidden, ends)]
    mlp = [(2 * inner, hidden), (hidden, inner)]
    return 3 * (3 * (recurrent + mlp) + attention + mlp)
def packed(n, k):
    raw = torch.randint(0, 256, (n, k // 2), device="cuda", dtype=torch.uint8)
    scales = torch.randn(k // 64, n, 2, device="cuda", dtype=torch.bfloat16)
    return torch.ops.aten._convert_weight_to_int4pack(raw, 8), scales, k
for name, size in [("27B", (5120, 17408, 24, 4, 48)), ("9B", (4096, 12288, 16, 4, 32))]:
    weights = [packed(*shape) for shape in layers(*size)]
    for rows in (1, 8, 4096):
        x = {k: torch.randn(rows, k, device="cuda", dtype=torch.bfloat16)
             for k in {k for _, _, k in weights}}
        work = lambda: [torch.ops.aten._weight_int4pack_mm(x[k], w, 64, s) for w, s, k in weights]
        work(); torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph): work()
        took = [ms / 12 for ms in timed(graph.replay, 20 if rows < 100 else 5)]
        print("peer", name, rows, "rows:", f"{statistics.median(took):.4f} ms a layer"
              f" ({took[0]:.4f} to {took[-1]:.4f})", flush=True)
        del graph, x
    del weights
"""


def found(name):
    """A library or tool, by where machines with CUDA have it; None where it is not there."""
    places = [place for place in PLACES if os.path.isdir(place)]
    search = ["find", "-L", *places, "-maxdepth", "12", "-name", name, "-type", "f"]
    try:
        run = subprocess.run(search, text=True, stdout=subprocess.PIPE,
                             stderr=subprocess.DEVNULL, timeout=20)
    except subprocess.TimeoutExpired:
        return None
    return next(iter(sorted(run.stdout.splitlines())), None)


class Report:
    """Steps in turn, within a time, and how they ended."""

    def __init__(self, seconds, environment, out):
        self.seconds, self.environment, self.out = seconds, environment, out
        self.ended = {"passed": 0, "failed": [], "skipped": []}

    def left(self):
        return self.seconds - (time.time() - START)

    def step(self, command, limit_s, name=None):
        """Runs one; its output, and whether it went well."""
        name = name or " ".join(command)[:100]
        if self.left() < 10:
            return self.skip(name, "no time left")
        if command[0] in ("device", "baton"):
            command = [tool(command[0])] + command[1:]
        began = time.time()
        run = subprocess.Popen(command, cwd=HERE, env=self.environment, text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        try:
            text = run.communicate(timeout=min(limit_s, self.left()))[0]
            went = run.returncode == 0
        except subprocess.TimeoutExpired:
            run.kill()
            text, went = run.communicate()[0] + "\nstopped: out of its time", False
        how = "passed" if went else f"FAILED ({run.returncode})"
        print(f"[{time.time() - START:5.0f} s] {name}: {how}, {time.time() - began:.1f} s",
              text.strip(), sep="\n", file=self.out, flush=True)
        if went:
            self.ended["passed"] += 1
        else:
            self.ended["failed"].append(name)
        return text, went

    def skip(self, name, why):
        print(f"skipped: {name}: {why}", file=self.out, flush=True)
        self.ended["skipped"].append(name)
        return "", False


def rate_of(report, given):
    """Of a bf16 matrix product of this card's, now; what was given where there is no PyTorch."""
    text, went = report.step([sys.executable, "-c", MATRIX], 60, "PyTorch's matrix rate")
    lines = [line.split() for line in text.splitlines() if line.startswith("matrix")]
    if went and lines:
        return lines[0][1]
    say(f"the matrix rate is {given} TFLOP/s, as given and not measured here")
    return given


def models(report):
    for model in MODELS:
        report.step(["baton", "check", model] + CHECK, 120)


def memcheck(report):
    sanitizer = found("compute-sanitizer")
    if not sanitizer:
        report.skip("memcheck", "no compute-sanitizer")
        return
    report.step([sanitizer, "--error-exitcode", "9", tool("device"), "conformance", "quick"], 240)


def untimed(report, parts):
    if "bytes" in parts:
        [report.step(*step) for step in BYTES]
    if "models" in parts:
        models(report)
    if "memcheck" in parts:
        memcheck(report)
    if "failure" in parts:
        report.step(["device", "failure"], 60)


def timed(report, parts, rate):
    if "rate" in parts:
        rate = rate_of(report, rate)
    if "figures" in parts:
        for command, limit_s in FIGURES:
            report.step([rate if word == "RATE" else word for word in command], limit_s)
    if "gaps" in parts:
        [report.step(*step) for step in GAPS]
    if "peer" in parts:
        report.step([sys.executable, "-c", PEER], 120, "PyTorch's 4-bit products")


def environment(card):
    env = dict(os.environ, CUDA_VISIBLE_DEVICES=str(card))
    nvrtc, cupti = found("libnvrtc.so.13*"), found("libcupti.so.13*")
    if nvrtc:
        env.setdefault("BATON_NVRTC", nvrtc)
    if cupti:
        folders = [os.path.dirname(cupti), env.get("LD_LIBRARY_PATH", "")]
        env["LD_LIBRARY_PATH"] = ":".join(filter(None, folders))
    return env


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--parts", default=PARTS)
    parser.add_argument("--bytes-on", type=int, help="a card for what is not timed")
    parser.add_argument("--rate", default="785", help="TFLOP/s, where PyTorch can't measure it")
    parser.add_argument("--seconds", type=int, default=560)
    args = parser.parse_args()
    parts = args.parts.split(",")
    subprocess.run("nvidia-smi -L; nvidia-smi --query-gpu=driver_version,clocks.sm --format=csv",
                   shell=True)
    first = Report(args.seconds, environment(0), sys.stdout)
    reports, log = [first], os.path.join(HERE, "bytes.log")
    if args.bytes_on is None:
        # Bytes before times; what ends the card last.
        untimed(first, [part for part in parts if part != "failure"])
        timed(first, parts, args.rate)
        untimed(first, [part for part in parts if part == "failure"])
    else:
        with open(log, "w") as out:
            second = Report(args.seconds, environment(args.bytes_on), out)
            reports.append(second)
            thread = threading.Thread(target=untimed, args=(second, parts))
            thread.start()
            timed(first, parts, args.rate)
            thread.join()
        with open(log) as text:
            print(text.read())
    ended = [report.ended for report in reports]
    failed = sum([one["failed"] for one in ended], [])
    skipped = sum([one["skipped"] for one in ended], [])
    say(f"one card: {sum(one['passed'] for one in ended)} passed, {len(failed)} failed "
        f"{failed or ''}, {len(skipped)} skipped {skipped or ''}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
