# First process of an isolated test program, which reaps the orphans of its namespace.
#
# $1 folder that becomes /tmp, $2 number of folders below /tmp that stay visible, then these folders, and
# the program with its arguments.
set -eu
tmp=$1 count=$2
shift 2
ip link set lo up
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
for _ in $(seq "$count"); do
    mkdir -p "$tmp${1#/tmp}"
    mount --rbind "$1" "$tmp${1#/tmp}"
    shift
done
mount --rbind "$tmp" /tmp
"$@"
exit 0
