// JoinHeads: head h of out is (own of h, shared). Its gradient: dOwn takes its columns, dshared[i] = round(sum over heads ascending, from +0). A thread for a column of a
// row. Bound: the bytes of out or dout.
#include "definition.cuh"

template <class T>
__device__ void join_heads(T* out, const T* own, const T* shared, int heads, int n, int r, int os, int xs, int ss) {
  size_t t = blockIdx.x;
  for (int i = threadIdx.x; i < heads * (n + r); i += blockDim.x) {
    int h = i / (n + r), j = i % (n + r);
    out[t * os + i] = j < n ? own[t * xs + h * n + j] : shared[t * ss + j - n];
  }
}
#define JOIN_HEADS(T) (T * out, const T* own, const T* shared, int heads, int n, int r, int os, int xs, int ss)
KERNELS(join_heads, JOIN_HEADS, (out, own, shared, heads, n, r, os, xs, ss))

template <class T>
__device__ void join_heads_backward(T* own_gradient, T* dshared, const T* dout, int heads, int n, int r, int xs, int ss, int os) {
  size_t t = blockIdx.x;
  const T* d = dout + t * os;
  for (int i = threadIdx.x; i < heads * n; i += blockDim.x) own_gradient[t * xs + i] = d[i / n * (n + r) + i % n];
  for (int j = threadIdx.x; j < r; j += blockDim.x) {
    float sum = 0.f;
#pragma unroll 8
    for (int h = 0; h < heads; h++) sum += load(d, h * (n + r) + n + j);
    store(dshared, t * ss + j, sum);
  }
}
#define JOIN_HEADS_BACKWARD(T) (T * own_gradient, T* dshared, const T* dout, int heads, int n, int r, int xs, int ss, int os)
KERNELS(join_heads_backward, JOIN_HEADS_BACKWARD, (own_gradient, dshared, dout, heads, n, r, xs, ss, os))
