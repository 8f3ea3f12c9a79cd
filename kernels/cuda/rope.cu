// HeadNormRope and its gradient: 8, 16 or 32 threads for a head of a row, eight columns each. out may be x, and dx dout: a thread writes the columns that it reads. Bound: the bytes of x and out, or of dout, x and dx.
//   xh = x*rstd, z = xh*w (w nil: z = x); the pairs of columns (a, b) turn: out[a] = round(z[a]*c - z[b]*s), out[b] = round(z[b]*c + z[a]*s); of others out = round(z)
#include "rows.cuh"

// Turn says which columns of a head of dim turn: `pairs` pairs from column `first` on, halves or (interleaved) neighbours.
struct Turn {
  int dim, pairs, first, interleaved;
};

// Kinds of pairs: halves that fill threads, neighbours in one thread, and others.
enum Kind { halves, neighbours, others };

// Turning turns a thread's eight columns of heads of a row whose cosines and sines are c and s, or BACK. All of the warp calls it.
template <Kind KIND, bool BACK>
struct Turning {
  float cos[kEight], sin[kEight];  // of the columns; sin is negative where the partner is taken away
  int away[kEight];                // how far the partner is; halves: in threads; 0: the column stays
  int col;

  __device__ Turning(const Turn& k, int col, const float* c, const float* s) : col(col) {
    int q = col - k.first;
    if (KIND == halves) {
      away[0] = q < 0 || q >= 2 * k.pairs ? 0 : (q >= k.pairs ? -k.pairs : k.pairs) / kEight;
      int left = away[0] == 0 ? 0 : kEight;
      load8(c + (away[0] < 0 ? q - k.pairs : q), left, cos);
      load8(s + (away[0] < 0 ? q - k.pairs : q), left, sin);
#pragma unroll
      for (int j = 0; j < kEight; j++) sin[j] = (away[0] < 0) != BACK ? sin[j] : -sin[j];
      return;
    }
#pragma unroll
    for (int j = 0; j < kEight; j++) {
      int at = q + j, i = k.interleaved ? at / 2 : at % k.pairs;
      bool on = at >= 0 && at < 2 * k.pairs;
      away[j] = !on ? 0 : k.interleaved ? (at & 1 ? -1 : 1) : at >= k.pairs ? -k.pairs : k.pairs;
      cos[j] = on ? c[i] : 0.f, sin[j] = on ? ((away[j] < 0) != BACK ? s[i] : -s[i]) : 0.f;
    }
  }

  __device__ void turn(float* z) const {
    float p[kEight];
    if (KIND == halves) {
#pragma unroll
      for (int j = 0; j < kEight; j++) p[j] = __shfl_sync(~0u, z[j], warp_lane() + away[0]);
    } else if (KIND == neighbours) {
#pragma unroll
      for (int j = 0; j < kEight; j++) p[j] = z[j ^ 1];
    } else {
#pragma unroll
      for (int j = 0; j < kEight; j++) {
        int partner = col + j + away[j];
#pragma unroll
        for (int e = 0; e < kEight; e++) {
          float v = __shfl_sync(~0u, z[e], warp_lane() + partner / kEight - col / kEight);
          if (partner % kEight == e) p[j] = v;
        }
      }
    }
#pragma unroll
    for (int j = 0; j < kEight; j++)
      if ((KIND == halves ? away[0] : away[j]) != 0) z[j] = z[j] * cos[j] + p[j] * sin[j];
  }
};

// A block for a row; a head has G threads, 8*G >= dim, which keep what heads have in common.
template <int G, Kind KIND, class T>
__device__ inline void head_norm_rope(T* out, float* rstd, const T* x, const T* w, const int* positions, const float* cos, const float* sin, const Turn& k, int heads,
                                      int os, int xs, float eps, int plus_one) {
  int row = blockIdx.x, col = threadIdx.x % G * kEight, group = threadIdx.x / G;
  Turning<KIND, false> turning(k, col, cos + (size_t)positions[row] * k.pairs, sin + (size_t)positions[row] * k.pairs);
  float g[kEight];
  if (w) weights8(w + col, k.dim - col, plus_one, g);
  x += (size_t)row * xs + col, out += (size_t)row * os + col;
#pragma unroll 4
  for (int first = 0; first < heads; first += blockDim.x / G) {
    int head = first + group, left = head < heads ? k.dim - col : 0;
    float z[kEight];
    load8(x + head * k.dim, left, z);
    if (w) {
      Lanes8 lanes;
#pragma unroll
      for (int j = 0; j < kEight; j++) lanes.v[j] += z[j] * z[j];
      float a = r_std(lanes.sum<G>(), k.dim, eps);
      if (left > 0 && col == 0) rstd[row * heads + head] = a;
#pragma unroll
      for (int j = 0; j < kEight; j++) z[j] = round_norm(z[j] * a, plus_one) * g[j];
    }
    turning.turn(z);
    store8(out + head * k.dim, left, z);
  }
}

constexpr int kThreads = 512;  // of the backward; rope.go has it too

// By blocks of at most 64 rows: products for dw go through shared memory, two tiles of heads in turn, where the first dim threads add them up, heads ascending
// inside a row. sums nil: dw is not wanted. norm.cu adds the blocks up.
template <int G, Kind KIND, class T>
__device__ inline void head_norm_rope_backward(float* shared, T* dx, float* sums, const T* dout, const T* x, const float* rstd, const T* w, const int* positions,
                                               const float* cos, const float* sin, const int* blocks, const Turn& k, int heads, int dxs, int ds, int xs, int plus_one) {
  int groups = kThreads / G, group = threadIdx.x / G, col = threadIdx.x % G * kEight;
  int down = max(1, groups / heads), across = min(groups, heads), tile = down * across;  // heads at a time: of so many rows, so many of each
  int place = group / across, own = group % across, end = blocks[blockIdx.x + 1];
  float total = 0.f, g[kEight];
  if (w) weights8(w + col, k.dim - col, plus_one, g);
  int turn = 0;
  for (int from = blocks[blockIdx.x]; from < end; from += down)
    for (int first = 0; first < heads; first += across, turn ^= 1) {
      float* products = shared + turn * tile * k.dim;
      int row = min(from + place, end - 1), head = first + own, at = head * k.dim + col;
      int left = from + place < end && place < down && head < heads ? k.dim - col : 0;
      Turning<KIND, true> turning(k, col, cos + (size_t)positions[row] * k.pairs, sin + (size_t)positions[row] * k.pairs);
      float z[kEight], xh[kEight];
      load8(dout + (size_t)row * ds + at, left, z);
      if (w) load8(x + (size_t)row * xs + at, left, xh);
      if (left > 0 && from + down + place < end) ahead(dout + (size_t)(row + down) * ds + at), ahead(x + (size_t)(row + down) * xs + at);
      turning.turn(z);
      if (w) {
        float a = left > 0 ? rstd[row * heads + head] : 0.f, product[kEight];
        Lanes8 lanes;
#pragma unroll
        for (int j = 0; j < kEight; j++) {
          xh[j] = xh[j] * a;
          product[j] = xh[j] * z[j];
          z[j] = z[j] * g[j];
          lanes.v[j] += z[j] * xh[j];
        }
        if (sums) store8(products + group * k.dim + col, left, product);
        float mean = lanes.sum<G>() / (float)k.dim;
#pragma unroll
        for (int j = 0; j < kEight; j++) z[j] = a * (z[j] - xh[j] * mean);
      }
      store8(dx + (size_t)row * dxs + at, left, z);
      if (!sums) continue;
      __syncthreads();
      int count = min(down, end - from) * min(across, heads - first);
      if (threadIdx.x < k.dim)
#pragma unroll 16
        for (int i = 0; i < count; i++) total += products[i * k.dim + threadIdx.x];
    }
  if (sums && threadIdx.x < k.dim) sums[(size_t)blockIdx.x * k.dim + threadIdx.x] = total;
}

extern __shared__ float tiles[];

#define ROPE(G, kind, T, suffix)                                                                                                                                     \
  extern "C" __global__ void head_norm_rope_##kind##_##G##suffix(Turn k, T* out, float* rstd, const T* x, const T* w, const int* positions, const float* cos,       \
                                                                 const float* sin, int heads, int os, int xs, float eps, int plus_one) {                            \
    head_norm_rope<G, kind>(out, rstd, x, w, positions, cos, sin, k, heads, os, xs, eps, plus_one);                                                                  \
  }                                                                                                                                                                  \
  extern "C" __global__ void __launch_bounds__(kThreads, kind == others ? 1 : 2)                                                                                     \
      head_norm_rope_backward_##kind##_##G##suffix(Turn k, T* dx, float* sums, const T* dout, const T* x, const float* rstd, const T* w, const int* positions,      \
                                                   const float* cos, const float* sin, const int* blocks, int heads, int dxs, int ds, int xs, int plus_one) {        \
    head_norm_rope_backward<G, kind>(tiles, dx, sums, dout, x, rstd, w, positions, cos, sin, blocks, k, heads, dxs, ds, xs, plus_one);                               \
  }
#define ROPES(G, kind) ROPE(G, kind, float, _f32) ROPE(G, kind, u16, _bf16)
#define ALL_ROPES(G) ROPES(G, halves) ROPES(G, neighbours) ROPES(G, others)
ALL_ROPES(8)
ALL_ROPES(16)
ALL_ROPES(32)
