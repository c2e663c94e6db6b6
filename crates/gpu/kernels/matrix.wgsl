// How packed matrices lie, for linear.wgsl, many.wgsl and embed.wgsl. Tiles of 16 outputs, side by
// side; along K pieces of 16 values. Of an output four words lie together: a piece of bytes, or two
// pieces of nibbles, two words each, four values in the low halves of a word's bytes and the next
// four in the high ones.

// Whether codes are bytes.
override BYTES: bool = false;
// How scales lie: f32 pairs, f16 pairs, bf16 pairs, units of Q4_K and Q5_K, units of Q6_K; for
// floats f32, f16 or bf16 values.
override KIND: u32 = 0u;
// log2 of a block's values.
override LOG: u32 = 5u;

@group(0) @binding(1) var<storage, read> codes: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read> scales: array<u32>;

// The codes of a piece of nibbles, a byte each.
fn opened(both: vec2<u32>) -> vec4<u32> {
    let low = both & vec2(0x0f0f0f0fu);
    let high = (both >> vec2(4u)) & vec2(0x0f0f0f0fu);
    return vec4(low.x, high.x, low.y, high.y);
}

// The codes of piece `at`, a signed byte each.
fn codes_at(at: u32, output: u32) -> vec4<u32> {
    if BYTES {
        return codes[at * 16u + output];
    }
    let both = codes[(at >> 1u) * 16u + output];
    return opened(select(both.xy, both.zw, (at & 1u) == 1u));
}

// The scale and the offset of block `block` of `blocks` along K.
fn affine_at(tile: u32, blocks: u32, block: u32, output: u32) -> vec2<f32> {
    let at = (tile * blocks + block) * 16u + output;
    if KIND == 0u {
        return vec2(bitcast<f32>(scales[2u * at]), bitcast<f32>(scales[2u * at + 1u]));
    }
    if KIND == 1u {
        let pair = scales[at];
        return vec2(widened(pair & 0xffffu), widened(pair >> 16u));
    }
    if KIND == 2u {
        let pair = scales[at];
        return vec2(bitcast<f32>(pair << 16u), bitcast<f32>(pair & 0xffff0000u));
    }
    if KIND == 3u {
        let unit = (tile * (blocks >> 3u) + (block >> 3u)) * 80u + output;
        let pair = scales[unit];
        let factors = scales[unit + 16u + 16u * ((block & 7u) >> 1u)] >> (16u * (block & 1u));
        let a = widened(pair & 0xffffu) * f32(factors & 255u);
        return vec2(a, -(widened(pair >> 16u) * f32((factors >> 8u) & 255u)));
    }
    let unit = (tile * (blocks >> 4u) + (block >> 4u)) * 80u + output;
    let word = scales[unit + 16u + 16u * ((block & 15u) >> 2u)];
    let factor = bitcast<i32>(word << (24u - 8u * (block & 3u))) >> 24u;
    return vec2(widened(scales[unit] & 0xffffu) * f32(factor), 0.0);
}
