#!/usr/bin/env python3
"""Writes gguf.safetensors and mlx.safetensors: stored blocks with the values that the official packages read from them.

Needs numpy, gguf, mlx[cpu], safetensors. Deterministic: the seeds are here.
"""
import os
import gguf, mlx.core as mx, numpy as np
from gguf import GGMLQuantizationType as T, quants
from safetensors.numpy import save_file

HERE = os.path.dirname(os.path.abspath(__file__))
ROWS, WIDTH = 4, 512                      # rows that the package quantised, where it can
# where the f16 scales lie in a block, and the bytes of the block
GGUF = {T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2], T.Q8_0: [0], T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208]}
# zero, minus zero, the least subnormal, usual subnormals of K-quants, the greatest, the least normal, one, a negative
# one, the last below and the first at 2^-14 and 2^-30 as far as f16 goes, the greatest finite
SCALES = [0x0000, 0x8000, 0x0001, 0x0012, 0x8012, 0x03ff, 0x0400, 0x0401, 0x3c00, 0xbc00, 0x2e66, 0xae66, 0x7bff]
BITS, GROUPS, DTYPES = (2, 3, 4, 5, 6, 8), (32, 64, 128), {"f32": mx.float32, "f16": mx.float16, "bf16": mx.bfloat16}


def gguf_cases():
    rng, out = np.random.default_rng(11), {}
    for kind, scales in GGUF.items():
        values, size = gguf.GGML_QUANT_SIZES[kind]
        name = kind.name.lower()
        blocks = []
        # random bytes under usual scales
        some = rng.integers(0, 256, (24, size), dtype=np.uint8)
        for at in scales:
            usual = (rng.standard_normal(len(some)) * 0.01).astype(np.float16)
            some[:, at:at + 2] = usual.view(np.uint8).reshape(-1, 2)
        blocks.append(some)
        # every edge scale (pairs of them where there are two), over random bytes
        edge = rng.integers(0, 256, (2 * len(SCALES), size), dtype=np.uint8)
        for row, block in enumerate(edge):
            for turn, at in enumerate(scales):
                code = SCALES[(row * (1 + 4 * turn) + turn) % len(SCALES)]
                block[at:at + 2] = (code & 255, code >> 8)
        blocks.append(edge)
        # every code, sub-scale and high bit at one end, and in two patterns
        ends = np.stack([np.full(size, byte, np.uint8) for byte in (0x00, 0xff, 0x80, 0x7f, 0x0f, 0xf0, 0x55, 0xaa)])
        for at in scales:
            ends[:, at:at + 2] = (0x66, 0x2e)
        blocks.append(ends)
        stored = np.concatenate(blocks)
        # rows that the package quantised itself, where it can
        try:
            real = quants.quantize((rng.standard_normal((ROWS, WIDTH)) * 0.05).astype(np.float32), kind)
            stored = np.concatenate([stored, real.reshape(-1, size)])
        except NotImplementedError:
            pass
        read = quants.dequantize(stored, kind)
        assert read.shape == (len(stored), values) and read.dtype == np.float32 and np.isfinite(read).all(), kind
        out[name + ".blocks"], out[name + ".values"] = stored, read
        print(name, len(stored), "blocks")
    return out


def codes(packed, bits):
    """u32 [rows, words] -> codes [rows, words * 32 / bits]: a row is one little-endian stream of bits."""
    bit = np.unpackbits(np.ascontiguousarray(packed).view(np.uint8), axis=1, bitorder="little")
    return (bit.reshape(len(packed), -1, bits) << np.arange(bits)).sum(-1)


def mlx_cases():
    rng, out = np.random.default_rng(12), {}
    base = (rng.standard_normal((4, 128)) * 0.05).astype(np.float32)
    base[1, :64] = 0.25                            # constant groups
    base[2, 64:] = np.abs(base[2, 64:]) + 1        # all above zero, then all below
    base[3, 64:] = -np.abs(base[3, 64:]) - 1
    base[3, :32] = 0
    for bits in BITS:
        for group in GROUPS:
            for name, dtype in DTYPES.items():
                packed, scales, biases = mx.quantize(mx.array(base).astype(dtype), group_size=group, bits=bits)
                key = f"b{bits}.g{group}.{name}."
                w, s, b = np.array(packed), np.array(scales.astype(mx.float32)), np.array(biases.astype(mx.float32))
                assert (s < 0).any() and (s > 0).any()
                q = codes(w, bits).astype(np.float32).reshape(len(w), -1, group)
                values = (q * s[..., None] + b[..., None]).astype(np.float32).reshape(len(w), -1)
                wide = [a.astype(mx.float32) for a in (scales, biases)]
                official = np.array(mx.dequantize(packed, *wide, group_size=group, bits=bits))
                # mlx may fuse the two roundings: one unit of the product at the most
                error = np.abs(official - values).max()
                assert error <= 2.0**-23 * np.abs(q * s[..., None]).max(), (key, error)
                out[key + "packed"], out[key + "values"] = w, values
                bytes_of = lambda a: np.array(a.view(mx.uint16) if a.dtype != mx.float32 else a)
                out[key + "scales"], out[key + "biases"] = bytes_of(scales), bytes_of(biases)
                exact = (official == values).mean()
                print(key, f"negative scales {(s < 0).mean():.2f}, equal to mlx {exact:.3f}, most {error:.1e}")
    return out


if __name__ == "__main__":
    assert np.array_equal(codes(np.array([[0x76543210]], np.uint32), 4)[0], np.arange(8))
    save_file(gguf_cases(), os.path.join(HERE, "gguf.safetensors"))
    save_file(mlx_cases(), os.path.join(HERE, "mlx.safetensors"))
