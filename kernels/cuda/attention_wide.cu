// Attention of tiles of 128 (query, head of the group) pairs with Hopper's wgmma: rules as in attention.cu. A block is two warpgroups of 64 rows each that share keys. Values are
// accumulated while the softmax of the next key block is computed; one barrier a block. A tile takes its splits one after the other, the merged total waits in shared memory.
// Bound: 4*rows*keys*D flops of the tensor cores.
#include "warpgroup.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

extern __shared__ __align__(1024) char shared[];

// Total is the merged splits of a thread's two rows, in shared memory: value i of thread t is at i*256 + t, so threads do not collide.
template <int D>
struct Total {
  static constexpr int kThreads = 256, kFloats = (D / 2 + 4) * kThreads;
  float* at;
  bool some;
  __device__ void merge(Online& s, float (&o)[D / 8][4]) {
    float* l = at + D / 2 * kThreads;
#pragma unroll
    for (int h = 0; h < 2; h++) {
      float a = 0.f, b = 1.f, to = s.m[h], was = -infinity(), sum = 0.f;
      if (some) {
        was = l[h * kThreads], sum = l[(h + 2) * kThreads];
        to = larger(was, s.m[h]);
        if (s.m[h] == -infinity()) a = 1.f, b = 0.f;
        else a = exp2_def(was - to), b = exp2_def(s.m[h] - to);
      }
      s.m[h] = to;
      s.l[h] = some ? sum * a + s.l[h] * b : s.l[h];
#pragma unroll
      for (int j = 0; j < D / 8; j++)
#pragma unroll
        for (int w = 2 * h; w < 2 * h + 2; w++)
          if (some) o[j][w] = at[(j * 4 + w) * kThreads] * a + o[j][w] * b;
    }
    some = true;
  }
  __device__ void keep(Online& s, float (&o)[D / 8][4]) {
    float* l = at + D / 2 * kThreads;
#pragma unroll
    for (int h = 0; h < 2; h++) l[h * kThreads] = s.m[h], l[(h + 2) * kThreads] = s.l[h], s.m[h] = -infinity(), s.l[h] = 0.f;
#pragma unroll
    for (int j = 0; j < D / 8; j++)
#pragma unroll
      for (int w = 0; w < 4; w++) at[(j * 4 + w) * kThreads] = o[j][w], o[j][w] = 0.f;
  }
};

template <int D>
__device__ inline void attention(u16* out, float* lse, const u16* q, const u16* k, const u16* v, const Tile* tiles, const int* pages, int group, int os, int lses, int qs, int ks,
                                 int vs, int page_rows, int window, int split, float c) {
  constexpr int kTile = D / 64 * kPanel, kThreads = 256;
  Tile t = tiles[blockIdx.x];
  Keys keys = {t.pages >= 0 ? pages + t.pages : nullptr, t.base, page_rows};
  char *sq = shared, *sk = sq + 2 * kTile, *sv = sk + 2 * kTile;  // two stages of k and of v
  int lane = warp_lane(), kv_head = blockIdx.y, count = (t.to - t.from) * group, half = threadIdx.x / 128;
  int first = threadIdx.x / kWarp * 16, blocks = (t.last - t.first + kRows - 1) / kRows;
  k += kv_head * D, v += kv_head * D, q += (long long)kv_head * group * D;
  auto fetch = [&](char* to, const u16* from, int stride, int i) {
    int x = t.first + i * kRows;
    if (keys.pages) {
      load_tile<D, kThreads>(to, t.last - x, [&](int r) { return from + keys.row(x + r) * stride; });
    } else {
      from += (long long)(t.base + x) * stride;
      load_tile<D, kThreads>(to, t.last - x, [&](int r) { return from + (long long)r * stride; });
    }
  };
  auto queries = [&](int i) { load_tile<D, kThreads>(sq + i * kTile, count - i * 64, [&](int r) { return q + (long long)(t.row + (i * 64 + r) / group) * qs + (i * 64 + r) % group * D; }); };
  queries(0), queries(1);
  fetch(sk, k, ks, 0);
  commit();
  if (blocks > 1) fetch(sk + kTile, k, ks, 1);
  fetch(sv, v, vs, 0);
  commit();
  wait<1>();
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  float o[D / 8][4] = {}, s[8][4] = {};
  Online state;
  Total<D> total = {(float*)(sv + 2 * kTile) + threadIdx.x, false};
  Range seen[2] = {keys_of(t.from + (first + lane / 4) / group, t.last, window), keys_of(t.from + (first + lane / 4 + 8) / group, t.last, window)};
  int low = t.from + first / group, high = t.from + (first + 15) / group;
  u64 qd = describe(sq + half * kTile);
  u32 p[4][4];
  auto ask = [&](int i) {  // begins the dots with key block i
    u64 kd = describe(sk + i % 2 * kTile);
#pragma unroll
    for (int x = 0; x < D; x += 16) dots(s, by_columns(qd, x), by_columns(kd, x), x > 0);
    group_end();
  };
  auto soften = [&](int i) {
    int x = t.first + i * kRows;
    if (all_visible(low, high, x, window)) state.block<false>(s, seen, x, c);
    else state.block<true>(s, seen, x, c);
  };
  hold(s);
  group_begin();
  ask(0);
  group_wait<0>();
  hold(s);
  soften(0);
  pack(p, s);
  for (int i = 0; i < blocks; i++) {
    arrived();  // keys i+1, values i
    __syncthreads();
    u64 vd = describe(sv + i % 2 * kTile);
    hold(s), hold(o);
    group_begin();
    ask(i + 1);  // after the last block, of whatever lies there, for nobody
#pragma unroll
    for (int y = 0; y < 4; y++) chain(o, p[y], by_rows(vd, 16 * y));
    group_end();
    if (i + 2 < blocks) fetch(sk + i % 2 * kTile, k, ks, i + 2);
    if (i + 1 < blocks) fetch(sv + (i + 1) % 2 * kTile, v, vs, i + 1);
    commit();
    group_wait<1>();
    hold(s);
    if (i + 1 == blocks) break;
    if ((t.first + (i + 1) * kRows) % split == 0) {
      group_wait<0>();
      hold(o);
      total.merge(state, o);
      total.keep(state, o);
    }
    soften(i + 1);
    group_wait<0>();
    hold(o);
    state.scale(o);
    pack(p, s);
  }
  group_wait<0>();
  hold(o);
  if (total.some) total.merge(state, o);
#pragma unroll
  for (int h = 0; h < 2; h++) {
    int r = first + lane / 4 + 8 * h;
    if (r >= count) continue;
    long long row = t.row + r / group;
    int head = kv_head * group + r % group;
    float inverse = 1.f / state.l[h];
    if (lane % 4 == 0) lse[row * lses + head] = state.m[h] + ln_def(state.l[h]) * kLog2E;
    u16* to = out + row * os + head * D;
#pragma unroll
    for (int j = 0; j < D / 8; j++) *(u32*)(to + j * 8 + lane % 4 * 2) = pair(o[j][2 * h] * inverse + 0.f, o[j][2 * h + 1] * inverse + 0.f);
  }
}

#define ATTENTION(D)                                                                                                                                              \
  extern "C" __global__ void __launch_bounds__(256, 1)                                                                                                            \
  attention_wide_##D(u16* out, float* lse, const u16* q, const u16* k, const u16* v, const Tile* tiles, const int* pages, int group, int os, int lses, int qs, int ks, int vs, \
                     int page_rows, int window, int split, float c) {                                                                                             \
    attention<D>(out, lse, q, k, v, tiles, pages, group, os, lses, qs, ks, vs, page_rows, window, split, c);                                                      \
  }
ATTENTION(64)
ATTENTION(128)

#endif
