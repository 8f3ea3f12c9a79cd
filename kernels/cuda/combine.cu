// Combine: out[t] = round(sum over slots k ascending, from +0, of weights[t,k]*y[rowOf[t,k]]), each product rounded; weights nil: of y alone. A thread for
// some columns of a token. Its gradient: dy[row] = round(weights[t,k]*dout[t]), dweights[t,k] = tree(dout[t]*y[row]), a warp for a (token, slot).
// Bound: the bytes of y and out, or of dout, y and dy.
#include "definition.cuh"

template <class T>
__device__ void combine(T* out, const T* y, const float* weights, const int* row_of, int rows, int cols, int k, int os, int ys) {
  for (int t = blockIdx.y; t < rows; t += gridDim.y)
    for (int c = blockIdx.x * blockDim.x + threadIdx.x; c < cols; c += gridDim.x * blockDim.x) {
      float sum = 0.f;
      for (int i = t * k; i < (t + 1) * k; i++) {
        float v = load(y, (size_t)row_of[i] * ys + c);
        sum = sum + (weights ? v * weights[i] : v);
      }
      store(out, (size_t)t * os + c, sum);
    }
}
#define COMBINE(T) (T * out, const T* y, const float* weights, const int* row_of, int rows, int cols, int k, int os, int ys)
KERNELS(combine, COMBINE, (out, y, weights, row_of, rows, cols, k, os, ys))

template <class T>
__device__ void combine_backward(T* dy, float* dweights, const T* dout, const T* y, const float* weights, const int* row_of, int pairs, int cols, int k, int dys,
                                 int ds, int ys) {
  int i = warp_row();
  if (i >= pairs) return;
  const T *d = dout + (size_t)(i / k) * ds, *v = y + (size_t)row_of[i] * ys;
  T* to = dy + (size_t)row_of[i] * dys;
  float s = tree(cols, [&](int c) { return load(d, c) * load(v, c); });
  if (warp_lane() == 0) dweights[i] = s;
  for (int c = warp_lane(); c < cols; c += kWarp) store(to, c, load(d, c) * weights[i]);
}
#define COMBINE_BACKWARD(T)                                                                                                                             \
  (T * dy, float* dweights, const T* dout, const T* y, const float* weights, const int* row_of, int pairs, int cols, int k, int dys, int ds, int ys)
KERNELS(combine_backward, COMBINE_BACKWARD, (dy, dweights, dout, y, weights, row_of, pairs, cols, k, dys, ds, ys))
