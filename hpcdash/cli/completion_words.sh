# bash takes the colon of state:run for the end of a word, and replaces only what is behind it.
# shellcheck shell=bash disable=SC1007,SC2168
    local words=() word before= i
    for ((i = 0; i <= COMP_CWORD; i++)); do
        word=${COMP_WORDS[i]}
        if ((i)) && [[ $word == :* || ( ${words[-1]} == *: && -n $word ) ]]; then
            words[-1]+=$word
        else
            words+=("$word")
        fi
    done
    word=${words[-1]}
    [[ $COMP_WORDBREAKS == *:* ]] && before=${word%"${word##*:}"}

