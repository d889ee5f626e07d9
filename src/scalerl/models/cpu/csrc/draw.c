/* Drawing a token of every row: engine/sampling.py in one pass over the logits. */
#include "vectors.h"

#define GOLDEN 0x9E3779B97F4A7C15u
#define MIX_1 0xBF58476D1CE4E5B9u
#define MIX_2 0x94D049BB133111EBu

/* SplitMix64, as in engine/sampling.py. */
INLINE uint64_t mixed(uint64_t x) {
  x += GOLDEN;
  x = (x ^ (x >> 30)) * MIX_1;
  x = (x ^ (x >> 27)) * MIX_2;
  return x ^ (x >> 31);
}

INLINE uint64_t start(int64_t seed, int64_t position) {
  return (uint64_t)seed * GOLDEN + (uint64_t)(position + 1) * MIX_1;
}

static double uniform(int64_t seed, int64_t position) {
  return (double)(mixed(mixed(start(seed, position))) >> 11) * 0x1p-53;
}

/* Logits with noise, as in engine/noise.py: a 64-bit number gives four words their places in the
   table of quantiles. */
static void add_noise(int64_t words, const float *z, float size, int64_t seed, int64_t position,
                      const float *quantiles, float *to) {
  const uint64_t key = mixed(mixed(start(seed, position)) ^ MIX_2);
  for (int64_t from = 0; from < words; from += 4) {
    const uint64_t bits = mixed(key + (uint64_t)(from / 4) * GOLDEN);
    const int64_t n = words - from < 4 ? words - from : 4;
    for (int64_t i = 0; i < n; i++)
      to[from + i] = z[from + i] + size * quantiles[(bits >> 16 * i) & 0xFFFF];
  }
}

/* Returns the number of rows with logits that are not finite: nothing is to be drawn from them. `work`
   holds words + VLEN floats, and as many more where there is noise. `noise` is null without any. */
int64_t draw(int64_t rows, int64_t words, const float *logits, const float *temperature,
             const int64_t *seed, const int64_t *position, int64_t *token, float *logprob,
             float *work, const float *noise, const float *quantiles) {
  int64_t wrong = 0;
  for (int64_t r = 0; r < rows; r++) {
    const float *z = logits + r * words;
    if (noise && noise[r] > 0) {
      float *noisy = work + words + VLEN;
      add_noise(words, z, noise[r], seed[r], position[r], quantiles, noisy);
      z = noisy;
    }
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
