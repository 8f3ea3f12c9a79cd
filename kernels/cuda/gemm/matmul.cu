// MatMul, MatMulT and WeightGrad by the dot step tc16: one accumulator for each output, k ascending in steps of 16,
// terms one after the other, the last step of each filled with zeros; one rounding at the end, or none into F32. A
// block computes 128 x 128 outputs, 8 warps of 64 x 32, from three stages of 32 k in shared memory. Bound: 2*M*N*K
// flops of the tensor cores, of which mma.sync reaches some 60%: for cards without wgmma, and for operands that TMA
// cannot copy.
//   nt: out[m,n] = chain of x[m,k]*w[n,k]; nn: out[m,k] = chain of x[m,n]*w[n,k]; weight_grad: dw[n,k] += chain over
//   the rows of each segment of dy[row,n]*x[row,k]
#include "mma.cuh"

constexpr int kTile = 128, kDepth = 32, kStages = 3, kThreads = 256;
constexpr int kAlong = kDepth + 8, kAcross = kTile + 8;  // padded rows of shared memory: along k, or across it
// elements of an operand in a stage, the larger of both layouts
constexpr int kPart = kTile * kAlong;

// Operand is one side of a product: element (i, k) at p[i*ld + k] where ALONG, else at p[k*ld + i]; i below n counts.
struct Operand {
  const u16* p;
  long long ld;
  int n;
};

// fetch brings k [from, from + 32) of a tile into a stage; what lies beyond n or k is zero.
template <bool ALONG, bool VECTOR>
__device__ inline void fetch(u16* stage, const Operand& x, int from, int k) {
  constexpr int kRows = ALONG ? kTile : kDepth, kChunks = (ALONG ? kDepth : kTile) / 8;
  for (int c = threadIdx.x; c < kRows * kChunks; c += kThreads) {
    int r = c / kChunks, at = c % kChunks * 8;
    int row = ALONG ? r : from + r, col = ALONG ? from + at : at;
    int left = (ALONG ? k : x.n) - col;
    bool in = row < (ALONG ? x.n : k) && left > 0;
    u16* to = stage + r * (ALONG ? kAlong : kAcross) + at;
    const u16* src = x.p + (in ? (long long)row * x.ld + col : 0);
    if (VECTOR) {
      copy16(to, src, in ? min(left, 8) * 2 : 0);
    } else {
      for (int j = 0; j < 8; j++) to[j] = in && j < left ? src[j] : (u16)0;
    }
  }
}

// Tile is the accumulators of a warp: 4 x 4 pieces of 16 x 8.
struct Tile {
  float c[4][4][4];
};

template <bool AK, bool BK>
__device__ inline void multiply(Tile& t, const u16* as, const u16* bs) {
  int lane = warp_lane(), warp = threadIdx.x / kWarp, m0 = warp / 4 * 64, n0 = warp % 4 * 32;
#pragma unroll
  for (int k = 0; k < kDepth; k += 16) {
    u32 a[4][4], b[2][4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
      int m = m0 + i * 16;
      if (AK) load4(a[i], as + (m + (lane & 15)) * kAlong + k + (lane >> 4) * 8);
      else load4_transposed(a[i], as + (k + (lane & 7) + (lane >> 4) * 8) * kAcross + m + (lane >> 3 & 1) * 8);
    }
#pragma unroll
    for (int j = 0; j < 2; j++) {
      int n = n0 + j * 16;
      if (BK) load4(b[j], bs + (n + (lane & 7) + (lane >> 4) * 8) * kAlong + k + (lane >> 3 & 1) * 8);
      else load4_transposed(b[j], bs + (k + (lane & 15)) * kAcross + n + (lane >> 4) * 8);
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
      for (int j = 0; j < 4; j++) step(t.c[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
  }
}

// chain continues the accumulators over k products.
template <bool AK, bool BK, bool VECTOR>
__device__ inline void chain(Tile& t, const Operand& a, const Operand& b, int k, u16* shared) {
  int k_steps = (k + kDepth - 1) / kDepth;
#pragma unroll
  for (int s = 0; s < kStages - 1; s++) {
    if (s < k_steps) {
      fetch<AK, VECTOR>(shared + 2 * s * kPart, a, s * kDepth, k);
      fetch<BK, VECTOR>(shared + (2 * s + 1) * kPart, b, s * kDepth, k);
    }
    commit();
  }
  for (int i = 0; i < k_steps; i++) {
    wait<kStages - 2>();
    __syncthreads();
    int ahead = i + kStages - 1;
    if (ahead < k_steps) {
      int s = ahead % kStages;
      fetch<AK, VECTOR>(shared + 2 * s * kPart, a, ahead * kDepth, k);
      fetch<BK, VECTOR>(shared + (2 * s + 1) * kPart, b, ahead * kDepth, k);
    }
    commit();
    int s = i % kStages;
    multiply<AK, BK>(t, shared + 2 * s * kPart, shared + (2 * s + 1) * kPart);
  }
  __syncthreads();
}

// each visits the outputs of the thread: f(row, column, value) inside the tile.
template <class F>
__device__ inline void each(Tile& t, F f) {
  int lane = warp_lane(), warp = threadIdx.x / kWarp;
#pragma unroll
  for (int i = 0; i < 4; i++)
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
      for (int v = 0; v < 4; v++)
        f(warp / 4 * 64 + i * 16 + lane / 4 + v / 2 * 8, warp % 4 * 32 + j * 8 + lane % 4 * 2 + v % 2, t.c[i][j][v]);
}

// Term is one piece of the chain, for columns [from, to) of out: X with its row stride, W with its row stride and the
// distance of its groups. Tiles lie in such a range or outside it. Where heads are interleaved, `head_stride` is the
// distance in X from a row of one head to that of the next; a block's group is blockIdx.z.
struct Term {
  const u16 *x, *w;
  long long ldx, ldw, group, k, head_stride;
  int from, to;
};

extern __shared__ u16 shared[];

// rows_of finds the group and the rows of a block's tile; without groups all rows are one.
__device__ inline bool rows_of(const int* offsets, int groups, int segments, int m, int& group, int& from, int& to) {
  int tile = blockIdx.y;
  group = 0, from = tile * kTile, to = m;
  if (!offsets) return from < m;
  for (; group < groups; group++) {
    int begin = offsets[group * segments];
    to = offsets[(group + 1) * segments];
    int count = (to - begin + kTile - 1) / kTile;
    if (tile < count) {
      from = begin + tile * kTile;
      return true;
    }
    tile -= count;
  }
  return false;
}

template <bool BK, bool VECTOR, class T>
__device__ inline void matmul(T* out, long long ldo, const int* offsets, int groups, int segments, int m, int begin,
                              int n, const Term* terms, int count, long long head_stride, float scale) {
  int group, from, to, own = blockIdx.z;
  if (!rows_of(offsets, groups, segments, m, group, from, to)) return;
  int col = begin + blockIdx.x * kTile;
  out += own * head_stride;
  Tile t = {};
  for (int i = 0; i < count; i++) {
    const Term& e = terms[i];
    if (col < e.from || col >= e.to) continue;
    Operand a = {e.x + own * e.head_stride + from * e.ldx, e.ldx, min(kTile, to - from)};
    Operand b = {e.w + (group + own) * e.group + (BK ? (col - e.from) * e.ldw : col), e.ldw, min(kTile, n - col)};
    chain<true, BK, VECTOR>(t, a, b, (int)e.k, shared);
  }
  each(t, [&](int i, int j, float v) {
    if (from + i >= to || col + j >= n) return;
    if (scale != 1.f) v = (sizeof(T) == 2 ? widen(narrow(v)) : v) * scale;
    store(out, (from + i) * ldo + col + j, v);
  });
}

//launch:family product nt_ nn_
// A launch computes columns [begin, n) of out.
#define MATMUL(name, BK, VECTOR, T)                                                                                \
  KERNEL(name, T* out, long long ldo, const int* offsets, int groups, int segments, int m, int begin, int n, Term t0, \
         Term t1, Term t2, Term t3, Term t4, int count, long long head_stride, float scale) {                      \
    Term terms[] = {t0, t1, t2, t3, t4};                                                                           \
    matmul<BK, VECTOR>(out, ldo, offsets, groups, segments, m, begin, n, terms, count, head_stride, scale);           \
  }
MATMUL(nt_vector_f32, true, true, float)
MATMUL(nt_vector_bf16, true, true, u16)
MATMUL(nt_any_f32, true, false, float)
MATMUL(nt_any_bf16, true, false, u16)
MATMUL(nn_vector_f32, false, true, float)
MATMUL(nn_vector_bf16, false, true, u16)
MATMUL(nn_any_f32, false, false, float)
MATMUL(nn_any_bf16, false, false, u16)

// weight_grad is of group blockIdx.z. Where groups are interleaved (in dy by head_stride_y elements from one group to
// the next, in x by head_stride_x), all have the first's offsets, and a weight that they share is of `sharing` groups:
// a segment's sum goes over its rows of each group. It starts from +0 and is added to dw, or goes on from dw. A fresh
// dw is +0 before.
template <bool VECTOR>
__device__ inline void weight_grad(float* dw, const u16* dy, const u16* x, long long ldy, long long ldx,
                                   const int* offsets, int segments, int n, int k, int sharing, int goes_on, int fresh,
                                   long long head_stride_y, long long head_stride_x) {
  int row = blockIdx.y * kTile, col = blockIdx.x * kTile, e = blockIdx.z, first = head_stride_y ? 0 : e * segments;
  float* to = dw + (long long)e * n * k + (long long)row * k + col;
  auto in = [&](int i, int j) { return row + i < n && col + j < k; };
  Tile none;
  if (fresh)
    each(none, [&](int i, int j, float) {
      if (in(i, j)) to[(long long)i * k + j] = 0.f;
    });
  for (int s = first; s < first + segments; s++) {
    long long from = offsets[s];
    int rows = offsets[s + 1] - (int)from;
    if (rows == 0) continue;
    Tile t;
    each(t, [&](int i, int j, float& v) { v = goes_on && in(i, j) ? to[(long long)i * k + j] : 0.f; });
    for (int own = e; own < e + sharing; own++) {
      const u16 *a = dy + own * head_stride_y + from * ldy + row, *b = x + own * head_stride_x + from * ldx + col;
      chain<false, false, VECTOR>(t, {a, ldy, min(kTile, n - row)}, {b, ldx, min(kTile, k - col)}, rows, shared);
    }
    each(t, [&](int i, int j, float v) {
      float* at = to + (long long)i * k + j;
      if (in(i, j)) *at = goes_on ? v : *at + v;
    });
  }
}

#define WEIGHT_GRAD(name, VECTOR)                                                                                   \
  KERNEL(name, float* dw, const u16* dy, const u16* x, long long ldy, long long ldx, const int* offsets,            \
         int segments, int n, int k, int sharing, int goes_on, int fresh, long long head_stride_y,                  \
         long long head_stride_x) {                                                                                 \
    weight_grad<VECTOR>(dw, dy, x, ldy, ldx, offsets, segments, n, k, sharing, goes_on, fresh, head_stride_y,       \
                        head_stride_x);                                                                             \
  }
WEIGHT_GRAD(weight_grad_vector, true)
WEIGHT_GRAD(weight_grad_any, false)
