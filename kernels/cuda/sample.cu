// Sample: a block for a row, as kernels/cpu/sample.go states it: the order is (logit descending, id ascending). Bound: the bytes of the logits, once without top-k
// and top-p, else once for each id that is kept.
#include "definition.cuh"

constexpr int kThreads = 512, kVocabBlock = 1024, kMost = 4096;

struct Draw {
  float inv;  // 1/temperature; 0: the first of the order
  float top_p, u;
  int top_k;
};

struct Pick {
  float x;
  int id;
};
__device__ inline bool before(Pick a, Pick b) { return a.x > b.x || (a.x == b.x && a.id < b.id); }

// next is the first of the order after `last`, for the whole block.
__device__ Pick next(const float* x, int n, Pick last, Pick* shared) {
  Pick best = {-infinity(), n};
  for (int i = threadIdx.x; i < n; i += kThreads) {
    Pick p = {x[i], i};
    if (before(last, p) && before(p, best)) best = p;
  }
#pragma unroll
  for (int s = 16; s > 0; s >>= 1) {
    Pick p = {__shfl_xor_sync(~0u, best.x, s), __shfl_xor_sync(~0u, best.id, s)};
    if (before(p, best)) best = p;
  }
  __syncthreads();
  if (warp_lane() == 0) shared[threadIdx.x / kWarp] = best;
  __syncthreads();
  for (int w = 0; w < kThreads / kWarp; w++)
    if (before(shared[w], best)) best = shared[w];
  return best;
}

// kept walks the order and returns the number of ids kept and the running sum of their e; or, with an edge, the first id whose sum exceeds it.
__device__ int walk(const float* x, int n, const Draw& d, float m, float total, int want, float edge, float& sum, Pick* shared) {
  Pick p = {infinity(), -1};
  sum = 0.f;
  for (int i = 0; i < want; i++) {
    p = next(x, n, p, shared);
    sum += exp2_sub(p.x * d.inv, kLog2E, m);
    if (edge >= 0.f && sum > edge) return p.id;
    if (edge < 0.f && total > 0.f && sum / total >= d.top_p) return i + 1;
  }
  return edge < 0.f ? want : p.id;
}

KERNEL(sample, int* ids, const float* logits, const Draw* draws, int cols, int ls) {
  __shared__ Pick shared[kThreads / kWarp];
  __shared__ float sums[kMost];
  __shared__ int chosen;
  int t = blockIdx.x;
  const float* x = logits + (size_t)t * ls;
  Draw d = draws[t];
  Pick best = next(x, cols, Pick{infinity(), -1}, shared);
  float m = best.x * d.inv;
  if (d.inv == 0.f || !(fabsf(m) < infinity())) {
    if (threadIdx.x == 0) ids[t] = best.id;
    return;
  }
  int count = (cols + kVocabBlock - 1) / kVocabBlock;
  for (int b = threadIdx.x / kWarp; b < count; b += kThreads / kWarp) {
    const float* v = x + b * kVocabBlock;
    float s = tree(min(kVocabBlock, cols - b * kVocabBlock), [&](int i) { return exp2_sub(v[i] * d.inv, kLog2E, m); });
    if (warp_lane() == 0) sums[b] = s;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    float sum = 0.f;
    for (int b = 0; b < count; b++) sums[b] = sum = sum + sums[b];
  }
  __syncthreads();
  float total = sums[count - 1];
  if (d.top_k <= 0 && d.top_p >= 1.f) {
    if (threadIdx.x == 0) {
      float edge = d.u * total, sum = 0.f;
      int b = 0, last = -1;
      for (; sums[b] <= edge; b++) sum = sums[b];
      for (int j = b * kVocabBlock; j < min((b + 1) * kVocabBlock, cols); j++) {
        float e = exp2_sub(x[j] * d.inv, kLog2E, m);
        if (e == 0.f) continue;
        last = j;
        sum += e;
        if (sum > edge) break;
      }
      ids[t] = last;
    }
    return;
  }
  float sum;
  int kept;
  if (d.top_k > 0) {
    kept = min(cols, d.top_k);
    walk(x, cols, d, m, 0.f, kept, -1.f, sum, shared);
    if (d.top_p < 1.f) kept = walk(x, cols, d, m, sum, kept, -1.f, sum, shared);
  } else {
    kept = walk(x, cols, d, m, total, cols, -1.f, sum, shared);
  }
  chosen = walk(x, cols, d, m, 0.f, kept, d.u * sum, sum, shared);
  if (threadIdx.x == 0) ids[t] = chosen;
}
