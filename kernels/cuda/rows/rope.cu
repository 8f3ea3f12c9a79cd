// HeadNormRope and its gradient: G = 8, 16 or 32 threads for a head of a row, eight columns each. out may be x, and dx
// dout: a thread writes the columns that it reads. Bound: the bytes of x and out, or of dout, x and dx.
//   xh = x*rstd, z = xh*w (w nil: z = x); the pairs of columns (a, b) rotate: out[a] = round(z[a]*c - z[b]*s), out[b] =
//   round(z[b]*c + z[a]*s); of others out = round(z)
#include "heads.cuh"
#include "team.cuh"

// Rotation says which columns of a head of dim rotate: `pairs` pairs from column `first` on, halves or (interleaved)
// neighbours.
struct Rotation {
  int dim, pairs, first, interleaved;
};

// Kinds of pairs: the halves of heads of 8*G columns, all of which rotate, and whose rows allow accesses of four
// columns; other halves that fill threads; neighbours in one thread; others. A thread has eight columns in a row, but
// of the first kind four of each half, so that nothing passes between threads.
enum Kind { full, halves, neighbours, others };

// Rotator rotates a thread's eight columns of heads of a row whose cosines and sines are c and s, or BACK. All of the
// warp calls it.
template <Kind KIND, bool BACK>
struct Rotator {
  float cos[kEight], sin[kEight];  // of the columns; sin is negative where the partner is taken away
  int away[kEight];                // how far the partner is; halves: in threads; 0: the column stays
  int col;

  __device__ Rotator(const Rotation& k, int col, const float* c, const float* s) : col(col) {
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

  __device__ void rotate(float* z) const {
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

template <bool BACK>
struct Rotator<full, BACK> {
  Columns<float, 4> cos, sin;

  __device__ Rotator(const Rotation&, int col, const float* c, const float* s) {
    cos.load(c + col / 2, true), sin.load(s + col / 2, true);
  }

  __device__ void rotate(float* z) const {
    float c[4], s[4];
    cos.values(c), sin.values(s);
#pragma unroll
    for (int j = 0; j < 4; j++) {
      float a = z[j], b = z[j + 4];
      z[j] = BACK ? a * c[j] + b * s[j] : a * c[j] - b * s[j];
      z[j + 4] = BACK ? b * c[j] - a * s[j] : b * c[j] + a * s[j];
    }
  }
};

// Part is a thread's eight columns of a head; col is eight times its place among the head's threads.
template <int G, Kind KIND, class T>
struct Part {
  Stored8<T> all;
  __device__ void load(const T* head, int col, int dim, bool on) { all.load(head + col, on ? dim - col : 0); }
  __device__ void values(float* v) const { all.values(v); }
  __device__ static void store(T* head, int col, int dim, bool on, const float* v) {
    store8(head + col, on ? dim - col : 0, v);
  }
};

template <int G, class T>
struct Part<G, full, T> {
  Columns<T, 4> low, high;
  __device__ void load(const T* head, int col, int, bool on) {
    low.load(head + col / 2, on), high.load(head + 4 * G + col / 2, on);
  }
  __device__ void values(float* v) const { low.values(v), high.values(v + 4); }
  __device__ static void store(T* head, int col, int, bool on, const float* v) {
    Columns<T, 4> low, high;
    low.round(v), high.round(v + 4);
    if (on) low.store(head + col / 2), high.store(head + 4 * G + col / 2);
  }
};

// halve adds the 2*HALF numbers of a thread to those of the threads BIT, BIT/2, ... apart; each keeps a half, until it
// has one.
template <int HALF, int BIT>
__device__ inline void halve(float* x) {
  bool up = threadIdx.x & BIT;
#pragma unroll
  for (int i = 0; i < HALF; i++) {
    float mine = up ? x[i + HALF] : x[i], other = up ? x[i] : x[i + HALF];
    x[i] = mine + __shfl_xor_sync(~0u, other, BIT);
  }
  if constexpr (HALF > 1) halve<HALF / 2, BIT / 2>(x);
}

// trees gives all threads of U heads the trees of the heads' columns, v of a thread's own, after `f` of each: f is
// called once for a tree or more. Of full heads the threads share the additions, and the calls.
template <int G, Kind KIND, int U, class F>
__device__ inline void trees(const float (&v)[U][kEight], float* result, F f) {
  if constexpr (KIND != full) {
#pragma unroll
    for (int u = 0; u < U; u++) {
      Lanes8 lanes;
#pragma unroll
      for (int j = 0; j < kEight; j++) lanes.v[j] += v[u][j];
      result[u] = f(lanes.sum<G>());
    }
  } else {
    constexpr int N = 4 * U;
    float x[N];
#pragma unroll
    for (int i = 0; i < N; i++) x[i] = v[i / 4][i % 4] + v[i / 4][i % 4 + 4];  // lanes half a head apart
    halve<N / 2, G / 2>(x);
    float sum = x[0];
#pragma unroll
    for (int bit = G / 2 / N; bit > 0; bit >>= 1) sum = sum + __shfl_xor_sync(~0u, sum, bit);
    sum = sum + __shfl_xor_sync(~0u, sum, 2 * G / N);  // lanes 2 apart, and 1
    sum = sum + __shfl_xor_sync(~0u, sum, G / N);
    sum = f(sum + 0.f);  // lanes start from +0
#pragma unroll
    for (int u = 0; u < U; u++) result[u] = __shfl_sync(~0u, sum, (warp_lane() & -G) + u * (G / U));
  }
}

// Full heads: G threads for U heads of a row.
template <int G, int U, class T>
__device__ inline void head_norm_rope_full(T* out, float* rstd, const T* x, const T* w, const int* positions,
                                           const float* cos, const float* sin, const Rotation& k, int rows, int heads,
                                           int os, int xs, float eps, int plus_one) {
  int across = (heads + U - 1) / U, at = blockIdx.x * (blockDim.x / G) + threadIdx.x / G,
      col = threadIdx.x % G * kEight;
  int place = at / across, first = at % across * U, row = min(place, rows - 1);
  auto on = [&](int u) { return place < rows && first + u < heads; };
  Part<G, full, T> part[U];
#pragma unroll
  for (int u = 0; u < U; u++) part[u].load(x + (size_t)row * xs + (first + u) * 8 * G, col, 8 * G, on(u));
  Part<G, full, T> scale;
  if (w) scale.load(w, col, 8 * G, true);
  size_t table = (size_t)positions[row] * k.pairs;
  Rotator<full, false> rotator(k, col, cos + table, sin + table);
  float z[U][kEight];
#pragma unroll
  for (int u = 0; u < U; u++) part[u].values(z[u]);
  if (w) {
    float square[U][kEight], a[U], g[kEight], base = weight_base(plus_one);
#pragma unroll
    for (int u = 0; u < U; u++)
#pragma unroll
      for (int j = 0; j < kEight; j++) square[u][j] = z[u][j] * z[u][j];
    trees<G, full, U>(square, a, [&](float sum) { return r_std(sum, 8 * G, eps); });
    weights(scale.low, base, g), weights(scale.high, base, g + 4);
#pragma unroll
    for (int u = 0; u < U; u++) {
      if (on(u) && col == 0) rstd[(size_t)row * heads + first + u] = a[u];
#pragma unroll
      for (int j = 0; j < kEight; j++) z[u][j] = round_norm(z[u][j] * a[u], plus_one) * g[j];
    }
  }
#pragma unroll
  for (int u = 0; u < U; u++) {
    rotator.rotate(z[u]);
    Part<G, full, T>::store(out + (size_t)row * os + (first + u) * 8 * G, col, 8 * G, on(u), z[u]);
  }
}

// Others: a block for a row; a head has G threads, 8*G >= dim, which keep what heads have in common.
template <int G, Kind KIND, class T>
__device__ inline void head_norm_rope(T* out, float* rstd, const T* x, const T* w, const int* positions,
                                      const float* cos, const float* sin, const Rotation& k, int heads, int os, int xs,
                                      float eps, int plus_one) {
  int row = blockIdx.x, col = threadIdx.x % G * kEight, group = threadIdx.x / G;
  Rotator<KIND, false> rotator(k, col, cos + (size_t)positions[row] * k.pairs, sin + (size_t)positions[row] * k.pairs);
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
    rotator.rotate(z);
    store8(out + head * k.dim, left, z);
  }
}

// By runs of rows. parts is F32 [kThreads/G*U, dim] in shared memory, sums F32 [count, dim], nil where dw is not
// wanted. norm.cu adds the runs up.
template <int G, Kind KIND, int U, class T>
__device__ inline void head_norm_rope_backward(float* parts, T* dx, float* sums, const T* dout, const T* x,
                                               const float* rstd, const T* w, const int* positions, const float* cos,
                                               const float* sin, const int* runs, int count, const Rotation& k,
                                               int heads, int dxs, int ds, int xs, int plus_one) {
  RunHeads<G, U> of(runs, count, heads);
  int col = threadIdx.x % G * kEight;
  float g[kEight];
  if (w) {
    Part<G, KIND, T> scale;
    scale.load(w, col, k.dim, true);
    scale.values(g);
#pragma unroll
    for (int j = 0; j < kEight; j++) g[j] = weight_base(plus_one) + g[j];
  }
  for (int batch = 0; batch < heads; batch += of.batch()) {
    int first = of.first(batch);
    float sum[U][kEight];
#pragma unroll
    for (int u = 0; u < U; u++)
#pragma unroll
      for (int j = 0; j < kEight; j++) sum[u][j] = 0.f;
#pragma unroll 1
    for (int i = 0; i < kRowRun; i++) {
      size_t row = of.from + i < of.end ? of.from + i : 0;
      auto on = [&](int u) { return of.from + i < of.end && first + u < heads; };
      Part<G, KIND, T> from_dout[U], from_x[U];
      float a[U], z[U][kEight];
#pragma unroll
      for (int u = 0; u < U; u++) {
        from_dout[u].load(dout + row * ds + (first + u) * k.dim, col, k.dim, on(u));
        if (w) {
          from_x[u].load(x + row * xs + (first + u) * k.dim, col, k.dim, on(u));
          a[u] = on(u) ? rstd[row * heads + first + u] : 0.f;
        }
      }
      size_t table = (size_t)positions[row] * k.pairs;
      Rotator<KIND, true> rotator(k, col, cos + table, sin + table);
#pragma unroll
      for (int u = 0; u < U; u++) {
        from_dout[u].values(z[u]);
        rotator.rotate(z[u]);
      }
      if (w) {
        float xh[U][kEight], product[U][kEight], mean[U];
#pragma unroll
        for (int u = 0; u < U; u++) {
          from_x[u].values(xh[u]);
#pragma unroll
          for (int j = 0; j < kEight; j++) {
            xh[u][j] = xh[u][j] * a[u];
            sum[u][j] = sum[u][j] + xh[u][j] * z[u][j];
            z[u][j] = z[u][j] * g[j];
            product[u][j] = z[u][j] * xh[u][j];
          }
        }
        trees<G, KIND, U>(product, mean, [&](float total) { return total / (float)(KIND == full ? 8 * G : k.dim); });
#pragma unroll
        for (int u = 0; u < U; u++)
#pragma unroll
          for (int j = 0; j < kEight; j++) z[u][j] = a[u] * (z[u][j] - xh[u][j] * mean[u]);
      }
#pragma unroll
      for (int u = 0; u < U; u++)
        Part<G, KIND, T>::store(dx + row * dxs + (first + u) * k.dim, col, k.dim, on(u), z[u]);
    }
    if (!sums) continue;
#pragma unroll
    for (int u = 0; u < U; u++)
      Part<G, KIND, float>::store(parts + (of.group * U + u) * k.dim, col, k.dim, true, sum[u]);
    of.add(sums, parts, k.dim, batch);
  }
}

extern __shared__ __align__(16) float parts[];

#define FORWARD(G, kind, T, suffix)                                                                    \
  extern "C" __global__ void head_norm_rope_##kind##_##G##suffix(                                      \
      Rotation k, T* out, float* rstd, const T* x, const T* w, const int* positions, const float* cos, \
      const float* sin, int heads, int os, int xs, float eps, int plus_one) {                          \
    head_norm_rope<G, kind>(out, rstd, x, w, positions, cos, sin, k, heads, os, xs, eps, plus_one);    \
  }
#define FORWARD_FULL(G, U, T, suffix)                                                                       \
  extern "C" __global__ void head_norm_rope_full_##G##suffix(                                               \
      Rotation k, T* out, float* rstd, const T* x, const T* w, const int* positions, const float* cos,      \
      const float* sin, int rows, int heads, int os, int xs, float eps, int plus_one) {                     \
    head_norm_rope_full<G, U>(out, rstd, x, w, positions, cos, sin, k, rows, heads, os, xs, eps, plus_one); \
  }
#define BACKWARD(G, kind, U, many, T, suffix)                                                                          \
  extern "C" __global__ void __launch_bounds__(kThreads, many) head_norm_rope_backward_##kind##_##G##suffix(           \
      Rotation k, T* dx, float* sums, const T* dout, const T* x, const float* rstd, const T* w, const int* positions,  \
      const float* cos, const float* sin, const int* runs, int count, int heads, int dxs, int ds, int xs,              \
      int plus_one) {                                                                                                  \
    head_norm_rope_backward<G, kind, U>(parts, dx, sums, dout, x, rstd, w, positions, cos, sin, runs, count, k, heads, \
                                        dxs, ds, xs, plus_one);                                                        \
  }
#define ROPES(G, kind)          \
  FORWARD(G, kind, float, _f32) \
  FORWARD(G, kind, u16, _bf16) BACKWARD(G, kind, 1, 2, float, _f32) BACKWARD(G, kind, 1, 2, u16, _bf16)
#define ROPES_FULL(G, U, BACK, many) \
  FORWARD_FULL(G, U, float, _f32)    \
  FORWARD_FULL(G, U, u16, _bf16) BACKWARD(G, full, BACK, 1, float, _f32) BACKWARD(G, full, BACK, many, u16, _bf16)
#define ALL_ROPES(G, U, BACK, many) ROPES_FULL(G, U, BACK, many) ROPES(G, halves) ROPES(G, neighbours) ROPES(G, others)

// Heads that G threads have at a time, forward and backward, as rope.go has them; a benchmark compares others.
#ifdef ROPE_SHAPES
ROPE_SHAPES
#else
ALL_ROPES(8, 2, 2, 2)
ALL_ROPES(16, 4, 2, 2)
ALL_ROPES(32, 4, 2, 2)
#endif
