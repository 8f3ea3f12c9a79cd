// StoreKV: rows of keys and values go to the rows of the cache named for each, bits unchanged; a warp has a part of a
// row, of the key's or the value's. Bound: the bytes of the rows, read and written.
#include "rows.cuh"

KERNEL(store_kv, u16* ck, u16* cv, const u16* k, const u16* v, const int* to, int rows, int k_cols, int v_cols, int cks,
       int cvs, int ks, int vs) {
  int r = warp_row(), part = blockIdx.y, parts = (k_cols + kMoved - 1) / kMoved;
  if (r >= rows) return;
  long long from = r, row = to[r];
  if (part < parts) move_part(ck + row * cks, k + from * ks, part, k_cols);
  else move_part(cv + row * cvs, v + from * vs, part - parts, v_cols);
}
