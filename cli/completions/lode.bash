# Completes `lode` in bash: the program itself knows the words.

_lode() {
    local separator=$'\013' word
    local -a words=()
    # bash splits words at `:` and `=`, which names, addresses and options contain.
    for word in "${COMP_WORDS[@]:0:COMP_CWORD}" "${2:-${COMP_WORDS[COMP_CWORD]}}"; do
        if [[ ${#words[@]} -gt 0 && ($word == [:=]* || ${words[-1]} == *[:=]) ]]; then
            words[-1]+=$word
        else
            words+=("$word")
        fi
    done
    # Words from the server: `mapfile` neither splits nor expands them.
    mapfile -d "$separator" -t COMPREPLY < <(_CLAP_IFS=$separator _CLAP_COMPLETE_INDEX=$((${#words[@]} - 1)) \
        LODE_COMPLETE=bash lode -- "${words[@]}" 2>/dev/null)
    # bash replaces only its own last word.
    COMPREPLY=("${COMPREPLY[@]#"${words[-1]%"$2"}"}")
    # bash inserts a candidate into the command line as it is.
    for word in "${!COMPREPLY[@]}"; do
        if [[ ${COMPREPLY[word]} == *[^[:alnum:]._/:@+=,~-]* ]]; then
            printf -v "COMPREPLY[word]" %q "${COMPREPLY[word]}"
        fi
    done
    [[ ${COMPREPLY-} != *[=/:] ]] || compopt -o nospace
}

complete -o bashdefault -o nosort -F _lode lode
