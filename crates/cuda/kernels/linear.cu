// Rows become 16-bit integers; linear layers over up to 16 rows a block.

#define WARPS 8

struct Quantise {
    const float *x;
    Quantised to;
    int width;
    // In the panels that kernels/wide.cu takes; all of them lie in `q`.
    int wide;
};

// A block a row, a warp a slice at a time.
extern "C" __global__ void __launch_bounds__(1024) quantise(const Quantise p) {
    BEGIN;
    int row = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const float *x = p.x + (u64)row * p.width;
    bool bad = false;
    for (int slice = warp; slice < p.to.slices; slice += blockDim.x / 32) {
        float v[2][4];
        for (int h = 0; h < 2; h++) {
            int from = slice * SLICE + h * 128 + lane * 4;
            if (p.width % 4 == 0) {
                float4 four = make_float4(0, 0, 0, 0);
                if (from < p.width) four = *(const float4 *)(x + from);
                v[h][0] = four.x, v[h][1] = four.y, v[h][2] = four.z, v[h][3] = four.w;
            } else {
                for (int i = 0; i < 4; i++) v[h][i] = from + i < p.width ? x[from + i] : 0.0f;
            }
        }
        bad |= quantise_slice(p.to, row, slice, v, p.wide);
    }
    bool any = __syncthreads_or(bad);
    if (threadIdx.x == 0) p.to.spoilt[row] = any;
}

// 16 outputs of one matrix and 4 * TILES rows; a warp has a group of slices.
template <int BYTES, int KIND, int LOG, int TILES>
__device__ __forceinline__ void project_tile(const Project &p, const Matrix &m, int ntile,
                                             float *parts) {
    int group = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    int log = LOG < 0 ? m.block : LOG;
    int first = blockIdx.y * TILES, slices = m.slices;
    const float *sums = sums_of(p.x, log);
    // Lanes of planes of rows past the last have nothing to load.
    bool mine[TILES], row_mine[TILES];
    for (int j = 0; j < TILES; j++) {
        mine[j] = (first + j) * TILE_ROWS + g / 2 < p.rows;
        row_mine[j] = (first + j) * TILE_ROWS + t < p.rows;
    }
    float total[TILES][2];
    for (int j = 0; j < TILES; j++) total[j][0] = total[j][1] = 0.0f;
    for (int s = m.groups.starts[group]; s < m.groups.starts[group + 1]; s++) {
        float acc[TILES][2];
        int c[TILES][4];
        for (int j = 0; j < TILES; j++) {
            acc[j][0] = acc[j][1] = 0.0f;
            c[j][0] = c[j][1] = c[j][2] = c[j][3] = 0;
        }
        auto fold = [&](int block) {
            float2 low, high;
            affine_pair<KIND>(m, ntile, block, log, g, low, high);
            for (int j = 0; j < TILES; j++) {
                u64 at = ((u64)(first + j) * (slices << (8 - log)) + block) * TILE_ROWS + t;
                float sum = row_mine[j] ? sums[at] : 0.0f;
                block_into(acc[j], c[j], sum, m.zero, low, high);
                c[j][0] = c[j][1] = c[j][2] = c[j][3] = 0;
            }
        };
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
                u64 at = ((u64)(first + j) * slices * 4 + ktile) * 32 + lane;
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
                if (BYTES && log == 4) {
                    for (int j = 0; j < TILES; j++)
                        product_16(c[j], a[0], a[1], blk ? b[j].z : b[j].x);
                    fold(ktile * 4 + blk * 2);
                    for (int j = 0; j < TILES; j++)
                        product_16(c[j], a[2], a[3], blk ? b[j].w : b[j].y);
                    fold(ktile * 4 + blk * 2 + 1);
                } else {
                    for (int j = 0; j < TILES; j++)
                        product_32(c[j], a, blk ? b[j].z : b[j].x, blk ? b[j].w : b[j].y);
                    if (log == 5) fold(ktile * 2 + blk);
                }
            }
            if (log == 6) fold(ktile);
            if (log == 7 && kt % 2 == 1) fold(ktile / 2);
        }
        for (int j = 0; j < TILES; j++) {
            u64 at = ((u64)(first + j) * slices + s) * TILE_ROWS + t;
            float d = row_mine[j] ? p.x.d[at] : 0.0f;
            total[j][0] = __fmaf_rn(acc[j][0], d, total[j][0]);
            total[j][1] = __fmaf_rn(acc[j][1], d, total[j][1]);
        }
    }
    // parts: [group][row][output]
    for (int j = 0; j < TILES; j++) {
        float *part = parts + ((group * TILES + j) * TILE_ROWS + t) * 16 + g;
        part[0] = total[j][0];
        part[8] = total[j][1];
    }
    __syncthreads();
    const int values = TILES * TILE_ROWS * 16;
    for (int i = threadIdx.x; i < values; i += WARPS * 32) {
        int row = first * TILE_ROWS + i / 16, n = ntile * 16 + i % 16;
        if (row >= p.rows || n >= m.n) continue;
        m.out[(u64)row * m.n + n] = rooted(m.groups, parts + i, values);
    }
}

// A launch runs over the tiles of up to MATRICES_MAX matrices of one kind.
template <int BYTES, int KIND, int LOG, int TILES>
__device__ __forceinline__ void project_all(const Project &p) {
    __shared__ float parts[WARPS * TILES * TILE_ROWS * 16];
    int tile = blockIdx.x, i = 0;
    while (i + 1 < p.count && tile >= p.matrices[i + 1].tile) i++;
    project_tile<BYTES, KIND, LOG, TILES>(p, p.matrices[i], tile - p.matrices[i].tile, parts);
}

#define LINEAR(name, bytes, kind, log, tiles)                                                      \
    extern "C" __global__ void __launch_bounds__(WARPS * 32) name(const Project p) {               \
        BEGIN;                                                                                     \
        project_all<bytes, kind, log, tiles>(p);                                                   \
    }
#define LINEARS(name, bytes, kind, log)                                                            \
    LINEAR(name##_2, bytes, kind, log, 2)                                                          \
    LINEAR(name##_4, bytes, kind, log, 4)

LINEARS(linear_nibbles, 0, -1, -1)
LINEARS(linear_bytes, 1, -1, -1)
LINEARS(linear_nibbles_bf16_64, 0, KIND_BF16, 6)
LINEARS(linear_nibbles_f16_32, 0, KIND_F16, 5)
LINEARS(linear_nibbles_k_32, 0, KIND_K, 5)
LINEARS(linear_bytes_f16_32, 1, KIND_F16, 5)
LINEARS(linear_bytes_f32_16, 1, KIND_F32, 4)
