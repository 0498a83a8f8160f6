# Makes .venv in the project's folder and installs what is asked for. Read by the scripts beside it, not run.
#
#   . "$root/scripts/environment.sh"     with $root set to the project's folder
#   environment runtime|dev              afterwards $python is the environment's interpreter
#
# An environment is made anew when its interpreter is gone, and installed again when pyproject.toml or the pinned
# versions have changed, or the folder was moved.

export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1

python="$root/.venv/bin/python"

say() { printf '%s\n' "$*" >&2; }

# Prints the comment that a script begins with.
show_help() {
    sed -n '2,$ { /^#/ !q; s/^# \{0,1\}//p; }' "$1"
}

# Prints the first interpreter that is new enough and can make environments.
find_python() {
    for candidate in ${PYTHON:-python3.13 python3.12 python3.11 python3 python}; do
        if "$candidate" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
            printf '%s\n' "$candidate"
            return 0
        fi
    done
    if [ -n "${PYTHON:-}" ]; then
        say "Tidegate needs Python 3.11 or later, with its venv module, and PYTHON=$PYTHON is none."
        say "Set PYTHON to another interpreter, or not at all to have one looked for."
        return 1
    fi
    say "Tidegate needs Python 3.11 or later, with its venv module, and found none."
    say "On Debian or Ubuntu: apt install python3 python3-venv. Elsewhere: https://www.python.org/downloads/"
    say "If it is installed under another name, set PYTHON to that interpreter."
    return 1
}

# What an installation depends on, as one number.
fingerprint() {
    {
        printf '%s\n' "$root"
        "$python" -c 'import sys; print(sys.version)'
        cat "$root/pyproject.toml" "$root/requirements-dev.lock"
    } | cksum
}

environment() {
    if ! "$python" -c '' >/dev/null 2>&1; then
        base=$(find_python)
        say "Making .venv with $("$base" --version)"
        rm -rf "$root/.venv"
        "$base" -m venv "$root/.venv"
    fi
    wanted=$(fingerprint)
    stamp="$root/.venv/installed-$1"
    if [ "$(cat "$stamp" 2>/dev/null || :)" = "$wanted" ]; then
        return 0
    fi
    rm -f "$root/.venv/installed-runtime" "$root/.venv/installed-dev"
    case $1 in
        runtime)
            say "Installing Tidegate into .venv"
            "$python" -m pip install --quiet --constraint "$root/requirements-dev.lock" --editable "$root"
            ;;
        dev)
            say "Installing Tidegate and its development tools into .venv"
            "$python" -m pip install --quiet --requirement "$root/requirements-dev.lock"
            "$python" -m pip install --quiet --no-deps --editable "$root"
            printf '%s\n' "$wanted" >"$root/.venv/installed-runtime"
            ;;
    esac
    printf '%s\n' "$wanted" >"$stamp"
}
