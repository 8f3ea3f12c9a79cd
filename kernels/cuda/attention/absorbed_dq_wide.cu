// dq of absorbed latent attention of 576 and 512 columns with Hopper's wgmma: rules as in absorbed_backward.cu, in two
// kernels. absorbed_ds_wide computes dS of a query and 64 of its heads along its list, and P' where dk and dv go along
// lists too (absorbed_listed.cu); absorbed_dq_wide adds dS K. dS goes through memory in bf16, which it is rounded to as
// an operand anyway.
//
// One kernel does not hold both: q and dout of 64 heads take 136 KB of shared memory and dq 144 KB of registers, and 64
// keys that wait for their dS take 72 KB more. Alone, the first kernel gives a box of 64 keys and 64 columns back as
// soon as it is multiplied, and 11 of them cover the latency of the gather. The second needs dS and keys, nothing else.
//
// Bound for 64 entries of 64 heads: dS 2*64*64*(576 + 512) flops, 2,176 clocks, for which wgmma reads 128 bytes of
// shared memory a clock, all there is; dq 2*64*64*576 flops, 1,152 clocks. Each gathers 73 KB, 3,700 clocks at the 20
// bytes a clock that cp.async has been seen to gather. dS itself: 8 KB written and read. On an H200, 64 heads, two
// sequences of 4,096 rows, lists of 2,048: 4.1 and 3.4 ms, 4,800 and 4,000 clocks. With dout in registers and 19 boxes
// of keys instead of 11 as long.
#include "absorbed_wide.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

constexpr int kGradBoxes = kValues / 64;
constexpr int kTile = kRows * kHeads;  // elements of dS of 64 entries: rows are entries, swizzled as wgmma reads them

// tile_of is where dS of a block of 64 entries lies; a query has room for `most` blocks.
__device__ inline size_t tile_of(int block, int most) {
  return (((size_t)blockIdx.x * gridDim.y + blockIdx.y) * most + block) * kTile;
}

constexpr int kSlots = 11;       // boxes of keys in shared memory
constexpr int kProducers = 256;  // threads that gather them: with 128 a tenth slower

// Slot is a place in the ring of boxes.
struct Slot {
  int index = 0, phase = 0;
  __device__ void next(int n = 1) {
    index += n;
    if (index >= kSlots) index -= kSlots, phase ^= 1;
  }
};

// Boxes is the ring of boxes of 64 keys and 64 columns, which producers fill and one consumer warpgroup empties.
struct Boxes {
  char* base;
  u64 *full, *empty;  // [kSlots]

  __device__ char* at(const Slot& s) const { return base + s.index * kPanel; }
  __device__ void prepare() const {
    if (threadIdx.x >= kSlots) return;
    barrier_init(full + threadIdx.x, kProducers);
    barrier_init(empty + threadIdx.x, 4);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    fence_async();
  }
  // wait_full: copies are writes of the threads, which wgmma sees behind a fence.
  __device__ void wait_full(const Slot& s) const {
    barrier_wait(full + s.index, s.phase);
    fence_async();
  }
  __device__ void release(const Slot& s) const {
    if (warp_lane() == 0) barrier_arrive(empty + s.index);
  }
  // gather is the producers. A warp looks up its 8 rows of a block while the block before is on its way.
  __device__ void gather(const Asked& query, const u16* k, int ks) const {
    Gather<kProducers> g;
    Slot s;
    int found = query.key(g.entry());
    for (int b = 0; b * kRows < query.entries; b++) {
      const u16* from[g.kRounds];
      g.rows(from, found, k, ks);
#pragma unroll
      for (int box = 0; box < kBoxes; box++) {
        barrier_wait(empty + s.index, s.phase ^ 1);
        g.box(at(s), from, k, 64 * box);
        barrier_arrive_copied(full + s.index);
        s.next();
      }
      found = query.key((b + 1) * kRows + g.entry());
    }
    commit();
    wait<0>();  // threads do not leave before what they have started
  }
};

// multiply computes s = q k^T and e = dout v^T of the block of keys that begins at `slot`, and leaves `slot` behind it.
__device__ inline void multiply(float (&s)[8][4], float (&e)[8][4], const Boxes& boxes, Slot& slot, u64 q, u64 dout) {
  Slot last;
  hold(s), hold(e);
#pragma unroll
  for (int box = 0; box < kBoxes; box++) {
    boxes.wait_full(slot);
    wgmma_fence();
    u64 k = describe(boxes.at(slot));
#pragma unroll
    for (int x = 0; x < 64; x += 16) dots(s, by_columns(q, box * 64 + x), by_columns(k, x), box + x > 0);
    if (box < kGradBoxes)
#pragma unroll
      for (int x = 0; x < 64; x += 16) dots(e, by_columns(dout, box * 64 + x), by_columns(k, x), box + x > 0);
    wgmma_commit();
    if (box > 0) {
      wgmma_wait<1>();
      boxes.release(last);
    }
    last = slot;
    slot.next();
  }
  wgmma_wait<0>();
  hold(s), hold(e);
  boxes.release(last);
}

// store_entries rounds 8 heads x 8 entries, of which the warp has heads as rows, to rows of entries; a thread's pair
// goes to `to`.
__device__ inline void store_entries(char* to, const float* x) { *(u32*)to = transposed(pair(x[0], x[1])); }

// absorbed_ds_wide: dS, and P' unless p is nil, bf16 [queries, head blocks, most, 64 entries, 64 heads], queries from
// `first` on; entries as absorbed_own leaves them, nil: lists are whole. Two consumer warpgroups take the even and the
// odd blocks of 64 entries: one computes p and dS while the other multiplies.
extern "C" __global__ void __launch_bounds__(2 * 128 + kProducers, 1)
    absorbed_ds_wide_576_512(const Lists lists, const int* entries, u16* ds, u16* p, const u16* dout, const float* lse,
                             const float* delta, const u16* q, const u16* k, int first, int heads, int most, int douts,
                             int lses, int qs, int ks, float c, float scale) {
  __shared__ u64 full[kSlots], empty[kSlots];
  Asked query = lists.query(first + blockIdx.x);
  if (entries) query.entries = entries[query.row];
  int head = blockIdx.y * kHeads, own_heads = min(kHeads, heads - head);
  int team = uniform(threadIdx.x / 128), lane = warp_lane();
  Boxes boxes = {shared + (kBoxes + kGradBoxes) * kPanel, full, empty};
  boxes.prepare();
  __syncthreads();
  if (team >= 2) {
    boxes.gather(query, k, ks);
    return;
  }
  char* grads = shared + kBoxes * kPanel;
  bring_heads<kBoxes, 2 * 128>(shared, q + (long long)query.row * qs + head * kColumns, own_heads);
  bring_heads<kGradBoxes, 2 * 128>(grads, dout + (long long)query.row * douts + head * kValues, own_heads);
  int row = threadIdx.x % 128 / kWarp * 16 + lane / 4;
  float own_lse[2], sum[2];
#pragma unroll
  for (int h = 0; h < 2; h++) {
    int r = row + 8 * h;
    own_lse[h] = r < own_heads ? lse[(size_t)query.row * lses + head + r] : 0.f;
    sum[h] = r < own_heads ? delta[(size_t)query.row * heads + head + r] : 0.f;
  }
  commit();
  wait<0>();
  fence_async();
  meet_both(1);
  Slot slot;
  slot.next(team * kBoxes);
  for (int b = team; b * kRows < query.entries; b += 2, slot.next(kBoxes)) {
    float s[8][4], e[8][4];
    multiply(s, e, boxes, slot, describe(shared), describe(grads));
    size_t tile = tile_of(b, most);
#pragma unroll
    for (int j = 0; j < 8; j++)
#pragma unroll
      for (int h = 0; h < 2; h++) {
#pragma unroll
        for (int w = 0; w < 2; w++) {
          bool in = b * kRows + j * 8 + lane % 4 * 2 + w < query.entries;
          gradients(s[j][2 * h + w], e[j][2 * h + w], in, c, own_lse[h], sum[h], scale);
        }
        int to = swizzled(j * 8 + lane / 4, threadIdx.x % 128 / kWarp * 2 + h) + lane % 4 * 4;
        store_entries((char*)(ds + tile) + to, e[j] + 2 * h);
        if (p) store_entries((char*)(p + tile) + to, s[j] + 2 * h);
      }
  }
}

constexpr int kPart = 32, kParts = 5;     // keys of a stage, and stages
constexpr int kPartBox = kPart * 128;     // bytes of their 64 columns
constexpr int kPartSize = kBoxes * kPartBox;
constexpr int kTiles = kParts / 2 + 1;    // tiles of dS that as many stages need
constexpr int kTeams = 3, kOwn = kColumns / kTeams;  // consumer warpgroups, and columns of each

// absorbed_dq_wide: dq from dS as absorbed_ds_wide leaves it. Each consumer warpgroup has 192 columns of all heads.
extern "C" __global__ void __launch_bounds__((kTeams + 1) * 128, 1)
    absorbed_dq_wide_576_512(const Lists lists, u16* dq, u16* ds, const u16* k, int first, int heads, int most, int dqs,
                             int ks) {
  __shared__ u64 full[kParts], empty[kParts];
  Asked query = lists.query(first + blockIdx.x);
  int head = blockIdx.y * kHeads, own_heads = min(kHeads, heads - head), team = uniform(threadIdx.x / 128);
  int parts = (query.entries + kPart - 1) / kPart, slot = 0, phase = 0;
  auto keys = [&](int slot) { return shared + slot * kPartSize; };
  auto slopes = [&](int part) { return shared + kParts * kPartSize + part / 2 % kTiles * kPanel; };
  auto next = [&] {
    if (++slot == kParts) slot = 0, phase ^= 1;
  };
  if (threadIdx.x < kParts) {
    barrier_init(full + threadIdx.x, kGather);
    barrier_init(empty + threadIdx.x, kTeams * 4);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    fence_async();
  }
  __syncthreads();
  if (team == kTeams) {
    fewer_registers<56>();
    Gather<kGather, kPart> g;
    int found = query.key(g.entry());
    for (int i = 0; i < parts; i++, next()) {
      const u16* from[g.kRounds];
      g.rows(from, found, k, ks);
      barrier_wait(empty + slot, phase ^ 1);
      if (i % 2 == 0) {  // the place of the tile three before, whose stages are five and six back
        const u16* tile = ds + tile_of(i / 2, most);
#pragma unroll
        for (int p = 0; p < kPanel; p += kGather * 16) {
          int at = p + threadIdx.x % kGather * 16;
          copy16(slopes(i) + at, tile + at / 2, 16);
        }
      }
#pragma unroll
      for (int box = 0; box < kBoxes; box++) g.box(keys(slot) + box * kPartBox, from, k, 64 * box);
      barrier_arrive_copied(full + slot);
      found = query.key((i + 1) * kPart + g.entry());
    }
    commit();
    wait<0>();
    return;
  }
  more_registers<152>();
  float g[kOwn / 8][4] = {};
  hold(g);
  for (int i = 0, last = 0; i < parts; i++, last = slot, next()) {
    barrier_wait(full + slot, phase);
    fence_async();
    auto a = operand<kPanel>(slopes(i) + i % 2 * kPartBox);
    auto b = operand<kPartBox>(keys(slot) + team * (kOwn / 64) * kPartBox);
    wgmma_fence();
#pragma unroll
    for (int x = 0; x < kPart; x += 16) wgmma<kOwn, 1, 1>(g[0], a + (x * 128 >> 4), b + (x * 128 >> 4));
    wgmma_commit();
    if (i == 0) continue;
    wgmma_wait<1>();
    if (warp_lane() == 0) barrier_arrive(empty + last);
  }
  wgmma_wait<0>();
  hold(g);
  u16* to = dq + (size_t)query.row * dqs + head * kColumns + team * kOwn;
  put<kOwn>(to, g, kColumns, threadIdx.x % 128 / kWarp * 16, own_heads);
}

#endif
