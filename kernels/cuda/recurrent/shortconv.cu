// ShortConv, a causal depthwise convolution with SiLU, and its gradient: a thread for eight columns of a row. Bound:
// the bytes of x, out, dout and dx; the rows above come from the cache, and so do the weights, which are as many bytes
// for each row.
//   u = bias, then u += w[ch,j]*x[t-(K-1)+j, ch] over taps j ascending; out = round(u*sigm(u))
//   du = dout*(s*(1 + u*(1-s))); dx[t] = round(+0 + du[t]*w[K-1] + du[t+1]*w[K-2] + ...); dw[ch,j] +=
//   du[t]*x[t-(K-1)+j] and dbias += du, sums over rows
#include "rows.cuh"

// Place is a row's position in its sequence, and those of its span's first and last rows.
struct Place {
  int pos, first, last, slot;
};

constexpr int kTaps = 4;  // of most models

// Weights are those of eight columns. A thread holds kTaps of each, which it brings 16 bytes at a time: one by one,
// each would be a request of its own line for every thread of a warp.
template <class T>
struct Weights {
  const T* from;
  int taps, stride;
  float held[kEight * kTaps];
  __device__ Weights(const T* w, int col, int n, int taps, int stride)
      : from(w + (size_t)col * stride), taps(taps), stride(stride) {
    if (!holds()) return;
#pragma unroll
    for (int i = 0; i < kTaps; i++) load8(from + i * kEight, (n - col) * kTaps - i * kEight, held + i * kEight);
  }
  __device__ bool holds() const { return taps == kTaps && stride == kTaps; }
  // each calls f with every tap ascending, and its weight of a column.
  template <class F>
  __device__ void each(F f) const {
    if (!holds()) {
      for (int tap = 0; tap < taps; tap++) f(tap, [&](int j) { return load(from, (size_t)j * stride + tap); });
      return;
    }
#pragma unroll
    for (int tap = 0; tap < kTaps; tap++) f(tap, [&](int j) { return held[j * kTaps + tap]; });
  }
  // back is each, from the last tap to the first.
  template <class F>
  __device__ void back(F f) const {
    if (!holds()) {
      for (int tap = taps - 1; tap >= 0; tap--) f(tap, [&](int j) { return load(from, (size_t)j * stride + tap); });
      return;
    }
#pragma unroll
    for (int tap = kTaps - 1; tap >= 0; tap--) f(tap, [&](int j) { return held[j * kTaps + tap]; });
  }
};

// sum is u of eight columns. Rows before the span's first are in its slot, that of position p in row p mod (taps-1).
template <class T>
__device__ inline void sum(float* u, const T* x, const T* w, const T* bias, const T* state, Place at, size_t row,
                           int col, int n, int taps, int xs, int ws) {
#pragma unroll
  for (int j = 0; j < kEight; j++) u[j] = 0.f;
  if (bias) load8(bias + col, n - col, u);
  Weights<T>(w, col, n, taps, ws).each([&](int tap, auto weight) {
    int p = at.pos - (taps - 1) + tap;
    if (p < 0) return;
    const T* from =
        p >= at.first ? x + (row - at.pos + p) * xs : state + ((size_t)at.slot * (taps - 1) + p % (taps - 1)) * n;
    float v[kEight];
    load8(from + col, n - col, v);
#pragma unroll
    for (int j = 0; j < kEight; j++)
      if (col + j < n) u[j] = u[j] + v[j] * weight(j);
  });
}

template <class T>
__device__ void short_conv(T* out, const T* x, const T* w, const T* bias, const T* state, const Place* places, int rows,
                           int n, int taps, int os, int xs, int ws) {
  Piece at(n);
  if (at.row >= rows) return;
  float u[kEight];
  sum(u, x, w, bias, state, places[at.row], at.row, at.col, n, taps, xs, ws);
#pragma unroll
  for (int j = 0; j < kEight; j++) u[j] = u[j] * sigmoid_def(u[j]);
  store8(out + (size_t)at.row * os + at.col, n - at.col, u);
}
#define SHORT_CONV(T)                                                                                              \
  (T * out, const T* x, const T* w, const T* bias, const T* state, const Place* places, int rows, int n, int taps, \
   int os, int xs, int ws)
KERNELS(short_conv, SHORT_CONV, (out, x, w, bias, state, places, rows, n, taps, os, xs, ws))

// short_conv_keep: rows[i] of x goes to row to[i] of the state [slots*(taps-1), n].
template <class T>
__device__ void short_conv_keep(T* state, const T* x, const int* rows, const int* to, int count, int n, int xs) {
  Piece at(n);
  if (at.row < count)
    move8(state + (size_t)to[at.row] * n + at.col, x + (size_t)rows[at.row] * xs + at.col, n - at.col);
}
#define SHORT_CONV_KEEP(T) (T * state, const T* x, const int* rows, const int* to, int count, int n, int xs)
KERNELS(short_conv_keep, SHORT_CONV_KEEP, (state, x, rows, to, count, n, xs))

// short_conv_slope writes du F32 [rows, n].
template <class T>
__device__ void short_conv_slope(float* du, const T* dout, const T* x, const T* w, const T* bias, const Place* places,
                                 int rows, int n, int taps, int ds, int xs, int ws) {
  Piece at(n);
  if (at.row >= rows) return;
  float u[kEight], d[kEight];
  sum(u, x, w, bias, (const T*)nullptr, places[at.row], at.row, at.col, n, taps, xs, ws);
  load8(dout + (size_t)at.row * ds + at.col, n - at.col, d);
#pragma unroll
  for (int j = 0; j < kEight; j++) {
    float s = sigmoid_def(u[j]);
    d[j] = d[j] * (s * (1.f + u[j] * (1.f - s)));
  }
  store8(du + (size_t)at.row * n + at.col, n - at.col, d);
}
#define SHORT_CONV_SLOPE(T)                                                                                         \
  (float* du, const T* dout, const T* x, const T* w, const T* bias, const Place* places, int rows, int n, int taps, \
   int ds, int xs, int ws)
KERNELS(short_conv_slope, SHORT_CONV_SLOPE, (du, dout, x, w, bias, places, rows, n, taps, ds, xs, ws))

template <class T>
__device__ void short_conv_backward(T* dx, const float* du, const T* w, const Place* places, int rows, int n, int taps,
                                    int dxs, int ws) {
  Piece at(n);
  if (at.row >= rows) return;
  Place place = places[at.row];
  float sum[kEight] = {};
  Weights<T>(w, at.col, n, taps, ws).back([&](int tap, auto weight) {
    int later = taps - 1 - tap;
    if (place.pos + later > place.last) return;
    float d[kEight];
    load8(du + (size_t)(at.row + later) * n + at.col, n - at.col, d);
#pragma unroll
    for (int j = 0; j < kEight; j++)
      if (at.col + j < n) sum[j] = sum[j] + d[j] * weight(j);
  });
  store8(dx + (size_t)at.row * dxs + at.col, n - at.col, sum);
}
#define SHORT_CONV_BACKWARD(T) \
  (T * dx, const float* du, const T* w, const Place* places, int rows, int n, int taps, int dxs, int ws)
KERNELS(short_conv_backward, SHORT_CONV_BACKWARD, (dx, du, w, places, rows, n, taps, dxs, ws))

// short_conv_blocks: a thread for a tap of a column of a block of rows; sums F32 [blocks, n*taps] of dw, biases F32
// [blocks, n] of dbias. norm.cu adds the blocks up.
template <class T>
__device__ void short_conv_blocks(float* sums, float* biases, const float* du, const T* x, const Place* places,
                                  const int* blocks, int n, int taps, int xs) {
  int ch = blockIdx.x * blockDim.x + threadIdx.x, b = blockIdx.y, back = taps - 1 - (int)blockIdx.z;
  if (ch >= n) return;
  sums[((size_t)b * n + ch) * taps + blockIdx.z] = sum_rows(blocks[b], blocks[b + 1], [&](size_t r) {
    return places[r].pos >= back ? load(x, (r - back) * xs + ch) * du[r * n + ch] : 0.f;
  });
  if (back == 0)
    biases[(size_t)b * n + ch] = sum_rows(blocks[b], blocks[b + 1], [&](size_t r) { return du[r * n + ch]; });
}
#define SHORT_CONV_BLOCKS(T)                                                                                         \
  (float* sums, float* biases, const float* du, const T* x, const Place* places, const int* blocks, int n, int taps, \
   int xs)
KERNELS(short_conv_blocks, SHORT_CONV_BLOCKS, (sums, biases, du, x, places, blocks, n, taps, xs))
