# Files that are compiled for one instruction set.
#
#     rp_isa(AVX2 x86_64 -mavx2 -mfma -mf16c)     says what the set is: its processor and its flags
#     rp_isa_source(AVX2 gemm/avx2.c ops/avx2.c)  adds files that need it to the library
#     rp_sources(gemm/pack.c gemm/avx2.c ...)     adds any files: one that is named after a set (avx2.c)
#                                                 as above, the others plainly
#
# RP_HAVE_<SET> is defined as 1 for every file of the project when the target processor is the right
# one and the compiler takes the flags, otherwise as 0; then the set's files are left out, and no
# kernel table names them. Whether the machine that *runs* the library has the instructions is found at
# run time (pool/isa.c).
include(CheckCCompilerFlag)
include(CheckCSourceCompiles)

check_c_source_compiles("#ifndef __x86_64__\n#error\n#endif\nint main(void) { return 0; }"
                        RP_TARGET_X86_64)
check_c_source_compiles("#ifndef __aarch64__\n#error\n#endif\nint main(void) { return 0; }"
                        RP_TARGET_AARCH64)

# The kernels of all sets come from the same templates. Instrumented, those for arrays and for 32 registers
# keep a compiler busy for minutes each, so sanitizers look at the one set in between.
set(RP_UNSANITIZED)
if(RANKPLAN_SANITIZE)
    set(RP_UNSANITIZED -fno-sanitize=all)
endif()

function(rp_isa name processor)
    set(have 0)
    string(TOUPPER ${processor} processor)
    if(RP_TARGET_${processor})
        set(have 1)
        if(ARGN)
            list(JOIN ARGN " " flags)
            check_c_compiler_flag("${flags}" RP_COMPILER_HAS_${name})
            if(NOT RP_COMPILER_HAS_${name})
                set(have 0)
            endif()
        endif()
    endif()
    set(RP_HAVE_${name} ${have} PARENT_SCOPE)
    set(RP_ISA_FLAGS_${name} ${ARGN} PARENT_SCOPE)
    set(RP_ISAS ${RP_ISAS} ${name} PARENT_SCOPE)
    target_compile_definitions(rankplan-flags INTERFACE RP_HAVE_${name}=${have})
endfunction()

function(rp_isa_source name)
    if(NOT DEFINED RP_HAVE_${name})
        message(FATAL_ERROR "rp_isa_source: no rp_isa(${name} ...) before it")
    endif()
    if(RP_HAVE_${name})
        target_sources(rankplan PRIVATE ${ARGN})
        set(flags ${RP_ISA_FLAGS_${name}})
        if(name MATCHES "^(AVX512|AMX)")
            list(APPEND flags ${RP_UNSANITIZED})
        endif()
        set_source_files_properties(${ARGN} PROPERTIES COMPILE_OPTIONS "${flags}")
    endif()
endfunction()

function(rp_sources)
    foreach(source IN LISTS ARGN)
        get_filename_component(name ${source} NAME_WE)
        string(TOUPPER ${name} name)
        if(name IN_LIST RP_ISAS)
            rp_isa_source(${name} ${source})
        else()
            target_sources(rankplan PRIVATE ${source})
            if(name STREQUAL "SCALAR")
                set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "${RP_UNSANITIZED}")
            endif()
        endif()
    endforeach()
endfunction()
