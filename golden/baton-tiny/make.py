#!/usr/bin/env python3
"""Oracle of models/baton-tiny: transformers in float32 on the CPU, eager attention.

    python make.py                  (writes baton-tiny.safetensors and baton-tiny.json beside itself)

Needs torch, transformers >= 5.24, tokenizers, jinja2, safetensors. Deterministic.
"""
import json, os
os.environ.setdefault("OMP_NUM_THREADS", "1")
import torch, transformers
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

HERE = os.path.dirname(os.path.abspath(__file__))
MODEL = os.path.join(HERE, "..", "..", "models", "baton-tiny")
REPLY_TOKENS = 64
STORY = ("Once upon a time, in a small village by the river, there lived an old baker named Otto. Every morning he woke up "
         "before the sun, lit the fire and made bread for the whole village. One day his oven broke. \"What shall I do?\" said "
         "Otto. A young fox sat at the door and heard him. \"I know a place in the forest,\" said the fox, \"where a clever badger "
         "mends everything.\" So they walked together, past the mill, over the old bridge and into the trees. The badger looked at "
         "the baker, then at the fox, and smiled. \"I will come,\" he said, \"but I want a warm loaf every Sunday.\" Otto laughed and "
         "shook his paw. By the evening the oven was warm again, and the whole village smelled of bread. The fox got the first "
         "loaf, the badger got the second, and Otto sat down on his step and looked at the stars. He was tired, but he was not "
         "alone any more.")
SECOND = ("In the winter the river froze and the mill stood still. There was no flour in the village, and the people were hungry. "
          "\"The fox runs fast,\" said the badger. \"She can cross the hills and ask the miller in the valley.\" The fox ran all night "
          "through the snow. In the morning she came back with a small sledge and five white bags on it. \"Now you may sleep,\" said Otto.")
USER = lambda text: [{"role": "user", "content": text}]
CHATS = {
    "hello": USER("Hello!"),
    "tom": USER("Tell me a story about a brave rabbit named Tom."),
    "capital": USER("What is the capital of France?"),
    "python": USER("Write a Python function that adds two numbers."),
    "json": USER("Write a JSON object with the name Mia and the age 7."),
    "fruits": USER("List three fruits."),
    "sum": USER("What is 17 plus 25?"),
    "repeat": USER("Repeat this text: The old clock in the hall was slow, but nobody wanted to fix it."),
    "turns": [{"role": "system", "content": "You are a kind teller of tales."}, {"role": "user", "content": "Hello!"},
              {"role": "assistant", "content": "Hello! I am happy to talk with you. Would you like a story?"},
              {"role": "user", "content": "Yes, about a whale."}],
    "long": USER(STORY + "\n\n" + SECOND + "\n\nTell me another story about a fox."),
}
RAW = {"raw_once": "Once upon a time", "raw_story": STORY[:STORY.index(" Otto laughed")]}
TEXTS = ["", "Hello world", "  two  spaces\n\n and lines\r\n", "It's 2026, isn't it? 1234567890", "naïve café", "e\u0301 and \u00e9",
         "日本語と한국어", "🙂👩‍👩‍👧 emoji", "नमस्ते", "\ttab\x00nul\x7f", "def f(x):\n    return x ** 2  # square\n",
         "<|im_start|>user\nhi<|im_end|>\n", "a<|im_end|>b<|mask|><|endoftext|>", "<|im_end", "DON'T WE'LL i'Ve", "a\u00a0b\u2003c", "x" * 40,
         "... --- !!! ??\n", "100,000.00 $5 50% #7"]


def greedy(model, ids, stops):
    """Tokens until a stop token, which is the last, with the gap of the two best logits at each; the prompt's last logits."""
    out = model(input_ids=torch.tensor([ids]), use_cache=True)
    last, tokens, gaps, logits = out.logits[0, -1].clone(), [], [], out.logits[0, -1]
    while True:
        best = logits.topk(2)
        tokens.append(int(logits.argmax())); gaps.append(float(best.values[0] - best.values[1]))
        if tokens[-1] in stops or len(tokens) == REPLY_TOKENS:
            return tokens, gaps, last
        out = model(input_ids=torch.tensor([tokens[-1:]]), past_key_values=out.past_key_values, use_cache=True)
        logits = out.logits[0, -1]


def main():
    torch.set_num_threads(1); torch.set_grad_enabled(False)
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32, attn_implementation="eager").eval()
    assert all(p.dtype == torch.float32 for p in model.parameters())
    stops = model.generation_config.eos_token_id
    index = dict(transformers=transformers.__version__, torch=torch.__version__.split("+")[0], stops=stops, prompts={}, templates=[], tokenizer=[])
    out = {}
    texts = {n: tokenizer.apply_chat_template(m, tokenize=False, add_generation_prompt=True) for n, m in CHATS.items()}
    for name, text in {**texts, **RAW}.items():
        ids = tokenizer.encode(text, add_special_tokens=False)
        tokens, gaps, last = greedy(model, ids, stops)
        # the whole in one forward: the same tokens wherever the gap is more than noise
        whole = model(input_ids=torch.tensor([ids + tokens])).logits[0, len(ids) - 1:-1]
        assert whole.argmax(-1).tolist() == tokens, name
        noise = float((whole[0] - last).abs().max())
        index["prompts"][name] = dict(messages=CHATS.get(name), text=text, ids=ids, reply=tokens, reply_text=tokenizer.decode(tokens),
                                      gaps=[round(g, 5) for g in gaps])
        out[name + ".last_logits"] = last
        print(f"{name}: {len(ids)} ids, {len(tokens)} tokens, smallest gap {min(gaps):.4f}, one forward {noise:.1e}: "
              f"{tokenizer.decode(tokens)[:70]!r}", flush=True)
    for name in ("hello", "turns"):
        for prompt in (False, True):
            index["templates"].append(dict(messages=CHATS[name], add_generation_prompt=prompt,
                                           text=tokenizer.apply_chat_template(CHATS[name], tokenize=False, add_generation_prompt=prompt)))
    for text in TEXTS:
        ids = tokenizer.encode(text, add_special_tokens=False)
        index["tokenizer"].append(dict(text=text, ids=ids, decoded=tokenizer.decode(ids)))
    save_file(out, os.path.join(HERE, "baton-tiny.safetensors"))
    with open(os.path.join(HERE, "baton-tiny.json"), "w") as file:
        json.dump(index, file, ensure_ascii=False, separators=(",", ":"))
        file.write("\n")


if __name__ == "__main__":
    main()
