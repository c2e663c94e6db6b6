// Linear layers over many rows on Hopper's warpgroup products: a block has three warpgroups of 64
// outputs each over the same 64 rows, whose two planes are the 128 columns of a product. A fourth
// warpgroup brings slices of rows and weights through a ring, in a few large copies, and leaves its
// registers to them. While one folds its integers into f32, the others multiply. A block goes on
// from one piece of the output to the next, and its ring with it.

#define GROUPS 3
#define TILES (GROUPS * 4)
#define BLOCK_ROWS 64
#define ROW_TILES (BLOCK_ROWS / TILE_ROWS)
// Warps that multiply, a tile of outputs each, and those that bring.
#define WARPS TILES
#define BRINGERS 4
#define THREADS ((WARPS + BRINGERS) * 32)
// Slices of a ring.
#define RING 3
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

template <int KIND, int LOG> struct Shared {
    Panel panels[RING][4];
    Slice<KIND, LOG> weights[RING][WARPS];
    // Slices that have come, slices that nobody reads any more.
    u64 full[RING], empty[RING];
};

// Brings the slices of all pieces, one after the other: a warp the weights of some tiles, a lane
// each, and the last warp rows as well. One warp for all would take too long to ask for them.
template <int KIND, int LOG>
__device__ __forceinline__ void bring_slices(const Project &p, Shared<KIND, LOG> &s) {
    typedef Slice<KIND, LOG> S;
    const u32 CODES = sizeof(S::codes), SCALES = sizeof(S::scales), ROWS = 4 * sizeof(Panel);
    const int OWN = TILES / BRINGERS;
    int lane = threadIdx.x % 32, slices = p.x.slices;
    int tile = (threadIdx.x / 32 - WARPS) * OWN + lane;
    u32 rows = threadIdx.x / 32 == WARPS + BRINGERS - 1 ? ROWS : 0, turn = 0;
    for (int at = blockIdx.x;; at += gridDim.x) {
        Piece piece = piece_of(p, at);
        if (piece.rows < 0) break;
        const Matrix &m = p.matrices[piece.matrix];
        u64 first = (u64)min(piece.ntile + tile, (m.n + 15) / 16 - 1) * slices;
        const u8 *codes = (const u8 *)m.codes + first * CODES;
        const u8 *scales = (const u8 *)m.scales + first * SCALES;
        const u8 *panels = (const u8 *)p.x.q + (u64)piece.rows * slices * ROWS;
        for (int slice = 0; slice < slices; slice++, turn++) {
            u32 place = turn % RING, full = shared_at(&s.full[place]);
            await(shared_at(&s.empty[place]), (turn / RING & 1) ^ 1);
            if (lane == 0) expect(full, OWN * (CODES + SCALES) + rows);
            __syncwarp();
            if (lane < OWN) {
                bring(s.weights[place][tile].codes, codes, CODES, full);
                bring(s.weights[place][tile].scales, scales, SCALES, full);
            } else if (lane == OWN && rows > 0) {
                bring(s.panels[place], panels, ROWS, full);
            }
            codes += CODES, scales += SCALES, panels += ROWS;
        }
    }
}

// Where a product finds planes of 64 columns and 32 values, in sixteens of bytes: eight columns of
// 16 values are 128 bytes together, the next values 128 bytes on, the next columns 512.
__device__ __forceinline__ u32 columns_from(const Panel *panels) {
    return shared_at(panels) >> 4 | 128 >> 4 << 16;
}

__device__ __forceinline__ u64 columns_at(u32 at) {
    u64 columns;
    asm("mov.b64 %0, {%1, %2};" : "=l"(columns) : "r"(at), "n"(512 >> 4));
    return columns;
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

// Adds groups that end with a slice to those that wait for them, as the tree has it, empty ones
// too; what is left in `total` after the last one is the sum. Gives the first that has not ended.
__device__ __forceinline__ int join_groups(float total[32], float parked[3][32], int group,
                                           int slice, const KGroups &groups) {
    for (int first = group; groups.starts[group + 1] <= slice + 1; group++) {
        // Those that end with the first one are empty.
        if (group > first) {
#pragma unroll
            for (int i = 0; i < 32; i++) total[i] = 0.0f;
        }
        int level = __ffs(~group) - 1;
        for (int under = 0; under < level; under++) {
#pragma unroll
            for (int i = 0; i < 32; i++) total[i] = __fadd_rn(parked[under][i], total[i]);
        }
        if (group == 7) break;
#pragma unroll
        for (int i = 0; i < 32; i++) parked[level][i] = total[i];
    }
    return group;
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
__device__ __forceinline__ void fold_slice(float total[32], const float acc[32], const float *d) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float4 four = *(const float4 *)(d + 4 * i);
        float by[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (int j = 8 * i; j < 8 * i + 8; j++)
            total[j] = __fmaf_rn(acc[j], by[j % 8 / 2], total[j]);
    }
}

// As the next group begins, not as one ends: then its sums are on their way to where they wait.
__device__ __forceinline__ void clear(float total[32]) {
#pragma unroll
    for (int i = 0; i < 32; i++) asm volatile("mov.f32 %0, 0f00000000;" : "=f"(total[i]));
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

// Begins the products of a unit with half of the columns.
template <int LOG>
__device__ __forceinline__ void begin(int c[32], const u32 *a, const Panel *panels, int unit,
                                      int side) {
    // In sixteens of bytes: a panel, half of its columns, 32 of its values.
    const u32 PANEL = sizeof(Panel) / 16, HALF = 4096 / 16, BLOCK = 256 / 16;
    u32 at = columns_from(panels) + side * HALF;
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    if (LOG == 6) {
        multiply<false>(c, a, columns_at(at + unit * PANEL));
        multiply<true>(c, a + 4, columns_at(at + unit * PANEL + BLOCK));
    } else {
        multiply<false>(c, a, columns_at(at + unit / 2 * PANEL + unit % 2 * BLOCK));
    }
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void four_at(float to[4], const float *from) {
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(to[0]), "=f"(to[1]), "=f"(to[2]), "=f"(to[3])
                 : "r"(shared_at(from)));
}

// Adds a block to the sums of half of the rows.
__device__ __forceinline__ void fold_block(float acc[16], const int dots[16], const float sums[8],
                                           float2 low, float2 high) {
#pragma unroll
    for (int i = 0; i < 8; i++) {
        float *to = acc + 2 * i;
        const int *dot = dots + 2 * i;
        to[0] = __fmaf_rn(sums[i], low.y, __fmaf_rn((float)dot[0], low.x, to[0]));
        to[1] = __fmaf_rn(sums[i], high.y, __fmaf_rn((float)dot[1], high.x, to[1]));
    }
}

// The first products of a slice of 64 outputs, as soon as it has come.
template <int KIND, int LOG>
__device__ __forceinline__ void begin_slice(Shared<KIND, LOG> &s, u32 turn, int c[32], u32 a[8]) {
    int warp = threadIdx.x / 32;
    u32 place = turn % RING;
    await(shared_at(&s.full[place]), turn / RING & 1);
    operands_in<KIND, LOG>(a, s.weights[place][warp], 0);
    begin<LOG>(c, a, s.panels[place], 0, 0);
}

// A slice of 64 outputs, unit by unit, each in two halves of the columns: as soon as the integers
// of one are joined, the products of the next begin, and run while those are folded. The first ones
// have begun; if another slice follows, its own have as this ends.
template <int KIND, int LOG>
__device__ __forceinline__ void multiply_slice(Shared<KIND, LOG> &s, u32 turn, bool follows,
                                               uint2 scale, int c[32], u32 a[8], float acc[32]) {
    const int UNITS = LOG == 6 ? 4 : 8;
    int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const Panel *panels = s.panels[turn % RING];
    const Slice<KIND, LOG> &weights = s.weights[turn % RING][threadIdx.x / 32];
#pragma unroll
    for (int unit = 0; unit < UNITS; unit++) {
        const int kt = LOG == 6 ? unit : unit / 2, half = LOG == 6 ? 0 : unit % 2;
        const float *from = LOG == 6 ? panels[kt].sums_64[0][t] : panels[kt].sums_32[half][t];
        float2 low, high;
        affine_in<KIND, LOG>(weights, scale, kt, half, g, low, high);
        // Over groups of 64 before products are awaited, so that nothing else holds back what is
        // folded then; blocks of 32 are folded sooner where that is left to the assembler.
        float sums[ROW_TILES];
#pragma unroll
        for (int i = 0; i < ROW_TILES && LOG == 6; i += 4) four_at(sums + i, from + i);
#pragma unroll
        for (int side = 0; side < 2; side++) {
            int dots[16];
            settled(c);
#pragma unroll
            for (int i = 0; i < 16; i++) dots[i] = c[2 * i] * 256 + c[2 * i + 1];
            if (side == 0) {
                begin<LOG>(c, a, panels, unit, 1);
            } else if (unit + 1 < UNITS) {
                operands_in<KIND, LOG>(a, weights, unit + 1);
                begin<LOG>(c, a, panels, unit + 1, 0);
            } else if (follows) {
                begin_slice(s, turn + 1, c, a);
            }
            float *own = sums + 8 * side;
#pragma unroll
            for (int i = 0; i < 8 && LOG == 5; i += 4) four_at(own + i, from + 8 * side + i);
            fold_block(acc + 16 * side, dots, own, low, high);
        }
    }
}

// What a warp has of a piece goes where its outputs are.
__device__ __forceinline__ void give(const Project &p, Piece piece, const float total[32]) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const Matrix &m = p.matrices[piece.matrix];
    int n = (piece.ntile + warp) * 16 + lane / 4, row = piece.rows * BLOCK_ROWS + lane % 4;
    u32 bad = 0;
#pragma unroll
    for (int j = 0; j < ROW_TILES; j++)
        bad |= (u32)(p.x.spoilt[min(row + j * TILE_ROWS, p.rows - 1)] != 0) << j;
#pragma unroll
    for (int j = 0; j < ROW_TILES; j++) {
        if (row + j * TILE_ROWS >= p.rows) break;
        float *out = m.out + (u64)(row + j * TILE_ROWS) * m.n + n;
        bool spoilt = bad >> j & 1;
        if (n < m.n) out[0] = spoilt ? SPOILT : ended(m.groups, total[2 * j]);
        if (n + 8 < m.n) out[8] = spoilt ? SPOILT : ended(m.groups, total[2 * j + 1]);
    }
}

// A warpgroup's 64 outputs of a piece; `turn` counts slices over all pieces.
template <int KIND, int LOG>
__device__ __forceinline__ void multiply_piece(const Project &p, int at, Shared<KIND, LOG> &s,
                                               u32 &turn) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    int slices = p.x.slices;
    const uint2 *units = nullptr;
    uint2 unit = make_uint2(0, 0);
    if (KIND == KIND_K) {
        Piece piece = piece_of(p, at);
        const Matrix &m = p.matrices[piece.matrix];
        u64 tile = min(piece.ntile + warp, (m.n + 15) / 16 - 1);
        units = (const uint2 *)m.units + tile * slices * 8 + g;
        unit = units[0];
    }
    // One group, two and four, until their others are there.
    float parked[3][32];
    float acc[32], total[32];
    int c[32];
    u32 a[8];
#pragma unroll
    for (int i = 0; i < 32; i++) c[i] = 0;
    begin_slice(s, turn, c, a);
    // The group at work and where it ends.
    int group = 0, end = p.matrices[0].groups.starts[1];
    bool begins = true;
    for (int slice = 0; slice < slices; slice++, turn++) {
        u32 place = turn % RING;
        uint2 next = make_uint2(0, 0);
        if (KIND == KIND_K && slice + 1 < slices) next = units[slice * 8 + 8];
#pragma unroll
        for (int i = 0; i < 32; i++) acc[i] = 0.0f;
        multiply_slice(s, turn, slice + 1 < slices, unit, c, a, acc);
        unit = next;
        if (begins) clear(total);
        fold_slice(total, acc, s.panels[place][0].d[t]);
        __syncwarp();
        if (lane == 0)
            asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(
                             shared_at(&s.empty[place]))
                         : "memory");
        begins = slice + 1 >= end;
        if (begins) {
            group = join_groups(total, parked, group, slice, p.matrices[0].groups);
            end = p.matrices[0].groups.starts[group + 1];
        }
    }
    // Not kept since the beginning: registers are short in between.
    asm volatile("" : "+r"(at));
    give(p, piece_of(p, at), total);
}

template <int KIND, int LOG> __device__ __forceinline__ void wide_all(const Project &p) {
    extern __shared__ __align__(128) u8 memory[];
    Shared<KIND, LOG> &s = *(Shared<KIND, LOG> *)memory;
    auto barrier = [](u64 *at, int count) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_at(at)), "r"(count));
    };
    if (threadIdx.x == 0) {
        for (int i = 0; i < RING; i++) {
            barrier(&s.full[i], BRINGERS);
            barrier(&s.empty[i], WARPS);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    // Of the 128 registers that each thread begins with.
    if (threadIdx.x >= WARPS * 32) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 32;");
        bring_slices(p, s);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 160;");
        u32 turn = 0;
        for (int at = blockIdx.x;; at += gridDim.x) {
            if (piece_of(p, at).rows < 0) break;
            multiply_piece(p, at, s, turn);
        }
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
