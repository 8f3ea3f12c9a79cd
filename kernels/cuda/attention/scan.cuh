// Sums in the order of a block's threads.
#pragma once
#include "definition.cuh"

// scan is the sum of x over the threads before this one; total is that of all. A block has whole warps, 32 at most.
__device__ inline int scan(int x, int& total) {
  __shared__ int sums[kWarp];
  int lane = warp_lane(), warp = threadIdx.x / kWarp, s = x, before = 0;
#pragma unroll
  for (int d = 1; d < kWarp; d <<= 1) {
    int y = __shfl_up_sync(~0u, s, d);
    if (lane >= d) s += y;
  }
  if (lane == kWarp - 1) sums[warp] = s;
  __syncthreads();
  total = 0;
  for (int w = 0; w < blockDim.x / kWarp; w++) {
    if (w < warp) before += sums[w];
    total += sums[w];
  }
  __syncthreads();
  return before + s - x;
}
