// AttentionBackward with Hopper's wgmma, rules as in attention_backward.cu: a warpgroup for 64 queries of a head (dq) or 64 keys of a KV head (dk, dv), two or more on a
// multiprocessor, so that one computes p and ds while the other multiplies. Bound: 14*queries*keys*D flops, half of them masked; S and dP are computed twice, 18.
#include "warpgroup.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

extern __shared__ __align__(1024) char shared[];

// The rows of a block in two tiles, and what it walks over in two tiles of two stages each.
template <int D>
struct Tiles {
  static constexpr int kTile = D / 64 * kPanel;
  __device__ static char* rows(int which) { return shared + which * kTile; }
  __device__ static char* walk(int which, int stage) { return shared + (2 + 2 * stage + which) * kTile; }
  __device__ static float* values(int stage) { return (float*)(shared + 6 * kTile) + stage * 2 * kRows; }
};

template <int D>
__device__ inline void fetch(char* to, const u16* from, int stride, int count) {
  load_tile<D, 128>(to, count, [&](int r) { return from + (long long)r * stride; });
}

// products begins s = a b^T for the rows and the walk of both tiles, a group each.
template <int D>
__device__ inline void products(float (&s)[8][4], float (&e)[8][4], int stage) {
  using T = Tiles<D>;
  u64 a[2] = {describe(T::rows(0)), describe(T::rows(1))}, b[2] = {describe(T::walk(0, stage)), describe(T::walk(1, stage))};
  hold(s), hold(e);
  group_begin();
#pragma unroll
  for (int k = 0; k < D; k += 16) dots(s, by_columns(a[0], k), by_columns(b[0], k), k > 0);
  group_end();
#pragma unroll
  for (int k = 0; k < D; k += 16) dots(e, by_columns(a[1], k), by_columns(b[1], k), k > 0);
  group_end();
}

// adds begins g += p b in a group of its own.
template <int D>
__device__ inline void adds(float (&g)[D / 8][4], const u32 (&p)[4][4], const char* b) {
  u64 y = describe(b);
  hold(g);
  group_begin();
#pragma unroll
  for (int k = 0; k < 4; k++) chain(g, p[k], by_rows(y, 16 * k));
  group_end();
}

template <int D>
__device__ inline void put(u16* to, const float (&x)[D / 8][4], int stride, int count) {
  int lane = warp_lane();
#pragma unroll
  for (int h = 0; h < 2; h++) {
    int r = threadIdx.x / kWarp * 16 + lane / 4 + 8 * h;
    if (r >= count) continue;
#pragma unroll
    for (int j = 0; j < D / 8; j++) *(u32*)(to + (long long)r * stride + j * 8 + lane % 4 * 2) = pair(x[j][2 * h] + 0.f, x[j][2 * h + 1] + 0.f);
  }
}

template <int D>
__device__ inline void grad_q(u16* dq, const u16* dout, const float* lse, const float* delta, const u16* q, const u16* k, const u16* v, const Part* parts, int group, int dqs,
                              int ds, int lses, int qs, int ks, int vs, int window, float c, float scale) {
  using T = Tiles<D>;
  Part t = parts[blockIdx.x];
  int lane = warp_lane(), head = blockIdx.y, heads = gridDim.y, first = threadIdx.x / kWarp * 16 + lane / 4, count = min(kRows, t.rows - t.at);
  long long row = t.row + t.at;
  k += (long long)t.row * ks + head / group * D, v += (long long)t.row * vs + head / group * D;
  int x = window ? max(0, t.at - window + 1) / kRows * kRows : 0, end = t.at + count;
  auto load = [&](int x, int stage) {
    fetch<D>(T::walk(0, stage), k + (long long)x * ks, ks, t.rows - x);
    fetch<D>(T::walk(1, stage), v + (long long)x * vs, vs, t.rows - x);
    commit();
  };
  fetch<D>(T::rows(0), q + row * qs + head * D, qs, count);
  fetch<D>(T::rows(1), dout + row * ds + head * D, ds, count);
  load(x, 0);
  Range seen[2];
  float own[2], sum[2], g[D / 8][4] = {}, p[8][4] = {}, e[8][4] = {};
#pragma unroll
  for (int h = 0; h < 2; h++) {
    int r = first + 8 * h;
    own[h] = r < count ? lse[(row + r) * lses + head] : 0.f;
    sum[h] = r < count ? delta[(row + r) * heads + head] : 0.f;
    seen[h] = keys_of(t.at + r, t.rows, window);
  }
#pragma unroll 1
  for (int stage = 0; x < end; x += kRows, stage ^= 1) {
    arrived();
    __syncthreads();
    products<D>(p, e, stage);
    if (x + kRows < end) load(x + kRows, stage ^ 1);
    group_wait<1>();
    hold(p);
    bool full = all_visible(t.at, t.at + kRows - 1, x, window);
#pragma unroll
    for (int j = 0; j < 8; j++)
#pragma unroll
      for (int w = 0; w < 4; w++) {
        p[j][w] = exp2_number(fminf(p[j][w] * c - own[w / 2], 0.f));
        if (!full) p[j][w] = seen[w / 2].has(x + lane % 4 * 2 + j * 8 + w % 2) ? p[j][w] : 0.f;
      }
    group_wait<0>();
    hold(e);
#pragma unroll
    for (int j = 0; j < 8; j++)
#pragma unroll
      for (int w = 0; w < 4; w++) e[j][w] = (p[j][w] * (e[j][w] - sum[w / 2])) * scale;
    u32 packed[4][4];
    pack(packed, e);
    adds<D>(g, packed, T::walk(0, stage));
    group_wait<0>();
    hold(g);
  }
  put<D>(dq + row * dqs + head * D, g, dqs, count);
}

template <int D>
__device__ inline void grad_kv(u16* dk, u16* dv, const u16* dout, const float* lse, const float* delta, const u16* q, const u16* k, const u16* v, const Part* parts, int group,
                               int dks, int dvs, int ds, int lses, int qs, int ks, int vs, int window, float c, float scale) {
  using T = Tiles<D>;
  Part t = parts[blockIdx.x];
  int lane = warp_lane(), kv_head = blockIdx.y, heads = gridDim.y * group, first = threadIdx.x / kWarp * 16 + lane / 4, count = min(kRows, t.rows - t.at);
  long long row = t.row + t.at;
  int end = window ? min(t.rows, t.at + count + window - 1) : t.rows, each = (end - t.at + kRows - 1) / kRows, blocks = each * group;
  auto load = [&](int i, int stage) {  // block i: heads ascending, in each queries ascending
    int head = kv_head * group + i / each, x = t.at + i % each * kRows, n = end - x;
    long long at = t.row + x;
    fetch<D>(T::walk(0, stage), q + at * qs + head * D, qs, n);
    fetch<D>(T::walk(1, stage), dout + at * ds + head * D, ds, n);
    int r = threadIdx.x % kRows;
    const float* from = threadIdx.x < kRows ? lse + (at + (r < n ? r : 0)) * lses + head : delta + (at + (r < n ? r : 0)) * heads + head;
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(T::values(stage) + threadIdx.x)), "l"(from), "r"(r < n ? 4 : 0));
    commit();
  };
  fetch<D>(T::rows(0), k + row * ks + kv_head * D, ks, count);
  fetch<D>(T::rows(1), v + row * vs + kv_head * D, vs, count);
  load(0, 0);
  Range seeing[2] = {queries_of(t.at + first, end, window), queries_of(t.at + first + 8, end, window)};
  float gk[D / 8][4] = {}, gv[D / 8][4] = {}, p[8][4] = {}, e[8][4] = {};
#pragma unroll 1
  for (int i = 0, stage = 0; i < blocks; i++, stage ^= 1) {
    int x = t.at + i % each * kRows;
    arrived();
    __syncthreads();
    products<D>(p, e, stage);
    if (i + 1 < blocks) load(i + 1, stage ^ 1);
    const float2* own = (const float2*)T::values(stage) + lane % 4;
    group_wait<1>();
    hold(p);
    bool full = x + kRows <= end && all_visible(x, x + kRows - 1, t.at, window);
#pragma unroll
    for (int j = 0; j < 8; j++) {
      float2 l = own[4 * j];
#pragma unroll
      for (int w = 0; w < 4; w++) {
        p[j][w] = exp2_number(fminf(p[j][w] * c - (w % 2 ? l.y : l.x), 0.f));
        if (!full) p[j][w] = seeing[w / 2].has(x + lane % 4 * 2 + j * 8 + w % 2) ? p[j][w] : 0.f;
      }
    }
    u32 packed[4][4], other[4][4];
    pack(packed, p);
    group_wait<0>();
    hold(e);
    adds<D>(gv, packed, T::walk(1, stage));
#pragma unroll
    for (int j = 0; j < 8; j++) {
      float2 d = own[kRows / 2 + 4 * j];
#pragma unroll
      for (int w = 0; w < 4; w++) e[j][w] = (p[j][w] * (e[j][w] - (w % 2 ? d.y : d.x))) * scale;
    }
    pack(other, e);
    adds<D>(gk, other, T::walk(0, stage));
    group_wait<0>();
    hold(gk), hold(gv);
  }
  put<D>(dk + row * dks + kv_head * D, gk, dks, count);
  put<D>(dv + row * dvs + kv_head * D, gv, dvs, count);
}

#define GRADIENTS(D)                                                                                                                                                      \
  extern "C" __global__ void __launch_bounds__(128, 2)                                                                                                                    \
  attention_dq_wide_##D(u16* dq, const u16* dout, const float* lse, const float* delta, const u16* q, const u16* k, const u16* v, const Part* parts, int group, int dqs,   \
                        int ds, int lses, int qs, int ks, int vs, int window, float c, float scale) {                                                                     \
    grad_q<D>(dq, dout, lse, delta, q, k, v, parts, group, dqs, ds, lses, qs, ks, vs, window, c, scale);                                                                  \
  }                                                                                                                                                                       \
  extern "C" __global__ void __launch_bounds__(128, 2)                                                                                                                    \
  attention_dkv_wide_##D(u16* dk, u16* dv, const u16* dout, const float* lse, const float* delta, const u16* q, const u16* k, const u16* v, const Part* parts, int group,  \
                         int dks, int dvs, int ds, int lses, int qs, int ks, int vs, int window, float c, float scale) {                                                  \
    grad_kv<D>(dk, dv, dout, lse, delta, q, k, v, parts, group, dks, dvs, ds, lses, qs, ks, vs, window, c, scale);                                                        \
  }
GRADIENTS(64)
GRADIENTS(128)

#endif
