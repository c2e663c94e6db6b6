#!/usr/bin/env python3
"""Logits of windows of token ids by llama.cpp: python llama.py MODEL.gguf THREADS, run by measure.py.

A line on standard input names a file of little-endian u32 ids and a file for the f32 logits of every position; the line comes back when
they are there. Needs llama-cpp-python. Defaults of llama.cpp for a CPU: 8-bit activations in blocks of 32, f16 cache, no BOS of its own.
"""
import sys
import numpy as np
import llama_cpp


def main(model, threads):
    window = 1024
    engine = llama_cpp.Llama(model, n_ctx=window, n_batch=512, n_ubatch=512, n_threads=threads, n_threads_batch=threads, logits_all=True,
                             verbose=False)
    print("llama-cpp-python", llama_cpp.__version__, flush=True)
    for line in sys.stdin:
        ids, out = line.split()
        tokens = np.fromfile(ids, dtype="<u4").tolist()
        assert len(tokens) <= window
        engine.reset()
        engine.eval(tokens)
        engine.scores[:len(tokens)].astype("<f4").tofile(out)
        print(line.strip(), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
