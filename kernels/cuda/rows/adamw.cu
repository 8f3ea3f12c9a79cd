// SumSquares: a warp for the tree of each block of 4096 elements of a group, then a thread for each lane of the tree of
// the group's blocks. Bound: the bytes of t. Many tensors are one launch of each: of small ones a launch is most.
//   On an H200, 2^28 elements: 243 us, 104% of a copy's bandwidth. By one warp the tree of 65,536 blocks takes 77 us of
//   317, now 6.
// AdamW: a thread for four elements. Bound: 16 bytes read and 16 written an element, 2 more for bf16 weights.
//   On an H200, 2^28 bf16 weights: 2.21 ms, 97% of a copy. With one element a thread: 84%, and 70% where they are
//   zeros, which go the long way through the card's divisions and root.
#include "team.cuh"

constexpr int kSumBlock = 4096;
constexpr int kMostTensors = 32;  // of a launch

// holder is the last of `count` tensors whose first[i] is at most `at`.
__device__ inline int holder(const int* first, int count, int at) {
  int i = 0;
#pragma unroll
  for (int step = kMostTensors / 2; step > 0; step /= 2)
    if (i + step < count && first[i + step] <= at) i += step;
  return i;
}

// Squares are tensors with groups of n elements, which have `each` blocks of their own: those of tensor i begin with
// block first[i] of all, its groups with group[i]; the last entries are how many there are.
struct Squares {
  unsigned long long x[kMostTensors], out[kMostTensors];
  long long n[kMostTensors];
  int each[kMostTensors], first[kMostTensors + 1], group[kMostTensors + 1], count;
};

KERNEL(square_blocks, const __grid_constant__ Squares all, float* sums) {
  int b = warp_row();
  if (b >= all.first[all.count]) return;
  int tensor = holder(all.first, all.count, b), own = b - all.first[tensor], each = all.each[tensor];
  long long n = all.n[tensor], from = (long long)(own % each) * kSumBlock;
  int count = (int)min((long long)kSumBlock, n - from);
  const float* x = (const float*)all.x[tensor] + own / each * n + from;
  float s;
  if (count == kSumBlock && whole(x, count)) {
    s = tree8(kSumBlock, [&](int i, int, float* v) {
      Stored8<float> own;
      own.load_whole(x + i);
#pragma unroll
      for (int j = 0; j < kEight; j++) v[j] = own.q[j] * own.q[j];
    });
  } else {
    s = tree(count, [&](int i) { return x[i] * x[i]; });
  }
  if (warp_lane() == 0) sums[b] = s;
}

// tree_of is the tree of n sums for each group, by a block with a thread for each lane, which waits for memory once in
// kMany sums. Those past the end are +0, which changes no sum: none is -0.
KERNEL(tree_of, const __grid_constant__ Squares of, const float* sums) {
  constexpr int kMany = 32;
  __shared__ float all[kLanes];
  int tensor = holder(of.group, of.count, blockIdx.x), group = blockIdx.x - of.group[tensor], n = of.each[tensor];
  sums += of.first[tensor] + (size_t)group * n;
  float s = 0.f;
  for (int from = threadIdx.x; from < n; from += kMany * kLanes) {
    float v[kMany];
#pragma unroll
    for (int k = 0; k < kMany; k++) v[k] = from + k * kLanes < n ? sums[from + k * kLanes] : 0.f;
#pragma unroll
    for (int k = 0; k < kMany; k++) s = s + v[k];
  }
  all[threadIdx.x] = s;
  __syncthreads();
  if (threadIdx.x >= kWarp) return;
  s = tree(kLanes, [&](int i) { return all[i]; });
  if (threadIdx.x == 0) ((float*)of.out[tensor])[group] = s;
}

constexpr int kClippers = 256;  // threads of clip_scale

// clip_scale: norm = scale*sqrt of the sums, ascending, in fp64; a factor of scale*clip/(norm + 1e-6) where the norm is
// larger than clip, scale elsewhere, NaN where the norm is not finite. A block brings many sums together, its first
// thread adds.
KERNEL(clip_scale, float* out, const float* sums, double scale, double clip, int n) {
  constexpr int kMany = 4 * kClippers;
  __shared__ float tile[kMany];
  double sum = 0;
  for (int from = 0; from < n; from += kMany) {
    int many = min(kMany, n - from);
    __syncthreads();
    for (int i = threadIdx.x; i < many; i += kClippers) tile[i] = sums[from + i];
    __syncthreads();
    if (threadIdx.x == 0)
#pragma unroll 16
      for (int i = 0; i < many; i++) sum = sum + (double)tile[i];
  }
  if (threadIdx.x != 0) return;
  double norm = scale * sqrt(sum), factor = scale;
  if (!(norm - norm == 0)) factor = 0.0 / 0.0;
  else if (clip > 0 && norm > clip) factor = scale * clip / (norm + 1e-6);
  out[0] = (float)norm, out[1] = (float)factor;
}

// Step is what happens to an element.
struct Step {
  float beta1, rest1, beta2, rest2, decay, lr, eps, corr1, corr2;
  __device__ void take(float& x, float& m, float& v, float g) const {
    m = beta1 * m + rest1 * g;
    v = beta2 * v + (rest2 * g) * g;
    x = x - decay * x;
    x = x - lr * ((m / corr1) / (sqrtf(v / corr2) + eps));
  }
};

constexpr int kFour = 4;

template <int N, class T>
__device__ inline void read(float* v, const T* p) {
  Columns<T, N> q;
  q.load(p, true);
  q.values(v);
}
template <int N, class T>
__device__ inline void write(T* p, const float* v) {
  Columns<T, N> q;
  q.round(v);
  q.store(p);
}

template <class T>
struct Optimizer {
  T* w;
  float *master, *m, *v, *grad;
  Step step;

  // fours reports whether four elements are one access of every tensor.
  __device__ bool fours() const {
    return (((size_t)master | (size_t)m | (size_t)v | (size_t)grad) % 16 | (size_t)w % (kFour * sizeof(T))) == 0;
  }

  // update takes a step with N elements, all of which are on their way before one is used.
  template <int N>
  __device__ void update(long long i, float factor) const {
    float x[N], m1[N], v1[N], g[N];
    read<N>(g, grad + i), read<N>(m1, m + i), read<N>(v1, v + i), read<N>(x, master + i);
#pragma unroll
    for (int j = 0; j < N; j++) step.take(x[j], m1[j], v1[j], g[j] * factor), g[j] = 0.f;
    write<N>(m + i, m1), write<N>(v + i, v1), write<N>(grad + i, g), write<N>(master + i, x);
    if ((void*)w != (void*)master) write<N>(w + i, x);
  }
};

// A block has four elements for each thread, which go one by one where there are fewer or four are not one access.
template <class T>
__device__ inline void update_block(const Optimizer<T>& o, float scale, long long n, int block) {
  long long size = blockDim.x * kFour, from = block * size;
  if (from + size <= n && o.fours()) {
    o.template update<kFour>(from + threadIdx.x * kFour, scale);
    return;
  }
#pragma unroll 1
  for (long long i = from + threadIdx.x; i < min(from + size, n); i += blockDim.x) o.template update<1>(i, scale);
}

// Moments are tensors of n elements with their state; those of tensor i are the blocks from first[i] on.
struct Moments {
  unsigned long long w[kMostTensors], master[kMostTensors], m[kMostTensors], v[kMostTensors], grad[kMostTensors];
  long long n[kMostTensors];
  int first[kMostTensors], count;
};

template <class T>
__device__ inline void adamw(const Moments& all, const float* factor, Step step) {
  float scale = factor[0];
  if (scale != scale) return;
  int i = holder(all.first, all.count, blockIdx.x);
  Optimizer<T> o{(T*)all.w[i], (float*)all.master[i], (float*)all.m[i], (float*)all.v[i], (float*)all.grad[i], step};
  update_block(o, scale, all.n[i], blockIdx.x - all.first[i]);
}
#define ADAMW(T)                                                                                                    \
  (const __grid_constant__ Moments all, const float* factor, float beta1, float rest1, float beta2, float rest2,    \
   float decay, float lr, float eps, float corr1, float corr2)
KERNELS(adamw, ADAMW, (all, factor, {beta1, rest1, beta2, rest2, decay, lr, eps, corr1, corr2}))
