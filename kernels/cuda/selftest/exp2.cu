// ex2h_checksum: the sum of kernels.Exp2HChecksum, by which a card passes the check of exp2 "ex2h". *sum starts at 0.
// Any grid; bound: none, it is 2^24 additions.
#include "definition.cuh"

// mix is the finalizer of SplitMix64.
__device__ inline u64 mix(u64 z) {
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ z >> 27) * 0x94d049bb133111ebull;
  return z ^ z >> 31;
}

// probe is the i-th argument: the grid of 2^-23 in [-1, 0], then negative numbers and NaN of any bits.
__device__ inline float probe(u32 i) {
  const u32 grid = 1u << 23;
  return i <= grid ? -(float)i / (float)grid : __uint_as_float(i * 0x9e3779b1u | 1u << 31);
}

KERNEL(ex2h_checksum, u64* sum) {
  u64 s = 0;
  for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i <= 1u << 24; i += gridDim.x * blockDim.x)
    s += mix((u64)i << 32 | __float_as_uint(ex2h(probe(i))));
#pragma unroll
  for (int d = 16; d > 0; d >>= 1) s += __shfl_xor_sync(~0u, s, d);
  if ((threadIdx.x & 31) == 0) atomicAdd(sum, s);
}
