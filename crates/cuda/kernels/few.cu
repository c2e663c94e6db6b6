// Linear layers over two to eight rows, for hot forms: a warp has two tiles of outputs, a pair, so
// that rows are read half as often, and the weights of its slices on their way through shared
// memory.

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

#define ROWS (ROW_TILES * TILE_ROWS)
// Blocks of a slice.
#define BLOCKS (SLICE >> LOG)

// Codes of a slice of a pair of tiles on its way, then scales as they lie.
template <int KIND, int LOG> struct Weights {
    uint4 codes[PAIR][4][32];
    uint2 scales[PAIR][BLOCKS][8];
};

// Of K-quants the scales of each half of the slice, then scale and minimum of its units.
template <int LOG> struct Weights<KIND_K, LOG> {
    uint4 codes[PAIR][4][32];
    uint2 scales[2][PAIR][2][8];
    uint2 units[PAIR][8];
};

// What the rows have of the slice besides their integers: scales, and sums of its blocks. Those of
// blocks of 64, half as many, come with the integers: what places take the first cache lacks.
template <int LOG> struct Marks {
    float d[ROWS];
};

template <> struct Marks<5> {
    float d[ROWS];
    float sums[ROWS][SLICE / 32];
};

template <int KIND, int LOG> struct Place : Weights<KIND, LOG>, Marks<LOG> {
    // So many times 16 bytes of a tile, and bytes before the rest.
    static const int CODES = 128, SCALES = BLOCKS / (KIND == KIND_K ? 2 : 1) * 4, UNITS = 4;
    static const int REST = PAIR * (CODES + SCALES) * 16;
    // Lanes that bring units, and those of the rest.
    static const int UNIT_LANES = KIND == KIND_K ? PAIR * UNITS : 0;
    static const int LANES = UNIT_LANES + ROW_TILES;
};

// What blocks of K-quants are multiplied by, of half a slice of both tiles: scales and offsets of
// outputs g and g + 8 of block b of tile n at 32 n + 8 b + g.
template <int KIND, int LOG>
__device__ __forceinline__ void spread_affines(const Place<KIND, LOG> &, int, float4 *) {}

template <int LOG>
__device__ __forceinline__ void spread_affines(const Place<KIND_K, LOG> &from, int half,
                                               float4 *to) {
    // A lane has two blocks, which share eight bytes.
    int lane = threadIdx.x % 32, n = lane / 16, g = lane % 8, in = lane / 8 % 2;
    uint2 two = (&from.scales[half][0][0][0])[lane], unit = from.units[n][g];
    // Products of a byte are exact: those of 2^23 + byte, which is its bits, less those of 2^23.
    const float ONE = 8388608.0f;
    float by[4] = {half_to_float(unit.x), -half_to_float(unit.x >> 16), half_to_float(unit.y),
                   -half_to_float(unit.y >> 16)};
    float4 *own = to + n * 32 + in * 16 + g;
    __syncwarp();
#pragma unroll
    for (int block = 0; block < 2; block++) {
        u32 factors = block ? two.y : two.x;
        float give[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float byte = __uint_as_float(__byte_perm(factors, 0x4b000000, 0x7540 | i));
            give[i] = __fmaf_rn(byte, by[i], __fmul_rn(by[i], -ONE));
        }
        own[block * 8] = make_float4(give[0], give[1], give[2], give[3]);
    }
    __syncwarp();
}

// As `bring_16`, to so many bytes past `to`.
template <int OFF> __device__ __forceinline__ void bring_16_at(u32 to, const void *from) {
    asm volatile("cp.async.cg.shared.global [%0+%2], [%1], 16;" ::"r"(to), "l"(from), "n"(OFF));
}

__device__ __forceinline__ void bring_4(u32 to, const void *from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from));
}

// What a warp fetches next: a slice `k` of a pair of tiles. Of a lane where slice 0 has what it
// brings of codes, of scales and of the rest: units, or the rows' scales. `apart` is slices from a
// tile to the pair's other one, none if the last tile of an odd number is taken twice.
struct Fetch {
    const u8 *codes, *scales, *rest;
    int pair, left, turn;
    u32 k, apart;
};

// In `tile` of a matrix is the first pair of it.
__device__ __forceinline__ int matrix_of(const Project &p, int pair) {
    int i = 0;
    while (i + 1 < p.count && pair >= p.matrices[i + 1].tile) i++;
    return i;
}

// Goes to the first slice of the next pair whose group has some, if none is left.
template <int KIND, int LOG>
__device__ __forceinline__ void fetch_pair(const Project &p, Fetch &f, const Turns &turns) {
    typedef Place<KIND, LOG> P;
    int lane = threadIdx.x % 32;
    while (f.left == 0 && f.pair < p.parts) {
        const Matrix &m = p.matrices[matrix_of(p, f.pair)];
        int tile = (f.pair - m.tile) * PAIR;
        u64 slice = (u64)tile * m.slices;
        f.apart = (tile + 1) * 16 < m.n ? m.slices : 0;
        f.k = turns.first(f.turn), f.left = turns.count(f.turn);
        f.pair += gridDim.x, f.turn ^= 1;
        f.codes = (const u8 *)m.codes + (slice * P::CODES + lane) * 16;
        // Places have scales of both tiles side by side, of K-quants those of half a slice.
        int in = KIND == KIND_K ? lane / 8 % 2 : lane / P::SCALES;
        int chunk = KIND == KIND_K ? lane / 16 * 8 + lane % 8 : lane % P::SCALES;
        f.scales = (const u8 *)m.scales + ((slice + in * f.apart) * P::SCALES + chunk) * 16;
        if (lane < P::UNIT_LANES) {
            slice += lane / P::UNITS * f.apart;
            f.rest = (const u8 *)m.units + (slice * P::UNITS + lane % P::UNITS) * 16;
        }
    }
}

// Asks for the weights of a slice.
template <int KIND, int LOG>
__device__ __forceinline__ void fetch_weights(const Fetch &f, Place<KIND, LOG> &to) {
    typedef Place<KIND, LOG> P;
    u32 at = shared_at(&to) + threadIdx.x % 32 * 16;
    const int BYTES = P::CODES * 16, SCALES = P::SCALES * 16;
    const u8 *low = f.codes + (u64)f.k * BYTES;
    const u8 *high = f.codes + (u64)(f.k + f.apart) * BYTES;
    bring_16_at<0>(at, low), bring_16_at<512>(at, low + 512);
    bring_16_at<1024>(at, low + 1024), bring_16_at<1536>(at, low + 1536);
    bring_16_at<BYTES>(at, high), bring_16_at<BYTES + 512>(at, high + 512);
    bring_16_at<BYTES + 1024>(at, high + 1024), bring_16_at<BYTES + 1536>(at, high + 1536);
    bring_16_at<2 * BYTES>(at, f.scales + (u64)f.k * SCALES);
    if (P::SCALES == 32)
        bring_16_at<2 * BYTES + 512>(at, f.scales + (u64)(f.k + f.apart) * SCALES);
}

// Asks for the rest of slice `k`, of the lanes `from .. end`.
template <int KIND, int LOG>
__device__ __forceinline__ void fetch_rest(const Fetch &f, u32 k, int from, int end,
                                           Place<KIND, LOG> &to) {
    typedef Place<KIND, LOG> P;
    int lane = threadIdx.x % 32;
    u32 at = shared_at(&to) + lane * 16, step = lane < P::UNIT_LANES ? P::UNITS * 16 : 16;
    asm volatile("{.reg .pred own; setp.lt.u32 own, %0, %1;"
                 "@own cp.async.cg.shared.global [%2+%4], [%3], 16;}" ::"r"(lane - from),
                 "r"(end - from), "r"(at), "l"(f.rest + (u64)k * step), "n"(P::REST));
}

// Where a lane finds the sums of blocks of 32 that it brings of a slice, one of each tile of rows.
template <int LOG> struct Sums {
    static const int ALL = BLOCKS * TILE_ROWS;
    const u8 *from;
    u32 apart;

    __device__ __forceinline__ Sums(const Quantised &x)
        : from((const u8 *)(sums_of(x, LOG) + threadIdx.x % ALL)), apart(x.slices) {
        // Else the compiler adds it up anew for each slice.
        asm("" : "+l"(from));
    }

    // Asks for those of slice `k`.
    template <int KIND> __device__ __forceinline__ void fetch(u32 k, Place<KIND, LOG> &to) const {
        if constexpr (LOG == 5) {
            int lane = threadIdx.x % 32;
            u32 at = shared_at(&to.sums[lane % TILE_ROWS][lane / TILE_ROWS]);
            bring_4(at, from + (u64)k * (4 * ALL));
            bring_4(at + 4 * ALL, from + (u64)(k + apart) * (4 * ALL));
        }
    }
};

template <int KIND, int LOG>
__device__ __forceinline__ void fetch(const Project &p, Fetch &f, const Turns &turns,
                                      const Sums<LOG> &sums, Place<KIND, LOG> &to) {
    typedef Place<KIND, LOG> P;
    fetch_pair<KIND, LOG>(p, f, turns);
    if (f.left > 0) {
        fetch_rest<KIND, LOG>(f, f.k, 0, P::LANES, to);
        sums.fetch(f.k, to);
        fetch_weights<KIND, LOG>(f, to);
        f.k++, f.left--;
    }
    asm volatile("cp.async.commit_group;");
}

// A tile of 64 values of the rows: integers, and the sum of a block of 64.
struct RowTile {
    uint4 q[ROW_TILES];
    float sums[ROW_TILES];
};

// Where a lane reads a slice of the rows: column g of a product is plane g % 2 of row g / 2, and
// its sums are of row t. Rows past the last are there, and what is made of them is left.
template <int LOG> struct RowsAt {
    const uint4 *q;
    const float *sums;

    __device__ __forceinline__ RowsAt(const Quantised &x, int slice)
        : q((const uint4 *)x.q + slice * 128 + threadIdx.x % 32),
          sums(sums_of(x, LOG) + slice * 4 * TILE_ROWS + threadIdx.x % 4) {}

    __device__ __forceinline__ void tile(const Quantised &x, RowTile &to, int kt) const {
#pragma unroll
        for (u32 j = 0; j < ROW_TILES; j++) {
            to.q[j] = q[(u64)j * x.slices * 128 + kt * 32];
            if (LOG == 6) to.sums[j] = sums[((u64)j * x.slices * 4 + kt) * TILE_ROWS];
        }
    }

    // So many slices on, or back.
    __device__ __forceinline__ void move(long long slices) {
        q += slices * 128, sums += slices * 4 * TILE_ROWS;
    }
};

// Adds the blocks of a tile of 64 values to the sums of tile `n` of the pair; `sums` are of those
// blocks' rows.
template <int KIND, int LOG>
__device__ __forceinline__ void few_tile(const Place<KIND, LOG> &from, int n, const float4 *affines,
                                         int kt, const RowTile &x, const float sums[ROW_TILES][4],
                                         float acc[ROW_TILES][2]) {
    int lane = threadIdx.x % 32, g = lane / 4;
    uint4 w = from.codes[n][kt][lane];
    u32 a[2][4];
    nibbles(a[0], w.x, w.y);
    nibbles(a[1], w.z, w.w);
#pragma unroll
    for (int half = 0; half < (LOG == 5 ? 2 : 1); half++) {
        float2 low, high;
        int block = LOG == 5 ? kt * 2 + half : kt;
        if constexpr (KIND == KIND_K) {
            float4 both = affines[n * 32 + block % 4 * 8 + g];
            low = make_float2(both.x, both.y), high = make_float2(both.z, both.w);
        } else {
            uint2 pair = from.scales[n][block][g];
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
            block_into(acc[j], c, sums[j][block % 4], 0, low, high);
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
__device__ __forceinline__ void few_slice(const Quantised &of, const Place<KIND, LOG> &here,
                                          float4 *affines, RowsAt<LOG> &rows, RowTile x[4],
                                          int next, float total[PAIR][ROW_TILES][2]) {
    int t = threadIdx.x % TILE_ROWS;
    float sums[ROW_TILES][4], acc[PAIR][ROW_TILES][2];
#pragma unroll
    for (int i = 0; i < PAIR * ROW_TILES * 2; i++) (&acc[0][0][0])[i] = 0.0f;
#pragma unroll
    for (int kt = 0; kt < 4; kt++) {
        if (KIND == KIND_K && kt % 2 == 0) spread_affines(here, kt / 2, affines);
        if (kt + AHEAD == 4) rows.move(next);
        rows.tile(of, x[(kt + AHEAD) % 4], (kt + AHEAD) % 4);
#pragma unroll
        for (int j = 0; j < ROW_TILES; j++) {
            if constexpr (LOG == 6)
                sums[j][kt] = x[kt].sums[j];
            else if (kt % 2 == 0)
                *(float4 *)sums[j] = *(const float4 *)&here.sums[j * TILE_ROWS + t][kt * 2];
        }
#pragma unroll
        for (int n = 0; n < PAIR; n++)
            few_tile<KIND, LOG>(here, n, affines, kt, x[kt], sums, acc[n]);
    }
#pragma unroll
    for (int i = 0; i < PAIR * ROW_TILES * 2; i++) {
        float &sum = (&total[0][0][0])[i], scale = here.d[i / 2 % ROW_TILES * TILE_ROWS + t];
        sum = __fmaf_rn((&acc[0][0][0])[i], scale, sum);
    }
}

// Fills a ring with what depends on nothing that still runs, and says of which slices, or of one at
// most past the last where there is none.
template <int KIND, int LOG>
__device__ __forceinline__ void fill(const Project &p, Fetch &f, const Turns &turns,
                                     Place<KIND, LOG> *ring, u32 slices[RING]) {
#pragma unroll
    for (int i = 0; i < RING; i++) {
        // What the kernels before read would wait behind all that is asked for at once.
        asm volatile("cp.async.wait_group 0;");
        fetch_pair<KIND, LOG>(p, f, turns);
        slices[i] = f.k;
        if (f.left > 0) {
            fetch_weights<KIND, LOG>(f, ring[i]);
            fetch_rest<KIND, LOG>(f, f.k, 0, Place<KIND, LOG>::UNIT_LANES, ring[i]);
            f.k++, f.left--;
        }
        asm volatile("cp.async.commit_group;");
    }
}

// A block goes on from one pair to the next: a warp has a group of K, and its neighbour's of every
// other pair, whose weights come through a ring of its own that never empties between pairs.
template <int KIND, int LOG> __device__ __forceinline__ void few_all(const Project &p) {
    typedef Place<KIND, LOG> P;
    extern __shared__ __align__(16) u8 memory[];
    int warp = threadIdx.x / 32, group = group_of(warp, 0);
    Turns turns = {p.matrices[0].groups, group};
    u32 first_place = warp * RING * sizeof(P), place = 0;
    P *ring = (P *)(memory + first_place);
    // Sums of a pair and, where K-quants' scales and offsets lie before, of another one.
    const bool BOTH = KIND == KIND_K;
    float *parts = (float *)((P *)memory + WARPS * RING);
    float *own = parts + VALUES * (group ^ 1), *second = parts + (BOTH ? VALUES * WARPS : 0);
    float4 *affines = (float4 *)(own + VALUES * WARPS);
    int lane = threadIdx.x % 32, j = (lane - P::UNIT_LANES) % ROW_TILES;
    const u8 *d = (const u8 *)(p.x.d + j * p.x.slices * TILE_ROWS);
    u32 first[RING];
    Fetch f = {nullptr, nullptr, d, (int)blockIdx.x, 0, 0, 0, 0};
    fill<KIND, LOG>(p, f, turns, ring, first);
    WAIT;
    const Sums<LOG> sums(p.x);
#pragma unroll
    for (int i = 0; i < RING; i++) {
        sums.fetch(first[i], ring[i]);
        fetch_rest<KIND, LOG>(f, first[i], P::UNIT_LANES, P::LANES, ring[i]);
        asm volatile("cp.async.commit_group;");
    }
    // Else the compiler works both out anew at each use.
    asm("" : "+r"(first_place));
    int pair = blockIdx.x;
    RowsAt<LOG> rows(p.x, turns.first(turns.count(0) == 0));
    RowTile x[4];
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
                u32 at = first_place + place * sizeof(P);
                asm("" : "+r"(at));
                P &here = *(P *)(memory + at);
                int next = left > 1 ? 1 : turns.back(turn);
                few_slice<KIND, LOG>(p.x, here, affines, rows, x, next, total);
                __syncwarp();
                fetch<KIND, LOG>(p, f, turns, sums, here);
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

// Blocks of a multiprocessor for K-quants: before Hopper, and of compute capability 12, shared
// memory has room for one.
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
