/* Drawing a token of every row: engine/sampling.py in one pass over the logits. */
#include "vectors.h"

/* SplitMix64, as in engine/sampling.py. */
static double uniform(int64_t seed, int64_t position) {
  const uint64_t golden = 0x9E3779B97F4A7C15u, one = 0xBF58476D1CE4E5B9u, two = 0x94D049BB133111EBu;
  uint64_t x = (uint64_t)seed * golden + (uint64_t)(position + 1) * one;
  for (int i = 0; i < 2; i++) {
    x += golden;
    x = (x ^ (x >> 30)) * one;
    x = (x ^ (x >> 27)) * two;
    x ^= x >> 31;
  }
  return (double)(x >> 11) * 0x1p-53;
}

/* Returns the number of rows with logits that are not finite: nothing is to be drawn from them. `work`
   holds words + VLEN floats. */
int64_t draw(int64_t rows, int64_t words, const float *logits, const float *temperature,
             const int64_t *seed, const int64_t *position, int64_t *token, float *logprob,
             float *work) {
  int64_t wrong = 0;
  for (int64_t r = 0; r < rows; r++) {
    const float *z = logits + r * words;
    int64_t best = 0;
    for (int64_t v = 1; v < words; v++)
      if (z[v] > z[best]) best = v;
    const float most = z[best], inverse = temperature[r] > 0 ? 1.0f / temperature[r] : 1.0f;
    double sum = 0;
    for (int64_t from = 0; from < words; from += VLEN) {
      const int64_t n = words - from < VLEN ? words - from : VLEN;
      vec x = all(-INFINITY);
      if (n == VLEN)
        x = load(z + from);
      else
        memcpy(&x, z + from, n * sizeof(float));
      x = (x - most) * inverse;
      vec p = vexp(x);
      p = (vec)((ivec)p & ~(x < -87.0f)); /* what is impossible has no share at all */
      store(work + from, p);
      for (int i = 0; i < VLEN; i++) sum += p[i];
    }
    wrong += !isfinite(sum);
    double target = uniform(seed[r], position[r]) * sum, seen = 0;
    if (target > sum * (1 - 0x1p-52)) target = sum * (1 - 0x1p-52);
    int64_t v = 0;
    while (v < words - 1 && (seen += work[v]) <= target) v++;
    while (v > 0 && work[v] == 0) v--; /* rounding may have left the sum below the target */
    const int greedy = temperature[r] <= 0;
    token[r] = greedy ? best : v;
    logprob[r] = greedy ? 0.0f : (float)((z[v] - most) * inverse - log(sum));
  }
  return wrong;
}
