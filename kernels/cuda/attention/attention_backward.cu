// AttentionBackward as kernels/cpu/attention_backward.go states it: D_i, then dq by a block for 64 queries of a head
// (keys ascending), then dk and dv by a block for 64 keys of a KV head (heads of the group ascending, in each queries
// ascending). Nothing is added by atomics. Bound: 14*queries*keys*D flops, half of them masked.
#include "gradients.cuh"

// attention_delta: delta[t, h] = tree over the head dim of dout*out.
KERNEL(attention_delta, float* delta, const u16* dout, const u16* out, int rows, int heads, int dim, int ds, int os) {
  int at = warp_row();
  if (at >= rows * heads) return;
  const u16 *d = dout + (long long)(at / heads) * ds + at % heads * dim,
            *o = out + (long long)(at / heads) * os + at % heads * dim;
  float s = tree(dim, [&](int i) { return load(d, i) * load(o, i); });
  if (warp_lane() == 0) delta[at] = s;
}

template <int D, int V>
__device__ inline void grad_q(u16* dq, const u16* dout, const float* lse, const float* delta, const u16* q,
                              const u16* k, const u16* v, const Part* parts, int group, int dqs, int ds, int lses,
                              int qs, int ks, int vs, int window, float c, float scale) {
  constexpr int kDot = steps_of(D), kOut = steps_of(V), kSizeK = kRows * (kDot + 8), kSizeV = kRows * (kOut + 8);
  Part t = parts[blockIdx.x];
  u16 *sq = shared, *sd = sq + kSizeK, *sk = sd + kSizeV, *sv = sk + kSizeK;
  int lane = warp_lane(), first = threadIdx.x / kWarp * 16, count = min(kRows, t.rows - t.at), own_head = blockIdx.y,
      heads = gridDim.y, kv_head = own_head / group;
  long long row = t.row + t.at;
  load_rows<kDot, kRows, 128, D>(sq, count, [&](int i) { return q + (row + i) * qs + own_head * D; });
  load_rows<kOut, kRows, 128, V>(sd, count, [&](int i) { return dout + (row + i) * ds + own_head * V; });
  float own[2], sum[2], g[kDot / 8][4] = {};
#pragma unroll
  for (int h = 0; h < 2; h++) {
    int r = first + lane / 4 + 8 * h;
    own[h] = r < count ? lse[(row + r) * lses + own_head] : 0.f;
    sum[h] = r < count ? delta[(row + r) * heads + own_head] : 0.f;
  }
  int x = window ? max(0, t.at - window + 1) / kRows * kRows : 0;
  for (; x < t.at + count; x += kRows) {
    int n = min(kRows, t.rows - x);
    load_rows<kDot, kRows, 128, D>(sk, n, [&](int i) { return k + (long long)(t.row + x + i) * ks + kv_head * D; });
    load_rows<kOut, kRows, 128, V>(sv, n, [&](int i) { return v + (long long)(t.row + x + i) * vs + kv_head * V; });
    commit();
    wait<0>();
    __syncthreads();
    float p[8][4], e[8][4];
    scores<kDot>(p, sq, first, sk);
    scores<kOut>(e, sd, first, sv);
#pragma unroll
    for (int j = 0; j < 8; j++)
#pragma unroll
      for (int w = 0; w < 4; w++) {
        bool seen = keys_of(t.at + first + lane / 4 + w / 2 * 8, t.rows, window).has(x + lane % 4 * 2 + j * 8 + w % 2);
        gradients(p[j][w], e[j][w], seen, c, own[w / 2], sum[w / 2], scale);
      }
    u32 packed[4][4];
    pack(packed, e);
    accumulate<kDot>(g, packed, sk);
    __syncthreads();
  }
  put<D>(dq + row * dqs + own_head * D, g, dqs, first, count);
}

#define GRADIENTS(name, D, V)                                                                                          \
  extern "C" __global__ void __launch_bounds__(128)                                                                    \
      attention_dq_##name(u16* dq, const u16* dout, const float* lse, const float* delta, const u16* q, const u16* k,  \
                          const u16* v, const Part* parts, int group, int dqs, int ds, int lses, int qs, int ks,       \
                          int vs, int window, float c, float scale) {                                                  \
    grad_q<D, V>(dq, dout, lse, delta, q, k, v, parts, group, dqs, ds, lses, qs, ks, vs, window, c, scale);            \
  }                                                                                                                    \
  extern "C" __global__ void __launch_bounds__(128 * key_teams(D, V))                                                  \
      attention_dkv_##name(u16* dk, u16* dv, const u16* dout, const float* lse, const float* delta, const u16* q,      \
                           const u16* k, const u16* v, const Part* parts, int group, int dks, int dvs, int ds,         \
                           int lses, int qs, int ks, int vs, int window, float c, float scale) {                       \
    grad_kv<D, V>(dk, dv, dout, lse, delta, q, k, v, parts[blockIdx.x], group, dks, dvs, ds, lses, qs, ks, vs, window, \
                  c, scale);                                                                                           \
  }
GRADIENTS(16, 16, 16)
GRADIENTS(32, 32, 32)
GRADIENTS(64, 64, 64)
GRADIENTS(96, 96, 96)
GRADIENTS(128, 128, 128)
GRADIENTS(24, 24, 24)
GRADIENTS(24_16, 24, 16)
GRADIENTS(192_128, 192, 128)
GRADIENTS(256, 256, 256)
