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
// Of values in codes 64 keys are 42 KB: 2,400 clocks at an H200's 18 bytes a clock of memory. Two warpgroups decode a
// block together, 64 pairs of codes a thread by 2 or 3 logic instructions of two clocks and one product. Memory answers
// after 3,000 clocks where all multiprocessors ask, so rows come to L2 two blocks ahead, as 48 registers a thread hold
// no more than what comes from there. From its last codes on a block has 4,000 clocks of dots, softmax and sums.
#include "absorbed_wide.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

constexpr int kOwn = kValues / 2;  // columns of a warpgroup
constexpr int kLeft = kOwn / 64;   // boxes that only the first warpgroup adds

constexpr int kDecode = 2 * 128;  // threads that decode

__device__ inline void prefetch_l2(const void* p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }

// Pieces are what a thread of those that decode has of a row of each block, one piece of 16 bytes after the other: a
// quarter of each of eight boxes of codes, and of the rotated columns. Three are on their way in registers, from L2.
struct Pieces {
  static constexpr int kCount = kBoxes + 1, kAhead = 3, kHeld = 5;
  static_assert(kCount % kHeld == 0, "a piece has the same registers in every block");
  const Latent<kValues>& k;
  int row = threadIdx.x % kDecode / 4, part = threadIdx.x % 4;
  const u8* from;  // what is loaded of a row: codes, then the rotated columns
  u32 scales[4];   // of the row of which pieces are stored, and where they are stored those of the next
  bool high;       // whether one of half of a row's, in the warp, is too high for raised_twice
  uint4 held[kHeld];

  __device__ Pieces(const Latent<kValues>& k) : k(k) {}
  __device__ void begin(int key) { from = k.values.codes + (long long)key * k.values.stride + 16 * part; }
  __device__ void begin_rotated(int key) {
    from = (const u8*)(k.rotated.x + (long long)key * k.rotated.stride) + 32 * part;
  }
  // prefetch brings a key's row to L2, where loads do not wait for memory and its pages.
  __device__ void prefetch(int key) const {
    prefetch_l2(k.values.codes + (long long)key * k.values.stride + 128 * part);
    if (part == 0) prefetch_l2(k.rotated.x + (long long)key * k.rotated.stride);
    if (part == 1) prefetch_l2(k.values.scales + (long long)key * k.values.scale_stride);
  }
  __device__ void load(int piece) {
    held[piece % kHeld] = *(const uint4*)(from + (piece < kBoxes - 1 ? 64 * piece : 16 * (piece - kBoxes + 1)));
  }
  __device__ void load_scales(int key, int half) {
    uint2 x = *(const uint2*)(k.values.scales + (long long)key * k.values.scale_stride + 8 * half);
    scales[2 * half] = x.x, scales[2 * half + 1] = x.y;
  }
  __device__ void see(int half) {
    u32 any = 0;
#pragma unroll
    for (int i = 2 * half; i < 2 * half + 2; i++)
      any |= ((scales[i] & 0x7f7f7f7f) + 0x01010101 * (256 - kHighScale)) & scales[i];
    high = __any_sync(~0u, any & 0x80808080);
  }
  __device__ void store(char* tile, int piece) const {
    uint4 x = held[piece % kHeld];
    char* panel = tile + min(piece, kBoxes - 1) * kPanel;
    int at = swizzled(row, 2 * part);
    if (piece >= kBoxes - 1) {
      *(uint4*)(panel + (at ^ 16 * (piece - kBoxes + 1))) = x;
      return;
    }
    u32 scale = scales[piece / 2] >> (piece % 2 * 16 + part / 2 * 8) & 0xff;
    uint2 left = make_uint2(x.x, x.y), right = make_uint2(x.z, x.w);
    if (high) {
      u32 twice = scale_bf16(scale) * 0x10001u;
      *(uint4*)(panel + at) = eight_parted<false>(left, twice);
      *(uint4*)(panel + (at ^ 16)) = eight_parted<false>(right, twice);
    } else {
      u32 twice = raised_twice(scale);
      *(uint4*)(panel + at) = eight_parted<true>(left, twice);
      *(uint4*)(panel + (at ^ 16)) = eight_parted<true>(right, twice);
    }
  }
};

// part_columns gives queries, of which a thread has brought rows as bring_heads does, the order that eight_parted gives
// to values.
__device__ inline void part_columns(char* queries) {
  Gather<2 * 128> g;
#pragma unroll
  for (int box = 0; box < kBoxes - 1; box++)
#pragma unroll
    for (int i = 0; i < g.kRounds; i++) {
      uint4* at = (uint4*)(queries + box * kPanel + swizzled(g.row + i * g.kStep, g.piece));
      uint4 x = *at;
      *at = make_uint4(__byte_perm(x.x, x.y, 0x5410), __byte_perm(x.x, x.y, 0x7632), __byte_perm(x.z, x.w, 0x5410),
                       __byte_perm(x.z, x.w, 0x7632));
    }
}

// Found are the keys of a warp's eight rows in four blocks and the four behind them, one a lane, so that no block waits
// for its list or its page. Rows behind the end are the last key's, whose weight is 0.
struct Found {
  const Asked& query;
  int first, entries, lane = warp_lane(), row = threadIdx.x % kDecode / kWarp * 8;
  int now, then;  // of four blocks, and of the four behind them

  __device__ Found(const Asked& query, int first, int entries) : query(query), first(first), entries(entries) {
    now = look(0), then = look(4);
  }
  __device__ int look(int b) const {
    return query.key(first + min((b + lane / 8) * kRows + row + lane % 8, entries - 1));
  }
  // pass is when block b begins.
  __device__ void pass(int b) {
    if (b % 4 == 0 && b > 0) now = then, then = look(b + 4);
  }
  // key is the thread's in block b + further, where b has begun.
  __device__ int key(int b, int further) const {
    int at = b % 4 + further;
    return __shfl_sync(~0u, at < 4 ? now : then, at % 4 * 8 + lane / 4);
  }
};

// Slots are the places of two key blocks: of block b that of b % 2. So many boxes of it are full together, by so many
// writers; the left half and the rest come free. Sums are wgmma of Once columns: the compiler has no room for 256 where
// blocks of 512 threads begin with 128 registers each.
template <int Together, int Writers, int Once, bool Parted>
struct Slots {
  static constexpr int kOnce = Once;
  static constexpr bool kParted = Parted;
  char* base;
  u64 *full, *free;  // [2][kBoxes], [2][2]

  __device__ char* tile(int b) const { return base + b % 2 * kKeyTile; }
  __device__ u64* full_of(int b, int box) const { return full + b % 2 * kBoxes + box / Together; }
  __device__ void prepare() const {
    if (threadIdx.x < 2 * kBoxes) barrier_init(full + threadIdx.x, Writers);
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

  // gather is the same for keys whose values are in codes. A piece that is decoded makes room for another.
  __device__ void gather(const Asked& query, const Latent<kValues>& k, int first, int entries) const {
    Pieces p(k);
    Found found(query, first, entries);
    p.begin(found.key(0, 0));
    p.load_scales(found.key(0, 0), 0), p.load_scales(found.key(0, 0), 1);
#pragma unroll
    for (int piece = 0; piece < p.kAhead; piece++) p.load(piece);
    p.prefetch(found.key(0, 1));
    for (int b = 0; b * kRows < entries; b++) {
      found.pass(b);
      p.prefetch(found.key(b, 2));
#pragma unroll
      for (int piece = 0; piece < p.kCount; piece++) {
        if (piece == 0 || piece == kLeft) wait_free(b, piece > 0), p.see(piece > 0);
        p.store(tile(b), piece);
        if (piece % 2) barrier_arrive(full_of(b, piece - 1));
        if (piece + p.kAhead == kBoxes - 1) p.begin_rotated(found.key(b, 0));
        if (piece + p.kAhead == p.kCount) p.begin(found.key(b, 1));
        if (piece == kLeft || piece == kBoxes - 1) p.load_scales(found.key(b, 1), piece > kLeft);
        p.load((piece + p.kAhead) % p.kCount);
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
  // join undoes the order of parted columns: of each four a lane has the first and third, the next the others.
  __device__ void join() {
    bool odd = lane % 2;
#pragma unroll
    for (int j = 0; j < kOwn / 8; j++)
#pragma unroll
      for (int h = 0; h < 2; h++) {
        float &x = o[j][2 * h], &y = o[j][2 * h + 1], other = __shfl_xor_sync(~0u, odd ? x : y, 1);
        (odd ? x : y) = other;
      }
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
  if (S::kParted) side.join();
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
  if (S::kParted) part_columns(shared);
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
  using S = Slots<1, kGather, kOwn, false>;
  auto gather = [&](const S& slots, const Asked& query, int from, int entries) {
    slots.gather(query, k, ks, from, entries);
  };
  wide<S, 232, 40>(lists, out, lse, q, gather, partials, first, heads, os, lses, qs, split, c);
}

extern "C" __global__ void __launch_bounds__(4 * 128, 1)
    absorbed_wide_codes_576_512(const Lists lists, u16* out, float* lse, const u16* q, const Codes values,
                                const u16* rotated, float* partials, int first, int heads, int os, int lses, int qs,
                                int rs, int split, float c) {
  using S = Slots<2, kDecode, kOwn / 2, true>;
  auto gather = [&](const S& slots, const Asked& query, int from, int entries) {
    slots.gather(query, Latent<kValues>{values, {rotated, rs}}, from, entries);
  };
  wide<S, 208, 48>(lists, out, lse, q, gather, partials, first, heads, os, lses, qs, split, c);
}

#endif
