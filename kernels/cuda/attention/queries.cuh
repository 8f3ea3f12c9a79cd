// What the kernels of an indexer share (kernels/sparse.go, rule 3): work is cut into tiles of up to 64 queries, or
// pairs of a query and a head, query-major; the queries of a tile are consecutive rows of one sequence. A call takes
// some tiles after the other, the queries of which are its rows, numbered from 0.
#pragma once
#include "attention.cuh"

struct Queries {
  int row, pos, count;  // batch row and position of the first query; how many
  int first;            // its number in the call
  int base, pages;      // row of position 0, or where the sequence's pages begin (-1: none)
  __device__ Keys keys(const int* all, int page_rows) const {
    return {pages >= 0 ? all + pages : nullptr, base, page_rows};
  }
};

// Query is one row of a call.
struct Query {
  int row, pos;
  __device__ int keys(int top_k) const { return min(top_k, pos + 1); }  // on its list
};
