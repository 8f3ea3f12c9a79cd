// JoinHeads: head h of out is (own of h, shared). Its gradient: dOwn takes its columns, dshared[i] = round(sum over
// heads ascending, from +0). A thread for eight columns of a row. Bound: the bytes of out or dout.
#include "rows.cuh"

// aligned tells whether eight columns from a multiple of eight on lie in one head and on one side of it.
__device__ inline bool aligned(int n, int r) { return (n | r) % kEight == 0; }

template <class T>
__device__ void join_heads(T* out, const T* own, const T* shared, int rows, int heads, int n, int r, int os, int xs,
                           int ss) {
  int cols = heads * (n + r);
  Piece at(cols);
  if (at.row >= rows) return;
  size_t t = at.row;
  T* to = out + t * os;
  auto from = [&](int c) {
    int h = c / (n + r), j = c % (n + r);
    return j < n ? own + t * xs + h * n + j : shared + t * ss + j - n;
  };
  if (aligned(n, r)) move8(to + at.col, from(at.col), cols - at.col);
  else
    for (int c = at.col; c < min(at.col + kEight, cols); c++) to[c] = *from(c);
}
#define JOIN_HEADS(T) \
  (T * out, const T* own, const T* shared, int rows, int heads, int n, int r, int os, int xs, int ss)
KERNELS(join_heads, JOIN_HEADS, (out, own, shared, rows, heads, n, r, os, xs, ss))

// Pieces of dOwn are followed by those of dshared.
template <class T>
__device__ void join_heads_backward(T* own_gradient, T* dshared, const T* dout, int rows, int heads, int n, int r,
                                    int xs, int ss, int os) {
  int cols = heads * n, behind = (cols + kEight - 1) / kEight * kEight;
  Piece at(behind + r);
  if (at.row >= rows) return;
  size_t t = at.row;
  const T* d = dout + t * os;
  auto from = [&](int c) { return d + c / n * (n + r) + c % n; };
  if (at.col >= behind) {
    int j = at.col - behind;
    float sum[kEight] = {};
#pragma unroll 8
    for (int h = 0; h < heads; h++) {
      float v[kEight];
      load8(d + h * (n + r) + n + j, r - j, v);
#pragma unroll
      for (int i = 0; i < kEight; i++) sum[i] = sum[i] + v[i];
    }
    store8(dshared + t * ss + j, r - j, sum);
  } else if (aligned(n, r)) {
    move8(own_gradient + t * xs + at.col, from(at.col), cols - at.col);
  } else {
    for (int c = at.col; c < min(at.col + kEight, cols); c++) own_gradient[t * xs + c] = *from(c);
  }
}
#define JOIN_HEADS_BACKWARD(T) \
  (T * own_gradient, T * dshared, const T* dout, int rows, int heads, int n, int r, int xs, int ss, int os)
KERNELS(join_heads_backward, JOIN_HEADS_BACKWARD, (own_gradient, dshared, dout, rows, heads, n, r, xs, ss, os))
