// Keys of absorbed latent attention with the queries that continue their chains of dk and dv: query after query, in
// each over its heads. Rows of a product are (query, head): a block of them has all heads of some queries, or some
// heads of one.
#pragma once
#include "attention.cuh"

// KeyTile is keys of a sequence, and the blocks of queries that continue their chains.
struct KeyTile {
  int row, rows;     // of the sequence in the batch
  int at;            // position of the first key
  int query;         // row of position 0 in what has the call's queries, where that may begin later
  int begin, end;    // positions of the call's queries
  int from, count;   // blocks of queries
  int first;         // blocks of the tiles before
  int flags;         // word of the sequence's first blocks
  int begins, ends;  // the chains begin from +0; the gradients are written

  // seen has a bit for each of 32 keys from position `from` on that a query sees; masks as absorbed_masks leaves them
  // for so many queries, nil: every key up to the query's own.
  __device__ u32 seen(const u32* masks, int queries, int from, int position) const {
    if (position < begin || position >= end || from > position) return 0;
    if (masks) return masks[(size_t)(from / 32) * queries + query + position];
    return position - from >= 31 ? ~0u : (2u << (position - from)) - 1;
  }
};

// QueryBlock is how blocks of ROWS rows take the heads of queries: steps of 16 of the dot begin with each query. Block
// x has positions from x * queries on.
template <int ROWS>
struct QueryBlock {
  int heads;
  int each;     // rows of a query in a block; those behind the last head are zeros
  int queries;  // of a block
  int pieces;   // blocks that take the heads of one query

  __device__ QueryBlock(int heads)
      : heads(heads), each(heads > 32 ? ROWS : heads > 16 ? 32 : 16), queries(ROWS / each),
        pieces((heads + ROWS - 1) / ROWS) {}
};
