"""llama.cpp in a race: keeps a model loaded and times a run for each line of standard input.

    python llama.py MODEL THREADS CONTEXT

Says `ready WORDS`. `run PROMPT DECODE` evaluates a prompt of so many tokens into an empty cache,
then so many single tokens, and is answered by `PROMPT_SECONDS DECODE_SECONDS TOKENS NOTE`. The
first run of a size tries flash attention on and off; the faster serves the others of that size.
Stock settings else: batches of 512, f16 keys and values, repacked weights, one row of logits.
"""

import sys
import time

import llama_cpp as cpp

BATCH = 512
# What the library calls them.
FLASH = {"on": 1, "off": 0}


# From this level on its log is worth reading: errors.
LOUD = 4


@cpp.llama_log_callback
def log(level, text, data):
    if level == LOUD:
        sys.stderr.write(text.decode(errors="replace"))


def context(model, threads, size, flash):
    params = cpp.llama_context_default_params()
    params.n_ctx = size
    params.n_batch = params.n_ubatch = BATCH
    params.n_threads = params.n_threads_batch = threads
    params.flash_attn_type = flash
    params.no_perf = True
    made = cpp.llama_init_from_model(model, params)
    if not made:
        sys.exit("llama.py: no context of that size")
    return made


def feed(ctx, ids):
    tokens = (cpp.llama_token * len(ids))(*ids)
    if cpp.llama_decode(ctx, cpp.llama_batch_get_one(tokens, len(ids))) != 0:
        sys.exit("llama.py: llama_decode failed")


def run(ctx, prompt, decode):
    """Seconds of the prompt and of the single tokens after it."""
    cpp.llama_memory_clear(cpp.llama_get_memory(ctx), True)
    ids = [1 + i * 7 % 1000 for i in range(prompt)]
    start = time.perf_counter()
    for at in range(0, prompt, BATCH):
        feed(ctx, ids[at : at + BATCH])
    cpp.llama_synchronize(ctx)
    middle = time.perf_counter()
    for i in range(decode):
        feed(ctx, [1 + i * 11 % 1000])
        cpp.llama_synchronize(ctx)
    return middle - start, time.perf_counter() - middle


def main():
    path, threads, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    cpp.llama_log_set(log, None)
    cpp.llama_backend_init()
    model = cpp.llama_model_load_from_file(path.encode(), cpp.llama_model_default_params())
    if not model:
        sys.exit(f"llama.py: llama.cpp does not load {path}")
    contexts = {name: context(model, threads, size, kind) for name, kind in FLASH.items()}
    system = cpp.llama_print_system_info().decode().strip()
    print(f"ready llama-cpp-python {cpp.__version__}, {threads} threads, {system}", flush=True)
    chosen = {}
    for line in sys.stdin:
        match line.split():
            case ["run", prompt, decode, *_]:
                case = int(prompt), int(decode)
            case _:
                sys.exit(f"llama.py: {line.strip()}?")
        if case not in chosen:
            for ctx in contexts.values():
                run(ctx, min(case[0], 16), 1)
            took = {name: sum(run(ctx, *case)) for name, ctx in contexts.items()}
            chosen[case] = min(took, key=took.get)
        flash = chosen[case]
        first, then = run(contexts[flash], *case)
        print(f"{first:.6f} {then:.6f} {case[1]} flash attention {flash}", flush=True)


main()
