// What the kernels of AttentionBackward with Hopper's wgmma share: products of tiles, and how a warp brings the queries
// that dk and dv walk over.
#pragma once
#include "keys.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

extern __shared__ __align__(1024) char shared[];

struct GradMaps {
  Maps keys;  // k, v
  TensorMap q, dout;
};

// products begins s = a b^T in groups of its own; a: a tile, or registers. b: rows of a tile, as many as s has columns.
template <int D, int N>
__device__ inline void products(float (&s)[N][4], const char* a, const char* b) {
  u64 ad = describe(a), bd = describe(b);
  hold(s);
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < D; k += 16) dots(s, by_columns(ad, k), by_columns(bd, k), k > 0);
  wgmma_commit();
}
template <int D>
__device__ inline void products(float (&s)[8][4], const u32 (&a)[D / 16][4], const char* b) {
  u64 bd = describe(b);
  hold(s);
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < D; k += 16) dots(s, a[k / 16], by_columns(bd, k), k > 0);
  wgmma_commit();
}

// adds begins g += p b in a group of its own.
template <int N, int K>
__device__ inline void adds(float (&g)[N][4], const u32 (&p)[K][4], const char* b) {
  u64 y = describe(b);
  hold(g);
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < K; k++) chain(g, p[k], by_rows(y, 16 * k));
  wgmma_commit();
}

// copy_own is a thread that brings each of so many warpgroups its own 64 rows of two matrices: queries and their
// gradients, or keys and values.
template <int Teams, int D, int V>
__device__ inline void copy_own(char* to, const TensorMap* left, const TensorMap* right, int head, int row, u64* mine) {
  using R = Ring<D, 2, V>;
  barrier_expect(mine, Teams * R::kSlot);
  for (int i = 0; i < Teams; i++, to += R::kSlot, row += kRows) {
    for (int p = 0; p < R::kPanels; p++) copy_box(to + p * kPanel, left, head * D + p * 64, row, 0, mine);
    for (int p = 0; p < R::kValuePanels; p++)
      copy_box(to + R::kTile + p * kPanel, right, head * V + p * 64, row, 0, mine);
  }
}

// arrive waits for both tiles of a stage and clears rows behind the end.
template <int D, int V>
__device__ inline void arrive(const Ring<D, 2, V>& ring, const Held& h, int count) {
  ring.wait(h);
  if (count >= kRows) return;
  clear_rows<D>(ring.tile(h, 0), count, threadIdx.x % 128, 128);
  clear_rows<V>(ring.tile(h, 1), count, threadIdx.x % 128, 128);
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  asm volatile("bar.sync %0, 128;" ::"r"(1 + threadIdx.x / 128) : "memory");
}

// Walk is what the blocks of dk and dv walk over: heads of the group ascending, in each blocks of queries ascending.
struct Walk {
  int from, to, each, blocks;  // positions, blocks of a head and of all
  __device__ int at(int i) const { return from + i % each * kRows; }
};

// copy_walk is the copying warp of dk and dv; lse and delta of a block's queries go to the values of its stage. Its
// lanes write these, and threads of the warpgroups read them, by plain accesses, so each arrives for itself, here and
// in grad_kv: an arrival releases what its own thread did. Tiles are written by TMA and read by wgmma.
template <int D, int V>
__device__ inline void copy_walk(Ring<D, 2, V> ring, float* values, const GradMaps& maps, const float* lse,
                                 const float* delta, const Walk& walk, int row, int head, int heads, int lses) {
  int lane = warp_lane();
  float next[4];
  auto look = [&](int i) {
#pragma unroll
    for (int j = 0; j < 4; j++) {
      int x = walk.at(i) + j % 2 * kWarp + lane, h = head + i / walk.each;
      bool in = i < walk.blocks && x < walk.to;
      next[j] = !in ? 0.f : j < 2 ? lse[(long long)(row + x) * lses + h] : delta[(long long)(row + x) * heads + h];
    }
  };
  look(0);
  for (int i = 0; i < walk.blocks; i++) {
    Held h = ring.take();
    ring.wait_empty(h);
#pragma unroll
    for (int j = 0; j < 4; j++) values[(h.slot * 4 + j) * kWarp + lane] = next[j];
    look(i + 1);
    u64* full = ring.full + h.slot;
    if (lane > 0) {
      barrier_arrive(full);
      continue;
    }
    int own = head + i / walk.each;
    barrier_expect(full, ring.kSlot);
    for (int p = 0; p < ring.kPanels; p++)
      copy_box(ring.tile(h, 0) + p * kPanel, &maps.q, own * D + p * 64, row + walk.at(i), 0, full);
    for (int p = 0; p < ring.kValuePanels; p++)
      copy_box(ring.tile(h, 1) + p * kPanel, &maps.dout, own * V + p * 64, row + walk.at(i), 0, full);
  }
}

#endif
