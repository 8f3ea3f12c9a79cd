// What the kernels of absorbed latent attention share: all heads read one row of D columns for each key, and the first
// V of them are its value. A block takes one query and up to 64 of its heads, the rows of its tiles, along the query's
// list of keys: its selected keys, or all positions up to its own.
#pragma once
#include "kvcodes.cuh"

constexpr int kHeads = 64, kThreads = 256;

// Sequence is queries that follow each other, numbered from the last one back; sequences with the longest lists come
// first.
struct Sequence {
  int start;        // the number of its last query
  int row, pos;     // of its last query: batch row and position
  int base, pages;  // row of position 0, or where the sequence's pages begin (-1: none)
};

// Asked is a query with its list.
struct Asked {
  int row, pos, entries;
  const int* indices;  // the selected keys; nil: all positions
  Keys keys;
  // key is the row of an entry; -1 behind the end.
  __device__ int key(int entry) const {
    return entry >= entries ? -1 : (int)keys.row(indices ? indices[entry] : entry);
  }
};

// Lists are the lists of a call.
struct Lists {
  const Sequence* sequences;
  const int *pages, *indices;
  int count, page_rows, top_k, stride;  // count: sequences; stride: of rows of indices

  __device__ Asked query(int number) const {
    int low = 0;
    for (int high = count; high - low > 1;) {
      int middle = (low + high) / 2;
      if (sequences[middle].start <= number) low = middle;
      else high = middle;
    }
    Sequence s = sequences[low];
    int row = s.row - (number - s.start), pos = s.pos - (number - s.start);
    return {row,
            pos,
            indices ? min(top_k, pos + 1) : pos + 1,
            indices ? indices + (size_t)row * stride : nullptr,
            {s.pages >= 0 ? pages + s.pages : nullptr, s.base, page_rows}};
  }
};

// Lines is rows of D columns in shared memory, filled up to whole steps of the dot, without space between them: pieces
// of 8 columns change places by row, so that neither 8 consecutive rows nor 8 even or odd ones meet in a bank.
template <int D>
struct Lines {
  static constexpr int kDot = steps_of(D), kStride = (kDot + 63) / 64 * 64;
  static __device__ int at(int r, int column) {
    return r * kStride + column / 64 * 64 + ((column / 8 ^ r ^ r >> 3) & 7) * 8 + column % 8;
  }

  // load brings Rows rows by so many threads; row(r) is where one begins behind `from`, or -1: zeros.
  template <int Rows, int Threads, class F>
  static __device__ void load(u16* to, const u16* from, F row) {
    for (int i = threadIdx.x % Threads; i < Rows * (kDot / 8); i += Threads) {
      int r = i / (kDot / 8), c = i % (kDot / 8) * 8;
      long long begin = row(r);
      bool in = begin >= 0 && c < D;
      copy16(to + at(r, c), from + (in ? begin + c : 0), in ? 16 : 0);
    }
  }
  // load_keys brings rows of keys; row(r) is the number of one, or -1: zeros.
  template <int Rows, int Threads, class S, class F>
  static __device__ void load_keys(u16* to, const S& source, F row) {
    for (int i = threadIdx.x % Threads; i < Rows * (kDot / 8); i += Threads) {
      int r = i / (kDot / 8), c = i % (kDot / 8) * 8, key = row(r);
      bool in = key >= 0 && c < D;
      source.bring(to + at(r, c), in ? key : 0, in ? c : 0, in);
    }
  }
};

// dots: s [16, 8*N] = dot over D of rows of a from `first` on and of rows row(0), row(1) ... of b.
template <int D, int N, class F>
__device__ inline void dots(float (&s)[N][4], const u16* a, int first, const u16* b, F row) {
  using T = Lines<D>;
  int lane = warp_lane();
#pragma unroll
  for (int j = 0; j < N; j++)
#pragma unroll
    for (int w = 0; w < 4; w++) s[j][w] = 0.f;
#pragma unroll 4
  for (int k = 0; k < T::kDot; k += 16) {
    u32 x[4], y[N / 2][4];
    load4(x, a + T::at(first + (lane & 15), k + (lane >> 4) * 8));
#pragma unroll
    for (int j = 0; j < N / 2; j++)
      load4(y[j], b + T::at(row(j * 16 + (lane & 7) + (lane >> 4) * 8), k + (lane >> 3 & 1) * 8));
#pragma unroll
    for (int j = 0; j < N / 2; j++) {
      step(s[2 * j], x, y[j][0], y[j][1]);
      step(s[2 * j + 1], x, y[j][2], y[j][3]);
    }
  }
}

// Sums is a warp's part of products with D columns: 32 rows by every `Of`-th piece of 16 columns, from piece `own` on.
template <int D, int Of>
struct Sums {
  static constexpr int kPieces = steps_of(D) / 16, kOwn = (kPieces + Of - 1) / Of;
  float x[kOwn][2][2][4];  // [piece][16 rows][8 columns]

  __device__ Sums() {
#pragma unroll
    for (int j = 0; j < kOwn; j++)
#pragma unroll
      for (int i = 0; i < 16; i++) x[j][i / 8][i / 4 % 2][i % 4] = 0.f;
  }
  // each calls f(piece's sums, first column).
  template <class F>
  __device__ void each(int own, F f) {
#pragma unroll
    for (int j = 0; j < kOwn; j++)
      if (kPieces % Of == 0 || own + Of * j < kPieces) f(x[j], (own + Of * j) * 16);
  }
  // add continues the chains over `Steps` steps: weights [32, k], or [k, 32] where they lie Transposed, from row or
  // column `first` on (Lines<64>), and rows of b in shared memory.
  template <int Steps, bool Transposed, class B>
  __device__ void add(const u16* weights, int first, const u16* b, int own) {
    int lane = warp_lane(), near = lane & 15, far = (lane >> 4) * 8;
#pragma unroll
    for (int t = 0; t < Steps; t++) {
      u32 p[2][4];
#pragma unroll
      for (int i = 0; i < 2; i++)
        if (Transposed)
          load4_transposed(p[i], weights + Lines<64>::at(t * 16 + (lane & 7) + far, first + i * 16 + (lane & 8)));
        else load4(p[i], weights + Lines<64>::at(first + i * 16 + near, t * 16 + far));
      each(own, [&](float (&s)[2][2][4], int column) {
        u32 y[4];
        load4_transposed(y, b + B::at(t * 16 + near, column + far));
#pragma unroll
        for (int i = 0; i < 2; i++) step(s[i][0], p[i], y[0], y[1]), step(s[i][1], p[i], y[2], y[3]);
      });
    }
  }
};
