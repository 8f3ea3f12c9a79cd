// MatMul and MatMulT (see matmul.cu for the sums) by wgmma and TMA. A persistent block walks over tiles; a thread
// copies weights, another one X, and warpgroups multiply. All find their tiles from the groups' offsets in memory, so
// the host knows no counts.
//   The product is computed as out^T = W X^T: 64 columns of out for each warpgroup, and as many rows of X as a group
//   has left (up to ROWS), so that
//   a group's last tile costs what it holds. Terms come one after the other; the last step of each is filled with
//   zeros by the copy.
//   Where heads are interleaved (kernels.Groups), the copy sees X as a matrix for each head, and rows of out are
//   `head_stride` elements from one head to the next.
//   A launch may begin before the kernel before it ends, whose output its terms behind the first may read.
// Bound: 2*M*N*K flops of the tensor cores; for few rows the bytes of the weights, or the chain: 0.11 us for each
// kDepth of it.
#include "product.cuh"
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

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
          if (t > 0) wait_for_grid();
          u64* full = ring.free(rows * kDepth * 2);
          for (int r = 0; r < rows; r += terms.box)
            copy_box(ring.b() + r * kDepth, &terms.x[t], k, w.from + r, head, full);
        }
    }
  }
}

// product: columns [begin, n) of out, COLUMNS of them and up to ROWS rows for each block (terms.height). TW: the
// weights have k as their rows (nn).
template <int COLUMNS, int ROWS, int STAGES, int BLOCKS, int TW, class T>
__device__ inline void product(const Terms& terms, T* out, long long ldo, const int* offsets, int groups, int segments,
                               int m, int n) {
  __shared__ u64 bars[2 * STAGES];
  __shared__ int first_rows[kMaxGroups + 1], first_tiles[kMaxGroups + 1];
  Table table = {first_rows, first_tiles};
  Ring<COLUMNS, ROWS, STAGES> ring(bars, 2);
  next_may_begin();
  prefetch_maps(terms);
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
