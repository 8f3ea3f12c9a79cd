// Zero, Copy, Add, Scale: one thread for some elements of a row. Bound: the bytes read and written.
#include "definition.cuh"

// A row-strided matrix [rows, cols] is visited by a grid of (columns, rows) with y taking rows in turn.
#define EACH(rows, cols)                                                        \
  for (int r = blockIdx.y; r < rows; r += gridDim.y)                             \
    for (int c = blockIdx.x * blockDim.x + threadIdx.x; c < cols; c += gridDim.x * blockDim.x)

KERNEL(zero16, u16* x, int rows, int cols, int stride) { EACH(rows, cols) x[(size_t)r * stride + c] = 0; }
KERNEL(zero32, u32* x, int rows, int cols, int stride) { EACH(rows, cols) x[(size_t)r * stride + c] = 0; }

template <class D, class S>
__device__ void copy(D* d, const S* s, int rows, int cols, int ds, int ss) {
  EACH(rows, cols) store(d, (size_t)r * ds + c, load(s, (size_t)r * ss + c));
}
KERNEL(copy_f32_bf16, float* d, const u16* s, int rows, int cols, int ds, int ss) { copy(d, s, rows, cols, ds, ss); }
KERNEL(copy_bf16_f32, u16* d, const float* s, int rows, int cols, int ds, int ss) { copy(d, s, rows, cols, ds, ss); }
KERNEL(copy16, u16* d, const u16* s, int rows, int cols, int ds, int ss) { EACH(rows, cols) d[(size_t)r * ds + c] = s[(size_t)r * ss + c]; }
KERNEL(copy32, u32* d, const u32* s, int rows, int cols, int ds, int ss) { EACH(rows, cols) d[(size_t)r * ds + c] = s[(size_t)r * ss + c]; }

template <class T>
__device__ void add(T* out, const T* a, const T* b, int rows, int cols, int os, int as, int bs) {
  EACH(rows, cols) store(out, (size_t)r * os + c, load(a, (size_t)r * as + c) + load(b, (size_t)r * bs + c));
}
#define ADD(T) (T * out, const T* a, const T* b, int rows, int cols, int os, int as, int bs)
KERNELS(add, ADD, (out, a, b, rows, cols, os, as, bs))

template <class T>
__device__ void scale(T* out, const T* x, float f, int rows, int cols, int os, int xs) {
  EACH(rows, cols) store(out, (size_t)r * os + c, load(x, (size_t)r * xs + c) * f);
}
#define SCALE(T) (T * out, const T* x, float f, int rows, int cols, int os, int xs)
KERNELS(scale, SCALE, (out, x, f, rows, cols, os, xs))
