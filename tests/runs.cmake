# What is not said by a test file's mere presence. Lists first, then further runs:
#
#     rp_test_run(scores@two-threads test_scores ENV RANKPLAN_THREADS=2)
#     rp_test_run(vmath@all test_vmath ARGS --all LABELS long)

# Slow on purpose (more than 20 s): label `long`.
set(RP_TESTS_LONG)

# Not run again with instructions taken away. These go through every kernel table of the machine
# themselves:
set(RP_TESTS_ONCE
    test_attention
    test_gates
    test_gdn
    test_gdn_call
    test_gemm
    test_isa
    test_ops
    test_qgemm
    test_v16
    test_vmath)
# and from these no kernel is reached:
list(APPEND RP_TESTS_ONCE
    test_cancel
    test_compare
    test_config
    test_cpus
    test_graph
    test_layout
    test_modernbert
    test_pool
    test_profile
    test_prompt
    test_safetensors
    test_tokenizer)
# Minutes on plain C; what it says of kernels, test_hybrid says on each level:
list(APPEND RP_TESTS_ONCE test_batches)
