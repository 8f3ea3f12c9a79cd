// SigmoidGate and its gradient: a thread for eight columns, of gates [R, 1] a warp for a row. Bound: the bytes of x,
// gate, dout and what is written.
//   out = round(x*sigm(gate)); with s = sigm(gate): dx = round(dout*s), dgate = round((dout*x)*(s*(1-s))), of gates [R,
//   1] round(tree(dout*x)*(s*(1-s)))
#include "rows.cuh"

// gates8 reads the gates of eight columns.
template <class T>
__device__ inline void gates8(const T* gate, size_t row, int col, int left, int gs, int one, float* s) {
  if (one) {
    float v = sigmoid_def(load(gate, row * gs));
#pragma unroll
    for (int j = 0; j < kEight; j++) s[j] = v;
    return;
  }
  load8(gate + row * gs + col, left, s);
#pragma unroll
  for (int j = 0; j < kEight; j++) s[j] = sigmoid_def(s[j]);
}

template <class T>
__device__ void sigmoid_gate(T* out, const T* x, const T* gate, int rows, int n, int os, int xs, int gs, int one) {
  Piece at(n);
  if (at.row >= rows) return;
  int left = n - at.col;
  float v[kEight], s[kEight];
  load8(x + (size_t)at.row * xs + at.col, left, v);
  gates8(gate, at.row, at.col, left, gs, one, s);
#pragma unroll
  for (int j = 0; j < kEight; j++) v[j] = v[j] * s[j];
  store8(out + (size_t)at.row * os + at.col, left, v);
}
#define SIGMOID_GATE(T) (T * out, const T* x, const T* gate, int rows, int n, int os, int xs, int gs, int one)
KERNELS(sigmoid_gate, SIGMOID_GATE, (out, x, gate, rows, n, os, xs, gs, one))

template <class T>
__device__ void sigmoid_gate_backward(T* dx, T* dgate, const T* dout, const T* x, const T* gate, int rows, int n,
                                      int dxs, int dgs, int ds, int xs, int gs) {
  Piece at(n);
  if (at.row >= rows) return;
  int left = n - at.col;
  float v[kEight], s[kEight], d[kEight];
  load8(x + (size_t)at.row * xs + at.col, left, v);
  load8(dout + (size_t)at.row * ds + at.col, left, d);
  gates8(gate, at.row, at.col, left, gs, 0, s);
#pragma unroll
  for (int j = 0; j < kEight; j++) {
    v[j] = (d[j] * v[j]) * (s[j] * (1.f - s[j]));
    d[j] = d[j] * s[j];
  }
  store8(dgate + (size_t)at.row * dgs + at.col, left, v);
  store8(dx + (size_t)at.row * dxs + at.col, left, d);
}
//launch:family sigmoid_gate_backward sigmoid_gate_backward sigmoid_gate_one_backward
#define SIGMOID_GATE_BACKWARD(T)                                                                                   \
  (T * dx, T * dgate, const T* dout, const T* x, const T* gate, int rows, int n, int dxs, int dgs, int ds, int xs, \
   int gs)
KERNELS(sigmoid_gate_backward, SIGMOID_GATE_BACKWARD, (dx, dgate, dout, x, gate, rows, n, dxs, dgs, ds, xs, gs))

template <class T>
__device__ void sigmoid_gate_one_backward(T* dx, T* dgate, const T* dout, const T* x, const T* gate, int rows, int n,
                                          int dxs, int dgs, int ds, int xs, int gs) {
  size_t r = warp_row();
  if ((int)r >= rows) return;
  const T *d = dout + r * ds, *v = x + r * xs;
  float s = sigmoid_def(load(gate, r * gs));
  float sum = tree8(n, [&](int i, int left, float* p) {
    float w[kEight];
    load8(d + i, left, p);
    load8(v + i, left, w);
#pragma unroll
    for (int j = 0; j < kEight; j++) p[j] = p[j] * w[j];
  });
  __syncwarp();  // dx may be dout
  for (int i = warp_lane() * kEight; i < n; i += kLanes) {
    float p[kEight];
    load8(d + i, n - i, p);
#pragma unroll
    for (int j = 0; j < kEight; j++) p[j] = p[j] * s;
    store8(dx + r * dxs + i, n - i, p);
  }
  if (warp_lane() == 0) store(dgate, r * dgs, sum * (s * (1.f - s)));
}
KERNELS(sigmoid_gate_one_backward, SIGMOID_GATE_BACKWARD, (dx, dgate, dout, x, gate, rows, n, dxs, dgs, ds, xs, gs))
