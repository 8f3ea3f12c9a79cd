// Products with weights in INT4 with bf16 scales of 32 columns: see quantized.cuh.
#include "quantized_some.cuh"
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
using INT4 = Format<kINT4, u16, 32>;
//launch:family product_int4 nt_ nn_
PRODUCTS_CODES(int4_bf16_32, INT4)
PRODUCTS_SOME(int4_bf16_32, INT4)
PRODUCTS_FEW(int4_bf16_32, INT4, 256, 3)
#endif
