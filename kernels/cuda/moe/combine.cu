// Combine: sum[t] = round(sum over slots k ascending, from +0, of weights[t,k]*y[rowOf[t,k]]), each product rounded;
// weights nil: of y alone; with weights, products and sums are rounded on the way by Definition.Combine. out[t] =
// round(residual[t] + sum[t]), or residual nil: sum[t]. A thread for eight columns of a token. Its gradient, of pairs
// p = t*k + slot with r = rowOf[p]: dy[r] = round(weights[p]*dout[t]) and dweights[p] = tree(dout[t]*y[r]). Of an owner
// of the rows from `from` on y and dy are those, pairs whose rows lie elsewhere are left out, and dweights are by row.
// A block has pairs in order, so that the slots of a token read its dout once, and each warp one of those that count.
// CombinePeers is Combine, and TakePeers a gather, of rows in the memory of several cards; GatherPeers puts such rows
// below one another.
// Bound: the bytes of y, residual and out, or of dout, y and dy; of what other cards have, by the link to them.
#include "rows.cuh"

constexpr int kAhead = 8;  // slots whose rows are all on their way before one is added

// sum_slots adds the slots of a token up, eight columns of the rows y(row); WHOLE: they are one access in every row.
template <bool WHOLE, class T, class Row>
__device__ inline void sum_slots(float* sum, Row y, const float* weights, const int* row_of, int left, int k) {
  for (int first = 0; first < k; first += kAhead) {
    const T* row[kAhead];
    float weight[kAhead];
    Stored8<T> stored[kAhead];
#pragma unroll
    for (int s = 0; s < kAhead; s++) {
      int slot = min(first + s, k - 1);  // the last again where there is none: that costs less than to ask
      row[s] = y(row_of[slot]);
      weight[s] = weights ? weights[slot] : 1.f;
    }
#pragma unroll
    for (int s = 0; s < kAhead; s++) WHOLE ? stored[s].load_whole(row[s]) : stored[s].load(row[s], left);
#pragma unroll
    for (int s = 0; s < kAhead; s++) {
      float v[kEight];
      stored[s].values(v);
#pragma unroll
      for (int j = 0; j < kEight; j++) {
        float to = weights ? round_combine(sum[j] + round_combine(v[j] * weight[s])) : sum[j] + v[j];
        sum[j] = first + s < k ? to : sum[j];  // a branch here would be one before the next row is read
      }
    }
  }
}

// Residual is eight columns of a token that the rounded sum is added to, on their way while slots are read. Of a null
// pointer there are none.
template <class T>
struct Residual {
  Stored8<T> stored;
  bool adds;

  __device__ Residual(const T* rows, size_t at, int left) : adds(rows) {
    if (adds) stored.load(rows + at, left);
  }
  __device__ void add(float* sum) const {
    if (!adds) return;
    if constexpr (sizeof(T) == 2) {
      Stored8<T> rounded;
      u32 w[4];
      narrow_n<kEight>(sum, w);
      rounded.q = make_uint4(w[0], w[1], w[2], w[3]);
      rounded.values(sum);
    }
    float v[kEight];
    stored.values(v);
#pragma unroll
    for (int j = 0; j < kEight; j++) sum[j] = v[j] + sum[j];
  }
};

template <class T>
__device__ void combine(T* out, const T* residual, const T* y, const float* weights, const int* row_of, int rows,
                        int cols, int k, int os, int rs, int ys) {
  Piece at(cols);
  if (at.row >= rows) return;
  int left = cols - at.col;
  Residual<T> other(residual, (size_t)at.row * rs + at.col, left);
  float sum[kEight] = {0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f};
  y += at.col, row_of += at.row * k, weights = weights ? weights + at.row * k : nullptr;
  auto row = [=](size_t r) { return y + r * ys; };
  if (whole(y, left) && ys % kEight == 0) sum_slots<true, T>(sum, row, weights, row_of, left, k);
  else sum_slots<false, T>(sum, row, weights, row_of, left, k);
  other.add(sum);
  store8(out + (size_t)at.row * os + at.col, left, sum);
}
#define COMBINE(T)                                                                                                  \
  (T * out, const T* residual, const T* y, const float* weights, const int* row_of, int rows, int cols, int k, int os, \
   int rs, int ys)
KERNELS(combine, COMBINE, (out, residual, y, weights, row_of, rows, cols, k, os, rs, ys))

constexpr int kPeers = 16;

// Parts are tensors in the memory of several cards: the address of each, and where its rows begin.
struct Parts {
  unsigned long long at[kPeers];
  int first[kPeers], n;
};

// Owners are at most N parts that have some rows of a tensor: row r is that of the last one whose first row,
// offsets[first], is at most r, at the address that it would have if the part had all rows.
template <int N>
struct Owners {
  const Parts& parts;
  int begin[N];

  __device__ Owners(const Parts& p, const int* offsets) : parts(p) {
#pragma unroll
    for (int i = 0; i < N; i++) begin[i] = i < parts.n ? offsets[parts.first[i]] : 0x7fffffff;
  }
  __device__ size_t at(int r) const {
    size_t part = parts.at[0];
#pragma unroll
    for (int i = 1; i < N; i++) part = r >= begin[i] ? parts.at[i] : part;
    return part;
  }
  __device__ bool aligned() const {
    unsigned long long all = 0;
#pragma unroll
    for (int i = 0; i < N; i++) all |= i < parts.n ? parts.at[i] : 0;
    return (all & 15) == 0;
  }
};

template <int N, class T>
__device__ void combine_owned(const Parts& parts, T* out, const T* residual, const int* offsets, const float* weights,
                              const int* row_of, int rows, int cols, int k, int os, int rs, int ys) {
  Piece at(cols);
  if (at.row >= rows) return;
  int left = cols - at.col;
  Residual<T> other(residual, (size_t)at.row * rs + at.col, left);
  Owners<N> owners(parts, offsets);
  float sum[kEight] = {0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f};
  row_of += at.row * k, weights = weights ? weights + at.row * k : nullptr;
  auto row = [&](size_t r) { return (const T*)owners.at(r) + r * ys + at.col; };
  if (owners.aligned() && ys % kEight == 0 && left >= kEight) sum_slots<true, T>(sum, row, weights, row_of, left, k);
  else sum_slots<false, T>(sum, row, weights, row_of, left, k);
  other.add(sum);
  store8(out + (size_t)at.row * os + at.col, left, sum);
}

// combine_peers: two cards, the usual case, look for a row's owner once and not fifteen times.
template <class T>
__device__ void combine_peers(const Parts& parts, T* out, const T* residual, const int* offsets, const float* weights,
                              const int* row_of, int rows, int cols, int k, int os, int rs, int ys) {
  if (parts.n <= 2) combine_owned<2>(parts, out, residual, offsets, weights, row_of, rows, cols, k, os, rs, ys);
  else combine_owned<kPeers>(parts, out, residual, offsets, weights, row_of, rows, cols, k, os, rs, ys);
}
#define COMBINE_PEERS(T)                                                                                           \
  (const __grid_constant__ Parts parts, T* out, const T* residual, const int* offsets, const float* weights,       \
   const int* row_of, int rows, int cols, int k, int os, int rs, int ys)
KERNELS(combine_peers, COMBINE_PEERS, (parts, out, residual, offsets, weights, row_of, rows, cols, k, os, rs, ys))

// take_peers: a thread for eight columns of a row. The gradients of routing weights, which come by it, have one.
template <class T>
__device__ void take_peers(const Parts& parts, T* out, const int* offsets, const int* row_of, int rows, int cols,
                           int os, int ys) {
  Piece at(cols);
  if (at.row >= rows) return;
  size_t r = row_of[at.row];
  const T* y = (const T*)Owners<kPeers>(parts, offsets).at(r);
  move8(out + (size_t)at.row * os + at.col, y + r * ys + at.col, cols - at.col);
}
#define TAKE_PEERS(T)                                                                                             \
  (const __grid_constant__ Parts parts, T* out, const int* offsets, const int* row_of, int rows, int cols, int os, \
   int ys)
KERNELS(take_peers, TAKE_PEERS, (parts, out, offsets, row_of, rows, cols, os, ys))

// gather_peers: a part's rows begin at row first of out; a warp for a part of a row.
template <class T>
__device__ void gather_peers(const Parts& parts, T* out, int rows, int cols) {
  int r = warp_row(), first = 0;
  if (r >= rows) return;
  size_t from = parts.at[0];
#pragma unroll
  for (int i = 1; i < kPeers; i++)
    if (i < parts.n && r >= parts.first[i]) from = parts.at[i], first = parts.first[i];
  move_part(out + (size_t)r * cols, (const T*)from + (size_t)(r - first) * cols, blockIdx.y, cols);
}
#define GATHER_PEERS(T) (const __grid_constant__ Parts parts, T* out, int rows, int cols)
KERNELS(gather_peers, GATHER_PEERS, (parts, out, rows, cols))

constexpr int kPairs = kWarp;  // of a block of combine_backward

template <class T>
__device__ void combine_backward(T* dy, float* dweights, const T* dout, const T* y, const float* weights,
                                 const int* row_of, int pairs, int from, int rows, int cols, int k, int dys, int ds,
                                 int ys) {
  int lane = warp_lane(), first = blockIdx.x * kPairs, at = first + lane, warps = blockDim.x / kWarp;
  int r = at < pairs ? row_of[at] - max(from, 0) : -1;
  u32 here = __ballot_sync(~0u, (u32)r < (u32)rows), before = here & ((1u << lane) - 1);
  u32 own = here & __ballot_sync(~0u, __popc(before) % warps == threadIdx.x / kWarp);
  for (; own; own &= own - 1) {
    int j = __ffs(own) - 1, p = first + j, row = __shfl_sync(~0u, r, j);
    const T *d = dout + (size_t)(p / k) * ds, *v = y + (size_t)row * ys;
    T* to = dy + (size_t)row * dys;
    float weight = weights[p];
    float s = tree8(cols, [&](int c, int left, float* x) {
      float b[kEight], scaled[kEight];
      load8(d + c, left, x);
      load8(v + c, left, b);
#pragma unroll
      for (int i = 0; i < kEight; i++) scaled[i] = x[i] * weight, x[i] = x[i] * b[i];
      store8(to + c, left, scaled);
    });
    if (lane == 0) dweights[from < 0 ? p : row] = s;
  }
}
#define COMBINE_BACKWARD(T)                                                                                          \
  (T * dy, float* dweights, const T* dout, const T* y, const float* weights, const int* row_of, int pairs, int from, \
   int rows, int cols, int k, int dys, int ds, int ys)
KERNELS(combine_backward, COMBINE_BACKWARD,
        (dy, dweights, dout, y, weights, row_of, pairs, from, rows, cols, k, dys, ds, ys))
