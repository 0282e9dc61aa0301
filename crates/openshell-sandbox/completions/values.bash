
# What the generated part cannot know: presets, sandboxes, and the command after `--`.

# Prints the names in a list of the program. A preset that is not made yet has the words "presets make" behind its name.
_openshell__sandbox_names() {
    local name next rest
    openshell-sandbox "$1" 2>/dev/null | while read -r name next rest; do
        [[ $name =~ ^[A-Za-z0-9_][A-Za-z0-9._-]*$ && $name != NAME ]] || continue
        if [[ $2 == made && $next == presets ]] || [[ $2 == unmade && $next != presets ]]; then
            continue
        fi
        printf '%s\n' "$name"
    done
}

# Offers what standard input lists, with $1 behind it.
_openshell__sandbox_offer() {
    local name whole="${COMP_WORDS[COMP_CWORD]}"
    local word="${whole##*[,=]}"
    # Bash makes a word of `=`, but not of what stands before a comma.
    local before="${whole%"$word"}"
    COMPREPLY=()
    while read -r name; do
        [[ $name$1 == "$word"* ]] && COMPREPLY+=("${before#=}$name$1")
    done
}

_openshell__sandbox_values() {
    local index previous="${COMP_WORDS[COMP_CWORD - 1]}"
    for ((index = 1; index < COMP_CWORD; index++)); do
        [[ ${COMP_WORDS[index]} == -- ]] || continue
        if declare -F _comp_command_offset >/dev/null; then
            _comp_command_offset $((index + 1))
        elif declare -F _command_offset >/dev/null; then
            _command_offset $((index + 1))
        elif ((COMP_CWORD == index + 1)); then
            mapfile -t COMPREPLY < <(compgen -c -- "${COMP_WORDS[COMP_CWORD]}")
        fi
        return
    done
    # Bash makes a word of `=`.
    [[ $previous == = ]] && previous="${COMP_WORDS[COMP_CWORD - 2]}"
    if [[ ${COMP_WORDS[COMP_CWORD]} == -* ]]; then
        _openshell__sandbox "$@"
        return
    fi
    case "${COMP_WORDS[1]} $previous" in
        *' --preset') _openshell__sandbox_offer '' < <(_openshell__sandbox_names presets made) ;;
        'presets make') _openshell__sandbox_offer '' < <(_openshell__sandbox_names presets unmade) ;;
        'exec exec') _openshell__sandbox_offer '' < <(_openshell__sandbox_names ps) ;;
        'approvals approvals') _openshell__sandbox_offer '' < <(_openshell__sandbox_names ps; printf '%s\n' decide revoke unmute) ;;
        'cp cp')
            # Without a name, bash offers files, and quotes what a shell would execute.
            _openshell__sandbox_offer : < <(_openshell__sandbox_names ps)
            ((${#COMPREPLY[@]})) && compopt -o nospace 2>/dev/null
            ;;
        *) _openshell__sandbox "$@" ;;
    esac
}

complete -F _openshell__sandbox_values -o bashdefault -o default openshell-sandbox
