// RMSNorm and its gradient: a warp for a row. Bound: the bytes of x, out, dy and dx.
//   rstd = 1/sqrt(tree(x*x)/n + eps); out = round((x*rstd)*w), x*rstd rounded by Definition.Norm; w is float32(1 + w) where the weight is stored so
//   dx = round(dx + rstd*(g - xh*(tree(g*xh)/n))), g = dy*w, xh = x*rstd; dw[j] += dy*xh, a sum over rows
#include "rows.cuh"

template <class T>
__device__ void rms_norm(T* out, float* rstd, const T* x, const T* w, int rows, int n, int os, int xs, float eps, int plus_one) {
  int r = warp_row();
  if (r >= rows) return;
  const T* row = x + (size_t)r * xs;
  T* to = out + (size_t)r * os;
  float a = r_std(tree8(n, [&](int i, int left, float* v) {
                    load8(row + i, left, v);
#pragma unroll
                    for (int j = 0; j < kEight; j++) v[j] = v[j] * v[j];
                  }), n, eps);
  if (warp_lane() == 0) rstd[r] = a;
#pragma unroll 4
  for (int i = warp_lane() * kEight; i < n; i += kLanes) {
    float v[kEight], g[kEight];
    load8(row + i, n - i, v);
    weights8(w + i, n - i, plus_one, g);
#pragma unroll
    for (int j = 0; j < kEight; j++) v[j] = round_norm(v[j] * a, plus_one) * g[j];
    store8(to + i, n - i, v);
  }
}
#define RMS_NORM(T) (T * out, float* rstd, const T* x, const T* w, int rows, int n, int os, int xs, float eps, int plus_one)
KERNELS(rms_norm, RMS_NORM, (out, rstd, x, w, rows, n, os, xs, eps, plus_one))

constexpr int kThreads = 256;  // norm.go has it too

// A block has at most 64 rows, of which it takes ROWS at a time: every thread holds eight columns of each in each of PARTS parts, so n is at most PARTS*2048; the
// products g*xh go through shared memory, where a warp takes the tree of a row. sums nil: dw is not wanted. add_blocks adds the blocks up.
template <int PARTS, int ROWS, class T>
__device__ inline void rms_norm_backward(float* products, T* dx, float* sums, const T* dy, const T* x, const float* rstd, const T* w, const int* blocks, int n,
                                         int dxs, int dys, int xs, int plus_one) {
  __shared__ float means[ROWS];
  int end = blocks[blockIdx.x + 1], col = threadIdx.x * kEight;
  float sum[PARTS][kEight];
#pragma unroll
  for (int p = 0; p < PARTS; p++)
#pragma unroll
    for (int j = 0; j < kEight; j++) sum[p][j] = 0.f;
  for (int from = blocks[blockIdx.x]; from < end; from += ROWS) {
    Stored8<T> rows[ROWS][PARTS], douts[ROWS][PARTS], tos[ROWS][PARTS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      size_t row = min(from + r, end - 1);
#pragma unroll
      for (int p = 0; p < PARTS; p++) {
        int i = p * kThreads * kEight + col;
        rows[r][p].load(x + row * xs + i, n - i);
        douts[r][p].load(dy + row * dys + i, n - i);
        tos[r][p].load(dx + row * dxs + i, n - i);
      }
    }
#pragma unroll
    for (int p = 0; p < PARTS; p++) {
      int i = p * kThreads * kEight + col;
      float g[kEight];
      weights8(w + i, n - i, plus_one, g);
#pragma unroll
      for (int r = 0; r < ROWS; r++) {
        float a = rstd[min(from + r, end - 1)], v[kEight], d[kEight];
        rows[r][p].values(v);
        douts[r][p].values(d);
#pragma unroll
        for (int j = 0; j < kEight; j++) v[j] = (d[j] * g[j]) * (v[j] * a);
        store8(products + r * n + i, n - i, v);
      }
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      size_t row = min(from + ROWS + r, end - 1);
#pragma unroll
      for (int p = 0; p < PARTS; p++) {
        int i = p * kThreads * kEight + col;
        if (i < n) ahead(x + row * xs + i), ahead(dy + row * dys + i), ahead(dx + row * dxs + i);
      }
    }
    __syncthreads();
    if (threadIdx.x < ROWS * kWarp) {
      int r = threadIdx.x / kWarp;
      float mean = tree8(n, [&](int i, int left, float* v) { load8(products + r * n + i, left, v); }) / (float)n;
      if (warp_lane() == 0) means[r] = mean;
    }
    __syncthreads();
#pragma unroll
    for (int p = 0; p < PARTS; p++) {
      int i = p * kThreads * kEight + col;
      float g[kEight];
      weights8(w + i, n - i, plus_one, g);
#pragma unroll
      for (int r = 0; r < ROWS; r++) {
        if (from + r >= end) break;
        float a = rstd[from + r], c = means[r], v[kEight], d[kEight], to[kEight];
        rows[r][p].values(v);
        douts[r][p].values(d);
        tos[r][p].values(to);
#pragma unroll
        for (int j = 0; j < kEight; j++) {
          float xh = v[j] * a;
          to[j] = to[j] + a * (d[j] * g[j] - xh * c);
          sum[p][j] = sum[p][j] + xh * d[j];
        }
        store8(dx + (size_t)(from + r) * dxs + i, n - i, to);
      }
    }
  }
  if (!sums) return;
#pragma unroll
  for (int p = 0; p < PARTS; p++) {
    int i = p * kThreads * kEight + col;
    store8(sums + (size_t)blockIdx.x * n + i, n - i, sum[p]);
  }
}

extern __shared__ float products[];

#define RMS_NORM_BACKWARD(parts, rows, many, T, suffix)                                                                                                     \
  extern "C" __global__ void __launch_bounds__(kThreads, many) rms_norm_backward_##parts##suffix(                                                           \
      T* dx, float* sums, const T* dy, const T* x, const float* rstd, const T* w, const int* blocks, int n, int dxs, int dys, int xs, int plus_one) {       \
    rms_norm_backward<parts, rows>(products, dx, sums, dy, x, rstd, w, blocks, n, dxs, dys, xs, plus_one);                                                  \
  }
#define RMS_NORM_BACKWARDS(parts, rows, many) RMS_NORM_BACKWARD(parts, rows, 1, float, _f32) RMS_NORM_BACKWARD(parts, rows, many, u16, _bf16)
RMS_NORM_BACKWARDS(1, 2, 3)
RMS_NORM_BACKWARDS(2, 1, 3)
RMS_NORM_BACKWARDS(4, 1, 2)
RMS_NORM_BACKWARDS(8, 1, 1)

// add_blocks adds sums [count, n] to dw, the first first: a block brings 32 columns of many of them together, its first warp adds.
KERNEL(add_blocks, float* dw, const float* sums, int count, int n) {
  constexpr int kMany = 256;
  __shared__ float tile[kMany][kWarp];
  int lane = warp_lane(), j = blockIdx.x * kWarp + lane;
  float sum = threadIdx.x < kWarp && j < n ? dw[j] : 0.f;
  for (int from = 0; from < count; from += kMany) {
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kMany; i += kThreads / kWarp) {
      int b = i + threadIdx.x / kWarp;
      if (from + b < count && j < n) tile[b][lane] = sums[(size_t)(from + b) * n + j];
    }
    __syncthreads();
    if (threadIdx.x < kWarp)
#pragma unroll 16
      for (int b = 0; b < min(kMany, count - from); b++) sum = sum + tile[b][lane];
  }
  if (threadIdx.x < kWarp && j < n) dw[j] = sum;
}

// add_rows adds parts F32 [rows, n] up in blocks of rows, a thread for a column of one: sums F32 [blocks, n], which add_blocks adds up.
KERNEL(add_rows, float* sums, const float* parts, const int* blocks, int n) {
  int j = blockIdx.x * blockDim.x + threadIdx.x, b = blockIdx.y;
  if (j >= n) return;
  float sum = 0.f;
#pragma unroll 8
  for (int r = blocks[b]; r < blocks[b + 1]; r++) sum += parts[(size_t)r * n + j];
  sums[(size_t)b * n + j] = sum;
}
