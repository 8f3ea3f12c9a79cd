// Products with weights in E2M1 with E8M0 scales of 32 columns (MXFP4): see quantized.cuh.
#include "quantized_some.cuh"
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
using E2M1 = Format<kE2M1, u8, 32>;
//launch:family product_e2m1 nt_ nn_
PRODUCTS_CODES(e2m1_e8m0_32, E2M1)
PRODUCTS_SOME(e2m1_e8m0_32, E2M1)
PRODUCTS_FEW(e2m1_e8m0_32, E2M1, 256, 3)
#endif
