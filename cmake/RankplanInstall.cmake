# What `cmake --install` lays down: headers, library, command, and how to find them by CMake
# (find_package(rankplan)) or by pkg-config. Both can be moved with their prefix.
#
# A static library needs at its users' link what it was made with (the tokenizer's archive, jansson,
# threads, libm), so both say so; a shared one has it inside or finds it by itself.
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/rankplan)
set(pkgconfig_dir ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

install(TARGETS rankplan EXPORT rankplan-targets)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/rankplan TYPE INCLUDE FILES_MATCHING PATTERN "*.h")
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE ${PROJECT_SOURCE_DIR}/NOTICE TYPE DOC)
if(TARGET rankplan-cli)
    install(TARGETS rankplan-cli)
endif()

install(EXPORT rankplan-targets NAMESPACE rankplan:: DESTINATION ${package_dir})
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/rankplanConfig.cmake.in
    ${CMAKE_CURRENT_BINARY_DIR}/rankplanConfig.cmake INSTALL_DESTINATION ${package_dir})
# Before 1.0 a minor version may break what a user compiles against.
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/rankplanConfigVersion.cmake
    COMPATIBILITY SameMinorVersion)
install(FILES
    ${CMAKE_CURRENT_BINARY_DIR}/rankplanConfig.cmake
    ${CMAKE_CURRENT_BINARY_DIR}/rankplanConfigVersion.cmake
    ${CMAKE_CURRENT_LIST_DIR}/FindJansson.cmake
    DESTINATION ${package_dir})

if(NOT BUILD_SHARED_LIBS)
    set(pc_requires jansson)
    set(pc_libs -pthread -lm)
    if(RANKPLAN_TOKENIZER)
        list(PREPEND pc_libs -lrp_tokenizer -ldl)
    endif()
endif()
file(RELATIVE_PATH pc_prefix /prefix/${pkgconfig_dir} /prefix)
list(JOIN pc_libs " " pc_libs)
configure_file(${CMAKE_CURRENT_LIST_DIR}/rankplan.pc.in ${CMAKE_CURRENT_BINARY_DIR}/rankplan.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/rankplan.pc DESTINATION ${pkgconfig_dir})
