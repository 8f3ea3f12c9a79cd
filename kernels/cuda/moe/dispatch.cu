// Dispatch: rows are the (token, slot) pairs sorted by expert, then by token: a stable counting sort. Pairs are cut
// into runs, none across segments; a warp counts the experts of a run, one block adds the counts up (by expert, then
// run), and a warp deals a run's rows out in order. Few runs, as in decoding, are one kernel of one block, whose warps
// keep their pairs between counting and dealing. Bound: reading experts [T, K] and writing source and row_of; in
// practice what waits for what.
#include "definition.cuh"

// threads of dispatch_scan and dispatch_few
constexpr int kScan = 1024;
constexpr int kRun = 512, kFewRun = 256;                // most pairs of a run
constexpr int kFew = kScan / kWarp, kFewSegments = 32;  // most runs of dispatch_few, without an empty one, and segments

extern __shared__ int counters[];

// ExpertIds are the experts of a run's pairs, all read at once by a warp; lane l has pairs l, l+32, ...
template <int MOST>
struct ExpertIds {
  static constexpr int kEach = MOST / kWarp;
  int from, to, expert[kEach];

  __device__ ExpertIds(const int* experts, int from, int to) : from(from), to(to) {
#pragma unroll
    for (int j = 0; j < kEach; j++) expert[j] = at(j) < to ? experts[at(j)] : -1;
  }

  __device__ int at(int j) const { return from + j * kWarp + warp_lane(); }

  // count adds the pairs in their order to the counters of their experts, `stride` apart, and calls f(j, what the
  // counter was) for each.
  template <class F>
  __device__ void count(int* counter, int stride, F f) const {
    int lane = warp_lane();
#pragma unroll
    for (int j = 0; j < kEach; j++) {
      if (from + j * kWarp >= to) break;
      bool mine = expert[j] >= 0;
      u32 same = __match_any_sync(~0u, expert[j]);
      int was = mine ? counter[expert[j] * stride] + __popc(same & ((1u << lane) - 1)) : 0;
      __syncwarp();
      if (mine) f(j, was);
      if (mine && (same >> lane) == 1) counter[expert[j] * stride] = was + 1;  // the last of the equal ones
      __syncwarp();
    }
  }
};

// scan converts counts [e, n] to the rows before each, and offsets [e*segments + 1] into those before each segment;
// first(s) is the first run of segment s. All of a block of kScan calls it.
template <class F>
__device__ inline void scan(int* offsets, int* counts, F first, int e, int n, int segments, int pairs) {
  __shared__ int sums[kScan / kWarp];
  int lane = warp_lane(), warp = threadIdx.x / kWarp, total = e * n;
  int each = (total + kScan - 1) / kScan | 1;  // odd: on different banks
  int from = min((int)threadIdx.x * each, total), to = min(from + each, total), own = 0;
#pragma unroll 4
  for (int i = from; i < to; i++) own += counts[i];
  int before = own;
#pragma unroll
  for (int s = 1; s < kWarp; s <<= 1) {
    int left = __shfl_up_sync(~0u, before, s);
    if (lane >= s) before += left;
  }
  if (lane == kWarp - 1) sums[warp] = before;
  __syncthreads();
  int earlier = lane < warp ? sums[lane] : 0;
#pragma unroll
  for (int s = 16; s > 0; s >>= 1) earlier += __shfl_xor_sync(~0u, earlier, s);
  before += earlier - own;
#pragma unroll 4
  for (int i = from; i < to; i++) {
    int c = counts[i];
    counts[i] = before;
    before += c;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < e * segments; i += kScan) {
    int expert = i / segments, run = first(i % segments);  // n where this and all later segments are empty
    offsets[i] = run < n ? counts[expert * n + run] : expert + 1 < e ? counts[(expert + 1) * n] : pairs;
  }
  if (threadIdx.x == 0) offsets[e * segments] = pairs;
}

// place makes a pair the one of a row.
__device__ inline void place(int* source, int* row_of, int row, int p, int k) {
  source[row] = p / k, row_of[p] = row;
}

// Run i is pairs cuts[i] up to cuts[i+1].
KERNEL(dispatch_count, int* counts, const int* experts, const int* cuts, int e) {
  int lane = warp_lane(), run = blockIdx.x;
  ExpertIds<kRun> ids(experts, cuts[run], cuts[run + 1]);
  for (int i = lane; i < e; i += kWarp) counters[i] = 0;
  __syncwarp();
  ids.count(counters, 1, [](int, int) {});
  for (int i = lane; i < e; i += kWarp) counts[(size_t)i * gridDim.x + run] = counters[i];
}

KERNEL(dispatch_scan, int* offsets, int* counts, const int* first, int e, int n, int segments, int pairs) {
  scan(offsets, counts, [&](int segment) { return first[segment]; }, e, n, segments, pairs);
}

KERNEL(dispatch_deal, int* source, int* row_of, const int* counts, const int* experts, const int* cuts, int e,
       int k) {
  int lane = warp_lane(), run = blockIdx.x;
  ExpertIds<kRun> ids(experts, cuts[run], cuts[run + 1]);
  for (int i = lane; i < e; i += kWarp) counters[i] = counts[(size_t)i * gridDim.x + run];
  __syncwarp();
  ids.count(counters, 1, [&](int j, int row) { place(source, row_of, row, ids.at(j), k); });
}

// FewRuns are an odd number of runs, so that the counters of a run lie on different banks: the last may be an empty
// one, which has no warp.
struct FewRuns {
  int cuts[kFew + 2], first[kFewSegments];
};

extern "C" __global__ void __launch_bounds__(kScan)
    dispatch_few(const __grid_constant__ FewRuns runs, int* offsets, int* source, int* row_of, const int* experts,
                 int e, int n, int segments, int k) {
  int warp = threadIdx.x / kWarp, pairs = runs.cuts[n];
  ExpertIds<kFewRun> ids(experts, warp < n ? runs.cuts[warp] : 0, warp < n ? runs.cuts[warp + 1] : 0);
  for (int i = threadIdx.x; i < e * n; i += kScan) counters[i] = 0;
  __syncthreads();
  int before[ids.kEach];  // pairs of a run that go to the same expert
  ids.count(counters + warp, n, [&](int j, int was) { before[j] = was; });
  __syncthreads();
  scan(offsets, counters, [&](int segment) { return runs.first[segment]; }, e, n, segments, pairs);
#pragma unroll
  for (int j = 0; j < ids.kEach; j++)
    if (ids.expert[j] >= 0)
      place(source, row_of, counters[ids.expert[j] * n + warp] + before[j], ids.at(j), k);
}
