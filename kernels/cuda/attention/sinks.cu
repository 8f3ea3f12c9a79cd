// Sinks and their gradient: a warp for a head of a row. Bound: the bytes of out, and of dout.
//   t = sinks[h]*log2e, m = max(lse, t), a = Exp2(lse-m), l = a + Exp2(t-m): out = round(out*(a/l)), lse = m +
//   Ln(l)*log2e
//   dsinks[h] += -(Exp2(min(t-lse, 0))*tree(dout*out)), a sum over rows
#include "definition.cuh"

template <class T>
__device__ void sinks(T* out, float* lse, const T* logits, int rows, int heads, int dim, int os, int ls) {
  int at = warp_row();
  if (at >= rows * heads) return;
  int r = at / heads, h = at % heads;
  T* y = out + (size_t)r * os + h * dim;
  float l = lse[(size_t)r * ls + h], t = load(logits, h) * kLog2E;
  float m = fmaxf(l, t), a = exp2_def(l - m), sum = a + exp2_def(t - m), f = a / sum;
  __syncwarp();  // every lane has read lse
  for (int i = warp_lane(); i < dim; i += kWarp) store(y, i, load(y, i) * f);
  if (warp_lane() == 0) lse[(size_t)r * ls + h] = m + ln_def(sum) * kLog2E;
}
#define SINKS(T) (T * out, float* lse, const T* logits, int rows, int heads, int dim, int os, int ls)
KERNELS(sinks, SINKS, (out, lse, logits, rows, heads, dim, os, ls))

// parts F32 [rows, heads] are what each row adds.
template <class T>
__device__ void sinks_backward(float* parts, const T* dout, const T* out, const float* lse, const T* logits, int rows,
                               int heads, int dim, int ds, int os, int ls) {
  int at = warp_row();
  if (at >= rows * heads) return;
  int r = at / heads, h = at % heads;
  const T *d = dout + (size_t)r * ds + h * dim, *y = out + (size_t)r * os + h * dim;
  float sum = tree(dim, [&](int i) { return load(d, i) * load(y, i); });
  float t = load(logits, h) * kLog2E - lse[(size_t)r * ls + h];
  if (warp_lane() == 0) parts[at] = -(exp2_def(t > 0.f ? 0.f : t) * sum);
}
#define SINKS_BACKWARD(T)                                                                                              \
  (float* parts, const T* dout, const T* out, const float* lse, const T* logits, int rows, int heads, int dim, int ds, \
   int os, int ls)
KERNELS(sinks_backward, SINKS_BACKWARD, (parts, dout, out, lse, logits, rows, heads, dim, ds, os, ls))
