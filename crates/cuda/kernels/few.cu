// Linear layers over two to eight rows, for hot forms: a warp has two tiles of outputs, a pair, so
// that rows are read half as often, and the weights of its slices on their way through shared memory.

#define WARPS 8
// Slices of a pair that a warp has on their way.
#define RING 2
#define PAIR 2
#define ROW_TILES 2
// Tiles of 64 values of the rows that are on their way, as many as registers hold.
#if __CUDA_ARCH__ >= 1000
#define AHEAD 2
#else
#define AHEAD 3
#endif
// Sums of a pair.
#define VALUES (PAIR * ROW_TILES * TILE_ROWS * 16)

// A slice of a tile on its way; of K-quants with scale and minimum of its units.
template <int KIND, int LOG> struct Place : Slice<KIND, LOG> {};

template <int LOG> struct Place<KIND_K, LOG> : Slice<KIND_K, LOG> {
    uint2 units[8];
};

// What blocks of K-quants are multiplied by, of half a slice of both tiles: scales and offsets of
// outputs g and g + 8 of block b of tile n at 32 n + 8 b + g.
template <int KIND, int LOG>
__device__ __forceinline__ void spread_affines(const Place<KIND, LOG> *, int, float4 *) {}

template <int LOG>
__device__ __forceinline__ void spread_affines(const Place<KIND_K, LOG> *from, int kt, float4 *to) {
    // A lane has two blocks, which share eight bytes.
    int lane = threadIdx.x % 32, n = lane / 16, g = lane % 8, in = lane / 8 % 2;
    uint2 two = from[n].scales[(kt + in) * 8 + g], unit = from[n].units[g];
    to += n * 32 + in * 16 + g;
    __syncwarp();
#pragma unroll
    for (int half = 0; half < 2; half++) {
        u32 factors = half ? two.y : two.x;
        float2 low = affine_of_unit(factors & 0xffffu, unit.x);
        float2 high = affine_of_unit(factors >> 16, unit.y);
        to[half * 8] = make_float4(low.x, low.y, high.x, high.y);
    }
    __syncwarp();
}

// What a warp fetches next: a slice of a pair of tiles. `apart` is slices from a tile to the pair's
// other one, none if the last tile of an odd number is taken twice.
struct Fetch {
    int matrix, slice, apart, pair, left, turn;
};

// In `tile` of a matrix is the first pair of it.
__device__ __forceinline__ int matrix_of(const Project &p, int pair) {
    int i = 0;
    while (i + 1 < p.count && pair >= p.matrices[i + 1].tile) i++;
    return i;
}

template <int KIND, int LOG>
__device__ __forceinline__ void fetch(const Project &p, Fetch &f, const Turns &turns,
                                      Place<KIND, LOG> *to) {
    const int SCALES = sizeof(Slice<KIND, LOG>().scales) / 16;
    int lane = threadIdx.x % 32;
    while (f.left == 0 && f.pair < p.parts) {
        f.matrix = matrix_of(p, f.pair);
        const Matrix &m = p.matrices[f.matrix];
        int tile = (f.pair - m.tile) * PAIR;
        f.slice = tile * m.slices + turns.first(f.turn);
        f.apart = (tile + 1) * 16 < m.n ? m.slices : 0;
        f.left = turns.count(f.turn), f.pair += gridDim.x, f.turn ^= 1;
    }
    if (f.left > 0) {
        const Matrix &m = p.matrices[f.matrix];
#pragma unroll
        for (int n = 0; n < PAIR; n++) {
            u64 slice = f.slice + n * f.apart;
            const uint4 *codes = (const uint4 *)m.codes + slice * 128 + lane;
            const uint4 *scales = (const uint4 *)m.scales + slice * SCALES + lane;
#pragma unroll
            for (int i = 0; i < 4; i++) bring_16(&to[n].codes[i][lane], codes + i * 32);
#pragma unroll
            for (int i = 0; i < SCALES; i += 32)
                if (i + lane < SCALES) bring_16((uint4 *)to[n].scales + i + lane, scales + i);
            const uint4 *units = (const uint4 *)m.units + slice * 4 + lane;
            if (KIND == KIND_K && lane < 4) bring_16((uint4 *)(to[n].scales + 32) + lane, units);
        }
        f.slice++, f.left--;
    }
    asm volatile("cp.async.commit_group;");
}

// A tile of 64 values of the rows: integers, and sums of its blocks.
template <int LOG> struct RowTile {
    uint4 q[ROW_TILES];
    float sums[64 >> LOG][ROW_TILES];
};

// Where a lane reads a slice of the rows: column g of a product is plane g % 2 of row g / 2, and its
// sums are of row t. Rows past the last are there, and what is made of them is left.
template <int LOG> struct RowsAt {
    static const int BLOCKS = 64 >> LOG, SUMS = 4 * BLOCKS * TILE_ROWS;
    const uint4 *q[ROW_TILES];
    const float *sums, *d;

    __device__ __forceinline__ RowsAt(const Quantised &x, int slice)
        : sums(sums_of(x, LOG) + (u64)slice * SUMS + threadIdx.x % 4),
          d(x.d + slice * TILE_ROWS + threadIdx.x % 4) {
#pragma unroll
        for (int j = 0; j < ROW_TILES; j++)
            q[j] = (const uint4 *)x.q + ((u64)j * x.slices + slice) * 128 + threadIdx.x % 32;
    }

    __device__ __forceinline__ void tile(const Quantised &x, RowTile<LOG> &to, int kt) const {
#pragma unroll
        for (int j = 0; j < ROW_TILES; j++) {
            const float *own = sums + j * x.slices * SUMS;
            to.q[j] = q[j][kt * 32];
#pragma unroll
            for (int i = 0; i < BLOCKS; i++) to.sums[i][j] = own[(kt * BLOCKS + i) * TILE_ROWS];
        }
    }

    // So many slices on, or back.
    __device__ __forceinline__ void move(int slices) {
        q[0] += slices * 128, q[1] += slices * 128;
        sums += slices * SUMS, d += slices * TILE_ROWS;
    }
};

// Adds the blocks of a tile of 64 values to the sums of a tile of outputs.
template <int KIND, int LOG>
__device__ __forceinline__ void few_tile(const Place<KIND, LOG> &from, const float4 *affines,
                                         int kt, const RowTile<LOG> &x, float acc[ROW_TILES][2]) {
    int lane = threadIdx.x % 32, g = lane / 4;
    uint4 w = from.codes[kt][lane];
    u32 a[2][4];
    nibbles(a[0], w.x, w.y);
    nibbles(a[1], w.z, w.w);
#pragma unroll
    for (int half = 0; half < (LOG == 5 ? 2 : 1); half++) {
        float2 low, high;
        int block = LOG == 5 ? kt * 2 + half : kt;
        if (KIND == KIND_K) {
            float4 both = affines[block % 4 * 8 + g];
            low = make_float2(both.x, both.y), high = make_float2(both.z, both.w);
        } else {
            uint2 pair = from.scales[block * 8 + g];
            low = affine_of(pair.x, KIND), high = affine_of(pair.y, KIND);
        }
#pragma unroll
        for (int j = 0; j < ROW_TILES; j++) {
            int c[4];
            uint4 q = x.q[j];
            if (LOG == 6) {
                product_first(c, a[0], q.x, q.y);
                product_32(c, a[1], q.z, q.w);
            } else {
                product_first(c, a[half], half ? q.z : q.x, half ? q.w : q.y);
            }
            block_into(acc[j], c, x.sums[half][j], 0, low, high);
        }
    }
}

// What a pair gives, from the sums of all groups: [group][tile][row][output].
__device__ __forceinline__ void few_give(const Project &p, int pair, const float *sums) {
    const Matrix &m = p.matrices[matrix_of(p, pair)];
    int i = threadIdx.x, row = i / 16 % (ROW_TILES * TILE_ROWS);
    int n = ((pair - m.tile) * PAIR + i / (16 * ROW_TILES * TILE_ROWS)) * 16 + i % 16;
    if (row < p.rows && n < m.n) m.out[(u64)row * m.n + n] = rooted(m.groups, sums + i, VALUES);
}

// A warp's sums, where the others find them.
__device__ __forceinline__ void few_leave(const float total[PAIR][ROW_TILES][2], float *own) {
    int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int n = 0; n < PAIR; n++)
#pragma unroll
        for (int j = 0; j < ROW_TILES; j++) {
            int at = ((n * ROW_TILES + j) * TILE_ROWS + t) * 16 + g;
            own[at] = total[n][j][0], own[at + 8] = total[n][j][1];
        }
}

// The sums of a slice's blocks, and what they add to the totals. The rows are some tiles ahead, and
// go `next` slices on.
template <int KIND, int LOG>
__device__ __forceinline__ void few_slice(const Quantised &of, const Place<KIND, LOG> *here,
                                          float4 *affines, RowsAt<LOG> &rows, RowTile<LOG> x[4],
                                          int next, float total[PAIR][ROW_TILES][2]) {
    float scale[ROW_TILES], acc[PAIR][ROW_TILES][2];
#pragma unroll
    for (int i = 0; i < PAIR * ROW_TILES * 2; i++) (&acc[0][0][0])[i] = 0.0f;
#pragma unroll
    for (int kt = 0; kt < 4; kt++) {
        if (KIND == KIND_K && kt % 2 == 0) spread_affines(here, kt, affines);
        if (kt == 0) {
#pragma unroll
            for (int j = 0; j < ROW_TILES; j++) scale[j] = rows.d[j * of.slices * TILE_ROWS];
        }
        if (kt + AHEAD == 4) rows.move(next);
        rows.tile(of, x[(kt + AHEAD) % 4], (kt + AHEAD) % 4);
#pragma unroll
        for (int n = 0; n < PAIR; n++)
            few_tile<KIND, LOG>(here[n], affines + n * 32, kt, x[kt], acc[n]);
    }
#pragma unroll
    for (int i = 0; i < PAIR * ROW_TILES * 2; i++) {
        float &sum = (&total[0][0][0])[i];
        sum = __fmaf_rn((&acc[0][0][0])[i], scale[i / 2 % ROW_TILES], sum);
    }
}

// A block goes on from one pair to the next: a warp has a group of K, and its neighbour's of every
// other pair, whose weights come through a ring of its own that never empties between pairs.
template <int KIND, int LOG> __device__ __forceinline__ void few_all(const Project &p) {
    typedef Place<KIND, LOG> P;
    extern __shared__ __align__(16) u8 memory[];
    int warp = threadIdx.x / 32, group = group_of(warp, 0);
    Turns turns = {p.matrices[0].groups, group};
    P *ring = (P *)memory + warp * RING * PAIR;
    // Sums of a pair and, where K-quants' scales and offsets lie before, of another one.
    const bool BOTH = KIND == KIND_K;
    float *parts = (float *)((P *)memory + WARPS * RING * PAIR);
    float *own = parts + VALUES * (group ^ 1), *second = parts + (BOTH ? VALUES * WARPS : 0);
    float4 *affines = (float4 *)(own + VALUES * WARPS);
    Fetch f = {0, 0, 0, (int)blockIdx.x, 0, 0};
    // Weights depend on nothing that still runs.
#pragma unroll 1
    for (int i = 0; i < RING; i++) {
        // What the kernels before read would wait behind all that is asked for at once.
        asm volatile("cp.async.wait_group 0;");
        fetch<KIND, LOG>(p, f, turns, ring + i * PAIR);
    }
    WAIT;
    int place = 0, pair = blockIdx.x;
    RowsAt<LOG> rows(p.x, turns.first(turns.count(0) == 0));
    RowTile<LOG> x[4];
    if (turns.count(0) + turns.count(1) > 0) {
#pragma unroll
        for (int kt = 0; kt < AHEAD; kt++) rows.tile(p.x, x[kt], kt);
    }
    while (pair < p.parts) {
        float total[PAIR][ROW_TILES][2];
        int turn = 0;
#pragma unroll 1
        while (true) {
#pragma unroll
            for (int i = 0; i < PAIR * ROW_TILES * 2; i++) (&total[0][0][0])[i] = 0.0f;
#pragma unroll 1
            for (int left = turns.count(turn); left > 0; left--) {
                asm volatile("cp.async.wait_group %0;" ::"n"(RING - 1));
                __syncwarp();
                P *here = ring + place * PAIR;
                int next = left > 1 ? 1 : turns.back(turn);
                few_slice<KIND, LOG>(p.x, here, affines, rows, x, next, total);
                __syncwarp();
                fetch<KIND, LOG>(p, f, turns, here);
                place = (place + 1) % RING;
            }
            if (turn == 0) few_leave(total, parts + VALUES * group);
            if (turn == 1 || pair + gridDim.x >= p.parts) break;
            turn = 1, pair += gridDim.x;
        }
        if (BOTH && turn == 1) few_leave(total, own + VALUES * WARPS);
        __syncthreads();
        few_give(p, pair - turn * gridDim.x, parts);
        if (!BOTH && turn == 1) {
            __syncthreads();
            few_leave(total, own);
            __syncthreads();
        }
        if (turn == 1) few_give(p, pair, second);
        __syncthreads();
        pair += gridDim.x;
    }
}

// Blocks of a multiprocessor for K-quants: before Hopper, and of compute capability 12, shared memory
// has room for one.
#if __CUDA_ARCH__ >= 900 && __CUDA_ARCH__ < 1200
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
