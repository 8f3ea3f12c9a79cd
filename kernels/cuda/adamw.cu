// SumSquares: a warp for the tree of each block of 4096 elements, then one warp for the tree of the blocks. Bound: the bytes of t.
// AdamW: a thread for an element. Bound: 16 bytes read and 16 written an element, 2 more for bf16 weights.
#include "definition.cuh"

constexpr int kSumBlock = 4096;

KERNEL(square_blocks, float* sums, const float* x, long long n) {
  int b = warp_row();
  long long from = (long long)b * kSumBlock;
  if (from >= n) return;
  int count = (int)min((long long)kSumBlock, n - from);
  float s = tree(count, [&](int i) { return x[from + i] * x[from + i]; });
  if (warp_lane() == 0) sums[b] = s;
}

KERNEL(tree_of, float* out, const float* sums, int n) {
  float s = tree(n, [&](int i) { return sums[i]; });
  if (warp_lane() == 0) out[0] = s;
}

// clip_scale: norm = sqrt of the sums, ascending, in fp64; a factor of clip/(norm + 1e-6) where the norm is larger, 1 elsewhere, NaN where it is not finite.
KERNEL(clip_scale, float* out, const float* sums, double clip, int n) {
  if (threadIdx.x != 0) return;
  double total = 0.0;
  for (int i = 0; i < n; i++) total += (double)sums[i];
  double norm = sqrt(total), factor = 1.0;
  if (!(norm < __longlong_as_double(0x7ff0000000000000LL))) factor = __longlong_as_double(0x7ff8000000000000LL);
  else if (clip > 0.0 && norm > clip) factor = clip / (norm + 1e-6);
  out[0] = (float)norm, out[1] = (float)factor;
}

template <class T>
__device__ void adamw(T* w, float* master, float* m, float* v, float* grad, const float* factor, long long n, float beta1, float rest1, float beta2,
                      float rest2, float decay, float lr, float eps, float corr1, float corr2) {
  float grad_scale = factor[0];
  if (grad_scale != grad_scale) return;
  for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (long long)gridDim.x * blockDim.x) {
    float g = grad[i] * grad_scale;
    float m1 = beta1 * m[i] + rest1 * g;
    float v1 = beta2 * v[i] + (rest2 * g) * g;
    float x = master[i];
    x = x - decay * x;
    x = x - lr * ((m1 / corr1) / (sqrtf(v1 / corr2) + eps));
    m[i] = m1, v[i] = v1, grad[i] = 0.f, master[i] = x;
    if ((void*)w != (void*)master) store(w, i, x);
  }
}
#define ADAMW(T)                                                                                                                        \
  (T * w, float* master, float* m, float* v, float* grad, const float* factor, long long n, float beta1, float rest1, float beta2, float rest2, \
   float decay, float lr, float eps, float corr1, float corr2)
KERNELS(adamw, ADAMW, (w, master, m, v, grad, factor, n, beta1, rest1, beta2, rest2, decay, lr, eps, corr1, corr2))
