// How packed matrices lie, and what a block's scale and offset are.
//
// Outputs go in tiles of 16, K in slices of 256 (padded with zeros, which add nothing) of four
// tiles of 64. A tile of 16 x 64 codes is what one warp takes: lane 4 g + t has outputs g and
// g + 8 and, of each 32 values, those at 4 t and at 16 + 4 t. Nibbles: a word a half (outputs g,
// then g + 8) of each 32 values, low nibbles at 4 t, high ones at 16 + 4 t; 16 bytes a lane.
// Bytes: 512 bytes of 32 values each, a lane's words being (g, 4 t), (g + 8, 4 t), (g, 16 + 4 t),
// (g + 8, 16 + 4 t).

enum Kind { KIND_F32, KIND_F16, KIND_BF16, KIND_K };

struct Matrix {
    const u32 *codes;
    // Of outputs g and g + 8 side by side, for each g of each block of each tile: scale and offset.
    const void *scales;
    // KIND_K: scale and minimum of each slice, likewise.
    const u32 *units;
    float *out;
    int n;
    int k;
    int slices;
    // A nibble or a byte a code.
    int bytes;
    int kind;
    // log2 of the values of a block.
    int block;
    // What is added to each stored code.
    int zero;
    // First tile of outputs in this launch.
    int tile;
    KGroups groups;
};

// Scale and offset of a pair of halves. What is flushed is flushed as it is packed; a binary16 is
// 0 or 2^-24 and more.
__device__ __forceinline__ float2 affine_of(u32 pair, int kind) {
    if (kind == KIND_F16) return make_float2(half_to_float(pair), half_to_float(pair >> 16));
    return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
}

// Byte `which` of a word, without a conversion: 2^23 + x is its bits above those of 2^23.
__device__ __forceinline__ float byte_of(u32 word, u32 which) {
    float x = __uint_as_float(__byte_perm(word, 0x4b000000, 0x7540 | which));
    return __fsub_rn(x, 8388608.0f);
}

// Of a K-quant: the factors of the block as two bytes, scale and minimum of the unit as halves.
__device__ __forceinline__ float2 affine_of_unit(u32 factors, u32 unit) {
    float a = __fmul_rn(half_to_float(unit), byte_of(factors, 0));
    float c = -__fmul_rn(half_to_float(unit >> 16), byte_of(factors, 1));
    return make_float2(a, c);
}

// Scale and offset of block `block` (counted along padded K) of outputs g and g + 8 of a tile.
template <int KIND>
__device__ __forceinline__ void affine_pair(const Matrix &m, int ntile, int block, int log, int g,
                                            float2 &low, float2 &high) {
    int kind = KIND < 0 ? m.kind : KIND;
    u64 at = ((u64)ntile * (m.slices << (8 - log)) + block) * 8 + g;
    if (kind == KIND_F32) {
        float4 both = ((const float4 *)m.scales)[at];
        low = make_float2(both.x, both.y);
        high = make_float2(both.z, both.w);
    } else if (kind == KIND_K) {
        // Two blocks of a tile of 64 share a word pair.
        u64 pair = (((u64)ntile * m.slices * 4 + block / 2) * 8 + g) * 2 + (block & 1);
        u32 factors = ((const u32 *)m.scales)[pair];
        uint2 unit = ((const uint2 *)m.units)[((u64)ntile * m.slices + block / 8) * 8 + g];
        low = affine_of_unit(factors & 0xffffu, unit.x);
        high = affine_of_unit(factors >> 16, unit.y);
    } else {
        uint2 both = ((const uint2 *)m.scales)[at];
        low = affine_of(both.x, kind);
        high = affine_of(both.y, kind);
    }
}
