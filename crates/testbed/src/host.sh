# The first process of a host. It gives the host its own name, /tmp, /dev/shm, /sys and control
# groups, says "up", and then waits: when its standard input closes, because the cluster is dropped
# or its process was killed, it ends, and with it every process of the host.
#
# $1 name, $2 the cluster's folder, $3 the host's control group, $4 the control group hierarchies,
# then the folders below /tmp that the host shares with the machine.
set -eu
name=$1 base=$2 group=$3 controllers=$4
shift 4

echo "$name" > /proc/sys/kernel/hostname
ip link set lo up
mount --bind "$base/etc-hosts" /etc/hosts
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
mount -t tmpfs -o mode=1777 tmpfs "$base/local"

# Things are put together below /mnt, for what they are made of is about to be covered.
mount -t tmpfs tmpfs /mnt
mkdir /mnt/cgroup /mnt/tmp
for controller in $controllers; do
    mkdir "/mnt/cgroup/$controller"
    mount --bind "/sys/fs/cgroup/$controller/$group" "/mnt/cgroup/$controller"
done
# A sysfs shows the network devices of the namespace it was mounted from.
mount -t sysfs sysfs /sys
mount --rbind /mnt/cgroup /sys/fs/cgroup

mount -t tmpfs -o mode=1777 tmpfs /mnt/tmp
for folder in "$@"; do
    mkdir -p "/mnt$folder"
    mount --rbind "$folder" "/mnt$folder"
done
mount --move /mnt/tmp /tmp
umount -l /mnt

echo up
# bash reaps the orphans of its namespace while it waits here.
while read -r _; do :; done
