/* Compiling: check every op, lower those that an output needs, arrange the result. */
#include "plan/run.h"

#include "plan/text.h"
#include "pool/error.h"
#include "pool/fpenv.h"
#include "pool/memory.h"

#include <stdlib.h>
#include <string.h>

void rp_plan_options_init(rp_plan_options *options)
{
    *options = (rp_plan_options){.struct_size = sizeof *options, .isa = RP_ISA_DEFAULT};
}

size_t rp_bucket_rows(const rp_bucket *bucket, rp_rows rows)
{
    switch (rows) {
    case RP_ROWS_TOKENS: return bucket->tokens;
    case RP_ROWS_SEQS: return bucket->seqs;
    case RP_ROWS_MARKERS: return bucket->markers;
    }
    return 0;
}

void rp_plan_destroy(rp_plan *plan)
{
    if (!plan)
        return;
    for (size_t s = 0; s < plan->n_steps; s++) {
        if (plan->steps[s].op == RP_OP_ATTENTION)
            rp_aligned_free(plan->steps[s].p.attention.rel);
        if (plan->steps[s].op == RP_OP_EXPERTS)
            free(plan->steps[s].p.experts.each);
    }
    for (size_t i = 0; i < plan->n_ropes; i++)
        rp_aligned_free(plan->ropes[i].table);
    free(plan->ropes);
    free(plan->steps);
    free(plan->slots);
    free(plan->segments);
    free(plan->outputs);
    free(plan->names);
    free(plan);
}

static rp_status check_output(const struct rp_lowering *l, const struct rp_graph_output *o,
                              rp_error *err)
{
    if (o->value < 0 || (size_t)o->value >= l->graph->n_nodes)
        return rp_fail(err, RP_ERR_INVALID, "output %s: there is no value %d", o->name, o->value);
    const struct rp_shape s = l->shapes[o->value];
    if (s.rows != o->rows || s.width != o->width)
        return rp_fail(err, RP_ERR_SHAPE, "output %s: op %d (%s) is %s x %zu, expected %s x %zu",
                       o->name, o->value, l->graph->nodes[o->value].name, rp_rows_name(s.rows),
                       s.width, rp_rows_name(o->rows), o->width);
    return RP_OK;
}

static rp_status check_graph(struct rp_lowering *l, rp_error *err)
{
    const rp_graph *graph = l->graph;
    if (graph->failed.status != RP_OK)
        return rp_fail(err, graph->failed.status, "%s", graph->failed.message);
    for (size_t i = 0; i < graph->n_nodes; i++)
        RP_TRY(rp_op_check(l, i, err));
    if (graph->n_outputs == 0)
        return rp_fail(err, RP_ERR_MISSING, "the graph has no outputs");
    for (size_t i = 0; i < graph->n_outputs; i++)
        RP_TRY(check_output(l, &graph->outputs[i], err));
    return RP_OK;
}

static void find_needed(struct rp_lowering *l)
{
    const rp_graph *graph = l->graph;
    for (size_t i = 0; i < graph->n_outputs; i++)
        l->needed[graph->outputs[i].value] = true;
    for (size_t i = graph->n_nodes; i-- > 0;)
        for (size_t k = 0; l->needed[i] && k < graph->nodes[i].n_in; k++)
            l->needed[graph->nodes[i].in[k]] = true;
}

/* The most steps that lowering makes of node i, gathers of its value among them. */
static size_t most_steps(const struct rp_lowering *l, size_t i)
{
    size_t n = 0;
    for (int read = RP_READ_FIRST; rp_pruned(l, i) && read < RP_READS; read++)
        n += l->reads[i] & RP_READ_BIT(read) ? RP_LOWERED_STEPS : 0;
    return n ? n : RP_LOWERED_STEPS + (l->prunes ? RP_READS - 1 : 0);
}

static size_t table_name_bytes(const struct rp_lowering *l, rp_weight table)
{
    return strlen(rp_weights_entry(l->weights, table)->name) + 1;
}

/* Room for the most that lowering can make: its steps of an op, each with a name; and table names.
 */
static bool make_room(struct rp_lowering *l)
{
    const rp_graph *graph = l->graph;
    rp_plan *plan = l->plan;
    size_t steps = 0, bytes = 1, ropes = 1;
    for (size_t i = 0; i < graph->n_nodes; i++) {
        ropes += graph->nodes[i].op == RP_OP_ROPE;
        steps += most_steps(l, i);
        bytes += most_steps(l, i) * (strlen(graph->nodes[i].name) + RP_SUFFIX_BYTES);
        for (size_t t = 0; graph->nodes[i].op == RP_OP_EMBED && t < graph->nodes[i].p.embed.n; t++)
            bytes += table_name_bytes(l, graph->nodes[i].p.embed.tables[t].table);
        if (graph->nodes[i].op == RP_OP_ROPE)
            bytes += strlen(graph->nodes[i].name) + 1; /* its index is named after it */
        if (graph->nodes[i].op == RP_OP_ADD_TYPES)
            bytes += table_name_bytes(l, graph->nodes[i].weight[0]);
    }
    for (size_t i = 0; i < graph->n_outputs; i++)
        bytes += strlen(graph->outputs[i].name) + 1;
    plan->steps = calloc(steps, sizeof *plan->steps);
    plan->slots = calloc(steps, sizeof *plan->slots);
    plan->segments = calloc(steps, sizeof *plan->segments);
    plan->outputs = calloc(graph->n_outputs, sizeof *plan->outputs);
    plan->ropes = calloc(ropes, sizeof *plan->ropes);
    plan->names = malloc(bytes);
    plan->names_bytes = bytes;
    plan->own_bytes = sizeof *plan + bytes + graph->n_outputs * sizeof *plan->outputs +
                      ropes * sizeof *plan->ropes +
                      steps * (sizeof *plan->steps + sizeof *plan->slots + sizeof *plan->segments);
    return plan->steps && plan->slots && plan->segments && plan->outputs && plan->ropes &&
           plan->names;
}

static void lower_outputs(struct rp_lowering *l)
{
    rp_plan *plan = l->plan;
    for (size_t i = 0; i < l->graph->n_outputs; i++) {
        const struct rp_graph_output *o = &l->graph->outputs[i];
        char *name = plan->names + l->names_used;
        l->names_used += strlen(o->name) + 1;
        strcpy(name, o->name);
        plan->outputs[plan->n_outputs++] =
            (struct rp_plan_output){.name = name, .slot = l->slots[o->value]};
        plan->slots[l->slots[o->value]].is_output = true;
    }
}

/* Node i at the rows of `read`: its shape is that of these rows meanwhile. */
static rp_status lower_at(struct rp_lowering *l, size_t i, enum rp_read read, rp_error *err)
{
    const rp_rows rows = l->shapes[i].rows;
    l->read = read;
    l->slot_of = l->slots + read * l->graph->n_nodes;
    if (read != RP_READ_ALL)
        l->shapes[i].rows = rp_read_rows(read);
    const rp_status status = rp_op_lower(l, i, err);
    l->shapes[i].rows = rows;
    return status;
}

/* What a node reads of a pruned value comes right before it, with all that leads there: so steps of
 * the same rows stand together, whatever else the graph has in between. */
static rp_status lower_what_is_read(struct rp_lowering *l, size_t reader, rp_error *err)
{
    const struct rp_node *node = &l->graph->nodes[reader];
    const enum rp_read read = rp_node_read(node);
    const int32_t *slots = l->slots + read * l->graph->n_nodes;
    if (read == RP_READ_ALL || !rp_pruned(l, (size_t)node->in[0]))
        return RP_OK;
    for (size_t i = 0; i <= (size_t)node->in[0]; i++)
        if (l->needed[i] && rp_pruned(l, i) && (l->reads[i] & RP_READ_BIT(read)) && slots[i] < 0)
            RP_TRY(lower_at(l, i, read, err));
    return RP_OK;
}

static rp_status lower_graph(struct rp_lowering *l, rp_error *err)
{
    const rp_graph *graph = l->graph;
    find_needed(l);
    rp_prune(l);
    if (!make_room(l))
        return rp_fail(err, RP_ERR_NOMEM, "no memory for a plan of %zu ops", graph->n_nodes);
    for (size_t i = 0; i < RP_READS * graph->n_nodes; i++)
        l->slots[i] = -1;
    for (size_t i = 0; i < graph->n_nodes; i++) {
        if (!l->needed[i] || rp_pruned(l, i))
            continue;
        RP_TRY(lower_what_is_read(l, i, err));
        RP_TRY(lower_at(l, i, RP_READ_ALL, err));
    }
    lower_outputs(l);
    return rp_plan_arrange(l->plan, l->no_fuse, err);
}

static rp_status check_bucket(const rp_bucket *b, rp_error *err)
{
    if (b->tokens > INT32_MAX || b->seqs > INT32_MAX || b->markers > INT32_MAX)
        return rp_fail(err, RP_ERR_LIMIT, "bucket %zu,%zu,%zu: at most %d of each", b->tokens,
                       b->seqs, b->markers, INT32_MAX);
    if (b->tokens == 0 || b->seqs == 0)
        return rp_fail(err, RP_ERR_INVALID, "bucket %zu,%zu,%zu holds no tokens or no sequences",
                       b->tokens, b->seqs, b->markers);
    return RP_OK;
}

static rp_status choose_kernels(rp_plan *plan, uint32_t isa, rp_error *err)
{
    if (isa == RP_ISA_DEFAULT)
        RP_TRY(rp_isa_default(&isa, err));
    plan->isa = isa & rp_isa_detected();
    plan->gemm = rp_gemm_select(plan->isa);
    plan->qgemm = rp_qgemm_select(plan->isa);
    plan->ops = rp_ops_select(plan->isa);
    plan->attention = rp_attention_select(plan->isa);
    plan->gdn = rp_gdn_select(plan->isa);
    return RP_OK;
}

static rp_status build(struct rp_lowering *l, const rp_plan_options *options, rp_error *err)
{
    const size_t n = l->graph->n_nodes, forms = rp_weights_count(l->weights) * RP_FORM_COUNT;
    l->shapes = calloc(n + 1, sizeof *l->shapes);
    l->slots = calloc(RP_READS * n + 1, sizeof *l->slots);
    l->reads = calloc(n + 1, sizeof *l->reads);
    l->needed = calloc(n + 1, sizeof *l->needed);
    l->counted = calloc(forms + 1, sizeof *l->counted);
    rp_status status;
    if (!l->shapes || !l->slots || !l->reads || !l->needed || !l->counted)
        status = rp_fail(err, RP_ERR_NOMEM, "no memory to lower %zu ops", n);
    else
        status = choose_kernels(l->plan, options->isa, err);
    if (status == RP_OK)
        status = check_graph(l, err);
    if (status == RP_OK)
        status = lower_graph(l, err);
    l->plan->making_bytes = (n + 1) * (sizeof *l->shapes + sizeof *l->reads + sizeof *l->needed) +
                            (RP_READS * n + 1) * sizeof *l->slots +
                            (forms + 1) * sizeof *l->counted + rp_plan_arrange_bytes(l->plan);
    free(l->shapes);
    free(l->slots);
    free(l->reads);
    free(l->needed);
    free(l->counted);
    return status;
}

/* Compiles into *out; weights are converted only when `make` is given. */
static rp_status compile(const rp_graph *graph, const rp_weights *weights, rp_weights *make,
                         const rp_bucket *bucket, const rp_plan_options *options, rp_plan **out,
                         rp_error *err)
{
    rp_plan_options defaults;
    rp_plan_options_init(&defaults);
    if (!options)
        options = &defaults;
    if (options->struct_size != sizeof *options)
        return rp_fail(err, RP_ERR_INVALID, "rp_plan_options has struct_size %zu, expected %zu",
                       options->struct_size, sizeof *options);
    RP_TRY(check_bucket(bucket, err));
    rp_plan *plan = calloc(1, sizeof *plan);
    if (!plan)
        return rp_fail(err, RP_ERR_NOMEM, "no memory for a plan");
    plan->bucket = *bucket;
    struct rp_lowering l = {.graph = graph,
                            .weights = weights,
                            .make = make,
                            .pool = options->pool,
                            .no_fuse = options->no_fuse,
                            .no_prune = options->no_prune,
                            .max_memory = options->max_memory,
                            .plan = plan};
    const rp_fpenv callers = rp_fpenv_enter(); /* scales and tables are computed here */
    const rp_status status = build(&l, options, err);
    rp_fpenv_leave(callers);
    if (status != RP_OK) {
        rp_plan_destroy(plan);
        return status;
    }
    *out = plan;
    return RP_OK;
}

rp_status rp_plan_compile(const rp_graph *graph, rp_weights *weights, const rp_bucket *bucket,
                          const rp_plan_options *options, rp_plan **out, rp_error *err)
{
    return compile(graph, weights, weights, bucket, options, out, err);
}

rp_status rp_plan_dry_run(const rp_graph *graph, const rp_weights *weights, const rp_bucket *bucket,
                          const rp_plan_options *options, rp_plan **out, rp_error *err)
{
    return compile(graph, weights, NULL, bucket, options, out, err);
}

rp_status rp_plan_measure(const rp_graph *graph, const rp_weights *weights, const rp_bucket *bucket,
                          const rp_plan_options *options, rp_plan_sizes *out, rp_error *err)
{
    rp_plan *plan;
    RP_TRY(rp_plan_dry_run(graph, weights, bucket, options, &plan, err));
    rp_plan_get_sizes(plan, out);
    rp_plan_destroy(plan);
    return RP_OK;
}

/* ---- looking at a plan -------------------------------------------------------------------------
 */

void rp_plan_get_sizes(const rp_plan *plan, rp_plan_sizes *out)
{
    *out = (rp_plan_sizes){.arena_bytes = plan->arena_bytes,
                           .scratch_bytes_per_thread = plan->scratch_bytes,
                           .plan_bytes = plan->own_bytes};
}

/* Pairs of a query and a key that it sees. */
static uint64_t pairs_of_step(const rp_batch *batch, const struct rp_step *step)
{
    uint64_t pairs = 0;
    for (size_t s = 0; s < batch->n_seqs; s++) {
        const size_t len = (size_t)(batch->cu[s + 1] - batch->cu[s]);
        if (step->read == RP_READ_ALL)
            pairs += rp_step_pairs(step, batch, s, 0, len);
        else
            pairs += rp_step_read_pairs(step, batch, s);
    }
    return pairs;
}

uint64_t rp_plan_flops(const rp_plan *plan, const rp_batch *batch)
{
    uint64_t sum = 0;
    const size_t tokens = (size_t)batch->cu[batch->n_seqs];
    const size_t markers = batch->markers ? (size_t)batch->mcu[batch->n_seqs] : 0;
    const rp_bucket live = {tokens, batch->n_seqs, markers};
    for (size_t s = 0; s < plan->n_steps; s++) {
        const struct rp_step *step = &plan->steps[s];
        if (step->op == RP_OP_ATTENTION)
            sum += step->flops_per_row * pairs_of_step(batch, step);
        else if (step->op == RP_OP_CROSS_ATTENTION)
            sum += step->flops_per_row * rp_step_cross_pairs(step, batch);
        else if (step->op == RP_OP_GDN)
            for (size_t seq = 0; seq < batch->n_seqs; seq++)
                sum += rp_step_gdn_seq_flops(step, batch, seq);
        else if (rp_op_multiplies(step->op) || step->op == RP_OP_CONV || step->op == RP_OP_EXPERTS)
            sum += step->flops_per_row * rp_bucket_rows(&live, step->rows);
    }
    return sum;
}

size_t rp_plan_n_steps(const rp_plan *plan)
{
    return plan->n_steps;
}

rp_status rp_plan_step(const rp_plan *plan, size_t index, rp_step_info *out)
{
    if (index >= plan->n_steps)
        return RP_ERR_INVALID;
    const struct rp_step *step = &plan->steps[index];
    *out = (rp_step_info){.index = index,
                          .name = step->name,
                          .kind = rp_op_name(step->op),
                          .kernel = step->kernel,
                          .rows = step->rows,
                          .width = step->width,
                          .tokens = rp_read_name(step->read)};
    return RP_OK;
}

size_t rp_plan_step_inputs(const rp_plan *plan, size_t index, size_t *inputs, size_t capacity)
{
    if (index >= plan->n_steps)
        return 0;
    const struct rp_step *step = &plan->steps[index];
    for (size_t k = 0; k < step->n_in && k < capacity; k++) {
        size_t maker = index;
        while (maker > 0 && plan->steps[--maker].out != step->in[k])
            ;
        inputs[k] = maker;
    }
    return step->n_in;
}

static const char *fused_activation(const struct rp_step *step)
{
    if (rp_op_multiplies(step->op) && step->p.gemm.activation != RP_ACT_NONE)
        return rp_activation_name(step->p.gemm.activation);
    return NULL;
}

/* What tells one step of a kind from another. */
static void text_options(struct rp_text *t, const rp_plan *plan, const struct rp_step *step)
{
    if (fused_activation(step))
        rp_text_add(t, " +%s", fused_activation(step));
    if ((rp_op_multiplies(step->op) && step->n_in == 2) ||
        (step->op == RP_OP_EXPERTS && step->n_in == 3))
        rp_text_add(t, " +residual");
    if (step->op == RP_OP_EXPERTS)
        rp_text_add(t, " experts=%zu used=%zu act=%s", step->p.experts.n_experts,
                    step->p.experts.n_used, rp_activation_name(step->p.experts.activation));
    if (step->joins)
        rp_text_add(t, " joined");
    if (step->op == RP_OP_GLU)
        rp_text_add(t, " act=%s", rp_activation_name(step->p.activation));
    if (step->op == RP_OP_GATE || step->op == RP_OP_GATED_NORM)
        rp_text_add(t, " act=%s", rp_activation_name(step->p.gate.activation));
    if (step->op == RP_OP_RMS_NORM && step->p.rms_norm.head_dim < step->width)
        rp_text_add(t, " heads=%zux%zu@%zu", step->p.rms_norm.n_heads, step->p.rms_norm.head_dim,
                    step->p.rms_norm.first_column);
    if (step->op == RP_OP_CONV)
        rp_text_add(t, " kernel=%zu act=%s", step->p.conv.kernel,
                    rp_activation_name(step->p.conv.activation));
    if (step->op == RP_OP_GDN)
        rp_text_add(t, " keys=%zux%zu values=%zux%zu", step->p.gdn.n_key_heads, step->p.gdn.key_dim,
                    step->p.gdn.n_value_heads, step->p.gdn.value_dim);
    if (step->op == RP_OP_ATTENTION && step->p.attention.window)
        rp_text_add(t, " window=%zu", step->p.attention.window);
    if (step->op == RP_OP_ATTENTION && step->p.attention.n_kv_heads != step->p.attention.n_heads)
        rp_text_add(t, " kv_heads=%zu", step->p.attention.n_kv_heads);
    if (step->op == RP_OP_ATTENTION && step->p.attention.causal)
        rp_text_add(t, " causal");
    if (step->op == RP_OP_ATTENTION && step->p.attention.options)
        rp_text_add(t, " options");
    if (step->op == RP_OP_CROSS_ATTENTION)
        rp_text_add(t, " kv_heads=%zu memory=%zux%zu", step->p.cross.n_kv_heads,
                    step->p.cross.max_memory, step->p.cross.memory_width);
    if (step->op == RP_OP_ORDINAL_FEATURES)
        rp_text_add(t, " qtype=%d", step->p.qtype);
    if (step->op == RP_OP_ROPE && rp_rope_has_options(plan, step))
        rp_text_add(t, " options");
    if (step->op == RP_OP_ROPE && step->p.rope.theta == 0)
        rp_text_add(t, " inv_freq[%zu]", step->p.rope.turn.n_rotated / 2);
    if (step->op == RP_OP_ROPE && step->p.rope.theta != 0) {
        rp_text_add(t, " theta=");
        rp_text_double(t, step->p.rope.theta);
    }
    if (step->read != RP_READ_ALL)
        rp_text_add(t, " %s=%s", step->op == RP_OP_ATTENTION ? "queries" : "tokens",
                    rp_read_name(step->read));
}

size_t rp_plan_text(const rp_plan *plan, char *buffer, size_t size)
{
    struct rp_text t = rp_text_init(buffer, size);
    rp_text_add(
        &t,
        "plan for %zu tokens, %zu seqs, %zu markers: arena %llu bytes, scratch %llu per thread\n",
        plan->bucket.tokens, plan->bucket.seqs, plan->bucket.markers,
        (unsigned long long)plan->arena_bytes, (unsigned long long)plan->scratch_bytes);
    for (size_t g = 0; g < plan->n_segments; g++) {
        const struct rp_segment *seg = &plan->segments[g];
        if (seg->chunked)
            rp_text_add(&t, "segment %zu: %s, chunks of up to %zu rows\n", g,
                        rp_rows_name(seg->rows), seg->chunk_rows);
        else
            rp_text_add(&t, "segment %zu: %s\n", g, rp_rows_name(seg->rows));
        for (size_t s = seg->first; s < seg->end; s++) {
            const struct rp_step *step = &plan->steps[s];
            const struct rp_slot *slot = &plan->slots[step->out];
            rp_text_add(&t, "%4zu %-14s %-28s @%-10llu %s x %-6zu", s, rp_op_name(step->op),
                        step->name, (unsigned long long)slot->offset[RP_BY_STEP],
                        rp_rows_name(step->rows), step->width);
            text_options(&t, plan, step);
            rp_text_add(&t, " %s flops/row=%llu%s bytes/row=%llu", step->kernel,
                        (unsigned long long)step->flops_per_row,
                        rp_op_attends(step->op) ? "/key" : "",
                        (unsigned long long)step->bytes_per_row);
            if (step->bytes_fixed)
                rp_text_add(&t, " weight_bytes=%llu", (unsigned long long)step->bytes_fixed);
            rp_text_add(&t, "\n");
        }
    }
    for (size_t i = 0; i < plan->n_outputs; i++)
        rp_text_add(&t, "output %s: step %zu\n", plan->outputs[i].name,
                    plan->slots[plan->outputs[i].slot].first);
    return t.length;
}
