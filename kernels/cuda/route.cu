// Route and its gradient: a warp for a token. Bound: the bytes of logits and probs.
//   p = softmax(logits) (e = Exp2((x-max)*log2e), p = e*(1/tree(e))) or sigm(logits); b = p + bias; the k largest by (b descending, expert ascending) of the best groups;
//   logits are rounded first by Definition.Router
#include "definition.cuh"

// before orders (score, index) pairs: larger scores first, then the lower index.
__device__ inline bool before(float p, int i, float q, int j) { return p > q || (p == q && i < j); }

// following is the first of the order after (last, at) among score(0) ... score(n-1), which are numbers; by one warp. n: there is none.
template <class F>
__device__ inline int following(int n, float last, int at, F score, float* best) {
  float p = -infinity();
  int pick = n;
  for (int i = warp_lane(); i < n; i += kWarp) {
    float q = score(i);
    if (before(last, at, q, i) && before(q, i, p, pick)) p = q, pick = i;
  }
#pragma unroll
  for (int s = 16; s > 0; s >>= 1) {
    float q = __shfl_xor_sync(~0u, p, s);
    int j = __shfl_xor_sync(~0u, pick, s);
    if (before(q, j, p, pick)) p = q, pick = j;
  }
  *best = p;
  return pick;
}

// two_largest adds the two largest scores of [from, to), by one warp.
template <class F>
__device__ inline float two_largest(int from, int to, F score) {
  float first = -infinity(), second = -infinity();
  for (int i = from + warp_lane(); i < to; i += kWarp) {
    float v = score(i);
    second = fmaxf(second, fminf(first, v)), first = fmaxf(first, v);
  }
#pragma unroll
  for (int s = 16; s > 0; s >>= 1) {
    float p = __shfl_xor_sync(~0u, first, s), q = __shfl_xor_sync(~0u, second, s);
    second = fmaxf(fmaxf(second, q), fminf(first, p)), first = fmaxf(first, p);
  }
  return first + second;
}

// best_groups is a bit for each of the `top` groups of n experts whose two largest scores add up to most; lane g holds the score of group g.
template <class F>
__device__ inline u32 best_groups(int groups, int top, int n, F score) {
  float mine = -infinity();
  for (int g = 0; g < groups; g++) {
    float v = two_largest(g * n, (g + 1) * n, score);
    if (warp_lane() == g) mine = v;
  }
  u32 kept = 0;
  float last = infinity();
  int at = -1;
  for (int i = 0; i < top; i++) {
    at = following(groups, last, at, [&](int) { return mine; }, &last);
    kept |= 1u << at;
  }
  return kept;
}

KERNEL(route, float* weights, int* experts, float* probs, const float* logits, const float* bias, int rows, int e, int k, int ps, int ls, int sigmoid, int groups,
       int top, int norm, float epsilon, float factor) {
  int r = warp_row(), lane = warp_lane();
  if (r >= rows) return;
  const float* x = logits + (size_t)r * ls;
  float* p = probs + (size_t)r * ps;
  if (sigmoid) {
    for (int i = lane; i < e; i += kWarp) p[i] = sigmoid_def(round_router(x[i]));
  } else {
    float m = largest(e, [&](int i) { return round_router(x[i]); });
    for (int i = lane; i < e; i += kWarp) p[i] = exp2_sub(round_router(x[i]), kLog2E, m);
    __syncwarp();
    float scale = 1.f / tree(e, [&](int i) { return p[i]; });
    for (int i = lane; i < e; i += kWarp) p[i] = p[i] * scale;
  }
  __syncwarp();
  auto biased = [&](int i) {
    float b = bias ? p[i] + bias[i] : p[i];
    return b == b ? b : -infinity();
  };
  u32 kept = groups ? best_groups(groups, top, e / groups, biased) : 0;
  auto score = [&](int i) { return groups && !(kept >> i / (e / groups) & 1) ? -infinity() : biased(i); };
  float last = infinity(), sum = 0.f;
  int at = -1;
  for (int slot = 0; slot < k; slot++) {
    at = following(e, last, at, score, &last);
    if (lane == 0) experts[r * k + slot] = at, weights[r * k + slot] = p[at];
    sum += p[at];
  }
  __syncwarp();
  for (int i = lane; i < k; i += kWarp) {
    float w = weights[r * k + i];
    if (norm) w = w / (sum + epsilon);
    weights[r * k + i] = w * factor;
  }
}

// The gradient as kernels/device.go states it; sums in slot order.
KERNEL(route_backward, float* dlogits, const float* dweights, const float* weights, const int* experts, const float* probs, int rows, int e, int k, int ds,
       int ps, int sigmoid, int norm, float factor) {
  int r = warp_row(), lane = warp_lane();
  if (r >= rows) return;
  float* dl = dlogits + (size_t)r * ds;
  const float* p = probs + (size_t)r * ps;
  const float *w = weights + r * k, *dw = dweights + r * k;
  const int* pick = experts + r * k;
  bool chosen = sigmoid || norm;  // only selected experts have a gradient
  float sum = 0.f;
  for (int i = 0; i < k; i++) sum += chosen ? w[i] * dw[i] : p[pick[i]] * (dw[i] * factor);
  float mean = norm ? sum / factor : 0.f;
  for (int j = lane; j < e; j += kWarp) dl[j] = chosen ? 0.f : p[j] * (0.f - sum);
  __syncwarp();
  for (int i = lane; i < k; i += kWarp) {
    float q = p[pick[i]];
    float z = chosen ? w[i] * (dw[i] - mean) : q * (dw[i] * factor - sum);
    dl[pick[i]] = sigmoid ? z * (1.f - q) : z;
  }
}
