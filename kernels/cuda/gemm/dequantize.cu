// Dequantize: out = round(code * scale), the product rounded to fp32. A warp has 256 columns of kRows rows, a thread
// eight of each: scales of neighbouring rows lie side by side. Bound: the bytes of codes, scales and numbers.
#include "codes.cuh"
#include "rows.cuh"

constexpr int kRows = 4, kWarps = 8;  // rows of a warp; warps of a block, one behind the other

// Eight is the codes of eight columns.
template <int CODE>
struct Eight {
  u32 w[CODE == kE4M3 ? 2 : 1];
  // load reads those from byte p on, `bytes` of which are in the row.
  __device__ void load(const u8* p, int bytes) {
    constexpr int kBytes = sizeof(w);
    if (bytes >= kBytes && (size_t)p % kBytes == 0) {
      if (CODE == kE4M3) *(uint2*)w = *(const uint2*)p;
      else w[0] = *(const u32*)p;
      return;
    }
#pragma unroll
    for (int i = 0; i < kBytes / 4; i++) w[i] = 0;
#pragma unroll
    for (int i = 0; i < kBytes; i++)
      if (i < bytes) w[i / 4] |= (u32)p[i] << i % 4 * 8;
  }
  // value is the number of code i. table is that of NF4: a lane's code is a bank of shared memory.
  __device__ float value(int i, const float* table) const {
    constexpr int kBits = bits_of(CODE), kEach = 32 / kBits;
    u32 code = w[i / kEach] >> i % kEach * kBits;
    if constexpr (CODE == kNF4) return table[code & 15];
    else return code_value<CODE>(code);
  }
};

template <int CODE, class S, class T>
__device__ inline void dequantize(T* out, const u8* codes, const S* scales, int rows, int cols, int row_bytes,
                                  int wide) {
  __shared__ float table[16];
  if (CODE == kNF4) {
    if (threadIdx.x < 16) table[threadIdx.x] = nf4_values[threadIdx.x];
    __syncthreads();
  }
  int col = blockIdx.x * kLanes + threadIdx.x % kWarp * kEight, left = cols - col,
      first = (blockIdx.y * kWarps + threadIdx.x / kWarp) * kRows, byte = col * bits_of(CODE) / 8;
  if (left <= 0) return;
  scales += (size_t)blockIdx.z * ((cols + wide - 1) / wide) * rows;
  size_t matrix = (size_t)blockIdx.z * rows;
  Eight<CODE> w[kRows];
#pragma unroll
  for (int i = 0; i < kRows; i++)
    if (first + i < rows) w[i].load(codes + (matrix + first + i) * row_bytes + byte, row_bytes - byte);
#pragma unroll
  for (int i = 0; i < kRows; i++) {
    int row = first + i;
    if (row >= rows) break;
    float v[kEight];
    if (wide % kEight == 0) {
      float s = scale_value(scales[(size_t)(col / wide) * rows + row]);
#pragma unroll
      for (int j = 0; j < kEight; j++) v[j] = w[i].value(j, table) * s;
    } else {
#pragma unroll
      for (int j = 0; j < kEight; j++)
        if (j < left) v[j] = w[i].value(j, table) * scale_value(scales[(size_t)((col + j) / wide) * rows + row]);
        else v[j] = 0.f;
    }
    store8(out + (matrix + row) * cols + col, left, v);
  }
}

//launch:family dequantize dequantize_
#define DEQUANTIZE(name, CODE, S, T)                                                                            \
  KERNEL(dequantize_##name, T* out, const u8* codes, const S* scales, int rows, int cols, int row_bytes, int wide) { \
    dequantize<CODE, S, T>(out, codes, scales, rows, cols, row_bytes, wide);                                     \
  }
#define SCALES(name, CODE, T, to)             \
  DEQUANTIZE(name##_e8m0_##to, CODE, u8, T)   \
  DEQUANTIZE(name##_bf16_##to, CODE, u16, T)  \
  DEQUANTIZE(name##_fp32_##to, CODE, float, T)
#define CODES(name, CODE)          \
  SCALES(name, CODE, u16, bf16)    \
  SCALES(name, CODE, float, f32)
CODES(int4, kINT4)
CODES(e2m1, kE2M1)
CODES(e4m3, kE4M3)
DEQUANTIZE(nf4_fp32_bf16, kNF4, float, u16)
DEQUANTIZE(nf4_fp32_f32, kNF4, float, float)
