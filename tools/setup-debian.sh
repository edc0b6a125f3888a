#!/usr/bin/env bash
# Installs what building rankplan on Debian 12 needs, and nothing that is there already.
#
#     tools/setup-debian.sh        compilers, CMake, libraries, and cargo for the tokenizer
#     tools/setup-debian.sh --ci   also clang and its tools, the cross build for 64-bit Arm, valgrind,
#                                  and the sources of locales, for the test that needs a decimal comma
#
# Asks nothing. Needs root, or sudo.
set -euo pipefail

ci=
case ${1-} in
'') ;;
--ci) ci=1 ;;
*) echo "usage: $0 [--ci]" >&2; exit 2 ;;
esac

cargo_minimum=1.85 # Debian 12's own cargo is 0.66; cargo-web is the one that browsers are built with
packages=(build-essential ca-certificates cmake ninja-build pkg-config
    libjansson-dev libxxhash-dev libcmocka-dev)

# A new enough cargo from anywhere else is left alone.
have_cargo()
{
    local version
    version=$(cargo --version 2>/dev/null | cut -d ' ' -f 2) || return 1
    [ -n "$version" ] && printf '%s\n%s\n' "$cargo_minimum" "$version" | sort -V -C
}
have_cargo || packages+=(cargo-web)

if [ "$ci" ]; then
    packages+=(clang clang-format clang-tidy locales valgrind
        gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user
        libc6:arm64 libjansson-dev:arm64 libxxhash-dev:arm64 libcmocka-dev:arm64)
fi

missing=()
for package in "${packages[@]}"; do
    status=$(dpkg-query -W -f '${db:Status-Status}\n' "$package" 2>/dev/null | head -n 1) || true
    [ "$status" = installed ] || missing+=("$package")
done
if [ ${#missing[@]} -eq 0 ]; then
    echo "setup: everything is installed"
    exit 0
fi

sudo=()
[ "$(id -u)" -eq 0 ] || sudo=(sudo)
apt=("${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o Dpkg::Use-Pty=0)

echo "setup: installing ${missing[*]}"
case " ${missing[*]} " in
*:arm64\ *) "${sudo[@]}" dpkg --add-architecture arm64 ;;
esac
"${apt[@]}" update
"${apt[@]}" install -y --no-install-recommends "${missing[@]}"
