// What the scans of many or of short sequences share: chunk_scan from the first chunk to the last, chunk_unroll back. A
// block has V values of a head, with the state [dim, V] in shared memory, and all of its threads go from one product to
// the next. Where sequences are few, V is small, so that every multiprocessor has a block (chunks.go); if they are long
// too, their scans are those of teams.cuh.
//
// What a chunk would wait for: 8 matrices of 64 x 64 (dim 128: keys, -M, queries, P, keys again), each a trip to L2 or
// beyond. They come by cp.async through a ring of slabs, kSlabs-1 ahead, across chunks too: a chunk waits for its
// products. Bound of a block and chunk: 64*V*(3*dim + 96) fma of fp32 at 128 a clock.
#pragma once
#include "scan_solve.cuh"

constexpr int kSlabs = 3, kAcross = kThreads / 16;
constexpr int kFloats = kSlabs * kChunk * (kSlabStride + 3);  // of the ring, in shared memory

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
      part(cut, next_part).bring(slabs[brought], threadIdx.x, kThreads);
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
