#compdef %(programs)s
# Completion of treesnap in zsh.

_treesnap_complete() {
    local line type value help
    local -a plain described opened
    while IFS= read -r line; do
        type=${line%%$'\t'*} line=${line#*$'\t'}
        value=${line%%$'\t'*} help=${line#*$'\t'}
        case $type in
        file) _files ;;
        dir) _files -/ ;;
        *)
            if [[ $value == */ || $value == *= ]]; then
                opened+=("$value")
            elif [[ -n $help ]]; then
                described+=("${value//:/\\:}:$help")
            else
                plain+=("$value")
            fi
            ;;
        esac
    done < <(
        export _SNAP_COMPLETE=zsh_complete _TREESNAP_COMPLETE=zsh_complete
        export COMP_LINE="${(j: :)words[1,CURRENT]}"
        ${~words[1]} 2>/dev/null
    )
    (( $#described )) && _describe -V words described
    (( $#plain )) && compadd -V plain -a plain
    (( $#opened )) && compadd -V opened -S '' -a opened
    return 0
}

if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    _treesnap_complete "$@" # from a directory of $fpath
else
    (( $+functions[compdef] )) || { autoload -Uz compinit && compinit -i }
    compdef _treesnap_complete %(programs)s
fi
