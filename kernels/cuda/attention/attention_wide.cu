// Attention of tiles of (query, head of the group) pairs with Hopper's wgmma: rules as in attention.cu. A block is
// warpgroups of 64 pairs each that share keys, and a warp that copies them. A warpgroup keeps its queries in registers
// and adds the values of a block while it computes the softmax of the next. Two warpgroups alternate at the tensor
// cores (pingpong scheduling), so that one multiplies while the other computes exponentials; with heads of 64 that
// costs more than it gives, and three go as they come. A tile takes its splits one after the other, the merged total
// waits in shared memory. Keys have D columns, values V. Bound: 2*rows*keys*(D + V) flops of the tensor cores.
#include "keys.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

extern __shared__ __align__(1024) char shared[];

// Crew is how many warpgroups compute, as many as registers allow, and the registers of a thread that computes and of
// one that copies.
template <int D>
struct Crew {
  static constexpr int kTeams = D == 64 ? 3 : 2, kThreads = kTeams * 128, kMore = D == 64 ? 160 : 232,
                       kFewer = D == 64 ? 32 : 40;

  // scheduler_wait waits until the other warpgroup has given the tensor cores to this one, and scheduler_arrive gives
  // them to the other.
  __device__ static void scheduler_wait(int team) {
    if (kTeams == 2) asm volatile("bar.sync %0, 256;" ::"r"(1 + team) : "memory");
  }
  __device__ static void scheduler_arrive(int team) {
    if (kTeams == 2) asm volatile("bar.arrive %0, 256;" ::"r"(2 - team) : "memory");
  }
};

// Total is the merged splits of a thread's two rows, in shared memory: value i of thread t is at i*kThreads + t, so
// threads do not collide.
template <int D, int V>
struct Total {
  static constexpr int kThreads = Crew<D>::kThreads;
  float* at;
  bool some;
  __device__ void merge(Online& s, float (&o)[V / 8][4]) {
    float* l = at + V / 2 * kThreads;
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
      for (int j = 0; j < V / 8; j++)
#pragma unroll
        for (int w = 2 * h; w < 2 * h + 2; w++)
          if (some) o[j][w] = at[(j * 4 + w) * kThreads] * a + o[j][w] * b;
    }
    some = true;
  }
  __device__ void keep(Online& s, float (&o)[V / 8][4]) {
    float* l = at + V / 2 * kThreads;
#pragma unroll
    for (int h = 0; h < 2; h++)
      l[h * kThreads] = s.m[h], l[(h + 2) * kThreads] = s.l[h], s.m[h] = -infinity(), s.l[h] = 0.f;
#pragma unroll
    for (int j = 0; j < V / 8; j++)
#pragma unroll
      for (int w = 0; w < 4; w++) at[(j * 4 + w) * kThreads] = o[j][w], o[j][w] = 0.f;
  }
};

constexpr int kWideSlots = 6;

template <int D, int V>
__device__ inline void attention(const Maps& maps, u16* out, float* lse, const u16* q, const Tile* tiles,
                                 const int* pages, int box, int group, int os, int lses, int qs, int page_rows,
                                 int window, int split, float c) {
  using C = Crew<D>;
  __shared__ u64 full[kWideSlots], empty[kWideSlots];
  Tile t = tiles[blockIdx.x];
  int lane = warp_lane(), kv_head = blockIdx.y, team = threadIdx.x / 128;
  Ring<D, 1, V> ring = {shared, full, empty, kWideSlots, 0, 0};
  ring.prepare(C::kTeams * 4);
  if (team == C::kTeams) {
    fewer_registers<C::kFewer>();
    if (threadIdx.x < C::kThreads + kWarp)
      ring.copy(maps, t.first, t.last, {t.pages >= 0 ? pages + t.pages : nullptr, t.base, page_rows}, kv_head, box);
    return;
  }
  more_registers<C::kMore>();
  int count = (t.to - t.from) * group, first = threadIdx.x / kWarp * 16,
      blocks = (t.last - t.first + kRows - 1) / kRows;
  u32 queries[D / 16][4];
#pragma unroll
  for (int h = 0; h < 2; h++) {
    int r = first + lane / 4 + 8 * h;
    const u16* from = q + (long long)(t.row + r / group) * qs + (kv_head * group + r % group) * D + lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < D / 8; j++) queries[j / 2][j % 2 * 2 + h] = r < count ? *(const u32*)(from + j * 8) : 0;
  }
  float o[V / 8][4] = {}, s[8][4] = {};
  Online state;
  Total<D, V> total = {(float*)(ring.base + kWideSlots * ring.kTile) + threadIdx.x, false};
  Range seen[2] = {keys_of(t.from + (first + lane / 4) / group, t.last, window),
                   keys_of(t.from + (first + lane / 4 + 8) / group, t.last, window)};
  int low = t.from + first / group, high = t.from + (first + 15) / group;
  int next_split = (t.first / split + 1) * split;
  u32 p[4][4];
  auto ask = [&](const Held& keys) {  // begins the dots with a key block
    u64 kd = describe(ring.tile(keys));
    ring.wait(keys);
    hold(s);
    wgmma_fence();
#pragma unroll
    for (int x = 0; x < D; x += 16) dots(s, queries[x / 16], by_columns(kd, x), x > 0);
    wgmma_commit();
  };
  auto take = [&](const Held& values, int i) {  // begins to add the values of block i
    u64 vd = describe(ring.tile(values));
    ring.wait(values);
    int n = t.last - t.first - i * kRows;
    if (n < kRows) {
      clear_rows<V>(ring.tile(values), n, threadIdx.x % 128, 128);
      asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
      asm volatile("bar.sync %0, 128;" ::"r"(3 + team) : "memory");
    }
    hold(o);
    wgmma_fence();
#pragma unroll
    for (int y = 0; y < 4; y++) chain(o, p[y], by_rows(vd, 16 * y));
    wgmma_commit();
  };
  auto soften = [&](int i) {
    int x = t.first + i * kRows;
    if (all_visible(low, high, x, window)) state.block<false>(s, seen, x, c);
    else state.block<true>(s, seen, x, c);
  };
  Held keys = ring.take(), values = ring.take();
  if (team == 1) C::scheduler_arrive(team);
  C::scheduler_wait(team);
  ask(keys);
  C::scheduler_arrive(team);
  wgmma_wait<0>();
  hold(s);
  ring.release(keys);
  soften(0);
  pack(p, s);
  for (int i = 0; i + 1 < blocks; i++) {
    keys = ring.take();
    Held next_values = ring.take();
    C::scheduler_wait(team);
    ask(keys);
    take(values, i);
    C::scheduler_arrive(team);
    wgmma_wait<1>();
    hold(s);
    ring.release(keys);
    if (t.first + (i + 1) * kRows == next_split) {
      next_split += split;
      wgmma_wait<0>();
      hold(o);
      total.merge(state, o);
      total.keep(state, o);
    }
    soften(i + 1);
    wgmma_wait<0>();
    hold(o);
    ring.release(values);
    state.scale(o);
    pack(p, s);
    values = next_values;
  }
  C::scheduler_wait(team);
  take(values, blocks - 1);
  if (team == 0) C::scheduler_arrive(team);
  wgmma_wait<0>();
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
    u16* to = out + row * os + head * V;
#pragma unroll
    for (int j = 0; j < V / 8; j++)
      *(u32*)(to + j * 8 + lane % 4 * 2) = pair(o[j][2 * h] * inverse + 0.f, o[j][2 * h + 1] * inverse + 0.f);
  }
}

#define ATTENTION(name, D, V)                                                                                     \
  extern "C" __global__ void __launch_bounds__(Crew<D>::kThreads + 128, 1) attention_wide_##name(                 \
      const __grid_constant__ Maps maps, u16* out, float* lse, const u16* q, const Tile* tiles, const int* pages, \
      int box, int group, int os, int lses, int qs, int page_rows, int window, int split, float c) {              \
    attention<D, V>(maps, out, lse, q, tiles, pages, box, group, os, lses, qs, page_rows, window, split, c);      \
  }
ATTENTION(64, 64, 64)
ATTENTION(128, 128, 128)
ATTENTION(192_128, 192, 128)

#endif
