"""Writes cases.json: texts with their ids, and chats with their prompt, for models/baton-tiny.

    python make_cases.py PATH_TO_MODELS_BATON_TINY [--random COUNT SEED]

Needs `transformers` 5.24 and `tokenizers` 0.23. With --random prints as many random texts with
their ids instead, for a comparison by hand.
"""

import json
import pathlib
import random
import sys

from transformers import AutoTokenizer

TEXTS = [
    "",
    "Hello, world!",
    "Once upon a time there was a brave rabbit named Tom.",
    " it's 2026, isn't it?\n\n\tTabs  and   spaces ",
    "na\u00efve caf\u00e9 \u65e5\u672c\u8a9e \U0001f642 e\u0301",
    "q\u0303 \u1100\u1161\u11a8 \u0915\u094d\u0937\u093f \u0e01\u0e33",
    "x\r\ny\n \n z\u00a0\u2003\u3000w",
    "1234567 3.14 \u0661\u0662\u0663 \u00bd \u2167",
    "def f(x):\n    return x ** 2  # 'S we'LL I'VE\n",
    "<|im_start|>user\nhello<|im_end|>\n",
    "<|im_end|><|endoftext|><|mask|><|im_start",
    "a<|im_start|>\u0338b <|IM_END|>",
    "\u0000\u0001\u007f\u0080\ufeff\ufffd\U0010ffff",
    "\u212b \ufb01 \u0390 \u03b9\u0308\u0301 \u1e9b\u0323",
]
CHATS = [
    [{"role": "user", "content": "Hello!"}],
    [
        {"role": "system", "content": "Be brief.\n"},
        {"role": "user", "content": "  2 + 2? <b> & 'c'"},
        {"role": "assistant", "content": "4"},
        {"role": "user", "content": "\u65e5\u672c\u8a9e"},
    ],
]
ALPHABETS = [
    (0x20, 0x7E), (0x20, 0x7E), (0x00, 0x1F), (0x80, 0x24F), (0x300, 0x36F), (0x370, 0x5FF),
    (0x600, 0x6FF), (0x900, 0xDFF), (0x1100, 0x11FF), (0x2000, 0x206F), (0x3040, 0x30FF),
    (0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0xF900, 0xFAFF), (0xFE00, 0xFFFF), (0x1D400, 0x1D7FF),
    (0x1F300, 0x1FAFF), (0x10000, 0x10FFFF),
]
WORDS = [
    "the ", " rabbit", "'s", "'LL", "\r\n", "  ", "<|im_end|>", "<|im_", "123", "e\u0301", "\n\n",
]


def random_text(rng):
    out = []
    for _ in range(rng.randrange(1, 24)):
        if rng.random() < 0.4:
            out.append(rng.choice(WORDS))
        else:
            low, high = rng.choice(ALPHABETS)
            out += [chr(rng.randint(low, high)) for _ in range(rng.randrange(1, 6))]
    return "".join(out)


def main():
    tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
    if "--random" in sys.argv:
        count, seed = (int(arg) for arg in sys.argv[-2:])
        rng = random.Random(seed)
        texts = [random_text(rng) for _ in range(count)]
    else:
        rng = random.Random(5)
        texts = TEXTS + [random_text(rng) for _ in range(40)]
    cases = [{"text": text, "ids": tokenizer.encode(text)} for text in texts]
    chats = [
        {
            "messages": chat,
            "add_generation_prompt": add,
            "text": tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=add),
        }
        for chat in CHATS
        for add in (True, False)
    ]
    out = json.dumps({"cases": cases, "chats": chats}, indent=1)
    if "--random" in sys.argv:
        print(out)
    else:
        pathlib.Path(__file__).with_name("cases.json").write_text(out + "\n")


main()
