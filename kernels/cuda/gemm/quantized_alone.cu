// Products of one group with weights in codes of all formats: see quantized_alone.cuh.
#include "quantized_alone.cuh"
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
using INT4 = Format<kINT4, u16, 32>;
using E2M1 = Format<kE2M1, u8, 32>;
using E4M3 = Format<kE4M3, u8, 32>;
using E4M3Wide = Format<kE4M3, u8, 0>;
using E4M3Float = Format<kE4M3, float, 0>;
//launch:family product_alone nt_
PRODUCTS_ALONE(int4_bf16_32, INT4)
PRODUCTS_ALONE(e2m1_e8m0_32, E2M1)
PRODUCTS_ALONE(e4m3_e8m0_32, E4M3)
PRODUCTS_ALONE(e4m3_e8m0_128, E4M3Wide)
PRODUCTS_ALONE(e4m3_fp32_128, E4M3Float)
#endif
