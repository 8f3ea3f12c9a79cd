// Pages of keys and values in MXFP8 (kernels.KVCodes).
//
//   store_kv_codes  StoreKV: rows of keys and values go to codes and scales of the rows named for each, in blocks of
//                   32 columns of each head. Four threads have a block, eight columns each. Bound: bytes of the rows,
//                   read, and half of them written.
//   expand_kv       some heads of rows of pages as numbers, for kernels that copy tiles by TMA. Bound: bytes of codes,
//                   read, and twice as many written.
#include "encode.cuh"
#include "kvcodes.cuh"

constexpr int kBlockThreads = kINT4Group / kEight;

__device__ inline void store_codes(const Codes& cache, const u16* x, const int* to, int rows, int heads, int width,
                                   int xs) {
  int blocks = scales_of(width), across = heads * blocks * kBlockThreads;
  long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  int row = i / across, at = i % across, head = at / (blocks * kBlockThreads),
      col = at % (blocks * kBlockThreads) * kEight, left = row < rows ? width - col : 0;
  float v[kEight];
  load8(x + (size_t)row * xs + head * width + col, left, v);
  u32 most = 0, codes[2];
#pragma unroll
  for (int j = 0; j < kEight; j++) most = max(most, __float_as_uint(v[j]) & kMagnitude);
  most = most_of<kBlockThreads>(most);
  u8 scale = mxfp8_encode(v, most, codes);
  if (row >= rows) return;
  Codes own = cache.head(head, width);
  long long r = to[row];
  if (left > 0) *(uint2*)(own.codes + r * own.stride + col) = make_uint2(codes[0], codes[1]);
  if (col % kScaled == 0) own.scales[r * own.scale_stride + col / kScaled] = scale;
}

// Grid: blocks of threads; values, keys.
KERNEL(store_kv_codes, const Codes keys, const Codes values, const u16* k, const u16* v, const int* to, int rows,
       int heads, int k_width, int v_width, int ks, int vs) {
  if (blockIdx.y == 0) store_codes(values, v, to, rows, heads, v_width, vs);
  else store_codes(keys, k, to, rows, heads, k_width, ks);
}

// Expanded is up to 64 positions of a sequence that become rows `to` and following.
struct Expanded {
  int to, pages;  // pages: where those of the sequence begin
  int first, count;
};

__device__ inline void expand(u16* to, const Codes& from, const Expanded& p, const Keys& keys, int first_head,
                              int heads, int width) {
  int pieces = heads * width / kEight;
  for (int i = threadIdx.x; i < p.count * pieces; i += blockDim.x) {
    int r = i / pieces, c = i % pieces * kEight;
    *(uint4*)(to + (size_t)(p.to + r) * heads * width + c) =
        from.head(first_head + c / width, width).eight(keys.row(p.first + r), c % width);
  }
}

// Grid: pieces; values, keys.
KERNEL(expand_kv, u16* k, u16* v, const Codes keys, const Codes values, const Expanded* pieces, const int* pages,
       int first_head, int heads, int k_width, int v_width, int page_rows) {
  Expanded p = pieces[blockIdx.x];
  Keys at = {pages + p.pages, 0, page_rows};
  if (blockIdx.y == 0) expand(v, values, p, at, first_head, heads, v_width);
  else expand(k, keys, p, at, first_head, heads, k_width);
}
