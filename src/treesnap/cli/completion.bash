# Completion of treesnap in bash 4.4 and later.
_treesnap_complete() {
    local type value help width=0 listing= word=${COMP_WORDS[COMP_CWORD]}
    local -a values=() helps=()
    COMPREPLY=()
    while IFS=$'\t' read -r type value help; do
        case $type in
        file) compopt -o default 2>/dev/null ;;
        dir) compopt -o dirnames 2>/dev/null ;;
        path) compopt -o filenames 2>/dev/null ;;&
        *)
            values+=("$value")
            helps+=("$help")
            case $value in */ | *=) compopt -o nospace 2>/dev/null ;; esac
            ((${#value} > width)) && width=${#value}
            ;;
        esac
    done < <(
        export _SNAP_COMPLETE=bash_complete _TREESNAP_COMPLETE=bash_complete
        export COMP_LINE=${COMP_LINE:0:COMP_POINT} COMP_WORDBREAKS
        "${1/#\~\//$HOME/}" 2>/dev/null
    )
    # A list that is only shown has what each word means; a word that is inserted has not.
    case $COMP_TYPE in 33 | 63 | 64) ((${#values[@]} > 1)) && listing=yes ;; esac
    local index
    for index in "${!values[@]}"; do
        if [[ $listing && ${helps[index]} ]]; then
            printf -v value "%-${width}s  (%s)" "${values[index]}" "${helps[index]}"
            COMPREPLY+=("${value:0:${COLUMNS:-80}-1}")
        else
            COMPREPLY+=("${values[index]}")
        fi
    done
}

complete -o nosort -F _treesnap_complete %(programs)s
