// Absorbed latent attention of 576 and 512 columns with Hopper's wgmma: rules and grid as in absorbed.cu. A block is a
// query with up to 64 of its heads: two warpgroups that compute and one that gathers rows of keys, 64 columns at a
// time, as they come free.
//
// The warpgroups alternate between blocks of 64 keys: one computes the dots and the softmax of the even, the other of
// the odd ones, and hands on maxima, sums and factors, and p in the place of the key's last 64 columns, which no value
// has. Both add p V, each to 256 of the 512 columns, 128 sums a thread. The first adds odd blocks before it asks for
// dots of the next even one; the second asks for its dots before it adds the block before, so that the tensor cores
// have work while the first does a softmax.
//
// Bound for 64 keys: products 2*64*64*(576 + 512) flops, 2,176 clocks (dots 1,152, for which shared memory gives all it
// has); 73 KB from L2, 3,000 clocks if that gives a multiprocessor 24 bytes a clock; what passes through shared memory,
// 2,500. Counting events with dots, a softmax of 1,000 clocks and two key blocks: 3,450 clocks where L2 gives 24 bytes
// a clock and 2,650 where it gives 40. On an H200, 64 heads: sparse, 16,384 rows and lists of 2,048: 9.5 ms, 461
// TFLOP/s, as much where all queries choose the same keys; dense, 8,192 rows: 11.9 ms; 256 sequences of 4,096 keys:
// 0.42 ms, 2.9 TB/s. With only six ninths of the dots before the sums 8% slower.
//
// Of values in codes 64 keys are 42 KB: 3,240 clocks at an H100's 13 bytes a clock of memory. Only the warpgroup that
// gathers decodes, 256 codes a thread: 1,100 issue slots of its scheduler, some 1,600 clocks with loads and stores in
// shared memory. Slots have no room for codes that wait, so rows come as late as they are decoded: those of the block
// after next are brought to L2 meanwhile. 2,600 clocks a block to copy and to decode, less than memory takes. On an
// H100 the 256 sequences took 0.65 ms without that, a fence a box and a load behind each store (bf16: 0.52 ms);
// predicted are 0.3 to 0.4 ms. No card has run it since.
#include "absorbed_wide.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

constexpr int kOwn = kValues / 2;  // columns of a warpgroup
constexpr int kLeft = kOwn / 64;   // boxes that only the first warpgroup adds

// Slots are the places of two key blocks: of block b that of b % 2. Each box of it is full for itself; the left half
// and the rest come free.
struct Slots {
  static constexpr int kRounds = 2, kStep = kRows / kRounds;  // rows of codes that a thread copies, and from one on
  char* base;
  u64 *full, *free;  // [2][kBoxes], [2][2]

  __device__ char* tile(int b) const { return base + b % 2 * kKeyTile; }
  __device__ void prepare() const {
    if (threadIdx.x < 2 * kBoxes) barrier_init(full + threadIdx.x, kGather);
    if (threadIdx.x < 4) barrier_init(free + threadIdx.x, threadIdx.x % 2 ? 2 * 128 : 4);
    if (threadIdx.x < 2 * kBoxes) {
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
      fence_async();
    }
  }
  // wait_full is for a box. Copies are writes of the threads, which wgmma sees behind a fence.
  __device__ void wait_full(int b, int box) const {
    barrier_wait(full + b % 2 * kBoxes + box, b / 2 & 1);
    fence_async();
  }
  __device__ void wait_free(int b, int half) const { barrier_wait(free + b % 2 * 2 + half, (b / 2 & 1) ^ 1); }

  // release is by warpgroup w when its wgmma is done: a warp for the left half, which it has read, and every thread for
  // the right one, where it may have written p.
  __device__ void release(int b, int w) const {
    if (w == 0 && warp_lane() == 0) barrier_arrive(free + b % 2 * 2);
    barrier_arrive(free + b % 2 * 2 + 1);
  }

  // gather is the threads that copy: the blocks of a query's list from entry `first` on. A warp looks up its 16 rows of
  // a block at once, while the block before is on its way.
  __device__ void gather(const Asked& query, const u16* k, int ks, int first, int entries) const {
    Gather<kGather> g;
    auto look = [&](int b) { return b * kRows + g.entry() < entries ? query.key(first + b * kRows + g.entry()) : -1; };
    int found = look(0);
    for (int b = 0; b * kRows < entries; b++) {
      const u16* from[g.kRounds];
      g.rows(from, found, k, ks);
#pragma unroll
      for (int box = 0; box < kBoxes; box++) {
        if (box == 0 || box == kLeft) wait_free(b, box > 0);
        g.box(tile(b) + box * kPanel, from, k, 64 * box);
        barrier_arrive_copied(full + b % 2 * kBoxes + box);
      }
      found = look(b + 1);
    }
    commit();
    wait<0>();  // threads do not leave before what they have started
  }

  // decode makes numbers of codes of boxes [from, to) of block b, where the thread has copied 16 of its rows' to the
  // place of eight numbers.
  __device__ void decode(int b, int from, int to, int first, const u8 (*scales)[kValues / kScaled]) const {
    int part = warp_lane() % 4;
#pragma unroll 1
    for (int box = from; box < to; box++) {
      char* panel = tile(b) + box * kPanel;
      uint4 codes[kRounds];
      u32 scale[kRounds];
#pragma unroll
      for (int i = 0; i < kRounds; i++) {  // all loads before the first store, which might change what they read
        codes[i] = *(const uint4*)(panel + swizzled(first + i * kStep, 2 * part));
        scale[i] = scales[first + i * kStep][2 * box + part / 2];
      }
#pragma unroll
      for (int i = 0; i < kRounds; i++) {
        int row = first + i * kStep;
        u32 twice = scale_bf16(scale[i]) * 0x10001u;
        *(uint4*)(panel + swizzled(row, 2 * part)) = eight_of(make_uint2(codes[i].x, codes[i].y), twice);
        *(uint4*)(panel + swizzled(row, 2 * part + 1)) = eight_of(make_uint2(codes[i].z, codes[i].w), twice);
      }
      if (box % 2 == 0) continue;
      fence_async();  // which waits for what the thread has stored: once for two boxes
      barrier_arrive(full + b % 2 * kBoxes + box - 1);
      barrier_arrive(full + b % 2 * kBoxes + box);
    }
  }

  // prefetch asks L2 for rows key[i] of a block, four threads a row, 32 bytes each.
  __device__ void prefetch(const Latent<kValues>& k, const int (&key)[kRounds]) const {
    int part = warp_lane() % 4;
#pragma unroll
    for (int i = 0; i < kRounds; i++) {
      if (key[i] < 0) continue;
      const u8* codes = k.values.codes + (long long)key[i] * k.values.stride + 32 * part;
#pragma unroll
      for (int at = 0; at < kValues; at += 4 * 32) prefetch_l2(codes + at);
      prefetch_l2(k.rotated.x + (long long)key[i] * k.rotated.stride + 16 * part);
      if (part == 0) prefetch_l2(k.values.scales + (long long)key[i] * k.values.scale_stride);
    }
  }

  // gather is the same for keys whose values are in codes: four threads a row, 16 codes of a box each. What is the left
  // half is decoded while the right one is on its way, and the block after next comes to L2: slots have no room for it.
  __device__ void gather(const Asked& query, const Latent<kValues>& k, int first, int entries,
                         u8 (*scales)[kValues / kScaled]) const {
    int lane = warp_lane(), warp = threadIdx.x % kGather / kWarp, part = lane % 4, mine = warp * 8 + lane / 4;
    // lanes 0 to 15 look up a block's rows, the others those of the block after next
    auto look = [&](int b) {
      int entry = (b + lane / 16 * 2) * kRows + lane / 8 % kRounds * kStep + warp * 8 + lane % 8;
      return entry < entries ? query.key(first + entry) : -1;
    };
    int found = look(0);
    for (int b = 0; b * kRows < entries; b++) {
      int key[kRounds];
#pragma unroll
      for (int i = 0; i < kRounds; i++) key[i] = __shfl_sync(~0u, found, 16 + 8 * i + lane / 4);
      prefetch(k, key);
#pragma unroll
      for (int i = 0; i < kRounds; i++) key[i] = __shfl_sync(~0u, found, 8 * i + lane / 4);
      wait_free(b, 0);
#pragma unroll
      for (int i = 0; i < kRounds; i++)
        if (part == 0)
          copy16(scales[mine + i * kStep], k.values.scales + (long long)max(key[i], 0) * k.values.scale_stride,
                 key[i] < 0 ? 0 : 16);
#pragma unroll 1
      for (int box = 0; box < kBoxes - 1; box++) {
        if (box == kLeft) commit(), wait_free(b, 1);
#pragma unroll
        for (int i = 0; i < kRounds; i++)
          copy16(tile(b) + box * kPanel + swizzled(mine + i * kStep, 2 * part),
                 k.values.codes + (long long)max(key[i], 0) * k.values.stride + 64 * box + 16 * part,
                 key[i] < 0 ? 0 : 16);
      }
#pragma unroll
      for (int i = 0; i < kRounds; i++)
#pragma unroll
        for (int j = 2 * part; j < 2 * part + 2; j++)
          copy16(tile(b) + (kBoxes - 1) * kPanel + swizzled(mine + i * kStep, j),
                 k.rotated.x + (long long)max(key[i], 0) * k.rotated.stride + 8 * j, key[i] < 0 ? 0 : 16);
      commit();
      found = look(b + 1);
      wait<1>();
      __syncwarp();  // a row's scales have come by one of its threads
      decode(b, 0, kLeft, mine, scales);
      wait<0>();
      decode(b, kLeft, kBoxes - 1, mine, scales);
      barrier_arrive(full + b % 2 * kBoxes + kBoxes - 1);
      __syncwarp();  // before the next block's scales
    }
  }
};

// Side is warpgroup W of the two: the dots and the softmax of blocks b % 2 == W, and W's columns of the sums.
template <int W>
struct Side {
  const Slots& slots;
  const char* queries;
  float (*hand)[3][kHeads];  // [2]: maxima, sums and factors after a block
  int entries;
  float c;
  int band = threadIdx.x / kWarp % 4 * 16, lane = warp_lane();
  Online state;
  float s[8][4], o[kOwn / 8][4];

  __device__ Side(const Slots& slots, const char* queries, float (*hand)[3][kHeads], int entries, float c)
      : slots(slots), queries(queries), hand(hand), entries(entries), c(c) {
#pragma unroll
    for (int j = 0; j < kOwn / 8; j++)
#pragma unroll
      for (int v = 0; v < 4; v++) o[j][v] = 0.f;
  }
  // ask begins the dots of block b.
  __device__ void ask(int b) {
    auto q = describe(queries), k = describe(slots.tile(b));
    hold(s);
    wgmma_fence();
#pragma unroll
    for (int box = 0; box < kBoxes; box++) {
      slots.wait_full(b, box);
#pragma unroll
      for (int x = box * 64; x < box * 64 + 64; x += 16) dots(s, by_columns(q, x), by_columns(k, x), x > 0);
    }
    wgmma_commit();
  }
  // soften converts the dots of block b to p and hands it on.
  __device__ void soften(int b) {
    hold(s);
    Range all = {0, (u32)entries}, seen[2] = {all, all};
    if ((b + 1) * kRows <= entries) state.block<false>(s, seen, b * kRows, c);
    else state.block<true>(s, seen, b * kRows, c);
    u32 p[4][4];
    pack(p, s);
    char* weights = slots.tile(b) + (kBoxes - 1) * kPanel;
    meet(3 + W);  // all warps have their dots, which read what is overwritten
#pragma unroll
    for (int j = 0; j < 8; j++)
#pragma unroll
      for (int h = 0; h < 2; h++)
        *(u32*)(weights + swizzled(band + lane / 4 + 8 * h, j) + lane % 4 * 4) = p[j / 2][j % 2 * 2 + h];
    if (lane % 4 == 0)
#pragma unroll
      for (int h = 0; h < 2; h++) {
        int r = band + lane / 4 + 8 * h;
        hand[b % 2][0][r] = state.m[h], hand[b % 2][1][r] = state.l[h], hand[b % 2][2][r] = state.decay[h];
      }
    fence_async();
    meet(3 + W);
    publish(1 + W);
  }
  // take waits for what the other warpgroup hands on of block b.
  __device__ void take(int b) {
    meet_both(2 - W);
#pragma unroll
    for (int h = 0; h < 2; h++) {
      int r = band + lane / 4 + 8 * h;
      state.m[h] = hand[b % 2][0][r], state.l[h] = hand[b % 2][1][r], state.decay[h] = hand[b % 2][2][r];
    }
  }
  // add begins to add the values of block b.
  __device__ void add(int b) {
    state.scale(o);
    auto p = operand<kPanel>(slots.tile(b) + (kBoxes - 1) * kPanel),
         v = operand<kPanel>(slots.tile(b) + W * kLeft * kPanel);
    hold(o);
    wgmma_fence();
#pragma unroll
    for (int y = 0; y < 4; y++) wgmma<kOwn, 0, 1>(o[0], p + (16 * y * 2 >> 4), v + (16 * y * 128 >> 4));
    wgmma_commit();
  }
  __device__ void finish(int b) {
    wgmma_wait<0>();
    hold(o);
    slots.release(b, W);
  }
  __device__ void run() {
    int blocks = (entries + kRows - 1) / kRows;
    if (W == 0)
      for (int b = 0; b < blocks; b += 2) {
        ask(b);
        wgmma_wait<0>();
        soften(b);
        add(b);
        finish(b);
        if (b + 1 == blocks) break;
        take(b + 1);
        add(b + 1);
        finish(b + 1);
      }
    else {
      for (int b = 1; b < blocks; b += 2) {
        ask(b);
        take(b - 1);
        add(b - 1);
        wgmma_wait<1>();
        soften(b);
        finish(b - 1);
        add(b);
        finish(b);
      }
      if (blocks % 2 == 0) return;
      take(blocks - 1);
      add(blocks - 1);
      finish(blocks - 1);
    }
  }
};

template <int W>
__device__ inline void attend(const Slots& slots, const char* queries, float (*hand)[3][kHeads], const Asked& query,
                              u16* out, float* lse, float* partial, int entries, int own_heads, bool split, float c) {
  more_registers<kMore>();
  Side<W> side(slots, queries, hand, entries, c);
  side.run();
#pragma unroll
  for (int h = 0; h < 2; h++) {
    int r = side.band + side.lane / 4 + 8 * h, at = W * kOwn + side.lane % 4 * 2;
    if (r >= own_heads) continue;
    float m = side.state.m[h], l = side.state.l[h], inverse = 1.f / l;
    float* sums = partial + r * (kValues + 2);
    if (W == 0 && side.lane % 4 == 0) {
      if (split) sums[kValues] = m, sums[kValues + 1] = l;
      else lse[r] = m + ln_def(l) * kLog2E;
    }
#pragma unroll
    for (int j = 0; j < kOwn / 8; j++) {
      float x = side.o[j][2 * h], y = side.o[j][2 * h + 1];
      if (split) *(float2*)(sums + at + 8 * j) = make_float2(x, y);
      else *(u32*)(out + r * kValues + at + 8 * j) = pair(x * inverse + 0.f, y * inverse + 0.f);
    }
  }
}

// wide is the kernel; gather(slots, query, from, entries) is by the threads that copy.
template <class F>
__device__ inline void wide(const Lists& lists, u16* out, float* lse, const u16* q, F gather, float* partials,
                            int first, int heads, int os, int lses, int qs, int split, float c) {
  __shared__ u64 full[2 * kBoxes], free[4];
  __shared__ float hand[2][3][kHeads];
  Asked query = lists.query(first + blockIdx.x);
  int head = blockIdx.y * kHeads, own_heads = min(kHeads, heads - head), from = blockIdx.z * split,
      entries = min(query.entries - from, split), team = threadIdx.x / 128;
  if (entries <= 0) return;
  Slots slots = {shared + kKeyTile, full, free};
  slots.prepare();
  __syncthreads();
  if (team == 2) {
    fewer_registers<kFewer>();
    gather(slots, query, from, entries);
    return;
  }
  bring_heads<kBoxes, 2 * 128>(shared, q + (long long)query.row * qs + head * kColumns, own_heads);
  commit();
  wait<0>();
  fence_async();
  meet_both(5);
  out += (size_t)query.row * os + head * kValues, lse += (size_t)query.row * lses + head;
  float* partial = partials + (((size_t)blockIdx.x * gridDim.z + blockIdx.z) * heads + head) * (kValues + 2);
  if (team == 0) attend<0>(slots, shared, hand, query, out, lse, partial, entries, own_heads, query.entries > split, c);
  else attend<1>(slots, shared, hand, query, out, lse, partial, entries, own_heads, query.entries > split, c);
}

extern "C" __global__ void __launch_bounds__(3 * 128, 1)
    absorbed_wide_576_512(const Lists lists, u16* out, float* lse, const u16* q, const u16* k, float* partials,
                          int first, int heads, int os, int lses, int qs, int ks, int split, float c) {
  auto gather = [&](const Slots& slots, const Asked& query, int from, int entries) {
    slots.gather(query, k, ks, from, entries);
  };
  wide(lists, out, lse, q, gather, partials, first, heads, os, lses, qs, split, c);
}

extern "C" __global__ void __launch_bounds__(3 * 128, 1)
    absorbed_wide_codes_576_512(const Lists lists, u16* out, float* lse, const u16* q, const Codes values,
                                const u16* rotated, float* partials, int first, int heads, int os, int lses, int qs,
                                int rs, int split, float c) {
  __shared__ __align__(16) u8 scales[kRows][kValues / kScaled];
  auto gather = [&](const Slots& slots, const Asked& query, int from, int entries) {
    slots.gather(query, Latent<kValues>{values, {rotated, rs}}, from, entries, scales);
  };
  wide(lists, out, lse, q, gather, partials, first, heads, os, lses, qs, split, c);
}

#endif
