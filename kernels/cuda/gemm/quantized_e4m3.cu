// Products with weights in E4M3: with E8M0 scales of 32 columns (MXFP8), and with scales of 128 columns or more (FP8
// releases): see quantized.cuh.
#include "quantized_some.cuh"
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
using E4M3 = Format<kE4M3, u8, 32>;
using E4M3Wide = Format<kE4M3, u8, 0>;
using E4M3Float = Format<kE4M3, float, 0>;
//launch:family product_e4m3 nt_ nn_
PRODUCTS_CODES(e4m3_e8m0_32, E4M3)
PRODUCTS_SOME(e4m3_e8m0_32, E4M3)
PRODUCTS_FEW(e4m3_e8m0_32, E4M3, 128, 4)
PRODUCTS_CODES(e4m3_e8m0_128, E4M3Wide)
PRODUCTS_SOME(e4m3_e8m0_128, E4M3Wide)
PRODUCTS_FEW(e4m3_e8m0_128, E4M3Wide, 128, 4)
PRODUCTS_CODES(e4m3_fp32_128, E4M3Float)
PRODUCTS_SOME(e4m3_fp32_128, E4M3Float)
PRODUCTS_FEW(e4m3_fp32_128, E4M3Float, 128, 4)
#endif
