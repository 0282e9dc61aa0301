
# What the generated part cannot know: presets, sandboxes, and the command after `--`.

# Prints the names in a list of the program. A preset that is not made yet has the words "presets make" behind its name.
_openshell_sandbox_names() {
    local name next rest
    openshell-sandbox $1 2>/dev/null | while read -r name next rest; do
        [[ $name =~ '^[A-Za-z0-9_][A-Za-z0-9._-]*$' && $name != NAME ]] || continue
        [[ $2 == made && $next == presets ]] && continue
        [[ $2 == unmade && $next != presets ]] && continue
        print -r -- $name
    done
}

_openshell-sandbox() {
    local -i dashes=${words[(i)--]}
    if (( dashes < CURRENT )); then
        shift $dashes words
        (( CURRENT -= dashes ))
        _normal
        return
    fi
    if compset -P '--preset=' || [[ ${words[CURRENT-1]} == --preset ]]; then
        compset -P '*,'
        compadd -- ${(f)"$(_openshell_sandbox_names presets made)"}
        return
    fi
    if [[ ${words[CURRENT]} == -* ]]; then
        _openshell_sandbox_generated "$@"
        return
    fi
    case "${words[2]} ${words[CURRENT-1]}" in
        ('presets make') compadd -- ${(f)"$(_openshell_sandbox_names presets unmade)"} ;;
        ('exec exec') compadd -- ${(f)"$(_openshell_sandbox_names ps)"} ;;
        ('approvals approvals') compadd -- ${(f)"$(_openshell_sandbox_names ps)"} decide revoke unmute ;;
        ('cp cp')
            compadd -S : -- ${(f)"$(_openshell_sandbox_names ps)"}
            _files
            ;;
        (*) _openshell_sandbox_generated "$@" ;;
    esac
}
