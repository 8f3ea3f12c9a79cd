// RMSNorm and its gradient: a warp for a row. Bound: the bytes of x, out, dy and dx.
//   rstd = 1/sqrt(tree(x*x)/n + eps); out = round((x*rstd)*w); w is float32(1 + w) where the weight is stored so
//   dx = round(dx + rstd*(g - xh*(tree(g*xh)/n))), g = dy*w, xh = x*rstd; dw[j] += dy*xh, a sum over rows
#include "definition.cuh"

__device__ inline float r_std(float sum, int n, float eps) { return 1.f / sqrtf(sum / (float)n + eps); }

template <class T>
__device__ void rms_norm(T* out, float* rstd, const T* x, const T* w, int rows, int n, int os, int xs, float eps, int plus_one) {
  int r = warp_row();
  if (r >= rows) return;
  const T* row = x + (size_t)r * xs;
  T* to = out + (size_t)r * os;
  float a = r_std(tree(n, [&](int i) { float v = load(row, i); return v * v; }), n, eps);
  if (warp_lane() == 0) rstd[r] = a;
  for (int i = warp_lane(); i < n; i += kWarp) store(to, i, (load(row, i) * a) * norm_weight(w, i, plus_one));
}
#define RMS_NORM(T) (T * out, float* rstd, const T* x, const T* w, int rows, int n, int os, int xs, float eps, int plus_one)
KERNELS(rms_norm, RMS_NORM, (out, rstd, x, w, rows, n, os, xs, eps, plus_one))

template <class T>
__device__ void rms_norm_backward(T* dx, const T* dy, const T* x, const float* rstd, const T* w, int rows, int n, int dxs, int dys, int xs,
                                  int plus_one) {
  int r = warp_row();
  if (r >= rows) return;
  const T *row = x + (size_t)r * xs, *dout = dy + (size_t)r * dys;
  T* to = dx + (size_t)r * dxs;
  float a = rstd[r];
  float c = tree(n, [&](int i) { return (load(dout, i) * norm_weight(w, i, plus_one)) * (load(row, i) * a); }) / (float)n;
  for (int i = warp_lane(); i < n; i += kWarp) {
    float g = load(dout, i) * norm_weight(w, i, plus_one);
    store(to, i, load(to, i) + a * (g - (load(row, i) * a) * c));
  }
}
#define RMS_NORM_BACKWARD(T) (T * dx, const T* dy, const T* x, const float* rstd, const T* w, int rows, int n, int dxs, int dys, int xs, int plus_one)
KERNELS(rms_norm_backward, RMS_NORM_BACKWARD, (dx, dy, x, rstd, w, rows, n, dxs, dys, xs, plus_one))

// dw is a sum over rows: a thread for a column of a block of at most 64 rows, then a thread for a column adds the blocks up.
template <class T>
__device__ void rms_norm_blocks(float* sums, const T* dy, const T* x, const float* rstd, const int* blocks, int n, int dys, int xs) {
  int j = blockIdx.x * blockDim.x + threadIdx.x, b = blockIdx.y;
  if (j >= n) return;
  float sum = 0.f;
#pragma unroll 8
  for (int r = blocks[b]; r < blocks[b + 1]; r++) sum += (load(x, (size_t)r * xs + j) * rstd[r]) * load(dy, (size_t)r * dys + j);
  sums[(size_t)b * n + j] = sum;
}
#define RMS_NORM_BLOCKS(T) (float* sums, const T* dy, const T* x, const float* rstd, const int* blocks, int n, int dys, int xs)
KERNELS(rms_norm_blocks, RMS_NORM_BLOCKS, (sums, dy, x, rstd, blocks, n, dys, xs))

KERNEL(add_blocks, float* dw, const float* sums, int count, int n) {
  int j = blockIdx.x * blockDim.x + threadIdx.x;
  if (j >= n) return;
  float sum = dw[j];
#pragma unroll 8
  for (int b = 0; b < count; b++) sum += sums[(size_t)b * n + j];
  dw[j] = sum;
}
