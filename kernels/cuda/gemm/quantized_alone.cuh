// MatMul of one group by a weight in codes, where each multiprocessor has one tile of 64 columns: warps decode codes,
// which they bring to registers ahead, to an operand in shared memory. The products of all are bf16's.
//   Bound: what passes shared memory, 128 bytes a clock. For 64 columns, 64 rows and 128 k that is 64 KB, 512 clocks:
// numbers and rows of X are written once and read once, as in bf16. Codes do not pass it. A step's barriers and fences
// take 300 clocks of the warps that multiply and more of those that decode: steps are 128 k.
#pragma once
#include "quantized.cuh"
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Teams of warps have a step each.
constexpr int kTeams = 3, kTeam = 4, kTeamThreads = kTeam * kWarp;
constexpr int kLong = 128;  // k of a step

// Lines are codes and scales where they lie, `lines` lines of `bytes` for each group, and so many rows of scales.
struct Lines {
  const u8 *codes, *scales;
  int lines, bytes, blocks, wide;
};

// numbers_of writes the numbers of 16 bytes of codes as pieces of 16 bytes, which `at` finds.
template <bool EXACT, class F, class P>
__device__ inline void numbers_of(uint4 v, const Multiplier<F::kCode, typename F::Scale>& m, P at) {
  constexpr int kCode = F::kCode, kPairs = 64 / F::kBits;
  u32 words[4] = {v.x, v.y, v.z, v.w}, d[kPairs];
#pragma unroll
  for (int j = 0; j < kPairs; j++) {
    u32 word = words[j * 4 / kPairs];
    if constexpr (F::kBits == 4) d[j] = scaled<EXACT>(m, Bits<kCode>::pair(bytes_of(word, 0, 0x4440 | j % 4)));
    else if constexpr (sizeof(typename F::Scale) == 4) d[j] = rounded((u16)(word >> j % 2 * 16), m.low);
    else d[j] = scaled<EXACT>(m, Bits<kCode>::one(bytes_of(word, 0, j % 2 ? 0x3424 : 0x1404)));
  }
#pragma unroll
  for (int j = 0; j < kPairs; j += 4) *at(j / 4) = make_uint4(d[j], d[j + 1], d[j + 2], d[j + 3]);
}

// Part is a thread's of a step: a piece of 16 bytes in each half of 64 k, of a line or two. Threads side by side have
// the pieces of a half, then the next line's: their stores meet in no bank.
template <class F>
struct Part {
  using Scale = typename F::Scale;
  static constexpr int kPieces = F::kBits / 2;  // of a half
  static constexpr int kLines = 64 * kPieces / kTeamThreads, kScales = F::kWide == 0 ? 1 : 2;
  uint4 codes[kLines][2];
  Scale scales[kLines][kScales];

  static __device__ int line(int thread, int i) { return (i * kTeamThreads + thread) / kPieces; }

  // load asks for the part at k of a group's lines from `from` on; beyond the ends all is zero.
  __device__ void load(const Lines& w, int thread, int group, int from, int k, int depth) {
    long long first = (long long)group * w.lines;
    const Scale* all = (const Scale*)w.scales + (long long)group * w.blocks * w.lines;
    int same = F::kWide == 0 ? k / w.wide : 0;
#pragma unroll
    for (int i = 0; i < kLines; i++) {
      int row = from + line(thread, i);
#pragma unroll
      for (int h = 0; h < 2; h++) {
        int column = k + h * 64 + thread % kPieces * (128 / F::kBits);
        bool in = row < w.lines && column < depth;
        codes[i][h] = make_uint4(0, 0, 0, 0);
        if (in) codes[i][h] = *(const uint4*)(w.codes + (first + row) * w.bytes + column * F::kBits / 8);
        if (h >= kScales) continue;
        scales[i][h] = in ? all[(F::kWide == 0 ? same : column / 32) * w.lines + row] : Scale(0);
      }
    }
  }

  // decode writes the part's numbers to an operand.
  __device__ void decode(u16* a, int thread) const {
#pragma unroll
    for (int i = 0; i < kLines; i++)
#pragma unroll
      for (int h = 0; h < 2; h++) {
        int l = line(thread, i), first = thread % kPieces * (8 / kPieces);
        auto at = [&](int j) { return (uint4*)(a + (h * 64 + l) * 64 + ((first + j) ^ (l & 7)) * 8); };
        u32 signs = 0;
        Multiplier<F::kCode, Scale> m;
        m.same(scales[i][h % kScales]), m.beyond(signs);
        if (signs & 0x80008000) numbers_of<true, F>(codes[i][h], m, at);
        else numbers_of<false, F>(codes[i][h], m, at);
      }
  }
};

// skip goes n slots ahead, at most as many as there are.
template <int A, int B, int STAGES, int READERS>
__device__ inline void skip(Slots<A, B, STAGES, READERS>& ring, int n) {
  ring.slot += n;
  if (ring.slot >= STAGES) ring.slot -= STAGES, ring.phase ^= 1;
}

__device__ inline int long_steps(int k) { return (k + kLong - 1) / kLong; }

// each_term calls f with a term and the column of its weight where the tile begins, for all tiles of the block.
template <class T>
__device__ inline void each_term(const Terms& terms, const Tiles<64>& tiles, T f) {
  for (int i = blockIdx.x; i < tiles.count; i += gridDim.x) {
    Work w = tiles.work(i);
    for (int t = 0; t < terms.count; t++)
      if (terms.cover(t, w.col)) f(w, t, w.col - terms.from[t]);
  }
}

// copy_rows is the work of an elected thread: rows of X, and of other terms' weights.
template <int ROWS, class R>
__device__ inline void copy_rows(R& ring, const Terms& terms, const Tiles<64>& tiles) {
  each_term(terms, tiles, [&](const Work& w, int t, int at) {
    int rows = (width<ROWS>(w.rows) + terms.box - 1) / terms.box * terms.box;
    for (int k = 0; k < terms.k[t]; k += kLong, ring.next()) {
      if (t > 0) wait_for_grid();
      u64* full = ring.free((rows + (t > 0 ? 64 : 0)) * kLong * 2);
#pragma unroll
      for (int h = 0; h < 2; h++) {
        if (t > 0) copy_box(ring.a() + h * 64 * 64, &terms.w[t], k + h * 64, at, w.group, full);
        for (int r = 0; r < rows; r += terms.box)
          copy_box(ring.b() + (h * ROWS + r) * 64, &terms.x[t], k + h * 64, w.from + r, 0, full);
      }
    }
  });
}

// decode_tiles is the work of a warp that decodes: its team's steps. With other terms it only has its part in a slot's
// barrier.
template <class F, class R>
__device__ inline void decode_tiles(R& ring, const Terms& terms, const Lines& lines, const Tiles<64>& tiles,
                                    int team) {
  int thread = threadIdx.x % kTeamThreads, ahead = team;  // steps until the team's next
  skip(ring, team);
  each_term(terms, tiles, [&](const Work& w, int t, int at) {
    int count = long_steps(terms.k[t]), i = ahead;
    Part<F> next;
    if (t == 0 && i < count) next.load(lines, thread, w.group, at, i * kLong, terms.k[0]);
    for (; i < count; i += kTeams, skip(ring, kTeams)) {
      Part<F> own = next;
      if (t == 0 && i + kTeams < count)
        next.load(lines, thread, w.group, at, (i + kTeams) * kLong, terms.k[0]);
      ring.wait_free();
      if (t == 0) {
        own.decode(ring.a(), thread);
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
      }
      __syncwarp();
      ring.arrive();
    }
    ahead = i - count;
  });
}

// chain_long multiplies `steps` slots of 128 k.
template <int COLUMNS, int ROWS, class R>
__device__ inline void chain_long(float* d, R& ring, int steps) {
  held<COLUMNS>(d);
  for (int i = 0; i < steps; i++) {
    ring.filled();
    u32 a = operand<64 * 128>(ring.a()), b = operand<64 * 128>(ring.b());
    wgmma_fence();
#pragma unroll
    for (int s = 0; s < 8; s++)
      wgmma<COLUMNS, 0, 0>(d, a + s / 4 * (64 * 128 >> 4) + s % 4 * 2, b + s / 4 * (ROWS * 128 >> 4) + s % 4 * 2);
    wgmma_commit();
    wgmma_wait<1>();
    if (i > 0) ring.release_last();
    ring.next();
  }
  wgmma_wait<0>();
  held<COLUMNS>(d);
  ring.release_last();
}

// multiply_alone is the work of the warpgroup that multiplies.
template <int ROWS, class R>
__device__ inline void multiply_alone(R& ring, const Terms& terms, const Tiles<64>& tiles, u16* out, long long ldo,
                                      int n) {
  bool wide = ((u64)(out + tiles.begin) | (u64)ldo * 2) % 16 == 0;
  int count = uniform(tiles.count);
  for (int i = blockIdx.x; i < count; i += gridDim.x) {
    Work w = tiles.work(i);
    int steps = 0;
    for (int t = 0; t < terms.count; t++)
      if (terms.cover(t, w.col)) steps += long_steps(terms.k[t]);
    steps = uniform(steps);
    float d[ROWS / 2];
#pragma unroll
    for (int j = 0; j < ROWS / 2; j++) d[j] = 0.f;
    int rows = uniform(width<ROWS>(w.rows));
    constexpr int kQuarter = ROWS == 64 ? 8 : ROWS / 4, kHalf = ROWS == 64 ? 16 : ROWS / 2,
                  kThree = ROWS == 64 ? 32 : ROWS / 4 * 3;
    if (rows == ROWS) chain_long<ROWS, ROWS>(d, ring, steps);
    else if (rows == kThree) chain_long<kThree, ROWS>(d, ring, steps);
    else if (rows == kHalf) chain_long<kHalf, ROWS>(d, ring, steps);
    else chain_long<kQuarter, ROWS>(d, ring, steps);
    store_tile<ROWS>(d, out + w.from * ldo, ldo, w.rows, w.col, n, wide);
  }
}

template <class F, int ROWS, int STAGES>
__device__ inline void product_alone(const Terms& terms, const Lines& lines, u16* out, long long ldo,
                                     const int* offsets, int groups, int segments, int m, int n) {
  using R = Slots<64 * kLong * 2, ROWS * kLong * 2, STAGES, kGroup / kWarp>;
  static_assert(kTeams <= STAGES, "a team skips no more than the ring has");
  __shared__ u64 bars[2 * STAGES];
  R ring(bars, 1 + kTeam);
  if (threadIdx.x == blockDim.x - 1) prefetch_map(&terms.x[0]);
  int* after = (int*)(ring.base + STAGES * R::kSlot / 2);
  Table table = {after, after + groups + 1};
  fill(table, offsets, groups, segments, m, terms.height);
  __syncthreads();
  Tiles<64> tiles(table, groups, terms, n, m);
  int decoding = uniform(threadIdx.x / kWarp) - kGroup / kWarp;  // of the warps behind those that multiply
  if (decoding < 0) multiply_alone<ROWS>(ring, terms, tiles, out, ldo, n);
  else if (decoding < kTeams * kTeam) decode_tiles<F>(ring, terms, lines, tiles, decoding / kTeam);
  else if (elected()) copy_rows<ROWS>(ring, terms, tiles);
}

#define PRODUCT_ALONE(name, FORMAT, ROWS, STAGES)                                                                 \
  extern "C" __global__ void __launch_bounds__(kGroup + (kTeams * kTeam + 1) * kWarp, 1)                          \
      name(const __grid_constant__ Terms terms, const __grid_constant__ Lines lines, u16* out, long long ldo,     \
           const int* offsets, int groups, int segments, int m, int n) {                                          \
    product_alone<FORMAT, ROWS, STAGES>(terms, lines, out, ldo, offsets, groups, segments, m, n);                 \
  }
#define PRODUCTS_ALONE(name, FORMAT)             \
  PRODUCT_ALONE(nt_##name##_alone, FORMAT, 64, 6) \
  PRODUCT_ALONE(nt_##name##_tall, FORMAT, 128, 4)

#endif
