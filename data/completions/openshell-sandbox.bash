_openshell__sandbox() {
    local i cur prev opts cmd
    COMPREPLY=()
    if [[ "${BASH_VERSINFO[0]}" -ge 4 ]]; then
        cur="$2"
    else
        cur="${COMP_WORDS[COMP_CWORD]}"
    fi
    prev="$3"
    cmd=""
    opts=""

    for i in "${COMP_WORDS[@]:0:COMP_CWORD}"
    do
        case "${cmd},${i}" in
            ",$1")
                cmd="openshell__sandbox"
                ;;
            openshell__sandbox,approvals)
                cmd="openshell__sandbox__subcmd__approvals"
                ;;
            openshell__sandbox,ca)
                cmd="openshell__sandbox__subcmd__ca"
                ;;
            openshell__sandbox,check)
                cmd="openshell__sandbox__subcmd__check"
                ;;
            openshell__sandbox,copy-self)
                cmd="openshell__sandbox__subcmd__copy__subcmd__self"
                ;;
            openshell__sandbox,cp)
                cmd="openshell__sandbox__subcmd__cp"
                ;;
            openshell__sandbox,diff)
                cmd="openshell__sandbox__subcmd__diff"
                ;;
            openshell__sandbox,doctor)
                cmd="openshell__sandbox__subcmd__doctor"
                ;;
            openshell__sandbox,exec)
                cmd="openshell__sandbox__subcmd__exec"
                ;;
            openshell__sandbox,explain)
                cmd="openshell__sandbox__subcmd__explain"
                ;;
            openshell__sandbox,gateway)
                cmd="openshell__sandbox__subcmd__gateway"
                ;;
            openshell__sandbox,init)
                cmd="openshell__sandbox__subcmd__init"
                ;;
            openshell__sandbox,presets)
                cmd="openshell__sandbox__subcmd__presets"
                ;;
            openshell__sandbox,ps)
                cmd="openshell__sandbox__subcmd__ps"
                ;;
            *)
                ;;
        esac
    done

    case "${cmd}" in
        openshell__sandbox)
            opts="-p -w -i -t -h -V --policy --policy-data --allow --preset --print-policy --write --read --hide --policy-rules --watch --observe --observe-files --observe-merge --proposals --workdir --git-config --no-keep-settings --no-placeholders --carve-out-lost --run-dir --network --publish --ask --ask-rate --ask-command --ask-local --policy-local --save --upstream-ca-file --ca-dir --tls-dir --name-addresses --proxy-port --credentials --secrets-from-env --env --env-file --clear-env --leaks --inference-routes --name --keep --interactive --no-interactive --ssh-socket-path --ssh-listen-addr --ssh-handshake-secret --ssh-handshake-skew-secs --sandbox-id --sandbox --openshell-endpoint --log-level --log-to --log-format --log-dir --log-files --label --timings --health-port --health-socket --timeout --grace --drain --tmp-size --die-with-parent --help --version init check explain diff doctor approvals exec ps cp ca gateway presets copy-self"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 1 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                --policy-data)
                    COMPREPLY=()
                    return 0
                    ;;
                --policy)
                    COMPREPLY=()
                    return 0
                    ;;
                -p)
                    COMPREPLY=()
                    return 0
                    ;;
                --allow)
                    COMPREPLY=()
                    return 0
                    ;;
                --preset)
                    COMPREPLY=()
                    return 0
                    ;;
                --write)
                    COMPREPLY=()
                    return 0
                    ;;
                --read)
                    COMPREPLY=()
                    return 0
                    ;;
                --hide)
                    COMPREPLY=()
                    return 0
                    ;;
                --policy-rules)
                    COMPREPLY=()
                    return 0
                    ;;
                --observe)
                    COMPREPLY=()
                    return 0
                    ;;
                --proposals)
                    COMPREPLY=()
                    return 0
                    ;;
                --workdir)
                    COMPREPLY=()
                    return 0
                    ;;
                -w)
                    COMPREPLY=()
                    return 0
                    ;;
                --git-config)
                    COMPREPLY=($(compgen -W "ro rw" -- "${cur}"))
                    return 0
                    ;;
                --carve-out-lost)
                    COMPREPLY=($(compgen -W "end warn" -- "${cur}"))
                    return 0
                    ;;
                --run-dir)
                    COMPREPLY=()
                    return 0
                    ;;
                --network)
                    COMPREPLY=($(compgen -W "proxy block allow" -- "${cur}"))
                    return 0
                    ;;
                --publish)
                    COMPREPLY=()
                    return 0
                    ;;
                --ask)
                    COMPREPLY=()
                    return 0
                    ;;
                --ask-rate)
                    COMPREPLY=()
                    return 0
                    ;;
                --ask-command)
                    COMPREPLY=()
                    return 0
                    ;;
                --save)
                    COMPREPLY=()
                    return 0
                    ;;
                --upstream-ca-file)
                    COMPREPLY=()
                    return 0
                    ;;
                --ca-dir)
                    COMPREPLY=()
                    return 0
                    ;;
                --tls-dir)
                    COMPREPLY=()
                    return 0
                    ;;
                --name-addresses)
                    COMPREPLY=()
                    return 0
                    ;;
                --proxy-port)
                    COMPREPLY=()
                    return 0
                    ;;
                --credentials)
                    COMPREPLY=()
                    return 0
                    ;;
                --env)
                    COMPREPLY=()
                    return 0
                    ;;
                --env-file)
                    COMPREPLY=()
                    return 0
                    ;;
                --leaks)
                    COMPREPLY=($(compgen -W "report block off" -- "${cur}"))
                    return 0
                    ;;
                --inference-routes)
                    COMPREPLY=()
                    return 0
                    ;;
                --name)
                    COMPREPLY=()
                    return 0
                    ;;
                --ssh-socket-path)
                    COMPREPLY=()
                    return 0
                    ;;
                --ssh-listen-addr)
                    COMPREPLY=()
                    return 0
                    ;;
                --ssh-handshake-secret)
                    COMPREPLY=()
                    return 0
                    ;;
                --ssh-handshake-skew-secs)
                    COMPREPLY=()
                    return 0
                    ;;
                --sandbox-id)
                    COMPREPLY=()
                    return 0
                    ;;
                --sandbox)
                    COMPREPLY=()
                    return 0
                    ;;
                --openshell-endpoint)
                    COMPREPLY=()
                    return 0
                    ;;
                --log-level)
                    COMPREPLY=()
                    return 0
                    ;;
                --log-to)
                    COMPREPLY=($(compgen -W "stderr file both" -- "${cur}"))
                    return 0
                    ;;
                --log-format)
                    COMPREPLY=($(compgen -W "text json" -- "${cur}"))
                    return 0
                    ;;
                --log-dir)
                    COMPREPLY=()
                    return 0
                    ;;
                --label)
                    COMPREPLY=()
                    return 0
                    ;;
                --health-port)
                    COMPREPLY=()
                    return 0
                    ;;
                --health-socket)
                    COMPREPLY=()
                    return 0
                    ;;
                --timeout)
                    COMPREPLY=()
                    return 0
                    ;;
                -t)
                    COMPREPLY=()
                    return 0
                    ;;
                --grace)
                    COMPREPLY=()
                    return 0
                    ;;
                --drain)
                    COMPREPLY=()
                    return 0
                    ;;
                --tmp-size)
                    COMPREPLY=()
                    return 0
                    ;;
                --die-with-parent)
                    COMPREPLY=()
                    return 0
                    ;;
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        openshell__sandbox__subcmd__approvals)
            opts="-h --line --reason --json --follow --run-dir --help"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 2 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                --line)
                    COMPREPLY=()
                    return 0
                    ;;
                --reason)
                    COMPREPLY=()
                    return 0
                    ;;
                --run-dir)
                    COMPREPLY=()
                    return 0
                    ;;
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        openshell__sandbox__subcmd__ca)
            opts="-h --help show rotate"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 2 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        openshell__sandbox__subcmd__check)
            opts="-h --deny-warnings --policy-rules --replay --credentials --inference-routes --help"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 2 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                --policy-rules)
                    COMPREPLY=()
                    return 0
                    ;;
                --replay)
                    COMPREPLY=()
                    return 0
                    ;;
                --credentials)
                    COMPREPLY=()
                    return 0
                    ;;
                --inference-routes)
                    COMPREPLY=()
                    return 0
                    ;;
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        openshell__sandbox__subcmd__copy__subcmd__self)
            opts="-h --help"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 2 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        openshell__sandbox__subcmd__cp)
            opts="-h --git-hooks --run-dir --help"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 2 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                --run-dir)
                    COMPREPLY=()
                    return 0
                    ;;
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        openshell__sandbox__subcmd__diff)
            opts="-h --help"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 2 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        openshell__sandbox__subcmd__doctor)
            opts="-h --json --help"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 2 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        openshell__sandbox__subcmd__exec)
            opts="-t -e -w -h --tty --env --workdir --run-dir --help"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 2 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                --env)
                    COMPREPLY=()
                    return 0
                    ;;
                -e)
                    COMPREPLY=()
                    return 0
                    ;;
                --workdir)
                    COMPREPLY=()
                    return 0
                    ;;
                -w)
                    COMPREPLY=()
                    return 0
                    ;;
                --run-dir)
                    COMPREPLY=()
                    return 0
                    ;;
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        openshell__sandbox__subcmd__explain)
            opts="-h --policy-rules --binary --ancestor --host --port --door --method --path --message --tool --arguments --help"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 2 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                --policy-rules)
                    COMPREPLY=()
                    return 0
                    ;;
                --binary)
                    COMPREPLY=()
                    return 0
                    ;;
                --ancestor)
                    COMPREPLY=()
                    return 0
                    ;;
                --host)
                    COMPREPLY=()
                    return 0
                    ;;
                --port)
                    COMPREPLY=()
                    return 0
                    ;;
                --door)
                    COMPREPLY=($(compgen -W "connect forward socks name" -- "${cur}"))
                    return 0
                    ;;
                --method)
                    COMPREPLY=()
                    return 0
                    ;;
                --path)
                    COMPREPLY=()
                    return 0
                    ;;
                --message)
                    COMPREPLY=()
                    return 0
                    ;;
                --tool)
                    COMPREPLY=()
                    return 0
                    ;;
                --arguments)
                    COMPREPLY=()
                    return 0
                    ;;
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        openshell__sandbox__subcmd__gateway)
            opts="-h --sandbox-id --openshell-endpoint --help check"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 2 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                --sandbox-id)
                    COMPREPLY=()
                    return 0
                    ;;
                --openshell-endpoint)
                    COMPREPLY=()
                    return 0
                    ;;
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        openshell__sandbox__subcmd__init)
            opts="-h --agent --allow --preset --write --read --hide --replace --help"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 2 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                --agent)
                    COMPREPLY=($(compgen -W "claude-code codex opencode gemini copilot aider none" -- "${cur}"))
                    return 0
                    ;;
                --allow)
                    COMPREPLY=()
                    return 0
                    ;;
                --preset)
                    COMPREPLY=()
                    return 0
                    ;;
                --write)
                    COMPREPLY=()
                    return 0
                    ;;
                --read)
                    COMPREPLY=()
                    return 0
                    ;;
                --hide)
                    COMPREPLY=()
                    return 0
                    ;;
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        openshell__sandbox__subcmd__presets)
            opts="-h --system --read --replace --help make"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 2 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                --read)
                    COMPREPLY=()
                    return 0
                    ;;
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        openshell__sandbox__subcmd__ps)
            opts="-h --json --run-dir --help"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 2 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                --run-dir)
                    COMPREPLY=()
                    return 0
                    ;;
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
    esac
}

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
