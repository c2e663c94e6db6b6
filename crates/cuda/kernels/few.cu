// Linear layers over two to eight rows, for hot forms: a warp has two tiles of outputs, so that
// rows are read half as often, and the weights of its slices on their way through shared memory.

#define WARPS 8
#define RING 2
#define PAIR 2
#define ROW_TILES 2

// A slice of a tile on its way; of K-quants with scale and minimum of its units.
template <int KIND, int LOG> struct Place : Slice<KIND, LOG> {};

template <int LOG> struct Place<KIND_K, LOG> : Slice<KIND_K, LOG> {
    uint2 units[8];
};

// What a K-quant's blocks are multiplied by, a block pair a lane, for all lanes: of block b scales
// and offsets of outputs g and g + 8 at 8 b + g.
template <int KIND, int LOG>
__device__ __forceinline__ void spread_affines(const Place<KIND, LOG> &, float4 *) {}

template <int LOG>
__device__ __forceinline__ void spread_affines(const Place<KIND_K, LOG> &from, float4 *to) {
    int lane = threadIdx.x % 32, kt = lane / 8, g = lane % 8;
    uint2 two = from.scales[lane], unit = from.units[g];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        u32 factors = half ? two.y : two.x;
        float2 low = affine_of_unit(factors & 0xffffu, unit.x);
        float2 high = affine_of_unit(factors >> 16, unit.y);
        to[(kt * 2 + half) * 8 + g] = make_float4(low.x, low.y, high.x, high.y);
    }
}

template <int KIND, int LOG>
__device__ __forceinline__ void few_rows(const Project &p, const Matrix &m, int ntile,
                                         float *parts) {
    extern __shared__ __align__(16) u8 memory[];
    const int BLOCKS = 256 >> LOG, SCALES = sizeof(Slice<KIND, LOG>().scales) / 16;
    int group = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    int slices = m.slices, first = m.groups.starts[group], end = m.groups.starts[group + 1];
    int tiles = (m.n + 15) / 16;
    typedef Place<KIND, LOG> P;
    P *ring = (P *)memory + group * RING * PAIR;
    float4 *affines = (float4 *)((P *)memory + WARPS * RING * PAIR) + group * PAIR * 64;
    // The last tile of an odd number is taken twice.
    u64 slice[PAIR];
    for (int n = 0; n < PAIR; n++) slice[n] = (u64)min(ntile + n, tiles - 1) * slices + first;
    auto fetch = [&](int s) {
        if (s < end) {
#pragma unroll
            for (int n = 0; n < PAIR; n++) {
                P &to = ring[(s - first) % RING * PAIR + n];
                u64 at = slice[n] + (s - first);
                const uint4 *codes = (const uint4 *)m.codes + at * 128;
                const uint4 *scales = (const uint4 *)m.scales + at * SCALES;
#pragma unroll
                for (int i = 0; i < 4; i++)
                    bring_16(&to.codes[i][lane], codes + i * 32 + lane);
#pragma unroll
                for (int i = lane; i < SCALES; i += 32)
                    bring_16((uint4 *)to.scales + i, scales + i);
                const uint4 *units = (const uint4 *)m.units + at * 4;
                if (KIND == KIND_K && lane < 4)
                    bring_16((uint4 *)(to.scales + 32) + lane, units + lane);
            }
        }
        asm volatile("cp.async.commit_group;");
    };
    // Weights depend on nothing that still runs.
    for (int i = 0; i < RING; i++) fetch(first + i);
    WAIT;
    const uint4 *q = (const uint4 *)p.x.q + (u64)first * 4 * 32 + lane;
    const float *sums = sums_of(p.x, LOG) + (u64)first * BLOCKS * TILE_ROWS + t;
    const float *d = p.x.d + first * TILE_ROWS + t;
    bool mine[ROW_TILES], row_mine[ROW_TILES];
    for (int j = 0; j < ROW_TILES; j++) {
        mine[j] = j * TILE_ROWS + g / 2 < p.rows;
        row_mine[j] = j * TILE_ROWS + t < p.rows;
    }
    float total[PAIR][ROW_TILES][2];
#pragma unroll
    for (int i = 0; i < PAIR * ROW_TILES * 2; i++) (&total[0][0][0])[i] = 0.0f;
    for (int s = first; s < end; s++) {
        uint4 b[4][ROW_TILES];
        float sum[BLOCKS][ROW_TILES], scale[ROW_TILES];
#pragma unroll
        for (int j = 0; j < ROW_TILES; j++) {
            u64 row = (u64)j * slices;
#pragma unroll
            for (int kt = 0; kt < 4; kt++)
                b[kt][j] = mine[j] ? q[(row * 4 + kt) * 32] : make_uint4(0, 0, 0, 0);
#pragma unroll
            for (int i = 0; i < BLOCKS; i++)
                sum[i][j] = row_mine[j] ? sums[(row * BLOCKS + i) * TILE_ROWS] : 0.0f;
            scale[j] = row_mine[j] ? d[row * TILE_ROWS] : 0.0f;
        }
        q += 128, sums += BLOCKS * TILE_ROWS, d += TILE_ROWS;
        asm volatile("cp.async.wait_group %0;" ::"n"(RING - 1));
        __syncwarp();
        const P *here = ring + (s - first) % RING * PAIR;
        if (KIND == KIND_K) {
#pragma unroll
            for (int n = 0; n < PAIR; n++) spread_affines(here[n], affines + n * 64);
            __syncwarp();
        }
#pragma unroll
        for (int n = 0; n < PAIR; n++) {
            const P &from = here[n];
            float acc[ROW_TILES][2];
#pragma unroll
            for (int j = 0; j < ROW_TILES; j++) acc[j][0] = acc[j][1] = 0.0f;
#pragma unroll
            for (int kt = 0; kt < 4; kt++) {
                uint4 w = from.codes[kt][lane];
                u32 a[2][4];
                nibbles(a[0], w.x, w.y);
                nibbles(a[1], w.z, w.w);
#pragma unroll
                for (int half = 0; half < (LOG == 5 ? 2 : 1); half++) {
                    float2 low, high;
                    int block = LOG == 5 ? kt * 2 + half : kt;
                    if (KIND == KIND_K) {
                        float4 both = affines[n * 64 + block * 8 + g];
                        low = make_float2(both.x, both.y), high = make_float2(both.z, both.w);
                    } else {
                        uint2 pair = from.scales[block * 8 + g];
                        low = affine_of(pair.x, KIND), high = affine_of(pair.y, KIND);
                    }
#pragma unroll
                    for (int j = 0; j < ROW_TILES; j++) {
                        int c[4];
                        uint4 x = b[kt][j];
                        if (LOG == 6) {
                            product_first(c, a[0], x.x, x.y);
                            product_32(c, a[1], x.z, x.w);
                        } else {
                            product_first(c, a[half], half ? x.z : x.x, half ? x.w : x.y);
                        }
                        block_into(acc[j], c, sum[block][j], 0, low, high);
                    }
                }
            }
#pragma unroll
            for (int j = 0; j < ROW_TILES; j++) {
                total[n][j][0] = __fmaf_rn(acc[j][0], scale[j], total[n][j][0]);
                total[n][j][1] = __fmaf_rn(acc[j][1], scale[j], total[n][j][1]);
            }
        }
        __syncwarp();
        fetch(s + RING);
    }
    // parts: [group][tile][row][output]
    const int values = PAIR * ROW_TILES * TILE_ROWS * 16;
#pragma unroll
    for (int n = 0; n < PAIR; n++)
#pragma unroll
        for (int j = 0; j < ROW_TILES; j++) {
            int at = group * values + ((n * ROW_TILES + j) * TILE_ROWS + t) * 16 + g;
            parts[at] = total[n][j][0];
            parts[at + 8] = total[n][j][1];
        }
    __syncthreads();
    int i = threadIdx.x, row = i / 16 % (ROW_TILES * TILE_ROWS);
    int n = (ntile + i / (16 * ROW_TILES * TILE_ROWS)) * 16 + i % 16;
    if (i >= values || row >= p.rows || n >= m.n) return;
    m.out[(u64)row * m.n + n] = rooted(m.groups, parts + i, values);
}

// Pairs of tiles, each matrix beginning with its own.
template <int KIND, int LOG> __device__ __forceinline__ void few_all(const Project &p) {
    __shared__ float parts[WARPS * PAIR * ROW_TILES * TILE_ROWS * 16];
    int pair = blockIdx.x, i = 0;
    for (;; i++) {
        int pairs = ((p.matrices[i].n + 15) / 16 + PAIR - 1) / PAIR;
        if (pair < pairs) break;
        pair -= pairs;
    }
    few_rows<KIND, LOG>(p, p.matrices[i], pair * PAIR, parts);
}

// Blocks of a multiprocessor for K-quants: before Hopper shared memory has room for one.
#if __CUDA_ARCH__ >= 900
#define BLOCKS_K 2
#else
#define BLOCKS_K 1
#endif

#define FEW(name, kind, log, blocks)                                                               \
    extern "C" __global__ void __launch_bounds__(WARPS * 32, blocks) name(const Project p) {       \
        COME;                                                                                      \
        few_all<kind, log>(p);                                                                     \
    }

FEW(few_nibbles_bf16_64, KIND_BF16, 6, 2)
FEW(few_nibbles_f16_32, KIND_F16, 5, 2)
FEW(few_nibbles_k_32, KIND_K, 5, BLOCKS_K)
