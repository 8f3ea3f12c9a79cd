// The PTX instructions that kernels use in asm statements, by their names with _ for what is no letter: translate.cc
// makes a call of each. Lists in braces come as a Span where they are written and as Values where they are read; an
// address in shared memory is its place there.
#pragma once
#include "device.h"

namespace ptx {

using emu::u16, emu::u32, emu::u64;

// span is consecutive variables that an instruction writes.
template <class T, class... R>
inline T* span(T& first, R&... rest) {
  int i = 0;
  if (!((&rest == &first + ++i) && ...)) emu::fail("registers of a list do not lie in a row");
  return &first;
}

template <int N>
struct Values {
  u32 v[N];
};
template <class... T>
inline Values<sizeof...(T)> values(T... x) {
  return {{(u32)x...}};
}

inline void* shared(u32 address) { return emu_self->grid->shared + address; }

// Predicates and moves.
inline void setp_ne_b32(bool& p, u32 x, u32 y) { p = x != y; }
inline void setp_eq_b32(bool& p, u32 x, u32 y) { p = x == y; }
inline void selp_u32(u32& d, u32 x, u32 y, bool p) { d = p ? x : y; }
inline void mov_b32(u32& d, Values<2> x) { d = (x.v[0] & 0xffff) | x.v[1] << 16; }
inline void mov_b32(u16* d, u32 x) { d[0] = (u16)x, d[1] = (u16)(x >> 16); }
inline void mov_b64(u64& d, Values<2> x) { d = x.v[0] | (u64)x.v[1] << 32; }
inline void elect_sync(bool& p, u32) { p = emu_self->lane == 0; }

inline void lop3_b32(u32& d, u32 x, u32 y, u32 z, u32 table) {
  d = 0;
  for (int i = 0; i < 8; i++)
    if (table >> i & 1) d |= (i & 4 ? x : ~x) & (i & 2 ? y : ~y) & (i & 1 ? z : ~z);
}
inline void prmt_b32(u32& d, u32 x, u32 y, u32 selector) {
  d = 0;
  for (int i = 0; i < 4; i++) {
    u32 s = selector >> 4 * i, byte = (x | (u64)y << 32) >> 8 * (s & 7) & 255;
    d |= (s & 8 ? byte >> 7 ? 255 : 0 : byte) << 8 * i;
  }
}

// Conversions: NaN becomes the card's own.
inline u32 bf16_of(float x) {
  u32 b = __float_as_uint(x);
  return x != x ? 0x7fff : (b + 0x7fff + (b >> 16 & 1)) >> 16;
}
inline void cvt_rn_bf16x2_f32(u32& d, float high, float low) { d = bf16_of(high) << 16 | bf16_of(low); }
// Two bf16 numbers in each register: the exact result, rounded once.
u16 bf16_of_exact(double x);
inline double number_of(u32 x) { return __uint_as_float(x << 16); }
inline void mul_rn_bf16x2(u32& d, u32 x, u32 y) {
  d = (u32)bf16_of_exact(number_of(x >> 16) * number_of(y >> 16)) << 16 |
      bf16_of_exact(number_of(x & 0xffff) * number_of(y & 0xffff));
}
inline void fma_rn_bf16x2(u32& d, u32 x, u32 y, u32 z) {  // where fp64 holds the exact result
  d = (u32)bf16_of_exact(number_of(x >> 16) * number_of(y >> 16) + number_of(z >> 16)) << 16 |
      bf16_of_exact(number_of(x & 0xffff) * number_of(y & 0xffff) + number_of(z & 0xffff));
}
double exact_difference(double x, double y);
inline void sub_rn_bf16x2(u32& d, u32 x, u32 y) {
  d = (u32)bf16_of_exact(exact_difference(number_of(x >> 16), number_of(y >> 16))) << 16 |
      bf16_of_exact(exact_difference(number_of(x & 0xffff), number_of(y & 0xffff)));
}
inline void max_NaN_f32(float& d, float x, float y) {
  d = x != x || y != y ? __uint_as_float(0x7fffffff) : fmaxf(x, y);
}
float ex2(float x);
inline void ex2_approx_ftz_f32(float& d, float x) { d = ex2(x); }
u16 e4m3_of(float x);
inline void cvt_rn_satfinite_e4m3x2_f32(u16& d, float high, float low) { d = e4m3_of(high) << 8 | e4m3_of(low); }
u16 half_of_e4m3(u16 x);
inline void cvt_rn_f16x2_e4m3x2(u32& d, u16 x) { d = (u32)half_of_e4m3(x >> 8) << 16 | half_of_e4m3(x & 0xff); }
float float_of_half(u16 x);
inline void cvt_f32_f16(float& d, u16 x) { d = float_of_half(x); }

// Barriers of threads, and fences, which an emulation in program order does not need.
inline void bar_sync(u32 barrier, u32 count) { emu::block_sync(barrier, count); }
inline void bar_arrive(u32 barrier, u32 count) { emu::block_arrive(barrier, count); }
inline void fence_mbarrier_init_release_cluster() {}
inline void fence_proxy_async_shared__cta() {}
// Kernels that begin before the one before them ends: here none does, and that it waits is counted.
void griddepcontrol_wait();
inline void griddepcontrol_launch_dependents() {}
inline void setmaxnreg_inc_sync_aligned_u32(int) {}
inline void setmaxnreg_dec_sync_aligned_u32(int) {}

// Barriers in memory.
void mbarrier_init_shared_b64(u32 bar, int count);
void mbarrier_arrive_expect_tx_shared_b64(u32 bar, int bytes);
void mbarrier_arrive_shared_b64(u32 bar);
void mbarrier_wait(u32 bar, int parity);
inline void mbarrier_try_wait_parity_shared_b64(bool& p, u32 bar, int parity) {  // the loop around it has nothing to do
  mbarrier_wait(bar, parity);
  p = true;
}

inline void prefetch_tensormap(const void*) {}
inline void prefetch_global_L2(const void*) {}  // a card may leave it out too

// Copies that go on by themselves.
void cp_async_cg_shared_global(u32 to, const void* from, int size, int bytes);
void cp_async_ca_shared_global(u32 to, const void* from, int size, int bytes);
void cp_async_commit_group();
void cp_async_wait_group(int left);
void cp_async_mbarrier_arrive_noinc_shared_b64(u32 bar);
void cp_async_bulk_tensor_3d_shared__cluster_global_mbarrier__complete_tx__bytes(u32 to, const void* map, Values<3> at,
                                                                                 u32 bar);
void cp_async_bulk_shared__cluster_global_mbarrier__complete_tx__bytes(u32 to, const void* from, int bytes, u32 bar);

// Matrices of 8 x 8 elements of 16 bits that a warp holds or reads.
inline void ldmatrix_sync_aligned_m8n8_x4_shared_b16(u32* r, u32 address) {
  emu::meet(emu::kLoad, ~0u, (u64)shared(address), (u64)r);
}
inline void ldmatrix_sync_aligned_m8n8_x4_trans_shared_b16(u32* r, u32 address) {
  emu::meet(emu::kLoadTransposed, ~0u, (u64)shared(address), (u64)r);
}
inline void movmatrix_sync_aligned_m8n8_trans_b16(u32& d, u32 x) { d = emu::meet(emu::kTransposed, ~0u, x); }

// Fragments are a lane's operands of mma.sync.
struct Fragments {
  Values<4> a;
  Values<2> b;
};
inline void mma_sync_aligned_m16n8k16_row_col_f32_bf16_bf16_f32(float* d, Values<4> a, Values<2> b, const float* c) {
  if (d != c) emu::fail("mma.sync with d beside c");
  Fragments own = {a, b};
  emu::meet(emu::kStep, ~0u, (u64)d, (u64)&own);
}

// wgmma: a product is carried out when a group that holds it is waited for, or when the group is closed, as it comes. A
// warp has 16 of the 64 rows.
struct Product {
  int columns;
  float* d;
  Values<4> a;  // where `registers` is set, else at `from`
  u64 from, b;
  bool registers, add, a_rows, b_rows;  // rows: rows of the operand in memory are k
  bool codes;                           // E4M3, 32 k, else bf16, 16
};
void wgmma(const Product& p);
inline void wgmma_fence_sync_aligned() {}
void wgmma_commit_group_sync_aligned();
void wgmma_wait_group_sync_aligned(int left);
template <int N>
inline void wgmma_mma_async_sync_aligned_k16_f32_bf16_bf16(float* d, u64 a, u64 b, bool add, int, int, int a_rows,
                                                           int b_rows) {
  wgmma({N, d, {}, a, b, false, add, a_rows != 0, b_rows != 0, false});
}
template <int N>
inline void wgmma_mma_async_sync_aligned_k16_f32_bf16_bf16(float* d, Values<4> a, u64 b, bool add, int, int,
                                                           int b_rows) {
  wgmma({N, d, a, 0, b, true, add, false, b_rows != 0, false});
}
template <int N>
inline void wgmma_mma_async_sync_aligned_k32_f32_e4m3_e4m3(float* d, u64 a, u64 b, bool add, int, int) {
  wgmma({N, d, {}, a, b, false, add, false, false, true});
}

}  // namespace ptx
