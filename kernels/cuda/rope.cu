// HeadNormRope and its gradient: a warp for a head of a row. Bound: the bytes of x and out.
//   xh = x*rstd, z = xh*w (w nil: z = x); the pairs of columns (a, b) turn: out[a] = round(z[a]*c - z[b]*s), out[b] = round(z[b]*c + z[a]*s); of others out = round(z)
#include "definition.cuh"

// Turn says which columns of a head of dim turn: `pairs` pairs from column `first` on, halves or (interleaved) neighbours.
struct Turn {
  int dim, pairs, first, interleaved;
  __device__ int low(int i) const { return first + (interleaved ? 2 * i : i); }
  __device__ int high(int i) const { return low(i) + (interleaved ? 1 : pairs); }
  // still is the i-th column that does not turn.
  __device__ int still(int i) const { return i < first ? i : i + 2 * pairs; }
  __device__ int stills() const { return dim - 2 * pairs; }
};

template <class T>
__device__ void head_norm_rope(T* out, float* rstd, const T* x, const T* w, const int* positions, const float* cos, const float* sin, Turn k, int rows, int heads,
                               int os, int xs, float eps, int plus_one) {
  int at = warp_row();
  if (at >= rows * heads) return;
  int r = at / heads, h = at % heads;
  const T* v = x + (size_t)r * xs + h * k.dim;
  T* to = out + (size_t)r * os + h * k.dim;
  float a = 1.f;
  if (w) {
    a = 1.f / sqrtf(tree(k.dim, [&](int i) { float y = load(v, i); return y * y; }) / (float)k.dim + eps);
    if (warp_lane() == 0) rstd[at] = a;
  }
  auto z = [&](int i) { return w ? (load(v, i) * a) * norm_weight(w, i, plus_one) : load(v, i); };
  const float *c = cos + (size_t)positions[r] * k.pairs, *s = sin + (size_t)positions[r] * k.pairs;
  for (int i = warp_lane(); i < k.pairs; i += kWarp) {
    float lo = z(k.low(i)), hi = z(k.high(i));
    store(to, k.low(i), lo * c[i] - hi * s[i]);
    store(to, k.high(i), hi * c[i] + lo * s[i]);
  }
  for (int i = warp_lane(); i < k.stills(); i += kWarp) store(to, k.still(i), z(k.still(i)));
}
#define HEAD_NORM_ROPE(T)                                                                                                                                 \
  (Turn k, T* out, float* rstd, const T* x, const T* w, const int* positions, const float* cos, const float* sin, int rows, int heads, int os, int xs, \
   float eps, int plus_one)
KERNELS(head_norm_rope, HEAD_NORM_ROPE, (out, rstd, x, w, positions, cos, sin, k, rows, heads, os, xs, eps, plus_one))

// unrotated is the gradient of z of pair i: dz[a] = d[a]*c + d[b]*s, dz[b] = d[b]*c - d[a]*s.
template <class T>
__device__ inline float2 unrotated(const T* d, int i, const Turn& k, const float* c, const float* s) {
  float a = load(d, k.low(i)), b = load(d, k.high(i));
  return make_float2(a * c[i] + b * s[i], b * c[i] - a * s[i]);
}

template <class T>
__device__ void head_norm_rope_backward(T* dx, const T* dout, const T* x, const float* rstd, const T* w, const int* positions, const float* cos,
                                        const float* sin, Turn k, int rows, int heads, int dxs, int ds, int xs, int plus_one) {
  int at = warp_row();
  if (at >= rows * heads) return;
  int r = at / heads, h = at % heads;
  const T *v = x + (size_t)r * xs + h * k.dim, *d = dout + (size_t)r * ds + h * k.dim;
  T* to = dx + (size_t)r * dxs + h * k.dim;
  const float *c = cos + (size_t)positions[r] * k.pairs, *s = sin + (size_t)positions[r] * k.pairs;
  float a = 1.f, mean = 0.f;
  if (w) {  // pairs are halves
    a = rstd[at];
    mean = tree(k.dim, [&](int j) {
             int i = j - k.first;
             float z = load(d, j);
             if (i >= 0 && i < 2 * k.pairs) {
               float2 both = unrotated(d, i % k.pairs, k, c, s);
               z = i < k.pairs ? both.x : both.y;
             }
             return (z * norm_weight(w, j, plus_one)) * (load(v, j) * a);
           }) / (float)k.dim;
  }
  __syncwarp();  // dx may be dout: everything above has been read
  auto grad = [&](int j, float z) { return w ? a * (z * norm_weight(w, j, plus_one) - (load(v, j) * a) * mean) : z; };
  for (int i = warp_lane(); i < k.pairs; i += kWarp) {
    float2 z = unrotated(d, i, k, c, s);
    store(to, k.low(i), grad(k.low(i), z.x));
    store(to, k.high(i), grad(k.high(i), z.y));
  }
  for (int i = warp_lane(); i < k.stills(); i += kWarp) store(to, k.still(i), grad(k.still(i), load(d, k.still(i))));
}
#define HEAD_NORM_ROPE_BACKWARD(T)                                                                                                                                \
  (Turn k, T* dx, const T* dout, const T* x, const float* rstd, const T* w, const int* positions, const float* cos, const float* sin, int rows, int heads, int dxs, \
   int ds, int xs, int plus_one)
KERNELS(head_norm_rope_backward, HEAD_NORM_ROPE_BACKWARD, (dx, dout, x, rstd, w, positions, cos, sin, k, rows, heads, dxs, ds, xs, plus_one))

// dw is a sum over rows, heads ascending inside a row: a thread for a pair of columns, or for one that does not turn, of a block of rows; norm.cu adds the
// blocks up. Pairs are halves.
template <class T>
__device__ void head_norm_blocks(float* sums, const T* dout, const T* x, const float* rstd, const int* positions, const float* cos, const float* sin, const int* blocks,
                                 Turn k, int heads, int ds, int xs) {
  int i = blockIdx.x * blockDim.x + threadIdx.x, b = blockIdx.y;
  if (i >= k.pairs + k.stills()) return;
  bool turns = i < k.pairs;
  int low = turns ? k.low(i) : k.still(i - k.pairs), high = turns ? k.high(i) : low;
  float lo = 0.f, hi = 0.f;
  for (int r = blocks[b]; r < blocks[b + 1]; r++) {
    const float *c = cos + (size_t)positions[r] * k.pairs, *s = sin + (size_t)positions[r] * k.pairs;
#pragma unroll 8
    for (int h = 0; h < heads; h++) {
      const T *v = x + (size_t)r * xs + h * k.dim, *d = dout + (size_t)r * ds + h * k.dim;
      float2 z = turns ? unrotated(d, i, k, c, s) : make_float2(load(d, low), 0.f);
      float a = rstd[r * heads + h];
      lo += (load(v, low) * a) * z.x;
      hi += (load(v, high) * a) * z.y;
    }
  }
  float* sum = sums + (size_t)b * k.dim;
  sum[low] = lo;
  if (turns) sum[high] = hi;
}
#define HEAD_NORM_BLOCKS(T)                                                                                                                                            \
  (Turn k, float* sums, const T* dout, const T* x, const float* rstd, const int* positions, const float* cos, const float* sin, const int* blocks, int heads, int ds, \
   int xs)
KERNELS(head_norm_blocks, HEAD_NORM_BLOCKS, (sums, dout, x, rstd, positions, cos, sin, blocks, k, heads, ds, xs))
