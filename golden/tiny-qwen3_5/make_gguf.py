#!/usr/bin/env python3
"""tiny-qwen3_5/ -> tiny-qwen3_5-bf16.gguf (arch qwen35, with the MTP block), written from the mapping of names and
head order that llama.cpp reads, with the `gguf` package's writer (no converter is on PyPI).

Not produced by llama.cpp, and not run through it: the self-check reads the file back, undoes the mapping
and compares every tensor with the source exactly, then evaluates one DeltaNet layer in GGUF head order.
Needs gguf, torch, safetensors, numpy.
"""
import json, os
os.environ.setdefault("OMP_NUM_THREADS", "1")
from pathlib import Path
import numpy as np, torch, gguf
from safetensors.torch import load_file
from make_tiny import Ref, rms, unit, gdn_step, TEXT

HERE = Path(__file__).resolve().parent
T = TEXT
NK, NV, DK, DV = T["linear_num_key_heads"], T["linear_num_value_heads"], T["linear_key_head_dim"], T["linear_value_head_dim"]
# stored value head p = j*NK + i  <-  HF value head i*r + j
ORDER = [i * (NV // NK) + j for j in range(NV // NK) for i in range(NK)]
ROWS = torch.tensor([h * DV + d for h in ORDER for d in range(DV)])
LAYER = {"input_layernorm": "attn_norm", "post_attention_layernorm": "post_attention_norm", "mlp.gate_proj": "ffn_gate",
         "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
         "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
         "self_attn.k_norm": "attn_k_norm", "linear_attn.in_proj_qkv": "attn_qkv", "linear_attn.in_proj_z": "attn_gate",
         "linear_attn.in_proj_b": "ssm_beta", "linear_attn.in_proj_a": "ssm_alpha", "linear_attn.conv1d": "ssm_conv1d",
         "linear_attn.norm": "ssm_norm", "linear_attn.out_proj": "ssm_out"}
MTP = {"mtp.fc": "nextn.eh_proj", "mtp.pre_fc_norm_embedding": "nextn.enorm", "mtp.pre_fc_norm_hidden": "nextn.hnorm",
       "mtp.norm": "nextn.shared_head_norm"}


def convert(name, w):
    """-> (gguf name, fp32 tensor) or None"""
    n = T["num_hidden_layers"]
    if name.startswith("model.visual."): return None
    w = w.float()
    if name.endswith("norm.weight") and "linear_attn.norm" not in name or ".pre_fc_norm_" in name: w = w + 1
    qk = 2 * NK * DK
    if "in_proj_qkv" in name or "conv1d" in name: w = w.reshape(w.shape[0], -1); w = torch.cat([w[:qk], w[qk:][ROWS]])
    elif "in_proj_z" in name: w = w[ROWS]
    elif "in_proj_a" in name or "in_proj_b" in name or "dt_bias" in name or "A_log" in name: w = w[ORDER]
    elif "linear_attn.out_proj" in name: w = w[:, ROWS]
    if "A_log" in name: w = -w.exp()
    root = {"model.language_model.embed_tokens.weight": "token_embd.weight", "model.language_model.norm.weight": "output_norm.weight",
            "lm_head.weight": "output.weight"}
    if name in root: return root[name], w
    base = name.removesuffix(".weight")
    if base in MTP: return f"blk.{n}.{MTP[base]}.weight", w
    if name.startswith("mtp.layers."):
        _, _, i, rest = name.split(".", 3); i = n + int(i)
    else:
        i, rest = name.removeprefix("model.language_model.layers.").split(".", 1)
    if rest.endswith("A_log"): return f"blk.{i}.ssm_a", w
    if rest.endswith("dt_bias"): return f"blk.{i}.ssm_dt.bias", w
    return f"blk.{i}.{LAYER[rest.removesuffix('.weight')]}.weight", w


def main():
    src = load_file(str(HERE / "tiny-qwen3_5" / "model.safetensors"))
    path = HERE / "tiny-qwen3_5-bf16.gguf"
    g = gguf.GGUFWriter(str(path), "qwen35")
    n, mtp = T["num_hidden_layers"], T["mtp_num_hidden_layers"]
    rp = T["rope_parameters"]
    g.add_name("tiny-qwen3_5"); g.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    u = lambda k, v: g.add_uint32("qwen35." + k, v)
    u("block_count", n + mtp); u("nextn_predict_layers", mtp); u("context_length", T["max_position_embeddings"])
    u("embedding_length", T["hidden_size"]); u("feed_forward_length", T["intermediate_size"])
    u("attention.head_count", T["num_attention_heads"]); u("attention.head_count_kv", T["num_key_value_heads"])
    u("attention.key_length", T["head_dim"]); u("attention.value_length", T["head_dim"])
    g.add_float32("qwen35.attention.layer_norm_rms_epsilon", T["rms_norm_eps"])
    g.add_float32("qwen35.rope.freq_base", float(rp["rope_theta"]))
    u("rope.dimension_count", int(T["head_dim"] * rp["partial_rotary_factor"]))
    g.add_array("qwen35.rope.dimension_sections", rp["mrope_section"] + [0])
    u("ssm.conv_kernel", T["linear_conv_kernel_dim"]); u("ssm.state_size", DK); u("ssm.group_count", NK)
    u("ssm.time_step_rank", NV); u("ssm.inner_size", NV * DV); u("full_attention_interval", T["full_attention_interval"])
    tj = json.load(open(HERE / "tiny-qwen3_5" / "tokenizer.json"))
    vocab = {**tj["model"]["vocab"], **{a["content"]: a["id"] for a in tj["added_tokens"]}}
    special = {a["id"]: a["special"] for a in tj["added_tokens"]}
    toks = sorted(vocab, key=vocab.get)
    toks += [f"[PAD{i}]" for i in range(len(toks), T["vocab_size"])]
    g.add_tokenizer_model("gpt2"); g.add_tokenizer_pre("qwen35"); g.add_token_list(toks)
    g.add_token_types([5 if t.startswith("[PAD") else (3 if special[vocab[t]] else 4) if vocab[t] in special else 1 for t in toks])
    g.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in tj["model"]["merges"]])
    g.add_eos_token_id(vocab["<|im_end|>"]); g.add_pad_token_id(vocab["<|endoftext|>"]); g.add_add_bos_token(False)
    g.add_chat_template(json.load(open(HERE / "tiny-qwen3_5" / "tokenizer_config.json"))["chat_template"])
    want = {}
    for k, v in src.items():
        if (r := convert(k, v)) is None: continue
        name, w = r; want[name] = w
        if w.ndim == 1 or "conv1d" in name: g.add_tensor(name, np.ascontiguousarray(w.numpy()))
        else: g.add_tensor(name, np.ascontiguousarray(w.to(torch.bfloat16).view(torch.int16).numpy()).view(np.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)
    g.write_header_to_file(); g.write_kv_data_to_file(); g.write_tensors_to_file(); g.close()
    r = gguf.GGUFReader(str(path)); back = {}
    for t in r.tensors:
        back[t.name] = torch.from_numpy(np.array(gguf.quants.dequantize(t.data, t.tensor_type), dtype=np.float32))
    assert set(back) == set(want) and all(torch.equal(back[k].reshape(want[k].shape), want[k]) for k in want)
    # one DeltaNet layer in GGUF order (key head = p % NK) equals the HF-order reference
    torch.manual_seed(0); x = torch.randn(9, T["hidden_size"]); b = lambda s: back["blk.0." + s]
    y0, (_, S0) = Ref(src).deltanet("model.language_model.layers.0.linear_attn.", x, None)
    m = x @ b("attn_qkv.weight").T; full = torch.cat([torch.zeros(3, m.shape[1]), m]); c = b("ssm_conv1d.weight").reshape(-1, 4)
    c = torch.nn.functional.silu(sum(full[j:j + 9] * c[:, j] for j in range(4)))
    q, k, v = c.split([NK * DK, NK * DK, NV * DV], -1)
    kh = [p % NK for p in range(NV)]
    q = unit(q.view(9, NK, DK))[:, kh] / DK ** .5; k = unit(k.view(9, NK, DK))[:, kh]; v = v.view(9, NV, DV)
    beta = torch.sigmoid(x @ b("ssm_beta.weight").T)
    ld = b("ssm_a") * torch.nn.functional.softplus(x @ b("ssm_alpha.weight").T + b("ssm_dt.bias"))
    S, o = torch.zeros(NV, DK, DV), torch.empty(9, NV, DV)
    for t in range(9): S, o[t] = gdn_step(S, q[t], k[t], v[t], ld[t], beta[t])
    z = (x @ b("attn_gate.weight").T).view(9, NV, DV)
    y = (rms(o, b("ssm_norm.weight"), 1e-6, False) * torch.nn.functional.silu(z)).reshape(9, -1) @ b("ssm_out.weight").T
    print("tensors", len(back), "round trip exact; layer 0 max diff", float((y - y0).abs().max()),
          "state diff", float((S - S0[ORDER]).abs().max()), "bytes", path.stat().st_size)


if __name__ == "__main__":
    main()
