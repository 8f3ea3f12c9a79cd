// HeadNormRope and its gradient: a warp for a head of a row. Bound: the bytes of x and out.
//   xh = x*rstd, z = xh*w (w nil: z = x); out[i] = round(z[i]*c - z[i+D/2]*s); out[i+D/2] = round(z[i+D/2]*c + z[i]*s)
#include "definition.cuh"

template <class T>
__device__ void head_norm_rope(T* out, float* rstd, const T* x, const T* w, const int* positions, const float* cos, const float* sin, int rows, int heads,
                               int half, int os, int xs, float eps) {
  int at = warp_row();
  if (at >= rows * heads) return;
  int r = at / heads, h = at % heads, n = 2 * half;
  const T* v = x + (size_t)r * xs + h * n;
  T* to = out + (size_t)r * os + h * n;
  float a = 1.f;
  if (w) {
    a = 1.f / sqrtf(tree(n, [&](int i) { float y = load(v, i); return y * y; }) / (float)n + eps);
    if (warp_lane() == 0) rstd[at] = a;
  }
  const float *c = cos + (size_t)positions[r] * half, *s = sin + (size_t)positions[r] * half;
  for (int i = warp_lane(); i < half; i += kWarp) {
    float lo = load(v, i), hi = load(v, i + half);
    if (w) lo = (lo * a) * load(w, i), hi = (hi * a) * load(w, i + half);
    store(to, i, lo * c[i] - hi * s[i]);
    store(to, i + half, hi * c[i] + lo * s[i]);
  }
}
#define HEAD_NORM_ROPE(T)                                                                                                                  \
  (T * out, float* rstd, const T* x, const T* w, const int* positions, const float* cos, const float* sin, int rows, int heads, int half, \
   int os, int xs, float eps)
KERNELS(head_norm_rope, HEAD_NORM_ROPE, (out, rstd, x, w, positions, cos, sin, rows, heads, half, os, xs, eps))

// unrotated is the gradient of z: dz[i] = d[i]*c + d[i+D/2]*s, dz[i+D/2] = d[i+D/2]*c - d[i]*s.
template <class T>
__device__ inline float2 unrotated(const T* d, int i, int half, const float* c, const float* s) {
  float a = load(d, i), b = load(d, i + half);
  return make_float2(a * c[i] + b * s[i], b * c[i] - a * s[i]);
}

template <class T>
__device__ void head_norm_rope_backward(T* dx, const T* dout, const T* x, const float* rstd, const T* w, const int* positions, const float* cos,
                                        const float* sin, int rows, int heads, int half, int dxs, int ds, int xs) {
  int at = warp_row();
  if (at >= rows * heads) return;
  int r = at / heads, h = at % heads, n = 2 * half;
  const T *v = x + (size_t)r * xs + h * n, *d = dout + (size_t)r * ds + h * n;
  T* to = dx + (size_t)r * dxs + h * n;
  const float *c = cos + (size_t)positions[r] * half, *s = sin + (size_t)positions[r] * half;
  float a = 1.f, mean = 0.f;
  if (w) {
    a = rstd[at];
    mean = tree(n, [&](int i) {
             float2 z = unrotated(d, i % half, half, c, s);
             return ((i < half ? z.x : z.y) * load(w, i)) * (load(v, i) * a);
           }) / (float)n;
  }
  __syncwarp();  // dx may be dout: everything above has been read
  for (int i = warp_lane(); i < half; i += kWarp) {
    float2 z = unrotated(d, i, half, c, s);
    if (w) {
      z.x = a * (z.x * load(w, i) - (load(v, i) * a) * mean);
      z.y = a * (z.y * load(w, i + half) - (load(v, i + half) * a) * mean);
    }
    store(to, i, z.x);
    store(to, i + half, z.y);
  }
}
#define HEAD_NORM_ROPE_BACKWARD(T)                                                                                                           \
  (T * dx, const T* dout, const T* x, const float* rstd, const T* w, const int* positions, const float* cos, const float* sin, int rows, int heads, \
   int half, int dxs, int ds, int xs)
KERNELS(head_norm_rope_backward, HEAD_NORM_ROPE_BACKWARD, (dx, dout, x, rstd, w, positions, cos, sin, rows, heads, half, dxs, ds, xs))

// dw is a sum over rows, heads ascending inside a row: a thread for a pair of columns of a block of rows; norm.cu adds the blocks up.
template <class T>
__device__ void head_norm_blocks(float* sums, const T* dout, const T* x, const float* rstd, const int* positions, const float* cos, const float* sin, const int* blocks,
                                 int heads, int half, int ds, int xs) {
  int i = blockIdx.x * blockDim.x + threadIdx.x, b = blockIdx.y;
  if (i >= half) return;
  float lo = 0.f, hi = 0.f;
  for (int r = blocks[b]; r < blocks[b + 1]; r++) {
    const float *c = cos + (size_t)positions[r] * half, *s = sin + (size_t)positions[r] * half;
#pragma unroll 8
    for (int h = 0; h < heads; h++) {
      const T *v = x + (size_t)r * xs + h * 2 * half, *d = dout + (size_t)r * ds + h * 2 * half;
      float2 z = unrotated(d, i, half, c, s);
      float a = rstd[r * heads + h];
      lo += (load(v, i) * a) * z.x;
      hi += (load(v, i + half) * a) * z.y;
    }
  }
  sums[(size_t)b * 2 * half + i] = lo, sums[(size_t)b * 2 * half + half + i] = hi;
}
#define HEAD_NORM_BLOCKS(T)                                                                                                                                  \
  (float* sums, const T* dout, const T* x, const float* rstd, const int* positions, const float* cos, const float* sin, const int* blocks, int heads, int half, \
   int ds, int xs)
KERNELS(head_norm_blocks, HEAD_NORM_BLOCKS, (sums, dout, x, rstd, positions, cos, sin, blocks, heads, half, ds, xs))
