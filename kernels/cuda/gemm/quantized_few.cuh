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
  u32 positive[2], negative[2], high;
};
__device__ inline void fill_tables(Tables& t) {
  if (threadIdx.x == 0) t = {{0x93929190u, 0x9c989694u}, {0x8d8e8f90u, 0x84888a8cu}, 0x42};
}
__device__ inline Tables read_tables(const volatile Tables& t) {
  return {{t.positive[0], t.positive[1]}, {t.negative[0], t.negative[1]}, t.high};
}

// order is that of 8 rows of X over the lanes: either half of a warp has rows in all banks.
__device__ inline int order(int i) { return i % 4 * 2 + i / 4; }

// Quad decodes four neighbouring codes of one scale to two pairs: of every other one (kApart) or of neighbours. Powers
// of two have to be usual ones, see Columns.
template <int CODE, class S>
struct Quad;
template <>
struct Quad<kINT4, u16> {
  using Codes = u16;
  static constexpr bool kApart = true;
  u32 m;
  __device__ Quad(u16 s, const Tables&) : m(s | (u32)s << 16) {}
  __device__ void numbers(u32& x, u32& y, u32 codes) const {
    u32 t = bytes_of(codes, 0, 0x4140);
    x = mul2(sub2(over(t, 0x000f000f, 0x43004300), 0x43084308), m);
    y = mul2(sub2(over(t >> 4, 0x000f000f, 0x43004300), 0x43084308), m);
  }
};
// 72 + v for the number v is a byte 0x42 and one from two tables, of codes whose highest bit is 0 and of the others;
// what a table does not have is 255.
template <>
struct Quad<kE2M1, u8> {
  using Codes = u16;
  static constexpr bool kApart = false;
  u32 m, less;
  const Tables& tables;
  __device__ Quad(u8 e, const Tables& tables)
      : m(e * 0x00800080u), less(m + 0x83108310u), tables(tables) {}  // 2^(e-127) and -72 times that
  __device__ void numbers(u32& x, u32& y, u32 codes) const {
    const Tables& t = tables;
    u32 b = chosen(t.positive[0], t.positive[1], codes) & chosen(t.negative[0], t.negative[1], codes ^ 0x8888);
    x = fma2(bytes_of(b, t.high, 0x4140), m, less), y = fma2(bytes_of(b, t.high, 0x4342), m, less);
  }
};
template <>
struct Quad<kE4M3, u8> {
  using Codes = u32;
  static constexpr bool kApart = true;
  u32 m;
  __device__ Quad(u8 e, const Tables&) : m(e * 0x00800080u + 120 * 0x00800080u) {}
  __device__ void numbers(u32& x, u32& y, u32 codes) const {
    x = mul2(over(codes << 8, 0x80008000, codes << 4 & 0x07f007f0), m);
    y = mul2(over(codes, 0x80008000, codes >> 4 & 0x07f007f0), m);
  }
};
template <>
struct Quad<kE4M3, float> {
  using Codes = u32;
  static constexpr bool kApart = false;
  float m;
  __device__ Quad(float s, const Tables&) : m(s) {}
  __device__ void numbers(u32& x, u32& y, u32 codes) const {
    x = rounded((u16)codes, m), y = rounded((u16)(codes >> 16), m);
  }
};

// Exact is Quad for all scales.
template <int CODE, class S>
struct Exact {
  using Codes = typename Quad<CODE, S>::Codes;
  static constexpr bool kApart = Quad<CODE, S>::kApart;
  float m;
  __device__ Exact(S s, const Tables&) : m(scale_value(s)) {}
  __device__ u32 at(u32 codes, int i) const { return narrow(code_value<CODE>(codes >> i * bits_of(CODE)) * m); }
  __device__ void numbers(u32& x, u32& y, u32 codes) const {
    x = at(codes, 0) | at(codes, kApart ? 2 : 1) << 16, y = at(codes, kApart ? 1 : 2) | at(codes, 3) << 16;
  }
};

// Columns are a warp's 16 * TILES of a tile of out.
template <class F, class G, int TILES>
struct Columns {
  using Scale = typename F::Scale;
  int first;  // of the tile's
  const Tables& tables;

  // usual tells whether all scales are powers of two from 2^-63 to 1, which Quad wants.
  __device__ bool usual(const u8* codes) const {
    if (sizeof(Scale) > 1) return true;
    constexpr int kWords = G::kBlocks * TILES * 4;
    u32 odd = 0;
#pragma unroll
    for (int i = 0; i < kWords; i += kWarp) {
      int word = i + warp_lane();
      if (kWords % kWarp == 0 || word < kWords)
        odd |= *(const u32*)(codes + G::kCodes + word / (TILES * 4) * G::kLines + first + word % (TILES * 4) * 4) ^
               0x40404040;
    }
    return !__any_sync(~0u, odd & 0xc0c0c0c0);
  }

  // multiply adds the products of step64 q of a stage, for 8 * N rows of X. What a thread reads lies at distances that
  // the compiler knows from one place of each 16 bytes, so that a loop over q spends little on addresses.
  template <int N, class Q, class D>
  __device__ void multiply(D& d, const u8* codes, const u16* x, int q) const {
    static_assert(G::kLineBytes == 128, "a piece of 16 bytes is found by a row's last 3 bits");
    int lane = warp_lane(), i = lane / 4, c = lane % 4, row = order(i);
    const u8* line = codes + (first + i) * 128;
    const Scale* scales = (const Scale*)(codes + G::kCodes) + (F::kWide == 0 ? 0 : q * 2 * G::kLines) + first + i;
    const u8* rows = (const u8*)x + q * (G::kRows * 128) + row * 128;
    int piece = (F::kBits == 4 ? q * 2 : q * 4) ^ i, chunk = ((c / 2) ^ row) * 16 + c % 2 * 8;
#pragma unroll
    for (int g = 0; g < 2; g++) {
      u32 a[2][TILES][4];
#pragma unroll
      for (int t = 0; t < TILES; t++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
          Q quad(scales[(F::kWide == 0 ? 0 : g * G::kLines) + t * 16 + h * 8], tables);
#pragma unroll
          for (int s = 0; s < 2; s++) {
            const u8* at = F::kBits == 4 ? line + (piece ^ g) * 16 + c * 2 + s * 8
                                         : line + (piece ^ (g * 2 + s)) * 16 + c * 4;
            quad.numbers(a[s][t][h], a[s][t][h + 2], *(const typename Q::Codes*)(at + (t * 16 + h * 8) * 128));
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

  // multiply_numbers is of 64 k of a weight in bf16.
  template <int N, class D>
  __device__ void multiply_numbers(D& d, const u16* w, const u16* x) const {
    int lane = warp_lane();
#pragma unroll
    for (int s = 0; s < 4; s++) {
      u32 a[TILES][4];
#pragma unroll
      for (int t = 0; t < TILES; t++) {
        int row = first + t * 16 + lane % 16;
        load4(a[t], w + row * 64 + ((s * 2 + lane / 16) ^ (row & 7)) * 8);
      }
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

// store_few is store_tile of a warp's 16 columns. A sum that is NaN is 0x7fffffff (see step16.go), which the card's
// conversion rounds to 0x7fff, as narrow does.
template <int ROWS>
__device__ inline void store_few(const float* d, u16* out, long long ldo, int rows, int col, int n, bool wide) {
  int lane = warp_lane(), q = lane % 4, c = col + q % 2 * 8;
#pragma unroll
  for (int j = 0; j < ROWS / 16; j++)
    if (j * 16 < rows) {
      u32 w[4];
#pragma unroll
      for (int i = 0; i < 4; i++) w[i] = transposed(convert2(d[j * 8 + i * 2], d[j * 8 + i * 2 + 1]));
      exchange_quad(w);
      int row = j * 16 + q / 2 * 8 + order(lane / 4);
      if (row < rows && c < n) store_eight(out + row * ldo + c, w, c, n, wide);
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
#pragma unroll
    for (int t = 0; t < TILES; t++)
      store_few<G::kRows>(d[t], out + w.from * ldo, ldo, w.rows, w.col + own.first + t * 16, n, wide);
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
  else if (elected()) copy_stages<F, G, 0>(ring, terms, scales, tiles, copying == 0, works);
}

#define PRODUCT_FEW(name, FORMAT, COLUMNS, ROWS, DEPTH, STAGES, BLOCKS, TILES)                                   \
  extern "C" __global__ void __launch_bounds__(COLUMNS / TILES * 2 + 2 * kWarp, BLOCKS)                          \
      name(const __grid_constant__ Terms terms, const __grid_constant__ Scales scales, u16* out, long long ldo,  \
           const int* offsets, int groups, int segments, int m, int n) {                                         \
    product_few<FORMAT, COLUMNS, ROWS, DEPTH, STAGES, TILES>(terms, scales, out, ldo, offsets, groups, segments, \
                                                             m, n);                                              \
  }

// Tiles of quantized_wgmma.go: stages have 128 bytes of each row of codes, and are as many as the blocks hold.
#define PRODUCTS_FEW(name, FORMAT, DEEP, STAGES)                     \
  PRODUCT_FEW(nt_##name##_thin, FORMAT, 64, 16, DEEP, STAGES, 4, 1)  \
  PRODUCT_FEW(nt_##name##_few, FORMAT, 256, 16, DEEP, 2, 2, 2)       \
  PRODUCT_FEW(nt_##name##_several, FORMAT, 256, 32, DEEP, 2, 2, 4)   \
  PRODUCT_FEW(nt_##name##_short, FORMAT, 128, 32, DEEP, STAGES, 2, 2)

#endif
