# Functions for folders that other accounts may write to. `is_at PATH`: the working directory is that path, without a link.
# `enter PATH NAME` goes into a folder of the working directory, PATH, and into no link; `enter_own NAME` makes and enters a
# folder that nobody else can write to, so that what is in it is what was put there.
# shellcheck shell=sh disable=SC3067
is_at() {
  [ "$(pwd -P && echo .)" = "$1
." ]
}
enter() { [ ! -h "./$2" ] && cd -P -- "./$2" 2>/dev/null && is_at "$1/$2"; }
enter_own() {
  own=$(pwd -P && echo .)
  mkdir -m 700 -- "./$1" 2>/dev/null
  enter "${own%??}" "$1" && [ -O . ] && case $(stat -c %a .) in *00) ;; *) false ;; esac
}
