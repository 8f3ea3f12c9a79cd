// Attention, rule 2 of the definition, as kernels/cpu/attention.go states it: key blocks of 64 from position 0, splits
// of 2048 keys, online softmax in each, splits merged ascending. A tile is (query, head of the group) pairs,
// query-major, of one KV head. Here is the kernel for mma.sync, tiles of 64 rows by 4 warps, for where wgmma
// (attention_wide.cu, attention_wide_256.cu) is not; few queries are attention_decode.cu's, except of latent attention
// and heads of 256. Keys of D and values of V columns. Each split of a tile's keys is a block of its own; the last that
// is done puts them together.
// Bound: 4*rows*keys*D flops of the tensor cores.
#include "kvcodes.cuh"

extern __shared__ __align__(16) u16 shared[];

template <int D, int V, class S>
__device__ inline void attention(u16* out, float* lse, const u16* q, const S& all_keys, const S& all_values,
                                 const Tile* tiles, const int* pages, float* partials, int* done, int group, int os,
                                 int lses, int qs, int page_rows, int window, float c) {
  constexpr int kTileRows = 64, kThreads = 128, kDot = steps_of(D), kOut = steps_of(V), kSizeK = kRows * (kDot + 8),
                kSizeV = kRows * (kOut + 8);
  Tile t = tiles[blockIdx.x];
  Keys keys = {t.pages >= 0 ? pages + t.pages : nullptr, t.base, page_rows};
  u16 *sk = shared, *sv = sk + 2 * kSizeK, *sq = sv + 2 * kSizeV;  // two stages of k and of v
  int lane = warp_lane(), kv_head = blockIdx.y, count = (t.to - t.from) * group, first = threadIdx.x / kWarp * 16;
  S k = all_keys.head(kv_head, D), v = all_values.head(kv_head, V);
  auto out_of = [&](int r) { return out + (long long)(t.row + r / group) * os + (kv_head * group + r % group) * V; };
  auto lse_of = [&](int r) { return lse + (long long)(t.row + r / group) * lses + kv_head * group + r % group; };
  auto fetch = [&](int x, int stage) {
    int n = min(kRows, t.last - x);
    load_keys<kDot, kRows, kThreads, D>(sk + stage * kSizeK, n, k, [&](int i) { return keys.row(x + i); });
    load_keys<kOut, kRows, kThreads, V>(sv + stage * kSizeV, n, v, [&](int i) { return keys.row(x + i); });
  };
  load_rows<kDot, kTileRows, kThreads, D>(
      sq, count, [&](int r) { return q + (long long)(t.row + r / group) * qs + (kv_head * group + r % group) * D; });
  fetch(t.first, 0);
  commit();
  float o[kOut / 8][4] = {};
  Online state;
  Range seen[2] = {keys_of(t.from + (first + lane / 4) / group, t.last, window),
                   keys_of(t.from + (first + lane / 4 + 8) / group, t.last, window)};
  for (int x = t.first, stage = 0; x < t.last; x += kRows, stage ^= 1) {
    if (x + kRows < t.last) fetch(x + kRows, stage ^ 1);
    commit();
    wait<1>();
    __syncthreads();
    float s[8][4];
    u32 p[4][4];
    scores<kDot>(s, sq, first, sk + stage * kSizeK);
    if (all_visible(t.from + first / group, t.from + (first + 15) / group, x, window) && x + kRows <= t.last)
      state.block<false>(s, seen, x, c);
    else state.block<true>(s, seen, x, c);
    pack(p, s);
    state.scale(o);
    accumulate<kOut>(o, p, sv + stage * kSizeV);
    __syncthreads();
  }
  Partial<V, kTileRows> partial = {partials, done, (int)gridDim.y};
#pragma unroll
  for (int h = 0; h < 2; h++) {
    int r = first + lane / 4 + 8 * h;
    if (r >= count) continue;
    if (t.slot >= 0) {
      float* to = partial.row(t.slot, kv_head, r);
      if (lane % 4 == 0) to[V] = state.m[h], to[V + 1] = state.l[h];
#pragma unroll
      for (int j = 0; j < V / 8; j++) *(float2*)(to + j * 8 + lane % 4 * 2) = make_float2(o[j][2 * h], o[j][2 * h + 1]);
      continue;
    }
    float inverse = 1.f / state.l[h];
    if (lane % 4 == 0) *lse_of(r) = state.m[h] + ln_def(state.l[h]) * kLog2E;
#pragma unroll
    for (int j = 0; j < V / 8; j++)
      *(u32*)(out_of(r) + j * 8 + lane % 4 * 2) = pair(o[j][2 * h] * inverse + 0.f, o[j][2 * h + 1] * inverse + 0.f);
  }
  if (t.slot < 0 || !partial.complete(t, kv_head, [] { __syncthreads(); })) return;
  for (int r = threadIdx.x / kWarp; r < count; r += kThreads / kWarp)
    partial.merge(t, kv_head, r, out_of(r), lse_of(r));
}

#define ATTENTION(name, D, V)                                                                                          \
  extern "C" __global__ void __launch_bounds__(128) attention_##name(                                                  \
      u16* out, float* lse, const u16* q, const u16* k, const u16* v, const Tile* tiles, const int* pages,             \
      float* partials, int* done, int group, int os, int lses, int qs, int ks, int vs, int page_rows, int window,      \
      float c) {                                                                                                       \
    attention<D, V>(out, lse, q, Numbers{k, ks}, Numbers{v, vs}, tiles, pages, partials, done, group, os, lses, qs,    \
                    page_rows, window, c);                                                                             \
  }                                                                                                                    \
  extern "C" __global__ void __launch_bounds__(128) attention_codes_##name(                                            \
      u16* out, float* lse, const u16* q, const Codes k, const Codes v, const Tile* tiles, const int* pages,           \
      float* partials, int* done, int group, int os, int lses, int qs, int page_rows, int window, float c) {           \
    attention<D, V>(out, lse, q, k, v, tiles, pages, partials, done, group, os, lses, qs, page_rows, window, c);       \
  }
ATTENTION(16, 16, 16)
ATTENTION(32, 32, 32)
ATTENTION(64, 64, 64)
ATTENTION(96, 96, 96)
ATTENTION(128, 128, 128)
ATTENTION(24, 24, 24)
ATTENTION(24_16, 24, 16)
ATTENTION(192_128, 192, 128)
ATTENTION(256, 256, 256)
