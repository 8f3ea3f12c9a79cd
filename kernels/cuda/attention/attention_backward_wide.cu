// AttentionBackward with Hopper's wgmma, rules as in attention_backward.cu. A block is warpgroups of 64 queries of a
// head each (dq), or of 64 keys of a KV head (dk, dv), and a warp that copies what they walk over, blocks of keys and
// values or of queries and their gradients. A warpgroup begins the products of the next block before it waits for the
// sums of this one, so that the tensor cores have work while it computes p and ds. Queries and keys have D columns,
// values V. Where D is larger than 128 registers do not hold a warpgroup's own queries in dq, which lie in shared
// memory then, nor 64 queries next to the sums in dk and dv, which takes 32 at a time. Heads of 256 are
// attention_backward_256.cu's.
// Bound: queries*keys*(8*D + 6*V) flops, half of them masked; S and dP are computed twice, 10*D + 8*V.
#include "attention_backward_wide.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

constexpr int kTeams = 2, kThreads = kTeams * 128, kStages = 3;

template <int D, int V>
__device__ inline void grad_q(const GradMaps& maps, u16* dq, const u16* dout, const float* lse, const float* delta,
                              const u16* q, const Part* parts, int group, int dqs, int ds, int lses, int qs, int window,
                              float c, float scale) {
  constexpr bool kHolds = D <= 128;  // its own queries and their gradients, in registers
  using R = Ring<D, 2, V>;
  __shared__ u64 full[kStages], empty[kStages], mine;
  Part t = parts[blockIdx.x];
  int head = blockIdx.y, heads = gridDim.y, end = min(t.rows, t.at + kTeams * kRows),
      x = window ? max(0, t.at - window + 1) / kRows * kRows : 0;
  R ring = {kHolds ? shared : shared + kTeams * R::kSlot, full, empty, kStages, 0, 0};
  if (!kHolds && threadIdx.x == 0) barrier_init(&mine, 1);
  ring.prepare(kTeams * 4);
  if (threadIdx.x >= kThreads) {
    fewer_registers<24>();
    if (!kHolds && threadIdx.x == kThreads)
      copy_own<kTeams, D, V>(shared, &maps.q, &maps.dout, head, t.row + t.at, &mine);
    __syncwarp();
    if (threadIdx.x < kThreads + kWarp) ring.copy(maps.keys, x, end, {nullptr, t.row, 0}, head / group, kRows);
    return;
  }
  more_registers<240>();
  int lane = warp_lane(), at = t.at + threadIdx.x / 128 * kRows, first = threadIdx.x % 128 / kWarp * 16 + lane / 4,
      count = t.rows - at;
  long long row = t.row + at;
  const char* tiles = shared + threadIdx.x / 128 * R::kSlot;
  u32 queries[kHolds ? D / 16 : 1][4], grads[kHolds ? V / 16 : 1][4];
  Range seen[2];
  float own[2], sum[2], g[D / 8][4] = {}, p[8][4] = {}, e[8][4] = {};
#pragma unroll
  for (int h = 0; h < 2; h++) {
    int r = first + 8 * h;
    if constexpr (kHolds) {
      const u16 *fq = q + (row + r) * qs + head * D + lane % 4 * 2,
                *fd = dout + (row + r) * ds + head * V + lane % 4 * 2;
#pragma unroll
      for (int j = 0; j < D / 8; j++) queries[j / 2][j % 2 * 2 + h] = r < count ? *(const u32*)(fq + j * 8) : 0;
#pragma unroll
      for (int j = 0; j < V / 8; j++) grads[j / 2][j % 2 * 2 + h] = r < count ? *(const u32*)(fd + j * 8) : 0;
    }
    own[h] = r < count ? lse[(row + r) * lses + head] : 0.f;
    sum[h] = r < count ? delta[(row + r) * heads + head] : 0.f;
    seen[h] = keys_of(at + r, t.rows, window);
  }
  Held keys = ring.take();
  auto begin = [&](int x) {
    arrive(ring, keys, t.rows - x);
    if constexpr (kHolds) {
      products<D>(p, queries, ring.tile(keys, 0));
      products<V>(e, grads, ring.tile(keys, 1));
    } else {
      products<D>(p, tiles, ring.tile(keys, 0));
      products<V>(e, tiles + R::kTile, ring.tile(keys, 1));
    }
  };
  if (!kHolds) barrier_wait(&mine, 0);
  hold(g);
  begin(x);
  for (;; x += kRows) {
    wgmma_wait<1>();
    hold(p);
    bool full = all_visible(at, at + kRows - 1, x, window), more = x + kRows < end;
#pragma unroll
    for (int j = 0; j < 8; j++)
#pragma unroll
      for (int w = 0; w < 4; w++) p[j][w] = exp2_number(fminf(p[j][w] * c - own[w / 2], 0.f));
    hold(p);
    if (!full)  // a branch, before which the compiler keeps what stands before it; else it waits for dP first
#pragma unroll
      for (int j = 0; j < 8; j++)
#pragma unroll
        for (int w = 0; w < 4; w++) p[j][w] = seen[w / 2].has(x + lane % 4 * 2 + j * 8 + w % 2) ? p[j][w] : 0.f;
    hold(p);
    wgmma_wait<0>();
    hold(e);
#pragma unroll
    for (int j = 0; j < 8; j++)
#pragma unroll
      for (int w = 0; w < 4; w++) e[j][w] = (p[j][w] * (e[j][w] - sum[w / 2])) * scale;
    u32 packed[4][4];
    pack(packed, e);
    adds(g, packed, ring.tile(keys, 0));
    Held last = keys;
    if (!more) break;
    keys = ring.take();
    begin(x + kRows);
    wgmma_wait<2>();
    ring.release(last);
  }
  wgmma_wait<0>();
  hold(g);
  put<D>(dq + row * dqs + head * D, g, dqs, threadIdx.x % 128 / kWarp * 16, count);
}

template <int D, int V>
__device__ inline void grad_kv(const GradMaps& maps, u16* dk, u16* dv, const float* lse, const float* delta,
                               const Part* parts, int group, int dks, int dvs, int lses, int window, float c,
                               float scale) {
  constexpr int kSpan = D <= 128 ? kRows : kRows / 2, kSpans = kRows / kSpan;  // queries at a time
  using R = Ring<D, 2, V>;
  __shared__ u64 full[kStages], empty[kStages], mine;
  Part t = parts[blockIdx.x];
  int kv_head = blockIdx.y, heads = gridDim.y * group, most = t.at + kTeams * kRows;
  Walk walk = {t.at, window ? min(t.rows, most + window - 1) : t.rows};
  walk.each = (walk.to - walk.from + kRows - 1) / kRows, walk.blocks = walk.each * group;
  char* rows = shared;  // keys and values of each warpgroup
  R ring = {rows + kTeams * R::kSlot, full, empty, kStages, 0, 0};
  float* sides = (float*)(ring.base + kStages * R::kSlot);
  if (threadIdx.x == 0) barrier_init(&mine, 1);
  ring.prepare(kThreads, kWarp);
  if (threadIdx.x >= kThreads) {
    fewer_registers<24>();
    if (threadIdx.x == kThreads) copy_own<kTeams, D, V>(rows, &maps.keys.k, &maps.keys.v, kv_head, t.row + t.at, &mine);
    __syncwarp();
    if (threadIdx.x < kThreads + kWarp)
      copy_walk<D, V>(ring, sides, maps, lse, delta, walk, t.row, kv_head * group, heads, lses);
    return;
  }
  more_registers<240>();
  int lane = warp_lane(), own = threadIdx.x / 128, at = t.at + own * kRows,
      first = at + threadIdx.x % 128 / kWarp * 16 + lane / 4, count = t.rows - at;
  const char *keys = rows + own * R::kSlot, *values = keys + R::kTile;
  float gk[D / 8][4] = {}, gv[V / 8][4] = {}, p[kSpan / 8][4] = {}, e[kSpan / 8][4] = {};
  barrier_wait(&mine, 0);
  hold(gk), hold(gv);
  Held h = ring.take();
  int x = walk.from, in = 0;  // a block's first query; the first of those of it that are at hand
  auto span = [&](int which) { return ring.tile(h, which) + in * 128; };
  arrive(ring, h, walk.to - x);
  products<D>(p, keys, span(0));
  products<V>(e, values, span(1));
  for (int left = walk.blocks * kSpans;;) {
    const float2* side = (const float2*)(sides + h.slot * 2 * kRows + in) + lane % 4;
    float2 own_lse[kSpan / 8];
#pragma unroll
    for (int j = 0; j < kSpan / 8; j++) own_lse[j] = side[4 * j];
    wgmma_wait<1>();
    hold(p);
    int query = x + in;
    bool full = query + kSpan <= walk.to && all_visible(query, query + kSpan - 1, at, window);
#pragma unroll
    for (int j = 0; j < kSpan / 8; j++) {
      float2 l = own_lse[j];
#pragma unroll
      for (int w = 0; w < 4; w++) {
        p[j][w] = exp2_number(fminf(p[j][w] * c - (w % 2 ? l.y : l.x), 0.f));
        if (!full)
          p[j][w] =
              queries_of(first + w / 2 * 8, walk.to, window).has(query + lane % 4 * 2 + j * 8 + w % 2) ? p[j][w] : 0.f;
      }
    }
    u32 packed[kSpan / 16][4], other[kSpan / 16][4];
    pack(packed, p);
    wgmma_wait<0>();
    hold(e);
    adds(gv, packed, span(1));
#pragma unroll
    for (int j = 0; j < kSpan / 8; j++) {
      float2 s = side[kRows / 2 + 4 * j];
#pragma unroll
      for (int w = 0; w < 4; w++) e[j][w] = (p[j][w] * (e[j][w] - (w % 2 ? s.y : s.x))) * scale;
    }
    pack(other, e);
    adds(gk, other, span(0));
    if (--left == 0) break;
    wgmma_wait<1>();  // the weights of gv give their registers back
    Held last = h;
    in = (in + kSpan) % kRows;
    if (in == 0) {
      h = ring.take();
      x = x + kRows < walk.to ? x + kRows : walk.from;
      arrive(ring, h, walk.to - x);
    }
    products<D>(p, keys, span(0));
    wgmma_wait<1>();  // and those of gk
    if (in == 0) ring.release_own(last);
    products<V>(e, values, span(1));
  }
  wgmma_wait<0>();
  hold(gk), hold(gv);
  long long row = t.row + at;
  put<D>(dk + row * dks + kv_head * D, gk, dks, threadIdx.x % 128 / kWarp * 16, count);
  put<V>(dv + row * dvs + kv_head * V, gv, dvs, threadIdx.x % 128 / kWarp * 16, count);
}

#define GRADIENTS(name, D, V)                                                                                     \
  extern "C" __global__ void __launch_bounds__(kThreads + 128, 1)                                                 \
      attention_dq_wide_##name(const __grid_constant__ GradMaps maps, u16* dq, const u16* dout, const float* lse, \
                               const float* delta, const u16* q, const Part* parts, int group, int dqs, int ds,   \
                               int lses, int qs, int window, float c, float scale) {                              \
    grad_q<D, V>(maps, dq, dout, lse, delta, q, parts, group, dqs, ds, lses, qs, window, c, scale);               \
  }                                                                                                               \
  extern "C" __global__ void __launch_bounds__(kThreads + 128, 1) attention_dkv_wide_##name(                      \
      const __grid_constant__ GradMaps maps, u16* dk, u16* dv, const float* lse, const float* delta,              \
      const Part* parts, int group, int dks, int dvs, int lses, int window, float c, float scale) {               \
    grad_kv<D, V>(maps, dk, dv, lse, delta, parts, group, dks, dvs, lses, window, c, scale);                      \
  }
GRADIENTS(64, 64, 64)
GRADIENTS(128, 128, 128)
GRADIENTS(192_128, 192, 128)

#endif
