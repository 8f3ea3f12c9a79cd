// MatMul and MatMulT by a weight in codes, with wgmma (see matmul.cu for the sums, matmul_wgmma.cu for tiles and
// threads). Codes come to the ring by TMA as they are and are decoded into registers, the operand a, while the products
// of the step before run; further terms of bf16 continue the same accumulators.
//   MatMul: a stage is DEPTH k of COLUMNS rows of codes. MatMulT reads the same codes across: 64 rows of COLUMNS
//   columns; ldmatrix brings those of two neighbouring rows to a thread.
//   A number is round_bf16(code * scale): one rounding where the scale is a bf16 number, two where it is fp32.
//   Beyond the ends codes and scales are the copies' zeros, which are numbers, and X is 0 there.
// Bound: 2*M*N*K flops of the tensor cores, and some 190 issue slots of a scheduler to decode 128 x 64 codes; for few
// rows the bytes of the codes.
#pragma once
#include "codes.cuh"
#include "product.cuh"
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Scales [blocks of `wide` columns][rows], a matrix for each group.
struct Scales {
  TensorMap map;
  int wide;
};

// Format is a code, the type of its scales and how many columns share one: 32, or 0 for a multiple of 128.
template <int CODE, class SCALE, int WIDE>
struct Format {
  static constexpr int kCode = CODE, kWide = WIDE, kBits = bits_of(CODE);
  using Scale = SCALE;
};

// Stage is a stage in shared memory: codes as TMA swizzles rows of so many bytes, then their scales, in the place of a,
// and X in the place of b, 64 k after the other. ACROSS: rows of codes are k.
template <class F, int ACROSS, int COLUMNS, int ROWS, int DEPTH>
struct Stage {
  static constexpr int kDepthOf = DEPTH, kColumns = COLUMNS, kRows = ROWS, kSteps = DEPTH / 64;  // of 64 k
  static constexpr int kLines = ACROSS ? DEPTH : COLUMNS;
  static constexpr int kLineBytes = (ACROSS ? COLUMNS : DEPTH) * F::kBits / 8;
  static constexpr int kBlocks = F::kWide == 0 ? 1 : (ACROSS ? COLUMNS : DEPTH) / F::kWide;
  static constexpr int kCodes = kLines * kLineBytes, kScales = kBlocks * kLines * (int)sizeof(typename F::Scale);
  static constexpr int kWeights = COLUMNS * 128;  // of another term: 64 k
  static constexpr int kA = kCodes + kScales > kWeights ? (kCodes + kScales + 1023) / 1024 * 1024 : kWeights;
  static constexpr int kB = ROWS * DEPTH * 2;
  static_assert(kLineBytes == 32 || kLineBytes == 64 || kLineBytes == 128, "swizzles are of 32, 64 and 128 bytes");

  // piece is 16 bytes of a line of codes.
  static __device__ const u8* piece(const u8* codes, int line, int i) {
    int at = line * kLineBytes;
    return codes + at + ((i ^ at >> 7) & (kLineBytes / 16 - 1)) * 16;
  }
};

__device__ inline u32 bytes_of(u32 x, u32 y, u32 selector) { return __byte_perm(x, y, selector); }
__device__ inline u32 sub2(u32 x, u32 y) {
  u32 d;
  asm("sub.rn.bf16x2 %0, %1, %2;" : "=r"(d) : "r"(x), "r"(y));
  return d;
}

// Two codes are decoded at once, one in each half of a register. Those of E2M1 and E4M3 have their bits at the place of
// bf16's: the number times 2^-126 or 2^-120, subnormal ones too. INT4's lie behind 128, whose last place is 1: 128 + n
// for the stored n.
template <int CODE>
struct Bits;
template <>
struct Bits<kINT4> {
  static constexpr int kByte = 0;  // a code's byte in a half: the low one
  static constexpr u32 kScale = 0;
  static __device__ void two(u32 t, u32& low, u32& high) {
    low = over(t, 0x000f000f, 0x43004300), high = over(t >> 4, 0x000f000f, 0x43004300);
  }
  static __device__ u32 number(u32 x) { return sub2(x, 0x43084308); }
  // pair is the codes of a byte, by multiplications where it can: logic, shifts and permutes are scarce.
  static __device__ u32 pair(u32 byte) { return over(byte * 0x00001001, 0x000f000f, 0x43004300); }
};
template <>
struct Bits<kE2M1> {
  static constexpr int kByte = 1;  // the high one
  static constexpr u32 kScale = 126;
  static __device__ void two(u32 t, u32& low, u32& high) {
    low = (t << 4 & 0x80008000) | (t >> 2 & 0x01c001c0), high = (t & 0x80008000) | (t >> 6 & 0x01c001c0);
  }
  static __device__ u32 number(u32 x) { return mul2(x, 0x7e807e80); }
  static __device__ u32 pair(u32 byte) {
    return over(byte * 0x01001000, 0x80008000, byte * 0x00040040 & 0x01c001c0);
  }
};
template <>
struct Bits<kE4M3> {
  static constexpr int kByte = 1;
  static constexpr u32 kScale = 120;
  static __device__ u32 one(u32 t) { return (t & 0x80008000) | (t >> 4 & 0x07f007f0); }
  static __device__ u32 number(u32 x) { return mul2(x, 0x7b807b80); }
};

// Multiplier is the scales of two codes. `beyond` collects the sign bits of those that only `exact` can multiply by.
template <int CODE, class S>
struct Multiplier;
template <int CODE>
struct Multiplier<CODE, u16> {
  u32 m;
  __device__ void same(u16 s) { m = s | (u32)s << 16; }
  __device__ void load(const u16* pair) { m = *(const u32*)pair; }
  __device__ void beyond(u32&) const {}
  __device__ u32 times(u32 x) const { return mul2(Bits<CODE>::number(x), m); }
  __device__ u32 exact(u32 x) const { return times(x); }
};
// A power of two takes the place of the bits along, unless their product is beyond bf16's largest.
template <int CODE>
struct Multiplier<CODE, u8> {
  u32 e;
  __device__ void same(u8 s) { e = s * 0x00010001u; }
  __device__ void load(const u8* pair) { e = bytes_of(*(const u16*)pair, 0, 0x4140); }
  __device__ u32 joint() const { return (e << 7) + Bits<CODE>::kScale * 0x00800080u; }
  __device__ void beyond(u32& signs) const { signs |= joint() + 0x00800080; }
  __device__ u32 times(u32 x) const { return mul2(x, joint()); }
  __device__ u32 exact(u32 x) const {
    u32 least = (e & 0xffff ? 0 : 0x40) | (e >> 16 ? 0 : 0x400000);  // 2^-127
    return mul2(Bits<CODE>::number(x), e << 7 | least);
  }
};
template <int CODE>
struct Multiplier<CODE, float> {
  float low, high;
  __device__ void same(float s) { low = high = s; }
  __device__ void load(const float* pair) { low = pair[0], high = pair[1]; }
  __device__ void beyond(u32&) const {}
  __device__ u32 times(u32 x) const {
    x = Bits<CODE>::number(x);
    u32 d;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;"
        : "=r"(d)
        : "f"(__uint_as_float(x & 0xffff0000u) * high), "f"(__uint_as_float(x << 16) * low));
    return d;
  }
  __device__ u32 exact(u32 x) const { return times(x); }
};

template <bool EXACT, class M>
__device__ inline u32 scaled(const M& m, u32 x) {
  return EXACT ? m.exact(x) : m.times(x);
}

// rounded: two codes of E4M3 times a scale that is fp32.
__device__ inline u32 rounded(u16 codes, float scale) {
  u32 halves, d;
  float low, high;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(codes));
  asm("cvt.f32.f16 %0, %1;" : "=f"(low) : "h"((u16)halves));
  asm("cvt.f32.f16 %0, %1;" : "=f"(high) : "h"((u16)(halves >> 16)));
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high * scale), "f"(low * scale));
  return d;
}

// decode_along: a of two steps of 16 k, half `g` of step `q` of 64 of the stage, rows `first` + warp rows of it. The
// sign bits of what it returns say that the numbers are wrong but for EXACT.
template <bool EXACT, class F, class G>
__device__ inline u32 decode_along(u32 (*a)[4], const u8* codes, int first, int q, int g) {
  constexpr int kCode = F::kCode;
  using Scale = typename F::Scale;
  int lane = warp_lane(), c = lane % 4;
  u32 signs = 0;
#pragma unroll
  for (int h = 0; h < 2; h++) {
    int row = first + threadIdx.x / kWarp % 4 * 16 + lane / 4 + h * 8;
    Scale scale = ((const Scale*)(codes + G::kCodes))[(F::kWide == 0 ? 0 : q * 2 + g) * G::kLines + row];
    Multiplier<kCode, Scale> m;
    m.same(scale);
    m.beyond(signs);
    if constexpr (F::kBits == 4) {
      uint4 w = *(const uint4*)G::piece(codes, row, q * 2 + g);
      u32 v[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
      for (int i = 0; i < 4; i++)  // k 2c and the next, of each 8
        a[i / 2][h + i % 2 * 2] = scaled<EXACT>(m, Bits<kCode>::pair(bytes_of(v[i], 0, 0x4440 | c)));
    } else if constexpr (sizeof(Scale) == 4) {
#pragma unroll
      for (int s = 0; s < 2; s++) {
        const u16* w = (const u16*)(G::piece(codes, row, q * 4 + g * 2 + s) + c * 2);
        a[s][h] = rounded(w[0], scale), a[s][h + 2] = rounded(w[4], scale);
      }
    } else {
      u32 selector = c & 1 ? 0x3424 : 0x1404;  // bytes 2c%4 and the next as the high bytes of the halves
#pragma unroll
      for (int s = 0; s < 2; s++) {
        const u32* w = (const u32*)(G::piece(codes, row, q * 4 + g * 2 + s) + c / 2 * 4);
        a[s][h] = scaled<EXACT>(m, Bits<kCode>::one(bytes_of(w[0], 0, selector)));
        a[s][h + 2] = scaled<EXACT>(m, Bits<kCode>::one(bytes_of(w[2], 0, selector)));
      }
    }
  }
  return signs;
}

// decode_halves is decode_along for all scales, of HALVES halves from `g` on.
template <int HALVES, class F, class G>
__device__ inline void decode_halves(u32 (*a)[4], const u8* codes, int first, int q, int g) {
  u32 signs = 0;
#pragma unroll
  for (int i = 0; i < HALVES; i++) signs |= decode_along<false, F, G>(a + 2 * i, codes, first, q, g + i);
  if constexpr (sizeof(typename F::Scale) == 1)
    if (__any_sync(~0u, signs & 0x80008000))
#pragma unroll
      for (int i = 0; i < HALVES; i++) decode_along<true, F, G>(a + 2 * i, codes, first, q, g + i);
}

// decode_across: a of four steps of 16 rows of codes, of which the warp has 16 columns: column_of says which.
template <bool EXACT, class F, class G>
__device__ inline u32 decode_across(u32 (&a)[4][4], const u8* codes, int first) {
  constexpr int kCode = F::kCode;
  int lane = warp_lane(), c = lane % 4, warp = threadIdx.x / kWarp % 4;
  const auto* scales =
      (const typename F::Scale*)(codes + G::kCodes) + (F::kWide == 0 ? 0 : (first + warp * 16) / 32) * G::kLines;
  u32 signs = 0;
#pragma unroll
  for (int half = 0; half < 2; half++) {
    u32 r[4];
    load4_transposed(r, G::piece(codes, half * 32 + lane, (first + warp * 16) * F::kBits / 128));
#pragma unroll
    for (int i = 0; i < 4; i++) {  // rows 8 * i + 2c and the next
      Multiplier<kCode, typename F::Scale> m;
      m.load(scales + half * 32 + i * 8 + c * 2);
      m.beyond(signs);
      u32 low, high;
      if constexpr (F::kBits == 4) {
        int shift = warp % 2 * 8;  // the byte of the warp's columns to its place
        Bits<kCode>::two(Bits<kCode>::kByte ? r[i] << (8 - shift) : r[i] >> shift, low, high);
      } else {
        low = Bits<kCode>::one(r[i] << 8), high = Bits<kCode>::one(r[i]);
      }
      u32(&to)[4] = a[half * 2 + i / 2];
      to[i % 2 * 2] = scaled<EXACT>(m, low), to[i % 2 * 2 + 1] = scaled<EXACT>(m, high);
    }
  }
  return signs;
}

// decode: a of four steps of 16 k, step `q` of 64 of the stage.
template <class F, class G, int ACROSS>
__device__ inline void decode(u32 (&a)[4][4], const void* stage, int first, int q) {
  const u8* codes = (const u8*)stage;
  if constexpr (ACROSS) {
    u32 signs = decode_across<false, F, G>(a, codes, first);
    if constexpr (sizeof(typename F::Scale) == 1)
      if (__any_sync(~0u, signs & 0x80008000)) decode_across<true, F, G>(a, codes, first);
  } else {
    decode_halves<2, F, G>(a, codes, first, q, 0);
  }
}

// column_of is the first of the two neighbouring columns of a warpgroup's 64 that a thread has by decode_across, as
// rows lane/4 and lane/4 + 8 of a.
template <class F>
__device__ inline int column_of() {
  int lane = warp_lane(), warp = threadIdx.x / kWarp % 4;
  return F::kBits == 4 ? warp / 2 * 32 + lane / 4 * 4 + warp % 2 * 2 : warp * 16 + lane / 4 * 2;
}

// read_across: a of 64 rows of a box of 64 columns of bf16, which are those that decode_across has.
template <class F>
__device__ inline void read_across(u32 (&a)[4][4], const u16* box) {
  int col = column_of<F>(), c = warp_lane() % 4;
#pragma unroll
  for (int i = 0; i < 8; i++) {  // rows 8 * i + 2c and the next
    u32 v[2];
#pragma unroll
    for (int j = 0; j < 2; j++) {
      int row = 2 * c + j;
      v[j] = *(const u32*)(box + (8 * i + row) * 64 + (col / 8 ^ row) * 8 + col % 8);
    }
    a[i / 2][i % 2 * 2] = bytes_of(v[0], v[1], 0x5410), a[i / 2][i % 2 * 2 + 1] = bytes_of(v[0], v[1], 0x7632);
  }
}

template <int N>
struct Width {
  static constexpr int columns = N;
};

// with_width calls f with the width of wgmma for `rows` rows, as `width` has it.
template <int ROWS, class T>
__device__ inline void with_width(int rows, T f) {
  if constexpr (ROWS == 96) {
    if (rows == 96) f(Width<96>());
    else if (rows == 64) f(Width<64>());
    else f(Width<32>());
  } else {
    if (rows == ROWS) f(Width<ROWS>());
    else if (rows == ROWS / 4 * 3) f(Width<ROWS / 4 * 3>());
    else if (rows == ROWS / 2) f(Width<ROWS / 2>());
    else f(Width<ROWS / 4>());
  }
}

// step64 starts the products of 64 k with `rows` rows of X.
template <int ROWS>
__device__ inline void step64(float* d, const u32 (&a)[4][4], u32 b, int rows) {
  with_width<ROWS>(rows, [&](auto of) {
    wgmma_fence();
#pragma unroll
    for (int s = 0; s < 4; s++) wgmma<decltype(of)::columns>(d, a[s], b + s * 2);
    wgmma_commit();
  });
}

// chain_numbers ends a chain with `others` slots of weights in bf16.
template <class F, class G, int ACROSS, class R>
__device__ inline void chain_numbers(float* d, R& ring, int warpgroup, int others, int rows) {
  for (int i = 0; i < others; i++) {
    ring.filled();
    const u16* box = ring.a() + warpgroup * 64 * 64;
    u32 b = operand<64 * 128>(ring.b());
    if (ACROSS) {
      u32 own[4][4];
      read_across<F>(own, box);
      wgmma_wait<0>();
      step64<G::kRows>(d, own, b, rows);
      wgmma_wait<0>();  // where this set were one of a's, the compiler would serialize all products of the function
    } else {
      with_width<G::kRows>(rows, [&](auto of) {
        wgmma_fence();
#pragma unroll
        for (int s = 0; s < 4; s++) wgmma<decltype(of)::columns, 0, 0>(d, operand<64 * 128>(box) + s * 2, b + s * 2);
        wgmma_commit();
      });
    }
    wgmma_wait<1>();
    ring.release_last();
    ring.next();
  }
  wgmma_wait<0>();
  held<G::kRows>(d);
  ring.release_last();
}

// chain_codes multiplies `stages` slots of codes, then `others` of weights in bf16, in order.
template <class F, class G, int ACROSS, class R>
__device__ inline void chain_codes(float* d, R& ring, int warpgroup, int stages, int others, int rows) {
  u32 a[2][4][4];
  held<G::kRows>(d);
  auto slot = [&](int parity, bool begun) {  // parity is known to the compiler
    ring.filled();
#pragma unroll
    for (int q = 0; q < G::kSteps; q++) {
      u32(&own)[4][4] = a[(parity + q) % 2];
      decode<F, G, ACROSS>(own, ring.a(), warpgroup * 64, q);
      step64<G::kRows>(d, own, operand<64 * 128>(ring.b() + q * G::kRows * 64), rows);
      wgmma_wait<1>();
      if (q == 0 && begun) ring.release_last();
    }
    ring.next();
  };
  slot(0, false);
  int i = 1;
  if (G::kSteps % 2 == 0) {
    for (; i < stages; i++) slot(0, true);
  } else {
    for (; i + 1 < stages; i += 2) slot(1, true), slot(0, true);
    if (i < stages) slot(1, true);
  }
  chain_numbers<F, G, ACROSS>(d, ring, warpgroup, others, rows);
}

// store_pairs writes the warpgroup's 64 columns of out from `col` on, of which the threads have neighbours in pairs
// (column_of), by shared memory of 16 rows.
constexpr int kStoredRow = 72;  // elements of a row there

template <int ROWS, class F>
__device__ inline void store_pairs(const float* d, u16* shared, u16* out, long long ldo, int rows, int col, int n,
                                   bool wide, int warpgroup) {
  int thread = threadIdx.x % kGroup, q = thread % 4, c = col + thread % 8 * 8;
  auto meet = [&] { asm volatile("bar.sync %0, %1;" ::"r"(1 + warpgroup), "n"(kGroup) : "memory"); };
#pragma unroll
  for (int j = 0; j < ROWS / 16; j++)
    if (j * 16 < rows) {
      meet();
#pragma unroll
      for (int i = 0; i < 4; i++)
        *(u32*)(shared + (i / 2 * 8 + q * 2 + i % 2) * kStoredRow + column_of<F>()) =
            pair(d[j * 8 + i / 2 * 4 + i % 2], d[j * 8 + i / 2 * 4 + i % 2 + 2]);
      meet();
      int row = j * 16 + thread / 8;
      if (row >= rows || c >= n) continue;
      uint4 v = *(const uint4*)(shared + thread / 8 * kStoredRow + thread % 8 * 8);
      u16* to = out + row * ldo + c;
      if (wide && c + 8 <= n) {
        *(uint4*)to = v;
      } else {
        u32 w[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int e = 0; e < 8; e++)
          if (c + e < n) to[e] = (u16)(w[e / 2] >> e % 2 * 16);
      }
    }
}

// copy_stages is the work of an elected thread: codes and scales of a block's tiles, and other terms' weights, or the
// rows of X. The one of the codes leaves in `works`, if any, the last R::kWorks tiles. FIRST: nothing is asked for
// behind the block's first stage until that is there, or it comes with what follows it: where decoding takes longer.
template <class F, class G, int ACROSS, bool FIRST = false, class R>
__device__ inline void copy_stages(R& ring, const Terms& terms, const Scales& scales, const Tiles<G::kColumns>& tiles,
                                   bool weights, Work* works = nullptr) {
  int told = 0;
  bool first = FIRST;
  for (int i = blockIdx.x; i < tiles.count; i += gridDim.x) {
    Work w = tiles.work(i);
    if (works && weights) {
      works[told] = w;
      if (++told == R::kWorks) told = 0;
    }
    int rows = (width<G::kRows>(w.rows) + terms.box - 1) / terms.box * terms.box;
    for (int t = 0; t < terms.count; t++) {
      if (!terms.cover(t, w.col)) continue;
      int at = w.col - terms.from[t], depth = terms.k[t], each = t == 0 ? G::kDepthOf : 64;
      for (int k = 0; k < depth; k += each, ring.next()) {
        if (!weights) {
          if (t > 0) wait_for_grid();
          u64* full = ring.free(rows * each * 2);
          for (int q = 0; q < each / 64; q++)
            for (int r = 0; r < rows; r += terms.box)
              copy_box(ring.b() + (q * G::kRows + r) * 64, &terms.x[t], k + q * 64, w.from + r, 0, full);
        } else if (t == 0) {
          u64* full = ring.free(G::kCodes + G::kScales);
          int line = ACROSS ? k : at, column = ACROSS ? at : k;
          copy_box(ring.a(), &terms.w[0], column * F::kBits / 8, line, w.group, full);
          copy_box(ring.a() + G::kCodes / 2, &scales.map, line, column / scales.wide, w.group, full);
        } else {
          u64* full = ring.free(G::kWeights);
          if (ACROSS)
            for (int c = 0; c < G::kColumns; c += 64)
              copy_box(ring.a() + c * 64, &terms.w[t], at + c, k, w.group, full);
          else copy_box(ring.a(), &terms.w[t], k, at, w.group, full);
        }
        if (first) ring.filled(), first = false;
      }
    }
  }
}

// multiply_codes is the work of a warpgroup: 64 columns of each of the block's tiles.
template <class F, class G, int ACROSS, class R>
__device__ inline void multiply_codes(R& ring, const Terms& terms, const Tiles<G::kColumns>& tiles, u16* stored,
                                      u16* out, long long ldo, int n) {
  int warpgroup = G::kColumns == 64 ? 0 : uniform(threadIdx.x / kGroup), count = uniform(tiles.count);
  bool wide = ((u64)(out + tiles.begin) | (u64)ldo * 2) % 16 == 0;
  int stages = (terms.k[0] + G::kDepthOf - 1) / G::kDepthOf;
  for (int i = blockIdx.x; i < count; i += gridDim.x) {
    Work w = tiles.work(i);
    int others = 0;
    for (int t = 1; t < terms.count; t++)
      if (terms.cover(t, w.col)) others += (terms.k[t] + 63) / 64;
    others = uniform(others);
    float d[G::kRows / 2];
#pragma unroll
    for (int j = 0; j < G::kRows / 2; j++) d[j] = 0.f;
    chain_codes<F, G, ACROSS>(d, ring, warpgroup, stages, others, uniform(width<G::kRows>(w.rows)));
    u16* to = out + w.from * ldo;
    int col = w.col + warpgroup * 64;
    if (ACROSS)
      store_pairs<G::kRows, F>(d, stored + warpgroup * 16 * kStoredRow, to, ldo, w.rows, col, n, wide, warpgroup);
    else store_tile<G::kRows>(d, to, ldo, w.rows, col, n, wide);
  }
}

// registers_suffice: of FEWER for a thread that copies, and MORE for one that multiplies. A block that asks for more
// than it began with waits forever.
template <int COLUMNS, int FEWER, int MORE>
constexpr bool registers_suffice() {
  constexpr int kThreads = threads(COLUMNS, 1, 2);
  return FEWER * kGroup + MORE * COLUMNS * 2 <= 65536 / kThreads / 8 * 8 * kThreads;
}

// product_codes: columns [terms.begin, n) of out, whose first term's weight is in codes.
template <class F, int ACROSS, int COLUMNS, int ROWS, int STAGES>
__device__ inline void product_codes(const Terms& terms, const Scales& scales, u16* out, long long ldo,
                                     const int* offsets, int groups, int segments, int m, int n) {
  using G = Stage<F, ACROSS, COLUMNS, ROWS, 64>;
  using R = Slots<G::kA, G::kB, STAGES, COLUMNS / 16>;
  constexpr int kFewer = 40, kMore = 232;
  static_assert(registers_suffice<COLUMNS, kFewer, kMore>(), "more registers than a block begins with");
  __shared__ u64 bars[2 * STAGES];
  __shared__ __align__(16) u16 stored[ACROSS ? COLUMNS / 64 * 16 * kStoredRow : 8];
  R ring(bars, 2);
  prefetch_maps(terms, &scales.map);
  int* after = (int*)(dynamic + STAGES * R::kSlot / 2);
  Table table = {after, after + groups + 1};
  fill(table, offsets, groups, segments, m, terms.height);
  __syncthreads();
  Tiles<COLUMNS> tiles(table, groups, terms, n, m);
  int copying = uniform(threadIdx.x / kWarp) - COLUMNS / 16;  // of the warps behind those that multiply
  if (copying >= 0) {
    fewer_registers<kFewer>();
    if (copying < 2 && elected()) copy_stages<F, G, ACROSS>(ring, terms, scales, tiles, copying == 0);
  } else {
    more_registers<kMore>();
    multiply_codes<F, G, ACROSS>(ring, terms, tiles, stored, out, ldo, n);
  }
}

#define PRODUCT_CODES(name, FORMAT, ACROSS, COLUMNS, ROWS, STAGES)                                                  \
  extern "C" __global__ void __launch_bounds__(threads(COLUMNS, 1, 2), 1)                                           \
      name(const __grid_constant__ Terms terms, const __grid_constant__ Scales scales, u16* out, long long ldo,     \
           const int* offsets, int groups, int segments, int m, int n) {                                            \
    product_codes<FORMAT, ACROSS, COLUMNS, ROWS, STAGES>(terms, scales, out, ldo, offsets, groups, segments, m, n); \
  }

// Tiles of quantized_wgmma.go.
#define PRODUCTS_CODES(name, FORMAT)                        \
  PRODUCT_CODES(nt_##name##_wide, FORMAT, 0, 128, 256, 4)   \
  PRODUCT_CODES(nt_##name##_square, FORMAT, 0, 128, 128, 6) \
  PRODUCT_CODES(nn_##name##_wide, FORMAT, 1, 128, 256, 4)   \
  PRODUCT_CODES(nn_##name##_square, FORMAT, 1, 128, 128, 6)

#endif
