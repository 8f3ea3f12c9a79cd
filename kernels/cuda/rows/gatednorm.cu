// Norms with a gate, as kernels/recurrent.go states them: G = 8, 16 or 32 threads for a head (NormThenGate), a warp for
// a group (GateThenNorm) of a row. Bound: the bytes of x, z, dout and what is written. Columns of a row are computed
// again where they are needed again.
#include "heads.cuh"

// gated is x*(z*sigm(z)) of eight columns.
__device__ inline void gated(const float* x, const float* z, float* y) {
#pragma unroll
  for (int j = 0; j < kEight; j++) y[j] = (z[j] * sigmoid_def(z[j])) * x[j];
}

// ungated converts d = dout and y = what was gated to the gradient of y, and z to its own.
__device__ inline void ungated(float* d, const float* y, float* z) {
#pragma unroll
  for (int j = 0; j < kEight; j++) {
    float s = sigmoid_def(z[j]), g = d[j] * (z[j] * s);
    z[j] = (d[j] * y[j]) * (s * (1.f + z[j] * (1.f - s)));
    d[j] = g;
  }
}

template <int G, class T>
__device__ inline void norm_then_gate(T* out, float* rstd, const T* x, const T* z, const float* w, int rows, int heads,
                                      int n, int os, int rs, int xs, int zs, float eps) {
  int place = (blockIdx.x * kThreads + threadIdx.x) / G, at = min(place, rows * heads - 1),
      col = threadIdx.x % G * kEight;
  size_t r = at / heads, first = at % heads * n + col;
  int left = place == at ? n - col : 0;
  float v[kEight], g[kEight], u[kEight];
  load8(x + r * xs + first, left, v);
  load8(z + r * zs + first, left, g);
  load8(w + col, left, u);
  Lanes8 lanes;
#pragma unroll
  for (int j = 0; j < kEight; j++) lanes.v[j] += v[j] * v[j];
  float a = r_std(lanes.sum<G>(), n, eps);
  if (left > 0 && col == 0) rstd[r * rs + at % heads] = a;
#pragma unroll
  for (int j = 0; j < kEight; j++) v[j] = (v[j] * a) * u[j];
  gated(v, g, v);
  store8(out + r * os + first, left, v);
}

// HeadColumns are eight columns of x and z, with the gradient of y in d, and dz in place of z.
template <class T>
struct HeadColumns {
  float x[kEight], z[kEight], d[kEight], w[kEight];
  __device__ HeadColumns(const T* xs, const T* zs, const T* ds, const float* ws, int left, float rstd) {
    load8(xs, left, x);
    load8(zs, left, z);
    load8(ds, left, d);
    load8(ws, left, w);
    float y[kEight];
#pragma unroll
    for (int j = 0; j < kEight; j++) y[j] = (x[j] * rstd) * w[j];
    ungated(d, y, z);
  }
};

// By runs of rows. parts is F32 [kThreads/G, n] in shared memory, sums F32 [count, n], nil where dw is not wanted.
// norm.cu adds the runs up.
template <int G, class T>
__device__ inline void norm_then_gate_backward(float* parts, T* dx, T* dz, float* sums, const T* dout, const T* x,
                                               const T* z, const float* rstd, const float* w, const int* runs,
                                               int count, int heads, int n, int dxs, int dzs, int ds, int xs, int zs,
                                               int rs) {
  RunHeads<G, 1> of(runs, count, heads);
  int col = threadIdx.x % G * kEight;
  for (int batch = 0; batch < heads; batch += of.batch()) {
    int head = of.first(batch);
    float sum[kEight];
#pragma unroll
    for (int j = 0; j < kEight; j++) sum[j] = 0.f;
#pragma unroll 1
    for (int i = 0; i < kRowRun; i++) {
      bool on = of.from + i < of.end && head < heads;
      size_t r = on ? of.from + i : 0, first = (on ? head * n : 0) + col;
      int left = on ? n - col : 0;
      float a = on ? rstd[r * rs + head] : 0.f;
      HeadColumns<T> h(x + r * xs + first, z + r * zs + first, dout + r * ds + first, w + col, left, a);
      store8(dz + r * dzs + first, left, h.z);
      Lanes8 lanes;
#pragma unroll
      for (int j = 0; j < kEight; j++) {
        h.x[j] = h.x[j] * a;
        sum[j] = sum[j] + h.x[j] * h.d[j];
        h.d[j] = h.d[j] * h.w[j];
        lanes.v[j] += h.d[j] * h.x[j];
      }
      float c = lanes.sum<G>() / (float)n;
#pragma unroll
      for (int j = 0; j < kEight; j++) h.x[j] = a * (h.d[j] - h.x[j] * c);
      store8(dx + r * dxs + first, left, h.x);
    }
    if (!sums) continue;
    store8(parts + of.group * n + col, n - col, sum);
    of.add(sums, parts, n, batch);
  }
}

extern __shared__ __align__(16) float parts[];

#define NORM_THEN_GATE(G, T, suffix)                                                                                  \
  extern "C" __global__ void __launch_bounds__(kThreads)                                                              \
      norm_then_gate_##G##suffix(T* out, float* rstd, const T* x, const T* z, const float* w, int rows, int heads,    \
                                 int n, int os, int rs, int xs, int zs, float eps) {                                  \
    norm_then_gate<G>(out, rstd, x, z, w, rows, heads, n, os, rs, xs, zs, eps);                                       \
  }                                                                                                                   \
  extern "C" __global__ void __launch_bounds__(kThreads) norm_then_gate_backward_##G##suffix(                         \
      T* dx, T* dz, float* sums, const T* dout, const T* x, const T* z, const float* rstd, const float* w,            \
      const int* runs, int count, int heads, int n, int dxs, int dzs, int ds, int xs, int zs, int rs) {               \
    norm_then_gate_backward<G>(parts, dx, dz, sums, dout, x, z, rstd, w, runs, count, heads, n, dxs, dzs, ds, xs, zs, \
                               rs);                                                                                   \
  }
#define NORMS_THEN_GATES(G) NORM_THEN_GATE(G, float, _f32) NORM_THEN_GATE(G, u16, _bf16)
NORMS_THEN_GATES(8)
NORMS_THEN_GATES(16)
NORMS_THEN_GATES(32)

template <class T>
__device__ void gate_then_norm(T* out, float* rstd, const T* x, const T* z, const T* w, int rows, int groups, int n,
                               int os, int rs, int xs, int zs, float eps) {
  int at = warp_row();
  if (at >= rows * groups) return;
  size_t r = at / groups, first = at % groups * n;
  const T *from = x + r * xs + first, *gate = z + r * zs + first;
  T* to = out + r * os + first;
  auto columns = [&](int i, float* y) {
    float g[kEight];
    load8(from + i, n - i, y);
    load8(gate + i, n - i, g);
    gated(y, g, y);
  };
  float a = r_std(tree8(n, [&](int i, int left, float* v) {
                    columns(i, v);
#pragma unroll
                    for (int j = 0; j < kEight; j++) v[j] = v[j] * v[j];
                  }), n, eps);
  if (warp_lane() == 0) rstd[r * rs + at % groups] = a;
  for (int i = warp_lane() * kEight; i < n; i += kLanes) {
    float y[kEight], u[kEight];
    columns(i, y);
    load8(w + first + i, n - i, u);
#pragma unroll
    for (int j = 0; j < kEight; j++) y[j] = (y[j] * a) * u[j];
    store8(to + i, n - i, y);
  }
}
#define GATE_THEN_NORM(T)                                                                                         \
  (T * out, float* rstd, const T* x, const T* z, const T* w, int rows, int groups, int n, int os, int rs, int xs, \
   int zs, float eps)
KERNELS(gate_then_norm, GATE_THEN_NORM, (out, rstd, x, z, w, rows, groups, n, os, rs, xs, zs, eps))

template <class T>
__device__ void gate_then_norm_backward(T* dx, T* dz, const T* dout, const T* x, const T* z, const float* rstd,
                                        const T* w, int rows, int groups, int n, int dxs, int dzs, int ds, int xs,
                                        int zs, int rs) {
  int at = warp_row();
  if (at >= rows * groups) return;
  size_t r = at / groups, first = at % groups * n;
  float a = rstd[r * rs + at % groups];
  auto columns = [&](int i, float* v, float* g, float* y, float* d) {
    float u[kEight];
    load8(x + r * xs + first + i, n - i, v);
    load8(z + r * zs + first + i, n - i, g);
    load8(dout + r * ds + first + i, n - i, d);
    load8(w + first + i, n - i, u);
    gated(v, g, y);
#pragma unroll
    for (int j = 0; j < kEight; j++) d[j] = d[j] * u[j];
  };
  float c = tree8(n, [&](int i, int left, float* p) {
              float v[kEight], g[kEight], y[kEight];
              columns(i, v, g, y, p);
#pragma unroll
              for (int j = 0; j < kEight; j++) p[j] = p[j] * (y[j] * a);
            }) / (float)n;
  for (int i = warp_lane() * kEight; i < n; i += kLanes) {
    float v[kEight], g[kEight], y[kEight], d[kEight];
    columns(i, v, g, y, d);
#pragma unroll
    for (int j = 0; j < kEight; j++) d[j] = a * (d[j] - (y[j] * a) * c);
    ungated(d, v, g);
    store8(dz + r * dzs + first + i, n - i, g);
    store8(dx + r * dxs + first + i, n - i, d);
  }
}
#define GATE_THEN_NORM_BACKWARD(T)                                                                                    \
  (T * dx, T * dz, const T* dout, const T* x, const T* z, const float* rstd, const T* w, int rows, int groups, int n, \
   int dxs, int dzs, int ds, int xs, int zs, int rs)
KERNELS(gate_then_norm_backward, GATE_THEN_NORM_BACKWARD,
        (dx, dz, dout, x, z, rstd, w, rows, groups, n, dxs, dzs, ds, xs, zs, rs))

// sums F32 [blocks, columns]: a thread for a column of a block of rows. norm.cu adds the blocks up.
template <class T>
__device__ void gate_then_norm_blocks(float* sums, const T* dout, const T* x, const T* z, const float* rstd,
                                      const int* blocks, int cols, int n, int ds, int xs, int zs, int rs) {
  int j = blockIdx.x * blockDim.x + threadIdx.x, b = blockIdx.y;
  if (j >= cols) return;
  sums[(size_t)b * cols + j] = sum_rows(blocks[b], blocks[b + 1], [&](size_t r) {
    float g = load(z, r * zs + j), y = (g * sigmoid_def(g)) * load(x, r * xs + j);
    return (y * rstd[r * rs + j / n]) * load(dout, r * ds + j);
  });
}
#define GATE_THEN_NORM_BLOCKS(T)                                                                                      \
  (float* sums, const T* dout, const T* x, const T* z, const float* rstd, const int* blocks, int cols, int n, int ds, \
   int xs, int zs, int rs)
KERNELS(gate_then_norm_blocks, GATE_THEN_NORM_BLOCKS, (sums, dout, x, z, rstd, blocks, cols, n, ds, xs, zs, rs))
