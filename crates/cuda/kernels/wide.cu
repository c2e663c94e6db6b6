// Linear layers over many rows on Hopper's warpgroup products: a block has four warpgroups of 64
// outputs each over the same 64 rows, whose two planes are the 128 columns of a product. Slices of
// all rows come through a ring that the block shares, each warp's weights through one of its own,
// in a few large copies. While one warpgroup folds its integers into f32, the others multiply. A
// block goes on from one piece of the output to the next, and its rings with it.

#define GROUPS 4
#define GROUP_TILES 4
#define TILES (GROUPS * GROUP_TILES)
#define BLOCK_ROWS 64
#define ROW_TILES (BLOCK_ROWS / TILE_ROWS)
#define THREADS (GROUPS * 128)
#define WARPS (THREADS / 32)
// Slices of a ring.
#define RING 2
// Blocks of rows that share a band of weights.
#define BAND 8

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
// What the rows of a block bring for 64 values of K, as kernels/quantise.cu leaves it: both planes
// as a product takes them, then, by row modulo 4, sums of the 64 values, sums of each 32 of them
// and the scales of the slice; four values more a line, so that the lines lie in other banks.
struct Panel {
    uint4 q[ROW_TILES][4][8];
    float sums_64[1][TILE_ROWS][ROW_TILES + 4];
    float sums_32[2][TILE_ROWS][ROW_TILES + 4];
    float d[TILE_ROWS][ROW_TILES + 4];
};

__device__ __forceinline__ void await(u32 barrier, u32 phase) {
    asm volatile("{.reg .pred p; again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; "
                 "@p bra done; bra again; done: }" ::"r"(barrier), "r"(phase)
                 : "memory");
}

__device__ __forceinline__ void expect(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier),
                 "r"(bytes)
                 : "memory");
}

__device__ __forceinline__ void bring(void *to, const void *from, u32 bytes, u32 barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];" ::"r"(shared_at(to)),
                 "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
}

// A piece of the output: a matrix, its first tile of outputs, its block of rows.
struct Piece {
    int matrix, ntile, rows;
};

// Pieces in bands of rows, so that a band's rows stay near while weights stream by; past the last
// one, rows are below zero.
__device__ __forceinline__ Piece piece_of(const Project &p, int at) {
    int across = 0, rows = (p.rows + BLOCK_ROWS - 1) / BLOCK_ROWS;
    for (int i = 0; i < p.count; i++) across += (p.matrices[i].n + 16 * TILES - 1) / (16 * TILES);
    if (at >= across * rows) return {0, 0, -1};
    int band = at / (BAND * across), in = at % (BAND * across);
    int width = min(BAND, rows - band * BAND);
    int block = in / width, i = 0;
    for (;; i++) {
        int blocks = (p.matrices[i].n + 16 * TILES - 1) / (16 * TILES);
        if (block < blocks) break;
        block -= blocks;
    }
    return {i, block * TILES, band * BAND + in % width};
}

// Who brings slices one after the other, those of one piece after those of another: a thread of the
// block for rows, one of each warp for its weights.
struct Bringer {
    const u8 *from, *scales;
    int at, left;
    u32 count;
};

template <int KIND, int LOG> struct Shared {
    Panel panels[RING][4];
    Slice<KIND, LOG> weights[WARPS][RING];
    // Sums of the group at work, four values a thread at a time.
    float4 total[8][THREADS];
    // Rows that have come, rows that nobody reads any more, weights that have come.
    u64 full[RING], empty[RING], loaded[WARPS][RING];
    Bringer rows, own[WARPS];
};

template <int KIND, int LOG>
__device__ __forceinline__ void bring_rows(const Project &p, Shared<KIND, LOG> &s) {
    Bringer &b = s.rows;
    const u32 BYTES = 4 * sizeof(Panel);
    if (b.left == 0) {
        Piece piece = piece_of(p, b.at);
        if (piece.rows < 0) return;
        b.from = (const u8 *)p.x.q + (u64)piece.rows * p.x.slices * BYTES;
        b.left = p.x.slices, b.at += gridDim.x;
    }
    u32 place = b.count % RING, full = shared_at(&s.full[place]);
    await(shared_at(&s.empty[place]), (b.count / RING & 1) ^ 1);
    expect(full, BYTES);
    bring(s.panels[place], b.from, BYTES, full);
    b.from += BYTES, b.left--, b.count++;
}

template <int KIND, int LOG>
__device__ __forceinline__ void bring_weights(const Project &p, Shared<KIND, LOG> &s, int warp) {
    typedef Slice<KIND, LOG> S;
    Bringer &b = s.own[warp];
    const u32 CODES = sizeof(S::codes), SCALES = sizeof(S::scales);
    if (b.left == 0) {
        Piece piece = piece_of(p, b.at);
        if (piece.rows < 0) return;
        const Matrix &m = p.matrices[piece.matrix];
        u64 tile = (u64)min(piece.ntile + warp, (m.n + 15) / 16 - 1) * p.x.slices;
        b.from = (const u8 *)m.codes + tile * CODES;
        b.scales = (const u8 *)m.scales + tile * SCALES;
        b.left = p.x.slices, b.at += gridDim.x;
    }
    u32 place = b.count % RING, loaded = shared_at(&s.loaded[warp][place]);
    S &to = s.weights[warp][place];
    expect(loaded, CODES + SCALES);
    bring(to.codes, b.from, CODES, loaded);
    bring(to.scales, b.scales, SCALES, loaded);
    b.from += CODES, b.scales += SCALES, b.left--, b.count++;
}

// Where a product finds planes of 128 columns and 32 values: eight columns of 16 values are 128
// bytes together, the next values 128 bytes on, the next columns 512.
__device__ __forceinline__ u64 columns_at(u32 at) {
    return (u64)(at >> 4 & 0x3fff) | (u64)(128 >> 4) << 16 | (u64)(512 >> 4) << 32;
}

// c = a b, or c += a b: 64 outputs, 64 columns, 32 values.
template <bool ADD> __device__ __forceinline__ void multiply(int c[32], const u32 *a, u64 b) {
    asm volatile("{.reg .pred p; setp.ne.b32 p, %37, 0; "
                 "wgmma.mma_async.sync.aligned.m64n64k32.s32.s8.s8 {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31},"
                 " {%32,%33,%34,%35}, %36, p;}"
                 : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3]),
                   "+r"(c[4]), "+r"(c[5]), "+r"(c[6]), "+r"(c[7]),
                   "+r"(c[8]), "+r"(c[9]), "+r"(c[10]), "+r"(c[11]),
                   "+r"(c[12]), "+r"(c[13]), "+r"(c[14]), "+r"(c[15]),
                   "+r"(c[16]), "+r"(c[17]), "+r"(c[18]), "+r"(c[19]),
                   "+r"(c[20]), "+r"(c[21]), "+r"(c[22]), "+r"(c[23]),
                   "+r"(c[24]), "+r"(c[25]), "+r"(c[26]), "+r"(c[27]),
                   "+r"(c[28]), "+r"(c[29]), "+r"(c[30]), "+r"(c[31])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(ADD ? 1 : 0));
}

// The integers are there, and no use of them moves before this.
__device__ __forceinline__ void settled(int c[32]) {
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
    for (int i = 0; i < 32; i++) asm volatile("" : "+r"(c[i])::"memory");
}

// Adds a group that has ended to those that wait for it, as the tree has it; what is left in
// `total` after the last one is the sum.
__device__ __forceinline__ void join_groups(float total[32], float parked[3][32], int &group,
                                            int slice, const KGroups &groups) {
    for (; group < 8 && groups.starts[group + 1] <= slice + 1; group++) {
        int level = __ffs(~group) - 1;
        for (int under = 0; under < level; under++) {
#pragma unroll
            for (int i = 0; i < 32; i++) total[i] = __fadd_rn(parked[under][i], total[i]);
        }
        if (group == 7) break;
#pragma unroll
        for (int i = 0; i < 32; i++) parked[level][i] = total[i], total[i] = 0.0f;
    }
}

// Scale and offset of outputs g and g + 8 in one block of a tile.
template <int KIND, int LOG>
__device__ __forceinline__ void affine_in(const Slice<KIND, LOG> &from, uint2 unit, int kt,
                                          int half, int g, float2 &low, float2 &high) {
    if (KIND == KIND_K) {
        uint2 two = from.scales[kt * 8 + g];
        u32 factors = half ? two.y : two.x;
        low = affine_of_unit(factors & 0xffffu, unit.x);
        high = affine_of_unit(factors >> 16, unit.y);
    } else {
        uint2 pair = from.scales[(kt * (64 >> LOG) + half) * 8 + g];
        low = affine_of(pair.x, KIND), high = affine_of(pair.y, KIND);
    }
}

// Adds a slice to its group: 32 values a thread, rows t, t + 4, ...
__device__ __forceinline__ void fold_slice(float4 *total, const float acc[32], const float *d) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float4 four = *(const float4 *)(d + 4 * i), x = total[2 * i * THREADS];
        x.x = __fmaf_rn(acc[8 * i], four.x, x.x), x.y = __fmaf_rn(acc[8 * i + 1], four.x, x.y);
        x.z = __fmaf_rn(acc[8 * i + 2], four.y, x.z), x.w = __fmaf_rn(acc[8 * i + 3], four.y, x.w);
        total[2 * i * THREADS] = x;
        x = total[(2 * i + 1) * THREADS];
        x.x = __fmaf_rn(acc[8 * i + 4], four.z, x.x), x.y = __fmaf_rn(acc[8 * i + 5], four.z, x.y);
        x.z = __fmaf_rn(acc[8 * i + 6], four.w, x.z), x.w = __fmaf_rn(acc[8 * i + 7], four.w, x.w);
        total[(2 * i + 1) * THREADS] = x;
    }
}

// What a product takes of the weights of a unit: 64 values, or a block of 32.
template <int KIND, int LOG>
__device__ __forceinline__ void operands_in(u32 *a, const Slice<KIND, LOG> &weights, int unit) {
    int lane = threadIdx.x % 32;
    if (LOG == 6) {
        uint4 words = weights.codes[unit][lane];
        nibbles(a, words.x, words.y);
        nibbles(a + 4, words.z, words.w);
    } else {
        uint2 words = ((const uint2 *)&weights.codes[unit / 2][lane])[unit % 2];
        nibbles(a, words.x, words.y);
    }
}

// Begins the products of a unit with half of the columns, whose panel is at `q`.
template <int LOG>
__device__ __forceinline__ void begin(int c[32], const u32 *a, u32 q, int unit) {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    if (LOG == 6) {
        multiply<false>(c, a, columns_at(q));
        multiply<true>(c, a + 4, columns_at(q + 256));
    } else {
        multiply<false>(c, a, columns_at(q + unit % 2 * 256));
    }
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// A slice of 64 outputs, unit by unit, each in two halves of the columns: as soon as the integers of
// one are joined, the products of the next begin, and run while those are folded.
template <int KIND, int LOG>
__device__ __forceinline__ void multiply_slice(const Project &p, Shared<KIND, LOG> &s,
                                               const Slice<KIND, LOG> &weights, const Panel *panels,
                                               uint2 scale, bool brings, int c[32],
                                               float acc[32]) {
    // Units of a slice, and bytes of the planes of half of the columns.
    const int UNITS = LOG == 6 ? 4 : 8, HALF = 4096;
    int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    u32 q = shared_at(panels);
    u32 a[8];
    operands_in<KIND, LOG>(a, weights, 0);
    begin<LOG>(c, a, q, 0);
#pragma unroll
    for (int unit = 0; unit < UNITS; unit++) {
        const int kt = LOG == 6 ? unit : unit / 2, half = LOG == 6 ? 0 : unit % 2;
        const int next = unit + 1, next_kt = LOG == 6 ? next : next / 2;
        const float *sums = LOG == 6 ? panels[kt].sums_64[0][t] : panels[kt].sums_32[half][t];
        float2 low, high;
        affine_in<KIND, LOG>(weights, scale, kt, half, g, low, high);
        if (unit == UNITS / 2 && brings) bring_rows(p, s);
#pragma unroll
        for (int side = 0; side < 2; side++) {
            int dots[16];
            settled(c);
#pragma unroll
            for (int i = 0; i < 16; i++) dots[i] = c[2 * i] * 256 + c[2 * i + 1];
            if (side == 0) {
                begin<LOG>(c, a, q + kt * sizeof(Panel) + HALF, unit);
            } else if (next < UNITS) {
                operands_in<KIND, LOG>(a, weights, next);
                begin<LOG>(c, a, q + next_kt * sizeof(Panel), next);
            }
#pragma unroll
            for (int i = 0; i < 2; i++) {
                // Two at a time: what lanes read alike is then read once.
                float sum[4];
                u32 from = shared_at(sums + 8 * side + 4 * i);
                asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
                             : "=f"(sum[0]), "=f"(sum[1])
                             : "r"(from));
                asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
                             : "=f"(sum[2]), "=f"(sum[3])
                             : "r"(from + 8));
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    float *to = acc + 16 * side + 8 * i + 2 * j;
                    const int *dot = dots + 8 * i + 2 * j;
                    to[0] = __fmaf_rn(sum[j], low.y, __fmaf_rn((float)dot[0], low.x, to[0]));
                    to[1] = __fmaf_rn(sum[j], high.y, __fmaf_rn((float)dot[1], high.x, to[1]));
                }
            }
        }
    }
}

// A warpgroup's 64 outputs of a piece; `turn` counts slices over all pieces.
template <int KIND, int LOG>
__device__ __forceinline__ void multiply_piece(const Project &p, int at, Shared<KIND, LOG> &s,
                                               u32 &turn) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    int slices = p.x.slices;
    const uint2 *units = nullptr;
    if (KIND == KIND_K) {
        Piece piece = piece_of(p, at);
        const Matrix &m = p.matrices[piece.matrix];
        u64 tile = min(piece.ntile + warp, (m.n + 15) / 16 - 1);
        units = (const uint2 *)m.units + tile * slices * 8 + g;
    }
    float4 *total = &s.total[0][threadIdx.x];
#pragma unroll
    for (int i = 0; i < 8; i++) total[i * THREADS] = make_float4(0, 0, 0, 0);
    // One group, two and four, until their others are there.
    float parked[3][32];
    float acc[32];
    int c[32];
#pragma unroll
    for (int i = 0; i < 32; i++) c[i] = 0;
    int group = 0;
    for (int slice = 0; slice < slices; slice++, turn++) {
        u32 place = turn % RING, phase = turn / RING & 1;
        uint2 unit = make_uint2(0, 0);
        if (KIND == KIND_K) unit = units[slice * 8];
#pragma unroll
        for (int i = 0; i < 32; i++) acc[i] = 0.0f;
        await(shared_at(&s.loaded[warp][place]), phase);
        await(shared_at(&s.full[place]), phase);
        bool brings = threadIdx.x == 0 && turn > 0;
        multiply_slice(p, s, s.weights[warp][place], s.panels[place], unit, brings, c, acc);
        fold_slice(total, acc, s.panels[place][0].d[t]);
        __syncwarp();
        if (lane == 0) {
            asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(
                             shared_at(&s.empty[place]))
                         : "memory");
            bring_weights(p, s, warp);
        }
        __syncwarp();
        // Groups that end, empty ones too.
        if (p.matrices[0].groups.starts[group + 1] > slice + 1) continue;
#pragma unroll
        for (int i = 0; i < 8; i++) *(float4 *)(acc + 4 * i) = total[i * THREADS];
        join_groups(acc, parked, group, slice, p.matrices[0].groups);
#pragma unroll
        for (int i = 0; i < 8; i++) total[i * THREADS] = *(const float4 *)(acc + 4 * i);
    }
    // Not kept since the beginning: registers are short in between.
    asm volatile("" : "+r"(at));
    Piece piece = piece_of(p, at);
    const Matrix &m = p.matrices[piece.matrix];
    int n = (piece.ntile + warp) * 16 + g;
#pragma unroll
    for (int j = 0; j < ROW_TILES; j++) {
        int row = piece.rows * BLOCK_ROWS + j * TILE_ROWS + t;
        if (row >= p.rows) continue;
        bool bad = p.x.spoilt[row];
        float *out = m.out + (u64)row * m.n + n;
        if (n < m.n) out[0] = bad ? SPOILT : ended(m.groups, acc[2 * j]);
        if (n + 8 < m.n) out[8] = bad ? SPOILT : ended(m.groups, acc[2 * j + 1]);
    }
}

template <int KIND, int LOG> __device__ __forceinline__ void wide_all(const Project &p) {
    extern __shared__ __align__(128) u8 memory[];
    Shared<KIND, LOG> &s = *(Shared<KIND, LOG> *)memory;
    auto barrier = [](u64 *at, int count) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_at(at)), "r"(count));
    };
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (lane == 0) {
        for (int i = 0; i < RING; i++) {
            barrier(&s.loaded[warp][i], 1);
            if (warp > 0) continue;
            barrier(&s.full[i], 1);
            barrier(&s.empty[i], WARPS);
        }
        s.own[warp] = {nullptr, nullptr, (int)blockIdx.x, 0, 0};
        if (warp == 0) s.rows = s.own[0];
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (lane == 0) {
        for (int i = 0; i < RING; i++) {
            if (warp == 0) bring_rows(p, s);
            bring_weights(p, s, warp);
        }
    }
    u32 turn = 0;
    for (int at = blockIdx.x;; at += gridDim.x) {
        if (piece_of(p, at).rows < 0) break;
        multiply_piece(p, at, s, turn);
    }
}
#else
// Other architectures never launch these.
template <int KIND, int LOG> __device__ __forceinline__ void wide_all(const Project &) {}
#endif

#define WIDE(name, kind, log)                                                                      \
    extern "C" __global__ void __launch_bounds__(THREADS, 1) name(const Project p) {               \
        BEGIN;                                                                                     \
        wide_all<kind, log>(p);                                                                    \
    }

WIDE(wide_nibbles_bf16_64, KIND_BF16, 6)
WIDE(wide_nibbles_f16_32, KIND_F16, 5)
WIDE(wide_nibbles_k_32, KIND_K, 5)
