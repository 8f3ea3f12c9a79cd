// MatMul of some 64 rows a group by a weight in codes, with wgmma: tiles of 256 columns and 96 rows (see quantized.cuh
// for the ring and its stages). Chains are short, and what lies between two of them took as long as a quarter of one:
// warps are told their tiles by a thread that copies, and leave them to others to store. As in quantized_few.cuh a
// thread has neighbouring columns, and codes are decoded in the way that usual scales allow.
//   Bound: the instructions of a warp, some 130 to 200 for 16 columns and 64 k, of which a scheduler has four; the
// tensor cores' 512 clocks for 256 columns, 64 rows and 64 k, which are hidden behind other warps' decoding alone.
#pragma once
#include "quantized_few.cuh"
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Near decodes two pairs of neighbouring codes of a column: of 4 bits byte c of two words, of 8 bits the low halves.
// Scales have to be usual ones, see Columns.
template <int CODE, class S>
struct Near;
template <>
struct Near<kINT4, u16> {
  Fused scales;
  __device__ Near(Two<u16> s, const Tables&) : scales(s.both) {}
  __device__ u32 pair(u32 word, int c, int h) const {
    return scales.times(bytes_of(word, 0, 0x4440 | c) * 0x00010010, h);
  }
  __device__ void numbers(u32& x, u32& y, u32 low, u32 high, int c, int h) const {
    x = pair(low, c, h), y = pair(high, c, h);
  }
};
template <>
struct Near<kE2M1, u8> {
  Quad<kE2M1, u8> quad;
  __device__ Near(Two<u8> e, const Tables& tables) : quad(e, tables) {}
  __device__ void numbers(u32& x, u32& y, u32 low, u32 high, int c, int h) const {
    quad.numbers(x, y, bytes_of(low, high, c * 0x11 + 0x40), h);
  }
};
template <>
struct Near<kE4M3, u8> {
  Quad<kE4M3, u8> quad;
  __device__ Near(Two<u8> e, const Tables& tables) : quad(e, tables) {}
  __device__ u32 pair(u32 codes, int h) const {
    return mul2(Bits<kE4M3>::one(bytes_of(codes, 0, 0x1404)), half(quad.m, h));
  }
  __device__ void numbers(u32& x, u32& y, u32 low, u32 high, int, int h) const { x = pair(low, h), y = pair(high, h); }
};
template <>
struct Near<kE4M3, float> {
  Two<float> m;
  __device__ Near(Two<float> s, const Tables&) : m(s) {}
  __device__ void numbers(u32& x, u32& y, u32 low, u32 high, int, int h) const {
    x = rounded((u16)low, m.at(h)), y = rounded((u16)high, m.at(h));
  }
};

// NearExact is Near for all scales that are not fp32.
template <int CODE, class S>
struct NearExact {
  Two<S> scales;
  __device__ NearExact(Two<S> s, const Tables&) : scales(s) {}
  __device__ u32 pair(u32 codes, int c, int h) const {
    Multiplier<CODE, S> m = {half(scales.both, h)};
    if constexpr (bits_of(CODE) == 4) return m.exact(Bits<CODE>::pair(bytes_of(codes, 0, 0x4440 | c)));
    else return m.exact(Bits<CODE>::one(bytes_of(codes, 0, 0x1404)));
  }
  __device__ void numbers(u32& x, u32& y, u32 low, u32 high, int c, int h) const {
    x = pair(low, c, h), y = pair(high, c, h);
  }
};

// Sixteen are a warp's columns of a tile.
template <class F, class G>
struct Sixteen : Columns<F, G, 1> {
  using Scale = typename F::Scale;
  int line[2];  // where the thread's two columns lie in a stage, with the bits that swizzle their pieces

  __device__ Sixteen(int first, const Tables& tables) : Columns<F, G, 1>{first, tables} {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      int at = (first + column(h)) * G::kLineBytes;
      line[h] = at + (at >> 7 & (G::kLineBytes / 16 - 1)) * 16;
    }
  }

  // decode: a of two steps of 16 k, half `g` of step `q` of 64 of the stage.
  template <class Q>
  __device__ void decode(u32 (&a)[2][4], const u8* codes, int q, int g) const {
    int lane = warp_lane(), c = lane % 4;
    const Scale* scales = (const Scale*)(codes + G::kCodes) + (F::kWide == 0 ? 0 : (q * 2 + g) * G::kLines);
    Q near(Two<Scale>(scales + this->first + lane / 4 * 2), this->tables);
#pragma unroll
    for (int h = 0; h < 2; h++) {
      if constexpr (F::kBits == 4) {
        uint4 w = *(const uint4*)(codes + (line[h] ^ (q * 2 + g) * 16));
        near.numbers(a[0][h], a[0][h + 2], w.x, w.y, c, h);
        near.numbers(a[1][h], a[1][h + 2], w.z, w.w, c, h);
      } else {
#pragma unroll
        for (int s = 0; s < 2; s++) {
          const u16* w = (const u16*)(codes + (line[h] ^ (q * 4 + g * 2 + s) * 16)) + c;
          near.numbers(a[s][h], a[s][h + 2], w[0], w[4], c, h);
        }
      }
    }
  }
};

// multiply_steps starts the products of STEPS of 64 k with N rows of X; `decode` makes a of 32 k. The last ones still
// run behind it.
template <int N, int STEPS, class G, class R, class D>
__device__ inline void multiply_steps(float* d, u32 (&a)[2][2][4], R& ring, bool begun, D decode) {
#pragma unroll
  for (int q = 0; q < STEPS; q++) {
    u32 b = operand<64 * 128>(ring.b() + q * G::kRows * 64);
#pragma unroll
    for (int g = 0; g < 2; g++) {
      decode(a[g], q, g);
      wgmma_fence();
#pragma unroll
      for (int s = 0; s < 2; s++) wgmma<N>(d, a[g][s], b + g * 4 + s * 2);
      wgmma_commit();
      wgmma_wait<1>();
      if (q == 0 && g == 0 && begun) ring.release_last();
    }
  }
}

// chain_some multiplies `stages` slots of codes, then `others` of weights in bf16, in order.
template <int N, class F, class G, class R>
__device__ inline void chain_some(float* d, R& ring, const Sixteen<F, G>& own, int stages, int others) {
  using Scale = typename F::Scale;
  u32 a[2][2][4];
  held<G::kRows>(d);
  for (int i = 0; i < stages + others; i++) {
    ring.filled();
    const u8* codes = (const u8*)ring.a();
    if (i >= stages) {
      multiply_steps<N, 1, G>(d, a, ring, i > 0, [&](u32(&to)[2][4], int, int g) {
#pragma unroll
        for (int s = 0; s < 2; s++) own.read_numbers(to[s], ring.a(), 0, g * 2 + s);
      });
    } else if (sizeof(Scale) == 4 || own.usual(codes)) {
      multiply_steps<N, G::kSteps, G>(d, a, ring, i > 0, [&](u32(&to)[2][4], int q, int g) {
        own.template decode<Near<F::kCode, Scale>>(to, codes, q, g);
      });
    } else if constexpr (sizeof(Scale) < 4) {
      multiply_steps<N, G::kSteps, G>(d, a, ring, i > 0, [&](u32(&to)[2][4], int q, int g) {
        own.template decode<NearExact<F::kCode, Scale>>(to, codes, q, g);
      });
    }
    ring.next();
  }
  wgmma_wait<0>();
  held<G::kRows>(d);
  ring.release_last();
}

// Left is a tile of out in shared memory, which the warps that multiply leave to two that store it, while the next is
// multiplied. Rows lie 528 bytes apart, so that what a warp writes at once is in all banks.
template <int COLUMNS, int ROWS>
struct Left {
  static constexpr int kRow = COLUMNS + 8, kBytes = ROWS * kRow * 2, kStorers = 2;
  u16* tile;
  u64 *full, *empty;
  int phase = 0;
  __device__ Left(u16* tile, u64* bars) : tile(tile), full(bars), empty(bars + 1) {
    if (threadIdx.x == 0) barrier_init(full, COLUMNS / 16), barrier_init(empty, kStorers);
  }

  // leave writes a warp's 16 columns from `first` on, which the threads have in the order of `column`. NaN is as in
  // store_few.
  __device__ void leave(const float* d, int first, int rows) {
    int lane = warp_lane();
    u32 order = lane < 16 ? 0x3210 : 0x1032;
    u16* to = tile + lane % 4 * 2 * kRow + first + lane / 4 * 2;
    barrier_wait(empty, phase ^ 1);
#pragma unroll
    for (int j = 0; j < ROWS / 8; j++)
      if (j * 8 < rows)
#pragma unroll
        for (int i = 0; i < 2; i++)
          *(u32*)(to + (j * 8 + i) * kRow) = bytes_of(convert2(d[j * 4 + i], d[j * 4 + 2 + i]), 0, order);
    __syncwarp();
    if (lane == 0) barrier_arrive(full);
    phase ^= 1;
  }

  // store is the work of the two warps for one tile.
  __device__ void store(u16* out, long long ldo, const Work& w, int n, bool wide, int storer) {
    int lane = warp_lane();
    barrier_wait(full, phase);
    for (int row = storer; row < w.rows; row += kStorers) {
#pragma unroll
      for (int c = lane * 8; c < COLUMNS; c += kWarp * 8) {
        uint4 v = *(const uint4*)(tile + row * kRow + c);
        u32 words[4] = {v.x, v.y, v.z, v.w};
        if (w.col + c < n) store_eight(out + (w.from + row) * ldo + w.col + c, words, w.col + c, n, wide);
      }
    }
    __syncwarp();
    if (lane == 0) barrier_arrive(empty);
    phase ^= 1;
  }
};

// multiply_some is the work of a warp: 16 columns of each of the block's tiles.
template <class F, class G, class R, class L>
__device__ inline void multiply_some(R& ring, L& left, const Terms& terms, const Tiles<G::kColumns>& tiles,
                                     const Tables& tables, const Work* works) {
  Sixteen<F, G> own(uniform(threadIdx.x / kWarp) * 16, tables);
  int stages = (terms.k[0] + G::kDepthOf - 1) / G::kDepthOf, count = uniform(tiles.count), told = 0;
  for (int i = blockIdx.x; i < count; i += gridDim.x) {
    ring.filled();
    int rows = uniform(works[told].rows), col = works[told].col, others = 0;
    if (++told == R::kWorks) told = 0;
    for (int t = 1; t < terms.count; t++)
      if (terms.cover(t, col)) others += (terms.k[t] + 63) / 64;
    others = uniform(others);
    float d[G::kRows / 2];
#pragma unroll
    for (int j = 0; j < G::kRows / 2; j++) d[j] = 0.f;
    with_width<G::kRows>(width<G::kRows>(rows), [&](auto of) {
      chain_some<decltype(of)::columns>(d, ring, own, stages, others);
    });
    left.leave(d, own.first, rows);
  }
}

// store_some is the work of a warp that stores.
template <int COLUMNS, class L>
__device__ inline void store_some(L& left, const Tiles<COLUMNS>& tiles, u16* out, long long ldo, int n, int storer) {
  bool wide = ((u64)(out + tiles.begin) | (u64)ldo * 2) % 16 == 0;
  for (int i = blockIdx.x; i < tiles.count; i += gridDim.x) left.store(out, ldo, tiles.work(i), n, wide, storer);
}

// product_some is product_codes for MatMul.
template <class F, int COLUMNS, int ROWS, int DEPTH, int STAGES>
__device__ inline void product_some(const Terms& terms, const Scales& scales, u16* out, long long ldo,
                                    const int* offsets, int groups, int segments, int m, int n) {
  using G = Stage<F, 0, COLUMNS, ROWS, DEPTH>;
  using R = Slots<G::kA, G::kB, STAGES, COLUMNS / 16>;
  using L = Left<COLUMNS, ROWS>;
  constexpr int kFewer = 32, kMore = 112;
  static_assert(registers_suffice<COLUMNS, kFewer, kMore>(), "more registers than a block begins with");
  __shared__ u64 bars[2 * STAGES], left_bars[2];
  __shared__ Work works[R::kWorks];
  __shared__ Tables tables;
  L left(dynamic + STAGES * R::kSlot / 2, left_bars);
  R ring(bars, 2);
  prefetch_maps(terms, &scales.map);
  int* after = (int*)(dynamic + (STAGES * R::kSlot + L::kBytes) / 2);
  Table table = {after, after + groups + 1};
  fill(table, offsets, groups, segments, m, terms.height);
  constexpr bool kTables = F::kCode == kE2M1;
  if (kTables) fill_tables(tables);
  __syncthreads();
  Tiles<COLUMNS> tiles(table, groups, terms, n, m);
  int copying = uniform(threadIdx.x / kWarp) - COLUMNS / 16;
  if (copying >= 0) {
    fewer_registers<kFewer>();
    if (copying >= 2) store_some(left, tiles, out, ldo, n, copying - 2);
    else if (elected()) copy_stages<F, G, 0>(ring, terms, scales, tiles, copying == 0, works);
  } else {
    more_registers<kMore>();
    multiply_some<F, G>(ring, left, terms, tiles, kTables ? read_tables(tables) : Tables(), works);
  }
}

#define PRODUCT_SOME(name, FORMAT, COLUMNS, ROWS, DEPTH, STAGES)                                                  \
  extern "C" __global__ void __launch_bounds__(threads(COLUMNS, 1, 2), 1)                                         \
      name(const __grid_constant__ Terms terms, const __grid_constant__ Scales scales, u16* out, long long ldo,   \
           const int* offsets, int groups, int segments, int m, int n) {                                          \
    product_some<FORMAT, COLUMNS, ROWS, DEPTH, STAGES>(terms, scales, out, ldo, offsets, groups, segments, m, n); \
  }

// Tiles of quantized_wgmma.go.
#define PRODUCTS_SOME(name, FORMAT) PRODUCT_SOME(nt_##name##_some, FORMAT, 256, 96, 128, 3)

#endif
