// Linear layers over one row, for hot forms: each of the four pairs of columns of a product has the
// row's planes for one block of every four, so a lane ends up with the dots of its own block alone.

#define WARPS 8

// Slices that a warp has on their way.
#define RING 3

// What a lane needs of a slice besides the weights.
template <int SETS> struct Side {
    uint2 q[2];
    float sums[SETS * 4];
    float d;
};

template <int KIND, int LOG>
__device__ __forceinline__ void one_row(const Project &p, const Matrix &m, int ntile,
                                        float *parts) {
    extern __shared__ __align__(16) u8 memory[];
    // Sets of four blocks in a slice.
    const int SETS = 64 >> LOG, SCALES = sizeof(Slice<KIND, LOG>().scales) / 16;
    int group = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    int slices = m.slices, first = group_start(group, slices), end = group_start(group + 1, slices);
    Slice<KIND, LOG> *ring = (Slice<KIND, LOG> *)memory + group * RING;
    u64 slice = (u64)ntile * slices + first;
    const uint4 *codes = (const uint4 *)m.codes + slice * 128 + lane;
    const uint4 *scales = (const uint4 *)m.scales + slice * SCALES + lane;
    const uint2 *units = (const uint2 *)m.units + slice * 8 + g;
    auto fetch = [&](int s, int place) {
        if (s < end) {
            Slice<KIND, LOG> &to = ring[place];
#pragma unroll
            for (int i = 0; i < 4; i++) bring_16(&to.codes[i][lane], codes + i * 32);
#pragma unroll
            for (int i = lane; i < SCALES; i += 32)
                bring_16((uint4 *)to.scales + i, scales + i - lane);
            codes += 128, scales += SCALES;
        }
        asm volatile("cp.async.commit_group;");
    };
    // Weights depend on nothing that still runs.
    for (int i = 0; i < RING; i++) fetch(first + i, i);
    WAIT;
    // Column g has plane g % 2 of the block g / 2 of each set; row 0's lanes are the first eight.
    const uint2 *q = (const uint2 *)p.x.q + (u64)first * 256 + (g % 2 * 4 + t) * 2;
    const float *sums = sums_of(p.x, LOG) + (u64)first * (SETS * 4) * TILE_ROWS;
    const float *d = p.x.d + first * TILE_ROWS;
    Side<SETS> side;
    auto aside = [&]() {
        if (LOG == 6) {
            side.q[0] = q[g / 2 * 64], side.q[1] = q[g / 2 * 64 + 1];
        } else {
            for (int set = 0; set < 2; set++) {
                int block = set * 4 + g / 2;
                side.q[set] = q[block / 2 * 64 + block % 2];
            }
        }
        for (int i = 0; i < SETS * 4; i++) side.sums[i] = sums[i * TILE_ROWS];
        side.d = *d;
        q += 256, sums += SETS * 4 * TILE_ROWS, d += TILE_ROWS;
    };
    if (first < end) aside();
    float total[2] = {0.0f, 0.0f};
    for (int s = first, place = 0; s < end; s++) {
        asm volatile("cp.async.wait_group %0;" ::"n"(RING - 1));
        __syncwarp();
        const Slice<KIND, LOG> &from = ring[place];
        Side<SETS> own = side;
        if (s + 1 < end) aside();
        uint2 unit;
        if (KIND == KIND_K) unit = *units, units += 8;
        float dot[SETS][2];
#pragma unroll
        for (int set = 0; set < SETS; set++) {
            // Columns of other blocks come out too, and are left.
            int c[4][4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                u32 a[4];
                uint4 w = from.codes[LOG == 6 ? i : set * 2 + i / 2][lane];
                if (LOG == 6) {
                    nibbles(a, w.x, w.y);
                    product_first(c[i], a, own.q[0].x, own.q[0].y);
                    nibbles(a, w.z, w.w);
                    product_32(c[i], a, own.q[1].x, own.q[1].y);
                } else {
                    nibbles(a, i % 2 ? w.z : w.x, i % 2 ? w.w : w.y);
                    product_first(c[i], a, own.q[set].x, own.q[set].y);
                }
            }
#pragma unroll
            for (int h = 0; h < 2; h++) {
                int both[2];
#pragma unroll
                for (int plane = 0; plane < 2; plane++) {
                    int at = 2 * h + plane;
                    both[plane] = t & 2 ? t & 1 ? c[3][at] : c[2][at] : t & 1 ? c[1][at] : c[0][at];
                }
                dot[set][h] = (float)(both[0] * 256 + both[1]);
            }
        }
        // Every lane of four takes all dots of its outputs, then the blocks in order.
        float acc[2] = {0.0f, 0.0f};
#pragma unroll
        for (int set = 0; set < SETS; set++) {
            float both[4][2];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                both[i][0] = __shfl_sync(FULL, dot[set][0], i, 4);
                both[i][1] = __shfl_sync(FULL, dot[set][1], i, 4);
            }
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float2 low, high;
                int block = set * 4 + i;
                if (KIND == KIND_K) {
                    // Two blocks of a tile of 64 share eight bytes.
                    uint2 two = from.scales[block / 2 * 8 + g];
                    u32 factors = block % 2 ? two.y : two.x;
                    low = affine_of_unit(factors & 0xffffu, unit.x);
                    high = affine_of_unit(factors >> 16, unit.y);
                } else {
                    uint2 pair = from.scales[block * 8 + g];
                    low = affine_of(pair.x, KIND), high = affine_of(pair.y, KIND);
                }
                float sum = own.sums[block];
                acc[0] = __fmaf_rn(sum, low.y, __fmaf_rn(both[i][0], low.x, acc[0]));
                acc[1] = __fmaf_rn(sum, high.y, __fmaf_rn(both[i][1], high.x, acc[1]));
            }
        }
        total[0] = __fmaf_rn(acc[0], own.d, total[0]);
        total[1] = __fmaf_rn(acc[1], own.d, total[1]);
        __syncwarp();
        fetch(s + RING, place);
        place = place == RING - 1 ? 0 : place + 1;
    }
    if (t == 0) parts[group * 16 + g] = total[0], parts[group * 16 + g + 8] = total[1];
    __syncthreads();
    int n = ntile * 16 + threadIdx.x;
    if (threadIdx.x >= 16 || n >= m.n) return;
    float y = tree(parts + threadIdx.x, 16);
    m.out[n] = y != y ? SPOILT : y;
}

template <int KIND, int LOG> __device__ __forceinline__ void one_all(const Project &p) {
    __shared__ float parts[WARPS * 16];
    int tile = blockIdx.x, i = 0;
    while (i + 1 < p.count && tile >= p.matrices[i + 1].tile) i++;
    one_row<KIND, LOG>(p, p.matrices[i], tile - p.matrices[i].tile, parts);
}

#define ONE(name, kind, log)                                                                       \
    extern "C" __global__ void __launch_bounds__(WARPS * 32) name(const Project p) {               \
        COME;                                                                                      \
        one_all<kind, log>(p);                                                                     \
    }

ONE(one_nibbles_bf16_64, KIND_BF16, 6)
ONE(one_nibbles_f16_32, KIND_F16, 5)
ONE(one_nibbles_k_32, KIND_K, 5)
