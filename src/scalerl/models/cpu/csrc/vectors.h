/* Vectors of VLEN floats, in the compiler's own words (GCC, Clang): the same source for every
   processor. A product of vectors and what comes around it is written once, here. */
#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__)
#define VLEN 16
#define TALL 12 /* rows of a tile of a product: as many as there are registers for */
#else
#define VLEN 8
#define TALL 6
#endif

typedef float vec __attribute__((vector_size(4 * VLEN)));
typedef float vec_u __attribute__((vector_size(4 * VLEN), aligned(4), may_alias));
typedef int32_t ivec __attribute__((vector_size(4 * VLEN)));

#define INLINE static inline __attribute__((always_inline))

INLINE vec load(const float *p) { return *(const vec_u *)p; }
INLINE void store(float *p, vec x) { *(vec_u *)p = x; }
INLINE vec all(float x) { return x - (vec){0}; }
INLINE int64_t up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

INLINE float total(vec x) {
  float s = 0;
  for (int i = 0; i < VLEN; i++) s += x[i];
  return s;
}

/* e^x to 2 units in the last place, from -87 to 88 and beyond as at these; NaN stays NaN. */
INLINE vec vexp(vec x) {
  const vec low = all(-87.0f), high = all(88.0f), magic = all(12582912.0f); /* 1.5 * 2^23 */
  ivec under = x < low, over = x > high;
  x = (vec)(((ivec)x & ~(under | over)) | ((ivec)low & under) | ((ivec)high & over));
  vec shifted = x * 1.44269504f + magic; /* its lowest bits are round(x / ln 2) */
  vec n = shifted - magic;
  vec f = x - n * 0.693359375f + n * 2.12194440e-4f;
  vec p = all(1.9875691500e-4f);
  p = p * f + 1.3981999507e-3f;
  p = p * f + 8.3334519073e-3f;
  p = p * f + 4.1665795894e-2f;
  p = p * f + 1.6666665459e-1f;
  p = p * f + 5.0000001201e-1f;
  p = p * f * f + f + 1.0f;
  ivec power = ((ivec)shifted - 0x4B400000 + 127) << 23;
  return p * (vec)power;
}

/* x = e^(x - the largest of them), for n numbers in whole vectors; returns their sums by place. */
INLINE vec exponentials(float *x, int64_t n) {
  vec top = load(x), sums = {0};
  for (int64_t i = VLEN; i < n; i += VLEN) {
    vec y = load(x + i);
    ivec more = y > top;
    top = (vec)(((ivec)y & more) | ((ivec)top & ~more));
  }
  float most = top[0];
  for (int i = 1; i < VLEN; i++) most = top[i] > most ? top[i] : most;
  for (int64_t i = 0; i < n; i += VLEN) {
    vec y = vexp(load(x + i) - most);
    sums += y;
    store(x + i, y);
  }
  return sums;
}

INLINE vec silu(vec x) { return x / (vexp(-x) + 1.0f); }

INLINE float dot(const float *a, const float *b, int64_t n) {
  vec s0 = {0}, s1 = {0};
  int64_t i = 0;
  for (; i + 2 * VLEN <= n; i += 2 * VLEN) {
    s0 += load(a + i) * load(b + i);
    s1 += load(a + i + VLEN) * load(b + i + VLEN);
  }
  float s = total(s0 + s1);
  for (; i < n; i++) s += a[i] * b[i];
  return s;
}
