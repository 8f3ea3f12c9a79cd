// Dispatch: rows are the (token, slot) pairs sorted by expert, then by token: a stable counting sort. Pairs are cut into segments, none across packs; a warp
// counts the experts of a segment, one block adds the counts up (by expert, then segment), and a warp deals a segment's rows out in order.
// Bound: reading experts [T, K] twice and writing source and row_of; in practice the wait of three kernels.
#include "definition.cuh"

constexpr int kScan = 1024;  // threads of dispatch_scan; dispatch.go has it too

// Segment is a run of pairs.
struct Segment {
  int from, to;
};

extern __shared__ int ofExpert[];

KERNEL(dispatch_count, int* counts, const int* experts, const Segment* segments, int e) {
  int lane = warp_lane(), seg = blockIdx.x;
  for (int i = lane; i < e; i += kWarp) ofExpert[i] = 0;
  __syncwarp();
  Segment s = segments[seg];
  for (int i = s.from; i < s.to; i += kWarp) {
    bool mine = i + lane < s.to;
    int pick = mine ? experts[i + lane] : -1;
    u32 same = __match_any_sync(~0u, pick);
    if (mine && (same >> lane) == 1) ofExpert[pick] += __popc(same);  // the last of the equal ones
    __syncwarp();
  }
  for (int i = lane; i < e; i += kWarp) counts[(size_t)i * gridDim.x + seg] = ofExpert[i];
}

// dispatch_scan turns counts [e, n] into the rows before each, and offsets [e*packs + 1] into those before each pack; first is the first segment of a pack.
KERNEL(dispatch_scan, int* offsets, int* counts, const int* first, int e, int n, int packs, int pairs) {
  __shared__ int sums[kScan / kWarp];
  int total = e * n, each = (total + kScan - 1) / kScan, from = threadIdx.x * each, to = min(from + each, total), own = 0;
  for (int i = from; i < to; i++) own += counts[i];
  int before = own;
#pragma unroll
  for (int s = 1; s < kWarp; s <<= 1) {
    int left = __shfl_up_sync(~0u, before, s);
    if (warp_lane() >= s) before += left;
  }
  if (warp_lane() == kWarp - 1) sums[threadIdx.x / kWarp] = before;
  __syncthreads();
  before -= own;
  for (int w = 0; w < threadIdx.x / kWarp; w++) before += sums[w];
  for (int i = from; i < to; i++) {
    int c = counts[i];
    counts[i] = before;
    before += c;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < e * packs; i += kScan) {
    int expert = i / packs, seg = first[i % packs];  // n where this and all later packs are empty
    offsets[i] = seg < n ? counts[expert * n + seg] : expert + 1 < e ? counts[(expert + 1) * n] : pairs;
  }
  if (threadIdx.x == 0) offsets[e * packs] = pairs;
}

KERNEL(dispatch_deal, int* source, int* row_of, const int* counts, const int* experts, const Segment* segments, int e, int k) {
  int lane = warp_lane(), seg = blockIdx.x;
  for (int i = lane; i < e; i += kWarp) ofExpert[i] = counts[(size_t)i * gridDim.x + seg];
  __syncwarp();
  Segment s = segments[seg];
  for (int i = s.from; i < s.to; i += kWarp) {
    int at = i + lane;
    bool mine = at < s.to;
    int pick = mine ? experts[at] : -1;
    u32 same = __match_any_sync(~0u, pick);
    int row = mine ? ofExpert[pick] + __popc(same & ((1u << lane) - 1)) : 0;
    __syncwarp();
    if (mine) source[row] = at / k, row_of[at] = row;
    if (mine && (same >> lane) == 1) ofExpert[pick] = row + 1;
    __syncwarp();
  }
}
