// Attention's products by wgmma: a warpgroup of four warps multiplies 64 rows at once, asynchronously, one operand in
// shared memory and the other there or in registers. Only for sm_90a, but for the layout of tiles.
#pragma once
#include "attention.cuh"
#include "wgmma.cuh"

constexpr int kPanel = 64 * 128;  // bytes of 64 rows of 64 columns of bf16

// A tile of 64 rows of D columns is D/64 panels, each of rows of 128 bytes whose 16-byte pieces are at piece ^ (row %
// 8): the 128-byte swizzle of wgmma.
__device__ inline int swizzled(int row, int piece) { return piece / 8 * kPanel + row * 128 + ((piece ^ row) & 7) * 16; }

// describe names an operand in a tile. An operand whose dot runs along columns has 8 rows every 1024 bytes; one whose
// dot runs along rows has besides 64 columns every panel. Steps of 16 are `by_columns` and `by_rows` further.
__device__ inline u64 describe(const void* tile) {
  return (u64)((shared_address(tile) & 0x3ffff) >> 4) | (u64)(kPanel >> 4) << 16 | (u64)(1024 >> 4) << 32 | 1ull << 62;
}
__device__ inline u64 by_columns(u64 d, int k) { return d + ((k / 64 * kPanel + k % 64 * 2) >> 4); }
__device__ inline u64 by_rows(u64 d, int k) { return d + (k * 128 >> 4); }

// dots: d [64, 8*N] of a step for a and b in shared memory, added to d if `more`.
#define DOTS(N, columns, list, registers, a_at, b_at, more_at)                                                    \
  __device__ inline void dots(float (&rows)[N][4], u64 a, u64 b, int more) {                                      \
    float* d = rows[0];                                                                                           \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #more_at ", 0;\nwgmma.mma_async.sync.aligned.m64n" #columns \
                 "k16.f32.bf16.bf16 {" list "}, %" #a_at ", %" #b_at ", p, 1, 1, 0, 0;\n}"                        \
                 : registers                                                                                      \
                 : "l"(a), "l"(b), "r"(more));                                                                    \
  }
DOTS(4, 32, L4, D4(0), 16, 17, 18)
DOTS(8, 64, L8, D8(0), 32, 33, 34)
DOTS(16, 128, L16, D16(0), 64, 65, 66)

// dots: the same for a in registers.
__device__ inline void dots(float (&rows)[8][4], const u32 (&a)[4], u64 b, int more) {
  float* d = rows[0];
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\nwgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" L8
               "}, {%32, %33, %34, %35}, %36, p, 1, 1, 0;\n}"
               : D8(0)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(more));
}

// chain: d [64, 8*N] continues over a step of a (in registers) and rows of b.
#define CHAIN(N, columns, list, registers, a0, a1, a2, a3, b_at)                                                      \
  __device__ inline void chain(float (&rows)[N][4], const u32(&a)[4], u64 b) {                                        \
    float* d = rows[0];                                                                                               \
    asm volatile("{\n.reg .pred p;\nsetp.eq.b32 p, 0, 0;\nwgmma.mma_async.sync.aligned.m64n" #columns                 \
                 "k16.f32.bf16.bf16 {" list "}, {%" #a0 ", %" #a1 ", %" #a2 ", %" #a3 "}, %" #b_at ", p, 1, 1, 1;\n}" \
                 : registers                                                                                          \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                               \
  }
CHAIN(8, 64, L8, D8(0), 32, 33, 34, 35, 36)
CHAIN(16, 128, L16, D16(0), 64, 65, 66, 67, 68)
CHAIN(24, 192, L24, D24(0), 96, 97, 98, 99, 100)
CHAIN(32, 256, L32, D32(0), 128, 129, 130, 131, 132)

// hold keeps the compiler from moving uses of d across it.
template <int N>
__device__ inline void hold(float (&d)[N][4]) {
#pragma unroll
  for (int j = 0; j < N; j++)
#pragma unroll
    for (int v = 0; v < 4; v++) asm volatile("" : "+f"(d[j][v])::"memory");
}

// clear_rows zeroes rows of a tile from `from` on, by so many threads: what lies behind the last key may be NaN, which
// a weight of 0 does not hide.
template <int D>
__device__ inline void clear_rows(char* tile, int from, int thread, int threads) {
  for (int i = from * 8 + thread; i < kRows * 8; i += threads)
#pragma unroll
    for (int p = 0; p < (D + 63) / 64; p++) *(uint4*)(tile + p * kPanel + i * 16) = make_uint4(0, 0, 0, 0);
}
