// Attention of few queries on pages of MXFP8: attention_decode.cuh, with the bits of pages of the same numbers. The
// ring has codes as they lie in pages; a warp decodes those that it multiplies, each one once in a block. A step's 16
// products may come in any order, and so may columns of the sums: ldmatrix, which moves pairs of bytes, brings both
// operands. Scales come by the copying warp's registers, as bf16 by block of 32 columns: two keys' are one word.
// Bound: the bytes of codes and scales, 33/64 of those of bf16. Decoding two codes is 7 instructions: of 64 keys and
// values of 128 columns 450 issue slots of a scheduler, at 900 clocks for their 16.9 KB at 18 bytes a clock. A block
// takes thousands of clocks for them, one step after the other: four or five share a multiprocessor.
#include "attention_decode.cuh"
#include "kvcodes.cuh"

// CodeRing is slots of 64 rows of D codes each, kWide bytes a row, swizzled (columns behind those are the next head's),
// and behind all of them their scales [scales_of(D)][64].
template <int D>
struct CodeRing : RingPlace {
  static constexpr int kWide = D <= 32 ? 32 : D <= 64 ? 64 : 128, kTile = kRows * kWide, kBlocks = scales_of(D);

  // piece is 16 codes of a row.
  __device__ const char* piece(const Held& h, int row, int i) const {
    int at = row * kWide;
    return base + h.slot * kTile + at + ((i ^ at >> 7) & (kWide / 16 - 1)) * 16;
  }
  __device__ u16* scales(const Held& h) const { return (u16*)(base + count * kTile) + h.slot * kBlocks * kRows; }

  // look gives the scales of a key, one a byte.
  __device__ static u32 look(const Codes& from, long long row, int kv_head) {
    const u8* s = from.scales + row * from.scale_stride + kv_head * kBlocks;
    u32 all = 0;
    if (kBlocks == 4) return *(const u32*)s;
    if (kBlocks == 2) return *(const u16*)s;
#pragma unroll
    for (int b = 0; b < kBlocks; b++) all |= (u32)s[b] << 8 * b;
    return all;
  }

  // copy is Ring's, blocks of keys and values alternating. Rows and scales are looked up a block ahead. Keys from
  // `last` on have scales of 0, which make zeros of any codes.
  __device__ void copy(const Maps& maps, const Codes& k, const Codes& v, int x, int last, const Keys& keys, int kv_head,
                       int box) {
    int lane = warp_lane(), row[2], next[2];
    u32 found[2][2], ahead[2][2];  // keys' and values', of key lane and lane + 32
    auto look_up = [&](int x) {
#pragma unroll
      for (int j = 0; j < 2; j++) {
        int i = j * kWarp + lane, at = x + i * box;
        next[j] = i < kRows / box && at < last ? (int)keys.row(at) : -1;
        if (x + i >= last) continue;
        long long own = keys.row(x + i);
        ahead[0][j] = look(k, own, kv_head), ahead[1][j] = look(v, own, kv_head);
      }
    };
    look_up(x);
    for (; x < last; x += kRows) {
#pragma unroll
      for (int j = 0; j < 2; j++) row[j] = next[j], found[0][j] = ahead[0][j], found[1][j] = ahead[1][j];
      look_up(x + kRows);
      int bytes = (min(kRows, last - x) + box - 1) / box * box * kWide;
#pragma unroll
      for (int which = 0; which < 2; which++) {
        Held h = take();
        wait_empty(h);
#pragma unroll
        for (int j = 0; j < 2; j++)
#pragma unroll
          for (int b = 0; b < kBlocks; b++)
            scales(h)[b * kRows + j * kWarp + lane] =
                x + j * kWarp + lane < last ? scale_bf16(found[which][j] >> 8 * b & 255) : 0;
        if (lane == 0) barrier_expect(full + h.slot, bytes);
        else barrier_arrive(full + h.slot);  // each lane for the scales that it has written
#pragma unroll
        for (int j = 0; j < 2; j++)
          if (row[j] >= 0)
            copy_box(base + h.slot * kTile + (j * kWarp + lane) * box * kWide, which ? &maps.v : &maps.k, kv_head * D,
                     row[j], 0, full + h.slot);
      }
    }
  }
};

// two_of are two of four codes, every other one from the first or the second on, times their scales.
__device__ inline u32 two_of(u32 codes, int second, u32 scales) {
  return e4m3_times(second ? codes : codes << 8, scales);
}

// InCodes is InNumbers for codes. A thread has four codes of a row: their first and third are the step's operands of
// the first eight columns, the others those of the second. Of values it has two columns of two keys.
template <int D>
struct InCodes {
  using Slots = CodeRing<D>;
  static constexpr int kReaders = kTeam * kWarp, kWriters = kWarp;  // each thread, as scales are no copies
  static constexpr int kAhead = 2;
  Slots ring;

  __device__ static int column(int lane, int half) { return lane / 4 * 2 + half; }
  __device__ static void query(u32 (&x)[2], const u16* from, int lane, int j) {
    uint2 four = *(const uint2*)(from + j * 16 + lane % 4 * 4);
    x[0] = __byte_perm(four.x, four.y, 0x5410), x[1] = __byte_perm(four.x, four.y, 0x7632);
  }

  struct Of {
    const InCodes& in;
    const u16* scales[2];
    Held mine;
    int row;
    u32 scale[2][2];  // of a block and a row

    __device__ Of(const InCodes& in, const Held (&h)[2], int first, int lane)
        : in(in), mine(lane < 16 ? h[0] : h[1]), row(first + (lane & 15)) {
#pragma unroll
      for (int b = 0; b < 2; b++) scales[b] = in.ring.scales(h[b]) + first + lane / 4;
    }
    __device__ void load(u32 (&a)[2][4], int j) {
      if (j % 2 == 0)
#pragma unroll
        for (int b = 0; b < 2; b++)
#pragma unroll
          for (int i = 0; i < 2; i++) scale[b][i] = scales[b][j / 2 * kRows + i * 8] * 0x10001u;
      u32 codes[4];
      load4(codes, in.ring.piece(mine, row, j));
#pragma unroll
      for (int b = 0; b < 2; b++)
#pragma unroll
        for (int i = 0; i < 4; i++) a[b][i] = two_of(codes[2 * b + i % 2], i / 2, scale[b][i % 2]);
    }
  };

  template <int N, int Own, class F>
  __device__ void load(u32 (&a)[N][Own][4], const Held& h, int first, int warp, int lane, F has) const {
#pragma unroll
    for (int p = 0; p < Own; p++) {
      if (!has(p)) continue;
      int part = warp + kTeam * p;
      const u16* scales = ring.scales(h) + part / 2 * kRows + first * 16 + lane % 4 * 2;
#pragma unroll
      for (int k = 0; k < N; k += 2) {
        u32 codes[4];
        load4_transposed(codes, ring.piece(h, (first + k) * 16 + lane, part));
#pragma unroll
        for (int i = 0; i < 4; i++) {
          u32 scale = *(const u32*)(scales + k * 16 + i * 8);
#pragma unroll
          for (int half = 0; half < 2; half++) a[k + i / 2][p][i % 2 * 2 + half] = two_of(codes[i], half, scale);
        }
      }
    }
  }
  __device__ void clear(const Held&, int) const {}
  __device__ void release(const Held& h) const { ring.release_own(h); }
};

// blocks_of are as many blocks of a multiprocessor as leave a thread the registers that it needs.
constexpr int blocks_of(int D, int R) { return D > 64 ? 4 / R : R == 1 ? 5 : 8 / R; }

#define DECODE(D, R)                                                                                                \
  extern "C" __global__ void __launch_bounds__((kTeam + 1) * kWarp, blocks_of(D, R))                                \
      attention_decode_codes_##D##_##R(                                                                             \
      const __grid_constant__ Maps maps, const Codes k, const Codes v, u16* out, float* lse, const u16* q,          \
      const Tile* tiles, const int* pages, float* partials, int* done, int ring_slots, int box, int kv_heads,       \
      int group, int os, int lses, int qs, int page_rows, int window, float c) {                                    \
    auto copy = [&](auto& ring, const Tile& t, int kv_head) {                                                       \
      ring.copy(maps, k, v, t.first, t.last, {pages + t.pages, 0, page_rows}, kv_head, box);                        \
    };                                                                                                              \
    decode<D, R>(InCodes<D>(), copy, out, lse, q, tiles, partials, done, ring_slots, kv_heads, group, os, lses, qs, \
                 window, c);                                                                                        \
  }
#define DECODES(D) DECODE(D, 1) DECODE(D, 2) DECODE(D, 4)
DECODES(16)
DECODES(32)
DECODES(64)
DECODES(96)
DECODES(128)
