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
// Of values in codes 64 keys are 42 KB: 2,400 clocks at an H200's 18 bytes a clock of memory. Two warpgroups gather and
// decode, each for the blocks of one place, 128 pairs of codes a thread for two blocks at 4 logic instructions of two
// clocks and 2 products. A place has two blocks of time: 1,200 until codes come, 1,300 to decode, dots of 1,200, a
// softmax of 1,000, sums 500, and the other's softmax, behind which it is free: 6,200 clocks, 3,100 a block.
#include "absorbed_wide.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

constexpr int kOwn = kValues / 2;  // columns of a warpgroup
constexpr int kLeft = kOwn / 64;   // boxes that only the first warpgroup adds

typedef u8 Scales[kRows][kValues / kScaled];  // of a block's rows

// Coded is what a warp of those that decode has of a block: 16 rows, of each 16 codes a lane, so that a row's 512 bytes
// are asked for at once, and of the rotated columns. Codes wait where their numbers go: in one half of 32 bytes, which
// alternates between boxes, so that no two lanes of eight have the same banks.
struct Coded {
  static constexpr int kOwned = kRows / (kGather / kWarp), kCoded = kBoxes - 1;
  const Latent<kValues>& k;
  Scales& scales;  // of which a warp brings and reads its own rows
  int lane = warp_lane(), box = lane / 4, row = threadIdx.x % kGather / kWarp * kOwned;
  int found;  // row lane % kOwned of those; -1: zeros

  __device__ Coded(const Latent<kValues>& k, Scales& scales) : k(k), scales(scales) {}
  __device__ char* place(char* tile, int i, int half) const {
    return tile + box * kPanel + swizzled(row + i, lane % 4 * 2 + half);
  }
  __device__ void copy(void* to, const void* from, long long stride, int at, int i) const {
    int key = __shfl_sync(~0u, found, i);
    copy16(to, (const u8*)from + max(key, 0) * stride + at, key < 0 ? 0 : 16);
  }
  __device__ void bring_scales() const {
    if (lane < kOwned)
      copy16(scales[row + lane], k.values.scales + (long long)max(found, 0) * k.values.scale_stride,
             found < 0 ? 0 : 16);
  }
  // bring asks for half of the rows.
  __device__ void bring(char* tile, int half) const {
#pragma unroll 4
    for (int i = half * kOwned / 2; i < (half + 1) * kOwned / 2; i++)
      copy(place(tile, i, box % 2), k.values.codes, k.values.stride, 16 * lane, i);
#pragma unroll
    for (int i = half * kOwned / 2; i < (half + 1) * kOwned / 2; i += kWarp / 8)
      copy(tile + kCoded * kPanel + swizzled(row + i + lane / 8, lane % 8), k.rotated.x, 2 * k.rotated.stride,
           16 * (lane % 8), i + lane / 8);
  }
  __device__ void decode(char* tile, int half) const {
#pragma unroll 4
    for (int i = half * kOwned / 2; i < (half + 1) * kOwned / 2; i++) {
      uint4 x = *(const uint4*)place(tile, i, box % 2);
      u32 twice = scale_bf16(scales[row + i][lane / 2]) * 0x10001u;
      uint4 y[2] = {eight_of(make_uint2(x.x, x.y), twice), eight_of(make_uint2(x.z, x.w), twice)};
      *(uint4*)place(tile, i, box % 2) = box % 2 ? y[1] : y[0];
      *(uint4*)place(tile, i, box % 2 ^ 1) = box % 2 ? y[0] : y[1];
    }
  }
};

// Slots are the places of two key blocks: of block b that of b % 2. So many boxes of it are full together; the left
// half and the rest come free. Sums are wgmma of Once columns: the compiler has no room for 256 where blocks of 512
// threads begin with 128 registers each.
template <int Together, int Once>
struct Slots {
  static constexpr int kOnce = Once;
  char* base;
  u64 *full, *free;  // [2][kBoxes], [2][2]

  __device__ char* tile(int b) const { return base + b % 2 * kKeyTile; }
  __device__ u64* full_of(int b, int box) const { return full + b % 2 * kBoxes + box / Together; }
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
    if (box % Together) return;
    barrier_wait(full_of(b, box), b / 2 & 1);
    fence_async();
  }
  __device__ void wait_free(int b, int half) const { barrier_wait(free + b % 2 * 2 + half, (b / 2 & 1) ^ 1); }

  // release is by warpgroup w when its wgmma is done: a warp for the left half, which it has read, and every thread for
  // the right one, where it may have written p.
  __device__ void release(int b, int w) const {
    if (w == 0 && warp_lane() == 0) barrier_arrive(free + b % 2 * 2);
    barrier_arrive(free + b % 2 * 2 + 1);
  }

  // gather copies the blocks of a query's list from entry `first` on. A warp looks up its 16 rows of a block at once,
  // while the block before is on its way.
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
        barrier_arrive_copied(full_of(b, box));
      }
      found = look(b + 1);
    }
    commit();
    wait<0>();  // threads do not leave before what they have started
  }

  // gather is the same for keys whose values are in codes, by one of two warpgroups, each of which has the blocks of
  // one place: codes of a block come while the block before is decoded and computed. The right half comes free last.
  __device__ void gather(const Asked& query, const Latent<kValues>& k, int first, int entries, Scales* scales) const {
    int b = threadIdx.x / kGather % 2;
    Coded rows(k, scales[b]);
    auto look = [&](int b) {
      int entry = b * kRows + rows.row + rows.lane % rows.kOwned;
      return entry < entries ? query.key(first + entry) : -1;
    };
    for (int next = look(b); b * kRows < entries; b += 2) {
      rows.found = next;
      wait_free(b, 1);
      rows.bring_scales();
      rows.bring(tile(b), 0);
      commit();
      rows.bring(tile(b), 1);
      commit();
      next = look(b + 2);
      wait<1>();
      __syncwarp();  // scales have come by one lane a row
      rows.decode(tile(b), 0);
      wait<0>();
      rows.decode(tile(b), 1);
      barrier_arrive(full_of(b, 0));
    }
  }
};

// Side is warpgroup W of the two: the dots and the softmax of blocks b % 2 == W, and W's columns of the sums.
template <int W, class S>
struct Side {
  const S& slots;
  const char* queries;
  float (*hand)[3][kHeads];  // [2]: maxima, sums and factors after a block
  int entries;
  float c;
  int band = threadIdx.x / kWarp % 4 * 16, lane = warp_lane();
  Online state;
  float s[8][4], o[kOwn / 8][4];

  __device__ Side(const S& slots, const char* queries, float (*hand)[3][kHeads], int entries, float c)
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
    for (int y = 0; y < 4; y++)
#pragma unroll
      for (int x = 0; x < kOwn; x += S::kOnce)
        wgmma<S::kOnce, 0, 1>(o[x / 8], p + (16 * y * 2 >> 4), v + (x / 64 * kPanel + 16 * y * 128 >> 4));
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

// Results are where a block's sums go; what they are is looked up behind the sums, which leave no registers for it.
struct Results {
  u16* out;
  float *lse, *partials;
  int row, heads, os, lses;
  bool split;
};

template <int W, int More, class S, class F>
__device__ inline void attend(const S& slots, const char* queries, float (*hand)[3][kHeads], F results, int entries,
                              float c) {
  more_registers<More>();
  Side<W, S> side(slots, queries, hand, entries, c);
  side.run();
  Results to = results();
  int head = blockIdx.y * kHeads, own_heads = min(kHeads, to.heads - head);
  bool split = to.split;
  u16* out = to.out + (size_t)to.row * to.os + head * kValues;
  float* lse = to.lse + (size_t)to.row * to.lses + head;
  float* partial = to.partials + (((size_t)blockIdx.x * gridDim.z + blockIdx.z) * to.heads + head) * (kValues + 2);
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

// wide is the kernel; gather(slots, query, from, entries) is by the threads that copy. Those that compute have More
// registers, the others Fewer: all together no more than 65,536.
template <class S, int More, int Fewer, class F>
__device__ inline void wide(const Lists& lists, u16* out, float* lse, const u16* q, F gather, float* partials,
                            int first, int heads, int os, int lses, int qs, int split, float c) {
  __shared__ u64 full[2 * kBoxes], free[4];
  __shared__ float hand[2][3][kHeads];
  Asked query = lists.query(first + blockIdx.x);
  int head = blockIdx.y * kHeads, own_heads = min(kHeads, heads - head), from = blockIdx.z * split,
      entries = min(query.entries - from, split), team = threadIdx.x / 128;
  if (entries <= 0) return;
  S slots = {shared + kKeyTile, full, free};
  slots.prepare();
  __syncthreads();
  if (team >= 2) {
    fewer_registers<Fewer>();
    gather(slots, query, from, entries);
    return;
  }
  bring_heads<kBoxes, 2 * 128>(shared, q + (long long)query.row * qs + head * kColumns, own_heads);
  commit();
  wait<0>();
  fence_async();
  meet_both(5);
  auto results = [&] {
    Asked query = lists.query(first + blockIdx.x);
    return Results{out, lse, partials, query.row, heads, os, lses, query.entries > split};
  };
  if (team == 0) attend<0, More>(slots, shared, hand, results, entries, c);
  else attend<1, More>(slots, shared, hand, results, entries, c);
}

extern "C" __global__ void __launch_bounds__(3 * 128, 1)
    absorbed_wide_576_512(const Lists lists, u16* out, float* lse, const u16* q, const u16* k, float* partials,
                          int first, int heads, int os, int lses, int qs, int ks, int split, float c) {
  using S = Slots<1, kOwn>;
  auto gather = [&](const S& slots, const Asked& query, int from, int entries) {
    slots.gather(query, k, ks, from, entries);
  };
  wide<S, 232, 40>(lists, out, lse, q, gather, partials, first, heads, os, lses, qs, split, c);
}

extern "C" __global__ void __launch_bounds__(4 * 128, 1)
    absorbed_wide_codes_576_512(const Lists lists, u16* out, float* lse, const u16* q, const Codes values,
                                const u16* rotated, float* partials, int first, int heads, int os, int lses, int qs,
                                int rs, int split, float c) {
  using S = Slots<kBoxes, kOwn / 2>;
  __shared__ __align__(16) Scales scales[2];
  auto gather = [&](const S& slots, const Asked& query, int from, int entries) {
    slots.gather(query, Latent<kValues>{values, {rotated, rs}}, from, entries, scales);
  };
  wide<S, 208, 48>(lists, out, lse, q, gather, partials, first, heads, os, lses, qs, split, c);
}

#endif
