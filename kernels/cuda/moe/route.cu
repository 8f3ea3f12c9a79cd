// Route and its gradient: a warp for a token. Of the forward a lane keeps N experts in registers: lane, lane+32, ...
// Bound: the bytes of logits and probs; of few tokens, as in decoding, what waits for what: the choice is two
// reductions of a warp for each slot.
//   p = softmax(logits) (e = Exp2((x-max)*log2e), p = e*(1/tree(e))) or sigm(logits); b = p + bias; the k largest by (b
//   descending, expert ascending) of the best groups;
//   logits are rounded first by Definition.Router
#include "definition.cuh"

// ordered is an integer that orders as the score does, which is not 0; what is not a number counts as -Inf.
__device__ inline u32 ordered(float score) {
  u32 b = __float_as_uint(score == score ? score + 0.f : -infinity());
  return b >> 31 ? ~b : b | 0x80000000u;
}

// Ranking is the scores of a warp that are not yet taken, as ordered integers; others are 0.
template <int N>
struct Ranking {
  u32 key[N];

  // take removes the first by (score descending, index ascending), and calls f(j) of the thread whose key j it was.
  template <class F>
  __device__ int take(F f) {
    u32 top = 0, first = ~0u;
#pragma unroll
    for (int j = 0; j < N; j++) top = max(top, key[j]);
    top = __reduce_max_sync(~0u, top);
#pragma unroll
    for (int j = N - 1; j >= 0; j--)
      if (key[j] == top) first = j * kWarp + warp_lane();
    first = __reduce_min_sync(~0u, first);
#pragma unroll
    for (int j = 0; j < N; j++)
      if (j * kWarp + warp_lane() == first) key[j] = 0, f(j);
    return first;
  }
};

// two_largest adds the two largest scores of experts from ... to-1.
template <int N>
__device__ inline float two_largest(const float* score, int from, int to) {
  float first = -infinity(), second = -infinity();
#pragma unroll
  for (int j = 0; j < N; j++) {
    int i = j * kWarp + warp_lane();
    float v = i >= from && i < to ? score[j] : -infinity();
    second = fmaxf(second, fminf(first, v)), first = fmaxf(first, v);
  }
#pragma unroll
  for (int s = 16; s > 0; s >>= 1) {
    float p = __shfl_xor_sync(~0u, first, s), q = __shfl_xor_sync(~0u, second, s);
    second = fmaxf(fmaxf(second, q), fminf(first, p)), first = fmaxf(first, p);
  }
  return first + second;
}

// best_groups is a bit for each of the `top` groups of n experts whose two largest scores add up to most.
template <int N>
__device__ inline u32 best_groups(const float* score, int groups, int top, int n) {
  Ranking<1> ranking = {0};
#pragma unroll 4
  for (int g = 0; g < groups; g++) {
    float v = two_largest<N>(score, g * n, (g + 1) * n);
    if (warp_lane() == g) ranking.key[0] = ordered(v);
  }
  u32 kept = 0;
  for (int i = 0; i < top; i++) kept |= 1u << ranking.take([](int) {});
  return kept;
}

// softmax of n numbers; by one warp.
template <int N>
__device__ inline void softmax(float* x, int n) {
  float m = -infinity();
#pragma unroll
  for (int j = 0; j < N; j++) m = fmaxf(m, x[j]);
#pragma unroll
  for (int s = 16; s > 0; s >>= 1) m = fmaxf(m, __shfl_xor_sync(~0u, m, s));
  m = m + 0.f;  // -0 becomes +0, as of largest
  Lanes lanes;
#pragma unroll
  for (int j = 0; j < N; j++) {
    x[j] = exp2_sub(x[j], kLog2E, m);
    if (j * kWarp + warp_lane() < n) lanes.v[j % (kLanes / kWarp)] += x[j];
  }
  float scale = 1.f / lanes.sum();
#pragma unroll
  for (int j = 0; j < N; j++) x[j] = x[j] * scale;
}

// Slots are at most 32: a lane has one.
template <int N>
__device__ inline void route(float* weights, int* experts, float* probs, const float* logits, const float* bias,
                             int rows, int e, int k, int ps, int ls, int sigmoid, int groups, int top, int norm,
                             float epsilon, float factor) {
  int r = warp_row(), lane = warp_lane();
  if (r >= rows) return;
  float p[N], score[N];
#pragma unroll
  for (int j = 0; j < N; j++) {
    int i = j * kWarp + lane;
    p[j] = i < e ? round_router(logits[(size_t)r * ls + i]) : -infinity();
    score[j] = bias && i < e ? bias[i] : 0.f;
  }
  if (sigmoid) {
#pragma unroll
    for (int j = 0; j < N; j++) p[j] = sigmoid_def(p[j]);
  } else {
    softmax<N>(p, e);
  }
#pragma unroll
  for (int j = 0; j < N; j++) {
    int i = j * kWarp + lane;
    if (i < e) probs[(size_t)r * ps + i] = p[j];
    float b = bias ? p[j] + score[j] : p[j];
    score[j] = b == b ? b : -infinity();
  }
  u32 kept = groups ? best_groups<N>(score, groups, top, e / groups) : 0;
  Ranking<N> ranking;
#pragma unroll
  for (int j = 0; j < N; j++) {
    int i = j * kWarp + lane;
    bool out = groups && !(kept >> min(i, e - 1) / (e / groups) & 1);
    ranking.key[j] = i < e ? ordered(out ? -infinity() : score[j]) : 0;
  }
  int expert = 0;
  float weight = 0.f, sum = 0.f;
  for (int slot = 0; slot < k; slot++) {
    float taken = 0.f;
    int at = ranking.take([&](int j) { taken = p[j]; });
    taken = __shfl_sync(~0u, taken, at % kWarp);
    if (lane == slot) expert = at, weight = taken;
    sum += taken;
  }
  if (lane >= k) return;
  experts[r * k + lane] = expert;
  weights[r * k + lane] = (norm ? weight / (sum + epsilon) : weight) * factor;
}

#define ROUTE(N)                                                                                                      \
  KERNEL(route_##N, float* weights, int* experts, float* probs, const float* logits, const float* bias, int rows,     \
         int e, int k, int ps, int ls, int sigmoid, int groups, int top, int norm, float epsilon, float factor) {     \
    route<N>(weights, experts, probs, logits, bias, rows, e, k, ps, ls, sigmoid, groups, top, norm, epsilon, factor); \
  }
// As route.go has them.
ROUTE(4)
ROUTE(8)
ROUTE(16)
ROUTE(32)

// The gradient as kernels/device.go states it; sums in slot order.
KERNEL(route_backward, float* dlogits, const float* dweights, const float* weights, const int* experts,
       const float* probs, int rows, int e, int k, int ds, int ps, int sigmoid, int norm, float factor) {
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
