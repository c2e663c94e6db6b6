#!/usr/bin/env python3
"""Build tiny-qwen3_5/ (random weights, HF layout) and its oracles.

Needs: torch, transformers (with the qwen3_5 model), safetensors, tokenizers, numpy.
Run:   python make_tiny.py            (writes next to this file; deterministic, seed below)

Three independent computations are compared before anything is written:
  1. the installed transformers model, eager attention, CPU, fp32 and bf16;
  2. `Ref` below: our own plain-torch, token-by-token fp32 implementation;
  3. `gdn_chunked` below: our own chunk-parallel form of the gated delta rule.
The MTP head has no transformers implementation; its oracle comes from `Ref.mtp` alone.
"""
import json, math, os, sys, hashlib
os.environ.setdefault("OMP_NUM_THREADS", "1")      # tiny tensors: more threads only spin
import torch
torch.set_num_threads(1)
import torch.nn.functional as F
from safetensors.torch import save_file, load_file

HERE = os.path.dirname(os.path.abspath(__file__))
MODEL = os.path.join(HERE, "tiny-qwen3_5")
ORACLE = os.path.join(HERE, "oracles")
SEED = int(os.environ.get("TINY_SEED", "7"))
CONTINUE = 32

TEXT = dict(
    model_type="qwen3_5_text", vocab_size=512, hidden_size=64, intermediate_size=128,
    num_hidden_layers=8, num_attention_heads=4, num_key_value_heads=2, head_dim=64,
    hidden_act="silu", rms_norm_eps=1e-6, max_position_embeddings=4096,
    attention_bias=False, attention_dropout=0.0, attn_output_gate=True, output_gate_type="swish",
    full_attention_interval=4,
    layer_types=["linear_attention", "linear_attention", "linear_attention", "full_attention"] * 2,
    linear_conv_kernel_dim=4, linear_key_head_dim=32, linear_value_head_dim=32,
    linear_num_key_heads=2, linear_num_value_heads=6, mamba_ssm_dtype="float32",
    mtp_num_hidden_layers=1, mtp_use_dedicated_embeddings=False,
    rope_parameters=dict(rope_type="default", rope_theta=10000000, partial_rotary_factor=0.25,
                         mrope_interleaved=True, mrope_section=[3, 3, 2]),
    tie_word_embeddings=False, use_cache=True, initializer_range=0.02, dtype="bfloat16",
    eos_token_id=508,
)
VISION = dict(model_type="qwen3_5_vision", depth=1, hidden_size=32, intermediate_size=64, num_heads=2,
              in_channels=3, patch_size=4, spatial_merge_size=2, temporal_patch_size=2,
              out_hidden_size=64, num_position_embeddings=16, hidden_act="gelu_pytorch_tanh",
              initializer_range=0.02)
CONFIG = dict(architectures=["Qwen3_5ForConditionalGeneration"], model_type="qwen3_5", dtype="bfloat16",
              text_config=TEXT, vision_config=VISION, image_token_id=509, video_token_id=510,
              vision_start_token_id=511, vision_end_token_id=507, tie_word_embeddings=False)


# ---------------------------------------------------------------- weights

def make_weights():
    """Returns {name: tensor}; everything exactly representable in bf16."""
    g = torch.Generator().manual_seed(SEED)
    n = lambda *s, std=1.0: (torch.randn(*s, generator=g) * std).to(torch.bfloat16)
    lin = lambda o, i, gain=1.0: n(o, i, std=gain / math.sqrt(i))
    t = TEXT
    H, I, V = t["hidden_size"], t["intermediate_size"], t["vocab_size"]
    nh, nkv, hd = t["num_attention_heads"], t["num_key_value_heads"], t["head_dim"]
    nk, nv, dk, dv = (t["linear_num_key_heads"], t["linear_num_value_heads"],
                      t["linear_key_head_dim"], t["linear_value_head_dim"])
    conv = 2 * nk * dk + nv * dv
    w = {}

    def mlp(p):
        w[p + "mlp.gate_proj.weight"] = lin(I, H, 1.2)
        w[p + "mlp.up_proj.weight"] = lin(I, H, 1.2)
        w[p + "mlp.down_proj.weight"] = lin(H, I, 0.6)

    def norms(p):
        w[p + "input_layernorm.weight"] = n(H, std=0.15)
        w[p + "post_attention_layernorm.weight"] = n(H, std=0.15)

    def attn(p):
        w[p + "self_attn.q_proj.weight"] = lin(nh * hd * 2, H, 1.2)
        w[p + "self_attn.k_proj.weight"] = lin(nkv * hd, H, 1.2)
        w[p + "self_attn.v_proj.weight"] = lin(nkv * hd, H, 1.2)
        w[p + "self_attn.o_proj.weight"] = lin(H, nh * hd, 0.7)
        w[p + "self_attn.q_norm.weight"] = n(hd, std=0.3)
        w[p + "self_attn.k_norm.weight"] = n(hd, std=0.3)

    def gdn(p):
        # Keys share most of their direction with the queries (and their conv taps): with independent ones q.k is
        # often near 0 and the gated norm turns its rounding error into O(1) noise, useless as an oracle.
        qk = torch.randn(nk * dk, H, generator=g)
        kk = 0.9 * qk + 0.44 * torch.randn(nk * dk, H, generator=g)
        vv = torch.randn(nv * dv, H, generator=g)
        w[p + "linear_attn.in_proj_qkv.weight"] = (torch.cat([qk, kk, vv]) * (1.2 / math.sqrt(H))).to(torch.bfloat16)
        w[p + "linear_attn.in_proj_z.weight"] = lin(nv * dv, H, 1.2)
        w[p + "linear_attn.in_proj_b.weight"] = lin(nv, H, 1.5)
        w[p + "linear_attn.in_proj_a.weight"] = lin(nv, H, 1.0)
        taps = torch.randn(conv, 1, t["linear_conv_kernel_dim"], generator=g) * 0.25
        taps[nk * dk:2 * nk * dk] = taps[:nk * dk] + 0.05 * taps[nk * dk:2 * nk * dk]
        taps[:, :, -1] += 0.8
        w[p + "linear_attn.conv1d.weight"] = taps.to(torch.bfloat16)
        w[p + "linear_attn.dt_bias"] = (torch.rand(nv, generator=g) * 4 - 3.5).to(torch.bfloat16)
        a = torch.rand(nv, generator=g) * 0.8 + 0.02
        a[-1] = 6.0                                  # one fast-forgetting head per layer
        w[p + "linear_attn.A_log"] = a.log().to(torch.bfloat16).float()      # stored F32
        w[p + "linear_attn.norm.weight"] = (1 + 0.15 * torch.randn(dv, generator=g)).to(torch.bfloat16).float()
        w[p + "linear_attn.out_proj.weight"] = lin(H, nv * dv, 0.35)

    w["model.language_model.embed_tokens.weight"] = n(V, H, std=1.0)
    for i, kind in enumerate(t["layer_types"]):
        p = f"model.language_model.layers.{i}."
        norms(p); mlp(p)
        (gdn if kind == "linear_attention" else attn)(p)
    w["model.language_model.norm.weight"] = n(H, std=0.15)
    w["lm_head.weight"] = lin(V, H, 2.5)
    w["mtp.fc.weight"] = lin(H, 2 * H, 1.0)
    for k in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"):
        w[f"mtp.{k}.weight"] = n(H, std=0.15)
    norms("mtp.layers.0."); mlp("mtp.layers.0."); attn("mtp.layers.0.")
    return w


# ---------------------------------------------------------------- our own reference

def rms(x, weight, eps, zero_centred):
    x = x.float()
    y = x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps)
    return y * (1.0 + weight.float() if zero_centred else weight.float())


def unit(x):                                  # L2 normalisation, eps inside the root, on the SUM
    return x / torch.sqrt((x * x).sum(-1, keepdim=True) + 1e-6)


def gdn_step(S, q, k, v, logdecay, beta):
    """One token. S [Hv,Dk,Dv]; q,k [Hv,Dk] (already unit length, q already scaled); v [Hv,Dv]."""
    S = S * torch.exp(logdecay)[:, None, None]
    err = v - torch.einsum("hkv,hk->hv", S, k)
    S = S + torch.einsum("hk,hv->hkv", k, err * beta[:, None])
    return S, torch.einsum("hkv,hk->hv", S, q)


def gdn_chunked(S, q, k, v, logdecay, beta, C=64):
    """Chunk-parallel form. q,k [T,Hv,Dk], v [T,Hv,Dv], logdecay,beta [T,Hv]."""
    outs = []
    for s in range(0, q.shape[0], C):
        Q, K, V = (x[s:s + C].transpose(0, 1) for x in (q, k, v))            # [H,c,D]
        B = beta[s:s + C].T[..., None]
        L = logdecay[s:s + C].T.cumsum(-1)                                   # [H,c] inclusive
        c = L.shape[1]
        gap = L[:, :, None] - L[:, None, :]
        low = torch.ones(c, c).tril().bool()
        D = torch.where(low, gap, torch.full_like(gap, -1e30)).exp()         # decay j -> i, i >= j
        M = (K * B) @ K.transpose(1, 2) * D
        M = torch.tril(M, -1) + torch.eye(c)                                 # (I + M) U = B (V - e^L K S0)
        rhs = B * (V - L.exp()[..., None] * (K @ S))
        U = torch.linalg.solve_triangular(M, rhs, upper=False, unitriangular=True)
        outs.append(((Q * L.exp()[..., None]) @ S + ((Q @ K.transpose(1, 2)) * D) @ U).transpose(0, 1))
        tail = (L[:, -1:] - L).exp()[..., None]
        S = S * L[:, -1].exp()[:, None, None] + (K * tail).transpose(1, 2) @ U
    return S, torch.cat(outs)


class Ref:
    """fp32, batch 1, text only. State: per layer (conv window [C,K-1], S) or (K, V)."""

    def __init__(self, w, cfg=TEXT, chunked=False):
        self.w = {k: v.float() for k, v in w.items()}
        self.c, self.chunked = cfg, chunked

    def rope(self, x, pos):                   # x [T,heads,hd]; rotates the first `rot` dims, half-split pairs
        c = self.c["rope_parameters"]
        rot = int(self.c["head_dim"] * c["partial_rotary_factor"])
        inv = c["rope_theta"] ** (-torch.arange(0, rot, 2).float() / rot)
        ang = pos.float()[:, None] * inv
        co, si = ang.cos()[:, None], ang.sin()[:, None]
        a, b, rest = x[..., :rot // 2], x[..., rot // 2:rot], x[..., rot:]
        return torch.cat([a * co - b * si, b * co + a * si, rest], -1)

    def attention(self, p, x, st, pos):
        c, w = self.c, self.w
        T, nh, nkv, hd, eps = x.shape[0], c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"], c["rms_norm_eps"]
        qg = (x @ w[p + "q_proj.weight"].T).view(T, nh, 2, hd)        # per head: [query | gate]
        q, gate = qg[:, :, 0], qg[:, :, 1].reshape(T, nh * hd)
        k = (x @ w[p + "k_proj.weight"].T).view(T, nkv, hd)
        v = (x @ w[p + "v_proj.weight"].T).view(T, nkv, hd)
        q = self.rope(rms(q, w[p + "q_norm.weight"], eps, True), pos)
        k = self.rope(rms(k, w[p + "k_norm.weight"], eps, True), pos)
        if st is not None:
            k, v = torch.cat([st[0], k]), torch.cat([st[1], v])
        r, S = nh // nkv, k.shape[0]
        kk, vv = k.repeat_interleave(r, 1), v.repeat_interleave(r, 1)
        sc = torch.einsum("thd,shd->hts", q, kk) / math.sqrt(hd)
        mask = torch.arange(S)[None] > torch.arange(S - T, S)[:, None]
        pr = sc.masked_fill(mask, float("-inf")).softmax(-1)
        o = torch.einsum("hts,shd->thd", pr, vv).reshape(T, nh * hd)
        return (o * torch.sigmoid(gate)) @ w[p + "o_proj.weight"].T, (k, v)

    def deltanet(self, p, x, st):
        c, w = self.c, self.w
        T = x.shape[0]
        nk, nv, dk, dv, K = (c["linear_num_key_heads"], c["linear_num_value_heads"],
                             c["linear_key_head_dim"], c["linear_value_head_dim"], c["linear_conv_kernel_dim"])
        mixed = x @ w[p + "in_proj_qkv.weight"].T                      # [T, C]
        C = mixed.shape[1]
        win, S = st if st is not None else (torch.zeros(K - 1, C), torch.zeros(nv, dk, dv))
        full = torch.cat([win, mixed])
        taps = w[p + "conv1d.weight"].view(C, K)                       # tap K-1 multiplies the current token
        conv = sum(full[j:j + T] * taps[:, j] for j in range(K))
        conv = conv * torch.sigmoid(conv)
        q, k, v = conv.split([nk * dk, nk * dk, nv * dv], -1)
        q = unit(q.view(T, nk, dk)).repeat_interleave(nv // nk, 1) / math.sqrt(dk)
        k = unit(k.view(T, nk, dk)).repeat_interleave(nv // nk, 1)
        v = v.view(T, nv, dv)
        beta = torch.sigmoid(x @ w[p + "in_proj_b.weight"].T)
        logdecay = -torch.exp(w[p + "A_log"]) * F.softplus(x @ w[p + "in_proj_a.weight"].T + w[p + "dt_bias"])
        if self.chunked and T > 1:
            S, o = gdn_chunked(S, q, k, v, logdecay, beta)
        else:
            o = torch.empty(T, nv, dv)
            for i in range(T):
                S, o[i] = gdn_step(S, q[i], k[i], v[i], logdecay[i], beta[i])
        z = (x @ w[p + "in_proj_z.weight"].T).view(T, nv, dv)
        o = rms(o, w[p + "norm.weight"], c["rms_norm_eps"], False) * z * torch.sigmoid(z)
        return o.reshape(T, -1) @ w[p + "out_proj.weight"].T, (full[-(K - 1):], S)

    def block(self, p, kind, x, st, pos):
        eps, w = self.c["rms_norm_eps"], self.w
        h = rms(x, w[p + "input_layernorm.weight"], eps, True)
        y, st = self.deltanet(p + "linear_attn.", h, st) if kind == "linear_attention" else \
            self.attention(p + "self_attn.", h, st, pos)
        x = x + y
        h = rms(x, w[p + "post_attention_layernorm.weight"], eps, True)
        g = h @ w[p + "mlp.gate_proj.weight"].T
        u = h @ w[p + "mlp.up_proj.weight"].T
        return x + (g * torch.sigmoid(g) * u) @ w[p + "mlp.down_proj.weight"].T, st

    def forward(self, ids, state=None, start=0):
        c = self.c
        pos = torch.arange(start, start + len(ids))
        x = self.w["model.language_model.embed_tokens.weight"][torch.tensor(ids)]
        hidden, new = [x], []
        for i, kind in enumerate(c["layer_types"]):
            x, st = self.block(f"model.language_model.layers.{i}.", kind, x, state[i] if state else None, pos)
            new.append(st); hidden.append(x)
        x = rms(x, self.w["model.language_model.norm.weight"], c["rms_norm_eps"], True)
        return x @ self.w["lm_head.weight"].T, x, hidden, new

    def mtp(self, hidden, next_ids, st=None, start=0):
        """hidden[t]: final-normed trunk output at position t; next_ids[t]: token t+1.
        Returns logits for token t+2, the head's own final-normed output, and its KV."""
        w, eps = self.w, self.c["rms_norm_eps"]
        e = rms(w["model.language_model.embed_tokens.weight"][torch.tensor(next_ids)],
                w["mtp.pre_fc_norm_embedding.weight"], eps, True)
        h = rms(hidden, w["mtp.pre_fc_norm_hidden.weight"], eps, True)
        x = torch.cat([e, h], -1) @ w["mtp.fc.weight"].T
        pos = torch.arange(start, start + len(next_ids))
        x, st = self.block("mtp.layers.0.", "full_attention", x, st, pos)
        x = rms(x, w["mtp.norm.weight"], eps, True)
        return x @ w["lm_head.weight"].T, x, st


# ---------------------------------------------------------------- transformers side

def hf_model(dtype):
    from transformers import AutoModelForCausalLM
    m = AutoModelForCausalLM.from_pretrained(MODEL, dtype=dtype, attn_implementation="eager").eval()
    return m


def hf_run(m, ids):
    """Prefill + greedy continuation. Returns dict."""
    from transformers import DynamicCache
    cache = DynamicCache(config=m.config)
    out = m(input_ids=torch.tensor([ids]), past_key_values=cache, use_cache=True, output_hidden_states=True)
    r = dict(logits=out.logits[0].clone(), hidden=[h[0].clone() for h in out.hidden_states], conv={}, S={}, kv={})
    for i, kind in enumerate(TEXT["layer_types"]):
        l = cache.layers[i]
        if kind == "linear_attention":
            r["conv"][i] = l.conv_states[0][0].clone()
            r["S"][i] = l.recurrent_states[0][0].clone()
        else:
            r["kv"][i] = (l.keys[0].clone(), l.values[0].clone())
    toks, gaps, lg = [], [], out.logits[0, -1]
    steps = []
    for _ in range(CONTINUE):
        top = lg.float().topk(2).values
        gaps.append(float(top[0] - top[1])); toks.append(int(lg.argmax()))
        lg = m(input_ids=torch.tensor([[toks[-1]]]), past_key_values=cache, use_cache=True).logits[0, -1]
        steps.append(lg.clone())
    r.update(greedy=toks, gaps=gaps, step_logits=torch.stack(steps))
    return r


def make_tokenizer():
    from tokenizers import Tokenizer, models, pre_tokenizers, decoders, normalizers, trainers, Regex, AddedToken
    pat = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
           r"|\s*[\r\n]+|\s+(?!\S)|\s+")
    tk = Tokenizer(models.BPE())
    tk.normalizer = normalizers.NFC()
    tk.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pat), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tk.decoder = decoders.ByteLevel()
    corpus = ["The quick brown fox jumps over the lazy dog. A gated delta network keeps a small matrix of state for "
              "every head, decays it, reads it with the key, writes the error back and answers the query. The rest of "
              "the layers attend to everything that came before them, and the tokens that follow are predicted one by one."] * 4
    tk.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=505, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                                       show_progress=False))
    n = tk.get_vocab_size()
    for i in range(n, 505):
        tk.add_tokens([AddedToken(f"<|unused{i}|>", special=False)])
    tk.add_special_tokens([AddedToken(s, special=True) for s in (
        "<|im_start|>", "<|im_end|>", "<|vision_end|>", "<|endoftext|>", "<|image_pad|>", "<|video_pad|>", "<|vision_start|>")])
    return tk


PROMPTS = {
    "one": [17],
    "three": [300, 5, 499],                       # shorter than the conv window
    "twenty": None, "seventy": None,              # random; 70 crosses one 64-token chunk
    "long130": None,                              # crosses two chunks
}


def main():
    from transformers import AutoConfig
    os.makedirs(MODEL, exist_ok=True); os.makedirs(ORACLE, exist_ok=True)
    g = torch.Generator().manual_seed(1234)
    for k, n in (("twenty", 20), ("seventy", 70), ("long130", 130)):
        PROMPTS[k] = torch.randint(0, 500, (n,), generator=g).tolist()
    w = make_weights()
    json.dump(CONFIG, open(os.path.join(MODEL, "config.json"), "w"), indent=2)
    # names and shapes checked against the transformers class, which also supplies the vision tensors
    from transformers import Qwen3_5ForConditionalGeneration
    torch.manual_seed(SEED)
    vl = Qwen3_5ForConditionalGeneration(AutoConfig.from_pretrained(MODEL))
    sd = vl.state_dict()
    ours = {k: tuple(v.shape) for k, v in w.items() if not k.startswith("mtp.")}
    theirs = {k: tuple(v.shape) for k, v in sd.items() if not k.startswith("model.visual.")}
    assert ours == theirs, (set(ours) ^ set(theirs), [k for k in ours if theirs.get(k) != ours[k]])
    vis = {k: v.to(torch.bfloat16).contiguous() for k, v in sd.items() if k.startswith("model.visual.")}
    save_file({**w, **vis}, os.path.join(MODEL, "model.safetensors"), metadata={"format": "pt"})
    json.dump({"eos_token_id": [508, 506], "do_sample": False}, open(os.path.join(MODEL, "generation_config.json"), "w"))
    tk = make_tokenizer(); tk.save(os.path.join(MODEL, "tokenizer.json"))
    json.dump({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>",
               "model_max_length": 4096, "clean_up_tokenization_spaces": False,
               "chat_template": "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
                                "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"},
              open(os.path.join(MODEL, "tokenizer_config.json"), "w"), indent=1)

    torch.set_grad_enabled(False)
    m32, m16 = hf_model(torch.float32), hf_model(torch.bfloat16)
    ref, refc = Ref(w), Ref(w, chunked=True)
    index = dict(seed=SEED, continue_tokens=CONTINUE, prompts={}, versions={
        "torch": torch.__version__.split("+")[0], "transformers": __import__("transformers").__version__})
    out, worst = {}, {}
    mx = lambda a, b: float((a.float() - b.float()).abs().max())
    for name, ids in PROMPTS.items():
        a, b = hf_run(m32, ids), hf_run(m16, ids)
        lg, fin, hid, st = ref.forward(ids)
        lgc, _, _, stc = refc.forward(ids)
        d = dict(ref_vs_hf_fp32_logits=mx(lg, a["logits"]), chunked_vs_step_logits=mx(lgc, lg),
                 bf16_vs_fp32_logits=mx(a["logits"], b["logits"]),
                 bf16_vs_fp32_logits_mean=float((a["logits"] - b["logits"].float()).abs().mean()),
                 ref_vs_hf_S=max(mx(st[i][1], s) for i, s in a["S"].items()),
                 chunked_vs_step_S=max(mx(stc[i][1], st[i][1]) for i in a["S"]),
                 bf16_vs_fp32_S=max(mx(a["S"][i], b["S"][i]) for i in a["S"]),
                 ref_vs_hf_conv=max(mx(st[i][0].T, c[:, 1:]) for i, c in a["conv"].items()),
                 ref_vs_hf_hidden=max(mx(hid[i], h) for i, h in enumerate(a["hidden"][:-1])),
                 max_abs_logit=float(a["logits"].abs().max()),
                 greedy_min_gap_fp32=min(a["gaps"]), greedy_min_gap_bf16=min(b["gaps"]),
                 bf16_greedy_agrees_for=next((i for i in range(CONTINUE) if a["greedy"][i] != b["greedy"][i]), CONTINUE),
                 bf16_argmax_agreement=float((a["logits"].argmax(-1) == b["logits"].argmax(-1)).float().mean()))
        # one-token-at-a-time equals prefill
        state, step = None, []
        for t, tok in enumerate(ids):
            l, _, _, state = ref.forward([tok], state, t); step.append(l[0])
        d["ref_stepwise_vs_prefill_logits"] = mx(torch.stack(step), lg)
        worst[name] = d
        # MTP: predict ids[t+2] from trunk hidden t and token t+1, last position uses the first greedy token
        nxt = ids[1:] + [a["greedy"][0]]
        ml, mh, mkv = ref.mtp(fin, nxt)
        chain, hh, tok, kv, pos = [], mh[-1:], int(ml[-1].argmax()), mkv, len(ids)
        for _ in range(3):                       # recursive drafting: own output becomes the next hidden
            chain.append(tok)
            l2, hh, kv = ref.mtp(hh, [tok], kv, pos); tok = int(l2[-1].argmax()); pos += 1
        P = name + "."
        out[P + "ids"] = torch.tensor(ids, dtype=torch.int32)
        out[P + "logits_fp32"] = a["logits"]
        out[P + "logits_bf16"] = b["logits"]
        out[P + "greedy_fp32"] = torch.tensor(a["greedy"], dtype=torch.int32)
        out[P + "greedy_bf16"] = torch.tensor(b["greedy"], dtype=torch.int32)
        out[P + "mtp_next_ids"] = torch.tensor(nxt, dtype=torch.int32)
        out[P + "mtp_last_logits_fp32"] = ml[-1].clone()
        out[P + "mtp_argmax"] = ml.argmax(-1).to(torch.int32)
        out[P + "mtp_chain"] = torch.tensor(chain, dtype=torch.int32)
        if name != "long130":
            # hidden[0] = embedding, hidden[i] = residual stream after layer i-1 (i = 1..8), hidden[9] = after the final norm
            out[P + "hidden_fp32"] = torch.stack(hid + [fin]) if name != "seventy" else torch.stack([h[-6:] for h in hid + [fin]])
        keep = range(8) if name in ("three", "twenty") else (0, 6)
        for i in a["S"]:
            if i in keep:
                out[P + f"layer{i}.S_fp32"] = a["S"][i]
                out[P + f"layer{i}.conv_fp32"] = a["conv"][i]
        if name == "twenty":
            for i, (k, v) in a["kv"].items():
                out[P + f"layer{i}.K_fp32"], out[P + f"layer{i}.V_fp32"] = k, v
            out[P + "step_logits_fp32"] = a["step_logits"][:8]
            out[P + "mtp_logits_fp32"], out[P + "mtp_hidden_fp32"] = ml, mh
        index["prompts"][name] = dict(length=len(ids), greedy_fp32=a["greedy"], greedy_bf16=b["greedy"], checks=d)
        print(name, flush=True); print(json.dumps({k: float("%.3g" % v) for k, v in d.items()}))
    out = {k: v.contiguous().clone() for k, v in out.items()}
    save_file(out, os.path.join(ORACLE, "tiny-qwen3_5.safetensors"))
    # tokenizer oracle
    samples = ["The quick brown fox.", " it's 2026, isn't it?\n\n\tTabs  and   spaces ", "naïve café 日本語 🙂 e\u0301",
               "<|im_start|>user\nhello<|im_end|>\n", "x\r\ny\n \n z", "", "1234567 3.14"]
    index["tokenizer"] = [{"text": s, "ids": tk.encode(s, add_special_tokens=False).ids} for s in samples]
    for r in index["tokenizer"]:
        r["decoded"] = tk.decode(r["ids"], skip_special_tokens=False)
    index["tensors"] = {k: [str(v.dtype).replace("torch.", ""), list(v.shape)] for k, v in out.items()}
    index["checkpoint_sha256"] = hashlib.sha256(open(os.path.join(MODEL, "model.safetensors"), "rb").read()).hexdigest()
    json.dump(index, open(os.path.join(ORACLE, "tiny-qwen3_5.json"), "w"), indent=1)


if __name__ == "__main__":
    main()
