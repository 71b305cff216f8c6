# enter.sh ROOT GIVEN SAID: makes ROOT the root of this mount namespace, and plays steps.sh in it.
#
# Runs as the first process of namespaces that first_hour.sh has made. GIVEN is seen at /given, SAID at /said.
set -euo pipefail
root=$1 given=$2 said=$3
mount --bind "$root" "$root"
mkdir -p "$root/given" "$root/said" "$root/before"
mount --bind "$given" "$root/given"
mount --bind "$said" "$root/said"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount --rbind /sys "$root/sys"
cp "$given"/etc/* "$root/etc/"
while read -r path; do
    if [ -d "$path" ]; then mkdir -p "$root$path"; else mkdir -p "$root$(dirname "$path")" && touch "$root$path"; fi
    mount --bind "$(realpath "$path")" "$root$path"
done <"$given/shown"
cd "$root"
pivot_root . before
umount -l /before
rmdir /before
exec env -i PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin HOME=/root LANG=C.UTF-8 TERM=dumb bash /given/steps.sh
