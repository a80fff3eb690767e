/* The two loops in which a forward over few rows spends its time on a CPU: products with weights kept in a small format,
   and attention over a cache. float32 throughout; nothing is rounded to anything smaller.

   Every row is summed in one fixed order, however many rows come along and however many others it does not see:
   verifying a tree gives bit for bit what decoding its paths token by token gives.

   Weights are bound by memory, so they stay as small as they came: GGUF's Q4_1 (scale * code + minimum, 5 bits a weight)
   and Q8_0 (scale * code, 8.5 bits), or float16. Their layout (packed_linear.py writes it): tiles of 16 outputs; in a
   tile, blocks of 32 inputs; in a block the codes of all 16 outputs side by side, one output a vector lane, then the
   block's float16 scales and minima, one a lane. */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#if defined(__F16C__)
#include <immintrin.h>
#endif

#define LANES 16
#define BLOCK 32
#if defined(__AVX512F__)
#define MOST_ROWS 12 /* accumulators that fit the registers */
#else
#define MOST_ROWS 4
#endif

typedef float floats __attribute__((vector_size(4 * LANES)));
typedef int32_t integers __attribute__((vector_size(4 * LANES)));

enum format { Q4_1, Q8_0, FLOAT16 };
enum { Q4_1_BYTES = 16 * BLOCK / 2 + 2 * 2 * LANES, Q8_0_BYTES = 16 * BLOCK + 2 * LANES, FLOAT16_BYTES = 2 * LANES * BLOCK };

#define UNROLLED _Pragma("GCC unroll 16") /* else the sums would live in memory */
#define INLINE static inline __attribute__((always_inline))

INLINE integers load(const uint8_t *source) {
    integers words;
    memcpy(&words, source, sizeof words);
    return words;
}

/* 16 float16 values as float32. */
INLINE floats halves(const uint8_t *source) {
    floats result;
#if defined(__AVX512F__)
    result = (floats)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)source));
#elif defined(__F16C__)
    __m256 low = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)source));
    __m256 high = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(source + LANES)));
    memcpy(&result, &low, sizeof low);
    memcpy((char *)&result + sizeof low, &high, sizeof high);
#else
    for (int lane = 0; lane < LANES; lane++) {
        _Float16 half;
        memcpy(&half, source + 2 * lane, sizeof half);
        result[lane] = (float)half;
    }
#endif
    return result;
}

typedef float eight __attribute__((vector_size(32)));
typedef float four __attribute__((vector_size(16)));

INLINE float total_of(floats lanes) {
    eight halves = __builtin_shufflevector(lanes, lanes, 0, 1, 2, 3, 4, 5, 6, 7) +
                   __builtin_shufflevector(lanes, lanes, 8, 9, 10, 11, 12, 13, 14, 15);
    four quarters = __builtin_shufflevector(halves, halves, 0, 1, 2, 3) + __builtin_shufflevector(halves, halves, 4, 5, 6, 7);
    return (quarters[0] + quarters[2]) + (quarters[1] + quarters[3]);
}

INLINE floats load_floats(const float *source) {
    floats lanes;
    memcpy(&lanes, source, sizeof lanes);
    return lanes;
}

INLINE floats at_least(float limit, floats x) {
    floats limits = (floats){0} + limit;
    integers below = x < limits;
    return (floats)(((integers)limits & below) | ((integers)x & ~below));
}

/* e to the x for x <= 88, to 2e-7: 2^n times a polynomial over the rest (Cephes' expf). */
INLINE floats exponential(floats x) {
    x = at_least(-87.0f, x);
    floats shifted = x * 1.44269504f + 12582912.0f; /* 1.5 * 2^23: what is added rounds to an integer */
    floats n = shifted - 12582912.0f;
    floats r = x - n * 0.693359375f + n * 2.12194440e-4f;
    floats p = (floats){0} + 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    return p * (floats)((__builtin_convertvector(n, integers) + 127) << 23);
}

/* Writes 16 outputs of a row, the last tile fewer. */
INLINE void finish(float *out, floats total, int lanes, int add) {
    if (lanes == LANES) {
        if (add) total += load_floats(out);
        memcpy(out, &total, sizeof total);
    } else {
        for (int lane = 0; lane < lanes; lane++) out[lane] = total[lane] + (add ? out[lane] : 0.0f);
    }
}

/* Two neighbouring inputs times their 16 weights each; two chains of sums hide the latency of the additions. The
   compiler must not know x: it would broadcast the inputs of a whole block to memory, and be half as fast. */
#define MULTIPLY(first, second, input)                            \
    __asm__("" : "+r"(x));                                        \
    UNROLLED for (int row = 0; row < rows; row++) {               \
        even[row] += (first) * x[(input) * rows + row];           \
        odd[row] += (second) * x[((input) + 1) * rows + row];     \
    }

/* One block of 32 inputs for 16 outputs: unscaled sums into even and odd. */
INLINE void block_q4_1(int rows, const uint8_t *w, const float *x, floats *even, floats *odd) {
#pragma GCC unroll 4
    for (int word = 0; word < 4; word++) {
        integers codes = load(w + 64 * word);
#pragma GCC unroll 4
        for (int pair = 0; pair < 4; pair++) {
            floats first = __builtin_convertvector((codes >> (8 * pair)) & 15, floats);
            floats second = __builtin_convertvector((codes >> (8 * pair + 4)) & 15, floats);
            MULTIPLY(first, second, 8 * word + 2 * pair)
        }
    }
}

INLINE void block_q8_0(int rows, const uint8_t *w, const float *x, floats *even, floats *odd) {
#pragma GCC unroll 8
    for (int word = 0; word < 8; word++) {
        integers codes = load(w + 64 * word);
#pragma GCC unroll 2
        for (int pair = 0; pair < 2; pair++) {
            floats first = __builtin_convertvector((codes << (24 - 16 * pair)) >> 24, floats);
            floats second = __builtin_convertvector((codes << (16 - 16 * pair)) >> 24, floats);
            MULTIPLY(first, second, 4 * word + 2 * pair)
        }
    }
}

INLINE void block_float16(int rows, const uint8_t *w, const float *x, floats *even, floats *odd) {
#pragma GCC unroll 16
    for (int pair = 0; pair < BLOCK / 2; pair++) {
        floats first = halves(w + 64 * pair), second = halves(w + 64 * pair + 32);
        MULTIPLY(first, second, 2 * pair)
    }
}

/* 16 outputs of `rows` rows. x is [inputs, rows]; `sums` [blocks, rows] holds what the minima multiply. */
INLINE void tile(enum format format, int rows, const uint8_t *w, const float *x, const float *sums, int stride,
                 float *y, int outputs, int lanes, int add) {
    floats total[MOST_ROWS];
    UNROLLED for (int row = 0; row < rows; row++) total[row] = (floats){0};
    for (int block = 0; block < stride / BLOCK; block++, x += BLOCK * rows, sums += rows) {
        /* The processor's own prefetching stops at page ends. */
        for (int line = 0; line < 6; line++) __builtin_prefetch(w + 4096 + 64 * line);
        floats even[MOST_ROWS], odd[MOST_ROWS];
        UNROLLED for (int row = 0; row < rows; row++) even[row] = odd[row] = (floats){0};
        if (format == Q4_1) {
            block_q4_1(rows, w, x, even, odd);
            floats scale = halves(w + 256), minimum = halves(w + 256 + 2 * LANES);
            UNROLLED for (int row = 0; row < rows; row++) {
                total[row] += scale * (even[row] + odd[row]);
                total[row] += minimum * sums[row];
            }
            w += Q4_1_BYTES;
        } else if (format == Q8_0) {
            block_q8_0(rows, w, x, even, odd);
            floats scale = halves(w + 512);
            UNROLLED for (int row = 0; row < rows; row++) total[row] += scale * (even[row] + odd[row]);
            w += Q8_0_BYTES;
        } else {
            block_float16(rows, w, x, even, odd);
            UNROLLED for (int row = 0; row < rows; row++) total[row] += even[row] + odd[row];
            w += FLOAT16_BYTES;
        }
    }
    UNROLLED for (int row = 0; row < rows; row++) finish(y + (long)row * outputs, total[row], lanes, add);
}

#define CASE(count)                                                                       \
    case count:                                                                           \
        tile(format, count, w, in, block_sums, stride, out, outputs, lanes, add);         \
        break;

INLINE void all_tiles(enum format format, long bytes, const uint8_t *weights, const float *x, const float *sums,
                      int stride, float *y, int add, int rows, int outputs, int threads) {
    int tiles = (outputs + LANES - 1) / LANES, blocks = stride / BLOCK;
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int t = 0; t < tiles; t++) {
        const uint8_t *w = weights + (long)t * blocks * bytes;
        int lanes = outputs - t * LANES < LANES ? outputs - t * LANES : LANES;
        for (int row = 0; row < rows; row += MOST_ROWS) {
            const float *in = x + (long)row * stride, *block_sums = sums + (long)row * blocks;
            float *out = y + (long)row * outputs + t * LANES;
            switch (rows - row < MOST_ROWS ? rows - row : MOST_ROWS) {
                CASE(1) CASE(2) CASE(3) CASE(4)
#if MOST_ROWS > 4
                CASE(5) CASE(6) CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12)
#endif
            }
        }
    }
}

/* What becomes of a product's input first. GATED: x is [rows, 2 * inputs], gates and values; silu(gate) * value. */
enum preparation { AS_IS, NORMED, GATED };

/* Row `row` of x, prepared, into line [stride]; what is beyond the inputs becomes zero. */
INLINE void prepare(enum preparation preparation, const float *x, const float *norm, float epsilon, float *line, int row,
                    int inputs, int stride) {
    memset(line + inputs, 0, sizeof(float) * (stride - inputs));
    if (preparation == GATED) {
        const float *gates = x + 2L * row * inputs, *values = gates + inputs;
        float gate[LANES] = {0}, value[LANES] = {0};
        for (int k = 0; k < inputs; k += LANES) {
            int count = inputs - k < LANES ? inputs - k : LANES;
            memcpy(gate, gates + k, sizeof(float) * count);
            memcpy(value, values + k, sizeof(float) * count);
            floats g = load_floats(gate), product = load_floats(value) * (g / (1.0f + exponential(-at_least(-87.0f, g))));
            memcpy(line + k, &product, sizeof(float) * count);
        }
    } else {
        memcpy(line, x + (long)row * inputs, sizeof(float) * inputs);
    }
    if (preparation == NORMED) {
        floats squares = {0};
        for (int k = 0; k < stride; k += LANES) squares += load_floats(line + k) * load_floats(line + k);
        float factor = 1.0f / sqrtf(total_of(squares) / inputs + epsilon);
        for (int k = 0; k < inputs; k++) line[k] = norm[k] * (line[k] * factor);
    }
}

/* Where the tiles read row `row`: rows in groups of MOST_ROWS, a group as [inputs, rows of the group]. */
INLINE void interleave(const float *line, float *input, float *sums, int row, int rows, int stride) {
    int first = row / MOST_ROWS * MOST_ROWS, width = rows - first < MOST_ROWS ? rows - first : MOST_ROWS;
    float *out = input + (long)first * stride + row - first;
    float *sum = sums + (long)first * (stride / BLOCK) + row - first;
    for (int k = 0; k < stride; k++) out[(long)k * width] = line[k];
    for (int block = 0; block < stride / BLOCK; block++) {
        const float *part = line + block * BLOCK;
        sum[(long)block * width] = total_of(load_floats(part) + load_floats(part + LANES));
    }
}

/* x float32 [rows, inputs], y float32 [rows, outputs]; with `add`, the products are added to what y holds. Returns 0, or
   1 when there is no memory. */
int product(int format, const uint8_t *weights, int preparation, const float *x, const float *norm, float epsilon,
            float *y, int add, int rows, int inputs, int outputs, int threads) {
    int blocks = (inputs + BLOCK - 1) / BLOCK, stride = blocks * BLOCK;
    float line[stride];
    float *input = malloc(sizeof(float) * (size_t)rows * (stride + blocks));
    if (input == NULL) return 1;
    float *sums = input + (long)rows * stride;
    for (int row = 0; row < rows; row++) {
        prepare(preparation, x, norm, epsilon, line, row, inputs, stride);
        interleave(line, input, sums, row, rows, stride);
    }
    if (format == Q4_1) all_tiles(Q4_1, Q4_1_BYTES, weights, input, sums, stride, y, add, rows, outputs, threads);
    if (format == Q8_0) all_tiles(Q8_0, Q8_0_BYTES, weights, input, sums, stride, y, add, rows, outputs, threads);
    if (format == FLOAT16) all_tiles(FLOAT16, FLOAT16_BYTES, weights, input, sums, stride, y, add, rows, outputs, threads);
    free(input);
    return 0;
}

/* Rotates one head of a row in place; cosines and signed sines [size] are those of the row's position. */
INLINE void rotate(float *head, const float *cosines, const float *sines, int size) {
    for (int k = 0; k < size / 2; k++) {
        float low = head[k], high = head[k + size / 2];
        head[k] = low * cosines[k] + high * sines[k];
        head[k + size / 2] = high * cosines[k + size / 2] + low * sines[k + size / 2];
    }
}

/* One head of one row over the `count` cache rows `seen`, in that order. scores and seen have room for 16 more. */
INLINE void attend_sized(const float *query, const float *keys, const float *values, int *seen, int count, float *scores,
                         float *out, int size, float scaling) {
    float highest = -INFINITY;
    for (int i = 0; i < count; i++) {
        const float *key = keys + (long)seen[i] * size;
        floats sum = {0};
        for (int k = 0; k < size; k += LANES) sum += load_floats(query + k) * load_floats(key + k);
        scores[i] = total_of(sum) * scaling;
        highest = scores[i] > highest ? scores[i] : highest;
    }
    floats sums = {0};
    for (int i = count; i % LANES; i++) scores[i] = -INFINITY;
    for (int i = 0; i < count; i += LANES) {
        floats weight = exponential(load_floats(scores + i) - highest);
        for (int lane = count - i; lane < LANES; lane++) weight[lane] = 0;
        sums += weight;
        memcpy(scores + i, &weight, sizeof weight);
    }
    float share = 1.0f / total_of(sums);
    /* All parts of a head at once, even and odd rows apart: sixteen additions under way instead of one. */
    for (int part = 0; part < size; part += 4 * LANES) {
        floats even[4], odd[4];
        int width = size - part < 4 * LANES ? (size - part) / LANES : 4;
        UNROLLED for (int k = 0; k < 4; k++) even[k] = odd[k] = (floats){0};
        scores[count] = 0;
        seen[count] = seen[count - 1];
        for (int i = 0; i < count; i += 2) {
            const float *first = values + (long)seen[i] * size + part, *second = values + (long)seen[i + 1] * size + part;
            UNROLLED for (int k = 0; k < 4; k++) {
                if (k >= width) break;
                even[k] += scores[i] * load_floats(first + k * LANES);
                odd[k] += scores[i + 1] * load_floats(second + k * LANES);
            }
        }
        for (int k = 0; k < width; k++) {
            floats total = (even[k] + odd[k]) * share;
            memcpy(out + part + k * LANES, &total, sizeof total);
        }
    }
}

INLINE void attend(const float *query, const float *keys, const float *values, int *seen, int count, float *scores,
                   float *out, int size, float scaling) {
    if (size == 64) attend_sized(query, keys, values, seen, count, scores, out, 64, scaling);
    else if (size == 128) attend_sized(query, keys, values, seen, count, scores, out, 128, scaling);
    else attend_sized(query, keys, values, seen, count, scores, out, size, scaling);
}

/* Attention of new rows over a cache, their own keys and values written to it first.

   projected: float32 [rows, heads + 2 * shared, size], queries, keys and values of each row, changed in place.
   cosines, sines: [places, size], the sines negative in the first half; row i is rotated by line positions[i].
   keys, values: [shared, capacity, size]; `length` rows are there for all to see, then `pending` of a tree's earlier
   levels; the new ones come right after them.
   visible: bool [rows, pending + rows], which of the tree's rows a new row sees; NULL when it is the only one.
   out: [rows, heads, size]. size is a multiple of 16. Returns 0, or 1 when there is no memory. */
int attention(float *projected, const float *cosines, const float *sines, const int64_t *positions, float *keys,
              float *values, const uint8_t *visible, float *out, int rows, int heads, int shared, int size, int length,
              int pending, int capacity, float scaling, int threads) {
    int width = heads + 2 * shared, tree = pending + rows, most = length + tree, failed = 0;
    for (int row = 0; row < rows; row++) {
        float *line = projected + (long)row * width * size;
        for (int head = 0; head < heads + shared; head++)
            rotate(line + head * size, cosines + positions[row] * size, sines + positions[row] * size, size);
        for (int head = 0; head < shared; head++) {
            long place = ((long)head * capacity + length + pending + row) * size;
            memcpy(keys + place, line + (heads + head) * size, sizeof(float) * size);
            memcpy(values + place, line + (heads + shared + head) * size, sizeof(float) * size);
        }
    }
#pragma omp parallel num_threads(threads)
    {
        float *scores = malloc((sizeof(float) + sizeof(int)) * (size_t)(most + LANES));
        if (scores == NULL) failed = 1;
        int *seen = (int *)(scores + most + LANES);
#pragma omp for schedule(static)
        for (int item = 0; item < rows * heads; item++) {
            if (scores == NULL) continue;
            int row = item / heads, head = item % heads, count = length;
            long offset = (long)(head / (heads / shared)) * capacity * size;
            for (int i = 0; i < length; i++) seen[i] = i;
            for (int i = 0; i < tree; i++)
                if (visible == NULL || visible[row * tree + i]) seen[count++] = length + i;
            attend(projected + ((long)row * width + head) * size, keys + offset, values + offset, seen, count, scores,
                   out + ((long)row * heads + head) * size, size, scaling);
        }
        free(scores);
    }
    return failed;
}
