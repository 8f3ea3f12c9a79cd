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
// Of values in codes 64 keys are 42 KB: 2,400 clocks at an H200's 18 bytes a clock of memory. The warpgroup that
// gathers decodes, 128 pairs of codes a thread at 4 logic instructions of two clocks and 2 products: 1,300 to 1,600
// clocks, below memory and below the 2,650 of sums.
#include "absorbed_wide.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

constexpr int kOwn = kValues / 2;  // columns of a warpgroup
constexpr int kLeft = kOwn / 64;   // boxes that only the first warpgroup adds

typedef u8 Scales[kRows][kValues / kScaled];  // of a block's rows

// Pieces are what a thread of those that decode holds of rows on their way: of two rows of each block one piece of 16
// bytes after the other, of eight boxes of codes and of the rotated columns, each four threads wide.
struct Pieces {
  static constexpr int kCount = kBoxes + 1, kAhead = kCount / 2, kRounds = 2, kStep = kRows / kRounds;
  const Latent<kValues>& k;
  Scales* scales;  // [2], of which a warp brings and reads its own rows
  int lane = warp_lane(), part = lane % 4, mine = threadIdx.x % kGather / 4;
  int key[kRounds];  // the rows that are loaded; -1: zeros
  uint4 held[kAhead][kRounds];

  __device__ Pieces(const Latent<kValues>& k, Scales* scales) : k(k), scales(scales) {}
  // entry is the row that a lane looks up for its warp.
  __device__ int entry() const { return lane / 8 % kRounds * kStep + mine - lane / 4 + lane % 8; }
  // begin takes the rows of block b, which the lanes have found, and asks for their scales.
  __device__ void begin(int found, int b) {
#pragma unroll
    for (int i = 0; i < kRounds; i++) {
      key[i] = __shfl_sync(~0u, found, 8 * i + lane / 4);
      if (part == 0)
        copy16(scales[b % 2][mine + i * kStep], k.values.scales + (long long)max(key[i], 0) * k.values.scale_stride,
               key[i] < 0 ? 0 : 16);
    }
    commit();
  }
  // arrive waits for scales.
  __device__ void arrive() const {
    wait<0>();
    __syncwarp();  // a row's have come by one of its threads
  }
  __device__ uint4 bring(int i, const void* from, long long stride, int at) const {
    return key[i] < 0 ? make_uint4(0, 0, 0, 0) : *(const uint4*)((const u8*)from + key[i] * stride + at);
  }
  __device__ void load(int piece) {
#pragma unroll
    for (int i = 0; i < kRounds; i++)
      held[piece % kAhead][i] =
          piece < kBoxes - 1 ? bring(i, k.values.codes, k.values.stride, 64 * piece + 16 * part)
                             : bring(i, k.rotated.x, 2 * k.rotated.stride, 32 * part + 16 * (piece - kBoxes + 1));
  }
  __device__ void store(char* tile, int piece, int b) const {
    char* panel = tile + min(piece, kBoxes - 1) * kPanel;
#pragma unroll
    for (int i = 0; i < kRounds; i++) {
      char* row = panel + i * kStep * 128;
      uint4 x = held[piece % kAhead][i];
      if (piece >= kBoxes - 1) {
        *(uint4*)(row + (swizzled(mine, 2 * part) ^ 16 * (piece - kBoxes + 1))) = x;
        continue;
      }
      u32 twice = scale_bf16(scales[b % 2][mine + i * kStep][2 * piece + part / 2]) * 0x10001u;
      *(uint4*)(row + swizzled(mine, 2 * part)) = eight_of(make_uint2(x.x, x.y), twice);
      *(uint4*)(row + (swizzled(mine, 2 * part) ^ 16)) = eight_of(make_uint2(x.z, x.w), twice);
    }
  }
};

// Slots are the places of two key blocks: of block b that of b % 2. So many boxes of it are full together; the left
// half and the rest come free.
template <int Together>
struct Slots {
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

  // gather is the same for keys whose values are in codes. Half a block is on its way in registers: a piece that is
  // decoded makes room for another. No fence is here but behind wait_full, as it would wait for what is on its way.
  __device__ void gather(Asked query, const Latent<kValues>& k, int first, int entries, Scales* scales) const {
    Pieces p(k, scales);
    int entry = first + p.entry();
    query.entries = first + entries;
    p.begin(query.key(entry), 0);
#pragma unroll
    for (int piece = 0; piece < p.kAhead; piece++) p.load(piece);
    int found = query.key(entry += kRows);
    for (int b = 0; b * kRows < entries; b++) {
      p.arrive();
#pragma unroll
      for (int piece = 0; piece < p.kCount; piece++) {
        if (piece == 0 || piece == kLeft) wait_free(b, piece > 0);
        if (piece == p.kAhead) p.begin(found, b + 1), found = query.key(entry += kRows);
        p.store(tile(b), piece, b);
        p.load((piece + p.kAhead) % p.kCount);
        if (piece % 2) barrier_arrive(full_of(b, piece - 1));
      }
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
// registers, the others Fewer: all together no more than 384 of 168.
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
  using S = Slots<1>;
  auto gather = [&](const S& slots, const Asked& query, int from, int entries) {
    slots.gather(query, k, ks, from, entries);
  };
  wide<S, 232, 40>(lists, out, lse, q, gather, partials, first, heads, os, lses, qs, split, c);
}

extern "C" __global__ void __launch_bounds__(3 * 128, 1)
    absorbed_wide_codes_576_512(const Lists lists, u16* out, float* lse, const u16* q, const Codes values,
                                const u16* rotated, float* partials, int first, int heads, int os, int lses, int qs,
                                int rs, int split, float c) {
  using S = Slots<2>;
  __shared__ __align__(16) Scales scales[2];
  auto gather = [&](const S& slots, const Asked& query, int from, int entries) {
    slots.gather(query, Latent<kValues>{values, {rotated, rs}}, from, entries, scales);
  };
  wide<S, 208, 88>(lists, out, lse, q, gather, partials, first, heads, os, lses, qs, split, c);
}

#endif
