// What the C of every kernel begins with: PTX's operations, exactly.

#include <math.h>
#include <stdint.h>
#include <string.h>

typedef struct Thread Thread;

// Calls back, as run/calls.rs has them. Those that wait let other threads run meanwhile.
typedef struct {
    void (*fault)(Thread *, uint32_t line, uint32_t what, uint64_t address);
    uint32_t (*shuffle)(Thread *, uint32_t line, uint32_t how, uint32_t value, uint32_t by,
                        uint32_t within, uint32_t mask);
    uint32_t (*vote)(Thread *, uint32_t line, uint32_t how, uint32_t value, uint32_t mask);
    void (*warp)(Thread *, uint32_t line, uint32_t mask);
    void (*product)(Thread *, uint32_t line, uint32_t depth);
    void (*barrier)(Thread *, uint32_t line, uint32_t id, uint32_t count);
    uint32_t (*barrier_reduce)(Thread *, uint32_t line, uint32_t how, uint32_t id, uint32_t count,
                               uint32_t value);
    void (*arrive)(Thread *, uint32_t line, uint32_t id, uint32_t count);
    void (*copy)(Thread *, uint32_t line, uint32_t to, uint64_t from, uint32_t bytes,
                 uint32_t given);
    void (*commit)(Thread *);
    void (*wait_copies)(Thread *, uint32_t left);
    void (*look)(Thread *, uint32_t line);
    void (*phase_begin)(Thread *, uint32_t line, uint32_t at, uint32_t count);
    void (*phase_arrive)(Thread *, uint32_t line, uint32_t at, uint32_t bytes);
    uint32_t (*phase_wait)(Thread *, uint32_t line, uint32_t at, uint32_t parity);
    void (*bulk)(Thread *, uint32_t line, uint32_t to, uint64_t from, uint32_t bytes, uint32_t at);
    void (*wide)(Thread *, uint32_t line, uint32_t *sums, const uint32_t *left, uint64_t right,
                 uint32_t adds);
} Calls;

// A thread, as run/thread.rs has it.
struct Thread {
    const Calls *calls;
    const uint8_t *params;
    uint8_t *shared;
    uint32_t shared_bytes;
    // Where memory was last reached for.
    uint32_t line;
    uint32_t tid[3], ntid[3], ctaid[3], nctaid[3];
    // What a product is given and gives; of a shuffle or vote, whether a lane was there.
    uint32_t in[10], out[4];
};

#define IN static inline __attribute__((always_inline))

enum { FAULT_SHARED = 1, FAULT_ALIGNMENT, FAULT_TRAP };

IN uint32_t bits(float x) { uint32_t y; memcpy(&y, &x, 4); return y; }
IN float of_bits(uint32_t x) { float y; memcpy(&y, &x, 4); return y; }
// NaN is one.
IN float one_nan(float x) { return __builtin_expect(x == x, 1) ? x : of_bits(0x7fffffff); }
IN float flushed(float x) {
    return bits(x) & 0x7f800000 ? x : of_bits(bits(x) & 0x80000000);
}

IN float fma_f32(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
// What the nearest sum lacks says whether it is too far from zero.
IN float add_to_zero(float a, float b) {
    float sum = a + b, of_b = sum - a, lacks = (a - (sum - of_b)) + (b - of_b);
    if (a - a != 0 || b - b != 0) return sum;
    int is_far = sum - sum != 0 || (sum > 0 ? lacks < 0 : lacks > 0);
    return sum != 0 && is_far ? of_bits(bits(sum) - 1) : sum;
}
// Rounded as if exponents had no end, then flushed: what becomes the least normal number only for
// want of bits below it is less, as the same times 2^64 shows.
IN float fma_flushed(float a, float b, float c) {
    float x = __builtin_fmaf(a, b, c), up = 0x1p64f;
    if (__builtin_expect((bits(x) & 0x7fffffff) != 0x00800000, 1)) return flushed(x);
    if (bits(a) << 1 < bits(b) << 1) a *= up;
    else b *= up;
    float y = __builtin_fmaf(a, b, c * up);
    return __builtin_fabsf(y) < 0x1p-62f ? of_bits(bits(x) & 0x80000000) : x;
}
IN float max_f32(float a, float b) {
    if (a != a) return one_nan(b);
    if (b != b) return a;
    if (a == b) return of_bits(bits(a) & bits(b));
    return a > b ? a : b;
}
IN float min_f32(float a, float b) {
    if (a != a) return one_nan(b);
    if (b != b) return a;
    if (a == b) return of_bits(bits(a) | bits(b));
    return a < b ? a : b;
}

// A whole number as an integer: held within its range, 0 of NaN.
IN int32_t s32_of(float x) {
    if (x != x) return 0;
    if (x >= 2147483648.0f) return INT32_MAX;
    if (x < -2147483648.0f) return INT32_MIN;
    return (int32_t)x;
}
IN uint32_t u32_of(float x) {
    if (!(x > 0.0f)) return 0;
    return x >= 4294967296.0f ? UINT32_MAX : (uint32_t)x;
}
IN float nearest(float x) { return __builtin_nearbyintf(x); }
IN float to_zero(float x) { return __builtin_truncf(x); }
IN float down(float x) { return __builtin_floorf(x); }
IN float up(float x) { return __builtin_ceilf(x); }

IN float of_half(uint16_t half) {
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, exponent = half >> 10 & 31, rest = half & 1023;
    if (exponent == 31) return rest ? of_bits(0x7fffffff) : of_bits(sign | 0x7f800000);
    if (exponent) return of_bits(sign | (exponent + 112) << 23 | rest << 13);
    float small = (float)rest * 0x1p-24f;
    return of_bits(sign | bits(small));
}
IN uint16_t half_of(float x) {
    uint32_t all = bits(x), sign = all >> 16 & 0x8000, size = all & 0x7fffffff;
    if (size > 0x7f800000) return 0x7fff;
    if (size >= 0x477ff000) return sign | 0x7c00;
    if (size < 0x38800000) return sign | (uint16_t)bits(of_bits(size) + 0.5f);
    size += 0xc8000fff + (size >> 13 & 1);
    return sign | size >> 13;
}

IN uint32_t s32_by(int32_t a, int32_t b) {
    if (b == 0) return UINT32_MAX;
    return b == -1 ? 0 - (uint32_t)a : (uint32_t)(a / b);
}
IN uint32_t s32_rest(int32_t a, int32_t b) {
    if (b == 0) return (uint32_t)a;
    return b == -1 ? 0 : (uint32_t)(a % b);
}
IN uint64_t s64_by(int64_t a, int64_t b) {
    if (b == 0) return UINT64_MAX;
    return b == -1 ? 0 - (uint64_t)a : (uint64_t)(a / b);
}
IN uint64_t s64_rest(int64_t a, int64_t b) {
    if (b == 0) return (uint64_t)a;
    return b == -1 ? 0 : (uint64_t)(a % b);
}
IN uint32_t u32_by(uint32_t a, uint32_t b) { return b ? a / b : UINT32_MAX; }
IN uint32_t u32_rest(uint32_t a, uint32_t b) { return b ? a % b : a; }
IN uint64_t u64_by(uint64_t a, uint64_t b) { return b ? a / b : UINT64_MAX; }
IN uint64_t u64_rest(uint64_t a, uint64_t b) { return b ? a % b : a; }

// Shifts by more than there are bits.
#define SHIFTS(BITS)                                                                               \
    IN uint##BITS##_t shl_##BITS(uint##BITS##_t a, uint32_t by) {                                  \
        return by < BITS ? (uint##BITS##_t)(a << by) : 0;                                          \
    }                                                                                              \
    IN uint##BITS##_t shr_u##BITS(uint##BITS##_t a, uint32_t by) { return by < BITS ? a >> by : 0; } \
    IN uint##BITS##_t shr_s##BITS(int##BITS##_t a, uint32_t by) {                                  \
        return (uint##BITS##_t)(a >> (by < BITS ? by : BITS - 1));                                 \
    }
SHIFTS(16)
SHIFTS(32)
SHIFTS(64)

IN uint64_t bfi(uint64_t a, uint64_t b, uint32_t at, uint32_t length, uint32_t width) {
    at &= 255, length &= 255;
    if (length == 0 || at >= width) return b;
    uint64_t ones = length >= 64 ? ~0ull : (1ull << length) - 1;
    return (b & ~(ones << at)) | (a & ones) << at;
}
IN uint64_t bfe_u(uint64_t a, uint32_t at, uint32_t length, uint32_t width) {
    at &= 255, length &= 255;
    if (at >= width || length == 0) return 0;
    return length >= 64 ? a >> at : a >> at & ((1ull << length) - 1);
}
IN uint32_t bfe_s32(int32_t a, uint32_t at, uint32_t length) {
    at &= 255, length &= 255;
    if (length == 0) return 0;
    if (at > 31) return a < 0 ? UINT32_MAX : 0;
    if (at + length >= 32) return (uint32_t)(a >> at);
    return (uint32_t)((int32_t)((uint32_t)a << (32 - at - length)) >> (32 - length));
}
IN uint32_t reversed(uint32_t a) {
    a = (a >> 1 & 0x55555555) | (a & 0x55555555) << 1;
    a = (a >> 2 & 0x33333333) | (a & 0x33333333) << 2;
    a = (a >> 4 & 0x0f0f0f0f) | (a & 0x0f0f0f0f) << 4;
    return __builtin_bswap32(a);
}
IN uint32_t chosen(uint64_t from, uint32_t by) {
    uint32_t byte = (uint32_t)(from >> 8 * (by & 7)) & 255;
    return by & 8 ? (byte & 128 ? 255 : 0) : byte;
}
IN uint32_t prmt(uint32_t a, uint32_t b, uint32_t by) {
    uint64_t from = (uint64_t)b << 32 | a;
    return chosen(from, by) | chosen(from, by >> 4) << 8 | chosen(from, by >> 8) << 16 |
           chosen(from, by >> 12) << 24;
}

// Places of memory, checked: shared memory by its offset, the rest by its address.
IN uint8_t *shared_at(Thread *t, uint32_t line, uint64_t at, uint32_t bytes) {
    if (__builtin_expect(at + bytes > t->shared_bytes || at + bytes < at, 0))
        t->calls->fault(t, line, FAULT_SHARED, at);
    if (__builtin_expect(at & (bytes - 1), 0)) t->calls->fault(t, line, FAULT_ALIGNMENT, at);
    return t->shared + at;
}
IN uint8_t *memory_at(Thread *t, uint32_t line, uint64_t at, uint32_t bytes) {
    t->line = line;
    if (__builtin_expect(at & (bytes - 1), 0)) t->calls->fault(t, line, FAULT_ALIGNMENT, at);
    return (uint8_t *)(uintptr_t)at;
}

// As much as a thread reads or writes at once.
typedef struct __attribute__((aligned(16))) { uint32_t words[4]; } Sixteen;
typedef uint64_t Two __attribute__((vector_size(16)));
