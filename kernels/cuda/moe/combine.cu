// Combine: out[t] = round(sum over slots k ascending, from +0, of weights[t,k]*y[rowOf[t,k]]), each product rounded;
// weights nil: of y alone; with weights, products and sums are rounded on the way by Definition.Combine. A thread for
// eight columns of a token. Its gradient, of pairs p = t*k + slot: with p = pair[i] and r = row[i], dy[r] =
// round(weights[p]*dout[t]), dweights[i] = tree(dout[t]*y[r]); without pair p is i, without row r is i. A warp for a
// pair.
// Bound: the bytes of y and out, or of dout, y and dy.
#include "rows.cuh"

constexpr int kAhead = 8;  // slots whose rows are all on their way before one is added

// sum_slots adds the slots of a token up, eight columns of y; WHOLE: they are one access in every row.
template <bool WHOLE, class T>
__device__ inline void sum_slots(float* sum, const T* y, const float* weights, const int* row_of, int left, int k,
                                 int ys) {
  for (int first = 0; first < k; first += kAhead) {
    size_t row[kAhead];
    float weight[kAhead];
    Stored8<T> stored[kAhead];
#pragma unroll
    for (int s = 0; s < kAhead; s++) {
      int slot = min(first + s, k - 1);  // the last again where there is none: that costs less than to ask
      row[s] = row_of[slot];
      weight[s] = weights ? weights[slot] : 1.f;
    }
#pragma unroll
    for (int s = 0; s < kAhead; s++)
      WHOLE ? stored[s].load_whole(y + row[s] * ys) : stored[s].load(y + row[s] * ys, left);
#pragma unroll
    for (int s = 0; s < kAhead; s++) {
      float v[kEight];
      stored[s].values(v);
#pragma unroll
      for (int j = 0; j < kEight; j++) {
        float to = weights ? round_combine(sum[j] + round_combine(v[j] * weight[s])) : sum[j] + v[j];
        sum[j] = first + s < k ? to : sum[j];  // a branch here would be one before the next row is read
      }
    }
  }
}

template <class T>
__device__ void combine(T* out, const T* y, const float* weights, const int* row_of, int rows, int cols, int k, int os,
                        int ys) {
  Piece at(cols);
  if (at.row >= rows) return;
  int left = cols - at.col;
  float sum[kEight] = {0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f};
  y += at.col, row_of += at.row * k, weights = weights ? weights + at.row * k : nullptr;
  if (whole(y, left) && ys % kEight == 0) sum_slots<true>(sum, y, weights, row_of, left, k, ys);
  else sum_slots<false>(sum, y, weights, row_of, left, k, ys);
  store8(out + (size_t)at.row * os + at.col, left, sum);
}
#define COMBINE(T) \
  (T * out, const T* y, const float* weights, const int* row_of, int rows, int cols, int k, int os, int ys)
KERNELS(combine, COMBINE, (out, y, weights, row_of, rows, cols, k, os, ys))

template <class T>
__device__ void combine_backward(T* dy, float* dweights, const T* dout, const T* y, const float* weights,
                                 const int* pair, const int* row, int n, int cols, int k, int dys, int ds, int ys) {
  int i = warp_row();
  if (i >= n) return;
  int p = pair ? pair[i] : i, r = row ? row[i] : i;
  const T *d = dout + (size_t)(p / k) * ds, *v = y + (size_t)r * ys;
  T* to = dy + (size_t)r * dys;
  float weight = weights[p];
  float s = tree8(cols, [&](int c, int left, float* x) {
    float b[kEight], scaled[kEight];
    load8(d + c, left, x);
    load8(v + c, left, b);
#pragma unroll
    for (int j = 0; j < kEight; j++) scaled[j] = x[j] * weight, x[j] = x[j] * b[j];
    store8(to + c, left, scaled);
  });
  if (warp_lane() == 0) dweights[i] = s;
}
#define COMBINE_BACKWARD(T)                                                                                       \
  (T * dy, float* dweights, const T* dout, const T* y, const float* weights, const int* pair, const int* row, int n, \
   int cols, int k, int dys, int ds, int ys)
KERNELS(combine_backward, COMBINE_BACKWARD, (dy, dweights, dout, y, weights, pair, row, n, cols, k, dys, ds, ys))
