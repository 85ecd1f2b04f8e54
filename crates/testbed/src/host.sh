# First process of a host. It sets up the host's name, /tmp, /dev/shm, /sys and control groups,
# prints "up" and waits until its standard input closes, because the cluster was dropped or its
# process was killed. Its exit ends every process of the host.
#
# $1 host name, $2 cluster directory, $3 control group of the host, $4 control group hierarchies,
# then the directories below /tmp that the host shares with the machine.
set -eu
name=$1 cluster=$2 group=$3 controllers=$4
shift 4

echo "$name" > /proc/sys/kernel/hostname
ip link set lo up
mount --bind "$cluster/etc-hosts" /etc/hosts
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
mount -t tmpfs -o mode=1777 tmpfs "$cluster/local"

# The new trees are assembled below /mnt, because mounting them hides their sources.
mount -t tmpfs tmpfs /mnt
mkdir /mnt/cgroup /mnt/tmp
for controller in $controllers; do
    mkdir "/mnt/cgroup/$controller"
    mount --bind "/sys/fs/cgroup/$controller/$group" "/mnt/cgroup/$controller"
done
# A sysfs shows the network devices of the namespace that mounted it.
mount -t sysfs sysfs /sys
mount --rbind /mnt/cgroup /sys/fs/cgroup

mount -t tmpfs -o mode=1777 tmpfs /mnt/tmp
for dir in "$@"; do
    mkdir -p "/mnt$dir"
    mount --rbind "$dir" "/mnt$dir"
done
mount --move /mnt/tmp /tmp
umount -l /mnt

echo up
# While it waits here, bash reaps the orphans of its namespace.
while read -r _; do :; done
