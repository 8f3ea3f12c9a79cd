// AttentionBackward with Hopper's wgmma, heads of 256: rules as in attention_backward.cu. A block is two warpgroups and
// a warp that copies what they walk over.
//
// dq: a warpgroup has 64 queries of a head, which lie with their gradients in shared memory, as in
// attention_backward_wide.cu. Two blocks of keys and one of values fit next to them, which are copied apart.
//
// dk and dv: sums of both are twice the registers of a thread. A block is 64 keys of a KV head; one warpgroup computes
// dP and dk, the other S, p and dv, and hands p over through shared memory, each thread to the one with the same pairs.
//
// Bound: queries*keys*14*256 flops, half of them masked. For 64 keys of both warpgroups, clocks of the tensor cores and
// of shared memory (128 bytes a clock): dq 3,072 and 3,072; dk and dv 2,048 and 2,560.
#include "attention_backward_wide.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

constexpr int kWidth = 256, kKeyStages = 2, kQueryStages = 2, kHands = 2, kThreads = 256,
              kPair = 2 * kRows * kWidth * 2,  // bytes of 64 rows of two matrices
              kHandBytes = kRows * kRows * 4;  // of p

using One = Ring<kWidth, 1>;  // tiles of one matrix
using Two = Ring<kWidth, 2>;

// arrive waits for a tile and clears rows behind the end.
__device__ inline void arrive(const One& ring, const Held& h, int count) {
  ring.wait(h);
  if (count >= kRows) return;
  clear_rows<kWidth>(ring.tile(h), count, threadIdx.x % 128, 128);
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  asm volatile("bar.sync %0, 128;" ::"r"(1 + threadIdx.x / 128) : "memory");
}

// copy_keys is a thread that copies blocks of keys and of values, as places of each come free.
__device__ inline void copy_keys(One keys, One values, const Maps& maps, int x, int end, int row, int kv_head) {
  auto copy = [&](One& ring, const TensorMap* map, int x) {
    Held h = ring.take();
    ring.wait_empty(h);
    barrier_expect(ring.full + h.slot, ring.kTile);
    for (int p = 0; p < ring.kPanels; p++)
      copy_box(ring.tile(h) + p * kPanel, map, kv_head * kWidth + p * 64, row + x, 0, ring.full + h.slot);
  };
  for (; x < end; x += kRows) copy(keys, &maps.k, x), copy(values, &maps.v, x);
}

extern "C" __global__ void __launch_bounds__(kThreads + 128, 1)
    attention_dq_apart_256(const __grid_constant__ GradMaps maps, u16* dq, const float* lse, const float* delta,
                           const Part* parts, int group, int dqs, int lses, int window, float c, float scale) {
  __shared__ u64 full[kKeyStages + 1], empty[kKeyStages + 1], mine;
  Part t = parts[blockIdx.x];
  int head = blockIdx.y, heads = gridDim.y, end = min(t.rows, t.at + 2 * kRows),
      x = window ? max(0, t.at - window + 1) / kRows * kRows : 0;
  One keys = {shared + 2 * kPair, full, empty, kKeyStages, 0, 0},
      values = {keys.base + kKeyStages * One::kTile, full + kKeyStages, empty + kKeyStages, 1, 0, 0};
  if (threadIdx.x == 0) barrier_init(&mine, 1);
  keys.prepare(8), values.prepare(8);
  if (threadIdx.x >= kThreads) {
    fewer_registers<24>();
    if (threadIdx.x > kThreads) return;
    copy_own<2, kWidth, kWidth>(shared, &maps.q, &maps.dout, head, t.row + t.at, &mine);
    copy_keys(keys, values, maps.keys, x, end, t.row, head / group);
    return;
  }
  more_registers<240>();
  int lane = warp_lane(), at = t.at + threadIdx.x / 128 * kRows, first = threadIdx.x % 128 / kWarp * 16 + lane / 4,
      count = t.rows - at;
  const char *queries = shared + threadIdx.x / 128 * kPair, *grads = queries + One::kTile;
  float own[2], sum[2], g[kWidth / 8][4] = {}, p[8][4] = {}, e[8][4] = {};
#pragma unroll
  for (int h = 0; h < 2; h++) {
    int r = first + 8 * h;
    long long row = t.row + at + r;
    own[h] = r < count ? lse[row * lses + head] : 0.f, sum[h] = r < count ? delta[row * heads + head] : 0.f;
  }
  barrier_wait(&mine, 0);
  hold(g);
  Held k = keys.take(), v = values.take();
  arrive(keys, k, t.rows - x);
  products<kWidth>(p, queries, keys.tile(k));
  for (;;) {
    arrive(values, v, t.rows - x);
    products<kWidth>(e, grads, values.tile(v));
    wgmma_wait<1>();
    hold(p);
    bool all = all_visible(at, at + kRows - 1, x, window);
#pragma unroll
    for (int j = 0; j < 8; j++)
#pragma unroll
      for (int w = 0; w < 4; w++) p[j][w] = exp2_number(fminf(p[j][w] * c - own[w / 2], 0.f));
    hold(p);
    if (!all)
#pragma unroll
      for (int j = 0; j < 8; j++)
#pragma unroll
        for (int w = 0; w < 4; w++)
          if (!keys_of(at + first + w / 2 * 8, t.rows, window).has(x + lane % 4 * 2 + j * 8 + w % 2)) p[j][w] = 0.f;
    hold(p);
    wgmma_wait<0>();
    hold(e);
    values.release(v);
#pragma unroll
    for (int j = 0; j < 8; j++)
#pragma unroll
      for (int w = 0; w < 4; w++) e[j][w] = (p[j][w] * (e[j][w] - sum[w / 2])) * scale;
    u32 packed[4][4];
    pack(packed, e);
    adds(g, packed, keys.tile(k));
    x += kRows;
    if (x >= end) break;
    Held last = k;
    k = keys.take(), v = values.take();
    arrive(keys, k, t.rows - x);
    products<kWidth>(p, queries, keys.tile(k));
    wgmma_wait<1>();  // the weights of g give their registers back
    keys.release(last);
  }
  wgmma_wait<0>();
  hold(g);
  put<kWidth>(dq + (long long)(t.row + at) * dqs + head * kWidth, g, dqs, threadIdx.x % 128 / kWarp * 16, count);
}

// Hand is how p of a block passes from the warpgroup of dv to that of dk, by slots of a ring: float4 j*128 + i is of
// thread i in both, which arrive for themselves.
struct Hand : RingPlace {
  __device__ float4* at(const Held& h) const { return (float4*)(base + h.slot * kHandBytes) + threadIdx.x % 128; }
  __device__ void give(const float (&p)[8][4]) {
    Held h = take();
    wait_empty(h);
#pragma unroll
    for (int j = 0; j < 8; j++) at(h)[j * 128] = make_float4(p[j][0], p[j][1], p[j][2], p[j][3]);
    barrier_arrive(full + h.slot);
  }
  __device__ void get(float (&p)[8][4]) {
    Held h = take();
    wait(h);
#pragma unroll
    for (int j = 0; j < 8; j++) {
      float4 x = at(h)[j * 128];
      p[j][0] = x.x, p[j][1] = x.y, p[j][2] = x.z, p[j][3] = x.w;
    }
    release_own(h);
  }
};

// walk_over is a warpgroup's way along the queries of its keys: g += weights(x, side) b, x: the first query of a block,
// side: lse or delta of its queries, weights: bf16 of what becomes of dots, the products of `mine` and tile a.
template <class F>
__device__ inline void walk_over(float (&g)[kWidth / 8][4], Two& ring, const float* sides, const char* mine, int a,
                                 const Walk& walk, F weights) {
  float s[8][4] = {};
  hold(g);
  Held h = ring.take();
  int x = walk.from;
  arrive(ring, h, walk.to - x);
  products<kWidth>(s, mine, ring.tile(h, a));
  for (int left = walk.blocks;;) {
    wgmma_wait<0>();
    hold(s);
    u32 packed[4][4];
    weights(packed, s, x, (const float2*)(sides + (h.slot * 2 + a) * kRows) + warp_lane() % 4);
    adds(g, packed, ring.tile(h, 1 - a));
    if (--left == 0) break;
    Held last = h;
    h = ring.take();
    x = x + kRows < walk.to ? x + kRows : walk.from;
    arrive(ring, h, walk.to - x);
    products<kWidth>(s, mine, ring.tile(h, a));
    wgmma_wait<1>();
    ring.release_own(last);
  }
  wgmma_wait<0>();
  hold(g);
}

extern "C" __global__ void __launch_bounds__(kThreads + 128, 1)
    attention_dkv_apart_256(const __grid_constant__ GradMaps maps, u16* dk, u16* dv, const float* lse,
                            const float* delta, const Part* parts, int group, int dks, int dvs, int lses, int window,
                            float c, float scale) {
  __shared__ u64 full[kQueryStages + kHands], empty[kQueryStages + kHands], mine;
  Part t = parts[blockIdx.x];
  int kv_head = blockIdx.y, heads = gridDim.y * group;
  Walk walk = {t.at, window ? min(t.rows, t.at + kRows + window - 1) : t.rows};
  walk.each = (walk.to - walk.from + kRows - 1) / kRows, walk.blocks = walk.each * group;
  Two ring = {shared + kPair, full, empty, kQueryStages, 0, 0};
  float* sides = (float*)(ring.base + kQueryStages * kPair);
  Hand hand = {(char*)(sides + kQueryStages * 2 * kRows), full + kQueryStages, empty + kQueryStages, kHands, 0, 0};
  if (threadIdx.x == 0) barrier_init(&mine, 1);
  ring.prepare(kThreads, kWarp), hand.prepare(128, 128);
  if (threadIdx.x >= kThreads) {
    fewer_registers<24>();
    if (threadIdx.x == kThreads)
      copy_own<1, kWidth, kWidth>(shared, &maps.keys.k, &maps.keys.v, kv_head, t.row + t.at, &mine);
    __syncwarp();
    if (threadIdx.x < kThreads + kWarp)
      copy_walk<kWidth, kWidth>(ring, sides, maps, lse, delta, walk, t.row, kv_head * group, heads, lses);
    return;
  }
  more_registers<240>();
  int lane = warp_lane(), warp = threadIdx.x % 128 / kWarp * 16, first = t.at + warp + lane / 4, count = t.rows - t.at;
  long long row = t.row + t.at;
  const char *keys = shared, *values = keys + Two::kTile;
  float g[kWidth / 8][4] = {};
  barrier_wait(&mine, 0);
  if (threadIdx.x < 128) {
    walk_over(g, ring, sides, keys, 0, walk, [&](u32 (&packed)[4][4], float (&p)[8][4], int x, const float2* lse) {
      bool all = x + kRows <= walk.to && all_visible(x, x + kRows - 1, t.at, window);
#pragma unroll
      for (int j = 0; j < 8; j++) {
        float2 l = lse[4 * j];
#pragma unroll
        for (int w = 0; w < 4; w++) {
          p[j][w] = exp2_number(fminf(p[j][w] * c - (w % 2 ? l.y : l.x), 0.f));
          if (!all && !queries_of(first + w / 2 * 8, walk.to, window).has(x + lane % 4 * 2 + j * 8 + w % 2))
            p[j][w] = 0.f;
        }
      }
      hand.give(p);
      pack(packed, p);
    });
    put<kWidth>(dv + row * dvs + kv_head * kWidth, g, dvs, warp, count);
  } else {
    walk_over(g, ring, sides, values, 1, walk, [&](u32 (&packed)[4][4], float (&e)[8][4], int, const float2* delta) {
      float p[8][4];
      hand.get(p);
#pragma unroll
      for (int j = 0; j < 8; j++) {
        float2 s = delta[4 * j];
#pragma unroll
        for (int w = 0; w < 4; w++) e[j][w] = (p[j][w] * (e[j][w] - (w % 2 ? s.y : s.x))) * scale;
      }
      pack(packed, e);
    });
    put<kWidth>(dk + row * dks + kv_head * kWidth, g, dks, warp, count);
  }
}

#endif
