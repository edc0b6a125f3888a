# What is not said by a test file's mere presence. Lists first, then further runs.

# Slow on purpose (more than 20 s): label `long`.
set(RP_TESTS_LONG)

# Not run again with instructions taken away: they go through every kernel table of the machine
# themselves, or no kernel is reached from them.
set(RP_TESTS_ONCE
    test_pool
    test_gemm
    test_ops
    test_attention)
