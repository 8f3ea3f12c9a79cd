// MatMul and MatMulT (see matmul.cu for the sums) by wgmma and TMA. A persistent block walks over tiles; a thread
// copies weights, another one X, and warpgroups multiply. All find their tiles from the groups' offsets in memory, so
// the host knows no counts.
//   The product is computed as out^T = W X^T: 64 columns of out for each warpgroup, and as many rows of X as a group
//   has left (up to ROWS), so that
//   a group's last tile costs what it holds. Terms come one after the other; the last step of each is filled with
//   zeros by the copy.
//   Where heads are interleaved (kernels.Groups), the copy sees X as a matrix for each head, and rows of out are
//   `head_stride` elements from one head to the next.
// Bound: 2*M*N*K flops of the tensor cores; for few rows the bytes of the weights, or the chain: 0.11 us for each
// kDepth of it.
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
  __device__ bool cover(int t, int col) const { return from[t] <= col && col < to[t]; }
};

// Table lists the groups' first rows and how many tiles of rows lie before each. Without offsets each has m rows.
struct Table {
  int row[kMaxGroups + 1], tile[kMaxGroups + 1];
};

__device__ inline void fill(Table& t, const int* offsets, int groups, int segments, int m, int rows) {
  if (threadIdx.x >= kWarp) return;
  int lane = threadIdx.x, before = 0;
  for (int base = 0; base < groups; base += kWarp) {
    int g = base + lane, from = 0, tiles = 0;
    if (g < groups) {
      from = offsets ? offsets[g * segments] : g * m;
      int to = offsets ? offsets[(g + 1) * segments] : from + m;
      tiles = (to - from + rows - 1) / rows;
      if (g == groups - 1) t.row[groups] = to;
      t.row[g] = from;
    }
    int sum = tiles;
#pragma unroll
    for (int s = 1; s < kWarp; s <<= 1) {
      int v = __shfl_up_sync(~0u, sum, s);
      if (lane >= s) sum += v;
    }
    if (g < groups) t.tile[g] = before + sum - tiles;
    before += __shfl_sync(~0u, sum, kWarp - 1);
  }
  if (lane == 0) t.tile[groups] = before;
}

// Work is a tile of a product: rows [from, from + rows) of out and X, columns from col, with a group's matrix of
// weights, and of X and out where heads are interleaved.
struct Work {
  int group, from, rows, col;
};

// width is the number of columns of wgmma that covers `rows` rows.
template <int ROWS>
__device__ inline int width(int rows) {
  if (ROWS == 64) return rows <= 8 ? 8 : rows <= 16 ? 16 : rows <= 32 ? 32 : 64;
  return (rows + ROWS / 4 - 1) / (ROWS / 4) * (ROWS / 4);
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

// For bf16 the threads of a quad exchange what they hold until each has 8 columns of one row.
template <int ROWS>
__device__ inline void store_tile(const float* d, u16* out, long long ldo, int rows, int col, int n, bool wide) {
  int lane = warp_lane(), warp = threadIdx.x / kWarp % 4, q = lane % 4;
  int c = col + warp * 16 + q % 2 * 8;
  bool odd = q & 1, high = q & 2;
#pragma unroll
  for (int j = 0; j < ROWS / 16; j++)
    if (j * 16 < rows) {
      u32 w[4];
#pragma unroll
      for (int i = 0; i < 4; i++) w[i] = transposed(pair(d[j * 8 + i * 2], d[j * 8 + i * 2 + 1]));
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
      int row = j * 16 + q / 2 * 8 + lane / 4;
      if (row >= rows || c >= n) continue;
      u16* to = out + row * ldo + c;
      if (wide && c + 8 <= n) {
        *(uint4*)to = make_uint4(w[0], w[1], w[2], w[3]);
      } else {
#pragma unroll
        for (int i = 0; i < 8; i++)
          if (c + i < n) to[i] = (u16)(w[i / 2] >> i % 2 * 16);
      }
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

// copy_tiles is the work of an elected thread: the weights of a block's tiles, or their rows of X.
template <int COLUMNS, int ROWS, int TW, class R>
__device__ inline void copy_tiles(R& ring, const Terms& terms, const Tiles<COLUMNS>& tiles, bool weights) {
  for (int i = blockIdx.x; i < tiles.count; i += gridDim.x) {
    Work w = tiles.work(i);
    int head = terms.head_stride ? w.group : 0, rows = (width<ROWS>(w.rows) + terms.box - 1) / terms.box * terms.box;
    for (int t = 0; t < terms.count; t++) {
      if (!terms.cover(t, w.col)) continue;
      int at = w.col - terms.from[t], depth = terms.k[t], matrix = terms.shared[t] ? 0 : w.group;
      if (weights)
        for (int k = 0; k < depth; k += kDepth, ring.next()) {
          u64* full = ring.free(COLUMNS * kDepth * 2);
          if (TW)
            for (int c = 0; c < COLUMNS; c += 64) copy_box(ring.a() + c * kDepth, &terms.w[t], at + c, k, matrix, full);
          else copy_box(ring.a(), &terms.w[t], k, at, matrix, full);
        }
      else
        for (int k = 0; k < depth; k += kDepth, ring.next()) {
          u64* full = ring.free(rows * kDepth * 2);
          for (int r = 0; r < rows; r += terms.box)
            copy_box(ring.b() + r * kDepth, &terms.x[t], k, w.from + r, head, full);
        }
    }
  }
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
    store_tile<ROWS>(d, out + (long long)w.group * terms.head_stride + w.from * ldo, ldo, w.rows,
                     w.col + warpgroup * 64, n, wide);
  }
}

// product: columns [begin, n) of out, COLUMNS of them and up to ROWS rows for each block (terms.height). TW: the
// weights have k as their rows (nn).
template <int COLUMNS, int ROWS, int STAGES, int BLOCKS, int TW, class T>
__device__ inline void product(const Terms& terms, T* out, long long ldo, const int* offsets, int groups, int segments,
                               int m, int n) {
  __shared__ u64 bars[2 * STAGES];
  __shared__ Table table;
  Ring<COLUMNS, ROWS, STAGES> ring(bars, 2);
  fill(table, offsets, groups, segments, m, terms.height);
  __syncthreads();
  Tiles<COLUMNS> tiles(table, groups, terms, n, m);
  int copying = uniform(threadIdx.x / kWarp) - COLUMNS / 16;  // of the warps behind those that multiply
  if (copying >= 0) {
    if (BLOCKS == 1) fewer_registers<40>();
    if (copying < 2 && elected()) copy_tiles<COLUMNS, ROWS, TW>(ring, terms, tiles, copying == 0);
  } else {
    if (BLOCKS == 1) more_registers<232>();
    multiply_tiles<COLUMNS, ROWS, TW>(ring, terms, tiles, out, ldo, n);
  }
}

//launch:family product_wgmma nt_ nn_
#define PRODUCT(name, COLUMNS, ROWS, STAGES, BLOCKS, TW, T)                                                       \
  extern "C" __global__ void __launch_bounds__(threads(COLUMNS, BLOCKS, 2), BLOCKS)                               \
      name(const __grid_constant__ Terms terms, T* out, long long ldo, const int* offsets, int groups, int segments, \
           int m, int n) {                                                                                        \
    product<COLUMNS, ROWS, STAGES, BLOCKS, TW>(terms, out, ldo, offsets, groups, segments, m, n);                    \
  }
#define PRODUCTS(name, COLUMNS, ROWS, STAGES, BLOCKS)               \
  PRODUCT(nt_##name##_bf16, COLUMNS, ROWS, STAGES, BLOCKS, 0, u16)  \
  PRODUCT(nt_##name##_f32, COLUMNS, ROWS, STAGES, BLOCKS, 0, float) \
  PRODUCT(nn_##name##_bf16, COLUMNS, ROWS, STAGES, BLOCKS, 1, u16)  \
  PRODUCT(nn_##name##_f32, COLUMNS, ROWS, STAGES, BLOCKS, 1, float)
PRODUCTS(wide, 128, 256, 4, 1)
PRODUCTS(square, 128, 128, 6, 1)
PRODUCTS(few, 64, 64, 6, 2)
PRODUCTS(deep, 64, 64, 13, 2)  // one fits: registers as of two
PRODUCTS(tall, 64, 128, 9, 2)  // the same

#endif
