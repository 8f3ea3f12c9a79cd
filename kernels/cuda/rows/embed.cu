// Embed and Gather: out[r] = table[ids[r]]; a warp for a part of a row. Bound: the bytes of the rows, read and written.
// EmbedBackward: dtable[v] += the sum from +0 of dout[t] for the t of a segment with ids[t] = v, t ascending, segments
// ascending. The warp of the first t of an id in the batch walks the later ones, 512 columns of a segment's sum in
// registers; the others stop when they find an earlier t. Bound: reading dout once, and T^2/64 comparisons of ids.
#include "rows.cuh"

template <class T>
__device__ void take(T* out, const T* table, const int* ids, int rows, int cols, int os, int ts) {
  int r = warp_row();
  if (r >= rows) return;
  move_part(out + (size_t)r * os, table + (size_t)ids[r] * ts, blockIdx.y, cols);
}
#define TAKE(T) (T * out, const T* table, const int* ids, int rows, int cols, int os, int ts)
KERNELS(take, TAKE, (out, table, ids, rows, cols, os, ts))

constexpr int kPart = 16;  // columns of a thread

// segments are the first row of each, then their number of rows.
template <class T>
__device__ void embed_backward(float* dtable, const T* dout, const int* ids, const int* segments, int rows, int cols,
                               int ds) {
  int t = warp_row(), lane = warp_lane();
  if (t >= rows) return;
  int id = ids[t];
  for (int i = lane; i - lane < t; i += kWarp)
    if (__any_sync(~0u, i < t && ids[i] == id)) return;
  int from = blockIdx.y * kPart * kWarp, end = 0;  // end of the segment that sum is of
  float sum[kPart] = {};
  float* row = dtable + (size_t)id * cols;
  auto finish = [&] {
#pragma unroll
    for (int j = 0; j < kPart; j++) {
      int c = from + j * kWarp + lane;
      if (c < cols) row[c] = row[c] + sum[j];
      sum[j] = 0.f;
    }
  };
  while (end <= t) end = *++segments;
  for (int i = t / kWarp * kWarp; i < rows; i += kWarp) {
    u32 hit = __ballot_sync(~0u, i + lane < rows && i + lane >= t && ids[i + lane] == id);
    for (; hit; hit &= hit - 1) {
      int r = i + __ffs(hit) - 1;
      if (r >= end) finish();
      while (r >= end) end = *++segments;
      const T* d = dout + (size_t)r * ds;
#pragma unroll
      for (int j = 0; j < kPart; j++) {
        int c = from + j * kWarp + lane;
        if (c < cols) sum[j] += load(d, c);
      }
    }
  }
  finish();
}
#define EMBED_BACKWARD(T) \
  (float* dtable, const T* dout, const int* ids, const int* segments, int rows, int cols, int ds)
KERNELS(embed_backward, EMBED_BACKWARD, (dtable, dout, ids, segments, rows, cols, ds))
