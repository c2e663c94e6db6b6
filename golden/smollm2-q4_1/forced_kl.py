#!/usr/bin/env python3
"""Teacher-forced distance of this engine from float32 weights, over one text.

    python forced_kl.py MODEL.gguf TEXT [TOKENS]

Needs torch, gguf, tokenizers, numpy, safetensors, and `cargo build --release -p baton-stage --example logits`.
The reference is make_oracle.py's own float32 forward. Prints, a KV dtype each: mean, p99 and max KL of the
reference to the engine a position, top-1 agreement, and the largest logit difference.
"""
import os, subprocess, sys, tempfile
import numpy as np, torch, gguf
import make_oracle as oracle

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
TARGET = os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target"))


def engine(model, ids, kv, vocab):
    with tempfile.TemporaryDirectory() as d:
        np.array(ids, dtype="<u4").tofile(d + "/ids")
        subprocess.run([TARGET + "/release/examples/logits", model, d + "/ids", kv, d + "/out"], check=True)
        return torch.from_numpy(np.fromfile(d + "/out", dtype="<f4").reshape(len(ids), vocab))


def main(model, text, tokens):
    torch.set_grad_enabled(False)
    reader = gguf.GGUFReader(model)
    ids = oracle.tokenizer(reader).encode(open(text).read(), add_special_tokens=False).ids[:tokens]
    want = oracle.Llama(reader).forward(ids, [])
    for kv in ("f32", "f16"):
        got = engine(model, ids, kv, want.shape[1])
        p, q = want.double().log_softmax(-1), got.double().log_softmax(-1)
        kl = (p.exp() * (p - q)).sum(-1)
        same = (want.argmax(-1) == got.argmax(-1)).double().mean()
        print(f"kv {kv}: {len(ids)} tokens, KL mean {kl.mean():.2e} p99 {kl.quantile(0.99):.2e} max {kl.max():.2e}, "
              f"top-1 {same:.4f}, largest logit difference {(want - got).abs().max():.4f}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 768)
