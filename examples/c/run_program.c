/*
 * Runs a program on arrays in files, from C.
 *
 *     run_program PROGRAM.tpu INPUT.bin... OUTPUT.bin...
 *     run_program --codec CODEC.json RAW.tpu INPUT.bin... OUTPUT.bin...
 *
 * Files hold the bytes of one array each, row-major and little-endian, in the model's order, shapes and types. A raw
 * program knows nothing of these: its codec does.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tpuflow.h"

static void check(tpuflow_status status) {
    if (status != TPUFLOW_STATUS_OK) {
        fprintf(stderr, "error: %s\n", tpuflow_last_error());
        exit(1);
    }
}

static void *room(size_t bytes) {
    void *found = malloc(bytes ? bytes : 1);
    if (!found) {
        fprintf(stderr, "error: no memory for %zu bytes\n", bytes);
        exit(1);
    }
    return found;
}

static void fail(const char *path, const char *what) {
    fprintf(stderr, "error: %s: %s\n", path, what);
    exit(1);
}

/* The bytes of a file, which must be exactly so many. */
static uint8_t *read_file(const char *path, size_t bytes) {
    uint8_t *array = room(bytes);
    FILE *file = fopen(path, "rb");
    if (!file) fail(path, "cannot be opened");
    size_t found = fread(array, 1, bytes, file);
    if (found != bytes || fgetc(file) != EOF) fail(path, "has not the bytes of the input");
    fclose(file);
    return array;
}

static void write_file(const char *path, const uint8_t *array, size_t bytes) {
    FILE *file = fopen(path, "wb");
    if (!file || fwrite(array, 1, bytes, file) != bytes || fclose(file) != 0) fail(path, "cannot be written");
}

static void describe(const char *way, const tpuflow_port *port) {
    printf("%s %s [", way, port->name);
    for (size_t axis = 0; axis < port->rank; axis++) printf(axis ? ", %zu" : "%zu", port->shape[axis]);
    printf("]: %zu bytes, %zu words of %zu", port->array_bytes, port->words_bytes / port->cache_word_length,
           port->cache_word_length);
    if (port->scales) printf(", scale %g, zero point %d", (double)port->scale[0], (int)port->zero_point);
    printf("\n");
}

int main(int count, char **words) {
    tpuflow_program *program = NULL;
    tpuflow_codec *loaded = NULL;
    int next = 1;
    if (count > 2 && strcmp(words[1], "--codec") == 0) {
        check(tpuflow_codec_load(words[2], &loaded));
        next = 3;
    }
    if (next >= count) {
        fprintf(stderr, "usage: run_program [--codec CODEC.json] PROGRAM.tpu INPUT.bin... OUTPUT.bin...\n");
        return 2;
    }
    check(tpuflow_program_load(words[next++], &program));
    const tpuflow_codec *codec = loaded ? loaded : tpuflow_program_codec(program);
    size_t inputs = tpuflow_codec_inputs(codec), outputs = tpuflow_codec_outputs(codec);
    if ((size_t)(count - next) != inputs + outputs) {
        fprintf(stderr, "error: the program has %zu inputs and %zu outputs, there are %d files\n", inputs, outputs,
                count - next);
        return 2;
    }

    const uint8_t **given = room(inputs * sizeof *given);
    uint8_t **taken = room(outputs * sizeof *taken);
    tpuflow_port port;
    for (size_t n = 0; n < inputs; n++) {
        check(tpuflow_codec_input(codec, n, &port));
        describe("input", &port);
        uint8_t *array = read_file(words[next++], port.array_bytes);
        uint8_t *packed = room(port.words_bytes);
        check(tpuflow_codec_pack(codec, n, array, port.array_bytes, packed, port.words_bytes));
        given[n] = packed;
        free(array);
    }
    for (size_t n = 0; n < outputs; n++) {
        check(tpuflow_codec_output(codec, n, &port));
        taken[n] = room(port.words_bytes);
    }

    tpuflow_figures figures;
    check(tpuflow_program_run(program, TPUFLOW_MODE_EXACT, given, inputs, taken, outputs, &figures));
    printf("libtpuflow %s: %llu cycles, %.3f us\n", tpuflow_version(), (unsigned long long)figures.cycles,
           figures.time_us);

    for (size_t n = 0; n < outputs; n++) {
        check(tpuflow_codec_output(codec, n, &port));
        describe("output", &port);
        uint8_t *array = room(port.array_bytes);
        check(tpuflow_codec_unpack(codec, n, taken[n], port.words_bytes, array, port.array_bytes));
        write_file(words[next++], array, port.array_bytes);
        free(array);
        free(taken[n]);
    }
    for (size_t n = 0; n < inputs; n++) free((void *)given[n]);
    free(given);
    free(taken);
    tpuflow_program_free(program);
    tpuflow_codec_free(loaded);
    return 0;
}
