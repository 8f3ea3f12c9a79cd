// LogProb and its gradient: a block for a row, a warp for each vocabulary block of 1024, thread 0 merges ascending; the gradient, a thread for eight columns. Bound: the bytes of logits.
//   z = x*inv; m_b = max, s_b = tree(Exp2((z-m_b)*log2e)); m' = max(m, m_b), s = s*Exp2((m-m')*log2e) + s_b*Exp2((m_b-m')*log2e); logprob = (z_target - m) - Ln(s)
//   dlogits[j] = round((dlogprob*inv)*([j = target] - Exp2((z_j-m)*log2e)*(1/s)))
#include "rows.cuh"

constexpr int kVocabBlock = 1024, kMost = 4096;  // blocks of a row: 4 million columns

// factor is the inverse temperature of a row.
__device__ inline float factor(const float* inv, int row) { return inv ? inv[row] : 1.f; }

KERNEL(log_prob, float* logprob, float* stats, const float* logits, const int* targets, const float* inv, int cols, int ls, int ss) {
  __shared__ float ms[kMost], sums[kMost];
  int t = blockIdx.x, count = (cols + kVocabBlock - 1) / kVocabBlock;
  const float* x = logits + (size_t)t * ls;
  float f = factor(inv, t);
  for (int b = threadIdx.x / kWarp; b < count; b += blockDim.x / kWarp) {
    const float* v = x + b * kVocabBlock;
    int n = min(kVocabBlock, cols - b * kVocabBlock);
    float m = largest(n, [&](int i) { return v[i]; }) * f;  // rounding keeps the order
    float s = tree(n, [&](int i) { return exp2_sub(v[i] * f, kLog2E, m); });
    if (warp_lane() == 0) ms[b] = m, sums[b] = s;
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  float m = ms[0], s = sums[0];
  for (int b = 1; b < count; b++) {
    float to = fmaxf(m, ms[b]);
    s = s * exp2_def((m - to) * kLog2E) + sums[b] * exp2_def((ms[b] - to) * kLog2E);
    m = to;
  }
  stats[(size_t)t * ss] = m, stats[(size_t)t * ss + 1] = s;
  int id = targets[t];
  logprob[t] = id < 0 ? 0.f : (x[id] * f - m) - ln_def(s);
}

template <class T>
__device__ void log_prob_backward(T* dlogits, const float* dlogprob, const float* stats, const float* logits, const int* targets, const float* inv, int rows,
                                  int cols, int ds, int ls, int ss) {
  Piece at(cols);
  if (at.row >= rows) return;
  int id = targets[at.row], left = cols - at.col;
  float f = factor(inv, at.row), g = dlogprob[at.row] * f, m = stats[(size_t)at.row * ss], r = 1.f / stats[(size_t)at.row * ss + 1], v[kEight];
  load8(logits + (size_t)at.row * ls + at.col, left, v);
#pragma unroll
  for (int j = 0; j < kEight; j++) {
    float p = exp2_sub(v[j] * f, kLog2E, m);
    v[j] = id < 0 ? 0.f : g * ((at.col + j == id ? 1.f : 0.f) - p * r);
  }
  store8(dlogits + (size_t)at.row * ds + at.col, left, v);
}
#define LOG_PROB_BACKWARD(T)                                                                                                                        \
  (T * dlogits, const float* dlogprob, const float* stats, const float* logits, const int* targets, const float* inv, int rows, int cols, int ds, int ls, int ss)
KERNELS(log_prob_backward, LOG_PROB_BACKWARD, (dlogits, dlogprob, stats, logits, targets, inv, rows, cols, ds, ls, ss))
