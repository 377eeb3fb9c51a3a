/*===- Library.h - A compiled model for other languages -------------------===//
 *
 * The C interface of lib<NAME>.so, which buddy_add_llama_library() makes beside the weights and the vocabulary.
 *
 * Functions that can fail say so by what they return; buddy_llama_error() then has one sentence for the calling
 * thread. Texts are UTF-8 with their size in bytes. One thread at a time may call buddy_llama_generate() for a model;
 * all that takes a const model may be called from any thread at any time.
 *
 *===----------------------------------------------------------------------===*/

#ifndef BUDDY_APPS_LLAMA_LIBRARY_H
#define BUDDY_APPS_LLAMA_LIBRARY_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define BUDDY_LLAMA_API __attribute__((visibility("default")))

/* Counts up with every change of what stands in this file. */
#define BUDDY_LLAMA_INTERFACE 2

BUDDY_LLAMA_API int32_t buddy_llama_interface(void);

/* What went wrong in the calling thread's last call that failed. Never null. */
BUDDY_LLAMA_API const char *buddy_llama_error(void);

typedef struct buddy_llama buddy_llama;

/* Loads the model whose files stand in `folder`. `context`: positions of a KV cache, 0 for the default, -1 for the
 * longest that the model has. `threads`: of the whole library, 0 for the CPUs that the process may use. `sessions`: how
 * many KV caches there are, each for a conversation, so that several can take turns and none is evaluated again; 1 to
 * 1024. They share the weights, and take memory as positions are filled. Returns null on failure; a model that was
 * built with a tokenizer must have its vocabulary file there. */
BUDDY_LLAMA_API buddy_llama *buddy_llama_open(const char *folder, int64_t context, int32_t threads, int32_t sessions);
BUDDY_LLAMA_API void buddy_llama_close(buddy_llama *model); /* null is allowed */

typedef struct {
  const char *model_id;         /* 64 hexadecimal digits */
  const char *chat_unavailable; /* why the model can not chat; null when it can */
  int64_t context;
  int64_t vocab_size;
  int32_t has_text; /* 0: there is no tokenizer, prompts are ids and answers have no text */
  int32_t threads;
  int32_t sessions;
  int64_t session_bytes; /* of a KV cache that is full */
} buddy_llama_info;

/* What `info` points to lives as long as the model. */
BUDDY_LLAMA_API void buddy_llama_describe(const buddy_llama *model, buddy_llama_info *info);

/* Text to ids and back. They return how many ids or bytes there are, or -1 on failure; *ids and *text are released with
 * buddy_llama_free(). */
BUDDY_LLAMA_API int64_t buddy_llama_tokenize(const buddy_llama *model, const char *text, size_t size,
                                             int32_t add_special, int32_t parse_special, int32_t **ids);
BUDDY_LLAMA_API int64_t buddy_llama_detokenize(const buddy_llama *model, const int32_t *ids, size_t count,
                                               int32_t skip_special, char **text);

enum { BUDDY_LLAMA_SYSTEM = 0, BUDDY_LLAMA_USER = 1, BUDDY_LLAMA_ASSISTANT = 2 };

typedef struct {
  int32_t role;
  const char *content;
  size_t size;
} buddy_llama_message;

/* The ids of a conversation in the model's own chat template, up to where its next answer begins. */
BUDDY_LLAMA_API int64_t buddy_llama_render_chat(const buddy_llama *model, const buddy_llama_message *messages,
                                                size_t count, int32_t **ids);

BUDDY_LLAMA_API void buddy_llama_free(void *memory);

/* The bytes of a token; null, with a size of 0, without a vocabulary. They live as long as the model. */
BUDDY_LLAMA_API const char *buddy_llama_token_bytes(const buddy_llama *model, int32_t id, size_t *size);

typedef struct {
  int32_t id;
  double log_probability; /* natural logarithm, before any sampling setting; minus infinity for an impossible token */
} buddy_llama_likelihood;

typedef struct {
  int32_t id;
  const char *text; /* whole characters that are known not to be part of a stop string; may be none */
  size_t size;
  double log_probability;               /* these three only when the request asked for them */
  const buddy_llama_likelihood *likely; /* likeliest first */
  size_t likely_count;
} buddy_llama_token;

/* Called for each token of an answer, in the thread that generates it. 0: go on; anything else ends the answer. */
typedef int32_t (*buddy_llama_receiver)(void *context, const buddy_llama_token *token);

typedef struct {
  const char *text;
  size_t size;
} buddy_llama_text;

typedef struct {
  int64_t max_tokens; /* -1: until the model stops or the context is full */
  double temperature; /* 0: the likeliest token */
  int64_t top_k;      /* 0: all */
  double top_p;
  double min_p;
  double repeat_penalty;
  double presence_penalty;
  double frequency_penalty;
  uint64_t seed;
  const buddy_llama_text *stops; /* none of them empty */
  size_t stop_count;
  int64_t likely_count;     /* how many of the likeliest tokens to report with each token; -1: not even its own */
  const int32_t *cancelled; /* anything but 0 there ends the answer before the next evaluation; may be null */
  int32_t ignore_end;
} buddy_llama_request;

enum {
  BUDDY_LLAMA_STOP_END = 0,       /* the model ended its answer */
  BUDDY_LLAMA_STOP_LENGTH = 1,    /* max_tokens */
  BUDDY_LLAMA_STOP_STRING = 2,    /* one of the stop strings */
  BUDDY_LLAMA_STOP_CONTEXT = 3,   /* the context is full */
  BUDDY_LLAMA_STOP_CANCELLED = 4, /* the receiver or `cancelled` */
};

typedef struct {
  int32_t stop;
  int64_t prompt_tokens;
  int64_t cached_tokens; /* of the prompt, already in a KV cache */
  int64_t generated_tokens;
  double prefill_seconds;
  double decode_seconds;
} buddy_llama_answer;

/* Generates behind a prompt. What a KV cache has in common with it is not evaluated again: it goes on in the session
 * whose last prompt it begins with, and otherwise takes the place of the one that was not used for the longest time.
 * After the last token the receiver is called once more, with id -1 and the text that was held back. Returns 0, or -1
 * on failure. */
BUDDY_LLAMA_API int32_t buddy_llama_generate(buddy_llama *model, const int32_t *ids, size_t count,
                                             const buddy_llama_request *request, buddy_llama_receiver receiver,
                                             void *context, buddy_llama_answer *answer);

#ifdef __cplusplus
}
#endif

#endif /* BUDDY_APPS_LLAMA_LIBRARY_H */
