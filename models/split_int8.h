/* INT8 for both towers of a split encoder. */
#ifndef RP_MODELS_SPLIT_INT8_H
#define RP_MODELS_SPLIT_INT8_H

#include "models/split.h"

#include <rankplan/plan.h>

/* Turns the products of states and of questions to INT8.  Without factors in the options, those of
 * states are found by a run of random ids, and those of questions by random questions about random
 * states, always the same ones; batches in the options are not looked at.  Fails as
 * rp_weights_quantize does. */
RP_CHECKED rp_status rp_split_quantize(const struct rp_split *split,
                                       rp_graph *const graphs[RP_SPLIT_N_PARTS],
                                       rp_weights *weights, const rp_quantize_options *options,
                                       rp_error *err);

#endif
