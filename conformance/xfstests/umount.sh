#!/bin/sh
# `umount` for the tests of run.sh: a volume by its name, also where that is a directory.
for word do
    shift
    case $word in /tmp/*/volume) word=${word%/volume}.mount ;; esac
    set -- "$@" "$word"
done
PATH=/usr/bin:/bin exec umount "$@"
