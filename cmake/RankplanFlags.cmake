# rankplan-flags: how every C file of this project is compiled. Never installed: what a user of the
# library compiles with is the user's affair.
add_library(rankplan-flags INTERFACE)
target_compile_definitions(rankplan-flags INTERFACE _POSIX_C_SOURCE=200809L)
target_compile_options(rankplan-flags INTERFACE
    # The numeric contract: an fma happens where the source says fma, and nowhere else.
    -ffp-contract=off
    # Lets sqrtf() be one instruction. Nothing here reads errno after a math function.
    -fno-math-errno
    -Wall -Wextra -Wpedantic -Wshadow -Wundef -Wvla -Wstrict-prototypes -Wmissing-prototypes
    # -Wconversion is about lost values; the sign half of it drowns those.
    -Wconversion -Wno-sign-conversion)
if(RANKPLAN_WERROR)
    target_compile_options(rankplan-flags INTERFACE -Werror)
endif()

if(RANKPLAN_SANITIZE)
    list(JOIN RANKPLAN_SANITIZE "," sanitizers)
    set(sanitize -fsanitize=${sanitizers} -fno-omit-frame-pointer)
    if("undefined" IN_LIST RANKPLAN_SANITIZE)
        list(APPEND sanitize -fno-sanitize-recover=undefined)
    endif()
    target_compile_options(rankplan-flags INTERFACE ${sanitize})
    target_link_options(rankplan-flags INTERFACE ${sanitize})
endif()

if(RANKPLAN_COVERAGE)
    target_compile_options(rankplan-flags INTERFACE --coverage)
    target_link_options(rankplan-flags INTERFACE --coverage)
endif()
