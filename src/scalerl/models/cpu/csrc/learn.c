/* The parts of the training pass that are not products of large matrices: norm, SwiGLU, and
   attention with its rotary embedding, forward and backward.

   Attention works on spans: a row's completion, which looks at its prompt and causally at itself,
   or a prompt, which looks at itself. Tokens of a span are neighbours, there is no padding, and
   what lies beyond a token is not computed (but for the rest of a tile). */
#include "product.h"

#define WHOLE 32 /* numbers: as in packing.py */

/* y = x / its root mean square; `inverse` is kept for the way back. */
void norm_forward(int64_t rows, int64_t n, float eps, const float *x, float *y, float *inverse) {
  for (int64_t r = 0; r < rows; r++, x += n, y += n) {
    const float by = inverse[r] = 1.0f / sqrtf(dot(x, x, n) / n + eps);
    for (int64_t i = 0; i < n; i++) y[i] = x[i] * by;
  }
}

void norm_backward(int64_t rows, int64_t n, const float *y, const float *inverse,
                   const float *grad, float *d_x) {
  for (int64_t r = 0; r < rows; r++, y += n, grad += n, d_x += n) {
    const float along = dot(grad, y, n) / n, by = inverse[r];
    for (int64_t i = 0; i < n; i++) d_x[i] = (grad[i] - y[i] * along) * by;
  }
}

/* silu(gate) * up, where a row is n of gate and n of up. */
void swiglu_forward(int64_t rows, int64_t n, const float *gate_up, float *out) {
  for (int64_t r = 0; r < rows; r++, gate_up += 2 * n, out += n) {
    int64_t i = 0;
    for (; i + VLEN <= n; i += VLEN) {
      vec g = load(gate_up + i);
      store(out + i, silu(g) * load(gate_up + n + i));
    }
    for (; i < n; i++) out[i] = gate_up[i] / (expf(-gate_up[i]) + 1.0f) * gate_up[n + i];
  }
}

void swiglu_backward(int64_t rows, int64_t n, const float *gate_up, const float *grad,
                     float *d_gate_up) {
  for (int64_t r = 0; r < rows; r++, gate_up += 2 * n, d_gate_up += 2 * n, grad += n) {
    int64_t i = 0;
    for (; i + VLEN <= n; i += VLEN) {
      vec g = load(gate_up + i), d = load(grad + i), s = 1.0f / (vexp(-g) + 1.0f);
      store(d_gate_up + i, d * load(gate_up + n + i) * s * (1.0f + g * (1.0f - s)));
      store(d_gate_up + n + i, d * g * s);
    }
    for (; i < n; i++) {
      const float g = gate_up[i], s = 1.0f / (expf(-g) + 1.0f);
      d_gate_up[i] = grad[i] * gate_up[n + i] * s * (1.0f + g * (1.0f - s));
      d_gate_up[n + i] = grad[i] * g * s;
    }
  }
}

typedef struct {
  int64_t tokens, heads, kv_heads, size;
} Shape;

typedef struct {
  int64_t first, count;               /* tokens that look */
  int64_t prompt_first, prompt_count; /* at these, and at themselves */
  int64_t kept;                       /* where its probabilities are */
} Span;

/* Heads of every token by its angle (or back again), from rows of ld to rows of ld_to. */
static void turn(int64_t tokens, int64_t heads, int64_t size, const float *by, float back,
                 const float *x, int64_t ld, float *to, int64_t ld_to) {
  for (int64_t t = 0; t < tokens; t++, by += size, x += ld, to += ld_to)
    for (int64_t h = 0; h < heads; h++)
      for (int64_t i = 0; i < size; i += 2) {
        const float re = x[h * size + i], im = x[h * size + i + 1], s = by[i + 1] * back;
        to[h * size + i] = re * by[i] - im * s;
        to[h * size + i + 1] = re * s + im * by[i];
      }
}

/* The rows of a head that a span looks at, side by side. */
static void gather(const Span *span, const float *x, int64_t ld, int64_t size, float *to) {
  for (int64_t i = 0; i < span->prompt_count; i++, to += size)
    memcpy(to, x + (span->prompt_first + i) * ld, size * sizeof(float));
  for (int64_t i = 0; i < span->count; i++, to += size)
    memcpy(to, x + (span->first + i) * ld, size * sizeof(float));
}

static void scatter_add(const Span *span, const float *from, int64_t ld_from, int64_t size,
                        float *to, int64_t ld) {
  for (int64_t i = 0; i < span->prompt_count + span->count; i++, from += ld_from) {
    const int64_t token = i < span->prompt_count ? span->prompt_first + i
                                                 : span->first + i - span->prompt_count;
    for (int64_t d = 0; d < size; d++) to[token * ld + d] += from[d];
  }
}

/* a (rows of a span) @ what they look at: only where a row may look, in whole tiles. */
static void looks(const Span *span, const float *a, int64_t ld, int64_t size, const float *panels,
                  float *c, int64_t ldc) {
  const int64_t S = span->prompt_count + span->count, T = span->count;
  for (int64_t n = 0; n < S; n += PANEL) {
    const int64_t late = n - span->prompt_count, m = late > 0 ? late / TALL * TALL : 0;
    product(STORE, T - m, PANEL, size, a + m * ld, ld, 1, panels + n * size, size, 0,
            c + m * ldc + n, ldc);
  }
}

/* weights (rows of a span, columns of what they look at) @ panels, into rows of `size`. */
static void mixes(const Span *span, const float *weights, int64_t ld, const float *panels,
                  int64_t size, float *tile_of, float *c, int64_t ldc) {
  const int64_t S = span->prompt_count + span->count, T = span->count, wide = up(size, PANEL);
  for (int64_t m = 0; m < T; m += TALL) {
    const int64_t M = T - m < TALL ? T - m : TALL, K = span->prompt_count + m + M;
    product(STORE, M, size, K, weights + m * ld, ld, 1, panels, S, 0, tile_of, wide);
    for (int64_t i = 0; i < M; i++)
      memcpy(c + (m + i) * ldc, tile_of + i * wide, size * sizeof(float));
  }
}

/* sums += weights transposed @ panels (of the span's rows). */
static void gives(const Span *span, const float *weights, int64_t ld, const float *panels,
                  int64_t size, float *sums) {
  const int64_t S = span->prompt_count + span->count, T = span->count, wide = up(size, PANEL);
  for (int64_t n = 0; n < S; n += TALL) {
    const int64_t late = n - span->prompt_count, from = late > 0 ? late : 0;
    product(ADD, S - n < TALL ? S - n : TALL, size, T - from, weights + from * ld + n, 1, ld,
            panels + from * PANEL, T, 0, sums + n * wide, wide);
  }
}

/* Floats of working memory for spans that look at S tokens at most, of which T are their own. */
int64_t attention_room(const Shape *s, int64_t S, int64_t T) {
  const int64_t wide = up(s->size, PANEL), all_S = up(S, WHOLE);
  return 6 * all_S * wide + 2 * up(T, PANEL) * wide + T * all_S + TALL * wide;
}

/* `turned` (queries and keys) and `kept` (probabilities) are kept for the way back. */
void attention_forward(const Shape *s, const Span *spans, int64_t n_spans, const float *qkv,
                       const float *angle, float *turned, float *kept, float *out, float *work) {
  const int64_t size = s->size, wide = up(size, PANEL), group = s->heads / s->kv_heads;
  const int64_t ld = (s->heads + 2 * s->kv_heads) * size, ld_qk = (s->heads + s->kv_heads) * size;
  turn(s->tokens, s->heads + s->kv_heads, size, angle, 1.0f, qkv, ld, turned, ld_qk);
  for (const Span *span = spans; span < spans + n_spans; span++) {
    const int64_t P = span->prompt_count, T = span->count, S = P + T, ld_p = up(S, WHOLE);
    float *rows = work, *keys = rows + ld_p * wide, *values = keys + ld_p * wide;
    float *tile_of = values + ld_p * wide, *p = kept + span->kept;
    for (int64_t h = 0; h < s->kv_heads; h++) {
      gather(span, turned + (s->heads + h) * size, ld_qk, size, rows);
      pack_across(rows, size, S, size, keys);
      gather(span, qkv + (s->heads + s->kv_heads + h) * size, ld, size, rows);
      pack_along(rows, size, size, S, values);
      for (int64_t head = h * group; head < (h + 1) * group; head++, p += T * ld_p) {
        looks(span, turned + span->first * ld_qk + head * size, ld_qk, size, keys, p, ld_p);
        for (int64_t t = 0; t < T; t++) {
          float *x = p + t * ld_p;
          const int64_t n = P + t + 1, whole = up(n, VLEN);
          for (int64_t i = n; i < whole; i++) x[i] = -1e30f;
          const float share = 1.0f / total(exponentials(x, whole));
          for (int64_t i = 0; i < whole; i += VLEN) store(x + i, load(x + i) * share);
          memset(x + n, 0, (ld_p - n) * sizeof(float));
        }
        mixes(span, p, ld_p, values, size, tile_of, out + span->first * s->heads * size + head * size,
              s->heads * size);
      }
    }
  }
}

/* d_qkv must be zero. */
void attention_backward(const Shape *s, const Span *spans, int64_t n_spans, const float *qkv,
                        const float *angle, const float *turned, const float *kept,
                        const float *grad, float *d_qkv, float *work) {
  const int64_t size = s->size, wide = up(size, PANEL), group = s->heads / s->kv_heads;
  const int64_t ld = (s->heads + 2 * s->kv_heads) * size, ld_qk = (s->heads + s->kv_heads) * size;
  const int64_t ld_o = s->heads * size;
  for (const Span *span = spans; span < spans + n_spans; span++) {
    const int64_t P = span->prompt_count, T = span->count, S = P + T, ld_p = up(S, WHOLE);
    float *rows = work, *keys = rows + ld_p * wide, *values = keys + ld_p * wide;
    float *d_keys = values + ld_p * wide, *d_values = d_keys + ld_p * wide;
    float *asked = d_values + ld_p * wide, *got = asked + up(T, PANEL) * wide;
    float *d_p = got + up(T, PANEL) * wide, *tile_of = d_p + T * ld_p;
    const float *p = kept + span->kept;
    for (int64_t h = 0; h < s->kv_heads; h++) {
      gather(span, turned + (s->heads + h) * size, ld_qk, size, rows);
      pack_along(rows, size, size, S, keys);
      gather(span, qkv + (s->heads + s->kv_heads + h) * size, ld, size, rows);
      pack_across(rows, size, S, size, values);
      memset(d_keys, 0, 2 * ld_p * wide * sizeof(float));
      for (int64_t head = h * group; head < (h + 1) * group; head++, p += T * ld_p) {
        const float *d_out = grad + span->first * ld_o + head * size;
        looks(span, d_out, ld_o, size, values, d_p, ld_p);
        for (int64_t t = 0; t < T; t++) {
          const int64_t n = P + t + 1, whole = up(n, VLEN);
          const float *x = p + t * ld_p;
          float *d = d_p + t * ld_p;
          for (int64_t i = n; i < whole; i++) d[i] = 0;
          vec sums = {0};
          for (int64_t i = 0; i < whole; i += VLEN) sums += load(x + i) * load(d + i);
          const float mean = total(sums);
          for (int64_t i = 0; i < whole; i += VLEN)
            store(d + i, load(x + i) * (load(d + i) - mean));
          memset(d + n, 0, (ld_p - n) * sizeof(float));
        }
        mixes(span, d_p, ld_p, keys, size, tile_of, d_qkv + span->first * ld + head * size, ld);
        pack_along(turned + span->first * ld_qk + head * size, ld_qk, size, T, asked);
        gives(span, d_p, ld_p, asked, size, d_keys);
        pack_along(d_out, ld_o, size, T, got);
        gives(span, p, ld_p, got, size, d_values);
      }
      scatter_add(span, d_keys, wide, size, d_qkv + (s->heads + h) * size, ld);
      scatter_add(span, d_values, wide, size, d_qkv + (s->heads + s->kv_heads + h) * size, ld);
    }
  }
  turn(s->tokens, s->heads + s->kv_heads, size, angle, -1.0f, d_qkv, ld, d_qkv, ld);
}
