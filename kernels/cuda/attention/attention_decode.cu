// Attention of few queries on keys and values in bf16: attention_decode.cuh. Bound: the bytes of K and V.
#include "attention_decode.cuh"

#define DECODE(D, R)                                                                                                  \
  extern "C" __global__ void __launch_bounds__((kTeam + 1) * kWarp, 1) attention_decode_##D##_##R(                    \
      const __grid_constant__ Maps maps, u16* out, float* lse, const u16* q, const Tile* tiles, const int* pages,     \
      float* partials, int* done, int ring_slots, int box, int kv_heads, int group, int os, int lses, int qs,         \
      int page_rows, int window, float c) {                                                                           \
    auto copy = [&](auto& ring, const Tile& t, int kv_head) {                                                         \
      ring.copy(maps, t.first, t.last, {t.pages >= 0 ? pages + t.pages : nullptr, t.base, page_rows}, kv_head, box);  \
    };                                                                                                                \
    decode<D, R>(InNumbers<D>(), copy, out, lse, q, tiles, partials, done, ring_slots, kv_heads, group, os, lses, qs, \
                 window, c);                                                                                          \
  }
#define DECODES(D) DECODE(D, 1) DECODE(D, 2) DECODE(D, 4)
DECODES(16)
DECODES(32)
DECODES(64)
DECODES(96)
DECODES(128)
