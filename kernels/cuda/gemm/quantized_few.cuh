// MatMul of few rows by a weight in codes, with mma.sync (see quantized.cuh for the ring and its stages): a warp has 16
// to 64 columns of out. A step's 16 products may come in any order, so a thread decodes four neighbouring codes of a
// row, and X's columns follow them. Warps loop over 64 k and are told their tiles by a thread that copies: they do
// little but decode and multiply. Bound: the bytes of codes and scales; of a thread's 3 (INT4) to 4.2 (fp32 scales)
// instructions a code 1.1 to 1.8 are of the pipe that has half a warp a clock.
#pragma once
#include "quantized.cuh"
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Tables are those of Quad for E2M1. They come from shared memory: what the compiler knows it moves to registers again
// for each use.
struct Tables {
  u32 positive[2], negative[2], high, minus;
};
__device__ inline void fill_tables(Tables& t) {
  if (threadIdx.x == 0) t = {{0x93929190u, 0x9c989694u}, {0x8c8a8884u, 0x908f8e8du}, 0x42, ~0u};
}
__device__ inline Tables read_tables(const volatile Tables& t) {
  return {{t.positive[0], t.positive[1]}, {t.negative[0], t.negative[1]}, t.high, t.minus};
}

// order is that of 8 rows of X over the lanes: either half of a warp has rows in all banks.
__device__ inline int order(int i) { return i % 4 * 2 + i / 4; }

// column is that of the 16 of a tile which a thread has as row lane/4 (h = 0) or lane/4 + 8 (h = 1) of a: neighbours,
// whose scales lie side by side; those of one h are in all banks.
__device__ inline int column(int h) {
  int i = warp_lane() / 4;
  return i * 2 + (h ^ i / 4);
}

// Two are the scales of a thread's columns for h = 0 and 1, in the halves of a register where they are not fp32.
template <class S>
struct Two;
template <>
struct Two<u16> {
  u32 both;
  __device__ Two(const u16* s) : both(bytes_of(*(const u32*)s, 0, warp_lane() < 16 ? 0x3210 : 0x1032)) {}
  __device__ float at(int h) const { return scale_value((u16)(both >> h * 16)); }
};
template <>
struct Two<u8> {
  u32 both;
  __device__ Two(const u8* s) : both(bytes_of(*(const u16*)s, 0, warp_lane() < 16 ? 0x4140 : 0x4041)) {}
  __device__ float at(int h) const { return scale_value((u8)(both >> h * 16)); }
};
template <>
struct Two<float> {
  float each[2];
  __device__ Two(const float* s) : each{s[warp_lane() / 16], s[1 - warp_lane() / 16]} {}
  __device__ float at(int h) const { return each[h]; }
};

// half is one half of x twice. Moves of halves, which need no instruction where bf16 numbers are multiplied.
__device__ inline u32 half(u32 x, int h) {
  u16 v[2];
  u32 d;
  asm("mov.b32 {%0, %1}, %2;" : "=h"(v[0]), "=h"(v[1]) : "r"(x));
  asm("mov.b32 %0, {%1, %1};" : "=r"(d) : "h"(v[h]));
  return d;
}

// Fused is two scales of INT4 in the halves of a register, of at least 2^-65 and smaller than 1/2. A code at bits 4 to
// 7 of bf16 is n * 2^-129, beyond the subnormal numbers too. n * s - 8 * s is rounded once, as the number times the
// scale is.
struct Fused {
  u32 m, less;
  __device__ Fused(u32 scale) : m(scale + 129 * 0x00800080u), less(mul2(scale, 0xc100c100)) {}
  __device__ u32 times(u32 x, int h) const { return fma2(x & 0x00f000f0, half(m, h), half(less, h)); }
  // unusual is not 0 where one of two scales is beyond that.
  static __device__ u32 unusual(u32 scales) { return ((scales + 0x01000100) ^ 0x20002000) & 0x60006000; }
};
// Quad decodes four neighbouring codes of a column to two pairs: of every other one (kApart) or of neighbours. Scales
// have to be usual ones, see Columns.
template <int CODE, class S>
struct Quad;
template <>
struct Quad<kINT4, u16> {
  using Codes = u16;
  static constexpr bool kApart = true;
  Fused scales;
  __device__ Quad(Two<u16> s, const Tables&) : scales(s.both) {}
  __device__ void numbers(u32& x, u32& y, u32 codes, int h) const {
    u32 t = bytes_of(codes, 0, 0x4140);
    x = scales.times(t << 4, h), y = scales.times(t, h);
  }
};
// 72 + v for the number v is a byte 0x42 and one from two tables: of codes whose highest bit is 0, and of the others
// from the last to the first, as 15 less a code is its place (a multiplication: permutes and logic are scarce). What a
// table does not have is 255.
template <>
struct Quad<kE2M1, u8> {
  using Codes = u16;
  static constexpr bool kApart = false;
  u32 m, less;
  const Tables& tables;
  __device__ Quad(Two<u8> e, const Tables& tables)
      : m(e.both << 7), less(m + 0x83108310u), tables(tables) {}  // 2^(e-127) and -72 times that
  __device__ void numbers(u32& x, u32& y, u32 codes, int h) const {
    const Tables& t = tables;
    u32 b = chosen(t.positive[0], t.positive[1], codes);
    b &= chosen(t.negative[0], t.negative[1], codes * t.minus + t.minus);
    x = fma2(bytes_of(b, t.high, 0x4140), half(m, h), half(less, h));
    y = fma2(bytes_of(b, t.high, 0x4342), half(m, h), half(less, h));
  }
};
template <>
struct Quad<kE4M3, u8> {
  using Codes = u32;
  static constexpr bool kApart = true;
  u32 m;
  __device__ Quad(Two<u8> e, const Tables&) : m((e.both << 7) + 120 * 0x00800080u) {}
  __device__ void numbers(u32& x, u32& y, u32 codes, int h) const {
    x = mul2(over(codes << 8, 0x80008000, codes << 4 & 0x07f007f0), half(m, h));
    y = mul2(over(codes, 0x80008000, codes >> 4 & 0x07f007f0), half(m, h));
  }
};
template <>
struct Quad<kE4M3, float> {
  using Codes = u32;
  static constexpr bool kApart = false;
  Two<float> m;
  __device__ Quad(Two<float> s, const Tables&) : m(s) {}
  __device__ void numbers(u32& x, u32& y, u32 codes, int h) const {
    x = rounded((u16)codes, m.at(h)), y = rounded((u16)(codes >> 16), m.at(h));
  }
};

// Exact is Quad for all scales.
template <int CODE, class S>
struct Exact {
  using Codes = typename Quad<CODE, S>::Codes;
  static constexpr bool kApart = Quad<CODE, S>::kApart;
  Two<S> m;
  __device__ Exact(Two<S> s, const Tables&) : m(s) {}
  __device__ u32 at(u32 codes, int i, int h) const {
    return narrow(code_value<CODE>(codes >> i * bits_of(CODE)) * m.at(h));
  }
  __device__ void numbers(u32& x, u32& y, u32 codes, int h) const {
    x = at(codes, 0, h) | at(codes, kApart ? 2 : 1, h) << 16, y = at(codes, kApart ? 1 : 2, h) | at(codes, 3, h) << 16;
  }
};
template <>
struct Exact<kINT4, u16> {
  using Codes = u16;
  static constexpr bool kApart = true;
  u32 m;
  __device__ Exact(Two<u16> s, const Tables&) : m(s.both) {}
  __device__ void numbers(u32& x, u32& y, u32 codes, int h) const {
    Bits<kINT4>::two(bytes_of(codes, 0, 0x4140), x, y);
    x = mul2(Bits<kINT4>::number(x), half(m, h)), y = mul2(Bits<kINT4>::number(y), half(m, h));
  }
};

// unusual is not 0 where one of the scales side by side is beyond what Quad takes: powers of two from 2^-63 to 1, or
// what Fused takes.
__device__ inline u32 unusual(u8, u32 scales) { return (scales ^ 0x40404040) & 0xc0c0c0c0; }
__device__ inline u32 unusual(u16, u32 scales) { return Fused::unusual(scales); }
__device__ inline u32 unusual(float, u32) { return 0; }

// Columns are a warp's 16 * TILES of a tile of out.
template <class F, class G, int TILES>
struct Columns {
  using Scale = typename F::Scale;
  int first;  // of the tile's
  const Tables& tables;

  // usual tells whether Quad takes all scales of a stage.
  __device__ bool usual(const u8* codes) const {
    if (sizeof(Scale) == 4) return true;
    constexpr int kLine = TILES * sizeof(Scale), kPieces = G::kBlocks * kLine;  // 16 bytes each
    u32 odd = 0;
#pragma unroll
    for (int i = 0; i < kPieces; i += kWarp) {
      int piece = i + warp_lane();
      if (kPieces % kWarp && piece >= kPieces) continue;
      uint4 w = *(const uint4*)(codes + G::kCodes + (piece / kLine * G::kLines + first) * sizeof(Scale) +
                                piece % kLine * 16);
      odd |= unusual(Scale(), w.x) | unusual(Scale(), w.y) | unusual(Scale(), w.z) | unusual(Scale(), w.w);
    }
    return !__any_sync(~0u, odd);
  }

  // multiply adds the products of step64 q of a stage, for 8 * N rows of X. What a thread reads lies at distances that
  // the compiler knows from one place of each 16 bytes, so that a loop over q spends little on addresses.
  template <int N, class Q, class D>
  __device__ void multiply(D& d, const u8* codes, const u16* x, int q) const {
    static_assert(G::kLineBytes == 128, "a piece of 16 bytes is found by a row's last 3 bits");
    int lane = warp_lane(), c = lane % 4, row = order(lane / 4);
    const u8* line[2];
    int piece[2], chunk = ((c / 2) ^ row) * 16 + c % 2 * 8;
#pragma unroll
    for (int h = 0; h < 2; h++) {
      line[h] = codes + (first + column(h)) * 128 + c * F::kBits / 2;
      piece[h] = (F::kBits == 4 ? q * 2 : q * 4) ^ column(h) % 8;
    }
    const Scale* scales =
        (const Scale*)(codes + G::kCodes) + (F::kWide == 0 ? 0 : q * 2 * G::kLines) + first + lane / 4 * 2;
    const u8* rows = (const u8*)x + q * (G::kRows * 128) + row * 128;
#pragma unroll
    for (int g = 0; g < 2; g++) {
      u32 a[2][TILES][4];
#pragma unroll
      for (int t = 0; t < TILES; t++) {
        Q quad(Two<Scale>(scales + (F::kWide == 0 ? 0 : g * G::kLines) + t * 16), tables);
#pragma unroll
        for (int h = 0; h < 2; h++)
#pragma unroll
          for (int s = 0; s < 2; s++) {
            const u8* at = line[h] + (F::kBits == 4 ? (piece[h] ^ g) * 16 + s * 8 : (piece[h] ^ (g * 2 + s)) * 16);
            quad.numbers(a[s][t][h], a[s][t][h + 2], *(const typename Q::Codes*)(at + t * 2048), h);
          }
      }
#pragma unroll
      for (int s = 0; s < 2; s++)
#pragma unroll
        for (int n = 0; n < N; n++) {
          uint2 b = *(const uint2*)(rows + (chunk ^ (g * 4 + s * 2) * 16) + n * 1024);
          if (Q::kApart) b = make_uint2(bytes_of(b.x, b.y, 0x5410), bytes_of(b.x, b.y, 0x7632));
#pragma unroll
          for (int t = 0; t < TILES; t++) step(d[t] + n * 4, a[s][t], b.x, b.y);
        }
    }
  }

  template <int N, class Q, class D>
  __device__ void multiply_stage(D& d, const u8* codes, const u16* x) const {
#pragma unroll 1
    for (int q = 0; q < G::kSteps; q++) multiply<N, Q>(d, codes, x, q);
  }

  // read_numbers: a of 16 columns from `t` * 16 on and step `s` of 64 k of a weight in bf16.
  __device__ void read_numbers(u32 (&a)[4], const u16* w, int t, int s) const {
    int lane = warp_lane(), i = lane % 8, row = first + t * 16 + i * 2 + (lane / 8 % 2 ^ i / 4);
    load4(a, w + row * 64 + ((s * 2 + lane / 16) ^ (row & 7)) * 8);
  }

  // multiply_numbers is of 64 k of a weight in bf16.
  template <int N, class D>
  __device__ void multiply_numbers(D& d, const u16* w, const u16* x) const {
    int lane = warp_lane();
#pragma unroll
    for (int s = 0; s < 4; s++) {
      u32 a[TILES][4];
#pragma unroll
      for (int t = 0; t < TILES; t++) read_numbers(a[t], w, t, s);
#pragma unroll
      for (int n = 0; n < N; n++) {
        int row = order(lane / 4);
        const u16* at = x + (n * 8 + row) * 64 + lane % 4 * 2;
        u32 b[2];
#pragma unroll
        for (int i = 0; i < 2; i++) b[i] = *(const u32*)(at + ((s * 2 + i) ^ row) * 8);
#pragma unroll
        for (int t = 0; t < TILES; t++) step(d[t] + n * 4, a[t], b[0], b[1]);
      }
    }
  }

  // chain multiplies `stages` slots of codes, then `others` of weights in bf16, in order.
  template <int N, class D, class R>
  __device__ void chain(D& d, R& ring, int stages, int others) const {
    for (int i = 0; i < stages; i++) {
      ring.filled();
      const u8* codes = (const u8*)ring.a();
      if (usual(codes)) multiply_stage<N, Quad<F::kCode, Scale>>(d, codes, ring.b());
      else multiply_stage<N, Exact<F::kCode, Scale>>(d, codes, ring.b());
      __syncwarp();
      ring.next();
      ring.release_last();
    }
    for (int i = 0; i < others; i++) {
      ring.filled();
      multiply_numbers<N>(d, ring.a(), ring.b());
      __syncwarp();
      ring.next();
      ring.release_last();
    }
  }
};

// store_few is store_tile of a warp's 16 * TILES columns, which the threads have in the order of `column`. A sum that
// is NaN is 0x7fffffff (see step16.go), which the card's conversion rounds to 0x7fff, as narrow does. What 8 rows take
// lies together: code that a block has not run for a while comes from far away.
template <int ROWS, int TILES>
__device__ inline void store_few(const float (&d)[TILES][ROWS / 2], u16* out, long long ldo, int rows, int col, int n,
                                 bool wide) {
  int lane = warp_lane(), first = col + lane % 4 * 4;
  u32 low = lane & 2 ? 0x1054 : 0x5410, high = low + 0x2222;
#pragma unroll
  for (int j = 0; j < ROWS / 8; j++)
    if (j * 8 < rows) {
      int row = j * 8 + order(lane / 4);
      u16* line = out + row * ldo;
#pragma unroll
      for (int t = 0; t < TILES; t++) {
        const float* sums = d[t] + j * 4;
        u32 x = transposed(convert2(sums[0], sums[1])), y = transposed(convert2(sums[2], sums[3]));
        u32 w[2] = {bytes_of(x, y, low), bytes_of(x, y, high)};
        int c = first + t * 16;
        if (row >= rows || c >= n) continue;
        if (wide && c + 4 <= n) {
          *(uint2*)(line + c) = make_uint2(w[0], w[1]);
        } else {
#pragma unroll
          for (int i = 0; i < 4; i++)
            if (c + i < n) line[c + i] = (u16)(w[i / 2] >> i % 2 * 16);
        }
      }
    }
}

// multiply_few is the work of a warp: 16 * TILES columns of each of the block's tiles.
template <class F, class G, int TILES, class R>
__device__ inline void multiply_few(R& ring, const Terms& terms, const Tiles<G::kColumns>& tiles, u16* out,
                                    long long ldo, int n, const Tables& tables, const Work* works) {
  Columns<F, G, TILES> own = {(int)threadIdx.x / kWarp * 16 * TILES, tables};
  bool wide = ((u64)(out + tiles.begin) | (u64)ldo * 2) % 16 == 0;
  int stages = (terms.k[0] + G::kDepthOf - 1) / G::kDepthOf, told = 0;
  for (int i = blockIdx.x; i < tiles.count; i += gridDim.x) {
    ring.filled();
    Work w = works[told];
    if (++told == R::kWorks) told = 0;
    int others = 0;
    for (int t = 1; t < terms.count; t++)
      if (terms.cover(t, w.col)) others += (terms.k[t] + 63) / 64;
    float d[TILES][G::kRows / 2] = {};
    if (w.rows <= 8) own.template chain<1>(d, ring, stages, others);
    else if (w.rows <= 16) own.template chain<2>(d, ring, stages, others);
    else if (G::kRows > 16 && w.rows <= 24) own.template chain<3>(d, ring, stages, others);
    else own.template chain<G::kRows / 8>(d, ring, stages, others);
    store_few<G::kRows>(d, out + w.from * ldo, ldo, w.rows, w.col + own.first, n, wide);
  }
}

// product_few is product_codes for MatMul.
template <class F, int COLUMNS, int ROWS, int DEPTH, int STAGES, int TILES>
__device__ inline void product_few(const Terms& terms, const Scales& scales, u16* out, long long ldo,
                                   const int* offsets, int groups, int segments, int m, int n) {
  using G = Stage<F, 0, COLUMNS, ROWS, DEPTH>;
  constexpr int kReaders = COLUMNS / 16 / TILES;
  using R = Slots<G::kA, G::kB, STAGES, kReaders>;
  __shared__ u64 bars[2 * STAGES];
  __shared__ Work works[R::kWorks];
  __shared__ Tables tables;
  R ring(bars, 2);
  prefetch_maps(terms, &scales.map);
  int* after = (int*)(dynamic + STAGES * R::kSlot / 2);
  Table table = {after, after + groups + 1};
  fill(table, offsets, groups, segments, m, terms.height);
  constexpr bool kTables = F::kCode == kE2M1;
  if (kTables) fill_tables(tables);
  __syncthreads();
  Tiles<COLUMNS> tiles(table, groups, terms, n, m);
  int copying = uniform(threadIdx.x / kWarp) - kReaders;
  if (copying < 0)
    multiply_few<F, G, TILES>(ring, terms, tiles, out, ldo, n, kTables ? read_tables(tables) : Tables(), works);
  else if (elected()) copy_stages<F, G, 0, F::kBits == 4>(ring, terms, scales, tiles, copying == 0, works);
}

#define PRODUCT_FEW(name, FORMAT, COLUMNS, ROWS, DEPTH, STAGES, BLOCKS, TILES)                                   \
  extern "C" __global__ void __launch_bounds__(COLUMNS / TILES * 2 + 2 * kWarp, BLOCKS)                          \
      name(const __grid_constant__ Terms terms, const __grid_constant__ Scales scales, u16* out, long long ldo,  \
           const int* offsets, int groups, int segments, int m, int n) {                                         \
    product_few<FORMAT, COLUMNS, ROWS, DEPTH, STAGES, TILES>(terms, scales, out, ldo, offsets, groups, segments, \
                                                             m, n);                                              \
  }

// Tiles of quantized_wgmma.go: stages have 128 bytes of each row of codes.
#define PRODUCTS_FEW(name, FORMAT, DEEP, STAGES)                     \
  PRODUCT_FEW(nt_##name##_thin, FORMAT, 64, 16, DEEP, STAGES, 4, 1)  \
  PRODUCT_FEW(nt_##name##_several, FORMAT, 256, 32, DEEP, 2, 2, 4)

#endif
