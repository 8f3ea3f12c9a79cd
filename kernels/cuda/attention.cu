// Attention, rule 2 of the definition, as kernels/cpu/attention.go states it: key blocks of 64 from position 0, splits of 2048 keys, online softmax in each, splits
// merged ascending. A tile is (query, head of the group) pairs, query-major, of one KV head. This file is for mma.sync: tiles of 64 rows by 4 warps where wgmma
// (attention_wide.cu) is not, and tiles of 16 rows by one warp for decoding. Each split of a tile's keys is a block of its own and attention_merge puts them
// together. Bound: 4*rows*keys*D flops of the tensor cores when prefilling, the bytes of K and V when decoding.
#include "attention.cuh"

extern __shared__ __align__(16) u16 shared[];

template <int D, int Warps>
__device__ inline void attention(u16* out, float* lse, const u16* q, const u16* k, const u16* v, const Tile* tiles, const int* pages, float* partial, int group, int os,
                                 int lses, int qs, int ks, int vs, int page_rows, int window, float c) {
  constexpr int kTileRows = 16 * Warps, kThreads = kWarp * Warps, kSize = kRows * (D + 8);
  Tile t = tiles[blockIdx.x];
  Keys keys = {t.pages >= 0 ? pages + t.pages : nullptr, t.base, page_rows};
  u16 *sk = shared, *sv = sk + 2 * kSize, *sq = sv + 2 * kSize;  // two stages of k and of v
  int lane = warp_lane(), kv_head = blockIdx.y, count = (t.to - t.from) * group, first = threadIdx.x / kWarp * 16;
  k += kv_head * D, v += kv_head * D;
  auto fetch = [&](int x, int stage) {
    int n = min(kRows, t.last - x);
    load_rows<D, kRows, kThreads>(sk + stage * kSize, n, [&](int i) { return k + keys.row(x + i) * ks; });
    load_rows<D, kRows, kThreads>(sv + stage * kSize, n, [&](int i) { return v + keys.row(x + i) * vs; });
  };
  load_rows<D, kTileRows, kThreads>(sq, count, [&](int r) { return q + (long long)(t.row + r / group) * qs + (kv_head * group + r % group) * D; });
  fetch(t.first, 0);
  commit();
  float o[D / 8][4] = {};
  Online state;
  Range seen[2] = {keys_of(t.from + (first + lane / 4) / group, t.last, window), keys_of(t.from + (first + lane / 4 + 8) / group, t.last, window)};
  for (int x = t.first, stage = 0; x < t.last; x += kRows, stage ^= 1) {
    if (x + kRows < t.last) fetch(x + kRows, stage ^ 1);
    commit();
    wait<1>();
    __syncthreads();
    float s[8][4];
    u32 p[4][4];
    scores<D>(s, sq, first, sk + stage * kSize);
    if (all_visible(t.from + first / group, t.from + (first + 15) / group, x, window) && x + kRows <= t.last) state.block<false>(s, seen, x, c);
    else state.block<true>(s, seen, x, c);
    pack(p, s);
    state.scale(o);
    accumulate<D>(o, p, sv + stage * kSize);
    __syncthreads();
  }
#pragma unroll
  for (int h = 0; h < 2; h++) {
    int r = first + lane / 4 + 8 * h;
    if (r >= count) continue;
    if (t.slot >= 0) {
      float* to = partial + ((long long)(t.slot * gridDim.y + kv_head) * kTileRows + r) * (D + 2);
      if (lane % 4 == 0) to[D] = state.m[h], to[D + 1] = state.l[h];
#pragma unroll
      for (int j = 0; j < D / 8; j++) *(float2*)(to + j * 8 + lane % 4 * 2) = make_float2(o[j][2 * h], o[j][2 * h + 1]);
      continue;
    }
    long long row = t.row + r / group;
    int head = kv_head * group + r % group;
    float inverse = 1.f / state.l[h];
    if (lane % 4 == 0) lse[row * lses + head] = state.m[h] + ln_def(state.l[h]) * kLog2E;
    u16* to = out + row * os + head * D;
#pragma unroll
    for (int j = 0; j < D / 8; j++) *(u32*)(to + j * 8 + lane % 4 * 2) = pair(o[j][2 * h] * inverse + 0.f, o[j][2 * h + 1] * inverse + 0.f);
  }
}

#define ATTENTION(name, D, warps)                                                                                                                              \
  KERNEL(name##_##D, u16* out, float* lse, const u16* q, const u16* k, const u16* v, const Tile* tiles, const int* pages, float* partial, int group, int os,     \
         int lses, int qs, int ks, int vs, int page_rows, int window, float c) {                                                                                 \
    attention<D, warps>(out, lse, q, k, v, tiles, pages, partial, group, os, lses, qs, ks, vs, page_rows, window, c);                                            \
  }
ATTENTION(attention, 16, 4)
ATTENTION(attention, 32, 4)
ATTENTION(attention, 64, 4)
ATTENTION(attention, 96, 4)
ATTENTION(attention, 128, 4)
ATTENTION(attention_few, 16, 1)
ATTENTION(attention_few, 32, 1)
ATTENTION(attention_few, 64, 1)
ATTENTION(attention_few, 96, 1)
ATTENTION(attention_few, 128, 1)

struct Merge {
  int row, count, slot, splits;  // rows of the tile, its first slot and how many follow
};

// attention_merge: a warp for a row; splits ascending: m' = max(m, m_s), l = l*Exp2(m-m') + l_s*Exp2(m_s-m'), o likewise.
KERNEL(attention_merge, u16* out, float* lse, const Merge* merges, const float* partial, int tile_rows, int group, int dim, int os, int lses) {
  Merge e = merges[blockIdx.x];
  int kv_head = blockIdx.y;
  for (int r = threadIdx.x / kWarp; r < e.count; r += blockDim.x / kWarp) {
    long long row = e.row + r / group;
    int head = kv_head * group + r % group;
    for (int i = warp_lane(); i < dim; i += kWarp) {
      float o = 0.f, m = -infinity(), l = 0.f;
      for (int s = 0; s < e.splits; s++) {
        const float* from = partial + ((long long)((e.slot + s) * gridDim.y + kv_head) * tile_rows + r) * (dim + 2);
        float mt = from[dim];
        if (mt == -infinity()) continue;
        float to = larger(m, mt), a = exp2_def(m - to), b = exp2_def(mt - to);
        l = l * a + from[dim + 1] * b;
        o = o * a + from[i] * b;
        m = to;
      }
      out[row * os + head * dim + i] = narrow(o * (1.f / l) + 0.f);
      if (i == 0) lse[row * lses + head] = m + ln_def(l) * kLog2E;
    }
  }
}

// store_kv copies rows of k and v to the rows of the cache named for each.
KERNEL(store_kv, u16* ck, u16* cv, const u16* k, const u16* v, const int* to, int rows, int cols, int cks, int cvs, int ks, int vs) {
  int r = warp_row();
  if (r >= rows) return;
  for (int c = warp_lane(); c < cols; c += kWarp) {
    ck[(long long)to[r] * cks + c] = k[(long long)r * ks + c];
    cv[(long long)to[r] * cvs + c] = v[(long long)r * vs + c];
  }
}
