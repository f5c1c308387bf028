# Helpers for the parts of tests/run (POSIX sh): ". tests/lib.sh" from the top of
# the work tree, which is where the parts run.
# shellcheck shell=sh
set -eu
cd "$(dirname "$(readlink -f "$0")")/../.."
top=$PWD
PATH=$PATH:/usr/sbin:/sbin
# A failed test says where by itself; a backtrace of an executor hides it.
export PATH RUST_BACKTRACE=0

die() { echo "$*" >&2; exit 1; }

# need COMMAND... : PACKAGE...: make sure of the commands, by installing the Debian
# packages where a command is missing; it is an error if they cannot be had.
need() {
    _missing=
    while [ "$1" != : ]; do
        command -v "$1" >/dev/null || _missing="$_missing $1"
        shift
    done
    shift
    [ "$_missing" ] || return 0
    [ "$(id -u)" = 0 ] || die "missing:$_missing. Install it: apt-get install $*"
    command -v apt-get >/dev/null || die "missing:$_missing, and there is no apt-get to install it"
    # One at a time, should several parts run at once.
    (
        flock 9
        export DEBIAN_FRONTEND=noninteractive
        apt-get -qq update && apt-get -qq -y --no-install-recommends install "$@"
    ) 9>"$top/build/apt.lock" >&2 || die "could not install $*"
    hash -r
}

# A folder of this part's own, gone at its end. Drives in it need O_DIRECT, which
# tmpfs may not have, so that it lies in the work tree. `at_end COMMAND` adds to
# what is done then.
mkdir -p "$top/build/tmp"
work=$(mktemp -d "$top/build/tmp/$(basename "$0").XXXXXX")
_at_end=
at_end() { _at_end="$*; $_at_end"; }
_finish() {
    _status=$?
    trap - EXIT
    eval "$_at_end" || :
    rm -rf "$work"
    exit $_status
}
trap _finish EXIT
trap 'exit 143' TERM
trap 'exit 130' INT

# simulate TEST: runs a test of the simulator, which is built for that. What to
# live is said in the environment.
simulate() {
    # So many small and large pieces come and go that giving them back to the system,
    # and getting them again, would take half of the time.
    export MALLOC_TRIM_THRESHOLD_=268435456 MALLOC_MMAP_THRESHOLD_=67108864
    cargo test --quiet --locked --profile simulation -p raidfabric-raid --lib -- \
        --exact --include-ignored --nocapture "sim::tests::$1"
}

# Where cargo puts things.
cargo_dir=${CARGO_TARGET_DIR:-$top/build}

# The release binary, linked statically so that it also runs in the guest and in an
# image made from nothing. Sets $raidfabric, which may also be given as $RAIDFABRIC.
build_raidfabric() {
    raidfabric=${RAIDFABRIC:-}
    [ -z "$raidfabric" ] || return 0
    _triple=$(rustc -vV | sed -n 's/^host: //p')
    RUSTFLAGS="-C target-feature=+crt-static" \
        cargo build --release --locked --target "$_triple" -p raidfabric
    raidfabric=$cargo_dir/$_triple/release/raidfabric
    [ -x "$raidfabric" ] || die "cargo built no $raidfabric"
}

# free_port NAME...: TCP ports of the loopback that are free now, set as $NAME.
free_port() {
    for _name; do
        _port=$(python3 -c 'import socket
s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
        eval "$_name=$_port"
    done
}

# wait_for SECONDS COMMAND...: until the command succeeds.
wait_for() {
    _limit=$(($(date +%s) + $1)); shift
    until "$@"; do
        [ "$(date +%s)" -lt $_limit ] || { echo "waited in vain for: $*" >&2; return 1; }
        sleep 0.1
    done
}

# shellcheck disable=SC2034 # for those who source us
initiator=$top/tests/linux-initiator/linux-initiator

# guest NAME OPTION... SCRIPT ARG...: runs the initiator's guest in the background, as one that
# waits for emulated drives leaves a core to another; guests_end waits for all of them, and tells
# what each said.
_guests=
guest() {
    _name=$1; shift
    "$initiator" run -k "$work/$_name.kernel" "$@" >"$work/$_name.log" 2>&1 </dev/null &
    _guests="$_guests $_name:$!"
}
guests_end() {
    _failed=
    for _guest in $_guests; do
        _name=${_guest%:*} _result=0
        wait "${_guest#*:}" || _result=$?
        echo "--- the guest $_name"
        cat "$work/$_name.log"
        [ $_result = 0 ] && continue
        cat "$work/$_name.kernel"
        echo "--- the guest $_name ended with status $_result"
        _failed=1
    done
    _guests=
    [ ! "$_failed" ] || die "a guest has failed"
}
