// Blocks of threads that have the heads of one run of rows or more: G threads for U heads at a time. What each head of
// a run adds to the gradient of a weight that the heads share is a chain of its own, in registers; the block adds the
// heads up.
#pragma once
#include "rows.cuh"

constexpr int kThreads = 256;  // of a block

template <int G, int U>
struct RunHeads {
  static constexpr int kGroups = kThreads / G;
  int count, heads, across, down, group = threadIdx.x / G, from, end;

  // Runs begin at the rows runs[0 ... count].
  __device__ RunHeads(const int* runs, int count, int heads) : count(count), heads(heads) {
    across = min(kGroups, (heads + U - 1) / U), down = kGroups / across;
    int run = blockIdx.x * down + group / across;
    bool in = group / across < down && run < count;
    from = in ? runs[run] : 0, end = in ? runs[run + 1] : 0;
  }

  // Batches of heads follow each other; first is the first head of the threads at hand.
  __device__ int batch() const { return across * U; }
  __device__ int first(int batch) const { return batch + group % across * U; }

  // add adds the chains of a batch, parts [kGroups*U, dim] in shared memory, to sums F32 [count, dim]. All of the block
  // calls it.
  __device__ void add(float* sums, const float* parts, int dim, int batch) const {
    __syncthreads();
    for (int c = threadIdx.x; c < down * dim; c += kThreads) {
      int own = c / dim, run = blockIdx.x * down + own;
      if (run >= count) break;
      float* to = sums + (size_t)run * dim + c % dim;
      float total = batch == 0 ? 0.f : *to;
#pragma unroll 8
      for (int h = 0; h < min(across * U, heads - batch); h++)
        total = total + parts[(own * across * U + h) * dim + c % dim];
      *to = total;
    }
    __syncthreads();
  }
};
