/* Products of a few float32 rows with a weight matrix kept in a small format: y = x @ W.T, float32 sums throughout.

   A forward over few rows is bound by reading weights, so they stay as small as they came: GGUF's Q4_1 (scale * code +
   minimum, 5 bits a weight) and Q8_0 (scale * code, 8.5 bits), or float16. Nothing is rounded here.

   Layout (packed_linear.py writes it): tiles of 16 outputs; in a tile, blocks of 32 inputs; in a block the codes of all
   16 outputs side by side, one output a vector lane, then the block's float16 scales and minima, one a lane.

   Every row is summed in one fixed order, however many rows come along: verifying ten tokens at once gives bit for bit
   the products that decoding them one by one gives. */

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
    UNROLLED for (int row = 0; row < rows; row++) {
        float *out = y + (long)row * outputs;
        if (lanes == LANES) {
            floats before = {0};
            if (add) memcpy(&before, out, sizeof before);
            before += total[row];
            memcpy(out, &before, sizeof before);
        } else {
            for (int lane = 0; lane < lanes; lane++) out[lane] = total[row][lane] + (add ? out[lane] : 0.0f);
        }
    }
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

INLINE float total_of(floats lanes) {
    float sum = 0;
    for (int lane = 0; lane < LANES; lane++) sum += lanes[lane];
    return sum;
}

/* Writes row `row` of x where the tiles read it: rows in groups of MOST_ROWS, a group as [inputs, rows of the group]. */
INLINE void prepare(const float *x, const float *norm, float epsilon, float *input, float *sums, int row, int rows,
                    int inputs, int stride) {
    int first = row / MOST_ROWS * MOST_ROWS, width = rows - first < MOST_ROWS ? rows - first : MOST_ROWS;
    float line[stride];
    memset(line, 0, sizeof line);
    memcpy(line, x + (long)row * inputs, sizeof(float) * inputs);
    if (norm != NULL) {
        floats squares = {0}, part;
        for (int k = 0; k < stride; k += LANES) {
            memcpy(&part, line + k, sizeof part);
            squares += part * part;
        }
        float factor = 1.0f / sqrtf(total_of(squares) / inputs + epsilon);
        for (int k = 0; k < inputs; k++) line[k] = norm[k] * (line[k] * factor);
    }
    float *out = input + (long)first * stride + row - first;
    for (int k = 0; k < stride; k++) out[(long)k * width] = line[k];
    float *sum = sums + (long)first * (stride / BLOCK) + row - first;
    for (int block = 0; block < stride / BLOCK; block++) {
        floats low, high;
        memcpy(&low, line + block * BLOCK, sizeof low);
        memcpy(&high, line + block * BLOCK + LANES, sizeof high);
        sum[(long)block * width] = total_of(low + high);
    }
}

/* x float32 [rows, inputs], y float32 [rows, outputs]. With `norm` [inputs], x goes through an RMS norm first; with
   `add`, the products are added to what y holds. Returns 0, or 1 when there is no memory. */
int product(int format, const uint8_t *weights, const float *x, const float *norm, float epsilon, float *y, int add,
            int rows, int inputs, int outputs, int threads) {
    int blocks = (inputs + BLOCK - 1) / BLOCK, stride = blocks * BLOCK;
    float *input = malloc(sizeof(float) * (size_t)rows * (stride + blocks));
    if (input == NULL) return 1;
    float *sums = input + (long)rows * stride;
    for (int row = 0; row < rows; row++) prepare(x, norm, epsilon, input, sums, row, rows, inputs, stride);
    if (format == Q4_1) all_tiles(Q4_1, Q4_1_BYTES, weights, input, sums, stride, y, add, rows, outputs, threads);
    if (format == Q8_0) all_tiles(Q8_0, Q8_0_BYTES, weights, input, sums, stride, y, add, rows, outputs, threads);
    if (format == FLOAT16) all_tiles(FLOAT16, FLOAT16_BYTES, weights, input, sums, stride, y, add, rows, outputs, threads);
    free(input);
    return 0;
}
