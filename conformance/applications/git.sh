# git: maps packs and indexes, and closes them.
set -e
command -v git > /dev/null || { echo "no git"; exit 77; }
export HOME="$SCRATCH" GIT_CONFIG_NOSYSTEM=1 GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a \
    GIT_COMMITTER_EMAIL=a@b
git init -q origin && cd origin
for commit in 1 2 3 4; do
    for number in $(seq 150); do
        mkdir -p "d$((number % 10))"
        seq "$number" $((number * 7 + commit * 50)) > "d$((number % 10))/f$number"
    done
    git add -A && git commit -qm "commit $commit"
done
git gc -q && cd ..
git clone -q --no-hardlinks origin clone && cd clone
git fsck --full --strict 2>&1 | grep -v '^notice' || true
git fsck --full > /dev/null 2>&1
[ "$(git grep -c '^777$' | wc -l)" -gt 50 ]
git worktree add -q ../tree HEAD~2
[ "$(git -C ../tree log --oneline | wc -l)" = 2 ]
git repack -adq && git gc -q --prune=now
git status --porcelain | (! grep .)
git -C ../tree status --porcelain | (! grep .)
git log -p | sha256sum > ../log.one
git -C ../origin log -p | sha256sum | cmp - ../log.one
git fsck --full > /dev/null 2>&1
