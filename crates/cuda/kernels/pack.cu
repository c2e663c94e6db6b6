// Stored matrices into the layout of the kernels, and rows of them back out (embeddings).

enum Format { Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K, MLX, F32, F16, BF16 };

struct Stored {
    const u8 *rows;
    u64 row_bytes;
    int format;
    // MLX alone.
    int bits;
    int group;
    int scale_bytes;
    // Rows here, and the first tile that they go to.
    int count;
    int ntile;
};

struct Pack {
    Stored from;
    Matrix to;
};

// The stored code of value i of a row, before the format's zero point; signed where bytes are.
__device__ int stored_code(const Stored &s, const u8 *row, int i) {
    int j = i % 32, b = (i % 256) / 32;
    switch (s.format) {
    case Q4_0:
    case Q4_1: {
        const u8 *unit = row + i / 32 * (s.format == Q4_0 ? 18 : 20) + (s.format == Q4_0 ? 2 : 4);
        return j < 16 ? unit[j] & 15 : unit[j - 16] >> 4;
    }
    case Q5_0:
    case Q5_1: {
        const u8 *unit = row + i / 32 * (s.format == Q5_0 ? 22 : 24) + (s.format == Q5_0 ? 2 : 4);
        int code = j < 16 ? unit[4 + j] & 15 : unit[4 + j - 16] >> 4;
        code += ((unit[j / 8] >> (j % 8)) & 1) * 16;
        return s.format == Q5_0 ? code - 16 : code;
    }
    case Q8_0:
        return (signed char)row[i / 32 * 34 + 2 + j];
    case Q4_K:
        return row[i / 256 * 144 + 16 + b / 2 * 32 + j] >> (b % 2 * 4) & 15;
    case Q5_K: {
        const u8 *unit = row + i / 256 * 176;
        return (unit[48 + b / 2 * 32 + j] >> (b % 2 * 4) & 15) | (unit[16 + j] >> b & 1) << 4;
    }
    case Q6_K: {
        const u8 *unit = row + i / 256 * 210;
        int part = b / 4, quarter = b % 4;
        int nibble = unit[64 * part + quarter % 2 * 32 + j] >> (quarter / 2 * 4) & 15;
        int pair = unit[128 + 32 * part + j] >> (2 * quarter) & 3;
        return (nibble | pair << 4) - 32;
    }
    default: {
        const u8 *codes = row + i / s.group * (2 * s.scale_bytes + s.group * s.bits / 8);
        int bit = i % s.group * s.bits;
        codes += 2 * s.scale_bytes + bit / 8;
        int word = codes[0];
        if (bit % 8 + s.bits > 8) word |= codes[1] << 8;
        int code = word >> (bit % 8) & ((1 << s.bits) - 1);
        return s.bits == 8 ? code - 128 : code;
    }
    }
}

// A word of codes a thread.
extern "C" __global__ void __launch_bounds__(256) pack_codes(const Pack p) {
    BEGIN;
    const Matrix &m = p.to;
    const Stored &s = p.from;
    int words = m.bytes ? 256 : 128;
    u64 index = (u64)blockIdx.x * 256 + threadIdx.x;
    u64 ktiles = (u64)m.slices * 4, tiles = (s.count + 15) / 16;
    if (index >= tiles * ktiles * words) return;
    int in = index % words;
    u64 tile = index / words;
    int ktile = tile % ktiles, ntile = tile / ktiles;
    int word = in % 4, lane = in / 4 % 32, blk = m.bytes ? in / 128 : word / 2;
    int half = word % 2, row = ntile * 16 + lane / 4 + 8 * half;
    int from = ktile * 64 + blk * 32 + lane % 4 * 4;
    if (m.bytes) from += word / 2 * 16;
    u32 packed = 0;
    if (row < s.count) {
        const u8 *bytes = s.rows + row * s.row_bytes;
        for (int i = 0; i < 4; i++) {
            if (from + i >= m.k) break;
            u32 code = stored_code(s, bytes, from + i) & 0xff;
            if (!m.bytes && from + i + 16 < m.k)
                code |= stored_code(s, bytes, from + i + 16) << 4;
            packed |= code << (8 * i);
        }
    }
    ((u32 *)m.codes)[(s.ntile * ktiles) * words + index] = packed;
}

__device__ __forceinline__ u32 word16(const u8 *at) { return at[0] | at[1] << 8; }

// Scale and offset of a block as they are stored, side by side.
__device__ u32 stored_pair(const Stored &s, const u8 *row, int block) {
    switch (s.format) {
    case Q4_0:
        return word16(row + block * 18);
    case Q4_1:
        return word16(row + block * 20) | word16(row + block * 20 + 2) << 16;
    case Q5_0:
        return word16(row + block * 22);
    case Q5_1:
        return word16(row + block * 24) | word16(row + block * 24 + 2) << 16;
    case Q8_0:
        return word16(row + block * 34);
    default: {
        const u8 *at = row + (u64)block * (4 + s.group * s.bits / 8);
        return word16(at) | word16(at + 2) << 16;
    }
    }
}

// The factors of block `block` of a K-quant with offsets.
__device__ u32 stored_factors(const Stored &s, const u8 *row, int block) {
    const u8 *f = row + block / 8 * (s.format == Q4_K ? 144 : 176) + 4;
    int b = block % 8;
    if (b < 4) return (f[b] & 63) | (f[b + 4] & 63) << 8;
    u32 scale = (f[b + 4] & 15) | (f[b - 4] >> 6) << 4;
    u32 minimum = (f[b + 4] >> 4) | (f[b] >> 6) << 4;
    return scale | minimum << 8;
}

__device__ float2 stored_floats(const Stored &s, const u8 *row, int block) {
    if (s.format == Q6_K) {
        const u8 *unit = row + block / 16 * 210;
        float a = half_to_float(word16(unit + 208));
        a = __fmul_rn(a, (float)(signed char)unit[192 + block % 16]);
        return make_float2(flushed_scale(a), 0.0f);
    }
    const u8 *at = row + (u64)block * (8 + s.group * s.bits / 8);
    float a = __uint_as_float(word16(at) | word16(at + 2) << 16);
    float c = __uint_as_float(word16(at + 4) | word16(at + 6) << 16);
    return make_float2(flushed_scale(a), flushed_scale(c));
}

// What one block of one output has, a thread.
extern "C" __global__ void __launch_bounds__(256) pack_scales(const Pack p) {
    BEGIN;
    const Matrix &m = p.to;
    const Stored &s = p.from;
    u64 index = (u64)blockIdx.x * 256 + threadIdx.x;
    u64 blocks = (u64)m.slices << (8 - m.block), tiles = (s.count + 15) / 16;
    if (index >= tiles * blocks * 16) return;
    int r = index % 16, row;
    int block = index / 16 % blocks, tile = index / 16 / blocks;
    row = tile * 16 + r;
    bool in = row < s.count && (block << m.block) < m.k;
    const u8 *bytes = s.rows + (in ? row * s.row_bytes : 0);
    u64 ntile = s.ntile + tile;
    u64 at = ((ntile * blocks + block) * 8 + r % 8) * 2 + r / 8;
    if (m.kind == KIND_F32) {
        float2 none = make_float2(0.0f, 0.0f);
        ((float2 *)m.scales)[at] = in ? stored_floats(s, bytes, block) : none;
    } else if (m.kind == KIND_K) {
        u64 pair = ((ntile * m.slices * 4 + block / 2) * 8 + r % 8) * 2 + block % 2;
        ((u16 *)m.scales)[pair * 2 + r / 8] = in ? stored_factors(s, bytes, block) : 0;
        if (block % 8 == 0) {
            u64 unit = ((ntile * m.slices + block / 8) * 8 + r % 8) * 2 + r / 8;
            const u8 *from = bytes + block / 8 * (s.format == Q4_K ? 144 : 176);
            ((u32 *)m.units)[unit] = in ? word16(from) | word16(from + 2) << 16 : 0;
        }
    } else {
        u32 pair = in ? stored_pair(s, bytes, block) : 0;
        if (m.kind == KIND_BF16) {
            if (flushed_scale(bf16_to_float(pair & 0xffffu)) == 0.0f) pair &= 0xffff0000u;
            if (flushed_scale(bf16_to_float(pair >> 16)) == 0.0f) pair &= 0xffffu;
        }
        ((u32 *)m.scales)[at] = pair;
    }
}

__device__ __forceinline__ float widened(const void *from, u64 at, int format) {
    if (format == F32) return flushed(((const float *)from)[at]);
    u32 half = ((const u16 *)from)[at];
    return flushed(format == F16 ? half_to_float(half) : bf16_to_float(half));
}

// A matrix of floats, K by outputs.
struct Floats {
    const void *values;
    float *out;
    int n;
    int padded;
    int k;
    int format;
    KGroups groups;
};

struct Transpose {
    Stored from;
    Floats to;
    int first;
};

extern "C" __global__ void __launch_bounds__(256) transpose(const Transpose p) {
    BEGIN;
    u64 index = (u64)blockIdx.x * 256 + threadIdx.x;
    if (index >= (u64)p.from.count * p.to.k) return;
    int row = index / p.to.k, k = index % p.to.k;
    u64 at = (u64)k * p.to.padded + p.first + row;
    if (p.to.format == F32) {
        ((u32 *)p.to.values)[at] = ((const u32 *)(p.from.rows))[index];
    } else {
        ((u16 *)p.to.values)[at] = ((const u16 *)(p.from.rows))[index];
    }
}

struct Widen {
    const void *from;
    float *to;
    int count;
    int format;
};

// A vector of weights.
extern "C" __global__ void widen(const Widen p) {
    BEGIN;
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < p.count) p.to[i] = widened(p.from, i, p.format);
}

struct Noise {
    u32 *to;
    u64 words;
    u32 kept;
    u32 set;
};

// Words without meaning, for measurements.
extern "C" __global__ void __launch_bounds__(256) noise(const Noise p) {
    BEGIN;
    u64 i = (u64)blockIdx.x * 256 + threadIdx.x;
    if (i >= p.words) return;
    u32 x = (u32)i * 2654435761u + (u32)(i >> 32);
    x = (x ^ x >> 15) * 2246822519u;
    x = (x ^ x >> 13) * 3266489917u;
    p.to[i] = ((x ^ x >> 16) & p.kept) | p.set;
}

struct Embed {
    Matrix table;
    const int *ids;
    float *out;
    int rows;
};

// Value i of output n: fma(w, a, c).
__device__ float value_of(const Matrix &m, int n, int i) {
    int ntile = n / 16, half = n % 16 / 8, g = n % 8;
    int ktile = i / 64, blk = i % 64 / 32, high = i % 32 / 16, lane = g * 4 + i % 16 / 4;
    u64 tile = (u64)ntile * m.slices * 4 + ktile;
    int code;
    if (m.bytes) {
        u64 word = ((tile * 2 + blk) * 32 + lane) * 4 + half + 2 * high;
        code = (signed char)(m.codes[word] >> (i % 4 * 8));
    } else {
        u64 word = (tile * 32 + lane) * 4 + 2 * blk + half;
        code = m.codes[word] >> (i % 4 * 8 + 4 * high) & 15;
    }
    float2 low, up;
    affine_pair<-1>(m, ntile, i >> m.block, m.block, g, low, up);
    float2 both = half ? up : low;
    return flushed(__fmaf_rn((float)(code + m.zero), both.x, both.y));
}

extern "C" __global__ void __launch_bounds__(256) embed(const Embed p) {
    BEGIN;
    u64 index = (u64)blockIdx.x * 256 + threadIdx.x;
    if (index >= (u64)p.rows * p.table.k) return;
    int row = index / p.table.k, i = index % p.table.k;
    p.out[index] = value_of(p.table, p.ids[row], i);
}

struct EmbedFloats {
    Floats table;
    const int *ids;
    float *out;
    int rows;
};

extern "C" __global__ void __launch_bounds__(256) embed_floats(const EmbedFloats p) {
    BEGIN;
    u64 index = (u64)blockIdx.x * 256 + threadIdx.x;
    if (index >= (u64)p.rows * p.table.k) return;
    int row = index / p.table.k, k = index % p.table.k;
    p.out[index] = widened(p.table.values, (u64)k * p.table.padded + p.ids[row], p.table.format);
}

struct FloatRows {
    Floats matrix;
    const float *x;
    const int *spoilt;
    int rows;
};

// 32 outputs a block, a group of slices a warp; four rows.
extern "C" __global__ void __launch_bounds__(256) linear_floats(const FloatRows p) {
    BEGIN;
    __shared__ float sums[8][4][32];
    const Floats &m = p.matrix;
    int n = blockIdx.x * 32 + threadIdx.x % 32, group = threadIdx.x / 32;
    int row = blockIdx.y * 4;
    float g[4] = {0, 0, 0, 0};
    int last = p.rows - 1;
    const float *x[4];
    for (int r = 0; r < 4; r++) x[r] = p.x + (u64)min(row + r, last) * m.k;
    for (int s = m.groups.starts[group]; s < m.groups.starts[group + 1]; s++) {
        float acc[4] = {0, 0, 0, 0};
        int end = min(m.k, (s + 1) * SLICE);
        for (int k = s * SLICE; k < end; k++) {
            float w = widened(m.values, (u64)k * m.padded + n, m.format);
            for (int r = 0; r < 4; r++) acc[r] = __fmaf_rn(w, x[r][k], acc[r]);
        }
        for (int r = 0; r < 4; r++) g[r] = __fadd_rn(g[r], acc[r]);
    }
    for (int r = 0; r < 4; r++) sums[group][r][threadIdx.x % 32] = g[r];
    __syncthreads();
    int r = threadIdx.x / 32;
    if (r >= 4 || row + r >= p.rows || n >= m.n) return;
    float y = rooted(m.groups, &sums[0][r][threadIdx.x % 32], 4 * 32);
    m.out[(u64)(row + r) * m.n + n] = p.spoilt[row + r] ? SPOILT : y;
}
