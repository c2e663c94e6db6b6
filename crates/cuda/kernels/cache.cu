// The paged cache and attention over it. A page holds 64 keys of every kv head: keys d-major
// [head][dim][64], values [head][64][dim].

#define TILE_KEYS 64
#define CHUNK_TILES 8
#define DIM_MAX 256

struct Cache {
    void *k;
    void *v;
    const int *tables;
    const int *pages;
    const int *positions;
    int half;
    int kv_heads;
    int dim;
};

__device__ __forceinline__ float cached(const void *from, u64 at, int half) {
    if (half) return half_to_float(((const u16 *)from)[at]);
    return ((const float *)from)[at];
}
