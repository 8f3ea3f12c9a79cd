// Hopper's own instructions: the bulk tensor copy (TMA) that completes on an mbarrier, and wgmma, whose step of 16 k is
// the dot step tc16 for 64 x N accumulators (equal to mma.sync's on every bit, tested). Copies and barriers are later
// cards' too (attention_decode.cu); wgmma is used where __CUDA_ARCH_FEAT_SM90_ALL is set.
#pragma once
#include "mma.cuh"

// TensorMap is the driver's CUtensorMap.
struct alignas(64) TensorMap {
  u64 opaque[16];
};

__device__ inline void barrier_init(u64* bar, int count) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(bar)), "r"(count) : "memory");
}
__device__ inline void barrier_expect(u64* bar, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(bar)), "r"(bytes) : "memory");
}
__device__ inline void barrier_arrive(u64* bar) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(shared_address(bar)) : "memory");
}
__device__ inline void barrier_wait(u64* bar, int parity) {
  asm volatile(
      "{\n.reg .pred p;\nWAIT:\nmbarrier.try_wait.parity.shared.b64 p, [%0], %1;\n@p bra DONE;\nbra WAIT;\nDONE:\n}" ::
          "r"(shared_address(bar)),
      "r"(parity)
      : "memory");
}

// barrier_arrive_copied arrives when all that this thread has started to copy (copy16) is there.
__device__ inline void barrier_arrive_copied(u64* bar) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(bar)) : "memory");
}

// elected is true for one thread of the warp, and the compiler knows it: behind it a copy is one instruction, behind
// another condition a loop over lanes.
__device__ inline bool elected() {
  u32 is;
  asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(is));
  return is;
}

// uniform tells the compiler that a value is the same in all lanes. What follows from such values alone lies in uniform
// registers, where wgmma and copies want their addresses.
__device__ inline int uniform(int x) { return __shfl_sync(~0u, x, 0); }

// copy_box brings the box at (column, row, matrix) of a tensor to shared memory; what lies beyond the tensor is zero.
__device__ inline void copy_box(void* to, const TensorMap* map, int column, int row, int matrix, u64* bar) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::
          "r"(shared_address(to)),
      "l"(map), "r"(column), "r"(row), "r"(matrix), "r"(shared_address(bar))
      : "memory");
}

// prefetch_map asks for the description of a tensor, which its first copy would wait for.
__device__ inline void prefetch_map(const TensorMap* map) { asm volatile("prefetch.tensormap [%0];" ::"l"(map)); }

// operand describes shared memory in 128-byte swizzled rows: boxes of 64 elements in a row, BOX bytes each, 1 KiB for
// every 8 rows. Rows are along k for operands that are contiguous there; else rows are k, and the boxes follow each
// other across it. It is the descriptor's low half; the high one is the same for all.
template <int BOX>
__device__ inline u32 operand(const void* p) {
  return shared_address(p) >> 4 | (BOX >> 4) << 16;
}

// Registers of operands are written before wgmma_fence; wgmma_commit closes a group of what was issued; wgmma_wait<N>
// leaves the N latest groups running.
__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N>
__device__ inline void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

template <int N>
__device__ inline void more_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N>
__device__ inline void fewer_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

// transposed exchanges the rows and columns of an 8 x 8 matrix of 16-bit elements that the warp holds.
__device__ inline u32 transposed(u32 x) {
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %0;" : "+r"(x));
  return x;
}

#define L1 "%0,%1,%2,%3"
#define L2 L1 ",%4,%5,%6,%7"
#define L4 L2 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define L8 L4 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define L12 L8 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define L16 L12 ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define L24                                                                                                            \
  L16 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%" \
      "91,%92,%93,%94,%95"
#define L32                                                                                                          \
  L24 ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,%113,%114,%115,%116,%117,%" \
      "118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
#define D1(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define D2(i) D1(i), D1(i + 4)
#define D4(i) D2(i), D2(i + 8)
#define D8(i) D4(i), D4(i + 16)
#define D12(i) D8(i), D4(i + 32)
#define D16(i) D8(i), D8(i + 32)
#define D24(i) D16(i), D8(i + 64)
#define D32(i) D16(i), D16(i + 64)
#define WGMMA(N, list, a_at, b_at, ta_at, tb_at, registers)                                                     \
  if constexpr (COLUMNS == N)                                                                                   \
    asm volatile("{\n.reg .b64 a, b;\nmov.b64 a, {%" #a_at ", 0x40000040};\nmov.b64 b, {%" #b_at                \
                 ", 0x40000040};\n"                                                                             \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" list "}, a, b, 1, 1, 1, %" #ta_at \
                 ", %" #tb_at ";\n}"                                                                            \
                 : registers                                                                                    \
                 : "r"(a), "r"(b), "n"(TA), "n"(TB));

// wgmma: d += a * b, a [64, 16], b [16, COLUMNS]. TA and TB: the operand's shared memory has k as its rows. Thread t of
// warp w has d[4j + i] of row 16w + t/4 + i/2*8, column 8j + t%4*2 + i%2.
template <int COLUMNS, int TA, int TB>
__device__ inline void wgmma(float* d, u32 a, u32 b) {
  WGMMA(8, L1, 4, 5, 6, 7, D1(0))
  WGMMA(16, L2, 8, 9, 10, 11, D2(0))
  WGMMA(32, L4, 16, 17, 18, 19, D4(0))
  WGMMA(64, L8, 32, 33, 34, 35, D8(0))
  WGMMA(96, L12, 48, 49, 50, 51, D12(0))
  WGMMA(128, L16, 64, 65, 66, 67, D16(0))
  WGMMA(192, L24, 96, 97, 98, 99, D24(0))
  WGMMA(256, L32, 128, 129, 130, 131, D32(0))
}

#define WGMMA_A(N, list, a0, a1, a2, a3, b_at, registers)                                                       \
  if constexpr (COLUMNS == N)                                                                                   \
    asm volatile("{\n.reg .b64 b;\nmov.b64 b, {%" #b_at                                                         \
                 ", 0x40000040};\n"                                                                             \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" list "}, {%" #a0 ",%" #a1 ",%" #a2 \
                 ",%" #a3 "}, b, 1, 1, 1, 0;\n}"                                                                \
                 : registers                                                                                    \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b));

// wgmma: the same with a in registers: thread t of warp w has row 16w + t/4 and k t%4*2 and the next in a[0], the row 8
// below in a[1], and k 8 further in a[2] and a[3]. They must not change until the product is done.
template <int COLUMNS>
__device__ inline void wgmma(float* d, const u32 (&a)[4], u32 b) {
  WGMMA_A(8, L1, 4, 5, 6, 7, 8, D1(0))
  WGMMA_A(16, L2, 8, 9, 10, 11, 12, D2(0))
  WGMMA_A(32, L4, 16, 17, 18, 19, 20, D4(0))
  WGMMA_A(64, L8, 32, 33, 34, 35, 36, D8(0))
  WGMMA_A(96, L12, 48, 49, 50, 51, 52, D12(0))
  WGMMA_A(128, L16, 64, 65, 66, 67, 68, D16(0))
  WGMMA_A(192, L24, 96, 97, 98, 99, 100, D24(0))
  WGMMA_A(256, L32, 128, 129, 130, 131, 132, D32(0))
}

#define WGMMA_CODES(N, list, a_at, b_at, more_at, registers)                                                    \
  if constexpr (COLUMNS == N)                                                                                   \
    asm volatile("{\n.reg .pred p;\n.reg .b64 a, b;\nsetp.ne.b32 p, %" #more_at ", 0;\nmov.b64 a, {%" #a_at      \
                 ", 0x40000040};\nmov.b64 b, {%" #b_at                                                          \
                 ", 0x40000040};\n"                                                                             \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k32.f32.e4m3.e4m3 {" list "}, a, b, p, 1, 1;\n}"       \
                 : registers                                                                                    \
                 : "r"(a), "r"(b), "r"(more));

// wgmma_codes: d += a * b of E4M3, 32 k, both operands along k: the step fp8x32 (kernels.Term). Without `more` d begins
// as +0.
template <int COLUMNS>
__device__ inline void wgmma_codes(float* d, u32 a, u32 b, int more) {
  WGMMA_CODES(8, L1, 4, 5, 6, D1(0))
  WGMMA_CODES(16, L2, 8, 9, 10, D2(0))
  WGMMA_CODES(32, L4, 16, 17, 18, D4(0))
  WGMMA_CODES(64, L8, 32, 33, 34, D8(0))
  WGMMA_CODES(128, L16, 64, 65, 66, D16(0))
}
