// Bytes from memory of the host that is pinned to the card's, or back, by multiprocessors: dst[i] = src[i]. A thread
// takes 16 bytes, at once where both lie at multiples of 16. Bound: the host's link, 55 GB/s; a piece is some KiB, so
// that a launch, 2 us, and the way to the host and back, 2 us, are what it takes.
extern "C" __global__ void move_bytes(unsigned char* dst, const unsigned char* src, int bytes) {
  int i = 16 * (blockIdx.x * blockDim.x + threadIdx.x), end = min(i + 16, bytes);
  if (i + 16 <= bytes && (((unsigned long long)dst | (unsigned long long)src) & 15) == 0) {
    *(uint4*)(dst + i) = *(const uint4*)(src + i);
    return;
  }
  for (; i < end; i++) dst[i] = src[i];
}
