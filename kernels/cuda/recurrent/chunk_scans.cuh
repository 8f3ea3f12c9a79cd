// What the scans over a sequence's chunks share: chunk_scan from the first to the last, chunk_unroll back. A block has
// V values of a head, with the state [dim, V] in shared memory. The chains are those of rule 4, a value's are its own:
// V changes no bit. Where sequences are few, V is small, so that every multiprocessor has a block (chunks.go).
//
// What a chunk would wait for: 8 matrices of 64 x 64 (dim 128: keys, -M, queries, P, keys again), each a trip to L2 or
// beyond, and the rows of M that a row's sum over the rows before it needs. All of them come by cp.async through a ring
// of slabs, kSlabs-1 ahead, across chunks too: a chunk waits for its products. Bound of a block and chunk: 64*V*(3*dim
// + 96) fma of fp32 at 128 a clock, and a load from shared memory for every 4*V/16 + 1 of a thread's 4*V/4.
#pragma once
#include "chunks.cuh"
#include "mma.cuh"

constexpr int kSlabs = 3, kSlabStride = kTile + 4, kAcross = 16;
constexpr int kFloats = kSlabs * kChunk * (kSlabStride + 3);  // of the ring, in shared memory

// Slab is up to 64 rows of up to 64 columns of a matrix.
struct alignas(16) Slab {
  float v[kChunk][kSlabStride];
};

// Decays are c of a chunk's rows, beta or dt of those from the cut on, and a factor of each that its scan computes.
struct Decays {
  float c[kChunk], factor[kChunk], weight[kChunk];
};

// Source is where a slab comes from: rows before `from` from kept, others from fresh. whole: rows begin at multiples of
// 16 bytes, and columns are a multiple of 4.
struct Source {
  const float *kept, *fresh;
  size_t kept_stride, stride;
  int from, rows, cols;
  bool whole;
  __device__ const float* row(int r) const { return r < from ? kept + r * kept_stride : fresh + (r - from) * stride; }
  __device__ void bring(Slab& to) const {
    if (whole) {
      for (int x = threadIdx.x; x < rows * (kTile / 4); x += kThreads) {
        int r = x / (kTile / 4), c = x % (kTile / 4) * 4;
        if (c < cols) copy16(&to.v[r][c], row(r) + c, 16);
      }
      return;
    }
    for (int x = threadIdx.x; x < rows * kTile; x += kThreads)
      if (x % kTile < cols) copy4(&to.v[x / kTile][x % kTile], row(x / kTile) + x % kTile, 4);
  }
};

// Ring brings the parts of `left` chunks, whose cuts are `step` apart. part(cut, i) is the Source of part i of a cut,
// decays(cut, to) brings c and beta or dt.
template <class P, class D>
struct Ring {
  Slab* slabs;
  Decays* rows;
  const Cut* cuts;
  int left, step, parts;
  P part;
  D decays;
  Cut cut;
  int brought = 0, chunk = 0, next_part = 0;

  __device__ Ring(Slab* slabs, Decays* rows, const Cut* cuts, int left, int step, int parts, P part, D decays)
      : slabs(slabs), rows(rows), cuts(cuts), left(left), step(step), parts(parts), part(part), decays(decays) {
    if (left > 0) cut = *cuts;
#pragma unroll
    for (int i = 0; i < kSlabs - 1; i++) bring();
  }

  // bring starts the copies of the next part, as a group of its own.
  __device__ void bring() {
    if (left > 0) {
      if (next_part == 0) decays(cut, rows[chunk]);
      part(cut, next_part).bring(slabs[brought]);
      if (++next_part == parts) {
        next_part = 0, left--, cuts += step;
        chunk = chunk + 1 < kSlabs ? chunk + 1 : 0;
        if (left > 0) cut = *cuts;
      }
    }
    brought = brought + 1 < kSlabs ? brought + 1 : 0;
    commit();
  }

  // next is the next part. What the block's threads wrote to shared memory before is there; the part before is gone.
  __device__ Slab& next() {
    wait<kSlabs - 2>();
    __syncthreads();
    bring();
    return slabs[brought];  // the oldest
  }
};

// Chains are a thread's of a tile [64, V]: 4 rows from row() on, V/16 columns from col() on. Fewer threads with 4 x 4
// would load less for as many fma, but too few warps wait for those loads: a third slower with 16 values.
template <int V>
struct Chains {
  static constexpr int kColumns = V / kAcross;
  float v[4][kColumns];
  __device__ Chains() {
#pragma unroll
    for (int r = 0; r < 4; r++)
#pragma unroll
      for (int c = 0; c < kColumns; c++) v[r][c] = 0.f;
  }
  __device__ static int row() { return threadIdx.x / kAcross * 4; }
  __device__ static int col() { return threadIdx.x % kAcross * kColumns; }

  // each calls f(i, j, x) for the elements of the first m rows and n columns.
  template <class F>
  __device__ void each(int m, int n, F f) {
#pragma unroll
    for (int r = 0; r < 4; r++)
#pragma unroll
      for (int c = 0; c < kColumns; c++)
        if (row() + r < m && col() + c < n) f(row() + r, col() + c, v[r][c]);
  }

  // times multiplies the first m rows by f(i).
  template <class F>
  __device__ void times(int m, F f) {
#pragma unroll
    for (int r = 0; r < 4; r++) {
      if (row() + r >= m) return;
      float w = f(row() + r);
#pragma unroll
      for (int c = 0; c < kColumns; c++) v[r][c] = v[r][c] * w;
    }
  }

  // across continues the chains over a slab's first columns: fma of a(i, k) and b(k, j), b [.., V].
  __device__ void across(const Slab& a, const float* b, int rows, int depth) {
    if (row() + 1 < rows)
      rows_across<4>(a, b + col(), depth);
    else if (row() < rows)
      rows_across<1>(a, b + col(), depth);  // a step of decoding
  }

  // down continues the chains over a slab's first rows: fma of a(k, i) and b(k, j).
  __device__ void down(const Slab& a, const float* b, int depth) {
#pragma unroll(kAhead * 2)
    for (int k = 0; k < depth; k++) {
      float w[kColumns], u[4];
      *(float4*)u = *(const float4*)&a.v[k][row()];
      read(w, b + k * V + col());
#pragma unroll
      for (int r = 0; r < 4; r++)
#pragma unroll
        for (int c = 0; c < kColumns; c++) v[r][c] = fmaf(u[r], w[c], v[r][c]);
    }
  }

  static __device__ void read(float* to, const float* from) {
    if constexpr (kColumns == 4)
      *(float4*)to = *(const float4*)from;
    else if constexpr (kColumns == 2)
      *(float2*)to = *(const float2*)from;
    else
      *to = *from;
  }

 private:
  static constexpr int kAhead = 8 / kColumns;

  template <int R>
  __device__ void rows_across(const Slab& a, const float* b, int depth) {
    int k = 0;
#pragma unroll(V < kTile ? kAhead : 1)  // more would spill
    for (; k + 4 <= depth; k += 4) {
      float u[R][4];
#pragma unroll
      for (int r = 0; r < R; r++) *(float4*)u[r] = *(const float4*)&a.v[row() + r][k];
#pragma unroll
      for (int x = 0; x < 4; x++) {
        float w[kColumns];
        read(w, b + (k + x) * V);
#pragma unroll
        for (int r = 0; r < R; r++)
#pragma unroll
          for (int c = 0; c < kColumns; c++) v[r][c] = fmaf(u[r][x], w[c], v[r][c]);
      }
    }
    for (; k < depth; k++) {
#pragma unroll
      for (int r = 0; r < R; r++)
#pragma unroll
        for (int c = 0; c < kColumns; c++) v[r][c] = fmaf(a.v[row() + r][k], b[k * V + c], v[r][c]);
    }
  }
};

// scale multiplies the first rows of a slab by their weights. The block waits for it.
__device__ inline void scale(Slab& s, const float* weight, int rows) {
  for (int x = threadIdx.x; x < rows * (kTile / 4); x += kThreads) {
    float4& q = *(float4*)&s.v[x / (kTile / 4)][x % (kTile / 4) * 4];
    float w = weight[x / (kTile / 4)];
    q = make_float4(q.x * w, q.y * w, q.z * w, q.w * w);
  }
  __syncthreads();
}

// solve continues row(from), row(from+1), ... of x [.., V] in shared memory, each over row(0), row(1), ... before it,
// by fma with m(i, j). kAcross threads have a row of kSolve.
template <int V, class R, class M>
__device__ inline void solve(float (*x)[V], int from, int n, R row, M m) {
  constexpr int C = V / kAcross;
  int col = threadIdx.x % kAcross * C;
  for (int at = from; at < from + n; at += kSolve) {
    int rows = min(kSolve, from + n - at), i = at + threadIdx.x / kAcross;
    if (i < at + rows) {
      float sum[C], *to = &x[row(i)][col];
      Chains<V>::read(sum, to);
#pragma unroll 8
      for (int j = 0; j < at; j++) {
        float w[C], a = m(i, j);
        Chains<V>::read(w, &x[row(j)][col]);
#pragma unroll
        for (int c = 0; c < C; c++) sum[c] = fmaf(a, w[c], sum[c]);
      }
#pragma unroll
      for (int c = 0; c < C; c++) to[c] = sum[c];
    }
    __syncthreads();
    if (threadIdx.x < V) {
      float v[kSolve];
#pragma unroll
      for (int i = 0; i < kSolve; i++)
        if (i < rows) v[i] = x[row(at + i)][threadIdx.x];
#pragma unroll
      for (int j = 0; j < kSolve; j++)
#pragma unroll
        for (int i = j + 1; i < kSolve; i++)
          if (i < rows) v[i] = fmaf(m(at + i, at + j), v[j], v[i]);
#pragma unroll
      for (int i = 0; i < kSolve; i++)
        if (i < rows) x[row(at + i)][threadIdx.x] = v[i];
    }
    __syncthreads();
  }
}

// SCANS declares a scan for each number of values and storage type. Where there are more blocks than multiprocessors,
// which have 64 values each, two share one.
#define SCAN_OF(name, V, parameters, arguments)                                                                        \
  extern "C" __global__ void __launch_bounds__(kThreads, V / 64 + 1) name##_##V##_f32 parameters(float) {              \
    name<float, V> arguments;                                                                                          \
  }                                                                                                                    \
  extern "C" __global__ void __launch_bounds__(kThreads, V / 64 + 1) name##_##V##_bf16 parameters(u16) {               \
    name<u16, V> arguments;                                                                                            \
  }
#define SCANS(name, parameters, arguments)   \
  SCAN_OF(name, 64, parameters, arguments)   \
  SCAN_OF(name, 32, parameters, arguments)   \
  SCAN_OF(name, 16, parameters, arguments)
