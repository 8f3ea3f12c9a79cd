// RMSNorm, that of a sum, and its gradient: a team of threads for a row (team.cuh). Bound: the bytes of x, out, dy and
// dx.
//   rstd = 1/sqrt(tree(x*x)/n + eps); out = round((x*rstd)*w), x*rstd rounded by Definition.Norm; w is float32(1 + w)
//   where the weight is stored so
//   AddRMSNorm: sum = round(a + b), and RMSNorm of sum as it is stored
//   dx = round(dx + rstd*(g - xh*(tree(g*xh)/n))), g = dy*w, xh = x*rstd; dw[j] += dy*xh, a sum over rows
#include "team.cuh"

// add_row adds a row b to a thread's columns of another, rounds them as they are stored, and writes them to sum.
template <int C, int K, class T>
__device__ inline void add_row(Columns<T, C>* row, T* sum, const T* b, int col, int n) {
  Columns<T, C> other[K];
#pragma unroll
  for (int k = 0; k < K; k++) other[k].load(b + col + k * kLanes, col + k * kLanes < n);
#pragma unroll
  for (int k = 0; k < K; k++) {
    float v[C], u[C];
    row[k].values(v), other[k].values(u);
#pragma unroll
    for (int j = 0; j < C; j++) v[j] = v[j] + u[j];
    row[k].round(v);
    if (int i = col + k * kLanes; i < n) row[k].store(sum + i);
  }
}

// A team for a row, kept in registers as K times C columns a thread; TEAMS teams are a block. With ADD the row is
// x + b, rounded, which goes to sum_out too.
template <bool ADD, int C, int K, int TEAMS, class T>
__device__ inline void rms_norm(T* out, T* sum_out, float* rstd, const T* x, const T* b, const T* w, int rows, int n,
                                int os, int ss, int xs, int bs, float eps, int plus_one) {
  __shared__ __align__(16) float lanes[TEAMS][C == kEight ? 1 : 2 * kLanes];
  Team<C> team;
  size_t r = (size_t)blockIdx.x * TEAMS + team.id;
  if (r >= rows) return;
  Columns<T, C> row[K], scale[K];
  x += r * xs, out += r * os;
#pragma unroll
  for (int k = 0; k < K; k++) {
    int i = team.col + k * kLanes;
    row[k].load(x + i, i < n);
    scale[k].load(w + i, i < n);
  }
  if constexpr (ADD) add_row<C, K>(row, sum_out + r * ss, b + r * bs, team.col, n);
  float sum[C], base = weight_base(plus_one);
#pragma unroll
  for (int j = 0; j < C; j++) sum[j] = 0.f;
#pragma unroll
  for (int k = 0; k < K; k++) {
    float v[C];
    row[k].values(v);
#pragma unroll
    for (int j = 0; j < C; j++) sum[j] = sum[j] + v[j] * v[j];
  }
  float a = r_std(team.tree(sum, lanes[team.id]), n, eps);
  if (team.col == 0) rstd[r] = a;
#pragma unroll
  for (int k = 0; k < K; k++) {
    row[k].anew(), scale[k].anew();
    float v[C], g[C];
    row[k].values(v);
    weights(scale[k], base, g);
#pragma unroll
    for (int j = 0; j < C; j++) v[j] = round_norm(v[j] * a, plus_one) * g[j];
    row[k].round(v);
    if (int i = team.col + k * kLanes; i < n) row[k].store(out + i);
  }
}

// A block of at most 64 rows, its runs among TEAMS teams: a team has a row at a time in registers, K times C columns a
// thread, and what its run adds to dw. The runs' sums meet in shared memory, F32 [TEAMS, n], and go to sums F32
// [blocks, n]; sums nil: dw is not wanted. add_blocks adds the blocks up.
template <int C, int K, int TEAMS, class T>
__device__ inline void rms_norm_backward(float* runs, T* dx, float* sums, const T* dy, const T* x, const float* rstd,
                                         const T* w, const int* blocks, int n, int dxs, int dys, int xs, int plus_one) {
  __shared__ __align__(16) float lanes[TEAMS][C == kEight ? 1 : 2 * kLanes];
  Team<C> team;
  int end = blocks[blockIdx.x + 1];
  float base = weight_base(plus_one);
  Columns<T, C> scale[K];
#pragma unroll
  for (int k = 0; k < K; k++) scale[k].load(w + team.col + k * kLanes, team.col + k * kLanes < n);
  for (int first = blocks[blockIdx.x], round = 0; first < end; first += TEAMS * kRowRun, round++) {
    float sum[K][C];
#pragma unroll
    for (int k = 0; k < K; k++)
#pragma unroll
      for (int j = 0; j < C; j++) sum[k][j] = 0.f;
    int from = first + team.id * kRowRun, to = min(from + kRowRun, end);
#pragma unroll 1
    for (size_t r = from; (int)r < from + kRowRun; r++) {
      if ((int)r >= to) {
        team.meet();  // all teams meet as often
        continue;
      }
      Columns<T, C> row[K], dout[K], grad[K];
      const T *xr = x + r * xs + team.col, *dyr = dy + r * dys + team.col;
      T* dxr = dx + r * dxs + team.col;
#pragma unroll
      for (int k = 0; k < K; k++) {
        bool on = team.col + k * kLanes < n;
        row[k].load(xr + k * kLanes, on);
        dout[k].load(dyr + k * kLanes, on);
      }
      float a = rstd[r], lane[C];
#pragma unroll
      for (int k = 0; k < K; k++) grad[k].load(dxr + k * kLanes, team.col + k * kLanes < n);
#pragma unroll
      for (int j = 0; j < C; j++) lane[j] = 0.f;
#pragma unroll
      for (int k = 0; k < K; k++) {
        scale[k].anew();
        float v[C], d[C], g[C];
        row[k].values(v), dout[k].values(d), weights(scale[k], base, g);
#pragma unroll
        for (int j = 0; j < C; j++) lane[j] = lane[j] + (d[j] * g[j]) * (v[j] * a);
      }
      float c = team.tree(lane, lanes[team.id]) / (float)n;
#pragma unroll
      for (int k = 0; k < K; k++) {
        row[k].anew(), dout[k].anew(), scale[k].anew();
        float v[C], d[C], g[C], to[C];
        row[k].values(v), dout[k].values(d), weights(scale[k], base, g), grad[k].values(to);
#pragma unroll
        for (int j = 0; j < C; j++) {
          float xh = v[j] * a;
          to[j] = to[j] + a * (d[j] * g[j] - xh * c);
          sum[k][j] = sum[k][j] + xh * d[j];
        }
        grad[k].round(to);
        if (team.col + k * kLanes < n) grad[k].store(dxr + k * kLanes);
      }
    }
    if (!sums) continue;
#pragma unroll
    for (int k = 0; k < K; k++) {
      int i = team.col + k * kLanes;
      if (i < n)
#pragma unroll
        for (int j = 0; j < C; j++) runs[team.id * n + i + j] = sum[k][j];
    }
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
      float* of_block = sums + (size_t)blockIdx.x * n + i;
      float total = round == 0 ? 0.f : *of_block;
#pragma unroll
      for (int t = 0; t < TEAMS; t++) total = total + runs[t * n + i];
      *of_block = total;
    }
    __syncthreads();
  }
}

extern __shared__ float runs[];

#define FORWARD_OF(C, K, TEAMS, many, T, suffix)                                                                      \
  extern "C" __global__ void __launch_bounds__(TEAMS * 256 / C, many) rms_norm_##C##x##K##suffix(                     \
      T* out, float* rstd, const T* x, const T* w, int rows, int n, int os, int xs, float eps, int plus_one) {        \
    rms_norm<false, C, K, TEAMS>(out, (T*)nullptr, rstd, x, (T*)nullptr, w, rows, n, os, 0, xs, 0, eps, plus_one);    \
  }                                                                                                                   \
  extern "C" __global__ void __launch_bounds__(TEAMS * 256 / C, many < 3 ? many : many - 1)                           \
      add_rms_norm_##C##x##K##suffix(T* out, T* sum, float* rstd, const T* a, const T* b, const T* w, int rows, int n, \
                                     int os, int ss, int as, int bs, float eps, int plus_one) {                       \
    rms_norm<true, C, K, TEAMS>(out, sum, rstd, a, b, w, rows, n, os, ss, as, bs, eps, plus_one);                     \
  }
#define FORWARD(C, K, TEAMS, many) FORWARD_OF(C, K, TEAMS, 1, float, _f32) FORWARD_OF(C, K, TEAMS, many, u16, _bf16)

#define BACKWARD_OF(C, K, TEAMS, many, T, suffix)                                                                     \
  extern "C" __global__ void __launch_bounds__(TEAMS * 256 / C, many)                                                 \
      rms_norm_backward_##C##x##K##suffix(T* dx, float* sums, const T* dy, const T* x, const float* rstd, const T* w, \
                                          const int* blocks, int n, int dxs, int dys, int xs, int plus_one) {         \
    rms_norm_backward<C, K, TEAMS>(runs, dx, sums, dy, x, rstd, w, blocks, n, dxs, dys, xs, plus_one);                \
  }
#define BACKWARD(C, K, TEAMS, many) BACKWARD_OF(C, K, TEAMS, 1, float, _f32) BACKWARD_OF(C, K, TEAMS, many, u16, _bf16)

// Shapes and teams, as norm.go has them, and for bf16 the blocks of a processor; a benchmark compares others.
#ifdef NORM_SHAPES
NORM_SHAPES
#else
FORWARD(8, 2, 8, 4)
FORWARD(8, 4, 8, 4)
FORWARD(8, 8, 8, 3)
FORWARD(4, 16, 4, 3)
FORWARD(2, 32, 2, 3)
FORWARD(2, 8, 1, 8)
FORWARD(2, 16, 1, 8)
FORWARD(1, 16, 1, 4)
FORWARD(1, 64, 1, 1)
BACKWARD(8, 2, 8, 2)
BACKWARD(8, 4, 8, 2)
BACKWARD(4, 8, 8, 1)
BACKWARD(2, 16, 4, 1)
BACKWARD(2, 32, 2, 1)
BACKWARD(1, 16, 2, 1)
BACKWARD(1, 64, 1, 1)
#endif

constexpr int kAdders = 512;

// add_sums adds the sums of segments to dw, the first first; with a step other than 0 to one for each segment, so many
// elements apart. A segment's sum is that of its blocks from +0, ascending:
// segments are the first block of each, then their count. A block's sum is that of its runs from +0, ascending, of
// which there are at most RUNS: those of block b are sums [runs[b] ... runs[b+1], n], or with RUNS 1 sums[b]. A block
// of threads brings 32 columns of many blocks together, its first warp adds.
template <int RUNS>
__device__ inline void add_sums(float* dw, const float* sums, const int* runs, const int* segments, int count, int n,
                                int step) {
  constexpr int kMany = 256, kWarps = kAdders / kWarp;
  __shared__ float tile[kMany][kWarp];
  int lane = warp_lane(), warp = threadIdx.x / kWarp, j = blockIdx.x * kWarp + lane;
  float total = warp == 0 && j < n ? dw[j] : 0.f, sum = 0.f;
  int segment = 0;  // that sum is of
  for (int from = 0; from < count; from += kMany) {
    __syncthreads();
#pragma unroll 4
    for (int i = warp; i < kMany; i += kWarps) {
      if (from + i >= count || j >= n) break;
      size_t at = RUNS == 1 ? from + i : runs[from + i];
      int own = RUNS == 1 ? 1 : runs[from + i + 1] - (int)at;
      float v[RUNS], block = 0.f;
#pragma unroll
      for (int r = 0; r < RUNS; r++) v[r] = r < own ? sums[(at + r) * n + j] : 0.f;
#pragma unroll
      for (int r = 0; r < RUNS; r++) block = block + v[r];
      tile[i][lane] = block;
    }
    __syncthreads();
    if (warp > 0) continue;
    for (int b = 0, many = min(kMany, count - from); b < many;) {
      int end = segments[segment + 1] - from, to = min(end, many);
#pragma unroll 16
      for (; b < to; b++) sum = sum + tile[b][lane];
      if (b < end) continue;
      total = total + sum, sum = 0.f, segment++;
      if (step == 0 || j >= n) continue;
      dw[j] = total, dw += step;
      total = from + b < count ? dw[j] : 0.f;
    }
  }
  if (step == 0 && warp == 0 && j < n) dw[j] = total;
}
KERNEL(add_blocks, float* dw, const float* sums, const int* segments, int count, int n, int step) {
  add_sums<1>(dw, sums, nullptr, segments, count, n, step);
}
KERNEL(add_runs, float* dw, const float* sums, const int* runs, const int* segments, int count, int n, int step) {
  add_sums<kRowBlock / kRowRun>(dw, sums, runs, segments, count, n, step);
}

// add_rows adds parts F32 [rows, n] up in blocks of rows, a thread for a column of one: sums F32 [blocks, n], which
// add_blocks adds up.
KERNEL(add_rows, float* sums, const float* parts, const int* blocks, int n) {
  int j = blockIdx.x * blockDim.x + threadIdx.x, b = blockIdx.y;
  if (j >= n) return;
  sums[(size_t)b * n + j] = sum_rows(blocks[b], blocks[b + 1], [&](size_t r) { return parts[r * n + j]; });
}
