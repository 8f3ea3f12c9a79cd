// LayerNorm and its gradient: a warp for a row. Bound: the bytes of x and out; of x, dy, dx and twice the fp32 of what
// rows add to the gradients of w and bias.
//   mean = tree(x)/n, c = x - mean, rstd = 1/sqrt(tree(c*c)/n + eps), xh = c*rstd; out = round(xh*w + bias)
//   dx = round(rstd*((g - tree(g)/n) - xh*(tree(g*xh)/n))), g = dy*w; dw[j] += dy*xh and dbias[j] += dy, sums over rows
#include "rows.cuh"

// Standard is a row as xh, by a warp.
template <class T>
struct Standard {
  const T* x;
  float mean, rstd;
  __device__ Standard(const T* row, int n, float eps) : x(row) {
    mean = tree8(n, [&](int i, int left, float* v) { load8(x + i, left, v); }) / (float)n;
    rstd = r_std(tree8(n, [&](int i, int left, float* v) {
                         centred(i, left, v);
#pragma unroll
                         for (int j = 0; j < kEight; j++) v[j] = v[j] * v[j];
                       }), n, eps);
  }
  __device__ void centred(int i, int left, float* v) const {
    load8(x + i, left, v);
#pragma unroll
    for (int j = 0; j < kEight; j++) v[j] = v[j] - mean;
  }
  __device__ void load(int i, int left, float* v) const {
    centred(i, left, v);
#pragma unroll
    for (int j = 0; j < kEight; j++) v[j] = v[j] * rstd;
  }
};

template <class T>
__device__ void layer_norm(T* out, const T* x, const T* w, const T* bias, int rows, int n, int os, int xs, float eps) {
  int r = warp_row();
  if (r >= rows) return;
  Standard<T> row(x + (size_t)r * xs, n, eps);
  T* to = out + (size_t)r * os;
  for (int i = warp_lane() * kEight; i < n; i += kLanes) {
    float v[kEight], g[kEight], b[kEight];
    row.load(i, n - i, v);
    load8(w + i, n - i, g);
    load8(bias + i, n - i, b);
#pragma unroll
    for (int j = 0; j < kEight; j++) v[j] = v[j] * g[j] + b[j];
    store8(to + i, n - i, v);
  }
}
#define LAYER_NORM(T) (T * out, const T* x, const T* w, const T* bias, int rows, int n, int os, int xs, float eps)
KERNELS(layer_norm, LAYER_NORM, (out, x, w, bias, rows, n, os, xs, eps))

// along and plain F32 [rows, n] are what each row adds to dw and to dbias.
template <class T>
__device__ void layer_norm_backward(T* dx, float* along, float* plain, const T* dy, const T* x, const T* w, int rows,
                                    int n, int dxs, int dys, int xs, float eps) {
  int r = warp_row();
  if (r >= rows) return;
  Standard<T> row(x + (size_t)r * xs, n, eps);
  const T* from = dy + (size_t)r * dys;
  auto scaled = [&](int i, int left, float* g) {
    float v[kEight];
    load8(from + i, left, g);
    load8(w + i, left, v);
#pragma unroll
    for (int j = 0; j < kEight; j++) g[j] = g[j] * v[j];
  };
  float mean = tree8(n, scaled) / (float)n;
  float slope = tree8(n, [&](int i, int left, float* g) {
                  float v[kEight];
                  scaled(i, left, g);
                  row.load(i, left, v);
#pragma unroll
                  for (int j = 0; j < kEight; j++) g[j] = g[j] * v[j];
                }) / (float)n;
  for (int i = warp_lane() * kEight; i < n; i += kLanes) {
    int left = n - i;
    float d[kEight], g[kEight], v[kEight], a[kEight];
    load8(from + i, left, d);
    scaled(i, left, g);
    row.load(i, left, v);
#pragma unroll
    for (int j = 0; j < kEight; j++) a[j] = d[j] * v[j], g[j] = row.rstd * ((g[j] - mean) - v[j] * slope);
    store8(along + (size_t)r * n + i, left, a);
    store8(plain + (size_t)r * n + i, left, d);
    store8(dx + (size_t)r * dxs + i, left, g);
  }
}
#define LAYER_NORM_BACKWARD(T)                                                                                         \
  (T * dx, float* along, float* plain, const T* dy, const T* x, const T* w, int rows, int n, int dxs, int dys, int xs, \
   float eps)
KERNELS(layer_norm_backward, LAYER_NORM_BACKWARD, (dx, along, plain, dy, x, w, rows, n, dxs, dys, xs, eps))
