// Dispatch: rows are the (token, slot) pairs sorted by expert, then by token: a stable counting sort. A block for an expert counts its pairs in
// each pack, one block adds the counts up, then a block for an expert deals its rows out in order. Bound: reading experts [T, K] twice for each expert.
#include "definition.cuh"

constexpr int kThreads = 512;

// before_me is the number of threads of the block before this one with hit set, and their total.
__device__ inline int before_me(bool hit, int* sums, int& total) {
  u32 votes = __ballot_sync(~0u, hit);
  int warp = threadIdx.x / kWarp;
  __syncthreads();
  if (warp_lane() == 0) sums[warp] = __popc(votes);
  __syncthreads();
  int n = __popc(votes & ((1u << warp_lane()) - 1));
  total = 0;
  for (int w = 0; w < kThreads / kWarp; w++) {
    if (w < warp) n += sums[w];
    total += sums[w];
  }
  return n;
}

KERNEL(dispatch_count, int* offsets, const int* experts, const int* packs, int k, int count) {
  __shared__ int sums[kThreads / kWarp];
  int e = blockIdx.x;
  for (int pack = 0; pack < count; pack++) {
    int n = 0, total;
    for (int i = packs[pack] * k; i < packs[pack + 1] * k; i += kThreads) {
      int at = i + threadIdx.x;
      before_me(at < packs[pack + 1] * k && experts[at] == e, sums, total);
      n += total;
    }
    if (threadIdx.x == 0) offsets[e * count + pack + 1] = n;
  }
  if (e == 0 && threadIdx.x == 0) offsets[0] = 0;
}

// dispatch_add turns counts [1 ... n] into running sums, by one warp.
KERNEL(dispatch_add, int* offsets, int n) {
  int carry = 0;
  for (int i = 0; i < n; i += kWarp) {
    int at = 1 + i + warp_lane();
    int v = at <= n ? offsets[at] : 0;
#pragma unroll
    for (int s = 1; s < kWarp; s <<= 1) {
      int left = __shfl_up_sync(~0u, v, s);
      if (warp_lane() >= s) v += left;
    }
    if (at <= n) offsets[at] = carry + v;
    carry += __shfl_sync(~0u, v, 31);
  }
}

KERNEL(dispatch_deal, int* source, int* row_of, const int* offsets, const int* experts, int pairs, int k, int count) {
  __shared__ int sums[kThreads / kWarp];
  int e = blockIdx.x, next = offsets[e * count], total;
  for (int i = 0; i < pairs; i += kThreads) {
    int at = i + threadIdx.x;
    bool mine = at < pairs && experts[at] == e;
    int row = next + before_me(mine, sums, total);
    if (mine) source[row] = at / k, row_of[at] = row;
    next += total;
  }
}
