// Arith 2: rows become 8-bit integers with a scale a block of 32; linear layers over any rows.

#define WARPS 8
// Rows of a tile: the columns of a matrix product.
#define A8_ROWS 8

// `q`: for each tile of eight rows and each 64 values of K, 16 bytes a lane, as a product takes
// them. `d`: `[rows / 8, slices * 8, 8]`. `sums` of each 16 values: `[rows / 8, slices * 16, 8]`.
struct A8 {
    u32 *q;
    float *d;
    float *sums;
    int *spoilt;
    int slices;
};

struct QuantiseA8 {
    const float *x;
    A8 to;
    int width;
};

// A block a row, a warp a slice at a time; lane has values 4 lane .. and 128 + 4 lane .. of it.
extern "C" __global__ void __launch_bounds__(1024, 1) quantise_a8(const QuantiseA8 p) {
    BEGIN;
    int row = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const float *x = p.x + (u64)row * p.width;
    u64 tile = row / A8_ROWS;
    int in_tile = row % A8_ROWS, slices = p.to.slices;
    bool bad = false;
    for (int slice = warp; slice < slices; slice += blockDim.x / 32) {
        for (int h = 0; h < 2; h++) {
            int from = slice * SLICE + h * 128 + lane * 4;
            float v[4], amax = 0.0f;
            bool wrong = false;
            for (int i = 0; i < 4; i++) {
                v[i] = from + i < p.width ? x[from + i] : 0.0f;
                wrong |= spoilt(v[i]);
                amax = fmaxf(amax, fabsf(v[i]));
            }
            // Eight lanes have a block.
            for (int w = 1; w < 8; w *= 2) {
                amax = fmaxf(amax, __shfl_xor_sync(FULL, amax, w));
                wrong |= __shfl_xor_sync(FULL, (int)wrong, w) != 0;
            }
            bad |= wrong;
            bool none = amax < __int_as_float(0x30800000) || wrong;
            float inv = none ? 0.0f : __fdiv_rn(127.0f, amax);
            float scale = wrong ? SPOILT : none ? 0.0f : __fdiv_rn(amax, 127.0f);
            u32 word = 0;
            int sum = 0;
            for (int i = 0; i < 4; i++) {
                float y = round_half_even(__fmul_rn(v[i], inv));
                int q = none ? 0 : (int)fminf(fmaxf(y, -127.0f), 127.0f);
                word |= (q & 0xff) << (8 * i);
                sum += q;
            }
            int ktile = slice * 4 + h * 2 + lane / 16, in = lane % 16;
            u32 *q = p.to.q + (tile * slices * 4 + ktile) * 128;
            q[(in_tile * 4 + in % 4) * 4 + in / 8 * 2 + in % 8 / 4] = word;
            sum += __shfl_xor_sync(FULL, sum, 1);
            sum += __shfl_xor_sync(FULL, sum, 2);
            u64 block = tile * slices * 8 + slice * 8 + h * 4 + lane / 8;
            if (lane % 8 == 0) p.to.d[block * A8_ROWS + in_tile] = scale;
            if (lane % 4 == 0)
                p.to.sums[(2 * block + lane % 8 / 4) * A8_ROWS + in_tile] = (float)sum;
        }
    }
    bool any = __syncthreads_or(bad);
    if (threadIdx.x == 0) p.to.spoilt[row] = any;
}

struct ProjectA8 {
    Matrix matrices[MATRICES_MAX];
    A8 x;
    int count;
    int rows;
};

// Adds a piece to the sums of outputs g and g + 8 of rows 2 t and 2 t + 1: the dot, then the
// offset, each factor times the row's scale first.
__device__ __forceinline__ void piece_into(float acc[4], const int c[4], float2 sum, float2 d,
                                           int zero, float2 low, float2 high) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float s = i % 2 ? sum.y : sum.x, scale = i % 2 ? d.y : d.x;
        float2 affine = i / 2 ? high : low;
        float dot = (float)(c[i] + zero * (int)s);
        acc[i] = __fmaf_rn(dot, __fmul_rn(affine.x, scale), acc[i]);
        acc[i] = __fmaf_rn(s, __fmul_rn(affine.y, scale), acc[i]);
    }
}

// 16 outputs of one matrix and 8 * TILES rows; a warp has a group of slices.
template <int BYTES, int KIND, int LOG, int TILES>
__device__ __forceinline__ void project_a8(const ProjectA8 &p, const Matrix &m, int ntile,
                                           float *parts) {
    int group = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    int log = LOG < 0 ? m.block : LOG;
    u64 first = blockIdx.y * TILES;
    int slices = m.slices;
    // Lanes of rows past the last have nothing to load.
    bool mine[TILES];
    for (int j = 0; j < TILES; j++) mine[j] = (first + j) * A8_ROWS + g < p.rows;
    float total[TILES][4];
    for (int j = 0; j < TILES; j++)
        for (int i = 0; i < 4; i++) total[j][i] = 0.0f;
    for (int s = m.groups.starts[group]; s < m.groups.starts[group + 1]; s++) {
        float acc[TILES][4];
        for (int j = 0; j < TILES; j++)
            for (int i = 0; i < 4; i++) acc[j][i] = 0.0f;
#pragma unroll LOG < 0 ? 1 : 4
        for (int kt = 0; kt < 4; kt++) {
            int ktile = s * 4 + kt;
            u64 tile = (u64)ntile * slices * 4 + ktile;
            uint4 words[2];
            if (BYTES) {
                words[0] = ((const uint4 *)m.codes)[(tile * 2) * 32 + lane];
                words[1] = ((const uint4 *)m.codes)[(tile * 2 + 1) * 32 + lane];
            } else {
                words[0] = ((const uint4 *)m.codes)[tile * 32 + lane];
            }
            uint4 b[TILES];
            for (int j = 0; j < TILES; j++) {
                u64 at = ((first + j) * slices * 4 + ktile) * 32 + lane;
                b[j] = mine[j] ? ((const uint4 *)p.x.q)[at] : make_uint4(0, 0, 0, 0);
            }
#pragma unroll
            for (int blk = 0; blk < 2; blk++) {
                u32 a[4];
                if (BYTES) {
                    a[0] = words[blk].x, a[1] = words[blk].y;
                    a[2] = words[blk].z, a[3] = words[blk].w;
                } else {
                    nibbles(a, blk ? words[0].z : words[0].x, blk ? words[0].w : words[0].y);
                }
                int piece = ktile * 2 + blk;
                float2 low, high;
                if (log > 4) affine_pair<KIND>(m, ntile, piece >> (log - 5), log, g, low, high);
                for (int half = 0; half < (log == 4 ? 2 : 1); half++) {
                    if (log == 4) affine_pair<KIND>(m, ntile, piece * 2 + half, 4, g, low, high);
                    for (int j = 0; j < TILES; j++) {
                        u64 block = (first + j) * slices * 8 + piece;
                        // Of rows 2 t and 2 t + 1.
                        float2 d = ((const float2 *)p.x.d)[block * (A8_ROWS / 2) + t];
                        const float2 *sums = (const float2 *)p.x.sums + block * A8_ROWS + t;
                        float2 sum = sums[half * (A8_ROWS / 2)];
                        u32 low_x = blk ? b[j].z : b[j].x, high_x = blk ? b[j].w : b[j].y;
                        int c[4] = {0, 0, 0, 0};
                        if (log == 4) {
                            product_16(c, a[2 * half], a[2 * half + 1], half ? high_x : low_x);
                        } else {
                            float2 rest = sums[A8_ROWS / 2];
                            sum = make_float2(sum.x + rest.x, sum.y + rest.y);
                            product_32(c, a, low_x, high_x);
                        }
                        piece_into(acc[j], c, sum, d, m.zero, low, high);
                    }
                }
            }
        }
        for (int j = 0; j < TILES; j++)
            for (int i = 0; i < 4; i++) total[j][i] = __fadd_rn(total[j][i], acc[j][i]);
    }
    // parts: [group][row][output]
    for (int j = 0; j < TILES; j++) {
        float *part = parts + ((group * TILES + j) * A8_ROWS + 2 * t) * 16 + g;
        part[0] = total[j][0], part[16] = total[j][1];
        part[8] = total[j][2], part[24] = total[j][3];
    }
    __syncthreads();
    const int values = TILES * A8_ROWS * 16;
    for (int i = threadIdx.x; i < values; i += WARPS * 32) {
        int row = (int)first * A8_ROWS + i / 16, n = ntile * 16 + i % 16;
        if (row >= p.rows || n >= m.n) continue;
        m.out[(u64)row * m.n + n] = rooted(m.groups, parts + i, values);
    }
}

// A launch runs over the tiles of up to MATRICES_MAX matrices of one kind.
template <int BYTES, int KIND, int LOG, int TILES>
__device__ __forceinline__ void a8_all(const ProjectA8 &p) {
    __shared__ float parts[WARPS * TILES * A8_ROWS * 16];
    int tile = blockIdx.x, i = 0;
    while (i + 1 < p.count && tile >= p.matrices[i + 1].tile) i++;
    project_a8<BYTES, KIND, LOG, TILES>(p, p.matrices[i], tile - p.matrices[i].tile, parts);
}

#define A8_LINEAR(name, bytes, kind, log, tiles)                                                   \
    extern "C" __global__ void __launch_bounds__(WARPS * 32) name(const ProjectA8 p) {             \
        BEGIN;                                                                                     \
        a8_all<bytes, kind, log, tiles>(p);                                                        \
    }
#define A8_LINEARS(name, bytes, kind, log)                                                         \
    A8_LINEAR(name##_1, bytes, kind, log, 1)                                                       \
    A8_LINEAR(name##_4, bytes, kind, log, 4)

A8_LINEARS(a8_nibbles, 0, -1, -1)
A8_LINEARS(a8_bytes, 1, -1, -1)
A8_LINEARS(a8_nibbles_bf16_64, 0, KIND_BF16, 6)
A8_LINEARS(a8_nibbles_f16_32, 0, KIND_F16, 5)
A8_LINEARS(a8_nibbles_k_32, 0, KIND_K, 5)
A8_LINEARS(a8_bytes_f16_32, 1, KIND_F16, 5)
A8_LINEARS(a8_bytes_f32_16, 1, KIND_F32, 4)
