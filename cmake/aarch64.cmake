# Cross build for 64-bit Arm Linux with Debian's packages: gcc-aarch64-linux-gnu, the :arm64 versions of
# libjansson-dev, libxxhash-dev and libcmocka-dev, and qemu-user to run what was built.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64)

# Debian is multiarch: foreign libraries stand beside the machine's own, in /usr/lib/aarch64-linux-gnu.
# Programs (ninja, awk) are the machine's.
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_IGNORE_PATH /usr/lib/x86_64-linux-gnu /lib/x86_64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
