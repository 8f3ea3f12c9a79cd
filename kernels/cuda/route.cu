// Route and its gradient: a warp for a token. Bound: the bytes of logits and probs.
//   p = softmax(logits) (e = Exp2((x-max)*log2e), p = e*(1/tree(e))); the k largest by (p descending, expert ascending); norm divides by their sum in slot order
#include "definition.cuh"

// before orders (p, expert) pairs: larger p first, then the lower expert.
__device__ inline bool before(float p, int i, float q, int j) { return p > q || (p == q && i < j); }

KERNEL(route, float* weights, int* experts, float* probs, const float* logits, int rows, int e, int k, int ps, int ls, int norm) {
  int r = warp_row(), lane = warp_lane();
  if (r >= rows) return;
  const float* x = logits + (size_t)r * ls;
  float* p = probs + (size_t)r * ps;
  float m = largest(e, [&](int i) { return x[i]; });
  for (int i = lane; i < e; i += kWarp) p[i] = exp2_sub(x[i], kLog2E, m);
  __syncwarp();
  float scale = 1.f / tree(e, [&](int i) { return p[i]; });
  for (int i = lane; i < e; i += kWarp) p[i] = p[i] * scale;
  __syncwarp();
  float last = infinity(), sum = 0.f;
  int at = -1;
  for (int slot = 0; slot < k; slot++) {  // the first of the order after (last, at)
    float best = -1.f;
    int pick = e;
    for (int i = lane; i < e; i += kWarp)
      if (before(last, at, p[i], i) && before(p[i], i, best, pick)) best = p[i], pick = i;
#pragma unroll
    for (int s = 16; s > 0; s >>= 1) {
      float q = __shfl_xor_sync(~0u, best, s);
      int j = __shfl_xor_sync(~0u, pick, s);
      if (before(q, j, best, pick)) best = q, pick = j;
    }
    if (pick == e) pick = slot, best = p[slot];  // not a number: the loss tells
    if (lane == 0) experts[r * k + slot] = pick, weights[r * k + slot] = best;
    sum += best;
    last = best, at = pick;
  }
  __syncwarp();
  if (norm)
    for (int i = lane; i < k; i += kWarp) weights[r * k + i] = weights[r * k + i] / sum;
}

// With norm: z_i = w_i*(dw_i - sum_j w_j*dw_j) on selected experts, else p_j*([j selected]*dw - sum_i p_i*dw_i); sums in slot order.
KERNEL(route_backward, float* dlogits, const float* dweights, const float* weights, const int* experts, const float* probs, int rows, int e, int k, int ds,
       int ps, int norm) {
  int r = warp_row(), lane = warp_lane();
  if (r >= rows) return;
  float* dl = dlogits + (size_t)r * ds;
  const float* p = probs + (size_t)r * ps;
  const float *w = weights + r * k, *dw = dweights + r * k;
  const int* pick = experts + r * k;
  float sum = 0.f;
  for (int i = 0; i < k; i++) sum += (norm ? w[i] : p[pick[i]]) * dw[i];
  for (int j = lane; j < e; j += kWarp) dl[j] = norm ? 0.f : p[j] * (0.f - sum);
  __syncwarp();
  for (int i = lane; i < k; i += kWarp) dl[pick[i]] = (norm ? w[i] : p[pick[i]]) * (dw[i] - sum);
}
