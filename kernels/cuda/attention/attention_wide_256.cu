// Attention with Hopper's wgmma, heads of 256: rules as in attention.cu, a tile as in attention_wide.cuh. 128 sums and
// 32 dots a thread leave no registers for queries, which lie in shared memory next to five tiles of keys and values.
// The merged totals of splits do not fit there. A block has a place for them in the card's memory, which stays in L2,
// and so there are no more blocks than multiprocessors: each takes one tile of a KV head after the other. Those with
// most keys come first; every other round has the blocks in reverse, so that all get as much.
//
// Bound: 4*rows*keys*256 flops of the tensor cores. Two warpgroups and 64 keys: products 2,048 clocks; as much for
// shared memory, 128 bytes a clock (dots read 2*64 KB, sums 2*32 KB, copies write 64 KB); 8,192 exponentials 512; L2
// gives 64 KB, 32 bytes a clock. A split, 65,536 clocks, moves 264 KB of totals.
#include "attention_wide.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

constexpr int kSlots = 5;                    // tiles of keys and values in flight
constexpr int kQueries = 256 / 64 * kPanel;  // bytes of a warpgroup's queries
constexpr int kTotal = 256 / 2 + 4;          // values of a thread's total

// each calls f(tile, KV head) for the work of this block.
template <class F>
__device__ inline void each(const Tile* tiles, int count, int heads, F f) {
  for (int from = 0; from < count * heads; from += gridDim.x) {
    int i = from + (from / gridDim.x % 2 ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
    if (i < count * heads) f(tiles[i / heads], i % heads);
  }
}

// attention_rounds_256: totals F32 [blocks, 132, 256].
extern "C" __global__ void __launch_bounds__(Crew<256>::kThreads + 128, 1)
    attention_rounds_256(const __grid_constant__ Maps maps, u16* out, float* lse, const u16* q, float* totals,
                         const Tile* tiles, const int* pages, int count, int heads, int box, int group, int os,
                         int lses, int qs, int page_rows, int window, int split, float c) {
  using C = Crew<256>;
  __shared__ u64 full[kSlots], empty[kSlots];
  Ring<256, 1> ring = {shared + C::kTeams * kQueries, full, empty, kSlots, 0, 0};
  ring.prepare(C::kTeams * 4);
  int team = threadIdx.x / 128;
  if (team == C::kTeams) {
    fewer_registers<C::kFewer>();
    if (threadIdx.x < C::kThreads + kWarp)
      each(tiles, count, heads, [&](const Tile& t, int kv_head) {
        ring.copy(maps, t.first, t.last, {t.pages >= 0 ? pages + t.pages : nullptr, t.base, page_rows}, kv_head, box);
      });
    return;
  }
  more_registers<C::kMore>();
  Call call = {out, lse, q, group, os, lses, qs, window, split, c};
  each(tiles, count, heads, [&](const Tile& t, int kv_head) {
    attend<256, 256>(ring, call, t, kv_head, shared + team * kQueries,
                     totals + (long long)blockIdx.x * kTotal * C::kThreads);
  });
}

#endif
