// Embed and Gather: out[r] = table[ids[r]]; a warp for a part of a row. Bound: the bytes of the rows, read and written.
// EmbedBackward: dtable[v] += the sum from +0 of dout[t] for the t of a segment with ids[t] = v, t ascending, segments
// ascending. One kernel links each t to the next one with its id, a warp for each, which looks at 256 ids at a time;
// then the warp of the first t of an id follows the links, 512 columns of a segment's sum in registers. Bound: reading
// dout once, and T^2 comparisons of ids, 32 of them an instruction.
#include "rows.cuh"

template <class T>
__device__ void take(T* out, const T* table, const int* ids, int rows, int cols, int os, int ts) {
  int r = warp_row();
  if (r >= rows) return;
  move_part(out + (size_t)r * os, table + (size_t)ids[r] * ts, blockIdx.y, cols);
}
#define TAKE(T) (T * out, const T* table, const int* ids, int rows, int cols, int os, int ts)
KERNELS(take, TAKE, (out, table, ids, rows, cols, os, ts))

constexpr int kNear = 8;  // ids of a lane that are looked at together

// near calls f(i, ids[i]) for a lane's ids from i on, all of which are on their way before one is looked at.
template <class F>
__device__ inline void near(const int* ids, int i, int rows, F f) {
  int all[kNear];
#pragma unroll
  for (int j = 0; j < kNear; j++) all[j] = ids[max(0, min(i + j * kWarp + warp_lane(), rows - 1))];
#pragma unroll
  for (int j = 0; j < kNear; j++) f(i + j * kWarp + warp_lane(), all[j]);
}

// link: the next t with the same id, or rows, its complement where there is an earlier t.
KERNEL(embed_link, int* link, const int* ids, int rows) {
  constexpr int kAll = kNear * kWarp;
  int t = warp_row();
  if (t >= rows) return;
  int id = ids[t], next = rows;
  bool earlier = false;
  for (int i = t + 1; i < rows && !__any_sync(~0u, next < rows); i += kAll)
    near(ids, i, rows, [&](int i, int other) { next = other == id && i < rows ? min(next, i) : next; });
  for (int i = t - kAll; i > -kAll && !__any_sync(~0u, earlier); i -= kAll)
    near(ids, i, rows, [&](int i, int other) { earlier = earlier || (other == id && i >= 0); });
  earlier = __any_sync(~0u, earlier);
  for (int half = kWarp / 2; half > 0; half /= 2) next = min(next, __shfl_xor_sync(~0u, next, half));
  if (warp_lane() == 0) link[t] = earlier ? ~next : next;
}

constexpr int kPart = 16;  // columns of a thread

// segments are the first row of each, then their number of rows.
template <class T>
__device__ void embed_backward(float* dtable, const T* dout, const int* ids, const int* link, const int* segments,
                               int rows, int cols, int ds) {
  int t = warp_row(), lane = warp_lane();
  if (t >= rows || link[t] < 0) return;
  int from = blockIdx.y * kPart * kWarp, end = 0;  // end of the segment that sum is of
  float sum[kPart] = {};
  float* row = dtable + (size_t)ids[t] * cols;
  auto finish = [&] {
#pragma unroll
    for (int j = 0; j < kPart; j++) {
      int c = from + j * kWarp + lane;
      if (c < cols) row[c] = row[c] + sum[j];
      sum[j] = 0.f;
    }
  };
  while (end <= t) end = *++segments;
  for (int r = t, next; r < rows; r = next < 0 ? ~next : next) {
    next = link[r];
    if (r >= end) finish();
    while (r >= end) end = *++segments;
    const T* d = dout + (size_t)r * ds;
#pragma unroll
    for (int j = 0; j < kPart; j++) {
      int c = from + j * kWarp + lane;
      if (c < cols) sum[j] += load(d, c);
    }
  }
  finish();
}
#define EMBED_BACKWARD(T) \
  (float* dtable, const T* dout, const int* ids, const int* link, const int* segments, int rows, int cols, int ds)
KERNELS(embed_backward, EMBED_BACKWARD, (dtable, dout, ids, link, segments, rows, cols, ds))
