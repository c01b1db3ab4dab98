# Completion of treesnap in fish.

function __treesnap_complete
    set -l line (commandline -cp)
    set -l program (commandline -opc)[1]
    for item in (env _SNAP_COMPLETE=fish_complete _TREESNAP_COMPLETE=fish_complete COMP_LINE="$line" $program 2>/dev/null)
        set -l parts (string split -m 1 \t -- $item)
        switch $parts[1]
            case file
                __fish_complete_path (commandline -ct)
            case dir
                __fish_complete_directories (commandline -ct)
            case '*'
                echo $parts[2]
        end
    end
end

for program in %(programs)s
    # Another program of that name may have completions, which fish loads at the first tab: they
    # are loaded now, and erased.
    if string length -q -- (path filter -f -- $fish_complete_path/$program.fish 2>/dev/null)
        complete -C "$program " >/dev/null 2>&1
    end
    complete --command $program --erase
    complete --command $program --no-files --keep-order --arguments '(__treesnap_complete)'
end
