// Dropout: a thread for eight columns of a row, whose words are two of Philox4x32-10 (Salmon et al., SC11), as
// kernels.Philox. Bound: the bytes read and written, or 40 multiplications of 32 bits for eight columns.
#include "rows.cuh"

struct Words {
  u32 v[4];
};

__device__ inline Words philox(u32 a, u32 b, u32 c, u32 d, u32 k0, u32 k1) {
#pragma unroll
  for (int i = 0; i < 10; i++) {
    u64 x = (u64)0xD2511F53u * a, y = (u64)0xCD9E8D57u * c;
    u32 first = (u32)(y >> 32) ^ b ^ k0, third = (u32)(x >> 32) ^ d ^ k1;
    a = first, b = (u32)y, c = third, d = (u32)x;
    k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
  }
  return {{a, b, c, d}};
}

template <class T>
__device__ void dropout(T* out, const T* x, float factor, int least, int k0, int k1, int step, int layer, int first,
                        int rows, int cols, int os, int xs) {
  Piece at(cols);
  if (at.row >= rows) return;
  int left = cols - at.col;
  float v[kEight];
  load8(x + (size_t)at.row * xs + at.col, left, v);
#pragma unroll
  for (int i = 0; i < kEight / 4; i++) {
    Words w = philox(at.col / 4 + i, (u32)first + at.row, layer, step, k0, k1);
#pragma unroll
    for (int j = 0; j < 4; j++) v[4 * i + j] = w.v[j] < (u32)least ? 0.f : v[4 * i + j] * factor;
  }
  store8(out + (size_t)at.row * os + at.col, left, v);
}
#define DROPOUT(T)                                                                                            \
  (T * out, const T* x, float factor, int least, int k0, int k1, int step, int layer, int first, int rows, int cols, \
   int os, int xs)
KERNELS(dropout, DROPOUT, (out, x, factor, least, k0, k1, step, layer, first, rows, cols, os, xs))
