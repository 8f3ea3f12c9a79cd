// What products by wgmma share (matmul_wgmma.cu, quantized_wgmma.cuh): their terms, the tiles of all groups, which a
// persistent block finds from the groups' offsets in memory, and how a tile is stored.
#pragma once
#include "wgmma_ring.cuh"
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

constexpr int kMaxGroups = 1024;
constexpr int kMostTerms = 5;

// Terms count for columns [from, to) of out each, which begin and end where tiles of columns from `begin` on do, or the
// launch's last column does.
struct Terms {
  TensorMap x[kMostTerms], w[kMostTerms];
  int k[kMostTerms], from[kMostTerms], to[kMostTerms];
  int shared[kMostTerms];  // w is one matrix for all groups
  int count, begin;
  int height, box;  // rows of a tile; rows of X in a copy
  int head_stride;  // 0: heads are not interleaved
  float scale;      // out is round(scale * round(sum))
  __device__ bool cover(int t, int col) const { return from[t] <= col && col < to[t]; }
};

// Table lists the groups' first rows and how many tiles of rows lie before each, groups + 1 numbers each. Without
// offsets each group has m rows.
struct Table {
  int *row, *tile;
};

// fill asks for the rows of kAhead groups a lane before it looks at one: they may be far away. One group has no sums,
// and a thread that makes no barriers.
__device__ inline void fill(const Table& t, const int* offsets, int groups, int segments, int m, int rows) {
  if (groups == 1 && threadIdx.x == kWarp) {
    t.row[0] = offsets ? offsets[0] : 0, t.row[1] = offsets ? offsets[segments] : m;
    t.tile[0] = 0, t.tile[1] = (t.row[1] - t.row[0] + rows - 1) / rows;
  }
  if (groups == 1 || threadIdx.x >= kWarp) return;
  constexpr int kAhead = 4;
  int lane = threadIdx.x, before = 0;
  for (int base = 0; base < groups; base += kAhead * kWarp) {
    int from[kAhead], to[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; i++) {
      int g = base + i * kWarp + lane;
      from[i] = offsets ? offsets[min(g, groups) * segments] : g * m;
      to[i] = offsets ? offsets[min(g + 1, groups) * segments] : from[i] + m;
    }
#pragma unroll
    for (int i = 0; i < kAhead; i++) {
      int g = base + i * kWarp + lane, tiles = g < groups ? (to[i] - from[i] + rows - 1) / rows : 0, sum = tiles;
#pragma unroll
      for (int s = 1; s < kWarp; s <<= 1) {
        int v = __shfl_up_sync(~0u, sum, s);
        if (lane >= s) sum += v;
      }
      if (g < groups) t.row[g] = from[i], t.tile[g] = before + sum - tiles;
      if (g == groups - 1) t.row[groups] = to[i];
      before += __shfl_sync(~0u, sum, kWarp - 1);
    }
  }
  if (lane == 0) t.tile[groups] = before;
}

// wait_for_grid waits until the kernel before this one has ended and what it wrote can be read, where a launch begins
// early (driver.Context.Early). next_may_begin allows that to the kernel behind this one.
__device__ inline void wait_for_grid() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
__device__ inline void next_may_begin() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

// prefetch_maps asks for what describes the first copies, before the block knows its tiles.
__device__ inline void prefetch_maps(const Terms& terms, const TensorMap* scales = nullptr) {
  if (threadIdx.x != blockDim.x - 1) return;
  prefetch_map(&terms.w[0]), prefetch_map(&terms.x[0]);
  if (scales) prefetch_map(scales);
}

// Work is a tile of a product: rows [from, from + rows) of out and X, columns from col, with a group's matrix of
// weights, and of X and out where heads are interleaved.
struct Work {
  int group, from, rows, col;
};

// width is the number of columns of wgmma that covers `rows` rows.
template <int ROWS>
__device__ inline int width(int rows) {
  if (ROWS <= 64) return rows <= 8 ? 8 : rows <= 16 ? 16 : rows <= 32 ? 32 : 64;
  constexpr int kPart = ROWS == 96 ? 32 : ROWS / 4;
  return (rows + kPart - 1) / kPart * kPart;
}

// store_tile writes the warpgroup's 64 columns of out from `col` on, for rows [0, rows) at out.
template <int ROWS>
__device__ inline void store_tile(const float* d, float* out, long long ldo, int rows, int col, int n, bool) {
  int lane = warp_lane(), warp = threadIdx.x / kWarp % 4;
#pragma unroll
  for (int j = 0; j < ROWS / 8; j++)
    if (j * 8 < rows)
#pragma unroll
      for (int e = 0; e < 4; e++) {
        int row = j * 8 + lane % 4 * 2 + e % 2, c = col + warp * 16 + lane / 4 + e / 2 * 8;
        if (row < rows && c < n) out[row * ldo + c] = d[j * 4 + e];
      }
}

// exchange_quad: of thread q of four w[i] becomes what thread i had as w[q].
__device__ inline void exchange_quad(u32 (&w)[4]) {
  bool odd = warp_lane() & 1, high = warp_lane() & 2;
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    u32 v = __shfl_xor_sync(~0u, odd ? w[i] : w[i + 1], 1);
    if (odd) w[i] = v;
    else w[i + 1] = v;
  }
#pragma unroll
  for (int i = 0; i < 2; i++) {
    u32 v = __shfl_xor_sync(~0u, high ? w[i] : w[i + 2], 2);
    if (high) w[i] = v;
    else w[i + 2] = v;
  }
}

// store_eight writes columns [c, c + 8) of a row, those below n.
__device__ inline void store_eight(u16* to, const u32 (&w)[4], int c, int n, bool wide) {
  if (wide && c + 8 <= n) {
    *(uint4*)to = make_uint4(w[0], w[1], w[2], w[3]);
  } else {
#pragma unroll
    for (int i = 0; i < 8; i++)
      if (c + i < n) to[i] = (u16)(w[i / 2] >> i % 2 * 16);
  }
}

// For bf16 the threads of a quad exchange what they hold until each has 8 columns of one row.
template <int ROWS>
__device__ inline void store_tile(const float* d, u16* out, long long ldo, int rows, int col, int n, bool wide) {
  int lane = warp_lane(), warp = threadIdx.x / kWarp % 4, q = lane % 4;
  int c = col + warp * 16 + q % 2 * 8;
#pragma unroll
  for (int j = 0; j < ROWS / 16; j++)
    if (j * 16 < rows) {
      u32 w[4];
#pragma unroll
      for (int i = 0; i < 4; i++) w[i] = transposed(pair(d[j * 8 + i * 2], d[j * 8 + i * 2 + 1]));
      exchange_quad(w);
      int row = j * 16 + q / 2 * 8 + lane / 4;
      if (row >= rows || c >= n) continue;
      store_eight(out + row * ldo + c, w, c, n, wide);
    }
}

// Tiles are those of columns [begin, n) of out, COLUMNS in each, and of all groups' rows.
template <int COLUMNS>
struct Tiles {
  const Table& table;
  int groups, begin, across, count;
  int height, each;  // rows of a tile; of each head where they are interleaved, else 0
  __device__ Tiles(const Table& t, int groups, const Terms& terms, int n, int m)
      : table(t),
        groups(groups),
        begin(terms.begin),
        across((n - begin + COLUMNS - 1) / COLUMNS),
        count(t.tile[groups] * across),
        height(terms.height),
        each(terms.head_stride ? m : 0) {}

  __device__ Work work(int i) const {
    int lo = 0, hi = groups;  // the group: the last with tile[lo] * across <= i
    while (hi - lo > 1) {
      int mid = (lo + hi) / 2;
      if (table.tile[mid] * across <= i) lo = mid;
      else hi = mid;
    }
    int row, col;
    piece(i - table.tile[lo] * across, table.tile[lo + 1] - table.tile[lo], across, row, col);
    int from = table.row[lo] + row * height;
    return {lo, from - lo * each, min(height, table.row[lo + 1] - from), begin + col * COLUMNS};
  }
};

// scale_tile rounds the sums to T, and multiplies.
template <int ROWS, class T>
__device__ inline void scale_tile(float* d, float scale) {
#pragma unroll
  for (int j = 0; j < ROWS / 2; j++) d[j] = (sizeof(T) == 2 ? widen(narrow(d[j])) : d[j]) * scale;
}

// multiply_tiles is the work of a warpgroup: 64 columns of each of the block's tiles.
template <int COLUMNS, int ROWS, int TW, class R, class T>
__device__ inline void multiply_tiles(R& ring, const Terms& terms, const Tiles<COLUMNS>& tiles, T* out, long long ldo,
                                      int n) {
  int warpgroup = COLUMNS == 64 ? 0 : uniform(threadIdx.x / kGroup), count = uniform(tiles.count);
  bool wide = ((u64)(out + tiles.begin) | (u64)ldo * sizeof(T) | (u64)terms.head_stride * sizeof(T)) % 16 == 0;
  auto nothing = [](int) {};
  for (int i = blockIdx.x; i < count; i += gridDim.x) {
    Work w = tiles.work(i);
    int k_steps = 0;
    for (int t = 0; t < terms.count; t++)
      if (terms.cover(t, w.col)) k_steps += (terms.k[t] + kDepth - 1) / kDepth;
    k_steps = uniform(k_steps);
    float d[ROWS / 2];
#pragma unroll
    for (int j = 0; j < ROWS / 2; j++) d[j] = 0.f;
    int rows = uniform(width<ROWS>(w.rows));
    constexpr int kQuarter = ROWS == 64 ? 8 : ROWS / 4, kHalf = ROWS == 64 ? 16 : ROWS / 2,
                  kThree = ROWS == 64 ? 32 : ROWS / 4 * 3;
    if (rows == ROWS) chain<ROWS, TW, 0>(d, ring, warpgroup, k_steps, nothing);
    else if (rows == kThree) chain<kThree, TW, 0>(d, ring, warpgroup, k_steps, nothing);
    else if (rows == kHalf) chain<kHalf, TW, 0>(d, ring, warpgroup, k_steps, nothing);
    else chain<kQuarter, TW, 0>(d, ring, warpgroup, k_steps, nothing);
    if (terms.scale != 1.f) scale_tile<ROWS, T>(d, terms.scale);
    store_tile<ROWS>(d, out + (long long)w.group * terms.head_stride + w.from * ldo, ldo, w.rows,
                     w.col + warpgroup * 64, n, wide);
  }
}

#endif
