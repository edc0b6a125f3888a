/* The graph as plan/ sees it: a list of nodes, each making the value of its own number. */
#ifndef RP_PLAN_GRAPH_H
#define RP_PLAN_GRAPH_H

#include <rankplan/graph.h>

#define RP_NODE_MAX_INPUTS 8

/* Every op of the IR.  plan/op.c has the row of each: name, check, lowering. */
enum rp_op {
    RP_OP_EMBED,
    RP_OP_LAYER_NORM,
    RP_OP_GEMM,
    RP_OP_ATTENTION,
    RP_OP_POOL,
    RP_OP_L2_NORM,
    RP_OP_ACTIVATION,
    RP_OP_ADD,
    RP_OP_CONCAT,
    RP_OP_GATHER_MARKERS,
    RP_OP_ROPE,
    RP_OP_GLU,
    RP_OP_ADD_TYPES,
    RP_OP_ACT_FEATURES,
    RP_OP_RMS_NORM,
    RP_OP_GATE,
    RP_OP_GATED_NORM,
    RP_OP_GDN_GATES,
    RP_OP_EXPERTS,
    RP_OP_CONV,
    RP_OP_GDN,
    RP_OP_INPUT,
    RP_OP_CROSS_ATTENTION,
    RP_OP_ORDINAL_FEATURES,
    RP_OP_NODE_COUNT,
    /* What only lowering makes. */
    RP_OP_QUANTIZE = RP_OP_NODE_COUNT, /* rows of f32 to rows for an INT8 product */
    RP_OP_QGEMM,
    RP_OP_GATHER, /* of a value, the rows that something reads: plan/prune.c */
    RP_OP_COUNT
};

struct rp_node {
    enum rp_op op;
    char *name;
    rp_value in[RP_NODE_MAX_INPUTS]; /* a GEMM's second input is its residual, -1 for none */
    size_t n_in;
    rp_weight weight[2]; /* w and b; -1 for none */
    union {
        struct {
            rp_embed_table tables[RP_EMBED_MAX_TABLES];
            size_t n;
        } embed;
        float eps;
        rp_activation activation;
        rp_pooling pooling;
        rp_attention attention;
        struct {
            rp_rope options;  /* its inv_freq is the copy, or NULL */
            double *inv_freq; /* owned */
        } rope;
        rp_rms_norm rms_norm;
        rp_gate gate;
        rp_gated_norm gated_norm;
        rp_gdn_gates gdn_gates;
        struct {
            rp_experts options; /* up and down are in the copy, or NULL */
            rp_weight *weights; /* owned: n_experts of up, then of down */
        } experts;
        rp_gdn gdn;
        size_t width; /* of the input */
        rp_cross_attention cross;
        int32_t qtype;
    } p;
};

struct rp_graph_output {
    char *name;
    rp_value value;
    rp_rows rows;
    size_t width;
};

struct rp_graph {
    struct rp_node *nodes;
    size_t n_nodes, cap_nodes;
    struct rp_graph_output *outputs;
    size_t n_outputs, cap_outputs;
    rp_error failed; /* the first failure of building; RP_OK when there was none */
};

const char *rp_op_name(enum rp_op op);
const char *rp_rows_name(rp_rows rows);
const char *rp_activation_name(rp_activation activation);
const char *rp_pooling_name(rp_pooling pooling);

#endif
