/* The weights of a folder: model.safetensors, or the shards that an index names, as one set of
 * tensors. */
#ifndef RP_MODELS_TENSORS_H
#define RP_MODELS_TENSORS_H

#include "models/notes.h"
#include "models/safetensors.h"

#include <stdbool.h>

#define RP_TENSORS_MAX_SHARDS 512

struct rp_tensor_entry {
    const struct rp_st_tensor *tensor;
    bool used;
};

struct rp_tensors {
    char *source; /* the file, or the index, for messages */
    struct rp_st_file *files[RP_TENSORS_MAX_SHARDS];
    size_t n_files;
    struct rp_tensor_entry *entries; /* by name */
    size_t n;
};

/* Opens what is there: model.safetensors.index.json, else model.safetensors.  A shard's name must
 * be that of a file in the same folder (a symbolic link is fine), and each tensor must be in the
 * shard that the index names.  RP_ERR_MISSING names what is not there; RP_ERR_UNSUPPORTED: only
 * pickled weights are there. */
RP_CHECKED rp_status rp_tensors_open(const char *folder, struct rp_notes *notes,
                                     struct rp_tensors **out, rp_error *err);
void rp_tensors_close(struct rp_tensors *tensors);

/* NULL when there is none. */
struct rp_tensor_entry *rp_tensors_find(const struct rp_tensors *tensors, const char *name);

#endif
