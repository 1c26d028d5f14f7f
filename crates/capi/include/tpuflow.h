/*
 * libtpuflow: runs programs (.tpu) on simulated devices.
 *
 * Every function that can fail returns a tpuflow_status; tpuflow_last_error() then says in one line what is wrong and
 * what to do. Sizes are in bytes. Arrays are row-major and little-endian, in the shapes and types of the model.
 * Programs and codecs never change after loading: any number of threads may use one at once.
 *
 * Made by cbindgen from crates/capi/src; do not edit.
 */

#ifndef TPUFLOW_H
#define TPUFLOW_H

#include <stddef.h>
#include <stdint.h>

/*
 How a call ended.
 */
typedef enum tpuflow_status {
  /*
   Done.
   */
  TPUFLOW_STATUS_OK = 0,
  /*
   A null pointer, a number out of range, or text that is not UTF-8.
   */
  TPUFLOW_STATUS_ARGUMENT = 1,
  /*
   A file that cannot be read, was altered, or is of another version.
   */
  TPUFLOW_STATUS_FILE = 2,
  /*
   Sizes or values that do not fit the program.
   */
  TPUFLOW_STATUS_DATA = 3,
  /*
   A program that breaks a rule of its machine.
   */
  TPUFLOW_STATUS_MACHINE = 4,
  /*
   A defect of this library.
   */
  TPUFLOW_STATUS_INTERNAL = 5,
} tpuflow_status;

/*
 Element types.
 */
typedef enum tpuflow_dtype {
  TPUFLOW_DTYPE_BOOL = 0,
  TPUFLOW_DTYPE_INT8 = 1,
  TPUFLOW_DTYPE_UINT8 = 2,
  TPUFLOW_DTYPE_INT16 = 3,
  TPUFLOW_DTYPE_UINT16 = 4,
  TPUFLOW_DTYPE_INT32 = 5,
  TPUFLOW_DTYPE_UINT32 = 6,
  TPUFLOW_DTYPE_INT64 = 7,
  TPUFLOW_DTYPE_UINT64 = 8,
  TPUFLOW_DTYPE_FLOAT16 = 9,
  TPUFLOW_DTYPE_BFLOAT16 = 10,
  TPUFLOW_DTYPE_FLOAT32 = 11,
  TPUFLOW_DTYPE_FLOAT64 = 12,
} tpuflow_dtype;

/*
 Results a run gives: the `mode` of tpuflow_program_run.
 */
typedef enum tpuflow_mode {
  /*
   Values alone.
   */
  TPUFLOW_MODE_FAST = 0,
  /*
   Values and cycles, with every rule of the machine checked.
   */
  TPUFLOW_MODE_EXACT = 1,
} tpuflow_mode;

/*
 Packs arrays into cache words and unpacks them.
 */
typedef struct tpuflow_codec tpuflow_codec;

/*
 A program, checked and ready for any number of runs.
 */
typedef struct tpuflow_program tpuflow_program;

/*
 Rows of all states of a program. One step at a time changes them.
 */
typedef struct tpuflow_state tpuflow_state;

/*
 An input or output. All pointers live as long as the codec.
 */
typedef struct tpuflow_port {
  /*
   Name in the model, UTF-8.
   */
  const char *name;
  /*
   Shape in the model: `rank` numbers.
   */
  const size_t *shape;
  /*
   Number of axes.
   */
  size_t rank;
  /*
   Element type in the model.
   */
  enum tpuflow_dtype dtype;
  /*
   Element type on the device.
   */
  enum tpuflow_dtype stored_dtype;
  /*
   `x = scale * (q - zero_point)`: one scale, or one per channel; none for indices, floats and words.
   */
  const float *scale;
  /*
   Number of scales.
   */
  size_t scales;
  /*
   Code of real zero.
   */
  int32_t zero_point;
  /*
   Bytes of the model's array.
   */
  size_t array_bytes;
  /*
   Bytes of its cache words.
   */
  size_t words_bytes;
  /*
   Bytes of one cache word.
   */
  size_t cache_word_length;
} tpuflow_port;

/*
 Cost of a run.
 */
typedef struct tpuflow_figures {
  /*
   Cycles of an exact run, else 0.
   */
  uint64_t cycles;
  /*
   The same in microseconds of the machine's clock.
   */
  double time_us;
  /*
   Layers in which something went wrong without stopping the run, such as accumulators that overflowed.
   */
  size_t events;
  /*
   Seconds the simulated machine took on this computer.
   */
  double seconds;
} tpuflow_figures;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 Loads the codec of a raw program, as `tpuflow raw --codec` writes it. Free it with tpuflow_codec_free.

 # Safety
 `path` is a string; `codec` leads to room for a pointer.
 */
enum tpuflow_status tpuflow_codec_load(const char *path, struct tpuflow_codec **codec);

/*
 Frees a codec that tpuflow_codec_load gave; null is nothing.

 # Safety
 `codec` came from `tpuflow_codec_load`, is freed once, and nobody uses it or its ports any more.
 */
void tpuflow_codec_free(struct tpuflow_codec *codec);

/*
 Number of inputs; 0 of null.

 # Safety
 `codec` is a codec or null.
 */
size_t tpuflow_codec_inputs(const struct tpuflow_codec *codec);

/*
 Number of outputs; 0 of null.

 # Safety
 `codec` is a codec or null.
 */
size_t tpuflow_codec_outputs(const struct tpuflow_codec *codec);

/*
 Describes an input, in the model's order.

 # Safety
 `codec` is a codec; `port` leads to room for a port.
 */
enum tpuflow_status tpuflow_codec_input(const struct tpuflow_codec *codec,
                                        size_t number,
                                        struct tpuflow_port *port);

/*
 Describes an output, in the model's order.

 # Safety
 `codec` is a codec; `port` leads to room for a port.
 */
enum tpuflow_status tpuflow_codec_output(const struct tpuflow_codec *codec,
                                         size_t number,
                                         struct tpuflow_port *port);

/*
 Packs the array of an input into cache words: scales, casts, pads.

 # Safety
 `codec` is a codec; `array` leads to `array_bytes` bytes, `words` to `words_bytes` that nobody else uses.
 */
enum tpuflow_status tpuflow_codec_pack(const struct tpuflow_codec *codec,
                                       size_t input,
                                       const uint8_t *array,
                                       size_t array_bytes,
                                       uint8_t *words,
                                       size_t words_bytes);

/*
 Takes the array of an output out of cache words: drops the padding, scales, casts.

 # Safety
 `codec` is a codec; `words` leads to `words_bytes` bytes, `array` to `array_bytes` that nobody else uses.
 */
enum tpuflow_status tpuflow_codec_unpack(const struct tpuflow_codec *codec,
                                         size_t output,
                                         const uint8_t *words,
                                         size_t words_bytes,
                                         uint8_t *array,
                                         size_t array_bytes);

/*
 Loads a program (.tpu), raw or not, and checks it. Free it with tpuflow_program_free.

 # Safety
 `path` is a string; `program` leads to room for a pointer.
 */
enum tpuflow_status tpuflow_program_load(const char *path, struct tpuflow_program **program);

/*
 Frees a program, and its codec with it; null is nothing.

 # Safety
 `program` came from `tpuflow_program_load`, is freed once, and nobody uses it, its codec or its ports any more.
 */
void tpuflow_program_free(struct tpuflow_program *program);

/*
 The codec of a program, which lives as long as the program; of null, null. A raw program's ports are words: their
 meaning stands in the codec that was written beside it (tpuflow_codec_load).

 # Safety
 `program` is a program or null.
 */
const struct tpuflow_codec *tpuflow_program_codec(const struct tpuflow_program *program);

/*
 Runs a program on the cache words of all its inputs and gives those of all its outputs, in the model's order. Each
 array of words has the `words_bytes` of its port. `mode` is a tpuflow_mode. What lies in the padding of outputs means nothing. `figures` may be null.

 # Safety
 `program` is a program; `inputs` leads to `input_count` pointers to the words of the inputs, `outputs` to `output_count`
 pointers to room for the words of the outputs, which nobody else uses; `figures` is null or leads to room for figures.
 */
enum tpuflow_status tpuflow_program_run(const struct tpuflow_program *program,
                                        int32_t mode,
                                        const uint8_t *const *inputs,
                                        size_t input_count,
                                        uint8_t *const *outputs,
                                        size_t output_count,
                                        struct tpuflow_figures *figures);

/*
 The last position a step of a program may have: how many rows it reaches before its own. Of a program without states 0.

 # Safety
 `program` is a program or null.
 */
uint32_t tpuflow_program_last_position(const struct tpuflow_program *program);

/*
 The states of a program without rows. All programs of one network, whatever their contexts, may step with it. Free it with
 tpuflow_state_free.

 # Safety
 `program` is a program; `state` leads to room for a pointer.
 */
enum tpuflow_status tpuflow_state_new(const struct tpuflow_program *program,
                                      struct tpuflow_state **state);

/*
 Frees a state; null is nothing.

 # Safety
 `state` came from `tpuflow_state_new`, is freed once, and nobody uses it any more.
 */
void tpuflow_state_free(struct tpuflow_state *state);

/*
 How many rows count: the last step's position and its new rows. Of null 0.

 # Safety
 `state` is a state or null.
 */
uint32_t tpuflow_state_rows(const struct tpuflow_state *state);

/*
 Forgets rows from `rows` on: all of them for 0.

 # Safety
 `state` is a state nobody else uses meanwhile, or null.
 */
void tpuflow_state_truncate(struct tpuflow_state *state, uint32_t rows);

/*
 Writes the rows that count to a file.

 # Safety
 `state` is a state nobody changes meanwhile; `path` is a string.
 */
enum tpuflow_status tpuflow_state_save(const struct tpuflow_state *state, const char *path);

/*
 Takes the rows of a file that tpuflow_state_save wrote of the same states.

 # Safety
 `state` is a state nobody else uses meanwhile; `path` is a string.
 */
enum tpuflow_status tpuflow_state_restore(struct tpuflow_state *state, const char *path);

/*
 Gives the rows that count of the state of this name (of its input), as the model's array, to room for exactly as many bytes.

 # Safety
 `state` is a state nobody changes meanwhile, `program` a program; `name` is a string; `array` leads to `bytes` bytes nobody else
 uses.
 */
enum tpuflow_status tpuflow_state_read(const struct tpuflow_state *state,
                                       const struct tpuflow_program *program,
                                       const char *name,
                                       uint8_t *array,
                                       size_t bytes);

/*
 Replaces all rows: for every state, in the order of the program's inputs, an array of `rows` rows in the model's form, of
 `bytes` bytes each.

 # Safety
 `state` is a state nobody else uses meanwhile, `program` a program; `arrays` leads to `count` pointers to `bytes` bytes each.
 */
enum tpuflow_status tpuflow_state_write(struct tpuflow_state *state,
                                        const struct tpuflow_program *program,
                                        uint32_t rows,
                                        const uint8_t *const *arrays,
                                        size_t count,
                                        size_t bytes);

/*
 Runs a program behind the rows of a state before `position`, at most `tpuflow_program_last_position`, and writes the new ones
 there; all else as tpuflow_program_run. Of inputs and outputs that are states nothing is read and nothing written: their pointers
 may be null.

 # Safety
 As tpuflow_program_run; `state` is a state nobody else uses meanwhile.
 */
enum tpuflow_status tpuflow_program_step(const struct tpuflow_program *program,
                                         struct tpuflow_state *state,
                                         uint32_t position,
                                         int32_t mode,
                                         const uint8_t *const *inputs,
                                         size_t input_count,
                                         uint8_t *const *outputs,
                                         size_t output_count,
                                         struct tpuflow_figures *figures);

/*
 Version of the library, such as "0.1.0".
 */
const char *tpuflow_version(void);

/*
 Sets the most bytes of memory that a file, a program or a network may ask for, in the whole process; 0: what the computer had
 free when it was first asked, which holds from the beginning. What asks for more is refused with an error that names the field.
 */
void tpuflow_set_memory_limit(uint64_t bytes);

/*
 The memory limit in bytes.
 */
uint64_t tpuflow_memory_limit(void);

/*
 Why the last call of this thread that failed did so; empty if none has. Valid until the next failure.
 */
const char *tpuflow_last_error(void);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* TPUFLOW_H */
