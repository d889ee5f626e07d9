/* Products of matrices with a right side packed in panels of two vectors of columns: those of
   TALL rows and one panel are held in registers from the first term to the last, with what is added
   to them (bias, residual) or done to them (SwiGLU). */
#include "vectors.h"

#define PANEL (2 * VLEN)

enum { STORE, ADD, SWIGLU };

/* `tall` rows of a times a panel, into c: K terms; a's rows and terms are `row` and `term` apart.
   Sums begin with what is added (bias, or what stands in c): whichever rows a row is computed with,
   its terms are added in the same order by the same instructions, and its bits are the same. */
INLINE void tile(const int tall, const int kind, int64_t K, const float *a, int64_t row,
                 const int64_t term, const float *panel, const float *bias, float *c,
                 int64_t ldc) {
  vec s[TALL][2];
#pragma GCC unroll 12
  for (int i = 0; i < tall; i++) {
    const float *begin = kind == ADD ? c + i * ldc : bias;
    s[i][0] = begin ? load(begin) : (vec){0};
    s[i][1] = begin ? load(begin + VLEN) : (vec){0};
  }
  for (int64_t k = 0; k < K; k++) {
    vec b0 = load(panel + k * PANEL), b1 = load(panel + k * PANEL + VLEN);
#pragma GCC unroll 12
    for (int i = 0; i < tall; i++) {
      vec x = all(a[i * row + k * term]);
      s[i][0] += x * b0;
      s[i][1] += x * b1;
    }
  }
#pragma GCC unroll 12
  for (int i = 0; i < tall; i++) {
    if (kind == SWIGLU) {
      store(c + i * ldc, silu(s[i][0]) * s[i][1]);
    } else {
      store(c + i * ldc, s[i][0]);
      store(c + i * ldc + VLEN, s[i][1]);
    }
  }
}

/* c = a @ weights + bias (ADD: + c instead), for M rows and N columns, in whole panels of `deep`
   terms, of which the first K count. For SWIGLU the halves of a panel are gate and up. */
INLINE void product(const int kind, int64_t M, int64_t N, int64_t K, const float *a, int64_t row,
                    const int64_t term, const float *weights, int64_t deep, const float *bias,
                    float *c, int64_t ldc) {
  const int step = kind == SWIGLU ? VLEN : PANEL;
  for (int64_t n = 0, at = 0; n < N; n += PANEL, at += step) {
    const float *panel = weights + n * deep, *b = bias ? bias + n : 0, *from = a;
    float *to = c + at;
    int64_t m = 0;
    for (; m + TALL <= M; m += TALL, from += TALL * row, to += TALL * ldc)
      tile(TALL, kind, K, from, row, term, panel, b, to, ldc);
    for (; m + 2 <= M; m += 2, from += 2 * row, to += 2 * ldc)
      tile(2, kind, K, from, row, term, panel, b, to, ldc);
    for (; m < M; m++, from += row, to += ldc)
      tile(1, kind, K, from, row, term, panel, b, to, ldc);
  }
}

/* Panels with the n rows of x as columns, K numbers each. */
INLINE void pack_across(const float *x, int64_t ld, int64_t n, int64_t K, float *panels) {
  for (int64_t j = 0; j < n; j += PANEL, panels += K * PANEL)
    for (int64_t c = 0; c < PANEL; c++)
      for (int64_t k = 0; k < K; k++)
        panels[k * PANEL + c] = j + c < n ? x[(j + c) * ld + k] : 0;
}

/* Panels with the K rows of x as terms, n numbers each. */
INLINE void pack_along(const float *x, int64_t ld, int64_t n, int64_t K, float *panels) {
  for (int64_t j = 0; j < n; j += PANEL, panels += K * PANEL)
    for (int64_t k = 0; k < K; k++)
      for (int64_t c = 0; c < PANEL; c++)
        panels[k * PANEL + c] = j + c < n ? x[k * ld + j + c] : 0;
}
