// Products of 1024 cubed as one would write them by hand for one instruction set: what `gemm.py` holds ours against.
//
// int8 by int8 to int32, one thread; the right operand packed before. Reads a number of runs per line, answers with the
// nanoseconds each took. Ends with exit code 1 when a sum is wrong, 2 when the processor or the system refuses.
//
//     cc -O3 -mavx512f -mavx512bw -mavx512vnni -mamx-tile -mamx-int8 gemm.c -o gemm && ./gemm avx512vnni|amx

#include <immintrin.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { SIDE = 1024, PANEL = 16, ROWS = 6, WIDTH = 4 };

static int8_t *a, *b, *panels;
static int32_t *c, start[SIDE] __attribute__((aligned(64)));

// b[p][j] to lines of sixteen columns by four rows, `width` panels of columns side by side.
static void pack(int width) {
    for (int j = 0; j < SIDE; j++)
        for (int p = 0; p < SIDE; p++) {
            size_t line = (size_t)(j / PANEL / width) * width * (SIDE / 4) + p / 4 * width + j / PANEL % width;
            panels[line * 64 + j % PANEL * 4 + p % 4] = b[p * SIDE + j];
        }
}

// Six rows by four vectors of sums in registers. Left codes are unsigned: 128 more than they are, which `start` takes back.
static void vnni(void) {
    static uint8_t *flipped;
    if (!flipped) {
        flipped = aligned_alloc(4096, SIDE * SIDE);
        for (int i = 0; i < SIDE * SIDE; i++) flipped[i] = (uint8_t)a[i] ^ 0x80;
    }
    for (int j = 0; j < SIDE; j += PANEL * WIDTH) {
        const __m512i *first = (const __m512i *)(panels + (size_t)j * SIDE);
        for (int i = 0; i < SIDE; i = i + ROWS < SIDE && i + 2 * ROWS > SIDE ? SIDE - ROWS : i + ROWS) {
            const uint8_t *rows = flipped + (size_t)i * SIDE;
#define EACH_ROW(ROW) ROW(0) ROW(1) ROW(2) ROW(3) ROW(4) ROW(5)
#define BEGIN(r) __m512i sum##r##0 = begin[0], sum##r##1 = begin[1], sum##r##2 = begin[2], sum##r##3 = begin[3];
// Not the intrinsic: compilers of 2022 store every sum at every step with it.
#define DOT(sum, codes, weights) __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(codes), "v"(weights))
#define ADD(r)                                                      \
    codes = _mm512_set1_epi32(*(const int32_t *)(rows + r * SIDE)); \
    DOT(sum##r##0, codes, weights0);                                \
    DOT(sum##r##1, codes, weights1);                                \
    DOT(sum##r##2, codes, weights2);                                \
    DOT(sum##r##3, codes, weights3);
#define STORE(r)                                         \
    _mm512_store_si512(sums + r * SIDE, sum##r##0);      \
    _mm512_store_si512(sums + r * SIDE + 16, sum##r##1); \
    _mm512_store_si512(sums + r * SIDE + 32, sum##r##2); \
    _mm512_store_si512(sums + r * SIDE + 48, sum##r##3);
            const __m512i *begin = (const __m512i *)(start + j);
            EACH_ROW(BEGIN)
            for (const __m512i *block = first; block < first + SIDE; block += WIDTH, rows += 4) {
                __m512i codes, weights0 = block[0], weights1 = block[1], weights2 = block[2], weights3 = block[3];
                EACH_ROW(ADD)
            }
            int32_t *sums = c + (size_t)i * SIDE + j;
            EACH_ROW(STORE)
        }
    }
}

// Two registers of rows by two of columns.
static void amx(void) {
    static struct {
        uint8_t palette, row, reserved[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } __attribute__((aligned(64))) shapes = {.palette = 1};
    for (int t = 0; t < 8; t++) shapes.bytes[t] = 64, shapes.rows[t] = 16;
    __asm__ volatile("" ::: "memory");
    _tile_loadconfig(&shapes);
    for (int j = 0; j < SIDE; j += 2 * PANEL) {
        const int8_t *left = panels + (size_t)j * SIDE, *right = left + PANEL * SIDE;
        for (int i = 0; i < SIDE; i += 32) {
            const int8_t *upper = a + (size_t)i * SIDE, *lower = upper + 16 * SIDE;
            _tile_zero(0);
            _tile_zero(1);
            _tile_zero(2);
            _tile_zero(3);
            for (int p = 0; p < SIDE; p += 64) {
                _tile_loadd(4, upper + p, SIDE);
                _tile_loadd(6, left + p * PANEL, 64);
                _tile_dpbssd(0, 4, 6);
                _tile_loadd(7, right + p * PANEL, 64);
                _tile_dpbssd(1, 4, 7);
                _tile_loadd(5, lower + p, SIDE);
                _tile_dpbssd(2, 5, 6);
                _tile_dpbssd(3, 5, 7);
            }
            int32_t *sums = c + (size_t)i * SIDE + j;
            _tile_stored(0, sums, 4 * SIDE);
            _tile_stored(1, sums + PANEL, 4 * SIDE);
            _tile_stored(2, sums + 16 * SIDE, 4 * SIDE);
            _tile_stored(3, sums + 16 * SIDE + PANEL, 4 * SIDE);
        }
    }
    _tile_release();
}

static long nanoseconds(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000L + time.tv_nsec;
}

int main(int count, char **arguments) {
    int tiles = count > 1 && !strcmp(arguments[1], "amx");
    // ARCH_REQ_XCOMP_PERM for the state of the tiles.
    if (tiles && syscall(SYS_arch_prctl, 0x1023, 18)) return 2;
    if (!__builtin_cpu_supports("avx512vnni")) return 2;
    a = aligned_alloc(4096, SIDE * SIDE);
    b = aligned_alloc(4096, SIDE * SIDE);
    panels = aligned_alloc(4096, SIDE * SIDE);
    c = aligned_alloc(4096, sizeof *c * SIDE * SIDE);
    for (int i = 0; i < SIDE * SIDE; i++) a[i] = (int8_t)rand(), b[i] = (int8_t)rand();
    for (int p = 0; p < SIDE; p++)
        for (int j = 0; j < SIDE; j++) start[j] -= 128 * b[p * SIDE + j];
    pack(tiles ? 1 : WIDTH);
    void (*multiply)(void) = tiles ? amx : vnni;
    multiply();
    for (int i = 0; i < SIDE; i++)
        for (int j = i % 7; j < SIDE; j += 7) {
            int32_t sum = 0;
            for (int p = 0; p < SIDE; p++) sum += a[i * SIDE + p] * b[p * SIDE + j];
            if (sum != c[i * SIDE + j]) return 1;
        }
    puts("ready");
    fflush(stdout);
    for (int runs; scanf("%d", &runs) == 1; fflush(stdout)) {
        for (int run = 0; run < runs; run++) {
            long begin = nanoseconds();
            multiply();
            printf("%s%ld", run ? ", " : "[", nanoseconds() - begin);
        }
        puts("]");
    }
    return 0;
}
