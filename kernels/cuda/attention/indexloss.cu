// IndexLoss, from dots that list_dots leaves: F32 [rows of the call, heads, top_k].
//
//	s_e = sum over heads ascending, from +0, of w_h * max(dot_h*c, +0); then, trees over the row's entries, a block
//	for a row:
//	p_e = t_e/tree(t), m = max(s), y_e = Exp2((s_e-m)*log2e), z = tree(y), loss = tree(p_e*(Ln(p_e) - ((s_e-m) -
//	Ln(z)))), the term +0 where p_e < 2^-126,
//	ds_e = y_e*(1/z) - p_e
//
// Every operation rounds once; nothing is stored in bf16. Bound: the bytes of the dots, 4*heads*entries a row, written
// and read, and the flops of list_dots, 2*heads*D a pair of each tile's union.
#include "queries.cuh"

// lanes_of gives each warp of a block of kLanes threads the lanes of a tree that the threads hold.
__device__ inline Lanes lanes_of(float own) {
  __shared__ float all[kLanes];
  Lanes lanes;
  __syncthreads();
  all[threadIdx.x] = own;
  __syncthreads();
#pragma unroll
  for (int j = 0; j < kLanes / kWarp; j++) lanes.v[j] = all[warp_lane() + j * kWarp];
  return lanes;
}

__device__ inline float largest_of(float own) {
  Lanes lanes = lanes_of(own);
  float m = lanes.v[0];
#pragma unroll
  for (int j = 1; j < kLanes / kWarp; j++) m = larger(m, lanes.v[j]);
#pragma unroll
  for (int i = kWarp / 2; i > 0; i >>= 1) m = larger(m, __shfl_xor_sync(~0u, m, i));
  return m;
}

// index_loss: thread l of a block has entries l, l+256, ... of its row, lane l of the trees. Their scores take the
// place of the first head's dots; target becomes ds.
extern "C" __global__ void __launch_bounds__(kLanes)
    index_loss(float* loss, float* target, float* dots, const float* weights, const Query* queries, int heads,
               int top_k, int ts, int ws, float c) {
  constexpr float kNormal = 1.17549435e-38f;  // 2^-126, where ln_def begins
  Query q = queries[blockIdx.x];
  int n = q.keys(top_k);
  float *s = dots + (size_t)blockIdx.x * heads * top_k, *t = target + (size_t)q.row * ts, m = -infinity(), sum = 0.f;
  const float* w = weights + (size_t)q.row * ws;
  for (int e = threadIdx.x; e < n; e += kLanes) {
    float score = 0.f;
#pragma unroll 8
    for (int h = 0; h < heads; h++) score = score + w[h] * larger(s[(size_t)h * top_k + e] * c, 0.f);
    s[e] = score, m = larger(m, score), sum = sum + t[e];
  }
  float total = lanes_of(sum).sum();
  m = largest_of(m), sum = 0.f;
  for (int e = threadIdx.x; e < n; e += kLanes) sum = sum + exp2_sub(s[e], kLog2E, m);
  float z = lanes_of(sum).sum(), inverse = 1.f / z, ln = ln_def(z);
  sum = 0.f;
  for (int e = threadIdx.x; e < n; e += kLanes) {
    float p = t[e] / total, y = exp2_sub(s[e], kLog2E, m);
    if (p >= kNormal) sum = sum + p * (ln_def(p) - ((s[e] - m) - ln));
    t[e] = y * inverse - p;
  }
  sum = lanes_of(sum).sum();
  if (threadIdx.x == 0) loss[q.row] = sum;
}
