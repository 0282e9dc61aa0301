
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
