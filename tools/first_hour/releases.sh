# releases.sh PACKAGE INTO VERSION...: a git repository with one commit a release of a package.
#
# A release's source is what its archive holds. Its message is what it adds to the changelog's list, the first point as
# the title. The commits are larger than a developer's, and the code is real.
set -eu
package=$1 into=$2
shift 2
git init -q "$into"
for version in "$@"; do
    pip download -qq --no-deps --no-binary :all: -d "$into/.git/archives" "$package==$version"
    find "$into" -mindepth 1 -maxdepth 1 ! -name .git -exec rm -rf {} +
    tar -xf "$into/.git/archives/$package-$version.tar.gz" --strip-components=1 -C "$into"
    git -C "$into" add -A
    git -C "$into" diff --cached -U0 -- 'CHANGE*' | sed -n 's/^+\([^+]\)/\1/p' | awk -v package="$package $version" '
        /^- / { if (points++ > 0) printf points == 2 ? "\n\n" : "\n"; printf "%s", substr($0, 3); next }
        /^  / { if (points) { sub(/^ +/, " "); printf "%s", $0 } }
        END { print points ? "" : package }' >"$into/.git/message"
    git -C "$into" -c user.name="$package" -c user.email="$package@localhost" commit -q -F .git/message
done
git -C "$into" log --oneline
