// The dot step tc16 on tensor cores: mma.sync m16n8k16 is one step for each of 16 x 8 accumulators (equal to wgmma's
// and cuBLAS's, measured).
#pragma once
#include "definition.cuh"

// step: c += a * b for a [16 rows, 16 k], b [16 k, 8 columns]. Thread t of the warp has c of rows t/4 and t/4 + 8,
// columns t%4*2 and the next.
__device__ inline void step(float c[4], const u32 a[4], u32 b0, u32 b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ inline u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

// Four 8x8 matrices: thread 8j + i gives the address of row i of matrix j.
__device__ inline void load4(u32 r[4], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
}
__device__ inline void load4_transposed(u32 r[4], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
}
__device__ inline void load4(u32 r[4], const void* p) { load4(r, shared_address(p)); }
__device__ inline void load4_transposed(u32 r[4], const void* p) { load4_transposed(r, shared_address(p)); }

// copy16 copies `bytes` (0 to 16) to shared memory and fills up to 16 with zeros; both addresses are multiples of 16.
__device__ inline void copy16(void* to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(bytes));
}
// copy4 is copy16 of 4 bytes, or of none.
__device__ inline void copy4(void* to, const void* from, int bytes) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(to)), "l"(from), "r"(bytes));
}
__device__ inline void commit() { asm volatile("cp.async.commit_group;"); }
template <int N>
__device__ inline void wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N));
}

__device__ inline u32 pair(float lo, float hi) { return (u32)narrow(lo) | (u32)narrow(hi) << 16; }
