// LogProb and its gradient: a block for a row, a warp for each vocabulary block of 1024, which it holds in registers,
// and one to merge them; the gradient, a thread for eight columns.
// Bound: the bytes of logits; with exp2 as a polynomial, instructions. On an H200, 4096 rows of 32,000: 121 us, 103% of
// a copy's bandwidth, by ex2h; 155 us, 80%, by poly. Before, a block was read twice and a thread merged them: 163 and
// 185 us.
//   z = x*inv; m_b = max, s_b = tree(Exp2((z-m_b)*log2e)); m' = max(m, m_b), s = s*Exp2((m-m')*log2e) +
//   s_b*Exp2((m_b-m')*log2e); logprob = (z_target - m) - Ln(s)
//   dlogits[j] = round((dlogprob*inv)*([j = target] - Exp2((z_j-m)*log2e)*(1/s)))
#include "rows.cuh"

constexpr int kVocabBlock = 1024, kPieces = kVocabBlock / kLanes, kThreads = 256;

// factor is the inverse temperature of a row.
__device__ inline float factor(const float* inv, int row) { return inv ? inv[row] : 1.f; }

// Merged is (m, s) of the blocks up to one. The maxima before each are the same in any order, so a warp has the factors
// of 32 blocks at once; s alone is a chain.
struct Merged {
  float m, s;
  __device__ void next(const float* ms, const float* sums, int count, bool first) {
    int t = warp_lane();
    float own = t < count ? ms[t] : -infinity(), most = own;
#pragma unroll
    for (int d = 1; d < kWarp; d <<= 1) {
      float below = __shfl_up_sync(~0u, most, d);
      if (t >= d) most = larger(most, below);
    }
    if (!first) most = larger(most, m);
    float before = __shfl_up_sync(~0u, most, 1);
    if (t == 0) before = first ? most : m;
    float keep = exp2_def((before - most) * kLog2E), add = t < count ? sums[t] * exp2_def((own - most) * kLog2E) : 0.f;
    for (int b = 0; b < count; b++) {
      float to = __shfl_sync(~0u, add, b), old = __shfl_sync(~0u, keep, b);
      s = first && b == 0 ? sums[0] : s * old + to;
    }
    m = __shfl_sync(~0u, most, count - 1);
  }
};

// Block is a whole block of a row, by a warp: thread t has columns 8t ... 8t+7 of every 256.
struct Block {
  Stored8<float> v[kPieces];
  __device__ explicit Block(const float* x) {
#pragma unroll
    for (int k = 0; k < kPieces; k++) v[k].load_whole(x + k * kLanes + warp_lane() * kEight);
  }
  __device__ float largest() const {
    float m = -infinity();
#pragma unroll
    for (int k = 0; k < kPieces; k++)
#pragma unroll
      for (int j = 0; j < kEight; j++) m = larger(m, v[k].q[j]);
#pragma unroll
    for (int bit = kWarp / 2; bit > 0; bit >>= 1) m = larger(m, __shfl_xor_sync(~0u, m, bit));
    return m + 0.f;
  }
  __device__ float sum(float m, float f) const {
    Lanes8 lanes;
#pragma unroll
    for (int k = 0; k < kPieces; k++)
#pragma unroll
      for (int j = 0; j < kEight; j++) lanes.v[j] += exp2_sub(v[k].q[j] * f, kLog2E, m);
    return lanes.sum<kWarp>();
  }
};

// block_of leaves (m, s) of n columns from x on, by a warp.
__device__ inline void block_of(float& m, float& s, const float* x, int n, float f) {
  if (n == kVocabBlock && whole(x, n)) {
    Block block(x);
    m = block.largest() * f;  // rounding keeps the order
    s = block.sum(m, f);
    return;
  }
  m = largest(n, [&](int i) { return x[i]; }) * f;
  s = tree(n, [&](int i) { return exp2_sub(x[i] * f, kLog2E, m); });
}

extern __shared__ float merging[];  // m, then s, of a row's blocks

extern "C" __global__ void __launch_bounds__(kThreads, 4)
    log_prob(float* logprob, float* stats, const float* logits, const int* targets, const float* inv, int cols, int ls,
             int ss) {
  int t = blockIdx.x, id = targets[t], count = (cols + kVocabBlock - 1) / kVocabBlock;
  float *ms = merging, *sums = merging + count, f = factor(inv, t);
  const float* x = logits + (size_t)t * ls;
#pragma unroll 1
  for (int b = threadIdx.x / kWarp; b < count; b += kThreads / kWarp) {
    float m, s;
    block_of(m, s, x + b * kVocabBlock, min(kVocabBlock, cols - b * kVocabBlock), f);
    if (warp_lane() == 0) ms[b] = m, sums[b] = s;
  }
  __syncthreads();
  if (threadIdx.x >= kWarp) return;
  float target = id < 0 ? 0.f : x[id] * f;
  Merged all;
  for (int from = 0; from < count; from += kWarp) all.next(ms + from, sums + from, min(kWarp, count - from), from == 0);
  if (threadIdx.x != 0) return;
  stats[(size_t)t * ss] = all.m, stats[(size_t)t * ss + 1] = all.s;
  logprob[t] = id < 0 ? 0.f : (target - all.m) - ln_def(all.s);
}

template <class T>
__device__ void log_prob_backward(T* dlogits, const float* dlogprob, const float* stats, const float* logits,
                                  const int* targets, const float* inv, int rows, int cols, int ds, int ls, int ss) {
  Piece at(cols);
  if (at.row >= rows) return;
  int id = targets[at.row], left = cols - at.col;
  float f = factor(inv, at.row), g = dlogprob[at.row] * f, m = stats[(size_t)at.row * ss],
        r = 1.f / stats[(size_t)at.row * ss + 1], v[kEight];
  load8(logits + (size_t)at.row * ls + at.col, left, v);
#pragma unroll
  for (int j = 0; j < kEight; j++) {
    float p = exp2_sub(v[j] * f, kLog2E, m);
    v[j] = id < 0 ? 0.f : g * ((at.col + j == id ? 1.f : 0.f) - p * r);
  }
  store8(dlogits + (size_t)at.row * ds + at.col, left, v);
}
#define LOG_PROB_BACKWARD(T)                                                                                          \
  (T * dlogits, const float* dlogprob, const float* stats, const float* logits, const int* targets, const float* inv, \
   int rows, int cols, int ds, int ls, int ss)
KERNELS(log_prob_backward, LOG_PROB_BACKWARD, (dlogits, dlogprob, stats, logits, targets, inv, rows, cols, ds, ls, ss))
