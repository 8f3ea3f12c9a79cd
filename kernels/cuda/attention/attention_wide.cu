// Attention with Hopper's wgmma, heads of up to 192 columns: rules as in attention.cu, a tile as in attention_wide.cuh.
// A block is a tile of a KV head. Queries lie in registers, the merged total of splits in shared memory.
// Bound: 2*rows*keys*(D + V) flops of the tensor cores.
#include "attention_wide.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

constexpr int kWideSlots = 6;  // tiles of keys and values in flight

template <int D, int V>
__device__ inline void attention(const Maps& maps, const Call& call, const Tile* tiles, const int* pages, int box,
                                 int page_rows) {
  using C = Crew<D>;
  __shared__ u64 full[kWideSlots], empty[kWideSlots];
  Tile t = tiles[blockIdx.x];
  int kv_head = blockIdx.y;
  Ring<D, 1, V> ring = {shared, full, empty, kWideSlots, 0, 0};
  ring.prepare(C::kTeams * 4);
  if (threadIdx.x >= C::kThreads) {
    fewer_registers<C::kFewer>();
    if (threadIdx.x < C::kThreads + kWarp)
      ring.copy(maps, t.first, t.last, {t.pages >= 0 ? pages + t.pages : nullptr, t.base, page_rows}, kv_head, box);
    return;
  }
  more_registers<C::kMore>();
  attend<D, V>(ring, call, t, kv_head, nullptr, (float*)(ring.base + kWideSlots * ring.kTile));
}

#define ATTENTION(name, D, V)                                                                                     \
  extern "C" __global__ void __launch_bounds__(Crew<D>::kThreads + 128, 1) attention_wide_##name(                 \
      const __grid_constant__ Maps maps, u16* out, float* lse, const u16* q, const Tile* tiles, const int* pages, \
      int box, int group, int os, int lses, int qs, int page_rows, int window, int split, float c) {              \
    attention<D, V>(maps, {out, lse, q, group, os, lses, qs, window, split, c}, tiles, pages, box, page_rows);    \
  }
ATTENTION(64, 64, 64)
ATTENTION(128, 128, 128)
ATTENTION(192_128, 192, 128)

#endif
