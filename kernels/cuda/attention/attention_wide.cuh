// Attention of a tile of (query, head of the group) pairs with Hopper's wgmma, rules as in attention.cu: what the
// kernels of attention_wide.cu and attention_wide_256.cu share. A block is warpgroups of 64 pairs each that share keys,
// and a warp that copies them. A warpgroup adds the values of a block while it computes the softmax of the next. Two
// warpgroups alternate at the tensor cores (pingpong scheduling), so that one multiplies while the other computes
// exponentials; with heads of 64 that costs more than it gives, and three go as they come. A tile takes its splits one
// after the other, the merged total waits in memory. Keys have D columns, values V.
#pragma once
#include "keys.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

extern __shared__ __align__(1024) char shared[];

// Crew is how many warpgroups compute, as many as registers allow, the registers of a thread that computes and of one
// that copies, and whether a warpgroup holds its queries in registers, else in shared memory.
template <int D>
struct Crew {
  static constexpr int kTeams = D == 64 ? 3 : 2, kThreads = kTeams * 128, kMore = D == 64 ? 160 : D == 256 ? 240 : 232,
                       kFewer = D == 64 ? 32 : D == 256 ? 24 : 40;
  static constexpr bool kHolds = D < 256;

  // scheduler_wait waits until the other warpgroup has given the tensor cores to this one, and scheduler_arrive gives
  // them to the other.
  __device__ static void scheduler_wait(int team) {
    if (kTeams == 2) asm volatile("bar.sync %0, 256;" ::"r"(1 + team) : "memory");
  }
  __device__ static void scheduler_arrive(int team) {
    if (kTeams == 2) asm volatile("bar.arrive %0, 256;" ::"r"(2 - team) : "memory");
  }
  // meet is a barrier of a warpgroup.
  __device__ static void meet(int team) { asm volatile("bar.sync %0, 128;" ::"r"(3 + team) : "memory"); }
};

// Total is the merged splits of a thread's two rows, in shared memory or the card's: value i of thread t is at
// i*kThreads + t, so threads do not collide.
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

// Call is what the tiles of a launch have in common.
struct Call {
  u16* out;
  float* lse;
  const u16* q;
  int group, os, lses, qs, window, split;
  float c;
};

// Pairs are the (query, head) pairs of a warpgroup.
template <int D>
struct Pairs {
  const Call& call;
  const Tile& tile;
  int kv_head, count;
  __device__ long long row(int r) const { return tile.row + r / call.group; }
  __device__ int head(int r) const { return kv_head * call.group + r % call.group; }
  __device__ const u16* query(int r) const { return call.q + row(r) * call.qs + head(r) * D; }

  // bring copies a warpgroup's queries, from pair `from` on, to its tile. A warp takes a row at a time.
  __device__ void bring(char* to, int from, int team) const {
    Crew<D>::meet(team);  // all warps have done with what lay there
    for (int r = threadIdx.x % 128 / kWarp; r < 64; r += 4) {
      bool in = from + r < count;
      for (int piece = warp_lane(); piece < D / 8; piece += kWarp)
        copy16(to + swizzled(r, piece), query(in ? from + r : 0) + piece * 8, in ? 16 : 0);
    }
    commit();
    wait<0>();
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    Crew<D>::meet(team);
  }
};

// attend is a tile by a warpgroup; mine: where its queries lie, if not in registers.
template <int D, int V>
__device__ inline void attend(Ring<D, 1, V>& ring, const Call& call, const Tile& t, int kv_head, char* mine,
                              float* total_at) {
  using C = Crew<D>;
  int lane = warp_lane(), team = threadIdx.x / 128, group = call.group, window = call.window;
  int count = (t.to - t.from) * group, first = threadIdx.x / kWarp * 16;
  Pairs<D> pairs = {call, t, kv_head, count};
  u32 queries[C::kHolds ? D / 16 : 1][4];
  if constexpr (C::kHolds) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      int r = first + lane / 4 + 8 * h;
      const u16* from = pairs.query(r) + lane % 4 * 2;
#pragma unroll
      for (int j = 0; j < D / 8; j++) queries[j / 2][j % 2 * 2 + h] = r < count ? *(const u32*)(from + j * 8) : 0;
    }
  } else {
    pairs.bring(mine, team * 64, team);
  }
  float o[V / 8][4] = {}, s[8][4] = {};
  Online state;
  Total<D, V> total = {total_at + threadIdx.x, false};
  int low = t.from + first / group, high = t.from + (first + 15) / group;
  int x = t.first, last = t.last, next_split = (x / call.split + 1) * call.split;
  u32 p[4][4];
  auto ask = [&](const Held& keys) {  // begins the dots with a key block
    u64 kd = describe(ring.tile(keys)), qd = describe(mine);
    ring.wait(keys);
    hold(s);
    wgmma_fence();
#pragma unroll
    for (int x = 0; x < D; x += 16)
      if constexpr (C::kHolds) dots(s, queries[x / 16], by_columns(kd, x), x > 0);
      else dots(s, by_columns(qd, x), by_columns(kd, x), x > 0);
    wgmma_commit();
  };
  auto take = [&](const Held& values) {  // begins to add the values of block x
    u64 vd = describe(ring.tile(values));
    ring.wait(values);
    if (last - x < kRows) {
      clear_rows<V>(ring.tile(values), last - x, threadIdx.x % 128, 128);
      asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
      C::meet(team);
    }
    hold(o);
    wgmma_fence();
#pragma unroll
    for (int y = 0; y < 4; y++) chain(o, p[y], by_rows(vd, 16 * y));
    wgmma_commit();
  };
  auto soften = [&](int x) {
    Range seen[2];
    if (all_visible(low, high, x, window)) {
      state.block<false>(s, seen, x, call.c);
      return;
    }
#pragma unroll
    for (int h = 0; h < 2; h++) seen[h] = keys_of(t.from + (first + lane / 4 + 8 * h) / group, last, window);
    state.block<true>(s, seen, x, call.c);
  };
  Held keys = ring.take(), values = ring.take();
  if (team == 1) C::scheduler_arrive(team);
  C::scheduler_wait(team);
  ask(keys);
  C::scheduler_arrive(team);
  wgmma_wait<0>();
  hold(s);
  ring.release(keys);
  soften(x);
  pack(p, s);
  for (; x + kRows < last; x += kRows) {
    keys = ring.take();
    Held next_values = ring.take();
    C::scheduler_wait(team);
    ask(keys);
    take(values);
    C::scheduler_arrive(team);
    wgmma_wait<1>();
    hold(s);
    ring.release(keys);
    if (x + kRows == next_split) {
      next_split += call.split;
      wgmma_wait<0>();
      hold(o);
      total.merge(state, o);
      total.keep(state, o);
    }
    soften(x + kRows);
    wgmma_wait<0>();
    hold(o);
    ring.release(values);
    state.scale(o);
    pack(p, s);
    values = next_values;
  }
  C::scheduler_wait(team);
  take(values);
  if (team == 0) C::scheduler_arrive(team);
  wgmma_wait<0>();
  hold(o);
  ring.release(values);
  if (total.some) total.merge(state, o);
#pragma unroll
  for (int h = 0; h < 2; h++) {
    int r = first + lane / 4 + 8 * h;
    if (r >= count) continue;
    long long row = pairs.row(r);
    int head = pairs.head(r);
    float inverse = 1.f / state.l[h];
    if (lane % 4 == 0) call.lse[row * call.lses + head] = state.m[h] + ln_def(state.l[h]) * kLog2E;
    u16* to = call.out + row * call.os + head * V;
#pragma unroll
    for (int j = 0; j < V / 8; j++)
      *(u32*)(to + j * 8 + lane % 4 * 2) = pair(o[j][2 * h] * inverse + 0.f, o[j][2 * h + 1] * inverse + 0.f);
  }
}

#endif
