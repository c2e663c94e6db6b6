// Linear layers over many rows: a block has 256 outputs and 64 rows, a warp 64 outputs and 32 rows.
// Codes, scales, rows and their sums come through shared memory, a ring of stages of 64 values.

#define GEMM_WARPS 16
#define SHARE (GEMM_TILES / GEMM_WARPS)
#define GEMM_TILES 16
#define GEMM_ROW_TILES 16
#define STAGES 6
// Stages between two barriers.
#define STEP 2
// Blocks of rows that share a band of weights.
#define BAND 8

// One stage: codes of 16 tiles, planes of 16 tiles of rows, scales, sums.
template <int KIND, int LOG> struct Stage {
    uint4 codes[GEMM_TILES][32];
    uint4 q[GEMM_ROW_TILES][32];
    // Pairs of g and g + 8 of each block: 8 bytes; K-quants: two blocks' factors in 8 bytes.
    uint2 scales[GEMM_TILES][(KIND == KIND_K ? 1 : 64 >> LOG) * 8];
    float4 sums[GEMM_ROW_TILES][64 >> LOG];
};

// What a thread brings of each stage: its addresses run along K.
template <int KIND, int LOG> struct Source {
    const uint4 *codes[SHARE], *q[SHARE], *scales, *sums;
    static const int PAIRS = (KIND == KIND_K ? 1 : 64 >> LOG) * 4, SUMS = 64 >> LOG;

    __device__ __forceinline__ Source(const Project &p, const Matrix &m, int ntile, int row_tile) {
        int tiles = (m.n + 15) / 16, row_tiles = (p.rows + TILE_ROWS - 1) / TILE_ROWS;
        u64 ktiles = m.slices * 4;
        for (int i = 0; i < SHARE; i++) {
            int tile = threadIdx.x / 32 + GEMM_WARPS * i, lane = threadIdx.x % 32;
            codes[i] = (const uint4 *)m.codes + min(ntile + tile, tiles - 1) * ktiles * 32 + lane;
            u64 rows = min(row_tile + tile, row_tiles - 1);
            q[i] = (const uint4 *)p.x.q + rows * ktiles * 32 + lane;
        }
        int tile = threadIdx.x / PAIRS, in = threadIdx.x % PAIRS;
        scales = (const uint4 *)m.scales + min(ntile + tile, tiles - 1) * ktiles * PAIRS + in;
        tile = threadIdx.x / SUMS, in = threadIdx.x % SUMS;
        u64 rows = min(row_tile + tile, row_tiles - 1);
        sums = (const uint4 *)sums_of(p.x, LOG) + rows * ktiles * SUMS + in;
    }

    __device__ __forceinline__ void fetch(Stage<KIND, LOG> &stage) {
        for (int i = 0; i < SHARE; i++) {
            int tile = threadIdx.x / 32 + GEMM_WARPS * i, lane = threadIdx.x % 32;
            bring_16(&stage.codes[tile][lane], codes[i]);
            bring_16(&stage.q[tile][lane], q[i]);
            codes[i] += 32, q[i] += 32;
        }
        if (threadIdx.x < GEMM_TILES * PAIRS)
            bring_16((uint4 *)stage.scales + threadIdx.x, scales);
        if (threadIdx.x < GEMM_ROW_TILES * SUMS) bring_16((uint4 *)stage.sums + threadIdx.x, sums);
        scales += PAIRS, sums += SUMS;
    }
};

// Rows of a warp in tiles of four, and outputs in tiles of 16.
#define WARP_ROWS 4
#define WARP_TILES 4
#define WARPS_ACROSS (GEMM_TILES / WARP_TILES)

template <int KIND, int LOG>
__device__ __forceinline__ void gemm(const Project &p, const Matrix &m, int ntile, int row_tile) {
    extern __shared__ __align__(16) u8 memory[];
    Stage<KIND, LOG> *stages = (Stage<KIND, LOG> *)memory;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    int tile0 = warp % WARPS_ACROSS * WARP_TILES, row0 = warp / WARPS_ACROSS * WARP_ROWS;
    int slices = m.slices, ktiles = slices * 4;
    int tiles = (m.n + 15) / 16, row_tiles = (p.rows + TILE_ROWS - 1) / TILE_ROWS;
    Source<KIND, LOG> source(p, m, ntile, row_tile);
    for (int i = 0; i < STAGES - STEP; i++) {
        if (i < ktiles) source.fetch(stages[i]);
        if (i % STEP == STEP - 1) asm volatile("cp.async.commit_group;");
    }
    float total[WARP_TILES][WARP_ROWS][2];
    float acc[WARP_TILES][WARP_ROWS][2];
    // One group, two and four, until their others are there.
    float parked[3][WARP_TILES * WARP_ROWS * 2];
    uint2 units[WARP_TILES];
#pragma unroll
    for (int i = 0; i < WARP_TILES; i++)
#pragma unroll
        for (int j = 0; j < WARP_ROWS; j++) {
            total[i][j][0] = total[i][j][1] = acc[i][j][0] = acc[i][j][1] = 0.0f;
        }
    int group = 0;
    for (int ktile = 0; ktile < ktiles; ktile++) {
        if (ktile % STEP == 0) {
            asm volatile("cp.async.wait_group %0;" ::"n"((STAGES - STEP) / STEP - 1));
            __syncthreads();
            for (int next = ktile + STAGES - STEP; next < ktile + STAGES; next++)
                if (next < ktiles) source.fetch(stages[next % STAGES]);
            asm volatile("cp.async.commit_group;");
        }
        Stage<KIND, LOG> &stage = stages[ktile % STAGES];
        if (KIND == KIND_K && ktile % 4 == 0) {
#pragma unroll
            for (int i = 0; i < WARP_TILES; i++) {
                u64 tile = min(ntile + tile0 + i, tiles - 1);
                units[i] = ((const uint2 *)m.units)[(tile * slices + ktile / 4) * 8 + g];
            }
        }
#pragma unroll
        for (int half = 0; half < (LOG == 5 ? 2 : 1); half++) {
            u32 a[WARP_TILES][2][4];
            float2 low[WARP_TILES], high[WARP_TILES];
#pragma unroll
            for (int i = 0; i < WARP_TILES; i++) {
                uint4 words = stage.codes[tile0 + i][lane];
                if (LOG == 6) {
                    nibbles(a[i][0], words.x, words.y);
                    nibbles(a[i][1], words.z, words.w);
                } else {
                    nibbles(a[i][0], half ? words.z : words.x, half ? words.w : words.y);
                }
                if (KIND == KIND_K) {
                    uint2 both = stage.scales[tile0 + i][g];
                    u32 factors = half ? both.y : both.x;
                    low[i] = affine_of_unit(factors & 0xffffu, units[i].x);
                    high[i] = affine_of_unit(factors >> 16, units[i].y);
                } else {
                    uint2 both = stage.scales[tile0 + i][half * 8 + g];
                    low[i] = affine_of(both.x, KIND);
                    high[i] = affine_of(both.y, KIND);
                }
            }
#pragma unroll
            for (int j = 0; j < WARP_ROWS; j++) {
                uint4 b = stage.q[row0 + j][lane];
                float sum = ((const float *)&stage.sums[row0 + j][half])[t];
#pragma unroll
                for (int i = 0; i < WARP_TILES; i++) {
                    int c[4];
                    if (LOG == 6) {
                        product_first(c, a[i][0], b.x, b.y);
                        product_32(c, a[i][1], b.z, b.w);
                    } else {
                        product_first(c, a[i][0], half ? b.z : b.x, half ? b.w : b.y);
                    }
                    block_into(acc[i][j], c, sum, 0, low[i], high[i]);
                }
            }
        }
        if (ktile % 4 != 3) continue;
        int slice = ktile / 4;
#pragma unroll
        for (int j = 0; j < WARP_ROWS; j++) {
            u64 tile = min(row_tile + row0 + j, row_tiles - 1);
            float d = p.x.d[(tile * slices + slice) * TILE_ROWS + t];
#pragma unroll
            for (int i = 0; i < WARP_TILES; i++)
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    total[i][j][h] = __fmaf_rn(acc[i][j][h], d, total[i][j][h]);
                    acc[i][j][h] = 0.0f;
                }
        }
        // Groups that end join those that wait for them, as the tree has it; empty ones too.
        for (; group < 8 && m.groups.starts[group + 1] <= slice + 1; group++) {
            int level = __ffs(~group) - 1;
            for (int under = 0; under < level; under++) {
#pragma unroll
                for (int i = 0; i < WARP_TILES; i++)
#pragma unroll
                    for (int j = 0; j < WARP_ROWS; j++)
#pragma unroll
                        for (int h = 0; h < 2; h++) {
                            float other = parked[under][(i * WARP_ROWS + j) * 2 + h];
                            total[i][j][h] = __fadd_rn(other, total[i][j][h]);
                        }
            }
            if (group == 7) break;
#pragma unroll
            for (int i = 0; i < WARP_TILES; i++)
#pragma unroll
                for (int j = 0; j < WARP_ROWS; j++)
#pragma unroll
                    for (int h = 0; h < 2; h++) {
                        parked[level][(i * WARP_ROWS + j) * 2 + h] = total[i][j][h];
                        total[i][j][h] = 0.0f;
                    }
        }
    }
#pragma unroll
    for (int j = 0; j < WARP_ROWS; j++) {
        int row = (row_tile + row0 + j) * TILE_ROWS + t;
        if (row >= p.rows) continue;
        bool bad = p.x.spoilt[row];
#pragma unroll
        for (int i = 0; i < WARP_TILES; i++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                int n = (ntile + tile0 + i) * 16 + g + 8 * h;
                if (n >= m.n) continue;
                m.out[(u64)row * m.n + n] = bad ? SPOILT : ended(m.groups, total[i][j][h]);
            }
    }
}

// Blocks in bands of rows, so that a band's rows stay near while weights stream by.
template <int KIND, int LOG> __device__ __forceinline__ void gemm_all(const Project &p) {
    int across = 0;
    for (int i = 0; i < p.count; i++)
        across += (p.matrices[i].n + 16 * GEMM_TILES - 1) / (16 * GEMM_TILES);
    int rows = (p.rows + 4 * GEMM_ROW_TILES - 1) / (4 * GEMM_ROW_TILES);
    int band = blockIdx.x / (BAND * across), in = blockIdx.x % (BAND * across);
    int width = min(BAND, rows - band * BAND);
    int block = in / width, row = band * BAND + in % width, i = 0;
    for (;; i++) {
        int blocks = (p.matrices[i].n + 16 * GEMM_TILES - 1) / (16 * GEMM_TILES);
        if (block < blocks) break;
        block -= blocks;
    }
    gemm<KIND, LOG>(p, p.matrices[i], block * GEMM_TILES, row * GEMM_ROW_TILES);
}

#define GEMM(name, kind, log)                                                                      \
    extern "C" __global__ void __launch_bounds__(GEMM_WARPS * 32, 1) name(const Project p) {       \
        BEGIN;                                                                                     \
        gemm_all<kind, log>(p);                                                                    \
    }

GEMM(gemm_nibbles_bf16_64, KIND_BF16, 6)
GEMM(gemm_nibbles_f16_32, KIND_F16, 5)
GEMM(gemm_nibbles_k_32, KIND_K, 5)
