# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_openshell_sandbox_global_optspecs
    string join \n p/policy-data= allow= write= read= hide= preset= print-policy watch policy-rules= network= publish= w/workdir= no-placeholders carve-out-lost= git-config= no-keep-settings tmp-size= t/timeout= grace= drain= i/interactive no-interactive clear-env env= env-file= credentials= secrets-from-env proposals= observe= observe-files observe-merge leaks= inference-routes= sandbox-id= sandbox= openshell-endpoint= log-level= log-files timings log-format= log-to= name= label= die-with-parent= keep log-dir= run-dir= tls-dir= upstream-ca-file= ca-dir= proxy-port= name-addresses= ssh-listen-addr= ssh-handshake-secret= ssh-handshake-skew-secs= ssh-socket-path= health-port= health-socket= h/help V/version
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

complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -s p -l policy-data -l policy -d 'Policy data (YAML): the permissions of the command [or OPENSHELL_POLICY_DATA]' -r -F
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l allow -d 'Let every program connect to a host, at port 443 unless another is named; with `=read-only`, `=read-write` or `=full` requests are judged, `=tcp` is for bytes that are not HTTP; may be repeated, as the following' -r
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l write -d 'Let the command write to a folder, and read it' -r -F
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l read -d 'Let the command read and execute a file or folder; below a writable one it is kept from being written' -r -F
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l hide -d 'Hide a file or folder, or what matches a pattern such as `**/.env`, from the command' -r -F
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l preset -d 'Add a policy for a usual need: aider, claude-code, codex, copilot, gemini, opencode, git-read, github, models, or one of your own, in ~/.config/openshell/presets or /etc/openshell/presets; `openshell-sandbox presets` lists them, and makes apt, go, java, node, python, rust' -r
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l policy-rules -d 'Policy rules (Rego) instead of the built-in ones [or OPENSHELL_POLICY_RULES]' -r -F
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l network -d 'Confinement of the network' -r -f -a "proxy\t'Only through the proxy, under the policy'
block\t'No network'
allow\t'The host\'s network; files, system calls and identity stay confined'"
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l publish -d 'Publish a server inside: an address (127.0.0.1) and port outside, 0 for any, and its port at 127.0.0.1 inside (the same); may be repeated' -r
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -s w -l workdir -d 'Working directory of the command, an existing folder; also added to its writable paths' -r -F
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l carve-out-lost -d 'What happens when such a path is replaced outside while the sandbox runs, and so is no longer kept from the command [default: end for hidden paths, warn for the others]' -r -f -a "end\t'The sandbox ends'
warn\t'A log line says it'"
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l git-config -d 'Access to the configuration of git work trees, which can name programs to run; hooks are read-only in any case' -r -f -a "ro\t'Read-only: `git config` and `git remote add` fail, `git push -u` and the like in part'
rw\t'Writable'"
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l tmp-size -d 'Most bytes in each of the sandbox\'s own /tmp and /dev/shm, such as 512M [default: 1G, or half of the memory limit]' -r
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -s t -l timeout -d 'Time limit of the command: seconds, or 90s, 5m, 1h30m; 0 means no limit' -r
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l grace -d 'Time between asking the command to end and killing it' -r
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l drain -d 'Time between a signal to end and asking the command to: the sandbox is not ready any more (--health-port), and lets no more clients in from outside' -r
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l env -d 'Set a variable of the command, or pass the caller\'s on, which matters with --clear-env; may be repeated' -r
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l env-file -d 'Set the variables of a file, one NAME=VALUE or NAME a line; lines that begin with `#` are comments' -r -F
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l credentials -d 'Credentials (YAML) that the proxy injects; the command sees placeholders' -r -F
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l proposals -d 'Write a policy fragment that would permit the refused connections and requests' -r -F
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l observe -d 'Refuse no connection that a policy could permit, and write the policy that the run needs; files stay confined, unless --observe-files shows them' -r -F
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l leaks -d 'What happens to requests that hold a secret which is not for their host: report it once for each kind of secret and host, block the request, or off' -r -f -a "report\t''
block\t''
off\t''"
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l inference-routes -d 'Routes to the models at `inference.local` (YAML) [or OPENSHELL_INFERENCE_ROUTES]' -r -F
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l sandbox-id -d 'Id of this sandbox at its gateway, which then gives policy, credentials and routes [or OPENSHELL_SANDBOX_ID]' -r
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l sandbox -d 'Name of this sandbox at its gateway [default: the id, or OPENSHELL_SANDBOX]' -r
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l openshell-endpoint -d 'Address of the gateway: http://HOST:PORT, or https://HOST:PORT for mutual TLS [or OPENSHELL_ENDPOINT]' -r
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l log-level -d 'Level of log lines on standard error: error, warn, info, debug, trace [default: warn, or OPENSHELL_LOG_LEVEL]' -r
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l log-format -d 'Form of log lines' -r -f -a "text\t'Text for people and grep'
json\t'A JSON object each: OCSF records, and diagnostics'"
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l log-to -d 'Where log lines go; to standard error alone they go from the level `info` on' -r -f -a "stderr\t'Standard error, as its collector keeps them'
file\t'The log file; messages for the operator still go to standard error'
both\t'Both'"
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l name -d 'Name of this sandbox, unique among yours: for `exec`, and in its log lines, `sandbox=NAME` [default: eight random hex digits]' -r
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l label -d 'Label of the run, in every log line and record, such as session=7f3a or user=kim; may be repeated [also OPENSHELL_LABELS: KEY=VALUE,…]' -r
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l die-with-parent -d 'End the sandbox, at once, when the process that started it ends; with the PID of that process its end before this start counts too' -r
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l log-dir -d 'Directory of the log files [default: /var/log, else openshell in $XDG_STATE_HOME or ~/.local/state]' -r -F
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l run-dir -d 'Directory of the sandbox\'s own files during a run [default: /run/openshell, else openshell in $XDG_RUNTIME_DIR, else /tmp or /dev/shm]' -r -F
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l tls-dir -d 'Directory inside the sandbox that holds the CA files for programs [default: /etc/openshell-tls, else in the run directory]' -r -F
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l upstream-ca-file -d 'Certificates (PEM) to trust in upstreams, beside Mozilla\'s and the system\'s' -r -F
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l ca-dir -d 'Folder with one certificate authority for many sandboxes, made if it is missing: ca.pem, or a mounted tls.key and tls.crt [default: an authority of this run, in memory]' -r -F
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l proxy-port -d 'The proxy\'s port on the sandbox\'s link' -r
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l name-addresses -d 'Addresses that names have inside: `real` ones, or of a range, for programs that refuse those of 198.18.0.0/15' -r
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l ssh-listen-addr -d 'Address of the SSH server, for clients with the handshake secret [or OPENSHELL_SSH_LISTEN_ADDR]' -r
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l ssh-handshake-secret -d 'Secret of the SSH server\'s clients, better set as OPENSHELL_SSH_HANDSHAKE_SECRET: `ps` shows flags' -r
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l ssh-handshake-skew-secs -d 'Seconds by which clocks of the SSH server\'s clients may differ [default: 300, or OPENSHELL_SSH_HANDSHAKE_SKEW_SECS]' -r
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l ssh-socket-path -d 'Unix socket of the SSH server, for this user and root [or OPENSHELL_SSH_SOCKET_PATH]' -r -F
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l health-port -d 'Port of health and metrics (/healthz, /readyz, /metrics), at every address of the host or container' -r
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l health-socket -d 'Unix socket of the same, for this user and root' -r -F
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l print-policy -d 'Print the policy that the command line means, as YAML, and run nothing'
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l watch -d 'Read the policy and the credentials again when their files change, as for SIGHUP'
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l no-placeholders -d 'Make no empty files in place of missing paths of read_only and hidden, which the command could then make; they are named instead'
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l no-keep-settings -d 'Let the command write the project\'s settings that editors, shells and agents execute, such as .vscode, .envrc and .mcp.json'
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -s i -l interactive -d 'Give the command what you type from the start, also where its output goes elsewhere [default: if input and output are the terminal]'
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l no-interactive -d 'Give the command nothing of what you type: its standard input is empty if it is a terminal'
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l clear-env -d 'Start the command\'s environment from LANG, LC_*, TERM and TZ alone, and what --env and --env-file name, instead of the caller\'s'
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l secrets-from-env -d 'Give the command placeholders for all variables that look like secrets, each for the hosts of its issuer alone; those of unknown issuers are refused everywhere'
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l observe-files -d 'With --observe, also let the command read what its user may read, apart from keys and browsers\' profiles, and write down what it read; what it writes to the home ends with the run'
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l observe-merge -d 'Keep the entries of an earlier --observe in the file instead of replacing it'
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l log-files -d 'Log each refused access to a file, with its program; every call that opens a file then takes some microseconds longer'
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l timings -d 'Print how long each stage of the start took, once the command runs'
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -l keep -d 'Keep the sandbox after its command has ended, for `exec` and SSH, until a signal ends it'
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -s V -l version -d 'Print version'
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -a "check" -d 'Reports all errors and warnings of a policy, and runs nothing'
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -a "explain" -d 'Prints the proxy\'s decision on a connection, and runs nothing. Names are looked up as by the proxy'
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -a "diff" -d 'Says what one policy permits more and less than another: hosts, requests, programs, files, user'
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -a "doctor" -d 'Checks what this host and caller have, and starts a sandbox on trial; leaves nothing'
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -a "exec" -d 'Runs a further command in a running sandbox, confined as its main command is'
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -a "ps" -d 'Lists this user\'s running sandboxes'
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -a "cp" -d 'Copies a file or folder into a running sandbox, or out of it. Out of it come no links that leave the copy, no devices, no set-id bits and no hooks of git repositories'
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -a "ca" -d 'Shows or replaces the certificate authority of a folder (--ca-dir)'
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -a "gateway" -d 'Makes the calls of a start to the gateway that the environment names, and prints what each gave; changes nothing'
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -a "presets" -d 'Lists presets, or makes those of package registries: each client is asked, in a sandbox, for something small, and the hosts that it downloads from get into the preset'
complete -c openshell-sandbox -n "__fish_openshell_sandbox_needs_command" -a "copy-self" -d 'Copies this program to a place that other containers share, in one step'
complete -c openshell-sandbox -n "__fish_openshell_sandbox_using_subcommand check" -l policy-rules -d 'Policy rules (Rego) instead of the built-in ones' -r -F
complete -c openshell-sandbox -n "__fish_openshell_sandbox_using_subcommand check" -l replay -d 'A log of an earlier run, of --log-format json, whose decisions are judged by the policy; those that change are listed' -r -F
complete -c openshell-sandbox -n "__fish_openshell_sandbox_using_subcommand check" -l credentials -d 'A credentials file to check too; its secrets are not read' -r -F
complete -c openshell-sandbox -n "__fish_openshell_sandbox_using_subcommand check" -l inference-routes -d 'A file of routes to models to check too; keys in other places are not read' -r -F
complete -c openshell-sandbox -n "__fish_openshell_sandbox_using_subcommand check" -l deny-warnings -d 'Exit with 1 for warnings too'
complete -c openshell-sandbox -n "__fish_openshell_sandbox_using_subcommand check" -s h -l help -d 'Print help'
complete -c openshell-sandbox -n "__fish_openshell_sandbox_using_subcommand explain" -l policy-rules -d 'Policy rules (Rego) instead of the built-in ones' -r -F
complete -c openshell-sandbox -n "__fish_openshell_sandbox_using_subcommand explain" -l binary -d 'Executable of the calling program, without symlinks (`readlink -f`)' -r
complete -c openshell-sandbox -n "__fish_openshell_sandbox_using_subcommand explain" -l ancestor -d 'Executable of an ancestor, nearest first; may be repeated' -r
complete -c openshell-sandbox -n "__fish_openshell_sandbox_using_subcommand explain" -l host -d 'Destination host' -r
complete -c openshell-sandbox -n "__fish_openshell_sandbox_using_subcommand explain" -l port -d 'Destination port' -r
complete -c openshell-sandbox -n "__fish_openshell_sandbox_using_subcommand explain" -l door -d 'Way of the connection: by the proxy (connect, forward, socks), or by name, of a program that knows no proxy' -r -f -a "connect\t''
forward\t''
socks\t''
name\t''"
complete -c openshell-sandbox -n "__fish_openshell_sandbox_using_subcommand explain" -l method -d 'Method of a request' -r
complete -c openshell-sandbox -n "__fish_openshell_sandbox_using_subcommand explain" -l path -d 'Path of a request' -r
complete -c openshell-sandbox -n "__fish_openshell_sandbox_using_subcommand explain" -s h -l help -d 'Print help'
complete -c openshell-sandbox -n "__fish_openshell_sandbox_using_subcommand diff" -s h -l help -d 'Print help'
complete -c openshell-sandbox -n "__fish_openshell_sandbox_using_subcommand doctor" -l json -d 'Print one JSON document'
complete -c openshell-sandbox -n "__fish_openshell_sandbox_using_subcommand doctor" -s h -l help -d 'Print help'
complete -c openshell-sandbox -n "__fish_openshell_sandbox_using_subcommand exec" -s e -l env -d 'Set a variable of the command; without a value, to that of this process; may be repeated' -r
complete -c openshell-sandbox -n "__fish_openshell_sandbox_using_subcommand exec" -s w -l workdir -d 'Directory inside to start in [default: the main command\'s]' -r -F
complete -c openshell-sandbox -n "__fish_openshell_sandbox_using_subcommand exec" -l run-dir -d 'Directory of the sandboxes\' own files, if they were started with one' -r -F
complete -c openshell-sandbox -n "__fish_openshell_sandbox_using_subcommand exec" -s t -l tty -d 'Give the command a terminal of its own [default: when standard input and output are one]'
complete -c openshell-sandbox -n "__fish_openshell_sandbox_using_subcommand exec" -s h -l help -d 'Print help'
complete -c openshell-sandbox -n "__fish_openshell_sandbox_using_subcommand ps" -l run-dir -d 'Directory of the sandboxes\' own files, if they were started with one' -r -F
complete -c openshell-sandbox -n "__fish_openshell_sandbox_using_subcommand ps" -l json -d 'Print one JSON document'
complete -c openshell-sandbox -n "__fish_openshell_sandbox_using_subcommand ps" -s h -l help -d 'Print help'
complete -c openshell-sandbox -n "__fish_openshell_sandbox_using_subcommand cp" -l run-dir -d 'Directory of the sandboxes\' own files, if they were started with one' -r -F
complete -c openshell-sandbox -n "__fish_openshell_sandbox_using_subcommand cp" -l git-hooks -d 'Copy hooks of git repositories out too, which git runs'
complete -c openshell-sandbox -n "__fish_openshell_sandbox_using_subcommand cp" -s h -l help -d 'Print help'
complete -c openshell-sandbox -n "__fish_openshell_sandbox_using_subcommand ca" -s h -l help -d 'Print help'
complete -c openshell-sandbox -n "__fish_openshell_sandbox_using_subcommand gateway" -l sandbox-id -d 'Id of the sandbox [or OPENSHELL_SANDBOX_ID]' -r
complete -c openshell-sandbox -n "__fish_openshell_sandbox_using_subcommand gateway" -l openshell-endpoint -d 'Address of the gateway [or OPENSHELL_ENDPOINT]' -r
complete -c openshell-sandbox -n "__fish_openshell_sandbox_using_subcommand gateway" -s h -l help -d 'Print help'
complete -c openshell-sandbox -n "__fish_openshell_sandbox_using_subcommand presets" -l read -d 'Let the client read a path besides its settings and programs where they usually are; may be repeated' -r -F
complete -c openshell-sandbox -n "__fish_openshell_sandbox_using_subcommand presets" -l system -d 'For all users: into /etc/openshell/presets instead of ~/.config/openshell/presets'
complete -c openshell-sandbox -n "__fish_openshell_sandbox_using_subcommand presets" -l replace -d 'Replace presets that exist'
complete -c openshell-sandbox -n "__fish_openshell_sandbox_using_subcommand presets" -s h -l help -d 'Print help'
complete -c openshell-sandbox -n "__fish_openshell_sandbox_using_subcommand copy-self" -s h -l help -d 'Print help'
