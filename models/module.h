/* One module of a sentence-transformers folder: its own configuration file. */
#ifndef RP_MODELS_MODULE_H
#define RP_MODELS_MODULE_H

#include "models/folder.h"

/* Reads module->folder/config.json as the module's kind asks for it.  Keys that are not known
 * become notes. */
RP_CHECKED rp_status rp_module_configure(struct rp_module *module, struct rp_notes *notes,
                                         rp_error *err);

#endif
