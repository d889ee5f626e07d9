/* One token more for many rows of a Llama-shaped model, all layers in one call.

   Rows are independent, so that a caller may give parts of them to several threads. A part is
   worked on in tiles of ROWS rows: their activations stay in the core's cache.

   Weights come packed in panels (product.h, decode.py).

   A row's keys and values lie in two places: those of its prompt, which its group shares, and its
   own. Keys are kept VLEN columns side by side, channel by channel: the scores of VLEN columns
   are one vector. Values are kept as they come. */
#include "product.h"

#define ROWS 128

typedef struct {
  const float *qkv, *qkv_bias, *qk_norm, *out, *out_bias, *gate_up, *down;
  float *keys, *values;
} Layer;

typedef struct {
  int64_t layers, width, heads, kv_heads, size, inner, columns;
  float eps;
  const Layer *layer;
  const float *embedding, *last_norm, *rotation;
} Model;

typedef struct {
  const int64_t *token; /* read next */
  const int64_t *slot;  /* where its own keys and values are */
  const int64_t *prompt_length, *own_length;
  /* [layer][kv head][column][channel], and the columns they have room for */
  const float *const *prompt_keys, *const *prompt_values;
  const int64_t *prompt_room;
} Rows;

/* Rows by their root mean square. */
INLINE void normed(const float *x, int64_t ld, int64_t M, int64_t n, float eps, float *to) {
  for (int64_t m = 0; m < M; m++, x += ld, to += ld) {
    const float by = 1.0f / sqrtf(dot(x, x, n) / n + eps);
    for (int64_t i = 0; i < n; i++) to[i] = x[i] * by;
  }
}

/* Norm (if any) and rotary embedding of a head, zero-filled to whole vectors. */
INLINE void turn(const float *x, const float *weight, const float *by, int64_t size, float eps,
                 float *to) {
  float scale = weight ? 1.0f / sqrtf(dot(x, x, size) / size + eps) : 1.0f;
  for (int64_t i = 0; i < size; i += 2) {
    float re = x[i] * scale, im = x[i + 1] * scale;
    if (weight) re *= weight[i], im *= weight[i + 1];
    to[i] = re * by[i] - im * by[i + 1];
    to[i + 1] = re * by[i + 1] + im * by[i];
  }
  for (int64_t i = size; i < up(size, VLEN); i++) to[i] = 0;
}

/* Scores of a query and n keys, in whole vectors; beyond n they weigh nothing. */
INLINE void scores_of(const float *q, const float *keys, int64_t n, int64_t deep, float *scores) {
  for (int64_t c = 0; c < n; c += VLEN) {
    const float *k = keys + c * deep;
    vec s0 = {0}, s1 = {0}, s2 = {0}, s3 = {0};
    for (int64_t d = 0; d < deep; d += 4) {
      s0 += q[d] * load(k + d * VLEN);
      s1 += q[d + 1] * load(k + (d + 1) * VLEN);
      s2 += q[d + 2] * load(k + (d + 2) * VLEN);
      s3 += q[d + 3] * load(k + (d + 3) * VLEN);
    }
    store(scores + c, (s0 + s1) + (s2 + s3));
  }
  for (int64_t c = n; c < up(n, VLEN); c++) scores[c] = -1e30f;
}

/* sum += weight * value, over n columns; four vectors of channels at a time. */
INLINE void weigh(const int vectors, const float *p, const float *values, int64_t n, int64_t deep,
                  float *sum) {
  vec even[4], odd[4];
#pragma GCC unroll 4
  for (int j = 0; j < vectors; j++) even[j] = load(sum + j * VLEN), odd[j] = (vec){0};
  int64_t c = 0;
  for (; c + 2 <= n; c += 2) {
    const float *v = values + c * deep;
#pragma GCC unroll 4
    for (int j = 0; j < vectors; j++) {
      even[j] += p[c] * load(v + j * VLEN);
      odd[j] += p[c + 1] * load(v + deep + j * VLEN);
    }
  }
#pragma GCC unroll 4
  for (int j = 0; j < vectors; j++) {
    if (c < n) even[j] += p[c] * load(values + c * deep + j * VLEN);
    store(sum + j * VLEN, even[j] + odd[j]);
  }
}

INLINE void weighted(const float *p, const float *values, int64_t n, int64_t deep, float *sum) {
  int64_t d = 0;
  for (; d + 4 * VLEN <= deep; d += 4 * VLEN) weigh(4, p, values + d, n, deep, sum + d);
  for (; d + 2 * VLEN <= deep; d += 2 * VLEN) weigh(2, p, values + d, n, deep, sum + d);
  for (; d < deep; d += VLEN) weigh(1, p, values + d, n, deep, sum + d);
}

/* One row looks at its prompt and at its own tokens, the newest included. */
static __attribute__((noinline)) void attend(const Model *m, int64_t at_layer, const Rows *rows, int64_t r, const float *qkv,
                   float *out, float *scores) {
  const Layer *w = m->layer + at_layer;
  const int64_t size = m->size, deep = up(size, VLEN), room = up(m->columns, VLEN);
  const int64_t prompt = rows->prompt_length[r], own = rows->own_length[r] + 1;
  const int64_t group = m->heads / m->kv_heads, held = rows->prompt_room[r];
  const float *by = m->rotation + (prompt + own - 1) * size;
  const int64_t wide = up(prompt, VLEN) + up(own, VLEN);
  float q[deep], sum[deep], *own_scores = scores + up(prompt, VLEN);
  for (int64_t h = 0; h < m->kv_heads; h++) {
    const int64_t head = at_layer * m->kv_heads + h;
    const float *shared_keys = rows->prompt_keys[r] + head * held * deep;
    const float *shared_values = rows->prompt_values[r] + head * held * deep;
    const int64_t mine = (rows->slot[r] * m->kv_heads + h) * room * deep;
    float *keys = w->keys + mine, *values = w->values + mine;
    const int64_t k_head = m->heads + h;
    turn(qkv + k_head * size, w->qk_norm ? w->qk_norm + k_head * size : 0, by, size, m->eps, q);
    const int64_t last = own - 1;
    float *block = keys + last / VLEN * VLEN * deep + last % VLEN;
    for (int64_t d = 0; d < deep; d++) block[d * VLEN] = q[d];
    const float *v = qkv + (m->heads + m->kv_heads + h) * size;
    for (int64_t d = 0; d < deep; d++) values[last * deep + d] = d < size ? v[d] : 0;
    for (int64_t g = 0; g < group; g++) {
      const int64_t q_head = h * group + g;
      turn(qkv + q_head * size, w->qk_norm ? w->qk_norm + q_head * size : 0, by, size, m->eps, q);
      scores_of(q, shared_keys, prompt, deep, scores);
      scores_of(q, keys, own, deep, own_scores);
      const vec sums = exponentials(scores, wide);
      memset(sum, 0, sizeof sum);
      weighted(scores, shared_values, prompt, deep, sum);
      weighted(own_scores, values, own, deep, sum);
      const float share = 1.0f / total(sums);
      float *to = out + q_head * size;
      for (int64_t d = 0; d < size; d++) to[d] = sum[d] * share;
    }
  }
}

int64_t vector_length(void) { return VLEN; }

/* Floats of working memory that `decode` needs. */
int64_t decode_room(const Model *m) {
  const int64_t x = up(m->width, PANEL), seen = up(m->heads * m->size, PANEL);
  const int64_t qkv = up((m->heads + 2 * m->kv_heads) * m->size, PANEL);
  const int64_t inner = up(m->inner, VLEN);
  return ROWS * (2 * x + qkv + seen + inner) + 2 * up(m->columns, VLEN) + VLEN;
}

/* Rows first .. last - 1: appends their tokens to the cache and writes the hidden states (rows,
   width) that the head is given. */
void decode(const Model *m, const Rows *rows, int64_t first, int64_t last, float *hidden,
            float *work) {
  const int64_t D = m->width, H = m->heads * m->size, I = m->inner;
  const int64_t Q = (m->heads + 2 * m->kv_heads) * m->size;
  const int64_t ld_x = up(D, PANEL), ld_q = up(Q, PANEL), ld_h = up(H, PANEL), ld_i = up(I, VLEN);
  float *x = work, *qkv = x + ROWS * ld_x, *seen = qkv + ROWS * ld_q, *bent = seen + ROWS * ld_h;
  float *even = bent + ROWS * ld_i, *scores = even + ROWS * ld_x;
  for (int64_t from = first; from < last; from += ROWS) {
    const int64_t M = last - from < ROWS ? last - from : ROWS;
    memset(x, 0, sizeof(float) * M * ld_x);
    for (int64_t i = 0; i < M; i++)
      memcpy(x + i * ld_x, m->embedding + rows->token[from + i] * D, sizeof(float) * D);
    for (int64_t l = 0; l < m->layers; l++) {
      const Layer *w = m->layer + l;
      normed(x, ld_x, M, D, m->eps, even);
      product(STORE, M, Q, D, even, ld_x, 1, w->qkv, D, w->qkv_bias, qkv, ld_q);
      for (int64_t i = 0; i < M; i++)
        attend(m, l, rows, from + i, qkv + i * ld_q, seen + i * ld_h, scores);
      for (int64_t i = 0; w->out_bias && i < M; i++)
        for (int64_t d = 0; d < D; d++) x[i * ld_x + d] += w->out_bias[d];
      product(ADD, M, D, H, seen, ld_h, 1, w->out, H, 0, x, ld_x);
      normed(x, ld_x, M, D, m->eps, even);
      product(SWIGLU, M, 2 * ld_i, D, even, ld_x, 1, w->gate_up, D, 0, bent, ld_i);
      product(ADD, M, D, I, bent, ld_i, 1, w->down, I, 0, x, ld_x);
    }
    normed(x, ld_x, M, D, m->eps, even);
    for (int64_t i = 0; i < M; i++)
      for (int64_t d = 0; d < D; d++)
        hidden[(from - first + i) * D + d] = even[i * ld_x + d] * m->last_norm[d];
  }
}
