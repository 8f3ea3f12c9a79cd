// What the kernels of gradients of attention by mma.sync share: dk and dv of a block of keys.
#pragma once
#include "attention.cuh"

extern __shared__ __align__(16) u16 shared[];

// key_teams is how many teams of four warps take dk and dv: where the accumulators of both do not fit the registers of
// a thread, one team takes dk and another dv.
constexpr int key_teams(int d, int v) { return steps_of(d) + steps_of(v) > 384 ? 2 : 1; }

// grad_kv: dk and dv of 64 keys of a KV head, from the queries that see one of them in blocks of 64.
template <int D, int V>
__device__ inline void grad_kv(u16* dk, u16* dv, const u16* dout, const float* lse, const float* delta, const u16* q,
                               const u16* k, const u16* v, const Part& t, int group, int dks, int dvs, int ds, int lses,
                               int qs, int ks, int vs, int window, float c, float scale) {
  constexpr int kDot = steps_of(D), kOut = steps_of(V), kSizeK = kRows * (kDot + 8), kSizeV = kRows * (kOut + 8),
                kTeams = key_teams(D, V), kThreads = 128 * kTeams;
  static_assert(kTeams == 1 || kDot == kOut, "two teams have accumulators of one size");
  __shared__ float own[kRows], sum[kRows];
  u16 *sq = shared, *sd = sq + kSizeK, *sk = sd + kSizeV, *sv = sk + kSizeK;
  int own_head = blockIdx.y, heads = gridDim.y * group, lane = warp_lane(), first = threadIdx.x % 128 / kWarp * 16,
      count = min(kRows, t.rows - t.at);
  bool takes_k = kTeams == 1 || threadIdx.x < 128, takes_v = kTeams == 1 || !takes_k;
  int end = window ? min(t.rows, t.at + count + window - 1) : t.rows;
  long long row = t.row + t.at;
  load_rows<kDot, kRows, kThreads, D>(sk, count, [&](int i) { return k + (row + i) * ks + own_head * D; });
  load_rows<kOut, kRows, kThreads, V>(sv, count, [&](int i) { return v + (row + i) * vs + own_head * V; });
  float g[kDot / 8][4] = {}, gv[kTeams == 1 ? kOut / 8 : 1][4] = {};  // g: dk, or of two teams what each takes
  for (int head = own_head * group; head < (own_head + 1) * group; head++)
    for (int x = t.at; x < end; x += kRows) {
      int n = min(kRows, t.rows - x);
      load_rows<kDot, kRows, kThreads, D>(sq, n, [&](int i) { return q + (long long)(t.row + x + i) * qs + head * D; });
      load_rows<kOut, kRows, kThreads, V>(sd, n,
                                          [&](int i) { return dout + (long long)(t.row + x + i) * ds + head * V; });
      if (threadIdx.x < kRows) {
        bool in = threadIdx.x < n;
        long long at = t.row + x + (in ? threadIdx.x : 0);
        own[threadIdx.x] = in ? lse[at * lses + head] : 0.f, sum[threadIdx.x] = in ? delta[at * heads + head] : 0.f;
      }
      commit();
      wait<0>();
      __syncthreads();
      float p[8][4], e[8][4] = {};
      scores<kDot>(p, sk, first, sq);
      if (takes_k) scores<kOut>(e, sv, first, sd);
#pragma unroll
      for (int j = 0; j < 8; j++)
#pragma unroll
        for (int w = 0; w < 4; w++) {
          int i = lane % 4 * 2 + j * 8 + w % 2;
          gradients(p[j][w], e[j][w], queries_of(t.at + first + lane / 4 + w / 2 * 8, end, window).has(x + i), c,
                    own[i], sum[i], scale);
        }
      u32 packed[4][4];
      if constexpr (kTeams == 1) {
        pack(packed, p);
        accumulate<kOut>(gv, packed, sd);
        pack(packed, e);
        accumulate<kDot>(g, packed, sq);
      } else {
        if (takes_k) pack(packed, e);
        else pack(packed, p);
        accumulate<kDot>(g, packed, takes_k ? sq : sd);
      }
      __syncthreads();
    }
  if (takes_k) put<D>(dk + row * dks + own_head * D, g, dks, first, count);
  if constexpr (kTeams == 1) put<V>(dv + row * dvs + own_head * V, gv, dvs, first, count);
  else if (takes_v) put<V>(dv + row * dvs + own_head * V, g, dvs, first, count);
}
