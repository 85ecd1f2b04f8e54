#!/bin/sh
# Records the files that `regatta map` reads into a folder, for `regatta map --machine FOLDER`.
# Run it on the node. It does not need root and writes nothing outside the folder.
# Review the folder before sharing it: it contains host names and addresses.
set -u
[ $# -eq 1 ] || { echo "usage: $0 FOLDER" >&2; exit 2; }
out=$1
mkdir -p "$out" || exit 1
out=$(cd "$out" && pwd)

# Records one file. sysfs files have no valid size, so they are read instead of copied. Unreadable
# files are left out.
file() { [ -r "$1" ] && [ -f "$1" ] && mkdir -p "$out$(dirname "$1")" && cat "$1" >"$out$1" 2>/dev/null || rm -f "$out$1"; }
# Records one symbolic link.
link() { [ -L "$1" ] && mkdir -p "$out$(dirname "$1")" && [ ! -e "$out$1" ] && [ ! -L "$out$1" ] && ln -s "$(readlink "$1")" "$out$1"; }

for cpu in /sys/devices/system/cpu/cpu[0-9]*; do
    for f in "$cpu"/topology/*_list "$cpu"/topology/*_id; do file "$f"; done
    for f in "$cpu"/cache/index*/level "$cpu"/cache/index*/size "$cpu"/cache/index*/type "$cpu"/cache/index*/shared_cpu_list; do file "$f"; done
done
for f in online present possible; do file /sys/devices/system/cpu/$f; done
for node in /sys/devices/system/node/node[0-9]*; do
    for f in cpulist meminfo distance; do file "$node/$f"; done
done

for device in /sys/bus/pci/devices/*; do
    link "$device"
    real=$(readlink -f "$device")
    for f in class vendor device numa_node local_cpulist product_name mem_info_vram_total physical_vram_size_bytes; do file "$real/$f"; done
    link "$real/driver"
    for f in "$real"/tile*/physical_vram_size_bytes "$real"/tile*/gt*/name; do file "$f"; done
done
for class in net infiniband cxi drm; do
    for device in /sys/class/$class/*; do
        [ -e "$device" ] || continue
        link "$device"
        real=$(readlink -f "$device")
        for f in address addr_len type speed operstate carrier mtu product_name lmem_total_bytes node_type; do file "$real/$f"; done
        link "$real/device"
        for f in "$real"/ports/*/rate "$real"/ports/*/state "$real"/ports/*/link_layer "$real"/gt/gt*/id; do file "$f"; done
    done
done
for f in /sys/class/kfd/kfd/topology/nodes/*/properties /sys/class/kfd/kfd/topology/nodes/*/gpu_id \
    /sys/class/kfd/kfd/topology/nodes/*/name /sys/class/kfd/kfd/topology/nodes/*/mem_banks/*/properties \
    /sys/class/kfd/kfd/topology/nodes/*/io_links/*/properties; do file "$f"; done
file /sys/module/amdgpu/version
for f in /sys/kernel/mm/hugepages/*/nr_hugepages /sys/kernel/mm/hugepages/*/free_hugepages; do file "$f"; done

for f in /proc/cpuinfo /proc/meminfo /proc/sys/kernel/hostname /proc/sys/kernel/osrelease \
    /proc/driver/nvidia/version /proc/driver/nvidia/gpus/*/information \
    /etc/resolv.conf /.dockerenv /run/.containerenv /opt/rocm/.info/version; do file "$f"; done
for f in status cgroup limits mounts; do
    mkdir -p "$out/proc/self" && cat "/proc/self/$f" >"$out/proc/self/$f"
done
cpuset=$(sed -n 's/^[0-9]*:[^:]*cpuset[^:]*:/\/sys\/fs\/cgroup\/cpuset/p; s/^0::/\/sys\/fs\/cgroup/p' /proc/self/cgroup)
for folder in $cpuset; do
    while [ "$folder" != /sys/fs ]; do
        for f in "$folder"/cpuset.*cpus* "$folder"/cpuset.*mems*; do file "$f"; done
        folder=$(dirname "$folder")
    done
done
command -v ip >/dev/null 2>&1 && ip -j addr >"$out/ip-addr.json" 2>/dev/null || rm -f "$out/ip-addr.json"
echo "recorded $(find "$out" -type f | wc -l) files in $out; next: regatta map --machine $out"
