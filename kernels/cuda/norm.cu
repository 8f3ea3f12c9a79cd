// RMSNorm and its gradient: a warp for a row, and for the gradient of w a thread for a column. Bound: the bytes of x, out, dy and dx.
//   rstd = 1/sqrt(tree(x*x)/n + eps); out = round((x*rstd)*w)
//   dx = round(dx + rstd*(g - xh*(tree(g*xh)/n))), g = dy*w, xh = x*rstd; dw[j] += dy*xh, rows ascending
#include "definition.cuh"

__device__ inline float r_std(float sum, int n, float eps) { return 1.f / sqrtf(sum / (float)n + eps); }

template <class T>
__device__ void rms_norm(T* out, float* rstd, const T* x, const T* w, int rows, int n, int os, int xs, float eps) {
  int r = warp_row();
  if (r >= rows) return;
  const T* row = x + (size_t)r * xs;
  T* to = out + (size_t)r * os;
  float a = r_std(tree(n, [&](int i) { float v = load(row, i); return v * v; }), n, eps);
  if (warp_lane() == 0) rstd[r] = a;
  for (int i = warp_lane(); i < n; i += kWarp) store(to, i, (load(row, i) * a) * load(w, i));
}
#define RMS_NORM(T) (T * out, float* rstd, const T* x, const T* w, int rows, int n, int os, int xs, float eps)
KERNELS(rms_norm, RMS_NORM, (out, rstd, x, w, rows, n, os, xs, eps))

template <class T>
__device__ void rms_norm_backward(T* dx, const T* dy, const T* x, const float* rstd, const T* w, int rows, int n, int dxs, int dys, int xs) {
  int r = warp_row();
  if (r >= rows) return;
  const T *row = x + (size_t)r * xs, *dout = dy + (size_t)r * dys;
  T* to = dx + (size_t)r * dxs;
  float a = rstd[r];
  float c = tree(n, [&](int i) { return (load(dout, i) * load(w, i)) * (load(row, i) * a); }) / (float)n;
  for (int i = warp_lane(); i < n; i += kWarp) {
    float g = load(dout, i) * load(w, i);
    store(to, i, load(to, i) + a * (g - (load(row, i) * a) * c));
  }
}
#define RMS_NORM_BACKWARD(T) (T * dx, const T* dy, const T* x, const float* rstd, const T* w, int rows, int n, int dxs, int dys, int xs)
KERNELS(rms_norm_backward, RMS_NORM_BACKWARD, (dx, dy, x, rstd, w, rows, n, dxs, dys, xs))

template <class T>
__device__ void rms_norm_weight(float* dw, const T* dy, const T* x, const float* rstd, int rows, int n, int dys, int xs) {
  int j = blockIdx.x * blockDim.x + threadIdx.x;
  if (j >= n) return;
  float sum = dw[j];
#pragma unroll 8
  for (int r = 0; r < rows; r++) sum += (load(x, (size_t)r * xs + j) * rstd[r]) * load(dy, (size_t)r * dys + j);
  dw[j] = sum;
}
#define RMS_NORM_WEIGHT(T) (float* dw, const T* dy, const T* x, const float* rstd, int rows, int n, int dys, int xs)
KERNELS(rms_norm_weight, RMS_NORM_WEIGHT, (dw, dy, x, rstd, rows, n, dys, xs))
