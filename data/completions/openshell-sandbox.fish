# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_openshell_sandbox_global_optspecs
    string join \n p/policy-data= allow= preset= print-policy write= read= hide= policy-rules= watch observe= observe-files observe-merge proposals= w/workdir= git-config= no-keep-settings no-placeholders carve-out-lost= run-dir= network= publish= ask= ask-rate= ask-command= ask-local policy-local save= upstream-ca-file= ca-dir= tls-dir= name-addresses= proxy-port= credentials= secrets-from-env env= env-file= clear-env leaks= inference-routes= name= keep i/interactive no-interactive ssh-socket-path= ssh-listen-addr= ssh-handshake-secret= ssh-handshake-skew-secs= sandbox-id= sandbox= openshell-endpoint= log-level= log-to= log-format= log-dir= log-files label= timings health-port= health-socket= t/timeout= grace= drain= tmp-size= die-with-parent= h/help V/version
end

function __fish_openshell_sandbox_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    set -e cmd[1]
    argparse -s (__fish_openshell_sandbox_global_optspecs) -- $cmd 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_openshell_sandbox_using_subcommand
    set -l cmd (__fish_openshell_sandbox_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -s p -l policy-data -l policy -d 'The policy (YAML): what the command may do [or OPENSHELL_POLICY_DATA]' -r -F
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l allow -d 'Let every program connect to a host, at port 443 unless you name another; may be repeated' -r
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l preset -d 'Add a policy for a usual need, such as claude-code, codex or github; may be repeated' -r
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l write -d 'Let the command read and write a folder; may be repeated' -r -F
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l read -d 'Let the command read and execute a file or folder; may be repeated' -r -F
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l hide -d 'Hide a file or folder, or what matches a pattern such as `**/.env`; may be repeated' -r -F
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l policy-rules -d 'Rules (Rego) instead of the built-in ones [or OPENSHELL_POLICY_RULES]' -r -F
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l observe -d 'Refuse no connection that a policy could permit, and write the policy that the run needs' -r -F
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l proposals -d 'Write a policy fragment that would permit the connections and requests that were refused' -r -F
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -s w -l workdir -d 'Working directory of the command, which it may write; it must exist' -r -F
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l git-config -d 'Access to the configuration of git work trees, which can name programs to run' -r -f -a "ro\t'Read-only: `git config` and `git remote add` fail, `git push -u` and the like in part'
rw\t'Writable'"
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l carve-out-lost -d 'What happens when such a path is replaced outside while the sandbox runs, so that nothing keeps it from the command any more' -r -f -a "end\t'The sandbox ends'
warn\t'A log line says it'"
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l run-dir -d 'Directory of the sandbox\'s own files during a run' -r -F
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l network -d 'How the network of the command is confined' -r -f -a "proxy\t'Only through the proxy, under the policy'
block\t'No network'
allow\t'The host\'s network; files, system calls and identity stay confined'"
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l publish -d 'Make a server of the command reachable from this host; may be repeated' -r
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l ask -d 'Ask about what the policy refuses; it waits so long (default: 120) while somebody looks' -r
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l ask-rate -d 'The most new questions in a minute' -r
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l ask-command -d 'Start a program outside of the sandbox for each question, which may answer it' -r
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l save -d 'Write the policy that the run comes to: the flags and presets, and what you saved' -r -F
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l upstream-ca-file -d 'Trust these certificates (PEM) of servers too, beside Mozilla\'s and the system\'s' -r -F
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l ca-dir -d 'Take the certificate authority from this folder, which many sandboxes can share' -r -F
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l tls-dir -d 'Directory inside the sandbox for the CA files that programs trust' -r -F
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l name-addresses -d 'Addresses that names have inside: their `real` ones, or some of a range' -r
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l proxy-port -d 'Port of the proxy on the sandbox\'s link' -r
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l credentials -d 'Credentials (YAML) that the proxy puts into requests; the command sees placeholders' -r -F
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l env -d 'Set a variable of the command, or pass yours on; may be repeated' -r
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l env-file -d 'Set the variables of a file: one NAME=VALUE or NAME a line, `#` begins a comment' -r -F
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l leaks -d 'What happens to a request that holds a secret which is not for its host' -r -f -a "report\t''
block\t''
off\t''"
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l inference-routes -d 'Routes (YAML) to the models that the command reaches at `inference.local` [or OPENSHELL_INFERENCE_ROUTES]' -r -F
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l name -d 'Name of this sandbox, for `exec` and `cp`, and in its log lines' -r
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l ssh-socket-path -d 'Unix socket of the SSH server, for this user and root [or OPENSHELL_SSH_SOCKET_PATH]' -r -F
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l ssh-listen-addr -d 'Address of the SSH server, for clients that have the handshake secret [or OPENSHELL_SSH_LISTEN_ADDR]' -r
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l ssh-handshake-secret -d 'Secret that clients of the SSH server have [or OPENSHELL_SSH_HANDSHAKE_SECRET]' -r
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l ssh-handshake-skew-secs -d 'Seconds by which the clocks of SSH clients may differ [default: 300, or OPENSHELL_SSH_HANDSHAKE_SKEW_SECS]' -r
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l sandbox-id -d 'Id of this sandbox at its gateway [or OPENSHELL_SANDBOX_ID]' -r
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l sandbox -d 'Name of this sandbox at its gateway [default: the id, or OPENSHELL_SANDBOX]' -r
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l openshell-endpoint -d 'Address of the gateway: http://HOST:PORT, or https://HOST:PORT for mutual TLS [or OPENSHELL_ENDPOINT]' -r
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l log-level -d 'Level of the log lines on standard error: error, warn, info, debug, trace [default: warn, or OPENSHELL_LOG_LEVEL]' -r
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l log-to -d 'Where log lines go' -r -f -a "stderr\t'Standard error, as its collector keeps them'
file\t'The log file; messages for the operator still go to standard error'
both\t'Both'"
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l log-format -d 'Form of the log lines' -r -f -a "text\t'Text for people and grep'
json\t'A JSON object each: OCSF records, and diagnostics'"
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l log-dir -d 'Directory of the log files' -r -F
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l label -d 'Label of the run in every log line and record, such as session=7f3a; may be repeated [also OPENSHELL_LABELS: KEY=VALUE,…]' -r
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l health-port -d 'Port of /healthz, /readyz and /metrics, at every address of the host or container' -r
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l health-socket -d 'Unix socket of the same, for this user and root' -r -F
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -s t -l timeout -d 'Time limit of the command: seconds, or 90s, 5m, 1h30m; 0 means no limit' -r
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l grace -d 'Time between asking the command to end and killing it' -r
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l drain -d 'Time between a signal that ends the sandbox and asking the command to end' -r
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l tmp-size -d 'Size of the sandbox\'s own /tmp and /dev/shm, each, such as 512M' -r
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l die-with-parent -d 'End the sandbox at once when the process that started it ends' -r
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l print-policy -d 'Print the policy that the command line means, as YAML, and run nothing'
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l watch -d 'Read the policy and the credentials again when their files change, as SIGHUP does'
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l observe-files -d 'With --observe, also let the command read what its user may read, and write down what it read'
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l observe-merge -d 'Keep the entries of an earlier --observe in the file instead of replacing them'
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l no-keep-settings -d 'Let the command write the settings of the project that editors, shells and agents execute'
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l no-placeholders -d 'Put no empty file in place of a `read_only` or `hidden` path that does not exist'
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l ask-local -d 'Answer here too what is asked, beside the gateway'
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l policy-local -d 'Let the command read its policy, and propose lines of it, at `http://policy.local`'
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l secrets-from-env -d 'Replace each variable that looks like a secret by a placeholder'
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l clear-env -d 'Give the command only LANG, LC_*, TERM, TZ, and what --env and --env-file name'
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l keep -d 'Keep the sandbox after its command has ended, for `exec` and SSH, until a signal ends it'
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -s i -l interactive -d 'Give the command what you type, even if its output goes elsewhere'
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l no-interactive -d 'Give the command nothing of what you type: if standard input is a terminal, the command reads an empty one'
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l log-files -d 'Log each refused access to a file, with the program that tried'
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l timings -d 'Print how long each stage of the start took, once the command runs'
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -s V -l version -d 'Print version'
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -a "init" -d 'Writes a policy for an agent, or for any command, that works in this folder. The policy has a comment for each part, and `check` passes it'
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -a "check" -d 'Reports the errors and warnings of policies, and runs nothing'
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -a "explain" -d 'Prints the proxy\'s decision on one connection, and runs nothing. It looks names up as the proxy does'
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -a "diff" -d 'Prints what one policy permits more (+) and less (-) than another'
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -a "doctor" -d 'Checks what this host offers to you, and starts a sandbox on trial. Nothing is left behind'
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -a "approvals" -d 'Shows what running sandboxes ask, and gives your answers. A sandbox asks if it was started with --ask or --policy-local'
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -a "exec" -d 'Runs another command in a running sandbox, confined as its main command is'
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -a "ps" -d 'Lists your running sandboxes'
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -a "cp" -d 'Copies a file or folder into a running sandbox, or out of it. A copy out of it leaves out symlinks that point outside the copy, devices, set-id bits and hooks of git repositories'
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -a "ca" -d 'Shows or replaces the certificate authority that a folder keeps (--ca-dir)'
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -a "gateway" -d 'Calls the gateway as a start does, and prints each answer. A running sandbox of the same id may lose its session and connect again'
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -a "presets" -d 'Lists presets, or makes those of package registries. To make one, it runs the client in a sandbox for a small download, and adds the hosts that the client asks'
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -a "copy-self" -d 'Copies this program to a place that containers share. Nobody sees a part of the copy'
complete -c openshell-sandbox -n "__fish_openshell_sandbox_using_subcommand init" -l agent -d 'The agent that works here, or `none` for another command' -r -f -a "claude-code\t''
codex\t''
opencode\t''
gemini\t''
copilot\t''
aider\t''
none\t''"
complete -c openshell-sandbox -n "__fish_openshell_sandbox_using_subcommand init" -l allow -d 'Let every program connect to HOST, by default at port 443; may be repeated' -r
complete -c openshell-sandbox -n "__fish_openshell_sandbox_using_subcommand init" -l preset -d 'Add what a preset grants, such as git-read; may be repeated' -r
complete -c openshell-sandbox -n "__fish_openshell_sandbox_using_subcommand init" -l write -d 'Let the command read and write a folder besides this one; may be repeated' -r -F
complete -c openshell-sandbox -n "__fish_openshell_sandbox_using_subcommand init" -l read -d 'Let the command read a file or folder; may be repeated' -r -F
complete -c openshell-sandbox -n "__fish_openshell_sandbox_using_subcommand init" -l hide -d 'Hide a file or folder, or what matches a pattern such as `**/.env`; may be repeated' -r -F
complete -c openshell-sandbox -n "__fish_openshell_sandbox_using_subcommand init" -l replace -d 'Replace the file if it exists'
complete -c openshell-sandbox -n "__fish_openshell_sandbox_using_subcommand init" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c openshell-sandbox -n "__fish_openshell_sandbox_using_subcommand check" -l policy-rules -d 'Policy rules (Rego) instead of the built-in ones' -r -F
complete -c openshell-sandbox -n "__fish_openshell_sandbox_using_subcommand check" -l replay -d 'Judge the decisions of an earlier run by the policy, and list those that change' -r -F
complete -c openshell-sandbox -n "__fish_openshell_sandbox_using_subcommand check" -l credentials -d 'Check this credentials file too; its secrets are not read' -r -F
complete -c openshell-sandbox -n "__fish_openshell_sandbox_using_subcommand check" -l inference-routes -d 'Check this file of routes to models too; keys in other places are not read' -r -F
complete -c openshell-sandbox -n "__fish_openshell_sandbox_using_subcommand check" -l deny-warnings -d 'Exit with 1 for warnings too'
complete -c openshell-sandbox -n "__fish_openshell_sandbox_using_subcommand check" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c openshell-sandbox -n "__fish_openshell_sandbox_using_subcommand explain" -l policy-rules -d 'Policy rules (Rego) instead of the built-in ones' -r -F
complete -c openshell-sandbox -n "__fish_openshell_sandbox_using_subcommand explain" -l binary -d 'Executable of the calling program, without symlinks (`readlink -f`)' -r
complete -c openshell-sandbox -n "__fish_openshell_sandbox_using_subcommand explain" -l ancestor -d 'Executable of an ancestor of that program, nearest first; may be repeated' -r
complete -c openshell-sandbox -n "__fish_openshell_sandbox_using_subcommand explain" -l host -d 'Destination host' -r
complete -c openshell-sandbox -n "__fish_openshell_sandbox_using_subcommand explain" -l port -d 'Destination port' -r
complete -c openshell-sandbox -n "__fish_openshell_sandbox_using_subcommand explain" -l door -d 'How the program connects: through the proxy (connect, forward, socks), or by name, without knowing the proxy' -r -f -a "connect\t''
forward\t''
socks\t''
name\t''"
complete -c openshell-sandbox -n "__fish_openshell_sandbox_using_subcommand explain" -l method -d 'Method of a request' -r
complete -c openshell-sandbox -n "__fish_openshell_sandbox_using_subcommand explain" -l path -d 'Path of a request' -r
complete -c openshell-sandbox -n "__fish_openshell_sandbox_using_subcommand explain" -l message -d 'Body of a POST, with messages of MCP or JSON-RPC' -r -F
complete -c openshell-sandbox -n "__fish_openshell_sandbox_using_subcommand explain" -l tool -d 'Tool of MCP that is called by a POST' -r
complete -c openshell-sandbox -n "__fish_openshell_sandbox_using_subcommand explain" -l arguments -d 'Arguments of the tool, a JSON object' -r
complete -c openshell-sandbox -n "__fish_openshell_sandbox_using_subcommand explain" -s h -l help -d 'Print help'
complete -c openshell-sandbox -n "__fish_openshell_sandbox_using_subcommand diff" -s h -l help -d 'Print help'
complete -c openshell-sandbox -n "__fish_openshell_sandbox_using_subcommand doctor" -l json -d 'Print one JSON document'
complete -c openshell-sandbox -n "__fish_openshell_sandbox_using_subcommand doctor" -s h -l help -d 'Print help'
complete -c openshell-sandbox -n "__fish_openshell_sandbox_using_subcommand approvals" -l line -d 'The line that permits it, counted from 1, the narrowest' -r
complete -c openshell-sandbox -n "__fish_openshell_sandbox_using_subcommand approvals" -l reason -d 'Why you deny it, for the program that has proposed it' -r
complete -c openshell-sandbox -n "__fish_openshell_sandbox_using_subcommand approvals" -l run-dir -d 'The --run-dir that the sandboxes were started with' -r -F
complete -c openshell-sandbox -n "__fish_openshell_sandbox_using_subcommand approvals" -l json -d 'Print the questions as JSON, one a line'
complete -c openshell-sandbox -n "__fish_openshell_sandbox_using_subcommand approvals" -l follow -d 'Print what is asked from now on too, and what becomes of it'
complete -c openshell-sandbox -n "__fish_openshell_sandbox_using_subcommand approvals" -s h -l help -d 'Print help'
complete -c openshell-sandbox -n "__fish_openshell_sandbox_using_subcommand exec" -s e -l env -d 'Set a variable of the command, or pass yours on; may be repeated' -r
complete -c openshell-sandbox -n "__fish_openshell_sandbox_using_subcommand exec" -s w -l workdir -d 'Working directory inside [default: the one of the main command]' -r -F
complete -c openshell-sandbox -n "__fish_openshell_sandbox_using_subcommand exec" -l run-dir -d 'The --run-dir that the sandboxes were started with' -r -F
complete -c openshell-sandbox -n "__fish_openshell_sandbox_using_subcommand exec" -s t -l tty -d 'Give the command a terminal of its own [default: when standard input and output are one]'
complete -c openshell-sandbox -n "__fish_openshell_sandbox_using_subcommand exec" -s h -l help -d 'Print help'
complete -c openshell-sandbox -n "__fish_openshell_sandbox_using_subcommand ps" -l run-dir -d 'The --run-dir that the sandboxes were started with' -r -F
complete -c openshell-sandbox -n "__fish_openshell_sandbox_using_subcommand ps" -l json -d 'Print one JSON document'
complete -c openshell-sandbox -n "__fish_openshell_sandbox_using_subcommand ps" -s h -l help -d 'Print help'
complete -c openshell-sandbox -n "__fish_openshell_sandbox_using_subcommand cp" -l run-dir -d 'The --run-dir that the sandboxes were started with' -r -F
complete -c openshell-sandbox -n "__fish_openshell_sandbox_using_subcommand cp" -l git-hooks -d 'Also copy hooks of git repositories out; git executes them'
complete -c openshell-sandbox -n "__fish_openshell_sandbox_using_subcommand cp" -s h -l help -d 'Print help'
complete -c openshell-sandbox -n "__fish_openshell_sandbox_using_subcommand ca" -s h -l help -d 'Print help'
complete -c openshell-sandbox -n "__fish_openshell_sandbox_using_subcommand gateway" -l sandbox-id -d 'Id of the sandbox [or OPENSHELL_SANDBOX_ID]' -r
complete -c openshell-sandbox -n "__fish_openshell_sandbox_using_subcommand gateway" -l openshell-endpoint -d 'Address of the gateway [or OPENSHELL_ENDPOINT]' -r
complete -c openshell-sandbox -n "__fish_openshell_sandbox_using_subcommand gateway" -s h -l help -d 'Print help'
complete -c openshell-sandbox -n "__fish_openshell_sandbox_using_subcommand presets" -l read -d 'Let the client read this path too; may be repeated' -r -F
complete -c openshell-sandbox -n "__fish_openshell_sandbox_using_subcommand presets" -l system -d 'Write to /etc/openshell/presets, for all users, instead of ~/.config/openshell/presets'
complete -c openshell-sandbox -n "__fish_openshell_sandbox_using_subcommand presets" -l replace -d 'Replace presets that exist'
complete -c openshell-sandbox -n "__fish_openshell_sandbox_using_subcommand presets" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c openshell-sandbox -n "__fish_openshell_sandbox_using_subcommand copy-self" -s h -l help -d 'Print help'

# What the generated part cannot know: presets, sandboxes, and the command after `--`.

# Prints the names in a list of the program. A preset that is not made yet has the words "presets make" behind its name.
function __openshell_sandbox_names
    openshell-sandbox $argv[1] 2>/dev/null | while read -l name next rest
        string match -qr '^[A-Za-z0-9_][A-Za-z0-9._-]*$' -- $name; and test $name != NAME; or continue
        test "$argv[2]" = made -a "$next" = presets; and continue
        test "$argv[2]" = unmade -a "$next" != presets; and continue
        echo $name
    end
end

function __openshell_sandbox_after_dashes
    contains -- -- (commandline -opc)
end

function __openshell_sandbox_command
    set -l words (commandline -opc)
    set -l first (math (contains -i -- -- $words) + 1)
    set -l before (string escape -- $words[$first..-1])
    complete -C (string join ' ' -- $before (commandline -ct))
end

# True if the words before the cursor are these.
function __openshell_sandbox_words
    set -l words (commandline -opc)
    test "$words[2..-1]" = "$argv"
end

complete -c openshell-sandbox -n 'not __openshell_sandbox_after_dashes' -l preset -x -a '(__openshell_sandbox_names presets made)'
complete -c openshell-sandbox -n '__openshell_sandbox_words presets make' -x -a '(__openshell_sandbox_names presets unmade)'
complete -c openshell-sandbox -n '__openshell_sandbox_words exec' -x -a '(__openshell_sandbox_names ps)'
complete -c openshell-sandbox -n '__openshell_sandbox_words approvals' -x -a '(__openshell_sandbox_names ps)'
complete -c openshell-sandbox -n '__openshell_sandbox_words cp' -a '(string replace -r \'$\' : (__openshell_sandbox_names ps))'
complete -c openshell-sandbox -n __openshell_sandbox_after_dashes -x -a '(__openshell_sandbox_command)'
