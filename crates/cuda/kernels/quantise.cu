// A slice of a row as 16-bit integers.

// What the values of a slice are multiplied by, and the slice's scale.
struct Scaled {
    float inv, scale;
    // All integers are 0; a value is spoilt, and so is the scale, and all sums with it.
    bool none, bad;
};

// Of a warp: lane has values 4 lane .. and 128 + 4 lane .. of the slice.
__device__ __forceinline__ Scaled scaled(const float v[2][4]) {
    bool bad = false;
    float amax = 0.0f;
    for (int h = 0; h < 2; h++)
        for (int i = 0; i < 4; i++) {
            bad |= spoilt(v[h][i]);
            amax = fmaxf(amax, fabsf(v[h][i]));
        }
    bad = __any_sync(FULL, bad);
    amax = largest(amax);
    bool none = amax < __int_as_float(0x30800000) || bad;
    float inv = none ? 0.0f : __fdiv_rn(32639.0f, amax);
    float scale = bad ? SPOILT : none ? 0.0f : __fdiv_rn(amax, 32639.0f);
    return {inv, scale, none, bad};
}

// Both bytes of four integers, and their sum.
__device__ __forceinline__ int integers(const float v[4], const Scaled &by, u32 &high, u32 &low) {
    int sum = 0;
    high = low = 0;
    for (int i = 0; i < 4; i++) {
        float y = round_half_even(__fmul_rn(v[i], by.inv));
        int q = by.none ? 0 : (int)fminf(fmaxf(y, -32639.0f), 32639.0f);
        int top = (q + 128) >> 8, rest = q - top * 256;
        high |= (top & 0xff) << (8 * i);
        low |= (rest & 0xff) << (8 * i);
        sum += q;
    }
    return sum;
}

// The sum of so many lanes' sums, a power of two, from half as many each.
__device__ __forceinline__ int joined(int sum, int lanes) {
    return sum + __shfl_xor_sync(FULL, sum, lanes / 2);
}

// Of a warp, as `scaled` has it. Says whether a value is spoilt.
__device__ __forceinline__ bool quantise_slice(const Quantised &to, int row, int slice,
                                               const float v[2][4], bool wide) {
    int lane = threadIdx.x % 32;
    Scaled by = scaled(v);
    float scale = by.scale;
    u64 tile = row / TILE_ROWS, block = row / 64;
    int in_tile = row % TILE_ROWS, in_block = in_tile * 20 + row % 64 / TILE_ROWS;
    if (lane == 0 && !wide) to.d[(tile * to.slices + slice) * TILE_ROWS + in_tile] = scale;
    for (int h = 0; h < 2; h++) {
        u32 high, low;
        int sum = joined(integers(v[h], by, high, low), 2);
        int ktile = slice * 4 + h * 2 + lane / 16, in = lane % 16;
        // Words of a panel: 2048 of planes, sums, twice sums and scales, 80 each.
        u32 *panel = to.q + (block * to.slices * 4 + ktile) * 2368;
        if (wide) {
            u32 *q = panel + row % 64 / TILE_ROWS * 128 + in / 4 * 32 + in_tile * 8 + in % 4;
            q[0] = high;
            q[4] = low;
            if (in == 0) panel[2288 + in_block] = __float_as_uint(scale);
        } else {
            u32 *q = to.q + (tile * to.slices * 4 + ktile) * 128 + in_tile * 32;
            q += in % 4 * 4 + in / 8 * 2 + in % 8 / 4;
            q[0] = high;
            q[16] = low;
        }
        for (int log = 4; log < 8; log++) {
            int lanes = 1 << (log - 2), per = SLICE >> log;
            sum = joined(sum, lanes);
            u64 at = tile * to.slices * per + slice * per + h * (per / 2) + lane / lanes;
            if (lane % lanes != 0) continue;
            if (!wide) sums_of(to, log)[at * TILE_ROWS + in_tile] = (float)sum;
            if (wide && (log == 5 || log == 6))
                panel[(log == 6 ? 2048 : 2128 + in / 8 * 80) + in_block] =
                    __float_as_uint((float)sum);
        }
    }
    return by.bad;
}
