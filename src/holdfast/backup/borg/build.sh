#!/usr/bin/env bash
# Builds Borg from its hashed source, by hashed tools, in a venv of its own (docs/decisions/0032), and
# links it beside the Python of another venv. scripts/setup reads this file; run as a program, by
# `holdfast doctor --install-borg`, it takes the venv and the folder with borg.lock and borg-build.lock.
# Where a Debian package is missing it is installed if we are root or sudo asks no password;
# otherwise the command to run is printed and we stop.

# The caller's Python settings are about the caller's programs, not about this folder's.
unset VIRTUAL_ENV CONDA_PREFIX CDPATH
for name in $(compgen -e); do
  case $name in
    PYTHON?*) unset "$name" ;; # PYTHONPATH, PYTHONHOME, PYTHONSAFEPATH, ... but not PYTHON
    PIP_USER | PIP_TARGET | PIP_PREFIX | PIP_ROOT | PIP_PYTHON) unset "$name" ;;
    PIP_REQUIRE_VIRTUALENV | PIP_NO_DEPS | PIP_DRY_RUN | PIP_EDITABLE) unset "$name" ;;
    PIP_NO_BINARY | PIP_ONLY_BINARY | PIP_REQUIREMENT | PIP_CONSTRAINT) unset "$name" ;;
    PIP_BUILD_CONSTRAINT | PIP_PRE | PIP_NO_BUILD_ISOLATION | PIP_IGNORE_INSTALLED) unset "$name" ;;
  esac
done
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PIP_ROOT_USER_ACTION=ignore PYTHONNOUSERSITE=1

say() { printf '%s: %s\n' "${SAYS:-setup}" "$*" >&2; }

fail() { # WHAT HINT
  printf 'error: %s\nhint: %s\n' "$1" "$2" >&2
  exit 1
}

hash_of() { if command -v sha256sum > /dev/null; then sha256sum; else shasum -a 256; fi; }

minor_of() { "$1" -I -c 'import sys; print(sys.version_info[1])' 2> /dev/null || true; }

install_debian() { # WHY PACKAGE...
  local why=$1 as_root=()
  shift
  if ! command -v apt-get > /dev/null; then
    fail "$why" "install what corresponds to these Debian packages, then run again: $*"
  fi
  if [ "$(id -u)" != 0 ]; then
    if ! sudo -n true 2> /dev/null; then
      fail "$why, and this user may not install it" "run: sudo apt-get install $*"
    fi
    as_root=(sudo -n)
  fi
  as_root+=(env DEBIAN_FRONTEND=noninteractive apt-get -q -y)
  say "$why: installing $*"
  # The package lists may be missing or too old: update them only when the first try fails.
  if ! "${as_root[@]}" install --no-install-recommends "$@" > /dev/null 2>&1; then
    "${as_root[@]}" update >&2 && "${as_root[@]}" install --no-install-recommends "$@" >&2 ||
      fail "could not install: $*" "see the messages of apt-get above"
  fi
}

build_borg() {
  local home=$VENV/borg made
  made=$(borg_stamp)
  if [ -x "$VENV/bin/borg" ] && [ "$(cat "$home/made-of" 2> /dev/null)" = "$made" ]; then return; fi
  need_borg_headers
  say "building Borg from source: about a minute, once"
  rm -rf "$home" "$VENV/bin/borg"
  "$VENV/bin/python" -I -m venv "$home"
  local into=("$home/bin/python" -I -m pip --quiet install --require-hashes --only-binary ":all:")
  {
    "${into[@]}" -r "$LOCKS/borg-build.lock" &&
      "${into[@]}" --no-binary borgbackup --no-build-isolation -r "$LOCKS/borg.lock"
  } || fail "pip could not build Borg" "see its messages above"
  "$home/bin/borg" --version > /dev/null || fail "Borg was built but does not start" "see above"
  ln -sfn ../borg/bin/borg "$VENV/bin/borg"
  echo "$made" > "$home/made-of"
}

# A venv knows its own path, and compiled modules their Python.
borg_stamp() {
  {
    pwd -P
    "$VENV/bin/python" -V
    cat "$LOCKS/borg-build.lock" "$LOCKS/borg.lock"
  } | hash_of
}

need_borg_headers() {
  local python_headers=()
  has_python_headers || python_headers=("python3.$(minor_of "$VENV/bin/python")-dev")
  if compiles && has_borg_headers && has_python_headers; then return; fi
  if [ "$(uname -s)" = Darwin ]; then
    fail "headers that Borg is built with are missing" "run: brew install openssl@3 lz4 zstd xxhash pkg-config"
  fi
  install_debian "headers that Borg is built with are missing" \
    gcc libc6-dev pkg-config liblz4-dev libzstd-dev libxxhash-dev libacl1-dev libssl-dev \
    ${python_headers[@]+"${python_headers[@]}"}
}

has_borg_headers() {
  command -v pkg-config > /dev/null && pkg-config --exists liblz4 libzstd libxxhash openssl || return 1
  [ "$(uname -s)" = Darwin ] || pkg-config --exists libacl
}

has_python_headers() {
  "$VENV/bin/python" -I -c 'import os, sysconfig, sys
sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))'
}

compiles() {
  printf '#include <stdio.h>\nint main(void) { return 0; }\n' |
    cc -x c -fsyntax-only - > /dev/null 2>&1
}

if [ "${BASH_SOURCE[0]}" = "$0" ]; then
  set -euo pipefail
  readonly SAYS=holdfast VENV=$1 LOCKS=$2
  cd "$VENV"
  build_borg
fi
