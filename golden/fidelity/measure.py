#!/usr/bin/env python3
"""Teacher-forced distance of engines from float32 arithmetic on the same weights, over real text.

    python measure.py MODEL.gguf TEXT [--tokens 24576] [--window 1024] [--arith 1,2] [--baton-only] [--llama PYTHON] [--save OUT.npz]

TEXT is what text.py wrote; PYTHON an interpreter that has llama-cpp-python. Needs torch, transformers >= 5.24, gguf, accelerate,
tokenizers, numpy, and `cargo build --release -p baton-stage --example logits`. Threads: OMP_NUM_THREADS, 2 unless set.

The reference is transformers in float32 on the dequantised weights. Every window starts anew at position 0. An engine's figures are over
every position: KL of the reference's distribution to the engine's in nats, share of equal argmax, and perplexity over the next tokens.
"""
import argparse, json, os, subprocess, sys, tempfile, time
os.environ.setdefault("OMP_NUM_THREADS", "2")
import gguf, numpy as np, torch, transformers
from transformers import AutoModelForCausalLM

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "..", "..")
TARGET = os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target"))
THREADS = int(os.environ["OMP_NUM_THREADS"])
sys.path.insert(0, os.path.join(ROOT, "golden", "smollm2-q4_1"))
import make_oracle as oracle


class Transformers:
    def __init__(self, model, dtype):
        self.model = AutoModelForCausalLM.from_pretrained(os.path.dirname(model), gguf_file=os.path.basename(model), dtype=dtype,
                                                          attn_implementation="eager").eval()
        # plain matrices, not packed blocks with kernels of their own; those without a permutation can be compared
        assert all(p.dtype == dtype for p in self.model.parameters()) and type(self.model.lm_head) is torch.nn.Linear
        layer = self.model.model.layers[7]
        for tensor in gguf.GGUFReader(model).tensors:
            if tensor.name == "blk.7.ffn_down.weight":
                want = torch.from_numpy(gguf.quants.dequantize(tensor.data, tensor.tensor_type)).to(dtype)
                assert type(layer.mlp.down_proj) is torch.nn.Linear and torch.equal(layer.mlp.down_proj.weight, want)

    def logits(self, ids):
        return self.model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].float()


class Files:
    """An engine that reads ids from a file and writes logits to one."""
    def __init__(self, folder, vocab):
        self.ids, self.out, self.vocab = folder + "/ids", folder + "/logits", vocab

    def logits(self, ids):
        np.array(ids, dtype="<u4").tofile(self.ids)
        self.run()
        out = torch.from_numpy(np.fromfile(self.out, dtype="<f4").reshape(len(ids), self.vocab))
        os.remove(self.out)
        return out


class Baton(Files):
    def __init__(self, model, arith, kv, folder, vocab):
        super().__init__(folder, vocab)
        self.model, self.arith, self.kv = model, arith, kv

    def run(self):
        subprocess.run([TARGET + "/release/examples/logits", self.model, self.ids, self.kv, self.out, self.arith], check=True)


class Llama(Files):
    def __init__(self, python, model, folder, vocab):
        super().__init__(folder, vocab)
        self.process = subprocess.Popen([python, os.path.join(HERE, "llama.py"), model, str(THREADS)], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)
        self.version = self.process.stdout.readline().strip()

    def run(self):
        line = f"{self.ids} {self.out}\n"
        self.process.stdin.write(line); self.process.stdin.flush()
        assert self.process.stdout.readline() == line


def compare(want, got, ids):
    """KL, equal argmax and the next token's negative logprob (nan at the last) of every position, in float64."""
    kl, same, nll = [], [], []
    after = torch.tensor(ids[1:] + [0])[:, None]
    for at in range(0, len(ids), 128):
        cut = slice(at, at + 128)
        p, q = want[cut].double().log_softmax(-1), got[cut].double().log_softmax(-1)
        kl.append((p.exp() * (p - q)).sum(-1))
        same.append(want[cut].argmax(-1) == got[cut].argmax(-1))
        nll.append(-q.gather(1, after[cut])[:, 0])
    nll = torch.cat(nll)
    nll[-1] = float("nan")
    return [torch.cat(kl).numpy(), torch.cat(same).numpy(), nll.numpy()]


def table(rows, base):
    print("| engine | mean KL | p99 KL | max KL | top-1 | perplexity | against float32 |\n|---|---|---|---|---|---|---|")
    for name, row in rows.items():
        kl, same, nll = (np.concatenate([window[at] for window in row]) for at in range(3))
        perplexity = np.exp(np.nanmean(nll))
        print(f"| {name} | {kl.mean():.2e} | {np.quantile(kl, 0.99):.2e} | {kl.max():.2e} | {same.mean():.5f} | {perplexity:.4f} | "
              f"{100 * (perplexity / base - 1):+.4f} % |")


def main(args):
    torch.set_num_threads(THREADS); torch.set_grad_enabled(False)
    model = os.path.abspath(args.model)
    ids = oracle.tokenizer(gguf.GGUFReader(model)).encode(open(args.text).read(), add_special_tokens=False).ids[:args.tokens]
    windows = [ids[at:at + args.window] for at in range(0, len(ids), args.window)]
    windows = [window for window in windows if len(window) == args.window]
    reference = Transformers(model, torch.float32)
    vocab = reference.model.config.vocab_size
    with tempfile.TemporaryDirectory() as folder:
        engines = {f"Baton, arith {arith}, {kv} cache": Baton(model, arith, kv, folder, vocab)
                   for arith in args.arith.split(",") for kv in ("f32", "f16")}
        if not args.baton_only:
            engines[f"transformers {transformers.__version__}, bfloat16"] = Transformers(model, torch.bfloat16)
        if args.llama:
            llama = Llama(args.llama, model, folder, vocab)
            engines[f"llama.cpp ({llama.version})"] = llama
        rows, base, spent = {name: [] for name in engines}, [], dict.fromkeys(engines, 0.0)
        for number, window in enumerate(windows):
            want = reference.logits(window)
            base.append(compare(want, want, window)[2])
            for name, engine in engines.items():
                start = time.monotonic()
                rows[name].append(compare(want, engine.logits(window), window))
                spent[name] += time.monotonic() - start
            print(f"window {number + 1} of {len(windows)}; seconds " + json.dumps({n: round(s) for n, s in spent.items()}), file=sys.stderr, flush=True)
    base = np.concatenate(base)
    perplexity = np.exp(np.nanmean(base))
    print(f"{len(windows)} windows of {args.window}, {len(windows) * args.window} tokens; perplexity of float32 {perplexity:.4f}\n")
    table(rows, perplexity)
    if args.save:
        np.savez_compressed(args.save, base=base, **{name: np.array([np.stack([a.astype(np.float64) for a in w]) for w in row]) for name, row in rows.items()})


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("model"); parser.add_argument("text")
    parser.add_argument("--tokens", type=int, default=24 * 1024); parser.add_argument("--window", type=int, default=1024)
    parser.add_argument("--arith", default="1,2"); parser.add_argument("--baton-only", action="store_true")
    parser.add_argument("--llama"); parser.add_argument("--save")
    main(parser.parse_args())
